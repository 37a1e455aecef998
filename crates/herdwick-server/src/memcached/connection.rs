//! The state of one client connection: stream, buffers, position in the input, pending work, and
//! the predicates by which it is scheduled and closed.

use std::io::{self, ErrorKind, Write};

use herdwick_herd::hello::{Claim, MAGIC};
use herdwick_memcache::{Decoder, GET_LINE_BYTES_MAX};

use super::{
    buffer::{INPUT_BYTES_MAX, Input, Output, Pool},
    gather::{Gather, OrderedReplies, Purpose},
    run::{Cursor, Progress},
    timeouts::ActivityTimer,
    upload_state::Upload,
};
use crate::{
    net::{auth::SaslExchange, stream::Stream},
    runtime::{
        dump::Dump,
        forward::{ReplyTo, WorkerCommand},
        request_timer::RequestTimer,
        upload_permits::Permit,
    },
    settings::config::Protocol,
    telemetry::snapshot::WorkerCounters,
};

/// A connection that holds no more than this is not closed to free memory.
pub(super) const SMALL_BYTES: usize = 4 << 10;

/// One client connection.
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    pub(crate) generation: u32,
    pub(crate) decoder: Decoder,
    pub(crate) input: Input,
    pub(crate) output: Output,
    pub(crate) cursor: Cursor,
    /// The input is not decoded before it has this many bytes.
    need: usize,
    /// Bytes of the stream that are to be dropped.
    discard: u64,
    /// Pending replies of other workers; no other command is executed meanwhile.
    pub(crate) gather: Option<Gather>,
    /// A large value that is being received; no other command is executed meanwhile.
    pub(crate) upload: Option<Box<Upload>>,
    /// Whether it may hold much memory.
    pub(crate) room: Room,
    /// It may hold a `get` line of the maximum length, and is counted as if it did.
    pub(crate) long_line: bool,
    /// The topics that it will watch once its earlier commands are answered.
    pub(crate) watches: Option<u32>,
    /// Requests that were put off, and the replies behind the first; they precede the next command.
    pub(crate) behind: Option<Box<OrderedReplies>>,
    /// A command for which no forwarded batch was free, and what its replies are for; likewise.
    pub(crate) command: Option<Box<(WorkerCommand, Purpose)>>,
    /// A dump that continues before the next command.
    pub(crate) dump: Option<Dump>,
    /// It is in the queue of connections to be served.
    pub(crate) queued: bool,
    /// A read may return data.
    pub(crate) readable: bool,
    /// The peer has closed its side: a read will return the end of the stream.
    pub(crate) half_closed: bool,
    /// No more reads; it is closed when pending work is done.
    pub(crate) closing: bool,
    /// It is closed because of a protocol error.
    pub(crate) faulty: bool,
    /// The server drains: it is closed once the bytes that have arrived are answered.
    draining: bool,
    /// No byte of its input was used yet.
    opening: bool,
    /// It began with a claim, so it belongs to a lease.
    pub(crate) claims: bool,
    /// It has authenticated, or need not.
    pub(crate) admitted: bool,
    /// Of a client that knows the server by its registration, the orders of the fence at which it was admitted.
    pub(crate) member: Option<u64>,
    /// What its SASL exchange waits for.
    pub(crate) exchange: Option<SaslExchange>,
    /// The peer has closed both directions or reset the connection, and receives nothing more.
    pub(crate) gone: bool,
    /// Its memory, as last counted.
    pub(crate) share: Share,
    /// Its timing.
    pub(crate) activity: ActivityTimer,
    /// How long its requests take, if that is measured.
    pub(super) timer: RequestTimer,
}

/// Whether a connection may continue that needs much memory, for a large value or a long line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// It needs no more than it has.
    Enough,
    /// It needs room and is not queued yet.
    Wanted,
    /// It is in the queue for room.
    Waiting,
    /// It has been granted room.
    Granted,
}

/// The result of a read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Bytes moved, or there were none to move.
    Moved,
    /// The peer has to send or receive first.
    Blocked,
    /// Close the connection.
    Broken,
}

/// The memory of a connection, as last counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Share {
    pub(super) buffers: usize,
    pub(super) besides: usize,
    pub(super) waits: bool,
}

impl Share {
    pub(super) fn of(connection: &Connection) -> Self {
        Self {
            buffers: connection.buffers(),
            besides: connection.stream.memory(),
            waits: connection.waits(),
        }
    }

    pub(super) fn is_holder(self) -> bool {
        !self.waits && self.buffers > SMALL_BYTES
    }
}

impl Connection {
    pub(crate) fn new(stream: Stream, generation: u32, decoder: Decoder) -> Self {
        Self {
            stream,
            generation,
            decoder,
            input: Input::default(),
            output: Output::default(),
            cursor: Cursor::default(),
            need: 1,
            discard: 0,
            gather: None,
            behind: None,
            command: None,
            upload: None,
            room: Room::Enough,
            long_line: false,
            dump: None,
            watches: None,
            queued: false,
            readable: true,
            half_closed: false,
            closing: false,
            faulty: false,
            draining: false,
            opening: true,
            claims: false,
            admitted: true,
            member: None,
            exchange: None,
            gone: false,
            share: Share::default(),
            activity: ActivityTimer::default(),
            timer: RequestTimer::default(),
        }
    }

    /// Returns the ticket by which other workers return its replies; its own place is `place`.
    pub(crate) fn ticket(&self, place: u32) -> ReplyTo {
        ReplyTo {
            connection: place,
            generation: self.generation,
            caller: self.stream.number(),
            slot: 0,
        }
    }

    /// Reads once.
    pub(crate) fn read(
        &mut self,
        pool: &mut Pool,
        limit: usize,
        counters: &mut WorkerCounters,
    ) -> Flow {
        let taken = self.input.read(&mut self.stream, pool, limit);
        self.took(taken, counters)
    }

    /// Records the result of a read. The second value is whether there may be more to read.
    pub(crate) fn took(
        &mut self,
        taken: io::Result<(usize, bool)>,
        counters: &mut WorkerCounters,
    ) -> Flow {
        match taken {
            Ok((0, _)) => {
                // The end of the stream. What was received before it is still executed and
                // answered.
                self.readable = false;
                self.closing = true;
                Flow::Moved
            }
            Ok((count, filled)) => {
                // A short read has emptied the socket, and the next edge announces more. But no
                // further edge follows a half-close, and draining has to read up to the end.
                self.readable =
                    filled || self.half_closed || self.draining || self.stream.has_more();
                counters.bytes_read += count as u64;
                self.activity.came(count);
                Flow::Moved
            }
            Err(error) => self.trouble(error.kind(), counters),
        }
    }

    /// Writes once.
    pub(crate) fn write(&mut self, pool: &mut Pool, counters: &mut WorkerCounters) -> Flow {
        // TLS may hold records that the socket did not take, although all replies have been
        // encrypted.
        if self.output.is_empty() {
            return match self.stream.flush() {
                Ok(()) => Flow::Moved,
                Err(error) if error.kind() == ErrorKind::WouldBlock => Flow::Blocked,
                Err(error) => self.trouble(error.kind(), counters),
            };
        }
        match self.output.write(&mut self.stream, pool) {
            Ok(count) => {
                counters.bytes_written += count as u64;
                self.activity.went(count);
                if self.output.is_empty() {
                    Flow::Moved
                } else {
                    // A write that took a part has filled the socket's buffer: another one would
                    // fail with EAGAIN.
                    Flow::Blocked
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Flow::Blocked,
            Err(error) => self.trouble(error.kind(), counters),
        }
    }

    fn trouble(&mut self, kind: ErrorKind, counters: &mut WorkerCounters) -> Flow {
        match kind {
            ErrorKind::WouldBlock => {
                self.readable = false;
                // While the server drains, an empty socket is the end: all that had arrived is
                // read.
                self.closing |= self.draining;
                Flow::Blocked
            }
            // The next pass tries again.
            ErrorKind::Interrupted => Flow::Moved,
            // A reply over UDP beyond its maximum length.
            ErrorKind::FileTooLarge => {
                counters.udp_amplification_refused += 1;
                Flow::Broken
            }
            kind => {
                counters.closed_errors += 1;
                // `TlsStream` reports so a peer that breaks the protocol.
                counters.ssl_proto_errors += u64::from(kind == ErrorKind::InvalidData);
                Flow::Broken
            }
        }
    }

    /// Returns whether there is input or a pending step to work on.
    pub(crate) fn has_work(&self) -> bool {
        let here = self.input.data().len();
        if let Some(upload) = &self.upload {
            return upload.has_work(here);
        }
        self.dump.is_some()
            || self.has_put_off()
            || self.cursor.ahead.is_some()
            || here > 0 && (self.discard > 0 || here >= self.need)
    }

    /// Returns whether decoded requests, or a command, are still to be executed.
    pub(crate) fn has_put_off(&self) -> bool {
        self.behind.is_some() || self.command.is_some()
    }

    /// Returns whether no request waits for its reply, and all replies are with the socket.
    pub(super) fn has_sent_replies(&self) -> bool {
        let gathers = |gather: &Gather| matches!(gather.purpose, Purpose::Replies(_));
        self.output.is_empty()
            && self.stream.owed() == 0
            && self.behind.is_none()
            && !self.gather.as_ref().is_some_and(gathers)
    }

    /// Returns whether a read may return data.
    pub(crate) fn may_read(&self) -> bool {
        self.readable && !self.closing
    }

    /// Returns whether it waits for room, in the budget or in a store.
    pub(crate) fn waits(&self) -> bool {
        self.room == Room::Waiting
            || self
                .upload
                .as_ref()
                .is_some_and(|upload| upload.is_queued())
    }

    /// Returns whether its waiting is futile: the peer has gone, or has closed its side before the
    /// value is complete. A peer that has closed its side after a complete value still gets the
    /// reply.
    pub(crate) fn waits_in_vain(&self) -> bool {
        if !self.waits() {
            return false;
        }
        let Some(upload) = &self.upload else {
            return self.gone;
        };
        match self.stream.unread() {
            // What the socket holds counts as received: a peer may close its side after it has sent
            // everything.
            Some(unread) if self.gone || self.half_closed => {
                unread + self.input.data().len() < upload.remains()
            }
            _ => self.gone,
        }
    }

    /// Returns whether no request, upload or reply is pending, and no block is on its way.
    pub(crate) fn is_quiet(&self) -> bool {
        self.gather.is_none()
            && !self.waits()
            && self.upload.is_none()
            && !self.has_put_off()
            && self.output.is_empty()
            && !self.awaits_block()
    }

    /// Returns whether it waits for the rest of a block, to be stored or dropped. A line without an
    /// end is no block: of that, one byte more is awaited.
    fn awaits_block(&self) -> bool {
        let here = self.input.data().len();
        self.discard > 0 || here > 0 && self.need > here + 1
    }

    /// Returns the partition to which it uploads, and its permit there.
    pub(crate) fn permit(&self) -> Option<(usize, Permit)> {
        self.upload.as_ref()?.permit()
    }

    /// Returns whether the server has done all it can and waits for the peer to send or receive.
    pub(crate) fn peer_is_late(&self) -> bool {
        // True of an idle connection, too. It holds no permit and little memory: others do not wait
        // for it.
        let served = !self.queued && self.gather.is_none() && !self.waits();
        served && (!self.output.is_empty() || !self.readable)
    }

    /// Returns the bytes of replies in its socket that the peer has not taken; `None` if no reply
    /// is pending, or the number is unknown.
    pub(super) fn untaken(&self) -> Option<usize> {
        if self.output.is_empty() {
            return None;
        }
        self.stream.untaken()
    }

    /// Returns whether the stream begins with a claim, and if so whether the claim is complete; the
    /// rest is awaited like that of any command. No authentication precedes it, because the token
    /// in a claim proves that its client was admitted before.
    pub(crate) fn begins_with_claim(&mut self) -> Option<bool> {
        // A datagram belongs to no connection that a lease could keep.
        let lasts = !matches!(self.stream, Stream::Datagram(_));
        let claims = lasts && self.opening && self.input.data().starts_with(&MAGIC);
        claims.then(|| {
            self.need = Claim::FRAME_BYTES;
            self.has_work()
        })
    }

    /// Returns whether the stream begins with a protocol that is not enabled.
    pub(crate) fn begins_otherwise(&self, spoken: Protocol) -> bool {
        let first = self.input.data().first();
        self.opening && first.is_some_and(|&byte| !spoken.may_begin_with(byte))
    }

    /// Returns whether the rest of a command from the peer is all that it waits for.
    pub(crate) fn is_half_sent(&self) -> bool {
        self.gather.is_none()
            && self.output.is_empty()
            && !self.waits()
            && !self.has_put_off()
            && (self.discard > 0 || self.is_amid() && !self.has_work() || self.lacks_value())
    }

    /// Returns whether an upload is incomplete.
    fn lacks_value(&self) -> bool {
        self.upload.as_ref().is_some_and(|upload| upload.lacks())
    }

    /// Returns whether it is in the middle of a command.
    fn is_amid(&self) -> bool {
        self.upload.is_some() || !self.input.data().is_empty()
    }

    /// Returns the bytes of memory for input and output. The memory of an idle TLS session is not
    /// among them.
    pub(crate) fn buffers(&self) -> usize {
        let behind = self.behind.as_ref().map_or(0, |replies| replies.memory());
        let gathered = self.gather.as_ref().map_or(0, Gather::memory);
        let line = if self.long_line {
            GET_LINE_BYTES_MAX
        } else {
            0
        };
        let input = self.input.memory().max(line);
        let exchange = self.exchange.as_ref().map_or(0, SaslExchange::memory);
        input + self.output.memory() + self.stream.owed() + behind + gathered + exchange
    }

    /// Reduces the memory to what the input needs, at the end of a turn.
    pub(crate) fn rest(&mut self, pool: &mut Pool) {
        self.input.rest(pool);
        // Until the line is used up: less than this every connection may hold.
        self.long_line &= self.input.data().len() >= INPUT_BYTES_MAX;
    }

    /// Drops input that is to be dropped; returns whether all of it has been.
    pub(crate) fn discard(&mut self) -> bool {
        let here = self.input.data().len();
        // A block to be dropped may be longer than the address space: then all that is here is part
        // of it.
        let count = usize::try_from(self.discard).map_or(here, |discard| discard.min(here));
        self.input.consume(count);
        self.discard -= count as u64;
        self.discard == 0
    }

    /// Moves on in the input by a round's progress, and records the commands taken.
    pub(crate) fn advance(&mut self, progress: Progress) {
        self.activity.used(progress.cursor.at);
        self.pass(progress);
    }

    /// Moves on in the input without recording a command: that of an upload is taken when its value
    /// is complete.
    pub(crate) fn pass(&mut self, progress: Progress) {
        if progress.need == 1 && !progress.holds_line {
            // It is not in the middle of the line that the decoder has searched last.
            self.decoder.check_again();
        }
        let (used, cursor) = progress.cursor.rebased();
        // A claim or another protocol is looked for at the first byte only. A round that used
        // nothing does not end that.
        self.opening &= used == 0;
        self.input.consume(used);
        self.cursor = cursor;
        self.need = progress.need;
        self.discard = progress.discard;
    }

    /// Sets the bytes of input needed before the next decoding.
    pub(crate) fn await_bytes(&mut self, need: usize) {
        self.need = need;
    }

    /// Drops the input and stops reading; the connection is closed when pending work is done.
    pub(crate) fn hang_up(&mut self) {
        let left = self.input.data().len();
        self.advance(Progress::past(left));
        self.readable = false;
        self.closing = true;
    }

    /// Begins to drain: the connection is closed once what the socket holds is answered.
    pub(crate) fn drain(&mut self) {
        self.draining = true;
        // A read has to be tried: where nothing has come, its EAGAIN is the end (`trouble`).
        self.readable = true;
    }

    /// Returns whether it may be closed.
    pub(crate) fn is_done(&self) -> bool {
        self.closing && self.gather.is_none() && self.output.is_empty() && !self.has_work()
    }
}
