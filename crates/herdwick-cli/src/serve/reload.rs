//! SIGHUP: applies the settings that may change while the server runs, and logs the names of
//! changed flags that need a restart.

use std::{
    ffi::OsString,
    fmt::Display,
    path::{Path, PathBuf},
};

use clap::{ArgMatches, Command, FromArgMatches};
use herdwick_server::{Config, Server};
use tracing::{debug, warn};

use super::{
    args::ServeArgs,
    error::ServeError,
    extended::{Extended, extend},
    file, log, process,
};

/// The flags of a file, followed by those of the command line.
pub(super) struct Flags {
    path: PathBuf,
    /// The definition of `serve`.
    command: Command,
    matches: ArgMatches,
    pub(super) args: ServeArgs,
}

impl Flags {
    /// Reads the file, and appends the command line.
    pub(super) fn read(path: &Path, command: &Command) -> Result<Self, ServeError> {
        let mut line: Vec<OsString> = vec!["serve".into()];
        line.extend(file::flags(path, command)?);
        line.extend(
            std::env::args_os()
                .skip_while(|word| word != "serve")
                .skip(1),
        );
        let wrong = |error| wrong(path, &error);
        let matches = command.clone().try_get_matches_from(line).map_err(wrong)?;
        let args = ServeArgs::from_arg_matches(&matches).map_err(wrong)?;
        Ok(Self {
            path: path.to_owned(),
            command: command.clone(),
            matches,
            args,
        })
    }

    /// Reads the file again, and applies the changes that need no restart.
    fn reload(&mut self, server: &Server) -> Result<(), ServeError> {
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
        *self = new;
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
        if lasting(&self.args) != lasting(&new.args) {
            names.push("--extended".into());
        }
        names
    }
}

/// Reloads users, certificates, and the file of flags.
pub(super) fn reload(server: &Server, flags: Option<&mut Flags>) {
    report("users", server.reload_users());
    report("certificates", server.reload_certificates());
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

/// Returns the error about all flags together, in one line.
fn wrong(path: &Path, error: &clap::Error) -> ServeError {
    let text = error.to_string();
    let reason = text.split("\n\n").next().unwrap_or_default();
    let words = reason.trim_start_matches("error: ").split_whitespace();
    ServeError::Flags {
        path: path.to_owned(),
        reason: words.collect::<Vec<_>>().join(" "),
    }
}

fn raw(matches: &ArgMatches, id: &str) -> Vec<OsString> {
    let values = matches.get_raw(id).into_iter().flatten();
    values.map(OsString::from).collect()
}

/// Returns the extended options that cannot change while the server runs.
fn lasting(args: &ServeArgs) -> Vec<&Extended> {
    let may_change = |option: &&Extended| {
        matches!(
            option,
            Extended::IdleTimeout(_) | Extended::RequestTimeout(_)
        )
    };
    let all = args.extended.iter();
    all.filter(|option| !may_change(option)).collect()
}
