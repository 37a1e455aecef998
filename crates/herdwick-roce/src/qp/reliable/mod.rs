//! RC: lost packets are sent again, and no request is executed twice.
//!
//! A [`requester`] and a [`responder`], which share only their queue pair. [`request`] sends requests and
//! runs the timer, [`answer`] processes the responses to them; [`serve`] executes the peer's
//! requests, [`respond`] sends the responses.

mod answer;
mod request;
mod requester;
mod respond;
mod responder;
mod serve;

use crate::{
    Drop, Memory, Wire,
    packet::{Operation, Packet},
    shared::Shared,
};

use super::Qp;

pub(crate) use requester::Requester;
pub(crate) use responder::Responder;

impl Qp {
    /// Processes a packet of an RC queue pair.
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

    /// Sends responses first, then requests; returns whether all of them found room.
    pub(super) fn transmit_reliable<M: Memory, W: Wire>(
        &mut self,
        shared: &mut Shared,
        memory: &M,
        wire: &mut W,
    ) -> bool {
        // Responses first: the peer waits for them, and its window opens with them.
        self.respond(shared, memory, wire) && self.request(shared, memory, wire)
    }

    /// Returns whether the queue pair needs the next round of transmission.
    pub(crate) fn has_work(&self) -> bool {
        self.requester.is_unarmed() || self.has_answers() || self.next_request().is_some()
    }
}

#[cfg(test)]
mod tests;
