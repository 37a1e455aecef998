//! Congestion control of a queue pair: reactions to CNPs, and sending them.

use super::Qp;
use crate::{
    Wire,
    packet::{BTH_BYTES, Bth, CONGESTION_BYTES, Head, ICRC_BYTES},
    shared::{Kind, Shared},
};

impl Qp {
    /// Halves the rate of the flow, if this is a connection.
    pub(crate) fn slow_down(&self, shared: &mut Shared) {
        let now = shared.now;
        if let Some(pace) = self
            .link
            .and_then(|link| shared.flows.pace(link.target.flow))
        {
            pace.slow_down(now);
        }
    }

    /// Records that a packet of its peer was marked CE; returns whether a CNP is to be sent now.
    #[cold]
    pub(crate) fn tell_of_congestion(&mut self, shared: &mut Shared) -> bool {
        let now = shared.now;
        let pace = self
            .link
            .and_then(|link| shared.flows.pace(link.target.flow));
        if pace.is_some_and(|pace| pace.tells(now)) {
            // Only a note: the packet is sent by the next round of transmission, where there is a
            // wire.
            self.congested = true;
        }
        self.congested
    }

    /// Sends the peer a CNP; returns `false` if the wire has no room.
    pub(super) fn emit_congestion<W: Wire>(&mut self, shared: &mut Shared, wire: &mut W) -> bool {
        let Some(link) = self.link else {
            // UD: `tell_of_congestion` never marks it, for it has no link.
            return true;
        };
        let total = BTH_BYTES + CONGESTION_BYTES + ICRC_BYTES;
        let Some(room) = shared.room(wire, &link.target, total, Kind::Answer) else {
            return false;
        };
        let bth = Bth::congestion(link.target.qpn);
        // The reserved field of a CNP is zero.
        Head::new(&mut *room, &bth)
            .payload(CONGESTION_BYTES)
            .fill(0);
        shared.seal(&link.target, self.qpn, room);
        self.congested = false;
        true
    }
}
