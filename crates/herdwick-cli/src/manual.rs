//! `herdwick man` and `herdwick completions`: manual pages and shell completions for packages,
//! generated from the command line definitions.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, Command};
use clap_complete::Shell;

use crate::{exit::Exit, say};

/// Write a manual page for each subcommand.
#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// Directory to write them to; created if missing.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Write the completions of a shell to standard output.
#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// Which shell.
    shell: Shell,
}

pub(crate) fn man(args: &ManArgs, command: Command) -> ExitCode {
    match pages(&args.directory, command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let directory = args.directory.display();
            say::complain(format_args!(
                "cannot write to {directory}: {error}; give another directory"
            ));
            Exit::Failed.into()
        }
    }
}

fn pages(directory: &Path, command: Command) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    clap_mangen::generate_to(shown(command), directory)
}

pub(crate) fn completions(args: &CompletionsArgs, command: Command) -> ExitCode {
    // Into memory first: `generate` panics where its output cannot be written.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut shown(command), "herdwick", &mut script);
    let mut stdout = io::stdout();
    match stdout.write_all(&script).and_then(|()| stdout.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say::complain(format_args!("cannot write the script: {error}"));
            Exit::Failed.into()
        }
    }
}

/// Returns `command`, the definition of the program, as its pages and completions show it: without
/// the subcommand `help`.
fn shown(command: Command) -> Command {
    command
        .disable_help_subcommand(true)
        // `serve -V` prints memcached's name and version.
        .mut_subcommand("serve", |serve| {
            serve
                .display_name("herdwick-serve")
                .version(env!("CARGO_PKG_VERSION"))
        })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_subcommand_has_a_manual_page() {
        let directory = std::env::temp_dir().join(format!("herdwick-man-{}", std::process::id()));
        let command = <crate::Cli as CommandFactory>::command();
        pages(&directory, command.clone()).unwrap();
        let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
        let missing: Vec<_> = shown
            .map(|sub| format!("herdwick-{}.1", sub.get_name()))
            .filter(|page| !directory.join(page).is_file())
            .collect();
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(missing, Vec::<String>::new());
    }
}
