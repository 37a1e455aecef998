//! memcached as a cache under measurement, over TCP.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
};

use super::{
    Cache, Score, is_signed, key_text,
    model::Answer,
    sign,
    table::{Op, Request},
};
use crate::{BenchError, DriveError, host::ProcessCpu, server::Server};

/// Most requests sent together, and most bytes of their values, so that neither end blocks on a
/// write while the other does too.
const BATCH: usize = 32;
const BATCH_BYTES: usize = 256 << 10;
const LINE_MAX: u64 = 512;
/// Largest value stored: memcached refuses an item above 1 MiB, header included.
const VALUE_MAX: u32 = (1 << 20) - 1024;

/// A memcached, and a connection to it.
pub(super) struct Peer {
    server: Server,
    to: TcpStream,
    from: BufReader<TcpStream>,
    out: Vec<u8>,
    value: Vec<u8>,
    line: Vec<u8>,
    /// Writes of the keys missed in the last batch; sent ahead of the next one.
    missed: Vec<Request>,
}

impl Peer {
    pub(super) fn start(cpus: &[usize], room: u64) -> Result<Self, BenchError> {
        let server = Server::start_memcached(cpus, (room >> 20).max(1))?;
        let connect = || {
            let to = TcpStream::connect(server.remote.address.to_string())?;
            to.set_nodelay(true)?;
            let from = BufReader::with_capacity(1 << 16, to.try_clone()?);
            Ok((to, from))
        };
        let (to, from) = connect().map_err(DriveError::Io)?;
        Ok(Self {
            server,
            to,
            from,
            out: Vec::new(),
            value: vec![b'v'; VALUE_MAX as usize],
            line: Vec::new(),
            missed: Vec::new(),
        })
    }

    /// Returns a function that reads its resident memory, in MiB.
    pub(super) fn resident(&self) -> impl Fn() -> Option<f64> + use<> {
        let process: Option<ProcessCpu> = self.server.cpu.clone();
        move || process.as_ref()?.resident_mb()
    }

    fn batch(&mut self, batch: &[Request], score: &mut Score) -> Result<(), DriveError> {
        self.out.clear();
        for request in batch {
            self.compose(request)?;
        }
        self.to.write_all(&self.out)?;
        for request in batch {
            self.receive(request, score)?;
        }
        Ok(())
    }

    fn compose(&mut self, request: &Request) -> Result<(), DriveError> {
        let verb: &[u8] = match request.op {
            Op::Get => b"get ",
            Op::Set => b"set ",
            Op::Append => b"append ",
            Op::Delete => b"delete ",
        };
        self.out.extend_from_slice(verb);
        self.out.extend_from_slice(&key_text(request.key));
        if matches!(request.op, Op::Set | Op::Append) {
            let size = request.size.min(VALUE_MAX) as usize;
            let value = &mut self.value[..size];
            sign(value, request.key);
            write!(self.out, " 0 0 {size}\r\n")?;
            self.out.extend_from_slice(value);
        }
        self.out.extend_from_slice(b"\r\n");
        Ok(())
    }

    fn receive(&mut self, request: &Request, score: &mut Score) -> Result<(), DriveError> {
        self.read_line()?;
        let line = &self.line[..];
        match request.op {
            Op::Get if line == b"END" => {
                score.count(request, Answer::Miss);
                self.missed.push(Request {
                    op: Op::Set,
                    ..*request
                });
                Ok(())
            }
            Op::Get if line.starts_with(b"VALUE ") => self.hit(request, score),
            // A cache may refuse a set for lack of memory; that is no failure of the run.
            Op::Set | Op::Append | Op::Delete if !line.starts_with(b"ERROR") => Ok(()),
            _ => Err(self.no_reply()),
        }
    }

    fn hit(&mut self, request: &Request, score: &mut Score) -> Result<(), DriveError> {
        let text = String::from_utf8_lossy(&self.line);
        let size = text.rsplit(' ').next().and_then(|size| size.parse().ok());
        let size: usize = size.ok_or_else(|| self.no_reply())?;
        let mut value = vec![0; size];
        self.from.read_exact(&mut value)?;
        score.wrong_values += u64::from(!is_signed(&value, request.key));
        score.count(request, Answer::Hit(size as u64));
        for expected in [&b""[..], b"END"] {
            self.read_line()?;
            if self.line != expected {
                return Err(self.no_reply());
            }
        }
        Ok(())
    }

    fn no_reply(&self) -> DriveError {
        DriveError::Reply(String::from_utf8_lossy(&self.line).into_owned())
    }

    fn read_line(&mut self) -> Result<(), DriveError> {
        self.line.clear();
        let mut from = (&mut self.from).take(LINE_MAX);
        if from.read_until(b'\n', &mut self.line)? == 0 {
            return Err(DriveError::Closed);
        }
        self.line.truncate(self.line.trim_ascii_end().len());
        Ok(())
    }
}

impl Cache for Peer {
    fn run(&mut self, requests: &[Request], _: usize, score: &mut Score) -> Result<(), BenchError> {
        let mut rest = requests;
        while !rest.is_empty() || !self.missed.is_empty() {
            let mut batch = std::mem::take(&mut self.missed);
            let mut bytes: usize = batch.iter().map(|request| request.size as usize).sum();
            while let Some((request, behind)) = rest.split_first() {
                bytes += request.size as usize;
                // Two reads of a key in one batch would both miss: the second one waits for the
                // next batch.
                let again = batch.iter().any(|earlier| earlier.key == request.key);
                let full = batch.len() >= BATCH || bytes > BATCH_BYTES;
                if !batch.is_empty() && (full || again) {
                    break;
                }
                batch.push(*request);
                rest = behind;
            }
            self.batch(&batch, score)?;
        }
        Ok(())
    }
}
