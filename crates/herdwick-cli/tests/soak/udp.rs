//! memcached's text protocol over UDP, written by hand. Datagrams may be lost: requests that can be
//! repeated are.

use std::{
    net::{SocketAddr, UdpSocket},
    time::Duration,
};

use crate::{
    common::{Clock, TIMEOUT},
    text::set,
    transports::Transport,
};

/// Time without an answer after which a datagram is sent again.
const AGAIN: Duration = Duration::from_millis(500);
const HEADER_BYTES: usize = 8;

pub(crate) struct Udp {
    socket: UdpSocket,
    number: u16,
}

impl Udp {
    pub(crate) fn new(to: SocketAddr) -> Self {
        let socket = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        socket.connect(to).unwrap();
        socket.set_read_timeout(Some(AGAIN)).unwrap();
        Self { socket, number: 0 }
    }

    /// Sends a request repeatedly until it is answered.
    fn ask(&mut self, request: &[u8]) -> Vec<u8> {
        let clock = Clock::start();
        loop {
            assert!(clock.now() < TIMEOUT, "no datagram arrives");
            self.number = self.number.wrapping_add(1);
            let [high, low] = self.number.to_be_bytes();
            let datagram = [&[high, low, 0, 0, 0, 1, 0, 0], request].concat();
            self.socket.send(&datagram).unwrap();
            if let Some(answer) = self.answer() {
                return answer;
            }
        }
    }

    /// Receives the datagrams of the last request's answer; `None` if some do not arrive.
    fn answer(&self) -> Option<Vec<u8>> {
        let mut parts: Vec<Option<Vec<u8>>> = Vec::new();
        let mut buffer = [0; 2048];
        loop {
            let len = self.socket.recv(&mut buffer).ok()?;
            let word = |at: usize| u16::from_be_bytes([buffer[at], buffer[at + 1]]);
            if word(0) != self.number {
                continue;
            }
            parts.resize(word(4).into(), None);
            parts[usize::from(word(2))] = Some(buffer[HEADER_BYTES..len].to_vec());
            if parts.iter().all(Option::is_some) {
                return Some(parts.into_iter().flatten().flatten().collect());
            }
        }
    }
}

impl Transport for Udp {
    fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        let answer = self.ask(format!("get {key}\r\n").as_bytes());
        if answer == b"END\r\n" {
            return None;
        }
        let end = answer.iter().position(|byte| *byte == b'\n').unwrap();
        let head = String::from_utf8(answer[..end].to_vec()).unwrap();
        let words: Vec<&str> = head.trim_end().split(' ').collect();
        let ["VALUE", found, _, len] = words[..] else {
            panic!("{head}")
        };
        assert_eq!(found, key);
        let (value, rest) = answer[end + 1..].split_at(len.parse().unwrap());
        assert_eq!(rest, b"\r\nEND\r\n");
        Some(value.to_vec())
    }

    fn set(&mut self, key: &str, value: &[u8], ttl: u32) {
        assert_eq!(self.ask(&set(key, value, ttl)), b"STORED\r\n");
    }

    fn delete(&mut self, key: &str) -> bool {
        self.ask(format!("delete {key}\r\n").as_bytes()) == b"DELETED\r\n"
    }

    /// Not supported: a repeated request would count twice.
    fn incr(&mut self, _key: &str) -> Option<u64> {
        panic!("datagrams do not count")
    }

    fn value_bytes_max(&self) -> usize {
        1000
    }
}
