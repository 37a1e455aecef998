//! Clients that stall: who is given up, when, and who is not. The clock is moved, not waited for.

mod common;

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use common::{
    PATIENCE, Peer, connect,
    crowd::{Since, Talk, all_done},
    line, shown, stat, with,
};
use herdwick_server::{Config, Offers, Patience, Server};

/// One whose clock stands, but for [`skip`].
fn debug(patience: Patience) -> Server {
    let server = with(Config {
        workers: Some(2),
        patience,
        offers: Offers {
            debug: true,
            ..Offers::default()
        },
        ..Config::local()
    });
    assert_eq!(shown(&server.say(&[b"debugtime p\r\n"])), "OK\\r\\n");
    server
}

fn skip(server: &Server, seconds: u32) {
    let said = server.say(&[format!("debugtime {seconds}\r\n").as_bytes()]);
    assert_eq!(shown(&said), "OK\\r\\n");
}

/// Connections that have said `begin` and are known to have been heard.
fn begun(server: &Server, count: usize, begin: &str) -> Vec<TcpStream> {
    let one = |_| {
        let mut stream = connect(server);
        stream
            .write_all(format!("version\r\n{begin}").as_bytes())
            .unwrap();
        assert!(line(&stream).starts_with("VERSION"));
        stream
    };
    (0..count).map(one).collect()
}

fn has_ended(mut stream: &TcpStream) -> bool {
    // A reset is an end as well.
    matches!(stream.read(&mut [0; 64]), Ok(0) | Err(_))
}

/// M42: a command that does not come to its end ends the connection, and an idle one stays.
#[test]
fn m42_half_sent_commands_have_a_deadline() {
    let server = debug(Patience::default());
    let idle = begun(&server, 4, "");
    let mut slow = begun(&server, 8, "set x 0 0 1000000\r\nabc");
    slow.extend(begun(&server, 8, "ge"));
    skip(&server, 29);
    for stream in &mut slow {
        // A byte now and then does not help.
        stream.write_all(b"x").unwrap();
    }
    skip(&server, 2);
    assert!(slow.iter().all(has_ended));
    assert_eq!(stat(&server, "closed_half_sent"), 16);
    for mut stream in idle {
        stream.write_all(b"get a\r\n").unwrap();
        assert_eq!(line(&stream), "END\r\n");
    }
}

/// M10: what is dropped as it comes has the same deadline.
#[test]
fn m10_a_swallowed_block_has_a_deadline() {
    let server = debug(Patience::default());
    let stream = begun(&server, 1, "set x 0 0 1073741824\r\nabc").remove(0);
    assert!(line(&stream).starts_with("SERVER_ERROR object too large"));
    skip(&server, 31);
    assert!(has_ended(&stream));
    assert_eq!(stat(&server, "closed_half_sent"), 1);
}

/// `idle_timeout` counts from the last command.
#[test]
fn idle_connections_are_kicked_if_asked_for() {
    let server = debug(Patience {
        idle: Some(Duration::from_secs(60)),
        ..Patience::default()
    });
    let mut streams = begun(&server, 4, "");
    skip(&server, 59);
    streams[0].write_all(b"get a\r\n").unwrap();
    assert_eq!(line(&streams[0]), "END\r\n");
    skip(&server, 2);
    for stream in &streams[1..] {
        assert!(has_ended(stream));
    }
    assert_eq!(stat(&server, "idle_kicks"), 3);
    streams[0].write_all(b"get a\r\n").unwrap();
    assert_eq!(line(&streams[0]), "END\r\n");
}

/// M41: of a hoard of half-sent large blocks those are cut that keep others waiting, and others are
/// served. A second passes: what stalls is timed by a clock that nobody moves.
#[test]
fn m41_a_hoard_of_half_sent_blocks_is_bounded() {
    let server = debug(Patience {
        request: Duration::from_secs(3600),
        ..Patience::default()
    });
    let begin = format!("set x 0 0 1000000\r\n{}", "x".repeat(700_000));
    let hoard: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut stream = connect(&server);
            // It may have been given up while it was still sending.
            let _ = stream.write_all(begin.as_bytes());
            stream
        })
        .collect();
    // What is still on its way is no stall yet.
    let begun = Since::now();
    while stat(&server, "closed_stalled") == 0 {
        assert!(begun.elapsed() < PATIENCE, "nobody is cut");
    }
    let held = stat(&server, "read_buf_bytes");
    assert!(held <= 4 << 20, "{held} bytes held");
    assert_eq!(shown(&server.say(&[b"get a\r\n"])), "END\\r\\n");
    drop(hoard);
}

/// Nobody is cut while nobody waits, however long a transfer rests; when others wait, whoever rests
/// gives way, and whoever goes on does not.
#[test]
fn an_upload_that_rests_is_cut_when_others_wait_for_its_room() {
    const LEN: usize = 1_000_000;
    let server = debug(Patience {
        request: Duration::from_secs(3600),
        ..Patience::default()
    });
    let half = format!("set x 0 0 {LEN}\r\n{}", "x".repeat(20_000));
    let mut resting = Vec::new();
    // As many as there is room for. Whose they are, and where they go, is left to chance.
    while stat(&server, "uploads_queued") == 0 {
        let mut stream = connect(&server);
        stream.write_all(half.as_bytes()).unwrap();
        let before = resting.len() as u64 + 1;
        while stat(&server, "uploads") + stat(&server, "uploads_queued") < before {}
        resting.push(stream);
        assert_eq!(stat(&server, "closed_stalled"), 0);
    }
    let mut whole = format!("set x 0 0 {LEN}\r\n").into_bytes();
    whole.extend(common::crowd::value(1, LEN));
    whole.extend(b"\r\n");
    let stored = b"STORED\r\n".to_vec();
    let steady = Talk::new(&server, whole, stored, 16 << 10);
    all_done(vec![steady], || {});
    assert!(stat(&server, "closed_stalled") > 0);
    assert!(has_ended(&resting[0]), "the longest stalled goes first");
}

/// Readers that ask for large values and do not read are cut when others wait for the room, and only
/// then.
#[test]
fn a_reader_that_does_not_read_is_cut_when_others_wait_for_its_room() {
    const LEN: usize = 1_000_000;
    let server = debug(Patience::default());
    let mut set = format!("set x 0 0 {LEN}\r\n").into_bytes();
    set.extend(common::crowd::value(1, LEN));
    set.extend(b"\r\n");
    all_done(
        vec![Talk::new(&server, set, b"STORED\r\n".to_vec(), LEN)],
        || {},
    );
    let asking = b"get x\r\n".repeat(20);
    let mut readers = Vec::new();
    while stat(&server, "replies_queued") == 0 {
        let mut stream = connect(&server);
        stream.write_all(&asking).unwrap();
        stream.read_exact(&mut [0; 5]).unwrap();
        readers.push(stream);
        assert!(readers.len() < 200);
    }
    assert_eq!(
        common::crowd::stored(&server, "x").map(|value| value.len()),
        Some(LEN)
    );
    while stat(&server, "closed_stalled") == 0 {}
    let held = stat(&server, "read_buf_bytes");
    assert!(held <= 24 << 20, "{held} bytes held");
}
