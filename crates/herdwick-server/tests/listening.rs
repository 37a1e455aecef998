//! The addresses a server listens on.

mod common;

use std::net::SocketAddr;

use common::{Peer, shown, with};
use herdwick_server::{Address, Config, Interface, Listen, StartError, spawn};

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
fn one_address_of_a_host_is_enough() {
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
fn without_any_address_it_does_not_start() {
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
