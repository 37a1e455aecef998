//! Makes the parts of the replication of popular keys: one for each partition, and the thread.

use std::{io, sync::Arc};

use herdwick::Address;
use herdwick_clover::layout::{CLASSES, HEAD_BYTES, class_of_len};
use herdwick_herd::hello::SecondaryOffer;
use herdwick_hkvs::{LEASE, Tracker, channel};
use herdwick_request::HashKey;
use mio::{Poll, Waker};

use crate::{
    runtime::{
        offload::{OffloadLink, OffloadPart},
        parking::WakeupFd,
        readiness::WAKE,
        time::ServerClock,
    },
    settings::{
        config::Config,
        error::{StartError, refused},
        offload::Offload,
    },
    telemetry::offload::OffloadCounters,
    threads::offload::OffloadThread,
};

/// The parts; none without a secondary store.
#[derive(Default)]
pub(crate) struct OffloadParts {
    /// Of each partition.
    pub(crate) parts: Vec<OffloadPart>,
    pub(crate) thread: Option<OffloadThread>,
    pub(crate) counters: Option<Arc<OffloadCounters>>,
    pub(crate) link: Option<Arc<OffloadLink>>,
}

impl OffloadParts {
    pub(crate) fn open(
        config: &Config,
        workers: usize,
        at: (HashKey, ServerClock),
    ) -> Result<Self, StartError> {
        let Some(offload) = &config.offload else {
            return Ok(Self::default());
        };
        let poll = Poll::new().map_err(refused("a poll"))?;
        let waker = Waker::new(poll.registry(), WAKE).map_err(refused("a waker"))?;
        let link = Arc::new(OffloadLink::new(WakeupFd::new(waker)));
        let limits = offload.limits.share(workers);
        let (mut parts, mut ends) = (Vec::new(), Vec::new());
        for _ in 0..workers {
            let (worker, end) = channel();
            let policy = offload.policy.build(limits);
            let tracker = Tracker::new((policy, limits.keys), size_class, worker);
            parts.push(OffloadPart::new(tracker, Arc::clone(&link), at));
            ends.push(end);
        }
        let (_, timer) = at;
        let counters = Arc::new(OffloadCounters::default());
        let thread = OffloadThread {
            address: address(offload)?,
            options: OffloadThread::options(offload.secret),
            ends,
            slots: limits.keys,
            link: Arc::clone(&link),
            poll,
            timer,
            counters: Arc::clone(&counters),
        };
        Ok(Self {
            parts,
            thread: Some(thread),
            counters: Some(counters),
            link: Some(link),
        })
    }
}

/// Returns the size class of Clover's that has an item.
fn size_class(key_len: usize, record_len: usize) -> u8 {
    let class = class_of_len(HEAD_BYTES + key_len + record_len);
    // Longer than any class: the secondary store refuses it, and no key makes room for it.
    class.unwrap_or(CLASSES) as u8
}

fn address(offload: &Offload) -> Result<Address, StartError> {
    let parsed = offload.address.parse();
    parsed.map_err(|error: herdwick::Usage| refused("--offload")(io::Error::other(error)))
}

/// Returns what hellos say of the secondary store.
pub(crate) fn secondary_offer(config: &Config) -> Option<SecondaryOffer> {
    let offload = config.offload.as_ref()?;
    Some(SecondaryOffer {
        address: offload.address.clone(),
        lease: LEASE,
        store: None,
    })
}
