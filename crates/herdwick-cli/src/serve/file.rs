//! `--config FILE`: flags in TOML, by their long names.

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
};

use toml::{Table, Value};

/// A file of flags that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("cannot read {path} (--config): {source}")]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{path} is no TOML: {source}")]
    Toml {
        path: PathBuf,
        source: toml::de::Error,
    },
    #[error("{path}: a file of flags names no other; put all into one")]
    Nested { path: PathBuf },
    #[error("{path}: {name} is a {kind}; write a number, a text, true or false, or a list of them")]
    Kind {
        path: PathBuf,
        name: String,
        kind: &'static str,
    },
}

/// The flags in `path`, as they would stand on a command line.
pub(super) fn flags(path: &Path) -> Result<Vec<OsString>, FileError> {
    let text = std::fs::read_to_string(path).map_err(|source| FileError::Unreadable {
        path: path.to_owned(),
        source,
    })?;
    let table: Table = text.parse().map_err(|source| FileError::Toml {
        path: path.to_owned(),
        source,
    })?;
    if table.contains_key("config") {
        return Err(FileError::Nested {
            path: path.to_owned(),
        });
    }
    let mut flags = Vec::new();
    for (name, value) in &table {
        push(&mut flags, name, value).map_err(|kind| FileError::Kind {
            path: path.to_owned(),
            name: name.clone(),
            kind,
        })?;
    }
    Ok(flags)
}

/// Appends the flag, or says of what kind the value is that is none.
fn push(flags: &mut Vec<OsString>, name: &str, value: &Value) -> Result<(), &'static str> {
    let said = match value {
        Value::Boolean(true) => {
            flags.push(format!("--{name}").into());
            return Ok(());
        }
        Value::Boolean(false) => return Ok(()),
        Value::Array(values) => {
            return values.iter().try_for_each(|value| push(flags, name, value));
        }
        Value::String(text) => text.clone(),
        Value::Integer(number) => number.to_string(),
        other => return Err(other.type_str()),
    };
    flags.push(format!("--{name}={said}").into());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Result<Vec<OsString>, &'static str> {
        let table: Table = text.parse().unwrap();
        let mut flags = Vec::new();
        for (name, value) in &table {
            push(&mut flags, name, value)?;
        }
        Ok(flags)
    }

    #[test]
    fn each_kind_of_value_is_a_flag() {
        let text = "port = 1\nlisten = [\"a\", \"b\"]\ndaemon = true\nmax-item-size = \"2m\"\nenable-shutdown = false";
        let mut flags = said(text).unwrap();
        flags.sort();
        assert_eq!(
            flags,
            [
                "--daemon",
                "--listen=a",
                "--listen=b",
                "--max-item-size=2m",
                "--port=1"
            ]
        );
        assert_eq!(said("port = 1.5"), Err("float"));
        assert_eq!(said("[port]\nx = 1"), Err("table"));
    }
}
