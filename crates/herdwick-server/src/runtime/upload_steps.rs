//! Uploads to another worker's partition: the steps that a forwarded batch carries beside its
//! requests.

use std::io;

use herdwick_request::{Clock, Staged};

use crate::{
    memcached::tcp::Lot,
    runtime::partition::{Partition, Uploader},
};

/// A step of an upload.
#[derive(Clone, Copy, Debug)]
pub(crate) enum UploadStep<'a> {
    /// Reserve room for a value of this many bytes under this key.
    Begin(&'a [u8], usize),
    /// Append these bytes.
    Bytes(&'a [u8]),
    /// Abort the upload, and release its place.
    Abort(Lot),
}

/// The steps in a forwarded batch, in order. They are executed before its requests: the request
/// that completes an upload is among those, and the next upload of its connection begins only when
/// that request is answered.
#[derive(Default)]
pub(crate) struct UploadSteps {
    steps: Vec<(Uploader, StepKind)>,
    /// Keys, and parts of values.
    bytes: Vec<u8>,
}

#[derive(Clone, Copy)]
enum StepKind {
    Begin { key_len: usize, value_len: usize },
    Bytes(usize),
    Abort(Lot),
}

impl UploadSteps {
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn count(&self) -> usize {
        self.steps.len()
    }

    pub(crate) fn add(&mut self, who: Uploader, step: UploadStep<'_>) {
        let (kind, bytes) = match step {
            UploadStep::Begin(key, value_len) => {
                let key_len = key.len();
                (StepKind::Begin { key_len, value_len }, key)
            }
            UploadStep::Bytes(bytes) => (StepKind::Bytes(bytes.len()), bytes),
            UploadStep::Abort(lot) => (StepKind::Abort(lot), &[][..]),
        };
        self.steps.push((who, kind));
        self.bytes.extend_from_slice(bytes);
    }

    /// Lets `read` append up to `most` bytes of a value.
    pub(crate) fn receive(
        &mut self,
        who: Uploader,
        most: usize,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let from = self.bytes.len();
        self.bytes.resize(from + most, 0);
        let taken = read(&mut self.bytes[from..]);
        let count = *taken.as_ref().unwrap_or(&0);
        self.bytes.truncate(from + count);
        if count > 0 {
            self.steps.push((who, StepKind::Bytes(count)));
        }
        taken
    }

    /// Executes the steps, at the owner.
    pub(crate) fn unload(&self, store: &mut Partition, clock: Clock) {
        let mut rest = &self.bytes[..];
        for &(who, kind) in &self.steps {
            let count = match kind {
                StepKind::Begin { key_len, .. } => key_len,
                StepKind::Bytes(count) => count,
                StepKind::Abort(_) => 0,
            };
            let (bytes, behind) = rest.split_at(count);
            rest = behind;
            match kind {
                StepKind::Begin { value_len, .. } => {
                    let staged = store.store.stage(clock.second, bytes, value_len);
                    store.begin_upload(who, staged);
                }
                StepKind::Bytes(_) => {
                    if let Some(staged) = store.upload(who) {
                        store.store.append(staged, bytes);
                    }
                }
                StepKind::Abort(_) => {
                    if let Some(staged) = store.end_upload(who) {
                        store.store.abort(staged);
                    }
                }
            }
        }
    }

    /// Returns the places of the aborted uploads.
    pub(crate) fn lots(&self) -> impl Iterator<Item = Lot> {
        self.steps.iter().filter_map(|(_, kind)| match kind {
            StepKind::Abort(lot) => Some(*lot),
            _ => None,
        })
    }

    pub(crate) fn clear(&mut self, keep: usize) {
        self.steps.clear();
        self.bytes.clear();
        self.bytes.shrink_to(keep);
    }
}

/// The uploads of other workers' connections, at the owner.
impl Partition {
    fn begin_upload(&mut self, who: Uploader, staged: Staged) {
        if let Some(left) = self.uploads.insert(who, staged) {
            self.store.abort(left);
        }
    }

    fn upload(&self, who: Uploader) -> Option<Staged> {
        self.uploads.get(&who).copied()
    }

    /// Removes an upload that is about to be completed or aborted.
    pub(crate) fn end_upload(&mut self, who: Uploader) -> Option<Staged> {
        self.uploads.remove(&who)
    }
}
