//! Clients that stall: who is given up, when, and who is not. The clock is moved, not waited for.

mod common;

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use common::{Peer, connect, line, shown, stat, with};
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

/// M41: a hoard of half-sent large blocks is cut down to what is ample, and others are served.
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
    let cut = (0..500).any(|_| {
        skip(&server, 2);
        stat(&server, "closed_stalled") > 0 && stat(&server, "read_buf_bytes") <= 18 << 20
    });
    assert!(cut, "{} bytes held", stat(&server, "read_buf_bytes"));
    assert_eq!(shown(&server.say(&[b"get a\r\n"])), "END\\r\\n");
    drop(hoard);
}
