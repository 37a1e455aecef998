//! `serve --one-sided-reads`: the commands, a server that is killed and started again, and clients that are
//! killed while they read its memory.

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Command, Output},
};

use herdwick::{Answer, Client, Key, OneSidedReads, Op, Options, Session};

use crate::common::{
    Clock, Folder, Holdings, Server, is_whole, other_end, patient, settle, socket, start, value,
};

/// Keys that are read.
const KEYS: usize = 16;

fn herdwick(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_herdwick"));
    command.args(arguments).output().unwrap()
}

fn reader(address: &str) -> Client {
    let options = Options {
        one_sided: OneSidedReads::Always,
        ..patient()
    };
    Client::connect_with(address, options).unwrap()
}

#[test]
fn get_tells_how_values_were_read() {
    let folder = Folder::new();
    let config = folder.0.join("config.toml");
    std::fs::write(&config, "one-sided-reads = \"all\"\nport = 0\n").unwrap();
    let by_file = ["--config", config.to_str().unwrap()];
    for (more, setting) in [
        (&["-p", "0", "--one-sided-reads"][..], "owner"),
        (&["-p", "0", "--one-sided-reads=owner"], "owner"),
        (&by_file[..], "all"),
    ] {
        let server = Server::run(&folder, 2, more);
        let run = |command: &[&str]| {
            let output = herdwick(&[command, &["--server", &server.address]].concat());
            assert!(output.status.success(), "{output:?}");
            let text = |bytes| String::from_utf8(bytes).unwrap();
            (text(output.stdout), text(output.stderr))
        };
        run(&["set", "a", "one"]);
        run(&["set", "b", "two", "--ttl", "60"]);
        for way in [&[][..], &["--one-sided", "always"]] {
            let (said, noted) = run(&[&["get", "-v", "a", "b"], way].concat());
            assert!(said.contains("one") && said.contains("two"), "{said}");
            assert!(
                noted.contains("2 of 2 read in the server's memory"),
                "{noted}"
            );
        }
        let (said, noted) = run(&["get", "-v", "a", "--one-sided", "never"]);
        assert!(said.contains("one") && !noted.contains("memory"), "{noted}");
        let (settings, _) = run(&["stats", "settings"]);
        let line = settings
            .lines()
            .find(|line| line.starts_with("one_sided_reads"));
        assert!(line.unwrap().ends_with(setting), "{line:?}");
        server.stop();
    }
}

#[test]
fn what_excludes_one_sided_reads_is_refused_at_the_start() {
    for (more, named) in [
        (&["-e", "/tmp/herdwick-one-sided-file"][..], "(-e)"),
        (&["--shm", "off"], "--shm off"),
        (&["--engine", "clover"], "--engine"),
    ] {
        let options = ["serve", "-u", "root", "-p", "0", "--one-sided-reads"];
        let output = herdwick(&[&options, more].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{more:?}");
        assert!(
            error.contains("--one-sided-reads") && error.contains(named),
            "{error}"
        );
    }
    let output = herdwick(&["serve", "--one-sided-reads=some"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && error.contains("owner"),
        "{error}"
    );
}

/// What a killed server had acknowledged is not read after its successor has acknowledged something else.
#[test]
fn memory_of_a_killed_server_is_read_no_more() {
    let folder = Folder::new();
    let path = socket(&folder);
    let at = ["--one-sided-reads", "-s", path.to_str().unwrap()];
    let mut server = Server::run(&folder, 1, &at);
    let mut readers = [(); 2].map(|()| reader(&server.address));
    for round in 0..5 {
        let mut writer = server.client();
        let key = "a";
        writer.set(key, &value(key, round, 500)).unwrap();
        for reader in &mut readers {
            let clock = Clock::start();
            // The first call may find the old connection, or no server.
            let read = loop {
                match reader.get(key) {
                    Ok(read) => break read,
                    Err(_) => clock.hurry("a call after the restart"),
                }
            };
            assert_eq!(read, Some(value(key, round, 500)), "round {round}");
            for _ in 0..1000 {
                assert!(reader.get(key).unwrap().is_some());
            }
            let counters = reader.session().and_then(Session::one_sided).unwrap();
            assert!(counters.hits > 0, "{counters:?}");
        }
        drop(writer);
        server.kill();
        server = Server::run(&folder, 1, &at);
    }
}

/// The victim process: a client that reads until it is killed. It signals when it has begun.
#[test]
#[ignore = "the other process of a test here"]
fn reading_victim() {
    let Some(mut stream) = other_end() else {
        return;
    };
    let mut address = String::new();
    BufReader::new(&stream).read_line(&mut address).unwrap();
    let options = Options {
        one_sided: OneSidedReads::Always,
        ..patient()
    };
    let address = address.trim_end().parse().unwrap();
    let (mut session, clock) = (Session::dial(&address, &options).unwrap(), Clock::start());
    let mut said = false;
    while session.broken().is_none() {
        for n in 0..KEYS {
            let key = format!("key:{n}");
            let key = Key::new(key.as_bytes()).unwrap();
            let _ = session.submit(clock.now(), key, &Op::Get);
        }
        session.flush(clock.now());
        session.poll(clock.now(), &mut |_, answer| {
            assert!(!matches!(answer, Answer::Refused(_)), "{answer:?}");
        });
        if !std::mem::replace(&mut said, true) {
            stream.write_all(&[1]).unwrap();
        }
    }
}

#[test]
fn killed_readers_hold_nothing_and_delay_no_other() {
    let folder = Folder::new();
    let server = Server::run(&folder, 2, &["-p", "0", "--one-sided-reads"]);
    let (mut writer, mut other) = (server.client(), reader(&server.address));
    let baseline = Holdings {
        shared_kib: u64::MAX,
        ..server.holdings()
    };
    for round in 0..6_u64 {
        let (mut child, mut stream) = start("one_sided::reading_victim");
        writeln!(stream, "{}", server.address).unwrap();
        stream.read_exact(&mut [0]).unwrap();
        for turn in 0..300 {
            let key = format!("key:{}", turn % KEYS);
            let bytes = value(&key, round * 1000 + turn as u64, 100 + turn * 40);
            writer.set(&key, &bytes).unwrap();
            let read = other.get(&key).unwrap().unwrap();
            assert!(is_whole(&key, &read) && read == bytes, "{key}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        settle(&server, &mut writer, 2, baseline);
    }
    let counters = other.session().and_then(Session::one_sided).unwrap();
    assert!(counters.hits > 1000, "{counters:?}");
    server.stop();
}
