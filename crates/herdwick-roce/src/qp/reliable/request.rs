//! RC requests: window, retransmission and timeouts.

use core::time::Duration;

use herdwick_fabric::Status;

use super::{
    super::{
        Qp,
        fragment::reth,
        sends::{Verb, Wqe},
    },
    requester::{READ_PACKETS, Timer, WINDOW},
};
use crate::{
    Memory, RNR_FOR_EVER, Wire,
    packet::{AtomicEth, Bth, BthFlags, Class, Head, ICRC_BYTES, Operation, PacketOp, rnr_delay},
    shared::{Kind, Shared},
    slab,
};

/// At least every 64th packet requests an acknowledgement: a quarter of the window.
const ASK_EVERY: u32 = 64;
const _: () = assert!(ASK_EVERY as i32 * 2 < WINDOW);
impl Wqe {
    /// Returns how many packets the request for packet `index` covers: the rest of its piece for a
    /// READ, else one.
    fn asked_at_once(&self, index: u32) -> u32 {
        match self.verb {
            Verb::Read(_) => self.packets.min(piece_end(index)) - index,
            _ => 1,
        }
    }

    /// Returns whether packet `index` of a response is the last one of its piece.
    pub(super) fn ends_answer(&self, index: u32) -> bool {
        index + 1 == self.packets.min(piece_end(index))
    }
}

/// Returns one past the last packet of the piece that packet `index` of a READ belongs to.
const fn piece_end(index: u32) -> u32 {
    (index / READ_PACKETS + 1) * READ_PACKETS
}

impl Qp {
    /// Sends requests as far as the window and the wire permit; returns `false` if the wire has no
    /// room.
    pub(super) fn request<M: Memory, W: Wire>(
        &mut self,
        shared: &mut Shared,
        memory: &M,
        wire: &mut W,
    ) -> bool {
        while let Some(entry) = self.next_request() {
            if self.gone(shared, &entry) {
                // The entries before it complete first; it fails once it is the oldest.
                if self.requester.cursor == 0 {
                    self.fail(shared, Status::LocalError);
                }
                return true;
            }
            let index = self.index_of_next(&entry);
            if !self.emit_request(shared, &entry, index, memory, wire) {
                // The entry stays at the cursor, and the same packet is offered in the next round.
                return false;
            }
            self.note_sent(shared, &entry, index);
        }
        true
    }

    /// Returns the work request whose packet may be sent next.
    pub(super) fn next_request(&self) -> Option<Wqe> {
        let requester = &self.requester;
        let entry = self.sends.ring.get(requester.cursor)?;
        let link = self.link?;
        let under_way = self.sends.next.ahead_of(requester.oldest);
        // The oldest packet may be sent whatever the windows are: all others wait for its answer.
        let open = if under_way <= 0 {
            true
        } else if requester.probing || entry.fence && self.awaits_answer() {
            // A fenced request waits for READs and atomics only; SENDs and WRITEs before it are
            // executed in order anyway.
            false
        } else if entry.is_answered() {
            // Responses fill this end's receive buffer, so pieces have a window of their own.
            let more = entry.asked_at_once(self.index_of_next(entry)).cast_signed();
            requester.reading < link.rd_atomic && under_way + more <= requester.read_window
        } else {
            under_way < WINDOW
        };
        // After an RNR NAK even the oldest packet waits.
        (open && !requester.resting).then_some(*entry)
    }

    /// Returns whether a READ or atomic before the next request has not been answered completely.
    fn awaits_answer(&self) -> bool {
        let before = self.sends.ring.iter().take(self.requester.cursor);
        before.into_iter().any(Wqe::is_answered)
    }

    fn emit_request<M: Memory, W: Wire>(
        &self,
        shared: &mut Shared,
        entry: &Wqe,
        index: u32,
        memory: &M,
        wire: &mut W,
    ) -> bool {
        if entry.is_answered() {
            return self.emit_question(shared, entry, index, wire);
        }
        let (offset, len) = self.run(shared, entry, index);
        let payload = self.sends.payload(entry, offset, len);
        let mut fragment = self.fragment(shared, entry, index, payload);
        fragment.ack_request = self.asks(entry, index);
        fragment.emit(shared, memory, wire)
    }

    /// Sends a READ, from packet `index` of its response on, or an atomic.
    fn emit_question<W: Wire>(
        &self,
        shared: &mut Shared,
        entry: &Wqe,
        index: u32,
        wire: &mut W,
    ) -> bool {
        let (offset, _) = self.run(shared, entry, index);
        // A multiple of the MTU, cut to the rest of the READ below.
        let most = entry.asked_at_once(index) as usize * self.mtu(shared);
        let operation = match entry.verb {
            Verb::FetchAdd { .. } => Operation::FetchAdd,
            Verb::CompareSwap { .. } => Operation::CompareSwap,
            _ => Operation::ReadRequest,
        };
        let op = PacketOp {
            class: Class::Rc,
            operation,
        };
        let total = op.head_bytes() + ICRC_BYTES;
        let Some(room) = shared.room(wire, &entry.target, total, Kind::Data) else {
            return false;
        };
        let flags = BthFlags {
            solicited: false,
            migration: shared.config.migration,
            pad: 0,
            // `rdma_rxe` sets it on the last packet of every RC message.
            ack_request: true,
        };
        let psn = entry.psn.plus(index);
        let head = Head::new(
            &mut *room,
            &Bth::new(op.encode(), entry.target.qpn, psn, flags),
        );
        let at = offset as u64;
        match entry.verb {
            Verb::Read(from) => head.and(&reth(from.offset(at), most.min(entry.len - offset))),
            Verb::FetchAdd { at, add } => head.and(&atomic(at, add, 0)),
            Verb::CompareSwap { at, expected, new } => head.and(&atomic(at, new, expected)),
            Verb::Send | Verb::Write(_) => head,
        };
        shared.seal(&entry.target, self.qpn, room);
        true
    }

    fn asks(&self, entry: &Wqe, index: u32) -> bool {
        // Also amid long messages, so that the window moves on before the last packet is there.
        index + 1 == entry.packets || self.requester.unasked + 1 >= ASK_EVERY
    }

    fn note_sent(&mut self, shared: &mut Shared, entry: &Wqe, index: u32) {
        let asks = entry.is_answered() || self.asks(entry, index);
        let count = entry.asked_at_once(index);
        let requester = &mut self.requester;
        requester.unasked = if asks { 0 } else { requester.unasked + 1 };
        requester.reading += usize::from(entry.is_answered());
        // What lies before `furthest` was sent before.
        if requester.furthest.ahead_of(self.sends.next) > 0 {
            shared.counters.connections.retransmitted += 1;
        }
        self.sends.next = self.sends.next.plus(count);
        if self.sends.next.ahead_of(requester.furthest) > 0 {
            requester.furthest = self.sends.next;
        }
        // The next packet is of the next entry.
        if index + count == entry.packets {
            requester.cursor += 1;
        }
        // A running timer is left alone: it times the oldest packet.
        if requester.timer == Timer::Off {
            requester.timer = Timer::Unarmed;
        }
    }

    /// Starts the timer of packets that were sent while the time was unknown.
    pub(crate) fn arm(&mut self, shared: &mut Shared) {
        if self.requester.is_unarmed() {
            self.start_timer(shared);
        }
    }

    fn start_timer(&mut self, shared: &mut Shared) {
        let retry = &shared.config.retry;
        // Each retry without progress doubles the time; `heard` restores the count.
        let spent = retry.count.saturating_sub(self.requester.retries);
        // The bound keeps the shift within its type.
        let doubled = retry.ack_timeout.saturating_mul(1 << spent.min(16));
        let pause = doubled.min(retry.ack_timeout_max);
        self.set_timer(shared, shared.now.saturating_add(pause));
    }

    fn set_timer(&mut self, shared: &mut Shared, when: Duration) {
        self.requester.timer = Timer::At(when);
        shared.timers.set(slab::index(self.id.0), when);
    }

    /// Handles an expired timer, which may have been postponed since it was set.
    pub(crate) fn alarm(&mut self, shared: &mut Shared) {
        match self.requester.timer {
            // The heap keeps the earlier deadline when a timer is postponed.
            Timer::At(when) if when > shared.now => self.set_timer(shared, when),
            Timer::At(_) if self.requester.resting => {
                self.requester.resting = false;
                self.requester.timer = Timer::Off;
            }
            Timer::At(_) => self.time_out(shared),
            Timer::Off | Timer::Unarmed => {}
        }
    }

    /// Handles a timeout. Silence is no proof of a loss, because the peer may be late. The response
    /// to the oldest packet, which the peer may have already, shows what arrived. Until then no
    /// other packet is sent, so the rate needs no further reduction.
    fn time_out(&mut self, shared: &mut Shared) {
        shared.counters.connections.timeouts += 1;
        if self.requester.retries == 0 {
            self.fail(shared, Status::RetryExceeded);
            return;
        }
        self.requester.retries -= 1;
        // Responses that overran the receive buffer are silence, too.
        self.requester.read_less();
        self.go_back();
        self.requester.probing = true;
        self.requester.timer = Timer::Off;
    }

    /// Restores the retry counters and restarts the timer after progress.
    pub(super) fn heard(&mut self, shared: &mut Shared) {
        let retry = &shared.config.retry;
        self.requester.retries = retry.count;
        self.requester.not_ready_retries = retry.rnr_count;
        self.requester.recovering = false;
        self.requester.resting = false;
        self.requester.probing = false;
        // A late ACK covers packets that were about to be sent again.
        if self.sends.next.ahead_of(self.requester.oldest) < 0 {
            self.sends.next = self.requester.oldest;
        }
        // The entry stays in the heap: an alarm that finds `Off` does nothing.
        if self.requester.oldest == self.requester.furthest {
            self.requester.timer = Timer::Off;
        } else {
            self.start_timer(shared);
        }
    }

    /// Counts a complete response to one request, up to `oldest`. It reduces `reading` only if it
    /// was requested since `sends.next` last moved back.
    pub(super) fn answered(&mut self) {
        let requester = &mut self.requester;
        if self.sends.next.ahead_of(requester.oldest) >= 0 {
            requester.reading = requester.reading.saturating_sub(1);
        }
        requester.read_window = (requester.read_window + 1).min(WINDOW);
    }

    /// Handles a missing packet or response: moves back to the oldest. It does so once until
    /// progress is made, however many responses report the gap.
    pub(super) fn recover(&mut self, shared: &mut Shared) {
        // Counted even if recovery runs: the counter is of reports, not of recoveries.
        shared.counters.connections.sequence_naks += 1;
        // While resting, `sends.next` is back already, and the wait must not be cut short.
        if !self.requester.recovering && !self.requester.resting {
            self.slow_down(shared);
            self.requester.read_less();
            self.go_back();
            self.requester.recovering = true;
        }
    }

    fn go_back(&mut self) {
        self.sends.next = self.requester.oldest;
        self.requester.cursor = 0;
        // Answers to what was requested before are not counted (`answered`): their requests are
        // sent again.
        self.requester.reading = 0;
        self.requester.unasked = 0;
        self.requester.recovering = false;
        self.requester.probing = false;
    }

    /// Handles an RNR NAK of the oldest packet: waits, then sends it again.
    pub(super) fn rest(&mut self, shared: &mut Shared, timer: u8) {
        shared.counters.connections.rnr_naks += 1;
        if self.requester.resting {
            // A repeated RNR NAK of the same packet costs no further retry.
            return;
        }
        // Its own count, not that of timeouts: the peer is there, and only slow to post RECVs.
        if shared.config.retry.rnr_count != RNR_FOR_EVER {
            if self.requester.not_ready_retries == 0 {
                self.fail(shared, Status::ReceiverNotReady);
                return;
            }
            self.requester.not_ready_retries -= 1;
        }
        self.go_back();
        self.requester.resting = true;
        self.set_timer(shared, shared.now.saturating_add(rnr_delay(timer)));
    }

    /// Stops the timer when the queue pair fails.
    pub(in crate::qp) fn stop_requesting(&mut self, shared: &mut Shared) {
        self.requester.timer = Timer::Off;
        shared.timers.clear(slab::index(self.id.0));
    }
}

fn atomic(at: herdwick_fabric::Remote, swap_or_add: u64, compare: u64) -> AtomicEth {
    AtomicEth {
        addr: at.addr.into(),
        rkey: at.rkey.0.into(),
        swap_or_add: swap_or_add.into(),
        compare: compare.into(),
    }
}
