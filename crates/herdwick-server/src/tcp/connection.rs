use std::io::{self, ErrorKind, Write};

use herdwick_herd::hello::{Claim, MAGIC};
use herdwick_memcache::{Decoder, GET_LINE_BYTES_MAX};

use super::{
    INPUT_BYTES_MAX,
    activity::ActivityTimer,
    budget::Share,
    buffer::{Input, Output, Pool},
    gather::{Gather, Replies},
    lots::Lot,
    run::{Cursor, Progress},
    stream::Stream,
    upload::Upload,
};
use crate::{config::Protocol, counters::WorkerCounters, dump::Dump, forward::Ticket};

/// A client, and where the conversation with it stands.
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    pub(crate) generation: u32,
    pub(crate) decoder: Decoder,
    pub(crate) input: Input,
    pub(crate) output: Output,
    pub(crate) cursor: Cursor,
    /// The input is not worth looking at before it has this many bytes.
    need: usize,
    /// How much of the stream is to be dropped unread.
    swallow: u64,
    /// What other workers are doing for it; nothing else happens meanwhile.
    pub(crate) gather: Option<Gather>,
    /// A large value on its transport; nothing else happens meanwhile.
    pub(crate) upload: Option<Box<Upload>>,
    /// Whether it may hold much.
    pub(crate) room: Room,
    /// It may hold the longest `get` line, and is counted as if it did.
    pub(crate) long_line: bool,
    /// The topics that it watches, once what it has asked before is answered.
    pub(crate) watches: Option<u32>,
    /// Replies behind one that found no room, whose request is the next to be read.
    pub(crate) behind: Option<Box<Replies>>,
    /// A dump that goes on before the next command.
    pub(crate) dump: Option<Dump>,
    /// In the list of those to be served.
    pub(crate) queued: bool,
    /// A read may find something.
    pub(crate) readable: bool,
    /// The peer has closed its side: reads come to an end.
    pub(crate) half_closed: bool,
    /// No more reads: hang up when what is under way is done.
    pub(crate) closing: bool,
    /// Hung up on for what it said.
    pub(crate) faulty: bool,
    /// Answers what has arrived, then hangs up.
    draining: bool,
    /// Nothing of what it has said was used yet.
    opening: bool,
    /// It began with a claim: it is a lease's.
    pub(crate) claims: bool,
    /// Has shown a password, or needs none.
    pub(crate) admitted: bool,
    /// The peer has closed both sides, or broken off: it hears nothing any more.
    pub(crate) gone: bool,
    /// What it holds in memory, as last counted.
    pub(crate) share: Share,
    /// How its conversation goes in time.
    pub(crate) activity: ActivityTimer,
}

/// Whether a connection may go on that needs much memory: for a large value, or a long line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// It needs no more than it has.
    Enough,
    /// It goes on when there is room.
    Wanted,
    /// It is in the queue of those that wait for room.
    Waiting,
    /// There is room for it.
    Granted,
}

/// What became of a read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Something moved, or there was nothing to move.
    Moved,
    /// The peer has to move first.
    Blocked,
    /// Hang up.
    Broken,
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
            swallow: 0,
            gather: None,
            behind: None,
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
            gone: false,
            share: Share::default(),
            activity: ActivityTimer::default(),
        }
    }

    /// What its requests are known by elsewhere; it has this `place`.
    pub(crate) fn ticket(&self, place: u32) -> Ticket {
        Ticket {
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

    /// What became of a read; the second value says whether there may be more.
    pub(crate) fn took(
        &mut self,
        taken: io::Result<(usize, bool)>,
        counters: &mut WorkerCounters,
    ) -> Flow {
        match taken {
            Ok((0, _)) => {
                self.readable = false;
                self.closing = true;
                Flow::Moved
            }
            Ok((count, filled)) => {
                // A short read has emptied the socket; more announces itself.
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
                self.closing |= self.draining;
                Flow::Blocked
            }
            // The next pass tries again.
            ErrorKind::Interrupted => Flow::Moved,
            // An answer over UDP that is longer than it may be.
            ErrorKind::FileTooLarge => {
                counters.udp_withheld += 1;
                Flow::Broken
            }
            kind => {
                counters.closed_errors += 1;
                counters.ssl_proto_errors += u64::from(kind == ErrorKind::InvalidData);
                Flow::Broken
            }
        }
    }

    /// Whether there is input that has not been looked at.
    pub(crate) fn has_work(&self) -> bool {
        let here = self.input.data().len();
        if let Some(upload) = &self.upload {
            return upload.has_work(here);
        }
        self.dump.is_some()
            || self.cursor.rest.is_some()
            || here > 0 && (self.swallow > 0 || here >= self.need)
    }

    /// Whether a read may find something.
    pub(crate) fn may_read(&self) -> bool {
        self.readable && !self.closing
    }

    /// Whether it waits for room, here or in a log.
    pub(crate) fn waits(&self) -> bool {
        self.room == Room::Waiting
            || self
                .upload
                .as_ref()
                .is_some_and(|upload| upload.is_queued())
    }

    /// Whether nothing can come of its waiting: the peer has gone, or has ended what it sends
    /// before the value is whole. One that has closed its side only still gets its answer.
    pub(crate) fn waits_in_vain(&self) -> bool {
        if !self.waits() {
            return false;
        }
        let Some(upload) = &self.upload else {
            return self.gone;
        };
        match self.stream.unread() {
            Some(unread) if self.gone || self.half_closed => {
                unread + self.input.data().len() < upload.remains()
            }
            _ => self.gone,
        }
    }

    /// Whether nothing is asked for, on its transport, or on its way out.
    pub(crate) fn is_quiet(&self) -> bool {
        self.gather.is_none() && !self.waits() && self.upload.is_none() && self.output.is_empty()
    }

    /// The partition where a large value of its is under way, and the lot it has there.
    pub(crate) fn lot(&self) -> Option<(usize, Lot)> {
        self.upload.as_ref()?.lot()
    }

    /// Whether the peer has to move, and the server has done all it can.
    pub(crate) fn peer_is_late(&self) -> bool {
        let served = !self.queued && self.gather.is_none() && !self.waits();
        served && (!self.output.is_empty() || !self.readable)
    }

    /// Whether it begins with a claim, and if so, whether all of that is here: the rest is waited
    /// for like that of any command. A token is proof that its client was let in before.
    pub(crate) fn begins_with_claim(&mut self) -> Option<bool> {
        let lasts = !matches!(self.stream, Stream::Datagram(_));
        let claims = lasts && self.opening && self.input.data().starts_with(&MAGIC);
        claims.then(|| {
            self.need = Claim::FRAME_BYTES;
            self.has_work()
        })
    }

    /// Whether it begins with a protocol that is not spoken here.
    pub(crate) fn begins_otherwise(&self, spoken: Protocol) -> bool {
        let first = self.input.data().first();
        self.opening && first.is_some_and(|&byte| !spoken.may_begin_with(byte))
    }

    /// Whether the peer owes the rest of a command, and nothing but that is waited for.
    pub(crate) fn is_half_sent(&self) -> bool {
        self.gather.is_none()
            && self.output.is_empty()
            && !self.waits()
            && (self.swallow > 0 || self.is_amid() && !self.has_work() || self.lacks_value())
    }

    /// Whether a large value of its has not come to its end, whatever has come of it.
    fn lacks_value(&self) -> bool {
        self.upload.as_ref().is_some_and(|upload| upload.lacks())
    }

    /// Whether it is in the middle of a command.
    fn is_amid(&self) -> bool {
        self.upload.is_some() || !self.input.data().is_empty()
    }

    /// Bytes of memory for what has come and what is to go: an idle TLS session has none.
    pub(crate) fn buffers(&self) -> usize {
        let behind = self.behind.as_ref().map_or(0, |replies| replies.memory());
        let gathered = self.gather.as_ref().map_or(0, Gather::memory);
        let line = if self.long_line {
            GET_LINE_BYTES_MAX
        } else {
            0
        };
        let input = self.input.memory().max(line);
        input + self.output.memory() + self.stream.owed() + behind + gathered
    }

    /// The end of a turn: keeps no more memory than what has come needs.
    pub(crate) fn rest(&mut self, pool: &mut Pool) {
        self.input.rest(pool);
        self.long_line &= self.input.data().len() >= INPUT_BYTES_MAX;
    }

    /// Drops what is to be swallowed of the input; whether all of it is gone.
    pub(crate) fn swallow(&mut self) -> bool {
        let here = self.input.data().len();
        let count = usize::try_from(self.swallow).map_or(here, |swallow| swallow.min(here));
        self.input.consume(count);
        self.swallow -= count as u64;
        self.swallow == 0
    }

    /// Moves on in the input, or stays at a command that was not seen to.
    pub(crate) fn advance(&mut self, progress: Progress) {
        self.activity.used(progress.cursor.at);
        self.pass(progress);
    }

    /// Moves on to a large value; its command is not done before that has come.
    pub(crate) fn pass(&mut self, progress: Progress) {
        if progress.need == 1 {
            // It does not wait in the middle of the line that was looked at last.
            self.decoder.check_again();
        }
        let (used, cursor) = progress.cursor.rebased();
        self.opening &= used == 0;
        self.input.consume(used);
        self.cursor = cursor;
        self.need = progress.need;
        self.swallow = progress.swallow;
    }

    /// The input is not worth looking at before it has `need` bytes.
    pub(crate) fn await_bytes(&mut self, need: usize) {
        self.need = need;
    }

    /// Reads and understands no more.
    pub(crate) fn hang_up(&mut self) {
        let left = self.input.data().len();
        self.advance(Progress::past(left));
        self.readable = false;
        self.closing = true;
    }

    /// From now on: what the socket holds is answered, then the connection ends.
    pub(crate) fn drain(&mut self) {
        self.draining = true;
        self.readable = true;
    }

    /// Whether it may be forgotten.
    pub(crate) fn is_done(&self) -> bool {
        self.closing && self.gather.is_none() && self.output.is_empty() && !self.has_work()
    }
}
