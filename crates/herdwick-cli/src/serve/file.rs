//! `--config FILE`: flags in TOML, by their long names. Errors name the line.

use std::{
    error::Error as _,
    io,
    ops::Range,
    path::{Path, PathBuf},
};

use clap::{
    ArgAction, Command,
    error::{ContextKind, ContextValue, ErrorKind},
};
use toml::de::{DeTable, DeValue};

/// Why a file of flags cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("cannot read {path}: {source}; give another file (--config)")]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{path}:{line}: {reason}")]
    Wrong {
        path: PathBuf,
        line: usize,
        reason: String,
    },
}

/// A flag in the form of a command-line argument, and its line in the file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FlagLine {
    pub(super) word: String,
    pub(super) line: usize,
}

impl FlagLine {
    /// Returns its long name, and its value if it has one.
    pub(super) fn parts(&self) -> (&str, Option<&str>) {
        let word = self.word.trim_start_matches('-');
        match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        }
    }

    /// Returns whether `command` refuses it without another flag beside it.
    pub(super) fn needs_another(&self, command: &Command) -> bool {
        let alone = command.clone().try_get_matches_from(["serve", &self.word]);
        alone.is_err_and(|error| error.kind() == ErrorKind::MissingRequiredArgument)
    }
}

/// Reads the flags in `path`, arguments of `command`; each is checked.
pub(super) fn flags(path: &Path, command: &Command) -> Result<Vec<FlagLine>, FileError> {
    let text = std::fs::read_to_string(path).map_err(|source| FileError::Unreadable {
        path: path.to_owned(),
        source,
    })?;
    let checked = read(&text).and_then(|flags| {
        let flags = repeat(flags, command)?;
        flags.iter().try_for_each(|flag| check(flag, command))?;
        Ok(flags)
    });
    checked.map_err(|(line, reason)| FileError::Wrong {
        path: path.to_owned(),
        line,
        reason,
    })
}

/// The line of an error, and its text.
type Wrong = (usize, String);

/// Parses the flags of `text`, in the order of their names.
fn read(text: &str) -> Result<Vec<FlagLine>, Wrong> {
    let line = |span: Range<usize>| 1 + text[..span.start].matches('\n').count();
    let table = DeTable::parse(text).map_err(|error| {
        let span = error.span().unwrap_or(0..0);
        let reason = match error.message() {
            "duplicate key" => {
                let name = text.get(span.clone()).unwrap_or_default();
                format!("{name}: given twice; leave one out")
            }
            other => format!("not TOML: {other}"),
        };
        (line(span), reason)
    })?;
    let mut flags = Vec::new();
    for (name, value) in table.get_ref() {
        let at = line(name.span());
        if name.get_ref() == "config" {
            return Err((at, "config: a file of flags names no other".into()));
        }
        if name.get_ref() == "license" {
            return Err((at, "license: a flag of the command line alone".into()));
        }
        push(&mut flags, name.get_ref(), value.get_ref(), at)?;
    }
    Ok(flags)
}

/// Appends a flag. `true` gives a flag without a value, `false` none, a list one flag per element.
fn push(
    flags: &mut Vec<FlagLine>,
    name: &str,
    value: &DeValue<'_>,
    line: usize,
) -> Result<(), Wrong> {
    let value = match value {
        DeValue::Boolean(true) => {
            let word = format!("--{name}");
            flags.push(FlagLine { word, line });
            return Ok(());
        }
        DeValue::Boolean(false) => return Ok(()),
        DeValue::Array(values) => {
            let mut values = values.iter();
            return values.try_for_each(|value| push(flags, name, value.get_ref(), line));
        }
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) if number.radix() == 10 => number.as_str().to_owned(),
        other => {
            let kind = match other {
                DeValue::Integer(_) => "a number that is not decimal",
                DeValue::Float(_) => "a number with a fraction",
                DeValue::Table(_) => "a table",
                _ => "a date",
            };
            return Err((
                line,
                format!(
                    "{name}: {kind} is no value for a flag: write a whole number, \"text\", true or \
                     false, or a list of them"
                ),
            ));
        }
    };
    // With `=`, since a value may begin with `-`.
    let word = format!("--{name}={value}");
    flags.push(FlagLine { word, line });
    Ok(())
}

/// Replaces the count of a flag that may be repeated, such as `verbose = 2`, by as many flags.
fn repeat(flags: Vec<FlagLine>, command: &Command) -> Result<Vec<FlagLine>, Wrong> {
    let mut repeated = Vec::with_capacity(flags.len());
    for flag in flags {
        let (name, Some(count)) = flag.parts() else {
            repeated.push(flag);
            continue;
        };
        let mut known = command.get_arguments();
        let counts = |action: &ArgAction| matches!(action, ArgAction::Count);
        if !known.any(|arg| arg.get_long() == Some(name) && counts(arg.get_action())) {
            repeated.push(flag);
            continue;
        }
        let Ok(times) = count.parse::<u8>() else {
            let reason = format!("{name}: '{count}' is not true, false or a count up to 255");
            return Err((flag.line, reason));
        };
        repeated.extend((0..times).map(|_| FlagLine {
            word: format!("--{name}"),
            line: flag.line,
        }));
    }
    Ok(repeated)
}

/// Checks that `command` accepts the flag, independent of other flags.
fn check(flag: &FlagLine, command: &Command) -> Result<(), Wrong> {
    let words = ["serve", &flag.word];
    let Err(error) = command.clone().try_get_matches_from(words) else {
        return Ok(());
    };
    let (name, value) = flag.parts();
    let value = value.unwrap_or_default();
    let reason = match error.kind() {
        ErrorKind::UnknownArgument => match (long_name(name, command), suggested(&error)) {
            (Some(long), _) => format!("{name}: flags have their long names here; write {long}"),
            (_, Some(other)) => format!("{name}: no such flag; is it {other}?"),
            _ => format!("{name}: no such flag; `herdwick serve --help` lists them"),
        },
        // The file has no flags that print something and end.
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            format!("{name}: no such flag; `herdwick serve --help` lists them")
        }
        ErrorKind::TooManyValues => format!("{name}: '{value}' is not true or false"),
        ErrorKind::InvalidValue if value.is_empty() => format!("{name}: a value is missing"),
        ErrorKind::InvalidValue => match error.get(ContextKind::ValidValue) {
            Some(ContextValue::Strings(all)) => {
                format!("{name}: '{value}' is not one of {}", all.join(", "))
            }
            _ => format!("{name}: '{value}' is not a value for it"),
        },
        ErrorKind::ValueValidation => {
            let reason = error.source().map(ToString::to_string);
            let reason = reason.unwrap_or_default();
            // Reasons such as `not a port` and `too large a number` end a sentence.
            match ["not ", "too "].iter().any(|word| reason.starts_with(word)) {
                true => format!("{name}: '{value}' is {reason}"),
                false => format!("{name}: '{value}': {reason}"),
            }
        }
        // Other errors are about combinations: what this flag requires may be given elsewhere.
        _ => return Ok(()),
    };
    Err((flag.line, reason))
}

/// Returns the long name of the flag that is `name` on the command line, if that is one letter.
fn long_name<'a>(name: &str, command: &'a Command) -> Option<&'a str> {
    let mut letters = name.chars();
    let letter = letters.next().filter(|_| letters.as_str().is_empty());
    let mut flags = command.get_arguments();
    let flag = flags.find(|flag| letter.is_some() && flag.get_short() == letter)?;
    flag.get_long()
}

/// Returns the flag that clap suggests for an unknown one.
fn suggested(error: &clap::Error) -> Option<&str> {
    match error.get(ContextKind::SuggestedArg)? {
        ContextValue::String(flag) => Some(flag.trim_start_matches('-')),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_toml_value_becomes_a_flag_with_its_line() {
        let text = "port = 1\nlisten = [\n\"a\", \"b\"]\n# nothing\ndaemon = true\n\
                    max-item-size = \"2m\"\nenable-shutdown = false";
        let flags = read(text).unwrap();
        let flags: Vec<_> = flags
            .iter()
            .map(|flag| (&flag.word[..], flag.line))
            .collect();
        for flag in [
            ("--port=1", 1),
            ("--listen=a", 2),
            ("--listen=b", 2),
            ("--daemon", 5),
            ("--max-item-size=2m", 6),
        ] {
            assert!(flags.contains(&flag), "{flag:?} in {flags:?}");
        }
        assert_eq!(flags.len(), 5);
        for (text, line) in [
            ("\nport = 1.5", 2),
            ("[port]\nx = 1", 1),
            ("a = 1\n\nx =", 3),
        ] {
            assert_eq!(read(text).unwrap_err().0, line, "{text}");
        }
    }
}
