//! A request that a call has left with the driver: its key and its value are copied.

use crate::{Key, Op, Put};

/// Longer values are not copied: their calls wait until they can submit themselves.
const VALUE_MAX: usize = 4096;

/// Larger buffers of values are not kept for other requests.
const KEPT_MAX: usize = 256;

/// A request, in buffers that others use after it.
#[derive(Debug)]
pub(super) struct OwnedRequest {
    key: Vec<u8>,
    value: Vec<u8>,
    /// With an empty value.
    op: Op<'static>,
}

impl Default for OwnedRequest {
    fn default() -> Self {
        Self {
            key: Vec::new(),
            value: Vec::new(),
            op: Op::Get,
        }
    }
}

impl OwnedRequest {
    /// Whether a request is small enough to be copied.
    pub(super) fn accepts(op: &Op<'_>) -> bool {
        value(op).len() <= VALUE_MAX
    }

    pub(super) fn fill(&mut self, key: Key<'_>, op: &Op<'_>) {
        self.key.clear();
        self.key.extend_from_slice(key.as_bytes());
        self.value.clear();
        self.value.extend_from_slice(value(op));
        self.op = with_value(op, &[]);
    }

    pub(super) fn key(&self) -> Key<'_> {
        Key::of_checked(&self.key)
    }

    pub(super) fn op(&self) -> Op<'_> {
        with_value(&self.op, &self.value)
    }

    /// Frees what is not kept.
    pub(super) fn clear(&mut self) {
        if self.value.capacity() > KEPT_MAX {
            self.value = Vec::new();
        }
    }
}

fn value<'a>(op: &Op<'a>) -> &'a [u8] {
    match op {
        Op::Store(_, put) | Op::Cas(_, put) => put.value,
        Op::Get | Op::Delete | Op::Touch(_) | Op::Incr(_) | Op::Decr(_) => &[],
    }
}

fn with_value<'b>(op: &Op<'_>, value: &'b [u8]) -> Op<'b> {
    let put = |put: &Put<'_>| {
        let Put { flags, ttl, .. } = *put;
        Put { value, flags, ttl }
    };
    match op {
        Op::Get => Op::Get,
        Op::Store(mode, old) => Op::Store(*mode, put(old)),
        Op::Cas(version, old) => Op::Cas(*version, put(old)),
        Op::Delete => Op::Delete,
        Op::Touch(ttl) => Op::Touch(*ttl),
        Op::Incr(delta) => Op::Incr(*delta),
        Op::Decr(delta) => Op::Decr(*delta),
    }
}
