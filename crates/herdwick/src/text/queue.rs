//! The commands in flight on a text connection, matched to replies in order. A reply that fits none
//! ends the connection.

use std::{collections::VecDeque, time::Duration};

use herdwick_memcache::reply::{Reply, Value};

use crate::{Answer, Cause, Hit, Lost, Refusal, Ticket};

/// The part of a request that the meaning of its reply depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandKind {
    /// One `gets` line for a run of tickets.
    Gets,
    Store,
    Delete,
    Touch,
    Arith,
    Stats,
    Version,
    FlushAll,
}

impl CommandKind {
    fn mutates(self) -> bool {
        !matches!(self, Self::Gets | Self::Stats | Self::Version)
    }
}

/// A command that awaits its reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingCommand {
    pub(super) kind: CommandKind,
    /// Its tickets not answered yet: `first` and the `count - 1` after it. Only `Gets` has more
    /// than one; it stays in the queue with none left until its `END`.
    pub(super) first: Ticket,
    pub(super) count: u64,
    /// Deadline of its answer.
    pub(super) due: Duration,
    /// Stream positions of its first byte and of the byte after its last.
    pub(super) start: u64,
    pub(super) end: u64,
}

/// Commands in flight, oldest first: memcached answers in order.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pending: VecDeque<PendingCommand>,
    keys: Keys,
    tickets: u64,
}

impl Queue {
    pub(super) fn next_ticket(&self) -> Ticket {
        Ticket(self.tickets)
    }

    pub(super) fn in_flight(&self) -> usize {
        // Answers arrive in order, so the unanswered tickets are a run up to the next one.
        self.pending
            .front()
            .map_or(0, |front| (self.tickets - front.first.0) as usize)
    }

    pub(super) fn front(&self) -> Option<&PendingCommand> {
        self.pending.front()
    }

    /// Appends a command with one ticket; a `Gets` with its key.
    pub(super) fn push(&mut self, pending: PendingCommand, key: &[u8]) {
        if pending.kind == CommandKind::Gets {
            self.keys.push(key);
        }
        self.pending.push_back(pending);
        self.tickets += 1;
    }

    /// The newest command, if it is a `Gets`.
    pub(super) fn last_gets(&self) -> Option<&PendingCommand> {
        self.pending
            .back()
            .filter(|last| last.kind == CommandKind::Gets)
    }

    /// Adds a key to the newest command, a `Gets`, which now ends at `end`.
    pub(super) fn extend_gets(&mut self, key: &[u8], end: u64) {
        if let Some(last) = self.pending.back_mut() {
            last.count += 1;
            last.end = end;
            self.keys.push(key);
            self.tickets += 1;
        }
    }

    /// Matches a reply to the oldest command.
    ///
    /// # Errors
    /// [`Cause::Unexpected`]: the stream is out of step, so no later reply can be trusted.
    pub(super) fn answer(
        &mut self,
        reply: Reply<'_>,
        sink: &mut impl FnMut(Ticket, Answer<'_>),
    ) -> Result<(), Cause> {
        let front = *self.pending.front().ok_or(Cause::Unexpected)?;
        match (front.kind, reply) {
            (CommandKind::Gets, Reply::Value(value)) => return self.answer_hit(&value, sink),
            (CommandKind::Gets, Reply::End) => {
                self.finish(front, Answer::Miss, sink);
                return Ok(());
            }
            (CommandKind::Stats, Reply::Stat { name, value }) => {
                sink(front.first, Answer::Line { name, value });
                return Ok(());
            }
            (CommandKind::Version, Reply::Version(value)) => {
                sink(
                    front.first,
                    Answer::Line {
                        name: b"version",
                        value,
                    },
                );
                self.finish(front, Answer::Done, sink);
                return Ok(());
            }
            _ => {}
        }
        let answer = match refusal(reply) {
            Some(refusal) => Answer::Refused(refusal),
            None => plain(front.kind, reply).ok_or(Cause::Unexpected)?,
        };
        self.finish(front, answer, sink);
        // The request is answered either way; what follows in the stream answers none.
        if misread(front.kind, answer, reply) {
            Err(Cause::Unexpected)
        } else {
            Ok(())
        }
    }

    /// Ends every request as lost, oldest first. `sent` bytes of the stream are in the socket.
    pub(super) fn lose(
        &mut self,
        cause: Cause,
        sent: u64,
        sink: &mut impl FnMut(Ticket, Answer<'_>),
    ) {
        while let Some(front) = self.pending.front().copied() {
            // A server executes no command before it has read its last byte.
            let perhaps_done = front.kind.mutates() && front.end <= sent;
            self.finish(
                front,
                Answer::Lost(Lost {
                    cause,
                    perhaps_done,
                }),
                sink,
            );
        }
    }

    /// Answers a hit of a `gets`. Hits arrive in the order of the keys: those skipped are misses.
    fn answer_hit(
        &mut self,
        value: &Value<'_>,
        sink: &mut impl FnMut(Ticket, Answer<'_>),
    ) -> Result<(), Cause> {
        let Some(front) = self.pending.front_mut() else {
            return Err(Cause::Unexpected);
        };
        let misses = self
            .keys
            .position(value.key, front.count)
            .ok_or(Cause::Unexpected)?;
        let version = value.cas.ok_or(Cause::Unexpected)?;
        for _ in 0..misses {
            sink(front.first, Answer::Miss);
            front.first.0 += 1;
        }
        let hit = Hit {
            value: value.data,
            flags: value.flags,
            version,
        };
        sink(front.first, Answer::Hit(hit));
        front.first.0 += 1;
        front.count -= misses + 1;
        self.keys.pop(misses + 1);
        Ok(())
    }

    /// Removes the oldest command and gives all its tickets the same answer.
    fn finish(
        &mut self,
        front: PendingCommand,
        answer: Answer<'_>,
        sink: &mut impl FnMut(Ticket, Answer<'_>),
    ) {
        self.pending.pop_front();
        if front.kind == CommandKind::Gets {
            self.keys.pop(front.count);
        }
        for index in 0..front.count {
            sink(Ticket(front.first.0 + index), answer);
        }
    }
}

/// Recognises the replies that refuse a request, by memcached's texts.
fn refusal(reply: Reply<'_>) -> Option<Refusal<'_>> {
    match reply {
        Reply::ServerError(text) if text.starts_with(b"object too large") => {
            Some(Refusal::TooLarge)
        }
        Reply::ClientError(text) if text.starts_with(b"cannot increment or decrement") => {
            Some(Refusal::NotNumeric)
        }
        Reply::Error(b"") => Some(Refusal::Other(b"it does not know the command")),
        Reply::Error(text) | Reply::ClientError(text) | Reply::ServerError(text) => {
            Some(Refusal::Other(text))
        }
        _ => None,
    }
}

fn plain(kind: CommandKind, reply: Reply<'_>) -> Option<Answer<'static>> {
    Some(match (kind, reply) {
        (CommandKind::Store, Reply::Stored)
        | (CommandKind::Delete, Reply::Deleted)
        | (CommandKind::Touch, Reply::Touched)
        | (CommandKind::FlushAll, Reply::Ok)
        | (CommandKind::Stats, Reply::End | Reply::Reset | Reply::Ok) => Answer::Done,
        (CommandKind::Store, Reply::NotStored) => Answer::NotStored,
        (CommandKind::Store, Reply::Exists) => Answer::Exists,
        (
            CommandKind::Store | CommandKind::Delete | CommandKind::Touch | CommandKind::Arith,
            Reply::NotFound,
        ) => Answer::Miss,
        (CommandKind::Arith, Reply::Number(number)) => Answer::Number(number),
        _ => return None,
    })
}

/// Whether the server may have read a store's data block as commands, because it rejected the line.
fn misread(kind: CommandKind, answer: Answer<'_>, reply: Reply<'_>) -> bool {
    let refused = matches!(answer, Answer::Refused(_));
    kind == CommandKind::Store && refused && !matches!(reply, Reply::ServerError(_))
}

/// The keys of the `gets` in flight, each after a byte with its length.
#[derive(Debug, Default)]
struct Keys {
    bytes: Vec<u8>,
    start: usize,
}

impl Keys {
    /// Popped bytes are freed once they are more than this and more than half of all.
    const SLACK_BYTES: usize = 16 << 10;

    fn push(&mut self, key: &[u8]) {
        debug_assert!(
            key.len() <= herdwick_request::KEY_BYTES_MAX,
            "Key::new checks it"
        );
        self.bytes.push(key.len() as u8);
        self.bytes.extend_from_slice(key);
    }

    /// Returns the position of `key` among the first `count`.
    fn position(&self, key: &[u8], count: u64) -> Option<u64> {
        let mut at = self.start;
        (0..count).find(|_| {
            let begin = at + 1;
            at = begin + usize::from(self.bytes[begin - 1]);
            &self.bytes[begin..at] == key
        })
    }

    fn pop(&mut self, count: u64) {
        for _ in 0..count {
            self.start += 1 + usize::from(self.bytes[self.start]);
        }
        if self.start == self.bytes.len()
            || self.start > Self::SLACK_BYTES.max(self.bytes.len() / 2)
        {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }
}
