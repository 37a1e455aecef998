//! Requests that outlive the input that they were decoded from: forwarded to another worker, or put
//! off. Their keys, values and opaques are copied into one buffer.

use herdwick_memcache::Answer;
use herdwick_request::{KeyHash, Op, Put, Request};

/// Requests and how each is answered, without borrowing.
#[derive(Default)]
pub(crate) struct OwnedRequests {
    list: Vec<OwnedRequest>,
    /// Keys, values and opaques, in the order of the requests.
    bytes: Vec<u8>,
}

/// A request without its bytes, which are in [`OwnedRequests::bytes`].
struct OwnedRequest {
    hash: KeyHash,
    op: Op<'static>,
    answer: Answer<'static>,
    /// Offset of the key; the value and the opaque follow it.
    at: usize,
    key_len: usize,
    value_len: usize,
    opaque_len: usize,
}

impl OwnedRequests {
    /// Returns the number of requests.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the bytes of keys, values and opaques.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the bytes of memory that they take.
    pub(crate) fn memory(&self) -> usize {
        self.bytes.capacity() + self.list.capacity() * size_of::<OwnedRequest>()
    }

    /// Adds a copy of `request`, which is answered by `answer`.
    pub(crate) fn add(&mut self, request: &Request<'_>, answer: &Answer<'_>) {
        let (value, opaque) = (value_of(&request.op), answer.opaque());
        self.list.push(OwnedRequest {
            hash: request.hash,
            // Without value and opaque they borrow nothing, and can be kept; `get` puts both back.
            op: with_value(&request.op, &[]),
            answer: answer.with_opaque(&[]),
            at: self.bytes.len(),
            key_len: request.key.len(),
            value_len: value.len(),
            opaque_len: opaque.len(),
        });
        self.bytes.extend_from_slice(request.key);
        self.bytes.extend_from_slice(value);
        self.bytes.extend_from_slice(opaque);
    }

    /// Returns request `index` and its answer.
    ///
    /// # Panics
    /// If there are not so many.
    pub(crate) fn get(&self, index: usize) -> (Request<'_>, Answer<'_>) {
        let owned = &self.list[index];
        let (key, rest) = self.bytes[owned.at..].split_at(owned.key_len);
        let (value, rest) = rest.split_at(owned.value_len);
        let request = Request {
            hash: owned.hash,
            key,
            op: with_value(&owned.op, value),
        };
        let answer = owned.answer.with_opaque(&rest[..owned.opaque_len]);
        (request, answer)
    }

    /// Removes all, and keeps at most `most` bytes of memory for the next ones' bytes.
    pub(crate) fn clear(&mut self, most: usize) {
        // The list keeps its memory: those that use it bound the number of requests, not their
        // bytes.
        self.list.clear();
        self.bytes.clear();
        self.bytes.shrink_to(most);
    }
}

/// Returns the value that `op` stores, if any.
pub(crate) fn value_of<'a>(op: &Op<'a>) -> &'a [u8] {
    match op {
        Op::Put(put) => put.value,
        _ => &[],
    }
}

/// Returns `op` with another value, if it has one.
fn with_value<'a>(op: &Op<'_>, value: &'a [u8]) -> Op<'a> {
    match *op {
        Op::Get(get) => Op::Get(get),
        Op::Delete(delete) => Op::Delete(delete),
        Op::Arith(arith) => Op::Arith(arith),
        Op::Put(put) => Op::Put(Put { value, ..put }),
    }
}
