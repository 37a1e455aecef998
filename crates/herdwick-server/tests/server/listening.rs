//! The addresses a server listens on.

use std::{
    io::{IoSlice, Read, Write},
    mem::MaybeUninit,
    net::{SocketAddr, TcpListener, TcpStream},
    os::{fd::AsFd, unix::net::UnixStream},
    sync::mpsc,
};

use crate::common::{Peer, TIMEOUT, shown, with};
use herdwick_server::{Address, Config, Interface, Listen, StartError, spawn};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt};

fn on(addresses: &[&str]) -> Config {
    let addresses = addresses.iter().map(|address| address.parse().unwrap());
    let interface = Interface {
        addresses: addresses.collect(),
        plain: false,
    };
    Config {
        listen: Listen::Tcp(vec![interface]),
        workers: Some(1),
        ..Config::local()
    }
}

/// An address that no host has (RFC 5737).
const ELSEWHERE: &str = "192.0.2.1:0";

/// Some addresses of an interface may be unavailable, as those of `*` are without IPv6.
#[test]
fn server_starts_if_one_address_of_a_host_is_available() {
    let server = with(on(&[ELSEWHERE, "127.0.0.1:0"]));
    assert_eq!(server.addresses().len(), 1);
    assert_eq!(shown(&server.say(&[b"mn\r\n"])), "MN\\r\\n");
    let [StartError::Listen { address, .. }] = server.left_out() else {
        panic!("{:?}", server.left_out());
    };
    let elsewhere: SocketAddr = ELSEWHERE.parse().unwrap();
    assert_eq!(*address, Address::Tcp(elsewhere));
}

#[test]
fn server_does_not_start_without_any_address() {
    assert!(matches!(
        spawn(on(&[ELSEWHERE])),
        Err(StartError::Listen { .. })
    ));
    assert!(matches!(spawn(on(&[])), Err(StartError::NoAddress)));
    let mut both = on(&["127.0.0.1:0"]);
    both.listen = Listen::Tcp(vec![
        "127.0.0.1:0".parse::<SocketAddr>().unwrap().into(),
        ELSEWHERE.parse::<SocketAddr>().unwrap().into(),
    ]);
    assert!(matches!(spawn(both), Err(StartError::Listen { .. })));
}

/// Sends `fd` to the server beside a byte.
fn send_descriptor(to: &UnixStream, fd: &TcpStream) {
    let fds = [fd.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let sent = sendmsg(to, &[IoSlice::new(b"x")], &mut control, SendFlags::empty());
    assert_eq!(sent, Ok(1));
}

/// Returns a connection with so much unsent data that closing it blocks for its linger time.
fn lingering() -> (TcpStream, TcpListener) {
    let far = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(far.local_addr().unwrap()).unwrap();
    sockopt::set_socket_linger(&near, Some(3 * TIMEOUT)).unwrap();
    near.set_nonblocking(true).unwrap();
    while (&near).write(&[0; 1 << 16]).is_ok() {}
    (near, far)
}

/// The server has as many connections as it takes. The next one, which it has not accepted, has
/// sent the last descriptor of a connection that lingers.
#[test]
fn a_client_that_was_not_accepted_does_not_delay_the_end() {
    let path = std::env::temp_dir().join(format!("herdwick-waiting-{}", std::process::id()));
    let server = with(Config {
        listen: Listen::Unix {
            path: path.clone(),
            mode: 0o700,
        },
        connections_max: 1,
        refuse_at_once: false,
        leases: None,
        workers: Some(1),
        ..Config::local()
    });
    let mut first = UnixStream::connect(&path).unwrap();
    first.write_all(b"mn\r\n").unwrap();
    let mut answer = [0; 4];
    first.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"MN\r\n");
    let second = UnixStream::connect(&path).unwrap();
    let (near, _far) = lingering();
    send_descriptor(&second, &near);
    drop(near);
    let (told, ended) = mpsc::channel();
    std::thread::spawn(move || {
        server.shutdown();
        told.send(())
    });
    ended.recv_timeout(TIMEOUT).expect("it ends");
    assert!(!path.exists());
}
