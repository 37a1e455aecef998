//! The sending half of the seeded fabric: transmission, RC's retransmission, and completions.

use std::{collections::VecDeque, time::Duration};

use herdwick_fabric::{Completion, CqId, QpState, Qpn, Received, Status, Transport};

use super::{
    RETRY_DEADLINE,
    completing::{Completing, Entry},
    event::{Event, Kind, Packet, Reply, Request},
    host::{Picos, Wqe, duration, of_ns, picos},
    party::{Qp, SendSide},
    send_entry::Body,
    world::World,
};

/// Pause before RC retransmits, in addition to four times the longest travel time.
const RETRY_PAUSE: Duration = Duration::from_micros(50);
/// Pause before RC retransmits through RNICs that take their time: longer than their queues.
const LOADED_RETRY_PAUSE: Duration = Duration::from_millis(2);
/// Pause before RC retransmits to a peer without a RECV.
const NOT_READY_PAUSE: Duration = Duration::from_micros(20);

impl SendSide {
    pub(super) fn new(cq: CqId, depth: usize) -> Self {
        Self {
            cq,
            depth,
            held: 0,
            quiet: 0,
            entries: VecDeque::new(),
            sent: 0,
            waiting: 0,
            next_psn: 0,
            timer: None,
            stuck_since: Duration::ZERO,
            not_ready: false,
        }
    }
}

impl Qp {
    /// Whether the next request to send is fenced, and an earlier READ or atomic has no answer yet;
    /// or is a READ or atomic itself, and as many as the device allows are under way.
    fn must_wait(&self, rd_atomic_max: usize) -> bool {
        let (entries, sent) = (&self.send.entries, self.send.sent);
        let Some(next) = entries.get(sent) else {
            return false;
        };
        let under_way = || entries.iter().take(sent).filter(|entry| !entry.implied());
        // They are counted only if enough were sent.
        let bounded = !next.implied() && sent >= rd_atomic_max;
        next.fence && under_way().next().is_some()
            || bounded && under_way().count() >= rd_atomic_max
    }

    /// Makes the packet of a work request. One that cannot be retransmitted gives its payload away.
    fn packet(&mut self, index: usize) -> Option<Packet> {
        let oldest = self.send.entries.front()?.psn;
        let again = self.transport == Transport::Rc;
        let entry = self.send.entries.get_mut(index)?;
        let body = match &mut entry.body {
            Body::Copied(bytes) if !again => std::mem::take(bytes),
            body => body.fetch(),
        };
        Some(Packet {
            origin: self.party,
            from: self.qpn,
            to: entry.to,
            psn: entry.psn,
            corrupt: false,
            kind: Kind::Request(Request {
                verb: entry.verb,
                imm: entry.imm,
                body,
                oldest,
            }),
        })
    }
}

impl World {
    /// The RNIC takes a WQE, or fetches it; then its queue pair transmits.
    pub(super) fn hand_over(&mut self, qpn: Qpn, wqe: &Wqe) {
        let party = self.qps.get(&qpn).map(|qp| qp.party);
        let Some(host) = party.and_then(|party| self.parties[party].host) else {
            return;
        };
        let at = duration(self.hosts[host].hand_over(picos(self.now), wqe));
        self.schedule(at, Event::Transmit(qpn));
    }

    pub(super) fn transmit(&mut self, qpn: Qpn) {
        let rd_atomic_max = self.capabilities.rd_atomic_max;
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return;
        };
        if qp.must_wait(rd_atomic_max) {
            qp.send.waiting += 1;
            return;
        }
        let (sent, transport) = (qp.send.sent, qp.transport);
        let wqe = qp.send.entries.get(sent).map(|entry| entry.wqe(transport));
        let (Some(wqe), Some(packet)) = (wqe, qp.packet(sent)) else {
            return;
        };
        qp.send.sent += 1;
        let first = qp.send.sent == 1;
        let (reliable, party, unit) = (qp.transport == Transport::Rc, qp.party, qp.unit);
        let (mut departs, mut completes) = (self.now, self.now);
        if let Some(host) = self.parties[party].host {
            let host = &mut self.hosts[host];
            let ready = host.transmit(picos(self.now), qpn, unit, &wqe);
            let completed = of_ns(host.profile.pcie.write_latency_ns);
            let admitted = self.admit(&packet);
            departs = duration(ready.max(admitted));
            completes = departs + duration(completed);
        }
        self.launch(packet, departs);
        if !reliable {
            // A request of UC and UD is done when its message has left.
            self.retire(qpn, Status::Success, completes);
        } else if first {
            self.restart_timer(qpn, self.retry_pause());
        }
        self.stop_waiting(qpn);
    }

    /// Returns when the receiver of a packet lets it leave.
    fn admit(&mut self, packet: &Packet) -> Picos {
        let Some(qp) = self.qps.get(&packet.to) else {
            return 0;
        };
        match (self.parties[qp.party].host, &packet.kind) {
            (Some(host), Kind::Request(request)) => {
                let message = request.inbound(qp.transport);
                self.hosts[host].admit(picos(self.now), &message)
            }
            _ => 0,
        }
    }

    fn retry_pause(&self) -> Duration {
        if !self.hosts.is_empty() {
            return LOADED_RETRY_PAUSE;
        }
        RETRY_PAUSE + 4 * (self.faults.delay_max + self.faults.reorder_window)
    }

    /// Records that something new arrived, and waits `pause` for the next answer.
    fn restart_timer(&mut self, qpn: Qpn, pause: Duration) {
        let now = self.now;
        if let Some(qp) = self.qps.get_mut(&qpn) {
            qp.send.stuck_since = now;
            qp.send.not_ready = false;
        }
        self.set_timer(qpn, pause);
    }

    fn set_timer(&mut self, qpn: Qpn, pause: Duration) {
        self.cancel_timer(qpn);
        if self.qps.get(&qpn).is_some_and(|qp| qp.send.sent > 0) {
            let key = self.schedule(self.now + pause, Event::Timer(qpn));
            if let Some(qp) = self.qps.get_mut(&qpn) {
                qp.send.timer = Some(key);
            }
        }
    }

    pub(super) fn cancel_timer(&mut self, qpn: Qpn) {
        let key = self.qps.get_mut(&qpn).and_then(|qp| qp.send.timer.take());
        if let Some(key) = key {
            self.cancel(key);
        }
    }

    pub(super) fn timer(&mut self, qpn: Qpn) {
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return;
        };
        if self.now.saturating_sub(qp.send.stuck_since) >= RETRY_DEADLINE {
            let status = if qp.send.not_ready {
                Status::ReceiverNotReady
            } else {
                Status::RetryExceeded
            };
            self.fail(qpn, status);
            return;
        }
        // Go-back-N: all that was sent and is not retired is sent again.
        let again: Vec<Packet> = (0..qp.send.sent).filter_map(|i| qp.packet(i)).collect();
        for packet in again {
            self.launch(packet, self.now);
        }
        self.set_timer(qpn, self.retry_pause());
    }

    pub(super) fn replied(&mut self, qpn: Qpn, psn: u64, reply: Reply) {
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return;
        };
        let sent = qp.send.sent;
        let mut known = qp.send.entries.iter_mut().take(sent);
        let Some(index) = known.position(|entry| entry.psn == psn) else {
            return;
        };
        let outcome = match reply {
            Reply::Ack(data) => Ok(data),
            Reply::Refused(status) => Err(status),
            Reply::NotReady => {
                qp.send.not_ready = true;
                self.set_timer(qpn, NOT_READY_PAUSE);
                return;
            }
        };
        for earlier in qp.send.entries.iter_mut().take(index) {
            // An answer to a later request implies the ACKs of SENDs and WRITEs; a READ still needs
            // its own.
            if earlier.implied() && earlier.outcome.is_none() {
                earlier.outcome = Some(Ok(Vec::new()));
            }
        }
        qp.send.entries[index].outcome = Some(outcome);
        self.settle(qpn);
    }

    /// Retires the requests that have an outcome, in order.
    fn settle(&mut self, qpn: Qpn) {
        while let Some(front) = self
            .qps
            .get_mut(&qpn)
            .and_then(|qp| qp.send.entries.front_mut())
        {
            match front.outcome.take() {
                None => break,
                Some(Err(status)) => return self.fail(qpn, status),
                Some(Ok(data)) => {
                    // In the order of the posts, as the data of READs on one queue pair arrives.
                    if let Some((span, offset)) = &front.into {
                        span.write_bytes(*offset, &data);
                    }
                    self.retire(qpn, Status::Success, self.now);
                    self.restart_timer(qpn, self.retry_pause());
                }
            }
        }
        self.stop_waiting(qpn);
    }

    /// Schedules the next of the transmissions that had to wait, if it need not any longer.
    fn stop_waiting(&mut self, qpn: Qpn) {
        let rd_atomic_max = self.capabilities.rd_atomic_max;
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return;
        };
        if qp.send.waiting > 0 && !qp.must_wait(rd_atomic_max) {
            qp.send.waiting -= 1;
            self.schedule(self.now, Event::Transmit(qpn));
        }
    }

    /// Ends the oldest send; if it is signaled or failed, its completion is in memory at
    /// `completes`.
    fn retire(&mut self, qpn: Qpn, status: Status, completes: Duration) {
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return;
        };
        let Some(entry) = qp.send.entries.pop_front() else {
            return;
        };
        // A request that fails may not have been sent.
        qp.send.sent = qp.send.sent.saturating_sub(1);
        if status == Status::Success && !entry.signaled {
            qp.send.quiet += 1;
            return;
        }
        let completion = Completion {
            wr_id: entry.wr_id,
            status,
            opcode: entry.opcode(),
            qp: qp.id,
            byte_len: 0,
            imm: None,
            source: None,
            inline: None,
        };
        // It frees the slots of the unsignaled ones before it, too.
        let slots = 1 + std::mem::take(&mut qp.send.quiet);
        let (party, cq) = (qp.party, qp.send.cq);
        let entry = Entry {
            completion,
            qpn,
            slots,
            receive: false,
        };
        self.push_completion_at(completes, Completing { party, cq, entry });
    }

    /// Moves a queue pair to the error state: the oldest send ends with `status`, the rest and
    /// every RECV are flushed.
    pub(super) fn fail(&mut self, qpn: Qpn, status: Status) {
        self.cancel_timer(qpn);
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return;
        };
        qp.state = QpState::Error;
        self.parties[qp.party].failures += 1;
        let sends = qp.send.entries.len();
        let recvs = std::mem::take(&mut qp.receive.entries);
        for i in 0..sends {
            let status = if i == 0 { status } else { Status::Flushed };
            self.retire(qpn, status, self.now);
        }
        for recv in recvs {
            self.complete_receive(qpn, recv, Received::failed(Status::Flushed));
        }
    }
}
