//! The cache client: it reads over TCP, stores every key that it missed, and checks each value.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
};

use herdwick::Address;

use crate::{
    DriveError,
    counters::RunCounters,
    workload::{KeySpace, Step},
};

/// Requests sent together; their replies are read before the next batch is sent.
pub(super) const BATCH: usize = 64;
/// Bound of a reply line, in bytes.
const LINE_MAX: u64 = 512;

/// A cache client: reads, and stores what it has missed.
pub(super) struct Client {
    space: KeySpace,
    to: TcpStream,
    from: BufReader<TcpStream>,
    key: Vec<u8>,
    value: Vec<u8>,
    out: Vec<u8>,
    line: Vec<u8>,
    /// Writes of the keys missed in the last batch; sent ahead of the next one.
    missed: Vec<Step>,
    batch: Vec<Step>,
}

impl Client {
    pub(super) fn connect(address: &Address, space: KeySpace) -> Result<Self, DriveError> {
        let to = TcpStream::connect(address.to_string())?;
        to.set_nodelay(true)?;
        let from = BufReader::with_capacity(1 << 16, to.try_clone()?);
        Ok(Self {
            space,
            to,
            from,
            key: space.key_filler(),
            value: vec![0; space.value_size()],
            out: Vec::new(),
            line: Vec::new(),
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
        self.read_line()?;
        match (&self.line[..], step.is_put()) {
            (b"STORED", true) => counters.puts += 1,
            (b"END", false) => {
                counters.misses += 1;
                self.missed.push(Step::put(step.key()));
            }
            (line, false) if line.starts_with(b"VALUE ") => self.value(step, counters)?,
            (line, _) => return Err(DriveError::Reply(String::from_utf8_lossy(line).into())),
        }
        Ok(())
    }

    fn value(&mut self, step: Step, counters: &mut RunCounters) -> Result<(), DriveError> {
        self.from.read_exact(&mut self.value)?;
        if self.space.check(step.key(), &self.value) {
            counters.hits += 1;
        } else {
            counters.wrong_values += 1;
        }
        for expected in [&b""[..], b"END"] {
            self.read_line()?;
            if self.line != expected {
                let text = String::from_utf8_lossy(&self.line);
                return Err(DriveError::Reply(text.into_owned()));
            }
        }
        Ok(())
    }

    fn read_line(&mut self) -> Result<(), DriveError> {
        self.line.clear();
        let mut from = (&mut self.from).take(LINE_MAX);
        if from.read_until(b'\n', &mut self.line)? == 0 {
            return Err(DriveError::Closed);
        }
        while self.line.last().is_some_and(|end| b"\r\n".contains(end)) {
            self.line.pop();
        }
        Ok(())
    }
}
