//! The cache client: it reads over TCP, stores every key that it missed, and checks each value.

use std::{io::Write, net::TcpStream};

use herdwick::Address;
use herdwick_memcache::reply::Reply;
use herdwick_request::ITEM_BYTES_MAX;

use crate::{
    DriveError,
    counters::RunCounters,
    replies::ReplyReader,
    workload::{KeySpace, Step},
};

/// Requests sent together; their replies are read before the next batch is sent.
pub(super) const BATCH: usize = 64;

/// A cache client: reads, and stores what it has missed.
pub(super) struct CacheClient {
    space: KeySpace,
    to: TcpStream,
    from: ReplyReader<TcpStream>,
    key: Vec<u8>,
    value: Vec<u8>,
    out: Vec<u8>,
    /// Writes of the keys missed in the last batch; sent ahead of the next one.
    missed: Vec<Step>,
    batch: Vec<Step>,
}

impl CacheClient {
    pub(super) fn connect(address: &Address, space: KeySpace) -> Result<Self, DriveError> {
        let to = TcpStream::connect(address.to_string())?;
        // The end of a batch is not to wait for an acknowledgement.
        to.set_nodelay(true)?;
        // Of any size that an item has, so that a wrong value is counted and ends nothing.
        let from = ReplyReader::new(to.try_clone()?, ITEM_BYTES_MAX);
        Ok(Self {
            space,
            to,
            from,
            key: space.key_filler(),
            value: vec![0; space.value_size()],
            out: Vec::new(),
            missed: Vec::new(),
            batch: Vec::new(),
        })
    }

    /// Executes `steps`, a batch at a time, and counts the outcomes. `watch` receives the number of
    /// requests so far.
    pub(super) fn run(
        &mut self,
        steps: impl Iterator<Item = Step>,
        counters: &mut RunCounters,
        mut watch: impl FnMut(u64),
    ) -> Result<(), DriveError> {
        let mut steps = steps.peekable();
        let mut asked = 0;
        while steps.peek().is_some() || !self.missed.is_empty() {
            self.batch.clear();
            self.batch.append(&mut self.missed);
            self.batch.extend(steps.by_ref().take(BATCH));
            self.send()?;
            for n in 0..self.batch.len() {
                // By index, since `receive` borrows all of `self`.
                self.receive(self.batch[n], counters)?;
            }
            asked += self.batch.len() as u64;
            watch(asked);
        }
        Ok(())
    }

    fn send(&mut self) -> Result<(), DriveError> {
        self.out.clear();
        for step in &self.batch {
            self.space.key_digits(step.key(), &mut self.key);
            let verb: &[u8] = if step.is_put() { b"set " } else { b"get " };
            self.out.extend_from_slice(verb);
            self.out.extend_from_slice(&self.key);
            if step.is_put() {
                self.space.value(step.key(), 0, &mut self.value);
                write!(self.out, " 0 0 {}\r\n", self.value.len())?;
                self.out.extend_from_slice(&self.value);
            }
            self.out.extend_from_slice(b"\r\n");
        }
        Ok(self.to.write_all(&self.out)?)
    }

    fn receive(&mut self, step: Step, counters: &mut RunCounters) -> Result<(), DriveError> {
        let space = &self.space;
        let is_hit = self.from.next(|reply| match (reply, step.is_put()) {
            (Reply::Stored, true) => {
                counters.puts += 1;
                Some(false)
            }
            (Reply::End, false) => {
                counters.misses += 1;
                self.missed.push(Step::put(step.key()));
                Some(false)
            }
            (Reply::Value(value), false) => {
                let sized = value.data.len() == space.value_size();
                if sized && space.check(step.key(), value.data) {
                    counters.hits += 1;
                } else {
                    counters.wrong_values += 1;
                }
                Some(true)
            }
            _ => None,
        })?;
        // `END` is behind a value, and is itself the reply to a miss.
        if is_hit {
            self.from
                .next(|reply| (reply == Reply::End).then_some(()))?;
        }
        Ok(())
    }
}
