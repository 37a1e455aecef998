//! Tests of the exit codes: the table in docs/operating.md, the one in `--help`, and what commands
//! return.

use std::{
    fs,
    net::TcpListener,
    process::{Command, Output, Stdio},
};

use crate::common::{Folder, Server};

fn herdwick(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_herdwick"));
    command.args(arguments).output().unwrap()
}

fn code(arguments: &[&str]) -> i32 {
    herdwick(arguments).status.code().unwrap()
}

#[test]
fn every_exit_code_has_one_meaning() {
    let folder = Folder::new();
    let server = Server::start(&folder, 1);
    let at = ["--server", &server.address];
    let with = |arguments: &[&'static str]| -> i32 {
        let all: Vec<&str> = arguments.iter().copied().chain(at).collect();
        code(&all)
    };
    assert_eq!(with(&["set", "k", "v"]), 0);
    assert_eq!(with(&["get", "k"]), 0);
    assert_eq!(with(&["get", "k", "missing"]), 1);
    assert_eq!(with(&["delete", "missing"]), 1);
    assert_eq!(with(&["get", "a key"]), 2);
    assert_eq!(with(&["set", "k", "v", "--ttl", "soon"]), 2);
    assert_eq!(with(&["set", "k", "v", "--ttl", "0"]), 2);
    assert_eq!(with(&["get", "k", "--login", "/nowhere/login"]), 2);
    assert_eq!(code(&["no-such-command"]), 2);
    assert_eq!(with(&["top"]), 2);
    // The listener is dropped at once, so nothing listens on the port.
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    assert_eq!(code(&["get", "k", "--server", &free.to_string()]), 3);
    assert_eq!(code(&["stats", "--server", "no.such.host.invalid:1"]), 3);
    let tiny = |arguments: &[&str]| {
        let tiny = ["bench", "--keys", "100", "--seconds", "0.1", "--runs", "1"];
        code(&[&tiny, arguments].concat())
    };
    assert_eq!(tiny(&["--server", &server.address, "--fabric", "tcp"]), 0);
    for (arguments, expected) in [
        (&["--window", "3", "--fabric", "shm"][..], 2),
        (&["--clients", "0"], 2),
        (&["--tls"], 2),
        (&["--login", "/nowhere/login"], 2),
        (&["--against", "/nowhere/report"], 2),
        (&["store,echo"], 2),
        (&["--server", "host:http"], 2),
        (&["--server", &free.to_string()], 3),
        (&["--json", "/nowhere/report"], 4),
    ] {
        assert_eq!(tiny(arguments), expected, "{arguments:?}");
    }
    let value = "v".repeat(100_000);
    let small = Server::run(&folder, 1, &["-p", "0", "-I", "1k"]);
    assert_eq!(code(&["set", "k", &value, "--server", &small.address]), 4);
    for (arguments, expected) in [
        (&["-t", "0"][..], 2),
        (&["-S"], 2),
        (&["-p", "abc"], 2),
        (&["--config", "/nowhere/file"], 2),
        (&["-l", &server.address], 4),
        (&["-e", "/nowhere/file"], 4),
    ] {
        let all = [&["serve", "-u", "root", "-p", "0"][..], arguments].concat();
        assert_eq!(code(&all), expected, "{arguments:?}");
    }
}

/// Compares the lines ` N meaning` of the help with the rows of the table.
#[test]
fn documented_exit_codes_match_the_help() {
    let help = String::from_utf8(herdwick(&["--help"]).stdout).unwrap();
    let (_, codes) = help.split_once("Exit codes:\n").unwrap();
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, section) = page.split_once("## Exit codes\n").unwrap();
    let rows: Vec<&str> = section
        .lines()
        .filter(|line| line.starts_with("| "))
        .collect();
    let lines: Vec<String> = codes
        .lines()
        .map(|line| {
            let (code, meaning) = line.trim().split_once("  ").unwrap();
            format!("| {code} | {meaning} |")
        })
        .collect();
    assert_eq!(lines.len(), 5);
    assert_eq!(rows[1..], lines);
}

#[test]
fn help_lists_the_commands_for_packagers() {
    let help = String::from_utf8(herdwick(&["--help"]).stdout).unwrap();
    for command in ["man", "completions"] {
        let found = help
            .lines()
            .any(|line| line.trim_start().starts_with(command));
        assert!(found, "{help}");
    }
}

#[test]
fn doctor_suggests_nothing_on_a_kernel_without_rdma() {
    if std::path::Path::new("/sys/class/infiniband_verbs").exists() {
        println!("skipped: this kernel has RDMA");
        return;
    }
    let report = String::from_utf8(herdwick(&["doctor"]).stdout).unwrap();
    let without = report.contains("this kernel has no RDMA; only needed for RNICs");
    assert!(without || report.contains("modprobe rdma_rxe"), "{report}");
    assert!(!report.contains("ENOSYS"), "{report}");
}

/// Runs it where standard output, or standard error, takes nothing.
fn on_a_full_disk(args: &[&str], is_output: bool) -> Option<i32> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_herdwick"));
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    if is_output {
        command.stdout(full).stderr(Stdio::null());
    } else {
        command.stderr(full).stdout(Stdio::null());
    }
    command.args(args).status().unwrap().code()
}

#[test]
fn output_that_cannot_be_written_exits_with_code_4() {
    let bench = "bench store --keys 1K --seconds 0.01 --runs 1";
    for args in ["completions bash", "doctor", bench] {
        let args: Vec<_> = args.split(' ').collect();
        assert_eq!(on_a_full_disk(&args, true), Some(4), "{args:?}");
    }
}

/// An error message that cannot be written does not change the exit status.
#[test]
fn complaints_that_cannot_be_written_are_lost() {
    for (args, code) in [
        ("get --server 127.0.0.1:1 key", 3),
        ("serve -p 0 --config /nowhere/flags", 2),
        ("bench --json /nowhere/report", 4),
        ("man /dev/null/pages", 4),
    ] {
        let args: Vec<_> = args.split(' ').collect();
        assert_eq!(on_a_full_disk(&args, false), Some(code), "{args:?}");
    }
}
