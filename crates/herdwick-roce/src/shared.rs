//! The state that all queue pairs of an engine share.

use alloc::collections::BTreeMap;
use core::{net::IpAddr, time::Duration};

use herdwick_fabric::{PdId, QpId};

use crate::{
    Config, Wire,
    completions::Cq,
    counters::Counters,
    flows::Flows,
    keyed::{Keyed, TRAILER_BYTES},
    qp::Target,
    regions::Regions,
    slab::Slab,
    timers::Timers,
    watch::WrittenQps,
};

/// The state that all queue pairs of an engine share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) regions: Regions,
    pub(crate) cqs: Slab<Cq>,
    pub(crate) addresses: Slab<Address>,
    pub(crate) flows: Flows,
    pub(crate) counters: Counters,
    pub(crate) timers: Timers,
    pub(crate) written: WrittenQps,
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
    /// The latest time that the caller passed.
    pub(crate) now: Duration,
}

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
        // Before the wire is asked: a buffer, once handed out, is sent.
        if let Err(when) = pace.admit(self.now, len) {
            self.pause = Some(self.pause.map_or(when, |pause| pause.min(when)));
            return None;
        }
        // Data of a connection keeps its order; on UC a packet that overtakes another loses its
        // message.
        let room = wire.packet(flow, len, true);
        // Only what leaves is counted; a packet without room is admitted again later.
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
