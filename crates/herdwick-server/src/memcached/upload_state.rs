//! The state of one upload: what is missing of its value, and where the value is received.

use herdwick_memcache::{Answer, Asked};
use herdwick_request::{KeyHash, Op, Put, Request, Staged};

use super::owners::Owners;
use crate::runtime::upload_permits::Permit;

/// The line end behind a value in text.
const LINE_END: &[u8] = b"\r\n";

/// One upload, from its command to its reply.
pub(crate) struct Upload {
    pub(super) key: Box<[u8]>,
    hash: KeyHash,
    /// The worker that owns the key.
    pub(super) owner: usize,
    put: Put<'static>,
    pub(super) answer: Answer<'static>,
    opaque: Box<[u8]>,
    pub(super) value_len: usize,
    /// Bytes of the value that have not been stored or forwarded yet.
    pub(super) lacking: usize,
    has_line_end: bool,
    pub(super) permit: Option<Permit>,
    /// It is queued for a permit.
    pub(super) queued: bool,
    pub(super) place: UploadPlace,
}

/// Where the value goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UploadPlace {
    /// Nowhere yet: it has not begun.
    Nowhere,
    /// Into this reservation in the owner's partition, by this worker.
    InPlace(Staged),
    /// To the owner, in forwarded batches.
    Forwarded,
}

impl Upload {
    /// Begins the upload of a value of `value_len` bytes, which a line end may follow; `None` if the
    /// request stores none.
    #[cold]
    pub(super) fn new(
        asked: &Asked<'_>,
        value_len: usize,
        has_line_end: bool,
        owners: &Owners,
    ) -> Option<Box<Self>> {
        let Asked { key, op, answer } = asked;
        let Op::Put(put) = *op else {
            return None;
        };
        let hash = owners.hash_key.hash(key);
        Some(Box::new(Self {
            key: (*key).into(),
            hash,
            owner: hash.partition(owners.workers),
            put: Put { value: &[], ..put },
            answer: answer.with_opaque(&[]),
            opaque: answer.opaque().into(),
            value_len,
            lacking: value_len,
            has_line_end,
            permit: None,
            queued: false,
            place: UploadPlace::Nowhere,
        }))
    }

    /// Returns whether it can make progress with `here` bytes of input.
    pub(crate) fn has_work(&self, here: usize) -> bool {
        if self.queued {
            return false;
        }
        // Without a place it can take a permit and stage, whatever has arrived.
        self.place == UploadPlace::Nowhere || here > 0 && self.lacking > 0 || self.has_come(here)
    }

    /// Returns whether it is complete with `here` bytes of input.
    pub(super) fn has_come(&self, here: usize) -> bool {
        self.lacking == 0 && here >= self.ending().len()
    }

    pub(super) fn ending(&self) -> &'static [u8] {
        if self.has_line_end { LINE_END } else { &[] }
    }

    /// Returns whether it is queued for a permit.
    pub(crate) fn is_queued(&self) -> bool {
        self.queued
    }

    /// Returns the bytes that are missing, the line end included.
    pub(crate) fn remains(&self) -> usize {
        self.lacking + self.ending().len()
    }

    /// Returns whether the value is incomplete.
    pub(crate) fn lacks(&self) -> bool {
        self.lacking > 0
    }

    /// Returns its permit and the partition of that, if it has one.
    pub(crate) fn permit(&self) -> Option<(usize, Permit)> {
        Some((self.owner, self.permit?))
    }

    /// Grants it a permit, and ends its wait.
    pub(super) fn grant(&mut self, permit: Permit) {
        self.permit = Some(permit);
        self.queued = false;
    }

    /// Returns the request, whose value is this reservation, and its answer.
    pub(super) fn request(&self, staged: Staged) -> (Request<'_>, Answer<'_>) {
        let request = Request {
            hash: self.hash,
            key: &self.key,
            op: Op::Put(Put {
                staged: Some(staged),
                ..self.put
            }),
        };
        (request, self.answer.with_opaque(&self.opaque))
    }
}
