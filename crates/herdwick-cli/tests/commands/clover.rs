//! `serve --engine clover`: the client commands, clients that are killed with entries in their hands, and a
//! server that is killed.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    process::{Child, Command, Output},
};

use herdwick::{Answer, Client, Error, Key, Mode, Op, Put};

use crate::common::{
    Chance, Clock, Folder, Holdings, Server, is_whole, other_end, settle, shm_session, socket,
    start, until_dead, value,
};

/// Bytes of the values that fill the store: of the largest size class.
const LARGE: usize = 30_000;
/// Keys that the victims write.
const KEYS: usize = 8;
/// Clients that are killed.
const VICTIMS: usize = 12;

fn serve(folder: &Folder, more: &[&str]) -> Server {
    let options = ["--engine", "clover", "-m", "64"];
    Server::run(folder, 1, &[&options, more].concat())
}

fn herdwick(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_herdwick"));
    command.args(arguments).output().unwrap()
}

#[test]
fn client_commands_use_the_engine_over_each_fabric() {
    for more in [&["-p", "0"][..], &["-p", "0", "--roce", "127.0.0.1:0"]] {
        let folder = Folder::new();
        let server = serve(&folder, more);
        let run = |command: &[&str]| {
            let output = herdwick(&[command, &["--server", &server.address]].concat());
            let said = String::from_utf8(output.stdout).unwrap();
            let error = String::from_utf8(output.stderr).unwrap();
            (output.status.success(), said + &error)
        };
        let (stored, said) = run(&["set", "a", "one"]);
        assert!(stored, "{said}");
        let (found, said) = run(&["get", "a"]);
        assert!(found && said.contains("one"), "{said}");
        let (done, said) = run(&["set", "a", "two", "--ttl", "60"]);
        assert!(!done && said.contains("no times to live"), "{said}");
        assert!(run(&["delete", "a"]).0);
        assert!(!run(&["get", "a"]).0);
        let (shown, said) = run(&["stats"]);
        assert!(shown && said.contains("clover_keys_created"), "{said}");
        server.stop();
    }
}

#[test]
fn what_the_engine_has_not_is_refused_at_the_start() {
    for more in [
        &["-U", "0", "-e", "/tmp/herdwick-clover-file"][..],
        &["-t", "2"],
        &["-U", "-1"],
        &["-B", "binary"],
        &["--latency"],
        &["--slow-log", "0"],
        &["--shm", "off"],
        &["-m", "1"],
    ] {
        let options = [
            "serve", "-u", "root", "--engine", "clover", "-p", "0", "--verbs", "off",
        ];
        let output = herdwick(&[&options, more].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{more:?}: {error}");
        assert!(
            error.contains("clover") || error.contains("-m"),
            "{more:?}: {error}"
        );
    }
}

/// The victim process: a client that stores until it is killed. It signals when it has begun.
#[test]
#[ignore = "the other process of a test here"]
fn victim() {
    let Some(mut stream) = other_end() else {
        return;
    };
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).unwrap();
    let (seed, address) = line.trim_end().split_once(' ').unwrap();
    let mut chance = Chance::new(seed.parse().unwrap());
    let (mut session, clock) = (shm_session(address, 16), Clock::start());
    let mut said = false;
    while session.broken().is_none() {
        let key = format!("victim:{}", chance.below(KEYS));
        let bytes = value(&key, chance.next(), LARGE);
        let op = match chance.below(8) {
            0 => Op::Delete,
            _ => Op::Store(Mode::Set, Put::new(&bytes)),
        };
        // What is refused is asked for by the next one.
        let _ = session.submit(clock.now(), Key::new(key.as_bytes()).unwrap(), &op);
        session.flush(clock.now());
        session.poll(clock.now(), &mut |_, answer| {
            let known = matches!(answer, Answer::Done | Answer::Miss | Answer::Refused(_));
            assert!(known || matches!(answer, Answer::Lost(_)), "{answer:?}");
        });
        if !std::mem::replace(&mut said, true) {
            stream.write_all(&[1]).unwrap();
        }
    }
}

fn start_victim(server: &Server, seed: usize) -> (Child, UnixStream) {
    let (child, mut stream) = start("clover::victim");
    writeln!(stream, "{seed} {}", server.address).unwrap();
    stream.read_exact(&mut [0]).unwrap();
    (child, stream)
}

/// Stores as many large values as there is room for, and deletes them; returns how many there were.
fn fill(client: &mut Client) -> usize {
    let mut stored = 0;
    loop {
        let key = format!("fill:{stored}");
        match client.set(&key, &value(&key, 1, LARGE)) {
            Ok(()) => stored += 1,
            Err(Error::Server(why)) => {
                assert!(why.contains("out of memory"), "{why}");
                break;
            }
            Err(error) => panic!("{error}"),
        }
    }
    for index in 0..stored {
        assert!(client.delete(format!("fill:{index}")).unwrap());
    }
    stored
}

#[test]
fn killed_clients_delay_no_other_and_hold_no_memory() {
    let folder = Folder::new();
    let server = serve(&folder, &["-p", "0"]);
    let mut client = server.client();
    let room = fill(&mut client);
    assert!(room > 50, "{room}");
    // The data node's own memory is touched bit by bit.
    let baseline = Holdings {
        shared_kib: u64::MAX,
        ..server.holdings()
    };
    let mut chance = Chance::new(5);
    for seed in 0..VICTIMS {
        let (mut child, _stream) = start_victim(&server, seed);
        for turn in 0..chance.below(200) {
            let key = format!("steady:{turn}");
            let bytes = value(&key, seed as u64, 100);
            client.set(&key, &bytes).unwrap();
            assert_eq!(client.get(&key).unwrap(), Some(bytes));
            let shared = format!("victim:{}", turn % KEYS);
            if let Some(read) = client.get(&shared).unwrap() {
                assert!(is_whole(&shared, &read), "{shared} is torn");
            }
        }
        child.kill().unwrap();
        until_dead(&child);
        child.wait().unwrap();
        settle(&server, &mut client, 1, baseline);
    }
    for index in 0..KEYS {
        let _ = client.delete(format!("victim:{index}")).unwrap();
    }
    // What they held is looked for after their leases have ended.
    let clock = Clock::start();
    while fill(&mut client) < room {
        clock.hurry("the memory of killed clients");
    }
    server.stop();
}

#[test]
fn clients_of_a_killed_server_say_so_and_go_on_with_the_next() {
    let folder = Folder::new();
    let path = socket(&folder);
    let at = ["-s", path.to_str().unwrap()];
    let mut server = serve(&folder, &at);
    let mut clients: Vec<Client> = (0..3).map(|_| server.client()).collect();
    for round in 0..4 {
        for client in &mut clients {
            client.set("a", &value("a", round, 1000)).unwrap();
        }
        server.kill();
        server = serve(&folder, &at);
        let clock = Clock::start();
        for client in &mut clients {
            // The first call may find the old connection, or no server: neither reports success.
            loop {
                match client.get("a") {
                    Ok(read) => break assert_eq!(read, None, "the memory ended with the server"),
                    Err(Error::Unreachable { .. } | Error::Disconnected(_)) => {}
                    Err(error) => panic!("{error}"),
                }
                clock.hurry("the next server");
            }
        }
    }
    server.stop();
}
