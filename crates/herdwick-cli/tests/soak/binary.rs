//! memcached's binary protocol, written by hand.

use std::io::{BufReader, Read, Write};

use crate::{stream::Stream, transports::Transport};

const GET: u8 = 0;
const SET: u8 = 1;
const DELETE: u8 = 4;
const INCREMENT: u8 = 5;

const NOT_FOUND: u16 = 1;

pub(crate) struct Binary {
    stream: BufReader<Stream>,
    /// Number of the last request, which its answer repeats.
    opaque: u32,
}

impl Binary {
    pub(crate) fn new(stream: Stream) -> Self {
        Self {
            stream: BufReader::new(stream),
            opaque: 0,
        }
    }

    fn send(&mut self, opcode: u8, key: &str, extras: &[u8], value: &[u8]) {
        self.opaque += 1;
        let body = extras.len() + key.len() + value.len();
        let mut packet = vec![0x80, opcode];
        packet.extend((key.len() as u16).to_be_bytes());
        packet.extend([extras.len() as u8, 0, 0, 0]);
        packet.extend((body as u32).to_be_bytes());
        packet.extend(self.opaque.to_be_bytes());
        packet.extend([0; 8]);
        packet.extend([extras, key.as_bytes(), value].concat());
        self.stream.get_mut().write_all(&packet).unwrap();
        self.stream.get_mut().flush().unwrap();
    }

    /// Returns the bytes after the extras; `None` if there is no such item.
    fn receive(&mut self, opcode: u8) -> Option<Vec<u8>> {
        let mut head = [0; 24];
        self.stream.read_exact(&mut head).unwrap();
        let word =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        assert_eq!((head[0], head[1]), (0x81, opcode));
        assert_eq!(word(12), self.opaque, "answers keep their order");
        let mut body = vec![0; word(8) as usize];
        self.stream.read_exact(&mut body).unwrap();
        match u16::from_be_bytes([head[6], head[7]]) {
            0 => Some(body.split_off(head[4].into())),
            NOT_FOUND => None,
            status => panic!("status {status}: {}", String::from_utf8_lossy(&body)),
        }
    }
}

impl Transport for Binary {
    fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        self.send(GET, key, &[], &[]);
        self.receive(GET)
    }

    fn set(&mut self, key: &str, value: &[u8], ttl: u32) {
        let extras = [[0; 4], ttl.to_be_bytes()].concat();
        self.send(SET, key, &extras, value);
        self.receive(SET).expect("the value is stored");
    }

    fn delete(&mut self, key: &str) -> bool {
        self.send(DELETE, key, &[], &[]);
        self.receive(DELETE).is_some()
    }

    fn incr(&mut self, key: &str) -> Option<u64> {
        // Delta 1, initial value 0, and an exptime that forbids creating the item.
        let extras = [1_u64.to_be_bytes(), [0; 8]].concat();
        self.send(INCREMENT, key, &[&extras[..], &[0xff; 4]].concat(), &[]);
        let number = self.receive(INCREMENT)?;
        number.first_chunk().map(|bytes| u64::from_be_bytes(*bytes))
    }
}
