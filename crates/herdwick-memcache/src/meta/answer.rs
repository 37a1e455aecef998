//! Replies to meta commands: which line and which attributes of the item answer a reply of the store.

use herdwick_layout::item::{Form, footprint};
use herdwick_request::{Clock, Item, Op, Reply, Request, Status, number::Decimal};

use super::{
    flags::Flags,
    reply::{self, Echo, Shown},
};
use crate::text;

/// How to encode the reply to one meta command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaAnswer<'a> {
    kind: MetaKind,
    echo: Echo<'a>,
    /// The exptime that `t` shows for a hit, if not the item's own.
    shows: Option<u32>,
    /// The exptime that `t` shows for an item created on a miss.
    shows_made: u32,
}

/// The kind of command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetaKind {
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

impl<'a> MetaAnswer<'a> {
    /// Returns the answer that `flags` ask for; `base64` is whether the key was sent so.
    #[inline]
    pub(super) fn new(kind: MetaKind, flags: &Flags<'a>, base64: bool) -> Self {
        Self {
            kind,
            echo: Echo {
                opaque: flags.opaque,
                returns: flags.returns,
                quiet: flags.quiet,
                base64,
            },
            shows: flags.touch.filter(|_| flags.shows_touch),
            shows_made: flags.shows_made,
        }
    }

    #[cfg(test)]
    pub(super) fn echo(&self) -> &Echo<'a> {
        &self.echo
    }

    /// Returns the exptimes that `t` shows for a hit and for an item created on a miss.
    #[cfg(test)]
    pub(super) fn shown_times(&self) -> (Option<u32>, u32) {
        (self.shows, self.shows_made)
    }

    #[inline]
    pub(crate) fn is_read(&self) -> bool {
        matches!(self.kind, MetaKind::Get { .. } | MetaKind::Debug)
    }

    #[inline]
    pub(crate) fn is_refusal(&self) -> bool {
        self.kind == MetaKind::TooLarge
    }

    #[inline]
    pub(crate) fn is_debug(&self) -> bool {
        self.kind == MetaKind::Debug
    }

    /// Returns the part that is borrowed from the command: the opaque.
    pub(crate) fn opaque(&self) -> &'a [u8] {
        self.echo.opaque
    }

    /// Returns the same answer with another opaque.
    pub(crate) fn with_opaque(self, opaque: &[u8]) -> MetaAnswer<'_> {
        let echo = Echo {
            opaque,
            ..self.echo
        };
        MetaAnswer { echo, ..self }
    }

    pub(crate) fn encode(
        &self,
        clock: Clock,
        request: &Request<'_>,
        reply: &Reply<'_>,
        out: &mut Vec<u8>,
    ) {
        match self.kind {
            MetaKind::Get { value, unless } => {
                self.say_get(clock, request, reply, value, unless, out)
            }
            MetaKind::Put => self.say_put(request, reply, out),
            // Errors are neither suppressed by `q` nor followed by flags.
            MetaKind::TooLarge => out.extend_from_slice(text::TOO_LARGE),
            MetaKind::Delete => self.echo.bare(out, status(reply.status), request.key),
            MetaKind::Arith { value } => self.say_arith(clock, request, reply, value, out),
            MetaKind::Debug => match &reply.item {
                Some(item) => {
                    let shown = self.shown(clock, request.key, item, reply.made);
                    let len = item.value.len();
                    // What the item takes in the store, of which the value is a part.
                    let form = Form::of(item.flags, item.deadline, item.version, len);
                    let bytes = footprint(form, request.key.len(), len);
                    self.echo.debug(out, &shown, bytes);
                }
                None => out.extend_from_slice(reply::MISS),
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
            match reply.status {
                // A touch that had no room.
                Status::OutOfMemory => out.extend_from_slice(reply::OUT_OF_MEMORY),
                _ => self.echo.bare(out, reply::Status::Miss, request.key),
            }
            return;
        };
        // A client whose copy is the current item needs the attributes only.
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
            // If nothing was stored, it is the size of what was sent.
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
                let digits = Decimal::new(reply.number);
                let value = value.then(|| digits.as_bytes());
                let shown = self.shown(clock, request.key, item, reply.made);
                self.echo.counted(out, &Shown { value, ..shown });
            }
            (Status::NonNumeric, _) => out.extend_from_slice(text::NON_NUMERIC),
            (Status::TooLarge | Status::OutOfMemory, _) => {
                out.extend_from_slice(reply::OUT_OF_MEMORY);
            }
            (other, _) => self.echo.bare(out, status(other), request.key),
        }
    }

    fn shown<'b>(&self, clock: Clock, key: &'b [u8], item: &Item<'_>, made: bool) -> Shown<'b> {
        // Taken apart whole: a new attribute has to be shown here, or not.
        let Item {
            value,
            flags: client_flags,
            version: unique,
            deadline,
            fetched,
            last_access,
            won,
            stale,
            win_sent,
        } = *item;
        // As of the place of `t` among the flags, which is not always the final one.
        let deadline = match self.shows {
            _ if made => clock.deadline(self.shows_made),
            Some(exptime) => clock.deadline(exptime),
            None => deadline,
        };
        Shown {
            key,
            value: None,
            size: value.len(),
            client_flags,
            unique,
            left: deadline.left(clock.second),
            idle: clock.second.0.saturating_sub(last_access.0),
            fetched,
            won,
            stale,
            win_sent,
        }
    }
}

/// Converts a status to that of meta replies. The callers encode those without one as text lines.
fn status(status: Status) -> reply::Status {
    match status {
        Status::Done => reply::Status::Done,
        Status::NotFound => reply::Status::NotFound,
        Status::Exists => reply::Status::Exists,
        _ => reply::Status::NotStored,
    }
}
