//! READs of the seeded fabric: executed at once, or torn into words that are loaded one after another.

use std::time::Duration;

use herdwick_fabric::{Qpn, Remote, Status};
use herdwick_mem::WORD;

use super::{
    event::{Event, Loading, Packet, Reply},
    receive::Executed,
    world::World,
};

/// Mean number of pauses in a torn READ: enough for a mix of several states, however long it is.
const PAUSES: usize = 8;

impl World {
    pub(super) fn execute_read(&mut self, at: Remote, len: usize, packet: Packet) -> Executed {
        let place = match self.open(packet.to, at, len, |access| access.remote_read) {
            Err(reason) => return Executed::Refused(Status::RemoteAccess, reason),
            Ok(place) => place,
        };
        let mut data = vec![0; len];
        if self.faults.tear_reads == Duration::ZERO {
            place.span.read_bytes(place.offset, &mut data);
            return Executed::Done(data);
        }
        let words = self.load_order(place.offset, len);
        let pauses = 1000 * PAUSES / words.len().max(1);
        let loading = Loading {
            region: place.region,
            span: place.span,
            offset: place.offset,
            data,
            pause_per_mille: u16::try_from(pauses.min(1000)).unwrap_or(1000),
            paused: false,
            words,
            packet,
        };
        self.hold_requests(loading.packet.to);
        self.continue_loading(loading);
        Executed::Later
    }

    /// The words of a READ, in the reverse of the order in which they are loaded.
    fn load_order(&mut self, offset: usize, len: usize) -> Vec<(usize, usize)> {
        let (mut words, mut at) = (Vec::new(), 0);
        while at < len {
            // Up to the next word of the memory: words are loaded whole.
            let end = (at + WORD - (offset + at) % WORD).min(len);
            words.push((at, end));
            at = end;
        }
        words.reverse();
        if !self.capabilities.ordered_read {
            self.rng.shuffle(&mut words);
        }
        words
    }

    fn continue_loading(&mut self, mut loading: Loading) {
        while let Some((start, end)) = loading.words.pop() {
            let from = loading.offset + start;
            loading.span.read_bytes(from, &mut loading.data[start..end]);
            if !loading.words.is_empty() && self.rng.chance(loading.pause_per_mille) {
                let pause = self
                    .rng
                    .between(Duration::from_nanos(1), self.faults.tear_reads);
                // A READ that pauses again is torn once.
                self.counts.torn += u64::from(!std::mem::replace(&mut loading.paused, true));
                self.schedule(self.now + pause, Event::Load(loading));
                return;
            }
        }
        let Packet { from, to, psn, .. } = loading.packet;
        self.settle_request(to, from, psn, Reply::Ack(loading.data));
        self.resume_waiting(to);
    }

    pub(super) fn load(&mut self, loading: Loading) {
        let Packet { from, to, psn, .. } = loading.packet;
        let Some(party) = self.qps.get(&to).map(|qp| qp.party) else {
            return;
        };
        let open = self.parties[party].regions.contains_key(&loading.region);
        if open && self.road(loading.packet.origin, party) {
            return self.continue_loading(loading);
        }
        if !open {
            self.refuse(
                to,
                from,
                psn,
                (Status::RemoteAccess, "freed while it was read"),
            );
        }
        self.resume_waiting(to);
    }

    /// Refuses a request of a reliable connection for good.
    pub(super) fn refuse(&mut self, to: Qpn, from: Qpn, psn: u64, why: (Status, &'static str)) {
        let (status, reason) = why;
        if let Some(party) = self.qps.get(&to).map(|qp| qp.party) {
            self.parties[party].count_drop(reason);
        }
        self.settle_request(to, from, psn, Reply::Refused(status));
        self.fail(to, Status::Flushed);
    }
}
