//! Deadlines: every call ends by its own, whatever the server does; and there may be none.

use std::{
    fs,
    io::{BufRead, BufReader, ErrorKind, Write},
    net::TcpListener,
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::mpsc,
    thread,
    time::Duration,
};

use herdwick::{Client, DialError, Error, Fabric, Fallback, Key, Op, Options, Session};
use herdwick_herd::hello::{FabricOffer, Offer, Token};
use herdwick_request::HashKey;
use herdwick_server::{Config, ListenOptions, spawn};
use rustix::{
    fd::OwnedFd,
    net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket},
};

/// A bound for failures, which no passing test waits for.
const HANG: Duration = Duration::from_secs(60);

/// Returns the outcome of `work`, which must not hang.
fn ends<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, outcome) = mpsc::channel();
    thread::spawn(move || done.send(work()));
    outcome
        .recv_timeout(HANG)
        .expect("the call ends by its deadline")
}

fn by(deadline: Duration) -> Options {
    Options {
        deadline,
        ..Options::default()
    }
}

/// A unix socket whose connections are not accepted, with a full backlog.
struct Full {
    path: PathBuf,
    _listener: OwnedFd,
    _waiting: UnixStream,
}

impl Full {
    fn new(name: &str) -> Self {
        let name = format!("herdwick-full-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let listener = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 0).unwrap();
        Self {
            _waiting: UnixStream::connect(&path).unwrap(),
            _listener: listener,
            path,
        }
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[test]
fn dialing_a_unix_socket_with_a_full_backlog_times_out() {
    let full = Full::new("dial");
    let address = full.path.to_str().unwrap().to_owned();
    let error = ends(move || Client::connect_with(&address, by(Duration::from_millis(50))));
    match error {
        Err(Error::Unreachable { reason, .. }) => {
            assert_eq!(reason, DialError::Io(ErrorKind::TimedOut.into()));
        }
        other => panic!("{other:?}"),
    }
}

/// Starts a server that offers a lease socket at `socket` in its hello, and answers one memcached
/// command after it.
fn offers(socket: PathBuf) -> String {
    let token = Token([7; 16]);
    let offer = Offer {
        workers: 1,
        hash_key: HashKey([1, 2]),
        item_bytes_max: 1 << 20,
        path: herdwick::RequestPath::UcWrite,
        engine: None,
        one_sided: None,
        secondary: None,
        fabrics: vec![FabricOffer {
            name: "shm",
            token,
            socket: Some(socket),
            path: None,
            attribute: None,
        }],
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        for reply in [offer.to_line().as_bytes(), b"END\r\n"] {
            BufReader::new(&stream)
                .read_line(&mut String::new())
                .unwrap();
            (&stream).write_all(reply).unwrap();
        }
    });
    address
}

/// The attempt leaves time for the call itself.
#[test]
#[ignore = "six seconds: half of the timeout; CI runs it"]
fn lease_socket_with_a_full_backlog_uses_half_of_the_timeout() {
    let full = Full::new("lease");
    let address = offers(full.path.clone());
    let (reason, value) = ends(move || {
        // The text connection answers one command, whenever it arrives.
        let mut client = Client::connect_with(&address, by(Duration::from_secs(12))).unwrap();
        let reason = client.session().unwrap().fallback().cloned();
        (reason, client.get("key"))
    });
    let error = ErrorKind::TimedOut.into();
    let path = full.path.clone();
    assert_eq!(reason, Some(Fallback::Socket { path, error }));
    assert_eq!(value.unwrap(), None);
}

/// A server that sends a byte now and then gets no more time than one that is silent.
#[test]
#[ignore = "six seconds: half of the timeout; CI runs it"]
fn slow_lease_socket_times_out() {
    let name = format!("herdwick-dribble-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let dribble = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // A grant of 65,535 bytes, one at a time, each before the deadline.
        let mut head = b"HWL\x00\x02\x00\xff\xff".to_vec();
        head.resize(8 + 0xffff, 0);
        for byte in head {
            let fresh = rustix::time::Timespec {
                tv_sec: 0,
                tv_nsec: 20_000_000,
            };
            let _ = rustix::event::poll(&mut [], Some(&fresh));
            if stream.write_all(&[byte]).is_err() {
                return;
            }
        }
        panic!("the server read everything");
    });
    let address = offers(path.clone());
    let reason = ends(move || {
        let client = Client::connect_with(&address, by(Duration::from_secs(12))).unwrap();
        client.session().unwrap().fallback().cloned()
    });
    assert!(
        matches!(reason, Some(Fallback::Socket { .. })),
        "{reason:?}"
    );
    dribble.join().unwrap();
    fs::remove_file(path).unwrap();
}

#[test]
fn call_without_timeout_waits() {
    let server = spawn(Config {
        fabrics: ListenOptions {
            roce: Some(([127, 0, 0, 1], 0).into()),
            ..ListenOptions::default()
        },
        ..Config::local()
    });
    let server = server.unwrap();
    let address = server.address().to_string();
    for only in [Some(Fabric::Shm), Some(Fabric::Roce), None] {
        let options = Options {
            fabric: only.is_some(),
            only,
            ..by(Duration::MAX)
        };
        let mut client = Client::connect_with(&address, options.clone()).unwrap();
        client.set("key", "value").unwrap();
        client.set("large", &[7; 100_000]).unwrap();
        let found = client.get_many(&["key", "large", "none"]).unwrap();
        assert_eq!(found.iter().flatten().count(), 2);
        client.version().unwrap();
        let mut session = Session::dial(&address.parse().unwrap(), &options).unwrap();
        // The largest time that a caller's clock can show.
        let now = Duration::MAX;
        session.submit(now, Key::new(b"key").unwrap(), &Op::Get);
        session.flush(now);
        session.set_deadline(Duration::ZERO);
        let mut answers = 0;
        while answers == 0 {
            session.poll(now, &mut |_, _| answers += 1);
        }
    }
}

#[test]
fn call_with_zero_timeout_is_not_sent() {
    let server = spawn(Config::local()).unwrap();
    for fabric in [true, false] {
        let options = Options { fabric, ..by(HANG) };
        let mut client = Client::connect_with(&server.address().to_string(), options).unwrap();
        client.set("number", "0").unwrap();
        client.set_deadline(Duration::ZERO);
        let late = client.incr("number", 1);
        assert!(matches!(late, Err(Error::Timeout(_))), "{late:?}");
        client.set_deadline(HANG);
        assert_eq!(client.get("number").unwrap().unwrap(), b"0");
    }
}
