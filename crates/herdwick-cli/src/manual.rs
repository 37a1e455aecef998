//! `herdwick man` and `herdwick completions`: what the command line says of itself, for packages.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::exit::Exit;

/// Write a manual page for each subcommand.
#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// The directory for them; it is made.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Write a shell's completions to standard output.
#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// Which shell.
    shell: Shell,
}

pub(crate) fn man(args: &ManArgs) -> ExitCode {
    match pages(&args.directory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let directory = args.directory.display();
            eprintln!("herdwick: cannot write to {directory}: {error}; give another directory");
            Exit::Failed.into()
        }
    }
}

fn pages(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    clap_mangen::generate_to(command(), directory)
}

pub(crate) fn completions(args: &CompletionsArgs) -> ExitCode {
    clap_complete::generate(args.shell, &mut command(), "herdwick", &mut io::stdout());
    ExitCode::SUCCESS
}

/// The command line without what is hidden and without the word `help` as a subcommand.
fn command() -> clap::Command {
    <crate::Cli as CommandFactory>::command()
        .disable_help_subcommand(true)
        // By itself it goes by the program's name, which has a page of its own.
        .mut_subcommand("serve", |serve| serve.display_name("herdwick-serve"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_subcommand_has_a_page() {
        let directory = std::env::temp_dir().join(format!("herdwick-man-{}", std::process::id()));
        pages(&directory).unwrap();
        let command = command();
        let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
        let missing: Vec<_> = shown
            .map(|sub| format!("herdwick-{}.1", sub.get_name()))
            .filter(|page| !directory.join(page).is_file())
            .collect();
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(missing, Vec::<String>::new());
    }
}
