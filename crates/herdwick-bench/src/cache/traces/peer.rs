//! memcached as a cache under measurement, over TCP.

use std::{io::Write, net::TcpStream, path::Path};

use herdwick_memcache::reply::Reply;
use herdwick_request::ITEM_BYTES_MAX;

use super::{
    model::Answer,
    score::{Cache, Score, is_signed, key_text, sign},
    table::{Op, Request},
};
use crate::{BenchError, DriveError, host::ProcessCpu, replies::ReplyReader, server::Server};

/// Most requests sent together, and most bytes of their values, so that neither end blocks on a
/// write while the other does too.
const BATCH: usize = 32;
const BATCH_BYTES: usize = 256 << 10;
/// Largest value stored: memcached refuses an item above 1 MiB, header included.
const VALUE_MAX: u32 = (1 << 20) - 1024;

/// A memcached, and a connection to it.
pub(super) struct Peer {
    server: Server,
    to: TcpStream,
    from: ReplyReader<TcpStream>,
    out: Vec<u8>,
    value: Vec<u8>,
    /// Writes of the keys missed in the last batch; sent ahead of the next one.
    missed: Vec<Request>,
}

impl Peer {
    pub(super) fn start(program: &Path, cpus: &[usize], room: u64) -> Result<Self, BenchError> {
        let server = Server::start_memcached(program, cpus, (room >> 20).max(1))?;
        let connect = || {
            let to = TcpStream::connect(server.remote.address.to_string())?;
            to.set_nodelay(true)?;
            // An append may have made a value larger than any that was sent.
            let from = ReplyReader::new(to.try_clone()?, ITEM_BYTES_MAX);
            Ok((to, from))
        };
        let (to, from) = connect().map_err(DriveError::Io)?;
        Ok(Self {
            server,
            to,
            from,
            out: Vec::new(),
            value: vec![b'v'; VALUE_MAX as usize],
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
        let is_hit = self.from.next(|reply| match (request.op, reply) {
            (Op::Get, Reply::End) => {
                score.count(request, Answer::Miss);
                self.missed.push(Request {
                    op: Op::Set,
                    ..*request
                });
                Some(false)
            }
            (Op::Get, Reply::Value(value)) => {
                score.wrong_values += u64::from(!is_signed(value.data, request.key));
                score.count(request, Answer::Hit(value.data.len() as u64));
                Some(true)
            }
            (Op::Get, _) | (_, Reply::Error(_)) => None,
            // A cache may refuse a set for lack of memory; that is no failure of the run.
            (Op::Set | Op::Append | Op::Delete, _) => Some(false),
        })?;
        if is_hit {
            self.from
                .next(|reply| (reply == Reply::End).then_some(()))?;
        }
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
                // One request that is larger than a batch goes alone.
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
