//! Bounds the memory that stalled clients can occupy. One test, alone in its process, because it
//! measures the whole process.

mod common;

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use common::{Peer, connect, line, shown, with};
use herdwick_server::{Config, Server};

/// Resident bytes of this process, the server in it included (proc(5), statm).
fn resident() -> i64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: i64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

const LARGE: usize = 1_000_000;

fn store_large(server: &Server) {
    let mut set = format!("set large 0 0 {LARGE}\r\n").into_bytes();
    set.resize(set.len() + LARGE, b'v');
    set.extend_from_slice(b"\r\n");
    assert_eq!(shown(&server.say(&[&set])), "STORED\\r\\n");
}

#[test]
fn m10_m41_m42_stalled_clients_use_little_memory() {
    for workers in [1, 2, 3] {
        let server = with(Config {
            memory_bytes: 64 << 20,
            workers: Some(workers),
            ..Config::local()
        });
        store_large(&server);
        unread_replies(&server, workers);
        announced_blocks(&server);
        half_sent_lines(&server);
        server.shutdown();
    }
}

/// Clients that send requests and read no replies.
const READERS: usize = 10;

/// Bytes that ten such clients may occupy: a value of 1 MB each beyond its socket's buffer. Values
/// of other workers pass through forwarded batches, which give their memory back, but the
/// allocator keeps some of it: each thread's arena of glibc's retains up to twice its largest
/// block, and blocks freed between others (mallopt(3), `M_TRIM_THRESHOLD`).
fn unread_bytes_max(workers: usize) -> i64 {
    (READERS * LARGE + (workers << 22) + (2 << 20)) as i64
}

/// M41: ten clients request 500 values of 1 MB each and read nothing.
fn unread_replies(server: &Server, workers: usize) {
    let before = resident();
    let ask = b"get large large large large large\r\n".repeat(100);
    let mut readers: Vec<TcpStream> = (0..READERS).map(|_| connect(server)).collect();
    for reader in &mut readers {
        reader.write_all(&ask).unwrap();
        let mut first = [0; 5];
        reader.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"VALUE");
    }
    // Other clients are served meanwhile, by every worker.
    for _ in 0..10 {
        assert_eq!(shown(&server.say(&[b"get nothing\r\n"])), "END\\r\\n");
    }
    let grown = resident() - before;

    assert!(grown <= unread_bytes_max(workers), "grown by {grown} bytes");
    // A client that resumes reading receives everything.
    let mut said = 0;
    let mut buffer = vec![0; 1 << 16];
    let expected = 500 * (format!("VALUE large 0 {LARGE}\r\n").len() + LARGE + 2) + 100 * 5 - 5;
    while said < expected {
        said += readers[0].read(&mut buffer).unwrap();
    }
    assert_eq!(said, expected);
}

/// M42, first half: announced but unsent blocks of a megabyte cost little. M10: a block beyond the
/// largest item is discarded as it arrives.
fn announced_blocks(server: &Server) {
    let before = resident();
    let streams: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut stream = connect(server);
            stream
                .write_all(b"version\r\nset x 0 0 1000000\r\nabc")
                .unwrap();
            assert!(line(&stream).starts_with("VERSION"));
            stream
        })
        .collect();
    let grown = (resident() - before) / streams.len() as i64;
    assert!(grown <= 4 << 10, "{grown} bytes each");

    let before = resident();
    let mut stream = connect(server);
    stream.write_all(b"set x 0 0 1073741824\r\n").unwrap();
    assert!(line(&stream).starts_with("SERVER_ERROR object too large"));
    let chunk = vec![b'x'; 1 << 20];
    for _ in 0..64 {
        stream.write_all(&chunk).unwrap();
    }
    let grown = resident() - before;
    assert!(grown <= 4 << 20, "grown by {grown} bytes");
}

/// M42, second half: lines without an end.
fn half_sent_lines(server: &Server) {
    let before = resident();
    let streams: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut stream = connect(server);
            stream.write_all(b"version\r\nge").unwrap();
            assert!(line(&stream).starts_with("VERSION"));
            stream
        })
        .collect();
    let grown = (resident() - before) / streams.len() as i64;
    assert!(grown <= 4 << 10, "{grown} bytes each");
}
