//! Bounds the memory that many half-sent values or unread replies can occupy, and checks that other
//! clients are served meanwhile. One test, alone in its process, because it measures the whole
//! process.

mod common;

use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
};

use common::{
    connect,
    crowd::{Talk, all_done, stored, value},
    stat, with,
};
use herdwick_server::{Config, Server};

/// Resident bytes of this process, the server in it included (proc(5), statm).
fn resident() -> i64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: i64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

const MEMORY: usize = 64 << 20;
/// Allowance of memory beside `-m`, in bytes.
const BESIDE: i64 = 64 << 20;
const LEN: usize = 1_000_000;

/// Sends as much of `bytes` as the server accepts; returns the count.
fn push(mut stream: &TcpStream, bytes: &[u8]) -> usize {
    let mut sent = 0;
    stream.set_nonblocking(true).unwrap();
    while sent < bytes.len() {
        match stream.write(&bytes[sent..]) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            // The server has closed the connection in the meantime.
            Err(_) => break,
        }
    }
    sent
}

/// Small and large requests of other clients.
fn others(server: &Server, round: usize) {
    for n in 0..20 {
        let key = format!("small-{n}");
        let set = format!("set {key} 0 0 5\r\nvalue\r\n").into_bytes();
        let talk = Talk::new(server, set, b"STORED\r\n".to_vec(), 1024);
        all_done(vec![talk], || {});
        assert_eq!(stored(server, &key).as_deref(), Some(&b"value"[..]));
    }
    let mut set = format!("set large-{round} 0 0 {LEN}\r\n").into_bytes();
    set.extend(value(round, LEN));
    set.extend(b"\r\n");
    let talk = Talk::new(server, set, b"STORED\r\n".to_vec(), 64 << 10);
    all_done(vec![talk], || {});
    assert!(stored(server, &format!("large-{round}")) == Some(value(round, LEN)));
}

/// Times that other clients are served beside each kind of stalled ones: 1, or what
/// `HERDWICK_HOARD_ROUNDS` says (CI: 4). Each waits for the server to cut some of them.
fn rounds() -> usize {
    herdwick_check::count("HERDWICK_HOARD_ROUNDS", 1) as usize
}

#[test]
#[ignore = "half a minute: the server has to cut stalled clients, in real time; CI runs it"]
fn buffers_of_stalled_clients_stay_within_64_mib_and_others_are_served() {
    for workers in [1, 4] {
        let before = resident();
        let server = with(Config {
            memory_bytes: MEMORY,
            workers: Some(workers),
            ..Config::local()
        });
        let most = before + MEMORY as i64 + BESIDE;
        let within = |when: &str| {
            let over = resident() - most;
            assert!(over <= 0, "{over} bytes too many {when}, {workers} workers");
        };
        // The log is full from here on.
        for n in 0..80 {
            let mut set = format!("set fill-{n} 0 0 {LEN}\r\n").into_bytes();
            set.resize(set.len() + LEN, b'f');
            set.extend(b"\r\n");
            all_done(
                vec![Talk::new(&server, set, b"STORED\r\n".to_vec(), LEN)],
                || {},
            );
        }
        within("full");
        let half = vec![b'h'; 900_000];
        let announced = |n| {
            let mut stream = connect(&server);
            let line = format!("set hoard-{n} 0 0 {LEN}\r\n");
            stream.write_all(line.as_bytes()).unwrap();
            stream
        };
        let hoard: Vec<TcpStream> = (0..200).map(announced).collect();
        let mut left = vec![&half[..]; hoard.len()];
        for round in 0..rounds() {
            for (stream, left) in hoard.iter().zip(&mut left) {
                *left = &left[push(stream, left)..];
            }
            within("half sent");
            others(&server, round);
        }
        within("half sent");
        drop(hoard);
        let last = rounds() - 1;
        let readers: Vec<TcpStream> = (0..40).map(|_| connect(&server)).collect();
        let ask = format!("get large-{last}\r\n").repeat(10);
        for reader in &readers {
            push(reader, ask.as_bytes());
        }
        for round in 0..rounds() {
            others(&server, last + round % 2);
            within("unread");
        }
        // Clients that wake up are served, or have been cut for stalling; no client reads a wrong
        // byte.
        let expected = [
            format!("VALUE large-{last} 0 {LEN}\r\n").as_bytes(),
            &value(last, LEN),
            b"\r\nEND\r\n",
        ]
        .concat();
        for mut reader in readers {
            reader.set_nonblocking(false).unwrap();
            let mut heard = Vec::new();
            let mut part = (&mut reader).take(expected.len() as u64);
            if let Err(error) = part.read_to_end(&mut heard) {
                let reset = error.kind() == ErrorKind::ConnectionReset;
                let queued = stat(&server, "replies_queued");
                let held = stat(&server, "read_buf_bytes");
                let got = heard.len();
                assert!(
                    reset,
                    "{error}: {got} received, {queued} queued, {held} held"
                );
            }
            assert!(expected.starts_with(&heard));
        }
        within("in the end");
        assert!(stat(&server, "curr_connections") < 60);
        server.shutdown();
    }
}
