//! Hostile packets of the binary protocol, one test for each row of the fault table.

use std::{
    io::{Read, Write},
    sync::atomic::{AtomicBool, Ordering},
};

use crate::common::{Memcached, Peer, connect, line, ours, shown};
use herdwick_memcache::binary::opcode;

/// Encodes a request header.
fn header(opcode: u8, key_len: u16, extras_len: u8, body_len: u32) -> Vec<u8> {
    let mut bytes = vec![0x80, opcode];
    bytes.extend_from_slice(&key_len.to_be_bytes());
    bytes.extend_from_slice(&[extras_len, 0, 0, 0]);
    bytes.extend_from_slice(&body_len.to_be_bytes());
    bytes.extend_from_slice(&[0; 12]);
    bytes
}

/// Encodes an error response.
fn error(opcode: u8, status: u8, text: &str) -> Vec<u8> {
    let mut bytes = header(opcode, 0, 0, text.len() as u32);
    bytes[0] = 0x81;
    bytes[7] = status;
    [&bytes, text.as_bytes()].concat()
}

/// Checks that the server sends `expected`, closes the connection, and serves the next client.
fn ends(input: &[u8], expected: &[u8]) {
    for server in [1, 3].map(ours) {
        let mut stream = connect(&server);
        stream.write_all(input).unwrap();
        let mut said = Vec::new();
        // This side has not shut down, so the end is the server's doing.
        let _ = stream.read_to_end(&mut said);
        assert_eq!(shown(&said), shown(expected));
        assert!(server.say(&[b"version\r\n"]).starts_with(b"VERSION"));
    }
}

#[test]
fn m33_body_of_4_gib_ends_the_connection() {
    let input = header(opcode::SET, 3, 8, 0xffff_ffe8);
    ends(&input, &error(opcode::SET, 4, "Invalid arguments"));
}

#[test]
fn m34_body_shorter_than_its_parts_ends_the_connection() {
    let input = header(opcode::SET, 250, 8, 5);
    ends(&input, &error(opcode::SET, 0x81, "Unknown command"));
    let input = header(opcode::APPEND, 0xffff, 0, 0);
    ends(&input, &error(opcode::APPEND, 0x81, "Unknown command"));
}

#[test]
fn m35_extras_of_wrong_length_end_the_connection() {
    let input = [&header(opcode::GET, 1, 0x30, 0x31)[..], &[b'k'; 0x31]].concat();
    ends(&input, &error(opcode::GET, 4, "Invalid arguments"));
}

#[test]
fn m36_body_beyond_an_int_ends_the_connection() {
    let input = header(opcode::SETQ, 3, 8, 1 << 31);
    ends(&input, &error(opcode::SETQ, 4, "Invalid arguments"));
}

#[test]
fn m37_unsupported_opcode_is_refused_and_the_connection_continues() {
    let noop = header(opcode::NOOP, 0, 0, 0);
    let sasl = [&header(opcode::SASL_AUTH, 5, 0, 9)[..], b"PLAIN\0u\0p"].concat();
    let unknown = [&header(0x50, 3, 2, 10)[..], b"exkeyvalue"].concat();
    let input = [&sasl[..], &unknown, &noop].concat();
    let mut expected = error(opcode::SASL_AUTH, 0x81, "Unknown command");
    expected.extend(error(0x50, 0x81, "Unknown command"));
    expected.push(0x81);
    expected.extend(&noop[1..]);
    for server in [1, 3].map(ours) {
        assert_eq!(shown(&server.say(&[&input])), shown(&expected));
    }
}

#[test]
fn m38_first_byte_selects_the_protocol() {
    let noop = header(opcode::NOOP, 0, 0, 0);
    let answered = [&[0x81], &noop[1..]].concat();
    ends(&[&noop[..], b"version\r\n"].concat(), &answered);
    for server in [1, 3].map(ours) {
        let said = server.say(&[b"\x81\x0b\0\0\r\nversion\r\n\x80junk\r\n"]);
        assert!(said.starts_with(b"ERROR\r\nVERSION "), "{}", shown(&said));
        assert!(said.ends_with(b"\r\nERROR\r\n"), "{}", shown(&said));
    }
}

/// Counts by prefix from packets, in a stock memcached's format.
#[test]
fn stats_detail_works_over_the_binary_protocol() {
    let stat = |key: &str| {
        let length = key.len() as u8;
        let header = header(opcode::STAT, u16::from(length), 0, u32::from(length));
        [&header, key.as_bytes()].concat()
    };
    let mut input = stat("detail on");
    input.extend([&header(opcode::GET, 3, 0, 3)[..], b"a:b"].concat());
    for key in [
        "detail dump",
        "detail off",
        "detail",
        "detail x",
        "conns",
        "deta dump",
    ] {
        input.extend(stat(key));
    }
    let Some(oracle) = Memcached::start() else {
        return;
    };
    let expected = oracle.say(&[&input, &header(opcode::QUIT, 0, 0, 0)]);
    for server in [1, 3].map(ours) {
        let said = server.say(&[&input, &header(opcode::QUIT, 0, 0, 0)]);
        assert_eq!(shown(&said), shown(&expected));
    }
}

/// M39: replies to a client that does not read are bounded; when it reads, all of them arrive.
#[test]
fn m39_unread_gets_hold_bounded_output() {
    // Their replies are a quarter of a gigabyte: no sockets hold that.
    let gets_sent = herdwick_check::length(250_000, 1_000_000);
    for server in [1, 3].map(ours) {
        server.say(&[b"set k 0 0 1000\r\n", &[b'v'; 1000], b"\r\n"]);
        let stream = connect(&server);
        let sent = AtomicBool::new(false);
        let get = [&header(opcode::GETKQ, 1, 0, 1)[..], b"k"].concat();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let chunk = get.repeat(gets_sent / 100);
                for _ in 0..100 {
                    (&stream).write_all(&chunk).unwrap();
                }
                sent.store(true, Ordering::Relaxed);
            });
            // Another client is served meanwhile, and the server stops reading the flood.
            for _ in 0..100 {
                let other = connect(&server);
                (&other).write_all(b"version\r\n").unwrap();
                assert!(line(&other).starts_with("VERSION"));
            }
            assert!(!sent.load(Ordering::Relaxed), "all output was accepted");
            let mut left = gets_sent * (24 + 4 + 1 + 1000);
            let mut buffer = vec![0; 1 << 20];
            while left > 0 {
                left -= (&stream).read(&mut buffer).unwrap();
            }
        });
    }
}
