//! memcached's two text protocols, written by hand.

use std::io::{BufRead, BufReader, Read, Write};

use crate::{stream::Stream, transports::Transport};

/// The part that both protocols share.
pub(crate) struct Lines(pub(crate) BufReader<Stream>);

impl Lines {
    pub(crate) fn new(stream: Stream) -> Self {
        Self(BufReader::new(stream))
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
        self.0.get_mut().flush().unwrap();
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        let whole = line.strip_suffix("\r\n");
        whole
            .unwrap_or_else(|| panic!("hung up on after {line:?}"))
            .to_owned()
    }

    /// Waits until the server has closed the connection.
    pub(crate) fn end(&mut self) {
        let rest = self.0.read(&mut [0]).unwrap();
        assert_eq!(rest, 0, "nothing is outstanding");
    }

    /// Reads a block of `len` bytes and the line end after it.
    pub(crate) fn block(&mut self, len: usize) -> Vec<u8> {
        let mut block = vec![0; len + 2];
        self.0.read_exact(&mut block).unwrap();
        assert!(block.ends_with(b"\r\n"), "a block of {len} bytes");
        block.truncate(len);
        block
    }

    /// Reads the values in the answer to a `get` of `keys`.
    pub(crate) fn values(&mut self, keys: &[String]) -> Vec<Option<Vec<u8>>> {
        let mut values = vec![None; keys.len()];
        let mut next = 0;
        loop {
            let line = self.line();
            if line == "END" {
                return values;
            }
            let words: Vec<&str> = line.split(' ').collect();
            let ["VALUE", key, _, len] = words[..] else {
                panic!("{line}")
            };
            let found = keys[next..].iter().position(|asked| asked == key);
            let place = next + found.unwrap_or_else(|| panic!("{key} was not requested"));
            values[place] = Some(self.block(len.parse().unwrap()));
            next = place + 1;
        }
    }
}

/// Encodes a `set`.
pub(crate) fn set(key: &str, value: &[u8], ttl: u32) -> Vec<u8> {
    let head = format!("set {key} 0 {ttl} {}\r\n", value.len());
    [head.as_bytes(), value, b"\r\n"].concat()
}

/// The classic protocol.
pub(crate) struct Classic(Lines);

impl Classic {
    pub(crate) fn new(stream: Stream) -> Self {
        Self(Lines::new(stream))
    }

    fn ask(&mut self, line: &str) -> String {
        self.0.send(line.as_bytes());
        self.0.line()
    }
}

impl Transport for Classic {
    fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        self.get_many(&[key.to_owned()]).remove(0)
    }

    fn set(&mut self, key: &str, value: &[u8], ttl: u32) {
        self.0.send(&set(key, value, ttl));
        assert_eq!(self.0.line(), "STORED");
    }

    fn delete(&mut self, key: &str) -> bool {
        match self.ask(&format!("delete {key}\r\n")).as_str() {
            "DELETED" => true,
            "NOT_FOUND" => false,
            other => panic!("{other}"),
        }
    }

    fn incr(&mut self, key: &str) -> Option<u64> {
        match self.ask(&format!("incr {key} 1\r\n")).as_str() {
            "NOT_FOUND" => None,
            number => Some(number.parse().unwrap_or_else(|_| panic!("{number}"))),
        }
    }

    fn get_many(&mut self, keys: &[String]) -> Vec<Option<Vec<u8>>> {
        self.0
            .send(format!("get {}\r\n", keys.join(" ")).as_bytes());
        self.0.values(keys)
    }
}

/// The meta commands.
pub(crate) struct Meta(Lines);

impl Meta {
    pub(crate) fn new(stream: Stream) -> Self {
        Self(Lines::new(stream))
    }

    /// Reads the value after a `VA`; `None` for `miss`.
    fn value(&mut self, miss: &str) -> Option<Vec<u8>> {
        let line = self.0.line();
        if line == miss {
            return None;
        }
        let len = line.strip_prefix("VA ").unwrap_or_else(|| panic!("{line}"));
        Some(self.0.block(len.trim_end().parse().unwrap()))
    }
}

impl Transport for Meta {
    fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        self.0.send(format!("mg {key} v\r\n").as_bytes());
        self.value("EN")
    }

    fn set(&mut self, key: &str, value: &[u8], ttl: u32) {
        let head = format!("ms {key} {} T{ttl}\r\n", value.len());
        self.0.send(&[head.as_bytes(), value, b"\r\n"].concat());
        assert_eq!(self.0.line(), "HD");
    }

    fn delete(&mut self, key: &str) -> bool {
        self.0.send(format!("md {key}\r\n").as_bytes());
        match self.0.line().as_str() {
            "HD" => true,
            "NF" => false,
            other => panic!("{other}"),
        }
    }

    fn incr(&mut self, key: &str) -> Option<u64> {
        self.0.send(format!("ma {key} v\r\n").as_bytes());
        let number = self.value("NF")?;
        Some(String::from_utf8(number).unwrap().parse().unwrap())
    }

    /// Reads all keys in one round trip; the answers come in the order of the keys.
    fn get_many(&mut self, keys: &[String]) -> Vec<Option<Vec<u8>>> {
        let asked: String = keys.iter().map(|key| format!("mg {key} v\r\n")).collect();
        self.0.send(asked.as_bytes());
        keys.iter().map(|_| self.value("EN")).collect()
    }
}
