//! Uploads to another worker's partition: the steps that a forwarded batch carries beside its
//! requests.

use std::io;

use herdwick_request::{Clock, Staged};

use crate::{
    runtime::partition::{Partition, Uploader},
    runtime::upload_permits::Permit,
};

/// A step of an upload.
#[derive(Clone, Copy, Debug)]
pub(crate) enum UploadStep<'a> {
    /// Reserve room for a value of this many bytes under this key.
    Begin(&'a [u8], usize),
    /// The value's room is this reservation, which the sender has made and begun to fill.
    Adopt(Staged),
    /// Append these bytes.
    Bytes(&'a [u8]),
    /// Abort the upload, and release its permit; its reservation, if the owner does not know it yet.
    Abort(Permit, Option<Staged>),
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
    Adopt(Staged),
    Bytes(usize),
    Abort(Permit, Option<Staged>),
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
            UploadStep::Adopt(staged) => (StepKind::Adopt(staged), &[][..]),
            UploadStep::Abort(permit, staged) => (StepKind::Abort(permit, staged), &[][..]),
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
        // Zeroed, and cut below to what was read: `read` is not trusted to write all of it.
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
                StepKind::Adopt(_) | StepKind::Abort(..) => 0,
            };
            let (bytes, behind) = rest.split_at(count);
            rest = behind;
            match kind {
                StepKind::Begin { value_len, .. } => {
                    let staged = store.store.stage(clock.second, bytes, value_len);
                    store.begin_upload(who, staged);
                }
                StepKind::Adopt(staged) => store.begin_upload(who, staged),
                StepKind::Bytes(_) => {
                    if let Some(staged) = store.upload(who) {
                        store.store.append(staged, bytes);
                    }
                }
                StepKind::Abort(_, staged) => {
                    if let Some(staged) = staged.or_else(|| store.end_upload(who)) {
                        store.store.abort(staged);
                    }
                }
            }
        }
    }

    /// Returns the places of the aborted uploads.
    pub(crate) fn permits(&self) -> impl Iterator<Item = Permit> {
        self.steps.iter().filter_map(|(_, kind)| match kind {
            StepKind::Abort(permit, _) => Some(*permit),
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use herdwick_mica::StoreConfig;
    use herdwick_request::{HashKey, Second};

    use super::*;
    use crate::{
        runtime::store::Store,
        telemetry::{hot::HotKeys, watch::EventQueue},
    };

    const WHO: Uploader = Uploader {
        worker: 1,
        connection: 2,
        generation: 3,
    };
    const CLOCK: Clock = Clock {
        epoch_unix: 0,
        second: Second(0),
    };
    const LEN: usize = 20_000;

    fn partition() -> Partition {
        let store = Store::new(&StoreConfig {
            memory_bytes: 1 << 20,
            item_bytes_max: 64 << 10,
            hash_key: HashKey([1, 2]),
        });
        let event_queue = EventQueue::new(Arc::default()).0;
        Partition::new(store.unwrap(), event_queue, HotKeys::new(0), None)
    }

    fn unload(partition: &mut Partition, steps: &[UploadStep<'_>]) {
        let mut batch = UploadSteps::default();
        for &step in steps {
            batch.add(WHO, step);
        }
        batch.unload(partition, CLOCK);
    }

    /// A reservation that another worker has begun to fill goes on at the owner.
    #[test]
    fn owner_fills_the_rest_of_a_reservation_that_it_is_handed() {
        let mut partition = partition();
        let staged = partition.store.stage(CLOCK.second, b"key", LEN);
        partition.store.append(staged, &[1; 5_000]);
        unload(
            &mut partition,
            &[UploadStep::Adopt(staged), UploadStep::Bytes(&[2; 5_000])],
        );
        unload(&mut partition, &[UploadStep::Bytes(&[3; 9_000])]);
        assert_eq!(partition.store.room(staged).len(), LEN - 19_000);
        assert_eq!(partition.end_upload(WHO), Some(staged));
        assert_eq!(partition.end_upload(WHO), None);
    }

    /// An abort frees the reservation, whether the owner knew it or not.
    #[test]
    fn aborts_free_the_reservation() {
        let mut partition = partition();
        // Many more than there is room for at a time.
        for n in 0..200 {
            let staged = partition.store.stage(CLOCK.second, b"key", LEN);
            assert_eq!(partition.store.room(staged).len(), LEN, "number {n}");
            let abort = |staged| UploadStep::Abort(Permit::Own, staged);
            if n % 2 == 0 {
                unload(&mut partition, &[abort(Some(staged))]);
            } else {
                unload(&mut partition, &[UploadStep::Adopt(staged), abort(None)]);
            }
            assert!(partition.store.room(staged).is_empty());
        }
    }
}
