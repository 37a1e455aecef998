//! The engine: its objects, and the calls of its driver.

mod arrive;
mod control;
mod ready;

use alloc::collections::BTreeMap;
use core::time::Duration;

use herdwick_fabric::{
    Completion, CqId, Local, PostError, QpId, QpState, RecvWr, SendWr, WriteReport,
};
use ready::Ready;

use crate::{
    Config, Memory, Wire,
    counters::Counters,
    draw::Draw,
    flows::Flows,
    icrc::Run,
    qp::Qp,
    regions::Regions,
    shared::Shared,
    slab::Slab,
    table::Table,
    timers::Timers,
    watch::{Watch, WrittenQps},
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

/// Maximum packets of READ responses sent in one pass, over all queue pairs. A request of 32 bytes
/// reads up to 8 MiB; without this bound it would delay the packets of other queue pairs.
const READ_ANSWERS: u32 = 256;

impl Engine {
    /// Makes an engine without objects, of at most half as many queue pairs as its shard has numbers
    /// ([`Config::shards`]). Its queue pair numbers, sequence numbers and keys are
    /// unpredictable to anyone who does not know `seed`, so `seed` must come from the operating
    /// system's random source.
    ///
    /// # Panics
    /// When `config.shard` is not below `config.shards`, or there are more than 256 shards.
    #[must_use]
    pub fn new(config: Config, seed: [u8; 16]) -> Self {
        assert!(config.shard < config.shards && config.shards <= 256);
        let mut config = config;
        // Half of the shard's numbers, so that drawing an unused one ends soon.
        let numbers = (256 / config.shards as usize) << 16;
        config.limits.qps = config.limits.qps.min(numbers / 2);
        // A datagram is one packet, whatever its limit.
        config.datagram = config.datagram.min(config.mtu);
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
                // Each connection and each address handle has one destination, and may share it.
                flows: Flows::new(limits.qps + limits.addresses),
                counters: Counters::default(),
                timers: Timers::new(limits.qps),
                written: WrittenQps::new(limits.qps),
                keyed: Slab::new(limits.qps + limits.addresses),
                by_source: BTreeMap::new(),
                short: false,
                pause: None,
                read_answers: READ_ANSWERS,
                rationed: false,
                // Turn 0 is `Blame::NONE`'s, so no queue pair begins with blame in the current
                // pass.
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
        // All before any: a batch that is refused has no effect.
        for wr in batch {
            qp.check(&self.shared, wr)?;
        }
        // `held` falls when a completion is polled, not when a packet is acknowledged: so the
        // completion queue, whose depth covers the queue's, never overflows.
        if qp.sends.held + batch.len() > qp.sends.depth {
            return Err(PostError::Full);
        }
        for wr in batch {
            qp.post(&mut self.shared, wr, memory, wire);
        }
        // What the wire had no room for, and all of RC, is in the ring now.
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
        // RECVs may be posted in the state Init, as the verbs allow: the peer may send at once.
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
            // The queue pair may be gone; `forget` leaves none of its entries, but the id is
            // checked anyway.
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

    /// Has WRITEs into `range` that arrive on `qp` reported under `token`; `false` if there is no such
    /// queue pair.
    pub fn watch_writes(&mut self, qp: QpId, range: Local, token: u64) -> bool {
        let Some(qp) = self.qps.get_mut(qp.0) else {
            return false;
        };
        qp.watch = Some(Watch::new(range, token, qp.watch.as_ref()));
        true
    }

    /// Moves reports of WRITEs to the front of `out`; returns how many.
    pub fn written(&mut self, out: &mut [WriteReport]) -> usize {
        let mut count = 0;
        while count < out.len() {
            let Some(qp) = self.shared.written.take_first() else {
                break;
            };
            let watch = self.qps.get_mut(qp.0).and_then(|qp| qp.watch.as_mut());
            if let Some(report) = watch.and_then(Watch::report) {
                out[count] = report;
                count += 1;
            }
        }
        count
    }

    /// Returns whether [`Engine::written`] has reports.
    #[must_use]
    pub fn has_written(&self) -> bool {
        !self.shared.written.is_empty()
    }

    /// Advances the time to `now` and runs the timers that are due.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.shared.now = self.shared.now.max(now);
        // Ends: `alarm` sets a timer only to a time that is after `now`.
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
        // `poll_timeout` reads these: they tell what was held back since this round began.
        self.shared.short = false;
        self.shared.pause = None;
        self.shared.read_answers = READ_ANSWERS;
        self.shared.rationed = false;
        self.shared.turn += 1;
        // As many as are listed now: a queue pair that is put back waits for the next round, so the
        // loop ends.
        for _ in 0..self.ready.begin() {
            let Some(qp) = self.ready.take().and_then(|id| self.qps.get_mut(id.0)) else {
                continue;
            };
            qp.listed = false;
            let all = qp.transmit(&mut self.shared, memory, wire);
            // After `transmit`: the timer starts when a packet has left, with the time of this
            // pass.
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
        // Only timers can cause work then.
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
