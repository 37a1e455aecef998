//! RC responses: ACKs, NAKs, READ data and atomic results in, completions or retransmissions out.

use herdwick_fabric::Status;

use super::super::{
    Qp,
    sends::{Body, Verb},
};
use crate::{
    Drop, Memory,
    packet::{Nak, Packet, Place, Psn24, Syndrome},
    shared::Shared,
};

impl Qp {
    pub(super) fn receive_acknowledge(
        &mut self,
        shared: &mut Shared,
        packet: &Packet<'_>,
    ) -> Result<(), Drop> {
        let psn = packet.bth.psn();
        // First: an old or forged response must not complete, restart or fail anything.
        self.outstanding(psn)?;
        match packet.aeth().ok_or(Drop::Short)?.syndrome() {
            // An ACK covers its packet and all before it. The credits in its syndrome are not used: a
            // receiver without a RECV sends an RNR NAK.
            Syndrome::Ack(_) => {
                // `false`: the ACK passes a READ whose response has not arrived, which implies that
                // it was lost.
                if !self.settle(shared, psn.plus(1)) {
                    self.recover(shared);
                }
            }
            Syndrome::NotReady(timer) => {
                if self.reaches(shared, psn) {
                    self.rest(shared, timer);
                }
            }
            // It names the missing packet, and so acknowledges those before it.
            Syndrome::Nak(Nak::Sequence) => {
                // Its result does not matter: recovery follows in any case.
                self.settle(shared, psn);
                self.recover(shared);
            }
            Syndrome::Nak(nak) => {
                // Only the oldest request is failed: those before a refused one were executed.
                if self.reaches(shared, psn) {
                    self.fail(shared, status(nak));
                }
            }
            Syndrome::Reserved(_) => return Err(Drop::Answer),
        }
        Ok(())
    }

    pub(super) fn receive_read_response<M: Memory>(
        &mut self,
        shared: &mut Shared,
        packet: &Packet<'_>,
        place: Place,
        memory: &mut M,
    ) -> Result<(), Drop> {
        let psn = packet.bth.psn();
        self.outstanding(psn)?;
        // The gap is requested again from its beginning; a response behind it is not kept
        // (go-back-N).
        if !self.reaches(shared, psn) {
            return Ok(());
        }
        let entry = *self.sends.ring.front().ok_or(Drop::Answer)?;
        let (Verb::Read(_), Body::Region(into)) = (entry.verb, entry.body) else {
            return Err(Drop::Answer);
        };
        let index = psn.ahead_of(entry.psn).cast_unsigned();
        // Below the length of the entry, for `psn` lies between `oldest` and `furthest`; the length
        // is compared next.
        let (offset, len) = self.run(shared, &entry, index);
        let ends = entry.ends_answer(index);
        // A response that does not have the shape of what was requested is not stored, not even in part.
        if packet.payload.len() != len || place.ends() != ends {
            return Err(Drop::Length);
        }
        // The region may have been deregistered while the READ was under way.
        if self.gone(shared, &entry) {
            self.fail(shared, Status::LocalError);
            return Err(Drop::Gone);
        }
        memory.write(into.region, into.offset + offset, packet.payload);
        // Packet by packet: after a loss the READ continues where it broke off.
        self.requester.oldest = psn.plus(1);
        if ends {
            self.answered();
        }
        if index + 1 == entry.packets {
            self.retire(shared);
        }
        self.heard(shared);
        Ok(())
    }

    pub(super) fn receive_original<M: Memory>(
        &mut self,
        shared: &mut Shared,
        packet: &Packet<'_>,
        memory: &mut M,
    ) -> Result<(), Drop> {
        let psn = packet.bth.psn();
        self.outstanding(psn)?;
        if !self.reaches(shared, psn) {
            return Ok(());
        }
        let entry = *self.sends.ring.front().ok_or(Drop::Answer)?;
        let (Verb::FetchAdd { .. } | Verb::CompareSwap { .. }, Body::Region(into)) =
            (entry.verb, entry.body)
        else {
            return Err(Drop::Answer);
        };
        if self.gone(shared, &entry) {
            self.fail(shared, Status::LocalError);
            return Err(Drop::Gone);
        }
        let original = packet.original().ok_or(Drop::Short)?;
        memory.write(into.region, into.offset, &original.to_le_bytes());
        self.requester.oldest = psn.plus(1);
        self.answered();
        self.retire(shared);
        self.heard(shared);
        Ok(())
    }

    /// Checks that a response is to a packet that was sent and not yet acknowledged. Others are
    /// duplicates, or forged.
    fn outstanding(&self, psn: Psn24) -> Result<(), Drop> {
        let requester = &self.requester;
        // `furthest`, not `next`: after going back, responses to what was sent before still count.
        let waited = psn.ahead_of(requester.oldest) >= 0 && requester.furthest.ahead_of(psn) > 0;
        waited.then_some(()).ok_or(Drop::Answer)
    }

    /// Completes the requests that a response for `psn` acknowledges implicitly. Returns whether
    /// `psn` is the oldest outstanding packet then; if not, starts recovery.
    fn reaches(&mut self, shared: &mut Shared, psn: Psn24) -> bool {
        let settled = self.settle(shared, psn);
        if !settled {
            self.recover(shared);
        }
        settled
    }

    /// Completes all SENDs and WRITEs before `upto`, in order. Returns `false` at a READ or atomic
    /// among them: its response is lost, which is an implied NAK.
    fn settle(&mut self, shared: &mut Shared, upto: Psn24) -> bool {
        let before = self.requester.oldest;
        let mut complete = true;
        while upto.ahead_of(self.requester.oldest) > 0 {
            // Cannot happen while `oldest` is behind `furthest`; a loop that a packet drives ends
            // anyway.
            let Some(entry) = self.sends.ring.front() else {
                break;
            };
            if entry.is_answered() {
                complete = false;
                break;
            }
            let end = entry.psn.plus(entry.packets);
            // Within a message: the window moves on, and the request completes later.
            if upto.ahead_of(end) < 0 {
                self.requester.oldest = upto;
                break;
            }
            self.requester.oldest = end;
            self.retire(shared);
        }
        if self.requester.oldest != before {
            self.heard(shared);
        }
        complete
    }

    /// Completes the oldest work request with success.
    fn retire(&mut self, shared: &mut Shared) {
        let Some(entry) = self.sends.ring.pop_front() else {
            return;
        };
        // The cursor is 0 if the oldest request is being sent again when a late ACK covers it.
        if self.requester.cursor > 0 {
            self.requester.cursor -= 1;
        }
        self.finish_send(&mut shared.cqs, &entry.ended(Status::Success));
    }
}

/// Returns the status of a refused work request.
fn status(nak: Nak) -> Status {
    match nak {
        Nak::Access => Status::RemoteAccess,
        Nak::Invalid | Nak::Operational | Nak::Sequence => Status::RemoteInvalid,
    }
}
