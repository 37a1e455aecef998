//! Classic text: conversion of commands to requests, and of replies to lines.

use herdwick_memcache::{Command, Put as Storage, Verb, text};
use herdwick_request::{Arith, Delete, Get, Mode, Op, Put, Reply, Status};

/// How to encode the reply to one request in classic text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(super) shape: Shape,
    /// Suppress the reply.
    pub(super) noreply: bool,
}

/// The kind of reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// `VALUE …`, or nothing on a miss; followed by `END` if `last`.
    Value {
        with_cas: bool,
        last: bool,
    },
    /// `STORED` or the reason against it.
    Stored,
    /// The same, for `append` and `prepend`.
    Extended,
    /// The removal of the item that a too large `set` would have replaced.
    TooLarge,
    Deleted,
    Touched,
    Number,
}

impl Answer {
    /// Returns the reply to one key of a `get`.
    pub(crate) fn value(with_cas: bool, last: bool) -> Self {
        Self {
            shape: Shape::Value { with_cas, last },
            noreply: false,
        }
    }

    pub(super) fn say(self, key: &[u8], reply: &Reply<'_>, out: &mut Vec<u8>) {
        let line = match self.shape {
            Shape::Value { with_cas, last } => {
                if let (Status::Done, Some(item)) = (reply.status, &reply.item) {
                    let cas = with_cas.then_some(item.version);
                    text::value(out, key, item.flags, cas, item.value);
                }
                if last { text::END } else { &[] }
            }
            Shape::Number if reply.status == Status::Done => {
                if !self.noreply {
                    text::number(out, reply.number);
                }
                &[]
            }
            shape => line(shape, reply.status),
        };
        if !self.noreply {
            herdwick_mem::append(out, line);
        }
    }
}

/// Returns the reply line of a mutation.
fn line(shape: Shape, status: Status) -> &'static [u8] {
    match (shape, status) {
        (Shape::Deleted, Status::Done) => text::DELETED,
        (Shape::Touched, Status::Done) => text::TOUCHED,
        (Shape::Deleted | Shape::Touched, _) => text::NOT_FOUND,
        (Shape::TooLarge, _) => text::TOO_LARGE,
        (Shape::Number, Status::TooLarge) => text::OUT_OF_MEMORY,
        // memcached gives no other reason when the joined value is too large.
        (Shape::Extended, Status::TooLarge) => text::NOT_STORED,
        (_, Status::Done) => text::STORED,
        (_, Status::NotFound) => text::NOT_FOUND,
        (_, Status::NotStored) => text::NOT_STORED,
        (_, Status::Exists) => text::EXISTS,
        (_, Status::TooLarge) => text::TOO_LARGE,
        (_, Status::OutOfMemory) => text::OUT_OF_MEMORY,
        (_, Status::NonNumeric) => text::NON_NUMERIC,
        (_, Status::BadKey) => text::ERROR,
    }
}

/// Converts a command other than `get` to its key, request and answer; `None` if it is not a request to one
/// partition.
pub(super) fn request<'a>(command: &Command<'a>) -> Option<(&'a [u8], Op<'a>, Answer)> {
    let (key, op, shape, noreply) = match *command {
        Command::Put(put) => (put.key, storage(&put), storage_shape(put.verb), put.noreply),
        Command::Arith(arith) => {
            let op = Op::Arith(Arith {
                decrement: arith.decrement,
                delta: arith.delta,
                ..Arith::default()
            });
            (arith.key, op, Shape::Number, arith.noreply)
        }
        Command::Touch(touch) => {
            let op = Op::Get(Get {
                touch: Some(touch.exptime),
                unaware: true,
                ..Get::default()
            });
            (touch.key, op, Shape::Touched, touch.noreply)
        }
        Command::Delete(delete) => {
            let op = Op::Delete(Delete::default());
            (delete.key, op, Shape::Deleted, delete.noreply)
        }
        Command::Oversized(put) if put.verb == Verb::Set => {
            let op = Op::Delete(Delete::default());
            (put.key, op, Shape::TooLarge, put.noreply)
        }
        _ => return None,
    };
    Some((key, op, Answer { shape, noreply }))
}

fn storage<'a>(put: &Storage<'a>) -> Op<'a> {
    let (mode, compare) = match put.verb {
        Verb::Set => (Mode::Set, None),
        Verb::Add => (Mode::Add, None),
        Verb::Replace => (Mode::Replace, None),
        Verb::Append => (Mode::Append, None),
        Verb::Prepend => (Mode::Prepend, None),
        Verb::Cas(unique) => (Mode::Set, Some(unique)),
    };
    Op::Put(Put {
        mode,
        value: put.value,
        flags: put.flags,
        exptime: put.exptime,
        compare,
        ..Put::default()
    })
}

fn storage_shape(verb: Verb) -> Shape {
    match verb {
        Verb::Append | Verb::Prepend => Shape::Extended,
        Verb::Set | Verb::Add | Verb::Replace | Verb::Cas(_) => Shape::Stored,
    }
}
