//! Replies to packets: which packet answers a reply of the store.

use herdwick_request::{Reply, Request, Status};

use super::{
    header::opcode,
    reply::{self, Body, Echo},
};

/// How to encode the reply to one request as a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketAnswer {
    pub(super) kind: PacketKind,
    pub(super) echo: Echo,
}

/// The kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketKind {
    Get,
    Touch,
    Put,
    /// The removal of the item that a too large `set` would have replaced.
    TooLarge,
    Delete,
    Arith,
}

impl PacketAnswer {
    #[inline]
    pub(crate) fn is_read(self) -> bool {
        self.kind == PacketKind::Get
    }

    #[inline]
    pub(crate) fn is_refusal(self) -> bool {
        self.kind == PacketKind::TooLarge
    }

    pub(crate) fn encode(self, request: &Request<'_>, reply: &Reply<'_>, out: &mut Vec<u8>) {
        let echo = self.echo;
        let unique = reply.item.map_or(0, |item| item.version);
        match (self.kind, reply.status) {
            // Whether there was an old item to remove does not matter: the value was refused.
            (PacketKind::TooLarge, _) => echo.error(out, reply::Status::TooLarge),
            // A read that found nothing has no item, whatever the status.
            (PacketKind::Get | PacketKind::Touch, status) if status != Status::OutOfMemory => {
                match &reply.item {
                    Some(item) => echo.item(out, request.key, item.flags, unique, item.value),
                    None => echo.miss(out, request.key),
                }
            }
            (PacketKind::Arith, Status::Done) => {
                let body = Body {
                    value: &reply.number.to_be_bytes(),
                    unique,
                    ..Body::default()
                };
                echo.done(out, &body);
            }
            (_, Status::Done) => {
                let body = Body {
                    unique,
                    ..Body::default()
                };
                echo.done(out, &body);
            }
            (_, status) => echo.error(out, self.flaw(status)),
        }
    }

    /// Returns the packet status of an error.
    fn flaw(self, status: Status) -> reply::Status {
        match status {
            Status::NotFound => reply::Status::NotFound,
            Status::Exists => reply::Status::Exists,
            // As in the other protocols: the longer number found no room.
            Status::TooLarge if self.kind == PacketKind::Arith => reply::Status::OutOfMemory,
            Status::TooLarge => reply::Status::TooLarge,
            Status::NonNumeric => reply::Status::NonNumeric,
            Status::OutOfMemory => reply::Status::OutOfMemory,
            // The store does not return which condition failed, but the opcode implies it.
            Status::Done | Status::NotStored | Status::BadKey => match self.echo.plain() {
                opcode::ADD => reply::Status::Exists,
                opcode::REPLACE => reply::Status::NotFound,
                _ => reply::Status::NotStored,
            },
        }
    }
}
