//! The binary protocol: conversion of packets to requests, and of replies to packets.

use herdwick_memcache::{
    Mode,
    binary::{self, Body, Echo, Packet, Verb, opcode},
};
use herdwick_request::{Arith, Delete, Get, Op, Put, Reply, Request, Status};

use super::mode;

/// How to encode the reply to one request as a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(super) kind: Kind,
    echo: Echo,
}

/// The kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Get,
    Touch,
    Put,
    /// The removal of the item that a too large `set` would have replaced.
    TooLarge,
    Delete,
    Arith,
}

/// Converts a packet to a request without its key; `None` if it is not a request to one partition.
pub(super) fn request<'a>(packet: &Packet<'a>) -> Option<(Op<'a>, Answer)> {
    let (op, kind) = match packet.verb {
        Verb::Get { touch } => {
            let touches = packet.echo.plain() == opcode::TOUCH;
            let get = Get {
                touch,
                // The binary protocol has no flag for a recache win.
                unaware: true,
                ..Get::default()
            };
            (Op::Get(get), if touches { Kind::Touch } else { Kind::Get })
        }
        Verb::Put(put) => (Op::Put(storage(&put)), Kind::Put),
        Verb::Oversized { set: true } => (Op::Delete(Delete::default()), Kind::TooLarge),
        Verb::Delete { compare } => {
            let delete = Delete {
                compare,
                ..Delete::default()
            };
            (Op::Delete(delete), Kind::Delete)
        }
        Verb::Arith(arith) => (Op::Arith(count(arith)), Kind::Arith),
        _ => return None,
    };
    let echo = packet.echo;
    Some((op, Answer { kind, echo }))
}

/// Converts a storage packet. As in memcached, `add` and `replace` with a CAS unique are sets.
fn storage<'a>(put: &binary::Put<'a>) -> Put<'a> {
    let mode = match put.mode {
        Mode::Add | Mode::Replace if put.compare.is_some() => Mode::Set,
        mode => mode,
    };
    Put {
        mode: mode::mode(mode),
        value: put.value,
        flags: put.flags,
        exptime: put.exptime,
        compare: put.compare,
        ..Put::default()
    }
}

fn count(arith: binary::Arith) -> Arith {
    Arith {
        decrement: arith.decrement,
        delta: arith.delta,
        vivify: arith.vivify,
        initial: arith.initial,
        compare: arith.compare,
        ..Arith::default()
    }
}

impl Answer {
    pub(super) fn say(self, request: &Request<'_>, reply: &Reply<'_>, out: &mut Vec<u8>) {
        let echo = self.echo;
        let unique = reply.item.map_or(0, |item| item.version);
        match (self.kind, reply.status) {
            (Kind::TooLarge, _) => echo.error(out, binary::Status::TooLarge),
            (Kind::Get | Kind::Touch, _) => match &reply.item {
                Some(item) => echo.item(out, request.key, item.flags, unique, item.value),
                None => echo.miss(out, request.key),
            },
            (Kind::Arith, Status::Done) => {
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
    fn flaw(self, status: Status) -> binary::Status {
        match status {
            Status::NotFound => binary::Status::NotFound,
            Status::Exists => binary::Status::Exists,
            Status::TooLarge if self.kind == Kind::Arith => binary::Status::OutOfMemory,
            Status::TooLarge => binary::Status::TooLarge,
            Status::NonNumeric => binary::Status::NonNumeric,
            Status::OutOfMemory => binary::Status::OutOfMemory,
            Status::Done | Status::NotStored | Status::BadKey => match self.echo.plain() {
                opcode::ADD => binary::Status::Exists,
                opcode::REPLACE => binary::Status::NotFound,
                _ => binary::Status::NotStored,
            },
        }
    }
}
