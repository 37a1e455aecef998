//! The engine: its objects, and the calls of its driver.

mod arrive;
mod control;
mod ready;

use alloc::collections::BTreeMap;
use core::{net::IpAddr, time::Duration};

use herdwick_fabric::{Completion, CqId, PdId, PostError, QpId, QpState, RecvWr, SendWr};
use ready::Ready;

use crate::{
    Config, Memory, Wire,
    completions::Cq,
    counters::Counters,
    draw::Draw,
    flows::Flows,
    icrc::Run,
    keyed::{Keyed, TRAILER_BYTES},
    qp::{Qp, Target},
    regions::Regions,
    slab::Slab,
    table::Table,
    timers::Timers,
};

/// A port of a software RNIC: everything between the verbs and the packets, for one thread.
///
/// It uses no socket, no clock and no source of randomness. Its methods are of four kinds: getters;
/// mutators, which are the control verbs and the posting ones; `handle_*`, which take input, a
/// packet or the time; and `poll_*`, which return output.
///
/// A driver's pass: [`Engine::handle_packet`] or [`Engine::handle_batch`] for each arrival,
/// [`Engine::handle_timeout`], then [`Engine::poll_transmit`]. The driver sleeps until
/// [`Engine::poll_timeout`] at the latest. Of the mutators, only the control verbs allocate.
pub struct Engine {
    pub(crate) shared: Shared,
    qps: Slab<Qp>,
    by_qpn: Table,
    pds: Slab<()>,
    draw: Draw,
    ready: Ready,
    /// ICRC state of arriving packets.
    sums: Run,
}

/// The state that all queue pairs of an engine share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) regions: Regions,
    pub(crate) cqs: Slab<Cq>,
    pub(crate) addresses: Slab<Address>,
    pub(crate) flows: Flows,
    pub(crate) counters: Counters,
    pub(crate) timers: Timers,
    /// Keyed peerings of connections and of address handles.
    pub(crate) keyed: Slab<Keyed>,
    /// The keyed peerings of datagrams, by receiving queue pair, source address and sender's
    /// number.
    pub(crate) by_source: BTreeMap<(QpId, IpAddr, u32), u32>,
    /// Whether the wire had no room in the last round of transmission.
    pub(crate) short: bool,
    /// The earliest time at which a flow that pacing held back in that round may send again.
    pub(crate) pause: Option<Duration>,
    /// Packets of READ responses that may still be sent in this pass, and whether more wait for the
    /// next pass.
    pub(crate) read_answers: u32,
    pub(crate) rationed: bool,
    /// The number of the pass. Blame for wrong packets does not outlast a pass.
    pub(crate) turn: u64,
    /// The latest time that a driver told.
    pub(crate) now: Duration,
}

/// Maximum packets of READ responses sent in one pass, over all queue pairs. A request of 32 bytes
/// reads up to 8 MiB; without this bound it would delay the packets of other queue pairs.
const READ_ANSWERS: u32 = 256;

/// The kind of a packet that needs a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A datagram. One queue pair's datagrams go to many peers, and a slow peer must not block the
    /// others; so they are not paced.
    Datagram,
    /// An acknowledgement or a CNP; not paced either.
    Answer,
    /// Data of a connection; paced.
    Data,
}

impl Shared {
    /// Whether one more packet of an answer to a READ may leave in this pass; counts it.
    pub(crate) fn may_answer_reads(&mut self) -> bool {
        self.rationed |= self.read_answers == 0;
        let left = self.read_answers.checked_sub(1);
        self.read_answers = left.unwrap_or(0);
        left.is_some()
    }

    /// Returns a buffer from the wire, unless the wire is full or pacing holds the flow back.
    #[inline(always)]
    pub(crate) fn room<'w, W: Wire>(
        &mut self,
        wire: &'w mut W,
        target: &Target,
        len: usize,
        kind: Kind,
    ) -> Option<&'w mut [u8]> {
        let flow = target.flow;
        let len = len + target.keyed.map_or(0, |_| TRAILER_BYTES);
        let pace = if kind == Kind::Data && self.config.pace {
            self.flows.pace(flow)
        } else {
            None
        };
        let Some(pace) = pace else {
            let room = wire.packet(flow, len, kind != Kind::Datagram);
            return self.counted(room);
        };
        if let Err(when) = pace.admit(self.now, len) {
            self.pause = Some(self.pause.map_or(when, |pause| pause.min(when)));
            return None;
        }
        let room = wire.packet(flow, len, true);
        if room.is_some() {
            pace.spend(self.now, len);
        }
        self.counted(room)
    }

    /// Fills in the trailer of a packet of queue pair `sender`, if its peering is keyed.
    #[inline]
    pub(crate) fn seal(&mut self, target: &Target, sender: u32, room: &mut [u8]) {
        let keyed = target.keyed.and_then(|keyed| self.keyed.get_mut(keyed));
        if let Some(keyed) = keyed {
            keyed.seal(sender, room);
        }
    }

    #[inline]
    fn counted<'w>(&mut self, room: Option<&'w mut [u8]>) -> Option<&'w mut [u8]> {
        if room.is_some() {
            self.counters.packets_out += 1;
        } else {
            self.counters.connections.no_room += 1;
            self.short = true;
        }
        room
    }
}

/// The target of an address handle.
pub(crate) struct Address {
    pub(crate) pd: PdId,
    pub(crate) target: Target,
    /// If keyed: the key in `by_source` of the datagrams from that target.
    pub(crate) source: Option<(QpId, IpAddr, u32)>,
}

impl Engine {
    /// Makes an engine without objects. Its queue pair numbers, sequence numbers and keys are
    /// unpredictable to anyone who does not know `seed`, so `seed` must come from the operating
    /// system's random source.
    ///
    /// # Panics
    /// When `config.shard` is not below `config.shards`, or there are more than 256 shards.
    #[must_use]
    pub fn new(config: Config, seed: [u8; 16]) -> Self {
        assert!(config.shard < config.shards && config.shards <= 256);
        let limits = &config.limits;
        Self {
            qps: Slab::new(limits.qps),
            by_qpn: Table::new(limits.qps),
            pds: Slab::new(limits.pds),
            draw: Draw::new(seed),
            ready: Ready::new(limits.qps),
            sums: Run::new(),
            shared: Shared {
                regions: Regions::new(limits.regions),
                cqs: Slab::new(limits.cqs),
                addresses: Slab::new(limits.addresses),
                flows: Flows::new(limits.qps + limits.addresses),
                counters: Counters::default(),
                timers: Timers::new(limits.qps),
                keyed: Slab::new(limits.qps + limits.addresses),
                by_source: BTreeMap::new(),
                short: false,
                pause: None,
                read_answers: READ_ANSWERS,
                rationed: false,
                turn: 1,
                now: Duration::ZERO,
                config,
            },
        }
    }

    /// Returns its configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Returns its counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Posts `batch` to the send queue of `qp`, in order. UC and UD requests of one packet are
    /// written to the wire at once if it has room.
    ///
    /// # Errors
    /// [`PostError`] names the cause; nothing was posted.
    pub fn post_send<M: Memory, W: Wire>(
        &mut self,
        qp: QpId,
        batch: &[SendWr<'_>],
        memory: &M,
        wire: &mut W,
    ) -> Result<(), PostError> {
        let qp = self.qps.get_mut(qp.0).ok_or(PostError::UnknownQp)?;
        if qp.state != QpState::ReadyToSend {
            return Err(PostError::State(qp.state));
        }
        for wr in batch {
            qp.check(&self.shared, wr)?;
        }
        if qp.sends.held + batch.len() > qp.sends.depth {
            return Err(PostError::Full);
        }
        for wr in batch {
            qp.post(&mut self.shared, wr, memory, wire);
        }
        if !qp.sends.ring.is_empty() {
            let all = qp.transmit(&mut self.shared, memory, wire);
            if !all || qp.has_work() {
                self.ready.add(qp);
            }
        }
        Ok(())
    }

    /// Posts RECVs to `qp`.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    pub fn post_recv(&mut self, qp: QpId, batch: &[RecvWr]) -> Result<(), PostError> {
        let qp = self.qps.get_mut(qp.0).ok_or(PostError::UnknownQp)?;
        if qp.state == QpState::Error {
            return Err(PostError::State(qp.state));
        }
        qp.post_recv(&self.shared, batch)
    }

    /// Moves completions from `cq` to the front of `out`; returns how many.
    pub fn poll(&mut self, cq: CqId, out: &mut [Completion]) -> usize {
        let Some(cq) = self.shared.cqs.get_mut(cq.0) else {
            return 0;
        };
        let mut count = 0;
        for place in out {
            let Some(entry) = cq.pop() else {
                break;
            };
            if let Some(qp) = self.qps.get_mut(entry.completion.qp.0) {
                qp.give_back(entry.slots);
            }
            *place = entry.completion;
            count += 1;
        }
        count
    }

    /// Returns whether `cq` has completions.
    #[must_use]
    pub fn has_completions(&self, cq: CqId) -> bool {
        let cq = self.shared.cqs.get(cq.0);
        cq.is_some_and(|cq| !cq.is_empty())
    }

    /// Advances the time to `now` and runs the timers that are due.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.shared.now = self.shared.now.max(now);
        while let Some(place) = self.shared.timers.due(self.shared.now) {
            if let Some(qp) = self.qps.at_mut(place) {
                qp.alarm(&mut self.shared);
                if qp.has_work() {
                    self.ready.add(qp);
                }
            }
        }
    }

    /// Gives the wire what waits for room; whether anything still waits for lack of it.
    pub fn poll_transmit<M: Memory, W: Wire>(
        &mut self,
        now: Duration,
        memory: &M,
        wire: &mut W,
    ) -> bool {
        self.shared.now = self.shared.now.max(now);
        self.shared.short = false;
        self.shared.pause = None;
        self.shared.read_answers = READ_ANSWERS;
        self.shared.rationed = false;
        self.shared.turn += 1;
        for _ in 0..self.ready.begin() {
            let Some(qp) = self.ready.take().and_then(|id| self.qps.get_mut(id.0)) else {
                continue;
            };
            qp.listed = false;
            let all = qp.transmit(&mut self.shared, memory, wire);
            qp.arm(&mut self.shared);
            if !all {
                self.ready.put_back(qp);
            }
        }
        self.shared.short
    }

    /// Returns the latest time for the next pass: now if a queue pair can transmit without waiting
    /// for its pace, else the time of the earliest timer or pacing deadline.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        let timer = self.shared.timers.first();
        if self.ready.is_empty() {
            return timer;
        }
        match self.shared.pause {
            Some(pause) if self.waits_for_pace_alone() => {
                Some(timer.map_or(pause, |timer| timer.min(pause)))
            }
            _ => Some(self.shared.now),
        }
    }
}

impl Engine {
    /// Returns whether every queue pair that has packets to transmit waits for its pace.
    fn waits_for_pace_alone(&self) -> bool {
        !self.shared.short && !self.shared.rationed && !self.ready.is_fresh()
    }
}

#[cfg(test)]
impl Engine {
    pub(crate) fn qp_mut(&mut self, qp: QpId) -> Option<&mut Qp> {
        self.qps.get_mut(qp.0)
    }
}
