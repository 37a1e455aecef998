//! `serve --engine slab`: the client commands over each fabric, and what the engine has
//! not.

use std::process::{Command, Output};

use crate::common::{Folder, Server};

fn herdwick(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_herdwick"));
    command.args(arguments).output().unwrap()
}

fn statistic(said: &str, name: &str) -> u64 {
    let mut lines = said.lines().map(str::split_whitespace);
    let value = lines.find_map(|mut words| {
        let is_named = words.any(|word| word == name);
        is_named.then(|| words.next().and_then(|value| value.parse().ok()))
    });
    value.flatten().unwrap_or_else(|| panic!("{name}: {said}"))
}

#[test]
fn client_commands_use_the_engine_over_each_fabric() {
    for more in [&["-p", "0"][..], &["-p", "0", "--roce", "127.0.0.1:0"]] {
        let folder = Folder::new();
        let options = ["--engine", "slab", "-m", "64", "-f", "2", "-n", "32"];
        let server = Server::run(&folder, 2, &[&options, more].concat());
        let run = |command: &[&str]| {
            let output = herdwick(&[command, &["--server", &server.address]].concat());
            let said = String::from_utf8(output.stdout).unwrap();
            let error = String::from_utf8(output.stderr).unwrap();
            (output.status.success(), said + &error)
        };
        let (stored, said) = run(&["set", "a", "one", "--ttl", "60"]);
        assert!(stored, "{said}");
        let (found, said) = run(&["get", "a"]);
        assert!(found && said.contains("one"), "{said}");
        assert!(run(&["delete", "a"]).0);
        assert!(!run(&["get", "a"]).0);
        let (shown, said) = run(&["stats"]);
        assert!(shown, "{said}");
        assert_eq!(statistic(&said, "total_items"), 1, "{said}");
        server.stop();
    }
}

#[test]
fn what_the_engine_has_not_is_refused_at_the_start() {
    let options = [
        "serve", "-u", "root", "--engine", "slab", "-p", "0", "--verbs", "off",
    ];
    let refused = [
        (&["-e", "/tmp/herdwick-slab-file"][..], "a memory file (-e)"),
        (&["-f", "1"], "a factor above 1"),
        (&["-m", "0"], "-m"),
    ];
    for (more, reason) in refused {
        let output = herdwick(&[&options, more].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{more:?}: {error}");
        assert!(error.contains(reason), "{more:?}: {error}");
    }
}
