//! The state of one port of the seeded fabric: its objects, queues and counters.

use std::{
    collections::{BTreeMap, VecDeque},
    os::fd::OwnedFd,
    sync::Arc,
    time::Duration,
};

use herdwick_fabric::{
    Access, ControlError, CqId, Local, PdId, PortLimits, QpId, QpState, Qpn, RecvWr, Rkey, Scope,
    Transport, Windows, WriteReport,
};
use herdwick_mem::Span;

use super::event::{Packet, Reply};
use super::host::Picos;
use super::{completing::Entry, maps::IdMap, queue::EventKey, send_entry::SendEntry};

/// Identifies a port of a [`SeededNetwork`](super::SeededNetwork) in faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartyId(pub(super) usize);

/// The objects of one port.
pub(super) struct PartyState {
    pub(super) stopped: bool,
    /// Whether its device is lost.
    pub(super) lost: bool,
    /// Failures that ended queue pairs.
    pub(super) failures: u64,
    /// The host with its RNIC; `None`: nothing costs anything.
    pub(super) host: Option<usize>,
    /// When its core has done what it was charged for.
    pub(super) core: Picos,
    /// How many times as long its core takes for everything.
    pub(super) slowness: u32,
    /// Whether it is among the parties that something has happened to.
    pub(super) woken: bool,
    pub(super) limits: PortLimits,
    pub(super) pds: IdMap<PdId, Domain>,
    pub(super) regions: IdMap<u32, Region>,
    /// The ids of `regions`, by the rkeys that no two regions share.
    pub(super) rkeys: IdMap<Rkey, u32>,
    pub(super) cqs: BTreeMap<CqId, Cq>,
    pub(super) qps: BTreeMap<QpId, Qpn>,
    pub(super) addresses: IdMap<u32, Address>,
    pub(super) drops: Vec<(&'static str, u64)>,
    /// Watched queue pairs with WRITEs to report.
    pub(super) written: VecDeque<QpId>,
    pub(super) wake: Option<Arc<OwnedFd>>,
    next_id: u32,
}

impl PartyState {
    pub(super) fn new(limits: PortLimits) -> Self {
        Self {
            stopped: false,
            lost: false,
            failures: 0,
            host: None,
            core: 0,
            slowness: 1,
            woken: false,
            limits,
            pds: IdMap::default(),
            regions: IdMap::default(),
            rkeys: IdMap::default(),
            cqs: BTreeMap::new(),
            qps: BTreeMap::new(),
            addresses: IdMap::default(),
            drops: Vec::new(),
            written: VecDeque::new(),
            wake: None,
            next_id: 0,
        }
    }

    /// Its port is dropped: its objects are gone. One that was stopped stays so, and what it sent before
    /// does not arrive.
    pub(super) fn clear(&mut self) {
        *self = Self {
            stopped: self.stopped,
            lost: self.lost,
            ..Self::new(PortLimits::default())
        };
    }

    /// Whether packets leave and reach it.
    pub(super) fn transmits(&self) -> bool {
        !self.stopped && !self.lost
    }

    /// Returns an id that no object of this port has had before.
    pub(super) fn fresh_id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id
    }

    pub(super) fn know_pd(&self, pd: PdId) -> Result<(), ControlError> {
        let known = self.pds.contains_key(&pd);
        known.then_some(()).ok_or(ControlError::Unknown("domain"))
    }

    pub(super) fn count_drop(&mut self, reason: &'static str) {
        match self.drops.iter_mut().find(|(name, _)| *name == reason) {
            Some((_, count)) => *count += 1,
            None => self.drops.push((reason, 1)),
        }
    }

    /// Wakes the sleeper on this port, if any of its queues is armed.
    pub(super) fn wake_any(&mut self) {
        let mut armed = false;
        for cq in self.cqs.values_mut() {
            armed |= std::mem::take(&mut cq.armed);
        }
        if armed {
            self.ring();
        }
    }

    pub(super) fn ring(&self) {
        if let Some(fd) = &self.wake {
            // Fails only if the counter is full, and then the sleeper is awake anyway.
            let _ = rustix::io::write(fd, &1u64.to_le_bytes());
        }
    }
}

/// What was made in a protection domain, and goes with it; some of it may be gone already.
#[derive(Default)]
pub(super) struct Domain {
    pub(super) qps: Vec<QpId>,
    pub(super) regions: Vec<u32>,
    pub(super) addresses: Vec<u32>,
}

pub(super) struct Region {
    pub(super) pd: PdId,
    pub(super) span: Span,
    /// With windows, the region's offsets are theirs.
    pub(super) windows: Option<Windows>,
    pub(super) len: usize,
    pub(super) access: Access,
    pub(super) scope: Scope,
    pub(super) rkey: Rkey,
    pub(super) base: u64,
}

pub(super) struct Address {
    pub(super) pd: PdId,
    pub(super) to: Qpn,
}

pub(super) struct Cq {
    pub(super) depth: usize,
    /// Sum of the queue depths that feed it.
    pub(super) promised: usize,
    pub(super) entries: VecDeque<Entry>,
    pub(super) armed: bool,
}

pub(super) struct Qp {
    pub(super) party: usize,
    pub(super) id: QpId,
    pub(super) qpn: Qpn,
    pub(super) pd: PdId,
    pub(super) transport: Transport,
    pub(super) state: QpState,
    pub(super) peer: Option<Qpn>,
    pub(super) send: SendSide,
    pub(super) receive: ReceiveSide,
    /// When the preceding packet arrives, so that packets do not overtake without a fault.
    pub(super) last_arrival: Duration,
    /// When the last of all packets so far arrives.
    pub(super) latest_arrival: Duration,
    /// When the preceding packet to it has its effect.
    pub(super) last_delivery: Duration,
    /// When its preceding completion is polled at the earliest.
    pub(super) last_completion: Duration,
    /// Which of the RNIC's processing units serves it.
    pub(super) unit: usize,
    pub(super) watch: Option<Watch>,
}

/// What a watched queue pair has to report.
pub(super) struct Watch {
    pub(super) range: Local,
    /// Its token, and the WRITEs since the last report.
    pub(super) report: WriteReport,
}

pub(super) struct SendSide {
    pub(super) cq: CqId,
    pub(super) depth: usize,
    /// Slots in use, until a completion that frees them is polled.
    pub(super) held: usize,
    /// Slots of finished unsignaled requests, which the next completion frees.
    pub(super) quiet: usize,
    pub(super) entries: VecDeque<SendEntry>,
    /// How many of `entries` have been transmitted.
    pub(super) sent: usize,
    /// Transmissions that wait, at a fence or until fewer READs are under way.
    pub(super) waiting: usize,
    pub(super) next_psn: u64,
    pub(super) timer: Option<EventKey>,
    /// When RC last received anything new.
    pub(super) stuck_since: Duration,
    /// Whether the last reply was that the peer has no RECV.
    pub(super) not_ready: bool,
}

pub(super) struct ReceiveSide {
    pub(super) cq: CqId,
    pub(super) depth: usize,
    pub(super) held: usize,
    pub(super) entries: VecDeque<RecvWr>,
    pub(super) expected_psn: u64,
    /// Replies to be repeated if the request arrives again, by rising PSNs.
    pub(super) replies: VecDeque<(u64, Reply)>,
    /// Whether a WRITE is half visible; later packets wait for it.
    pub(super) landing: bool,
    pub(super) waiting: VecDeque<Packet>,
}

impl ReceiveSide {
    pub(super) fn new(cq: CqId, depth: usize) -> Self {
        Self {
            cq,
            depth,
            held: 0,
            entries: VecDeque::new(),
            expected_psn: 0,
            replies: VecDeque::new(),
            landing: false,
            waiting: VecDeque::new(),
        }
    }

    /// Forgets the replies to requests before PSN `oldest`: their requester has them.
    pub(super) fn forget_replies_before(&mut self, oldest: u64) {
        while self.replies.front().is_some_and(|(psn, _)| *psn < oldest) {
            self.replies.pop_front();
        }
    }

    pub(super) fn reply_to(&self, psn: u64) -> Option<&Reply> {
        let place = self.replies.binary_search_by_key(&psn, |(psn, _)| *psn);
        place.ok().map(|place| &self.replies[place].1)
    }
}
