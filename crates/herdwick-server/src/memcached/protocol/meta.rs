//! Meta commands: conversion to requests, and of replies to lines with flags.

use herdwick_layout::item::footprint;
use herdwick_memcache::{
    Mode,
    meta::{self, Echo, Flags, Meta, Shown, Verb},
    text::{self, Digits},
};
use herdwick_request::{Arith, Clock, Delete, Get, Item, Op, Put, Reply, Request, Status};

use super::mode;

/// How to encode the reply to one meta command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer<'a> {
    pub(super) kind: Kind,
    echo: Echo<'a>,
    /// The exptime that `t` shows for a hit, if not the item's own.
    shows: Option<u32>,
    /// The exptime that `t` shows for an item created on a miss.
    shows_made: u32,
}

/// The kind of command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Get {
        value: bool,
        /// Omit the value if the item's CAS unique is this.
        unless: Option<u64>,
    },
    Put,
    /// The removal of the item that a too large `ms` would have replaced.
    TooLarge,
    Delete,
    Arith {
        value: bool,
    },
    Debug,
}

/// Converts a meta command to a request without its key.
pub(super) fn request<'a>(meta: &Meta<'a>) -> (Op<'a>, Answer<'a>) {
    let flags = &meta.flags;
    let value = flags.value;
    let (op, kind) = match meta.verb {
        Verb::Get => {
            let unless = flags.compare;
            (Op::Get(get(flags)), Kind::Get { value, unless })
        }
        Verb::Put { mode, value } => (Op::Put(put(mode, value, flags)), Kind::Put),
        Verb::Oversized => (Op::Delete(Delete::default()), Kind::TooLarge),
        Verb::Delete => (Op::Delete(delete(flags)), Kind::Delete),
        Verb::Arith { decrement } => (Op::Arith(arith(decrement, flags)), Kind::Arith { value }),
        Verb::Debug => {
            let peek = Get {
                quiet_access: true,
                unaware: true,
                ..Get::default()
            };
            (Op::Get(peek), Kind::Debug)
        }
    };
    let answer = Answer {
        kind,
        echo: Echo::new(flags, meta.key.base64),
        shows: flags.touch.filter(|_| flags.shows_touch),
        shows_made: flags.shows_made,
    };
    (op, answer)
}

fn get(flags: &Flags<'_>) -> Get {
    Get {
        touch: flags.touch,
        vivify: flags.vivify.map(|_| flags.made),
        recache: flags.recache,
        touch_first: flags.touch_first,
        unaware: false,
        version: flags.unique,
        quiet_access: flags.no_update,
    }
}

fn put<'a>(mode: Mode, value: &'a [u8], flags: &Flags<'_>) -> Put<'a> {
    Put {
        mode: mode::mode(mode),
        value,
        flags: flags.client_flags,
        exptime: flags.touch.unwrap_or(0),
        compare: flags.compare,
        // For `ms` only, a version of 0 means none, as in memcached.
        version: flags.unique.filter(|&unique| unique != 0),
        invalidate: flags.invalidate,
        vivify: flags.vivify,
        staged: None,
    }
}

fn delete(flags: &Flags<'_>) -> Delete {
    Delete {
        compare: flags.compare,
        version: flags.unique,
        invalidate: flags.invalidate,
        exptime: flags.touch,
        drop_value: flags.drop_value,
        flags: flags.client_flags,
    }
}

fn arith(decrement: bool, flags: &Flags<'_>) -> Arith {
    Arith {
        decrement,
        delta: flags.delta.unwrap_or(1),
        vivify: flags.vivify.map(|_| flags.made),
        initial: flags.initial,
        touch: flags.touch,
        compare: flags.compare,
        version: flags.unique,
    }
}

impl<'a> Answer<'a> {
    /// Returns the part that is borrowed from the command: the opaque.
    pub(super) fn opaque(&self) -> &'a [u8] {
        self.echo.opaque
    }

    /// Returns the same answer with another opaque.
    pub(super) fn with_opaque(self, opaque: &[u8]) -> Answer<'_> {
        let echo = Echo {
            opaque,
            ..self.echo
        };
        Answer { echo, ..self }
    }

    pub(super) fn say(
        &self,
        clock: Clock,
        request: &Request<'_>,
        reply: &Reply<'_>,
        out: &mut Vec<u8>,
    ) {
        match self.kind {
            Kind::Get { value, unless } => self.say_get(clock, request, reply, value, unless, out),
            Kind::Put => self.say_put(request, reply, out),
            Kind::TooLarge => out.extend_from_slice(text::TOO_LARGE),
            Kind::Delete => self.echo.bare(out, status(reply.status), request.key),
            Kind::Arith { value } => self.say_arith(clock, request, reply, value, out),
            Kind::Debug => match &reply.item {
                Some(item) => {
                    let shown = self.shown(clock, request.key, item, reply.made);
                    let bytes = footprint(request.key.len(), item.value.len());
                    self.echo.debug(out, &shown, bytes);
                }
                None => out.extend_from_slice(meta::MISS),
            },
        }
    }

    fn say_get(
        &self,
        clock: Clock,
        request: &Request<'_>,
        reply: &Reply<'_>,
        value: bool,
        unless: Option<u64>,
        out: &mut Vec<u8>,
    ) {
        let Some(item) = &reply.item else {
            self.echo.bare(out, meta::Status::Miss, request.key);
            return;
        };
        let value = (value && unless != Some(item.version)).then_some(item.value);
        let shown = self.shown(clock, request.key, item, reply.made);
        self.echo.hit(out, &Shown { value, ..shown });
    }

    fn say_put(&self, request: &Request<'_>, reply: &Reply<'_>, out: &mut Vec<u8>) {
        let sent = match request.op {
            Op::Put(put) => put.value_len(),
            _ => 0,
        };
        let shown = Shown {
            key: request.key,
            size: reply.item.map_or(sent, |item| item.value.len()),
            unique: reply.item.map_or(0, |item| item.version),
            ..Shown::default()
        };
        match reply.status {
            Status::TooLarge => out.extend_from_slice(text::TOO_LARGE),
            Status::OutOfMemory => out.extend_from_slice(text::OUT_OF_MEMORY),
            other => self.echo.stored(out, status(other), &shown),
        }
    }

    fn say_arith(
        &self,
        clock: Clock,
        request: &Request<'_>,
        reply: &Reply<'_>,
        value: bool,
        out: &mut Vec<u8>,
    ) {
        match (reply.status, &reply.item) {
            (Status::Done, Some(item)) => {
                let digits = Digits::new(reply.number);
                let value = value.then(|| digits.as_bytes());
                let shown = self.shown(clock, request.key, item, reply.made);
                self.echo.counted(out, &Shown { value, ..shown });
            }
            (Status::NonNumeric, _) => out.extend_from_slice(text::NON_NUMERIC),
            (Status::TooLarge | Status::OutOfMemory, _) => {
                out.extend_from_slice(meta::OUT_OF_MEMORY);
            }
            (other, _) => self.echo.bare(out, status(other), request.key),
        }
    }

    fn shown<'b>(&self, clock: Clock, key: &'b [u8], item: &Item<'_>, made: bool) -> Shown<'b> {
        let deadline = match self.shows {
            _ if made => clock.deadline(self.shows_made),
            Some(exptime) => clock.deadline(exptime),
            None => item.deadline,
        };
        Shown {
            key,
            value: None,
            size: item.value.len(),
            client_flags: item.flags,
            unique: item.version,
            left: deadline.left(clock.second),
            idle: clock.second.0.saturating_sub(item.last_access.0),
            fetched: item.fetched,
            won: item.won,
            stale: item.stale,
            win_sent: item.win_sent,
        }
    }
}

/// Converts a status to that of meta replies. The callers encode those without one as text lines.
fn status(status: Status) -> meta::Status {
    match status {
        Status::Done => meta::Status::Done,
        Status::NotFound => meta::Status::NotFound,
        Status::Exists => meta::Status::Exists,
        _ => meta::Status::NotStored,
    }
}
