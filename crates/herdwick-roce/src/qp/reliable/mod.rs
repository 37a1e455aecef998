//! RC: what is lost comes again, and nothing is done twice.
//!
//! A requester and a responder, which meet only in their queue pair. [`request`] sends requests
//! and runs the timer, [`answer`] takes what the other responder says; [`serve`] takes requests,
//! [`respond`] sends what is said to them.

mod answer;
mod request;
mod respond;
mod serve;

use crate::{
    Drop, Memory, Wire,
    engine::Shared,
    packet::{Operation, Packet},
};

use super::Qp;

pub(crate) use request::Requester;
pub(crate) use respond::Responder;

impl Qp {
    /// Takes a packet of a connection with acknowledgements.
    pub(crate) fn receive_reliable<M: Memory, W: Wire>(
        &mut self,
        shared: &mut Shared,
        packet: &Packet<'_>,
        memory: &mut M,
        wire: &mut W,
    ) -> Result<(), Drop> {
        match packet.op.operation {
            Operation::Acknowledge => self.receive_acknowledge(shared, packet),
            Operation::ReadResponse(place) => {
                self.receive_read_response(shared, packet, place, memory)
            }
            Operation::AtomicAcknowledge => self.receive_original(shared, packet, memory),
            _ => self.receive_request(shared, packet, memory, wire),
        }
    }

    /// Sends answers first, then requests; whether nothing is left for lack of room.
    pub(super) fn transmit_reliable<M: Memory, W: Wire>(
        &mut self,
        shared: &mut Shared,
        memory: &M,
        wire: &mut W,
    ) -> bool {
        self.respond(shared, memory, wire) && self.request(shared, memory, wire)
    }

    /// Whether the driver's next round of transmission is to look at it.
    pub(crate) fn has_work(&self) -> bool {
        self.requester.is_unarmed() || self.has_answers() || self.next_request().is_some()
    }
}

#[cfg(test)]
mod tests;
