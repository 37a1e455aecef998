//! Servers that end, stall or send garbage.

use std::{fmt::Debug, io::ErrorKind, net::TcpListener, time::Duration};

use herdwick::{
    Answer, Cause, Client, DialError, DialOptions, Error, Key, OneSidedReads, Op, Options, Session,
};
use herdwick_server::{Address, Config, Listen};

use crate::servers::{Memcached, Script};

const PATIENT: Options = Options {
    only: None,
    request_path: None,
    dial: DialOptions { verbs: None },
    deadline: Duration::from_secs(60),
    value_bytes_max: 1 << 20,
    // The scripts speak memcached and count lines, so there is no hello.
    fabric: false,
    window: 1,
    one_sided: OneSidedReads::Never,
    login: None,
    tls: None,
    secret: None,
    store: None,
    read_from: herdwick::ReadFrom::Primary,
    member: None,
};

/// A deadline that is there to expire.
const SHORT: Duration = Duration::from_millis(30);

/// Returns the error of a mutation at a server that does not answer. A busy host may let the deadline
/// expire before the request is sent: then the client reports that nothing has changed, and gets twice
/// the time.
fn unanswered<T: Debug>(
    client: &mut Client,
    mut call: impl FnMut(&mut Client) -> Result<T, Error>,
) -> Error {
    let mut deadline = SHORT;
    loop {
        client.set_deadline(deadline);
        match call(client).unwrap_err() {
            Error::Timeout(_) if deadline < PATIENT.deadline => deadline *= 2,
            error => return error,
        }
    }
}

fn patient(address: &str) -> Client {
    Client::connect_with(address, PATIENT).unwrap()
}

#[test]
fn reads_are_retried_and_mutations_are_not() {
    let script = Script::start(&[
        &[b""],
        &[b"VALUE k 0 1 9\r\nv\r\nEND\r\n", b""],
        &[b"VALUE a 0 1 9\r\n"],
        &[b"END\r\n", b""],
        &[b"2\r\n"],
    ]);
    let mut client = patient(&script.address);
    assert_eq!(client.get("k").unwrap().as_deref(), Some(&b"v"[..]));
    assert!(matches!(client.incr("k", 1), Err(Error::UnknownOutcome(_))));
    assert_eq!(client.get_many(&["a", "b"]).unwrap(), [None, None]);
    assert!(matches!(
        client.set("k", "v"),
        Err(Error::UnknownOutcome(_))
    ));
    assert_eq!(client.incr("k", 1).unwrap(), Some(2));
    let asked: [&[&str]; 5] = [
        &["gets k"],
        &["gets k", "incr k 1"],
        &["gets a b"],
        &["gets a b", "set k 0 0 1"],
        &["incr k 1"],
    ];
    assert_eq!(script.asked(), asked);
}

#[test]
fn read_retries_are_bounded() {
    let script = Script::start(&[&[b""], &[b""], &[b""]]);
    let error = patient(&script.address).get("k").unwrap_err();
    assert!(
        matches!(error, Error::Disconnected(Cause::Closed | Cause::Io(_))),
        "{error}"
    );
    assert_eq!(script.asked(), [["gets k"]; 3]);
}

#[test]
fn call_to_a_silent_server_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = patient(&listener.local_addr().unwrap().to_string());
    client.set_deadline(SHORT);
    assert!(matches!(client.get("k"), Err(Error::Timeout(_))));
    let unknown = unanswered(&mut client, |client| client.incr("k", 1));
    assert!(matches!(unknown, Error::UnknownOutcome(Cause::Timeout)));
}

#[test]
fn partially_sent_request_was_not_executed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = patient(&listener.local_addr().unwrap().to_string());
    client.set_deadline(SHORT);
    let more_than_sockets_hold = vec![0; 64 << 20];
    assert!(matches!(
        client.set("k", &more_than_sockets_hold),
        Err(Error::Timeout(_))
    ));
}

#[test]
fn connection_error_names_the_address() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let error = Client::connect(&address).unwrap_err();
    let Error::Unreachable { reason, .. } = &error else {
        panic!("{error}")
    };
    let DialError::Io(reason) = reason else {
        panic!("{reason}")
    };
    assert_eq!(reason.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(reason.raw_os_error(), Some(libc::ECONNREFUSED));
    assert_eq!(
        error.to_string(),
        format!("cannot reach {address}: Connection refused (os error 111)")
    );
}

#[test]
fn reply_in_another_protocol_is_an_error() {
    const BABBLE: [&[&[u8]]; 3] = [
        &[b"HTTP/1.1 400 Bad Request\r\n\r\n"],
        &[b"VALUE k 0 9999999999 1\r\n"],
        &[b"STORED\r\n"],
    ];
    let script = Script::start(&BABBLE);
    let mut client = patient(&script.address);
    for babble in BABBLE {
        let error = client.get("k").unwrap_err();
        let blames = matches!(
            error,
            Error::Disconnected(Cause::Malformed(_) | Cause::Unexpected)
        );
        assert!(blames, "{error} for {}", babble[0].escape_ascii());
    }
}

#[test]
fn server_error_text_is_reported() {
    let script = Script::start(&[&[b"ERROR Too many open connections\r\n"]]);
    match patient(&script.address).get("k") {
        Err(Error::Server(why)) => assert_eq!(why, "Too many open connections"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn stopped_server_gives_an_unknown_outcome() {
    let Some(server) = Memcached::start() else {
        return;
    };
    let mut client = patient(&server.address());
    client.set("n", "0").unwrap();
    server.stop();
    let unknown = unanswered(&mut client, |client| client.incr("n", 1));
    server.go_on();
    assert!(matches!(unknown, Error::UnknownOutcome(Cause::Timeout)));
    client.set_deadline(PATIENT.deadline);
    let value = client.get("n").unwrap().unwrap();
    assert!(
        value == b"0" || value == b"1",
        "both are possible: that is what unknown means"
    );
}

/// The server is killed after it has the requests in its socket, before it reads them.
#[test]
fn server_killed_during_a_call_makes_only_mutations_unknown() {
    let Some(server) = Memcached::start() else {
        return;
    };
    let address = server.address().parse().unwrap();
    let mut session = Session::dial(&address, &PATIENT).unwrap();
    server.stop();
    let (key, now) = (Key::new(b"n").unwrap(), Duration::ZERO);
    for op in [Op::Get, Op::Incr(1), Op::Get, Op::Delete] {
        session.submit(now, key, &op).unwrap();
    }
    session.flush(now);
    std::fs::remove_file(server.kill()).unwrap();
    let mut perhaps_done = Vec::new();
    while session.broken().is_none() {
        session.wait(now);
        session.poll(now, &mut |_, answer| match answer {
            Answer::Lost(lost) => perhaps_done.push(lost.perhaps_done),
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(perhaps_done, [false, true, false, true]);
    assert_eq!(session.submit(now, key, &Op::Get), None);
}

#[test]
fn client_reconnects_to_a_restarted_server() {
    let Some(server) = Memcached::start() else {
        return;
    };
    let mut client = patient(&server.address());
    client.set("k", "before").unwrap();
    let path = server.kill();
    assert!(matches!(client.get("k"), Err(Error::Unreachable { .. })));
    let Some(_server) = Memcached::start_at(path) else {
        return;
    };
    let value = loop {
        match client.get("k") {
            Err(Error::Unreachable { .. }) => std::thread::yield_now(),
            other => break other.unwrap(),
        }
    };
    assert_eq!(value, None, "the new one is empty");
}

#[test]
fn client_reconnects_to_herdwick_restarted_on_its_port() {
    let server = herdwick_server::spawn(Config::local()).unwrap();
    let Address::Tcp(listen) = *server.address() else {
        panic!("the server has a TCP port");
    };
    let again = Config {
        listen: Listen::Tcp(vec![listen.into()]),
        ..Config::local()
    };
    let options = Options {
        fabric: true,
        ..PATIENT
    };
    let mut client = Client::connect_with(&listen.to_string(), options).unwrap();
    client.set("k", "before").unwrap();
    server.shutdown();
    let _server = herdwick_server::spawn(again).unwrap();
    // The old connection is closed, and a mutation notices that before it is sent; unless it is
    // faster than the thread that watches the lease, and then its outcome is unknown.
    while let Err(error) = client.set("k", "after") {
        let said = matches!(error, Error::Unreachable { .. } | Error::UnknownOutcome(_));
        assert!(said, "{error}");
    }
    assert_eq!(client.get("k").unwrap().as_deref(), Some(&b"after"[..]));
}
