//! Input and output buffers of connections, and a pool of unused ones. An idle connection keeps
//! little memory.

use std::io::{self, Read, Write};

use herdwick_memcache::{GET_LINE_BYTES_MAX, LINE_BYTES_MAX};

use crate::runtime::reply_encoding::OUTPUT_BYTES;

/// Values beyond this size in bytes are uploads: an input buffer does not hold them at once.
pub(super) const UPLOAD_BYTES_MIN: usize = 16 << 10;
/// Maximum bytes of input that a connection buffers: a line, a value below the size of an upload,
/// and some more.
pub(super) const INPUT_BYTES_MAX: usize = 32 << 10;
// The decoder always has a whole line, or a whole value and its line, before the buffer is full:
// otherwise a full buffer could neither be decoded nor read into.
const _: () = assert!(LINE_BYTES_MAX + UPLOAD_BYTES_MIN + 2 <= INPUT_BYTES_MAX);
/// The same for a long `get` line.
// One byte more than the longest line, so that the decoder sees that it is too long.
pub(super) const LONG_INPUT_BYTES_MAX: usize = GET_LINE_BYTES_MAX + 1;
/// Initial size of an input buffer, and so of a read.
// memcached's read buffer has this size, too (`READ_BUFFER_SIZE`).
const INPUT_BYTES: usize = 16 << 10;
/// A rest of input up to this size is copied to a buffer of its own size at the end of a turn, so
/// that an idle connection keeps little memory.
const ASIDE_BYTES: usize = 2 << 10;
/// Bytes of each kind of unused buffers that all workers keep together ...
const POOL_BYTES: usize = 4 << 20;
/// ... of which each worker keeps an equal part, within these bounds.
const WORKER_POOL_BYTES: std::ops::RangeInclusive<usize> = 256 << 10..=1 << 20;
/// Largest unused input buffer that is kept. A connection that reuses a large one neither clears it
/// nor copies its data at each doubling.
const LARGE_BYTES_MAX: usize = 256 << 10;

/// Most buffers of one kind that are given back at a time.
const EASED_MAX: usize = 64;

/// Returns how many unused buffers to free. `unneeded` is the least number that lay unused since the
/// last call. It frees half of these, so that most are still there after a short dip in use.
pub(super) fn surplus(unneeded: usize) -> usize {
    unneeded.div_ceil(2).min(EASED_MAX)
}

/// Returns the bytes of unused buffers of one kind that each of `workers` keeps.
pub(super) fn pool_bytes(workers: usize) -> usize {
    let (least, most) = WORKER_POOL_BYTES.into_inner();
    (POOL_BYTES / workers.max(1)).clamp(least, most)
}

/// The unused buffers of a worker.
pub(crate) struct Pool {
    inputs: SpareBuffers,
    large: SpareBuffers,
    outputs: SpareBuffers,
}

/// Unused buffers of one kind, and their bytes of memory.
struct SpareBuffers {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
    most: usize,
    /// The fewest that there were since buffers were last given back.
    least: usize,
}

impl SpareBuffers {
    fn new(most: usize) -> Self {
        Self {
            buffers: Vec::new(),
            bytes: 0,
            most,
            least: 0,
        }
    }

    fn take(&mut self, at: usize) -> Vec<u8> {
        let buffer = self.buffers.swap_remove(at);
        self.bytes -= buffer.capacity();
        self.least = self.least.min(self.buffers.len());
        buffer
    }

    /// Gives back part of the buffers that have not been needed since the last call.
    fn ease(&mut self) {
        let eased = self.buffers.drain(..surplus(self.least));
        self.bytes -= eased.map(|buffer| buffer.capacity()).sum::<usize>();
        self.least = self.buffers.len();
    }

    fn pop(&mut self) -> Option<Vec<u8>> {
        let last = self.buffers.len().checked_sub(1)?;
        Some(self.take(last))
    }

    /// Keeps the buffer, if there is room for it.
    fn put(&mut self, buffer: Vec<u8>) {
        let bytes = self.bytes + buffer.capacity();
        if bytes <= self.most && buffer.capacity() > 0 {
            self.bytes = bytes;
            self.buffers.push(buffer);
        }
    }
}

impl Pool {
    /// Creates a pool that keeps `most` bytes of each kind.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            inputs: SpareBuffers::new(most),
            large: SpareBuffers::new(most),
            outputs: SpareBuffers::new(most),
        }
    }

    /// Gives back part of the buffers that have not been needed since the last call.
    pub(super) fn ease(&mut self) {
        self.inputs.ease();
        self.large.ease();
        self.outputs.ease();
    }

    fn output(&mut self) -> Vec<u8> {
        self.outputs.pop().unwrap_or_default()
    }

    /// Returns an output buffer to the pool, unless a large value has made it grow.
    fn put_output(&mut self, mut buffer: Vec<u8>) {
        // A batch may exceed `OUTPUT_BYTES` by one reply, and a vector doubles: such a buffer is
        // kept.
        if buffer.capacity() <= 2 * OUTPUT_BYTES {
            buffer.clear();
            self.outputs.put(buffer);
        }
    }

    fn input(&mut self) -> Vec<u8> {
        // Zeroed once. A buffer of the pool keeps the bytes of another connection, which lie behind
        // `end`, where nothing is read.
        self.inputs.pop().unwrap_or_else(|| vec![0; INPUT_BYTES])
    }

    /// Returns an unused input buffer of more than `len` and at most `limit` bytes, if there is
    /// one.
    fn larger_input(&mut self, len: usize, limit: usize) -> Option<Vec<u8>> {
        let fits = |buffer: &Vec<u8>| (len + 1..=limit).contains(&buffer.len());
        let at = self.large.buffers.iter().position(fits)?;
        Some(self.large.take(at))
    }

    fn put_input(&mut self, buffer: Vec<u8>) {
        match buffer.len() {
            INPUT_BYTES => self.inputs.put(buffer),
            len if len > INPUT_BYTES && buffer.capacity() <= LARGE_BYTES_MAX => {
                self.large.put(buffer);
            }
            _ => {}
        }
    }
}

/// The received, unused bytes of a connection. The buffer grows only when it is full of them, by
/// doubling, and never beyond its limit.
#[derive(Default)]
pub(crate) struct Input {
    /// Initialised throughout; the data is `start..end`.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    pub(crate) fn data(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Returns the bytes of memory that it takes.
    pub(crate) fn memory(&self) -> usize {
        self.bytes.capacity()
    }

    /// Removes the first `count` bytes of the data.
    pub(crate) fn consume(&mut self, count: usize) {
        self.start += count;
        debug_assert!(self.start <= self.end);
    }

    /// Reads once. Returns the bytes read, and whether they filled the room: then there may be
    /// more.
    pub(crate) fn read(
        &mut self,
        source: &mut impl Read,
        pool: &mut Pool,
        limit: usize,
    ) -> io::Result<(usize, bool)> {
        self.make_room(pool, limit);
        let room = &mut self.bytes[self.end..];
        let wanted = room.len();
        let count = source.read(room)?;
        self.end += count;
        Ok((count, count == wanted))
    }

    fn make_room(&mut self, pool: &mut Pool, limit: usize) {
        if self.bytes.len() < INPUT_BYTES {
            self.move_to(pool.input());
        }
        if self.end < self.bytes.len() {
            return;
        }
        // Only when the buffer has no room behind the data: so each byte is moved once for each
        // buffer that is read, not once for each read.
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        } else if let Some(larger) = pool.larger_input(self.bytes.len(), limit) {
            pool.put_input(self.move_to(larger));
        } else {
            // Beyond the limit by one byte at most: the caller reads no more without a complete
            // command, and a buffer that cannot grow would read nothing, which is the end of a
            // stream.
            let larger = (2 * self.bytes.len()).min(limit.max(self.bytes.len() + 1));
            self.bytes.resize(larger, 0);
        }
    }

    /// Moves the data into a buffer with room for it; returns the old buffer.
    fn move_to(&mut self, mut buffer: Vec<u8>) -> Vec<u8> {
        let len = self.data().len();
        buffer[..len].copy_from_slice(self.data());
        (self.start, self.end) = (0, len);
        std::mem::replace(&mut self.bytes, buffer)
    }

    /// Reduces the memory to what the data needs, at the end of a turn.
    pub(crate) fn rest(&mut self, pool: &mut Pool) {
        let left = self.end - self.start;
        // More than this would be copied back for the next read.
        if left > ASIDE_BYTES || self.bytes.len() <= ASIDE_BYTES {
            return;
        }
        // A buffer as small as the rest. For no rest it has no memory.
        let aside = self.data().to_vec();
        pool.put_input(std::mem::replace(&mut self.bytes, aside));
        self.start = 0;
        self.end = left;
    }
}

/// The replies of a connection that have not been sent yet.
#[derive(Default)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    sent: usize,
}

impl Output {
    /// Returns the buffer to append replies to.
    pub(crate) fn buffer(&mut self, pool: &mut Pool) -> &mut Vec<u8> {
        if self.bytes.capacity() == 0 {
            self.bytes = pool.output();
        }
        &mut self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// Returns the bytes of memory that it takes.
    pub(crate) fn memory(&self) -> usize {
        self.bytes.capacity()
    }

    /// Returns whether further replies have to wait for the peer to read.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() >= OUTPUT_BYTES
    }

    /// Writes once; returns the bytes written. An empty buffer is returned to the pool.
    pub(crate) fn write(&mut self, to: &mut impl Write, pool: &mut Pool) -> io::Result<usize> {
        let count = to.write(&self.bytes[self.sent..])?;
        self.sent += count;
        if self.is_empty() {
            self.sent = 0;
            pool.put_output(std::mem::take(&mut self.bytes));
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The data is unchanged, whatever the sizes of reads and uses.
        #[test]
        fn input_buffer_is_a_byte_queue(steps in prop::collection::vec((0usize..40_000, 0usize..50_000, any::<bool>()), 1..30)) {
            let (mut pool, mut input) = (Pool::new(1 << 20), Input::default());
            let (mut fed, mut used) = (0u64, 0u64);
            for (feed, take, rest) in steps {
                let chunk: Vec<u8> = (0..feed as u64).map(|i| ((fed + i) % 251) as u8).collect();
                let (count, _) = input.read(&mut &chunk[..], &mut pool, 1 << 20).unwrap();
                fed += count as u64;
                let expected: Vec<u8> = (used..fed).map(|i| (i % 251) as u8).collect();
                prop_assert_eq!(input.data(), &expected[..]);
                let take = take.min(expected.len());
                input.consume(take);
                used += take as u64;
                if rest { input.rest(&mut pool); }
            }
        }
    }

    #[test]
    fn grown_buffer_is_reused_by_the_next_command() {
        let (mut pool, mut endless) = (Pool::new(1 << 20), io::repeat(7));
        let mut reads = |input: &mut Input, pool: &mut Pool| {
            let mut reads = 0;
            while input.data().len() < 100_000 {
                input.read(&mut endless, pool, 1 << 20).unwrap();
                reads += 1;
            }
            assert!(input.data().iter().all(|&byte| byte == 7));
            input.consume(input.data().len());
            input.rest(pool);
            reads
        };
        let (mut first, mut second) = (Input::default(), Input::default());
        assert_eq!(reads(&mut first, &mut pool), 4, "16, 32, 64 and 128 KiB");
        assert_eq!(reads(&mut second, &mut pool), 2);
        assert_eq!((first.memory(), second.memory()), (0, 0));
        let mut small = Input::default();
        small.read(&mut endless, &mut pool, 20_000).unwrap();
        small.read(&mut endless, &mut pool, 20_000).unwrap();
        assert_eq!(small.bytes.len(), 20_000, "a limit of its own holds");
    }

    #[test]
    fn unused_buffers_are_kept_up_to_a_number_of_bytes() {
        const MOST: usize = 300_000;
        let mut pool = Pool::new(MOST);
        for n in 0..1_000 {
            pool.put_output(Vec::with_capacity(n * 200));
            pool.put_input(vec![0; INPUT_BYTES]);
            pool.put_input(vec![0; INPUT_BYTES + n]);
        }
        for kept in [&mut pool.inputs, &mut pool.large, &mut pool.outputs] {
            let bytes: usize = kept.buffers.iter().map(Vec::capacity).sum();
            assert!((MOST / 2..=MOST).contains(&bytes), "{bytes}");
            while kept.pop().is_some() {}
            assert_eq!(kept.bytes, 0);
        }
        for workers in [1, 4, 16] {
            assert!(pool_bytes(workers) * workers <= POOL_BYTES);
        }
    }

    #[test]
    fn unused_buffers_are_given_back_when_they_are_not_needed() {
        let mut pool = Pool::new(1 << 20);
        let fill = |pool: &mut Pool, count| {
            for _ in 0..count {
                pool.put_input(vec![0; INPUT_BYTES]);
                pool.put_input(vec![0; 2 * INPUT_BYTES]);
                pool.put_output(Vec::with_capacity(OUTPUT_BYTES));
            }
        };
        fill(&mut pool, 20);
        pool.ease();
        // Ten of them are in use at times.
        for _ in 0..20 {
            let used: Vec<_> = (0..10).map(|_| pool.input()).collect();
            used.into_iter().for_each(|buffer| pool.put_input(buffer));
            pool.ease();
        }
        assert_eq!(pool.inputs.buffers.len(), 10, "those that are needed stay");
        assert_eq!(pool.inputs.bytes, 10 * INPUT_BYTES);
        for kept in [&pool.large, &pool.outputs] {
            assert_eq!((kept.buffers.len(), kept.bytes), (0, 0));
        }
        (0..10).for_each(|_| pool.ease());
        assert_eq!((pool.inputs.buffers.len(), pool.inputs.bytes), (0, 0));
    }

    #[test]
    fn buffer_growth_is_limited_and_released_when_empty() {
        let (mut pool, mut input) = (Pool::new(1 << 20), Input::default());
        let limit = 5 * INPUT_BYTES;
        for _ in 0..10 {
            let mut endless = io::repeat(7);
            if input.data().len() < limit {
                input.read(&mut endless, &mut pool, limit).unwrap();
            }
        }
        assert_eq!(input.bytes.len(), limit);
        input.consume(limit);
        input.rest(&mut pool);
        assert_eq!(input.bytes.capacity(), 0);
    }
}
