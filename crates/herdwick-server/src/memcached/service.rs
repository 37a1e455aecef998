//! What serves one worker's connections, one round at a time (`round`): the buffers, budgets and lists that they
//! share.

use std::{sync::Arc, time::Duration};

use herdwick_memcache::meta::KeyRoom;
use herdwick_request::Staged;

use super::{
    budget::Budget,
    buffer::{Pool, pool_bytes},
    gather::SpareReplies,
    owners::Owners,
};
use crate::{
    context::Context,
    herd::lease::HelloResponder,
    runtime::{
        partition::Uploader,
        reply_encoding::RUN_REQUESTS,
        request_timer::RequestTimes,
        upload_permits::{Permit, Permits, WorkerPermits},
    },
};

/// The name of this transport, whatever its sockets are.
pub(super) const TRANSPORT: &str = "tcp";
/// Interval at which unused buffers are given back.
const EASE: Duration = Duration::from_secs(1);

/// The state that one worker's connections share while they are served, one round at a time.
pub(crate) struct Service {
    pub(crate) pool: Pool,
    pub(crate) context: Arc<Context>,
    /// Answers hellos, and takes claims.
    pub(super) hello: Arc<HelloResponder>,
    pub(crate) owners: Owners,
    pub(super) room: KeyRoom,
    pub(super) marks: Vec<u32>,
    pub(super) part: Part,
    pub(super) spare: SpareReplies,
    /// When unused buffers are next given back.
    next_ease: Duration,
    /// The memory that connections hold and may hold.
    pub(super) budget: Budget,
    /// The permits by which uploads are admitted to stores.
    pub(super) permits: WorkerPermits,
    /// How long requests take, if that is measured.
    pub(super) times: Option<RequestTimes>,
    /// Uploads that are still to be aborted at their owners.
    pub(super) left: Vec<AbortedUpload>,
}

/// Buffers for the requests of a scattered run that are executed in one partition.
#[derive(Default)]
pub(super) struct Part {
    pub(super) slots: Vec<usize>,
    pub(super) text: Vec<u8>,
}

/// The result of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    /// The connection made progress; there may be more to do.
    Done,
    /// The input holds no complete command.
    Incomplete,
    /// The peer has to read first.
    Full,
    /// Replies of other workers are pending.
    Away,
    /// There is no room for a large value.
    Short,
    /// An upload begins.
    Upload,
    /// All forwarded batches to some worker are in use; nothing was done.
    NoBatch,
}

/// An upload that is to be aborted at its owner.
pub(super) struct AbortedUpload {
    pub(super) owner: usize,
    pub(super) who: Uploader,
    pub(super) permit: Permit,
    /// Its reservation, if the owner does not know it yet.
    pub(super) staged: Option<Staged>,
}

impl Service {
    pub(crate) fn new(
        context: Arc<Context>,
        hello: Arc<HelloResponder>,
        owners: Owners,
        permits: Arc<Permits>,
    ) -> Self {
        let settings = &context.settings;
        let (memory, workers) = (settings.memory_bytes, settings.workers);
        Self {
            budget: Budget::new(memory, workers, settings.item_bytes_max),
            permits: WorkerPermits::new(permits),
            times: RequestTimes::new(TRANSPORT, &settings.latency),
            left: Vec::new(),
            pool: Pool::new(pool_bytes(workers)),
            context,
            hello,
            owners,
            room: KeyRoom::new(RUN_REQUESTS),
            // No round allocates it.
            marks: Vec::with_capacity(RUN_REQUESTS),
            part: Part::default(),
            spare: SpareReplies::new(pool_bytes(workers)),
            next_ease: Duration::ZERO,
        }
    }

    /// Gives back, once in [`EASE`], part of the unused buffers that have not been needed since.
    pub(super) fn ease(&mut self, now: Duration) {
        if now >= self.next_ease {
            self.next_ease = now + EASE;
            self.pool.ease();
            self.spare.ease();
        }
    }
}
