//! SIGHUP: applies the settings that may change while the server runs, and logs the names of
//! changed flags that need a restart.

use std::{
    ffi::OsString,
    fmt::Display,
    path::{Path, PathBuf},
};

use clap::{Arg, ArgMatches, Command, FromArgMatches};
use herdwick_server::{Config, CrawlerConfig, Server};
use tracing::{debug, warn};

use super::{
    args::ServeArgs,
    error::ServeError,
    extended::{Extended, extend},
    file::{self, FileError, FlagLine},
    log, process,
};

/// The flags of a file, followed by those of the command line.
pub(super) struct FlagSources {
    path: PathBuf,
    /// The definition of `serve`.
    command: Command,
    matches: ArgMatches,
    /// Those of the file alone.
    set: Vec<FlagLine>,
    pub(super) args: ServeArgs,
}

impl FlagSources {
    /// Reads the file, and appends the command line.
    pub(super) fn read(path: &Path, command: &Command) -> Result<Self, ServeError> {
        let set = file::flags(path, command)?;
        let mut line: Vec<OsString> = vec!["serve".into()];
        line.extend(set.iter().map(|flag| OsString::from(&flag.word)));
        line.extend(
            std::env::args_os()
                .skip_while(|word| word != "serve")
                .skip(1),
        );
        let wrong = |error| {
            let needy = set.iter().find(|flag| flag.needs_another(command));
            wrong(path, &error, needy)
        };
        let matches = command.clone().try_get_matches_from(line).map_err(wrong)?;
        let args = ServeArgs::from_arg_matches(&matches).map_err(wrong)?;
        Ok(Self {
            path: path.to_owned(),
            command: command.clone(),
            matches,
            set,
            args,
        })
    }

    /// Returns the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the error with the line of the flag that it is about, if the file sets that.
    pub(super) fn locate(&self, error: ServeError) -> ServeError {
        match self.line(&error.to_string()) {
            Some(line) => ServeError::Flag {
                path: self.path.clone(),
                line,
                error: Box::new(error),
            },
            None => error,
        }
    }

    /// Returns the line of the first flag that a message names and the file sets: a message names
    /// flags as they are on the command line (`-t`, `--pin`).
    fn line(&self, message: &str) -> Option<usize> {
        let words = message.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-');
        words.filter(|word| word.starts_with('-')).find_map(|word| {
            let mut known = self.command.get_arguments();
            let arg = known.find(|arg| is_called(arg, word))?;
            // A value that the command line replaces is not the one that is wrong.
            let values = raw(&self.matches, arg.get_id().as_str());
            let holds = |flag: &&FlagLine| match flag.parts() {
                (name, Some(value)) => {
                    arg.get_long() == Some(name) && values.iter().any(|v| v == value)
                }
                (name, None) => arg.get_long() == Some(name),
            };
            self.set.iter().find(holds).map(|flag| flag.line)
        })
    }

    /// Reads the file again, applies the changes that need no restart, and names the flags that
    /// differ from those of the start, by which the server runs.
    fn reload(&self, server: &Server) -> Result<(), ServeError> {
        let new = Self::read(&self.path, &self.command)?;
        let mut config = Config {
            connections_max: process::allow_connections(new.args.connections)?,
            verbosity: new.args.verbosity,
            ..Config::default()
        };
        for option in &new.args.extended {
            extend(&mut config, option);
        }
        server.tune(&config.tuning());
        log::set_verbosity(server.verbosity());
        for name in self.changed(&new) {
            warn!(name, "{name}: a new value takes a restart");
        }
        Ok(())
    }

    /// Returns the names of the flags that differ in `new` and need a restart.
    fn changed(&self, new: &Self) -> Vec<String> {
        let named = self.command.get_arguments().filter(|arg| {
            let id = arg.get_id().as_str();
            !["connections", "verbosity", "extended"].contains(&id)
                && raw(&self.matches, id) != raw(&new.matches, id)
        });
        let mut names: Vec<String> = named
            .map(|arg| format!("--{}", arg.get_long().unwrap_or_default()))
            .collect();
        if Lasting::of(&self.args) != Lasting::of(&new.args) {
            names.push("--extended".into());
        }
        names
    }
}

/// Reloads users, certificates, and the file of flags, as far as the server has them.
pub(super) fn reload(server: &Server, args: &ServeArgs, flags: Option<&FlagSources>) {
    if args.auth.is_some() || args.sasl {
        report("users", server.reload_users());
    }
    if args.tls {
        report("certificates", server.reload_certificates());
    }
    if let Some(flags) = flags {
        report("flags", flags.reload(server));
    }
}

fn report<E: Display>(what: &str, outcome: Result<(), E>) {
    match outcome {
        Ok(()) => debug!(what, "{what} read again"),
        Err(error) => warn!(what, "{error}; the {what} stay as they were"),
    }
}

/// Returns the error about all flags together, in one line. `needy` is a flag of the file that takes
/// another beside it.
fn wrong(path: &Path, error: &clap::Error, needy: Option<&FlagLine>) -> ServeError {
    let text = error.to_string();
    let reason = text.split("\n\n").next().unwrap_or_default();
    let words = reason.trim_start_matches("error: ").split_whitespace();
    let reason = words.collect::<Vec<_>>().join(" ");
    let path = path.to_owned();
    match needy {
        Some(flag) => ServeError::File(FileError::Wrong {
            path,
            line: flag.line,
            reason: format!("{}: {reason}", flag.parts().0),
        }),
        None => ServeError::Flags { path, reason },
    }
}

/// Returns whether `word`, such as `-t` or `--threads`, is a name of `arg`.
fn is_called(arg: &Arg, word: &str) -> bool {
    match word.strip_prefix("--") {
        Some(name) => arg.get_long() == Some(name),
        None => {
            let mut letters = word.chars().skip(1);
            arg.get_short().is_some()
                && letters.next() == arg.get_short()
                && letters.next().is_none()
        }
    }
}

fn raw(matches: &ArgMatches, id: &str) -> Vec<OsString> {
    let values = matches.get_raw(id).into_iter().flatten();
    values.map(OsString::from).collect()
}

/// The effects of the extended options that cannot change while the server runs: two lists that have
/// the same effect, such as none and `maxconns_fast`, are equal.
#[derive(PartialEq)]
struct Lasting<'a> {
    refuse_at_once: bool,
    crawler: CrawlerConfig,
    /// Those of TLS and UDP.
    others: Vec<&'a Extended>,
}

impl<'a> Lasting<'a> {
    fn of(args: &'a ServeArgs) -> Self {
        let mut config = Config::default();
        for option in &args.extended {
            extend(&mut config, option);
        }
        let is_other =
            |option: &&Extended| matches!(option, Extended::Tls(_) | Extended::UdpTrusted(_));
        Self {
            refuse_at_once: config.refuse_at_once,
            crawler: config.crawler,
            others: args.extended.iter().filter(is_other).collect(),
        }
    }
}
