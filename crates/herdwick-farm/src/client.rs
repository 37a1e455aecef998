//! The client's machine: GETs by a window of READs, PUTs and DELETEs by messages, and a message for a
//! GET that READs could not settle.

use std::{collections::VecDeque, time::Duration};

use herdwick_fabric::{
    Completion, CqId, Local, Payload, Port, QpId, RegionId, Remote, SendOp, SendWr, Status,
};
use herdwick_mem::{Span, WORD, Words};
use herdwick_read::{Begin, Fetch, Fetched, Judge, Outcome, ReadCounters, Reader, Step};
use herdwick_request::KEY_BYTES_MAX;

use crate::{
    layout::VALUE_BYTES_MAX,
    message::{Arrival, Operation, ReplyCode, Ring, arrival, bytes_at, encode},
    probe::{Probe, Verdict, View},
};

/// Completions taken by one call of [`Port::poll`].
const POLLED: usize = 32;

/// Why a call did not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// As many calls are on their way as there may be: poll, then try again.
    #[error("the window is full")]
    Window,
    /// The key is empty or longer than the table's, or the value is longer.
    #[error("a key or value of a length that the server's table does not have")]
    Length,
    /// The client has failed.
    #[error("{0}")]
    Failed(Failure),
}

/// Why a client cannot go on. Its owner connects another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A queue pair failed.
    #[error("the connection to the FaRM-KV server failed ({0:?}): connect again")]
    Link(Status),
    /// Neither a reply nor a READ came until the deadline.
    #[error("the FaRM-KV server did not answer: see that it runs, and connect again")]
    Silent,
}

/// How a call ended.
pub type Answer<'a> = herdwick_read::Answer<&'a [u8], Failure>;

/// A GET on its way.
#[derive(Debug)]
pub(crate) struct Lookup {
    probe: Probe,
    token: u64,
    /// Where its key is.
    key: u32,
}

#[derive(Clone, Copy, Debug)]
struct Key {
    bytes: [u8; KEY_BYTES_MAX],
    len: u8,
}

/// A message without a reply.
#[derive(Clone, Copy, Debug)]
struct PendingMessage {
    token: u64,
    operation: Operation,
    since: Duration,
}

/// Where the messages of a client go.
#[derive(Debug)]
pub(crate) struct Messages {
    pub(crate) qp: QpId,
    pub(crate) cq: CqId,
    /// The server's memory for requests.
    pub(crate) requests: Remote,
    /// Our memory for replies.
    pub(crate) replies: Span,
    /// Our memory for requests that are too long to be inline, and its words.
    pub(crate) stage: (RegionId, Span),
    pub(crate) inline_bytes_max: usize,
    pub(crate) window: usize,
    /// How long a reply may take.
    pub(crate) deadline: Duration,
}

/// The machine.
#[derive(Debug)]
pub struct ClientSide {
    view: View,
    table: Remote,
    reader: Reader<Lookup>,
    keys: Vec<Key>,
    free: Vec<u32>,
    /// GETs that READs could not settle, to be sent as messages.
    unsure: VecDeque<(u64, u32)>,
    messages: Messages,
    requests: Ring,
    replies: Ring,
    waiting: VecDeque<PendingMessage>,
    /// Messages sent, and replies taken.
    sent: u64,
    answered: u64,
    /// Requests that are known to have left.
    completed: u64,
    words: Vec<u64>,
    value: Vec<u8>,
    failed: Option<Failure>,
}

impl ClientSide {
    pub(crate) fn new(
        view: View,
        table: Remote,
        (reader, lookups): (Reader<Lookup>, usize),
        messages: Messages,
    ) -> Self {
        let blank = Key {
            bytes: [0; KEY_BYTES_MAX],
            len: 0,
        };
        Self {
            view,
            table,
            reader,
            keys: vec![blank; lookups],
            free: (0..lookups as u32).collect(),
            unsure: VecDeque::with_capacity(lookups),
            requests: Ring::requests(&view.geometry, messages.window),
            replies: Ring::replies(&view.geometry, messages.window),
            waiting: VecDeque::with_capacity(messages.window),
            messages,
            sent: 0,
            answered: 0,
            completed: 0,
            words: Vec::with_capacity((KEY_BYTES_MAX + VALUE_BYTES_MAX) / WORD + 3),
            value: vec![0; VALUE_BYTES_MAX],
            failed: None,
        }
    }

    /// Returns why the client cannot go on, if so.
    #[must_use]
    pub fn failed(&self) -> Option<Failure> {
        self.failed
    }

    /// Returns the counters of GETs: READs and their bytes, and what became of them.
    #[must_use]
    pub fn read_counters(&self) -> &ReadCounters {
        self.reader.counters()
    }

    /// Returns the calls that have begun and not ended.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.reader.in_flight() + self.unsure.len() + self.waiting.len()
    }

    /// Begins a GET.
    ///
    /// # Errors
    /// [`CallError`]; no call has begun.
    #[inline]
    pub fn get(&mut self, key: &[u8], token: u64) -> Result<(), CallError> {
        self.check(key, &[])?;
        let Some(place) = self.free.pop() else {
            return Err(CallError::Window);
        };
        let held = &mut self.keys[place as usize];
        herdwick_mem::copy(&mut held.bytes[..key.len()], key);
        held.len = key.len() as u8;
        let probe = Probe::new(&self.view, key);
        let step = step(&probe, &self.view, self.table);
        let lookup = Lookup {
            probe,
            token,
            key: place,
        };
        match self.reader.begin(lookup, step) {
            Ok(()) => Ok(()),
            Err(refused) => {
                self.free.push(place);
                Err(match refused {
                    Begin::Full(_) => CallError::Window,
                    Begin::TooLong(_) => CallError::Length,
                    Begin::Failed(_, status) => CallError::Failed(self.fail(Failure::Link(status))),
                })
            }
        }
    }

    /// Begins a PUT.
    ///
    /// # Errors
    /// [`CallError`]; no call has begun.
    pub fn put<P: Port>(
        &mut self,
        port: &mut P,
        (key, value): (&[u8], &[u8]),
        token: u64,
        now: Duration,
    ) -> Result<(), CallError> {
        self.check(key, value)?;
        self.send(port, Operation::Put, (key, value), token, now)
    }

    /// Begins a DELETE.
    ///
    /// # Errors
    /// [`CallError`]; no call has begun.
    pub fn delete<P: Port>(
        &mut self,
        port: &mut P,
        key: &[u8],
        token: u64,
        now: Duration,
    ) -> Result<(), CallError> {
        self.check(key, &[])?;
        self.send(port, Operation::Delete, (key, &[]), token, now)
    }

    /// Posts the READs of the GETs that have begun.
    pub fn post<P: Port>(&mut self, port: &mut P) {
        if self.failed.is_none() {
            self.reader.post(port);
        }
    }

    /// Takes completions and replies, and hands each call that ended to `sink`, once. Returns how many
    /// there were.
    pub fn poll<P: Port>(
        &mut self,
        port: &mut P,
        now: Duration,
        sink: &mut impl FnMut(u64, Answer<'_>),
    ) -> usize {
        let mut ended = self.lookups(port, sink);
        if self.reader.has_fallen_silent(self.messages.deadline, now) {
            self.fail(Failure::Silent);
        }
        self.completions(port);
        ended += self.take_replies(sink);
        // After the replies, which have made room in the ring.
        self.ask_unsure(port, now);
        let late =
            |first: &PendingMessage| now.saturating_sub(first.since) > self.messages.deadline;
        if self.waiting.front().is_some_and(late) {
            self.fail(Failure::Silent);
        }
        match self.failed {
            Some(failure) => ended + self.end_all(port, failure, sink),
            None => ended,
        }
    }

    fn check(&self, key: &[u8], value: &[u8]) -> Result<(), CallError> {
        if let Some(failure) = self.failed {
            return Err(CallError::Failed(failure));
        }
        if key.is_empty() || !self.view.geometry.admits(key.len(), value.len()) {
            return Err(CallError::Length);
        }
        Ok(())
    }

    fn lookups<P: Port>(&mut self, port: &mut P, sink: &mut impl FnMut(u64, Answer<'_>)) -> usize {
        let Self {
            view,
            table,
            reader,
            keys,
            free,
            unsure,
            value,
            failed,
            ..
        } = self;
        let mut judge = TableJudge {
            view,
            table: *table,
            keys,
        };
        let mut ended = 0;
        reader.poll(port, &mut judge, &mut |lookup, outcome| {
            let answer = match outcome {
                Outcome::Found(bytes) => {
                    let value = &mut value[..lookup.probe.value_len()];
                    lookup.probe.copy_value(&word_in(bytes), value);
                    Answer::Value(value)
                }
                Outcome::Missing => Answer::Missing,
                Outcome::Unsure(_) => return unsure.push_back((lookup.token, lookup.key)),
                Outcome::Failed(status) => {
                    Answer::Failed(*failed.get_or_insert(Failure::Link(status)))
                }
            };
            free.push(lookup.key);
            ended += 1;
            sink(lookup.token, answer);
        });
        ended
    }

    /// Sends messages for GETs that READs could not settle, as far as the ring has room.
    fn ask_unsure<P: Port>(&mut self, port: &mut P, now: Duration) {
        while let Some((token, place)) = self.unsure.front().copied() {
            let key = self.keys[place as usize];
            let key = (&key.bytes[..key.len.into()], &[][..]);
            if self.send(port, Operation::Get, key, token, now).is_err() {
                return;
            }
            self.unsure.pop_front();
            self.free.push(place);
        }
    }

    /// WRITEs a message into its cell at the server.
    fn send<P: Port>(
        &mut self,
        port: &mut P,
        operation: Operation,
        (key, value): (&[u8], &[u8]),
        token: u64,
        now: Duration,
    ) -> Result<(), CallError> {
        let window = self.requests.window;
        let unknown = self.sent - self.completed;
        // The send queue has room for two windows: replies come before the completions of the
        // requests.
        if self.waiting.len() == window || unknown >= 2 * window as u64 {
            return Err(CallError::Window);
        }
        let lap = self.requests.lap(self.sent);
        encode(&mut self.words, lap, operation as u8, key, value);
        let messages = &self.messages;
        // A message ends with its cell, where the server polls the control word.
        let first = self.requests.end(self.sent) - self.words.len();
        let payload = if self.words.len() * WORD <= messages.inline_bytes_max {
            Payload::Words(&self.words)
        } else {
            let (region, span) = &messages.stage;
            span.write_words(first, &self.words);
            Payload::Region(Local {
                region: *region,
                offset: first * WORD,
                len: self.words.len() * WORD,
            })
        };
        let to = messages.requests.offset((first * WORD) as u64);
        let wr = SendWr {
            wr_id: self.sent + 1,
            op: SendOp::Write {
                payload,
                to,
                imm: None,
            },
            // Half a window without a completion leaves room for the other half.
            signaled: (self.sent + 1).is_multiple_of(window.div_ceil(2) as u64),
            solicited: false,
            fence: false,
        };
        if port.post_send(messages.qp, &[wr]).is_err() {
            return Err(CallError::Failed(self.fail(Failure::Link(Status::Flushed))));
        }
        self.sent += 1;
        self.waiting.push_back(PendingMessage {
            token,
            operation,
            since: now,
        });
        Ok(())
    }

    fn completions<P: Port>(&mut self, port: &mut P) {
        let mut done = [Completion::BLANK; POLLED];
        loop {
            let count = port.poll(self.messages.cq, &mut done);
            for completion in &done[..count] {
                match completion.status {
                    // A send queue completes in order: this stands for all before it.
                    Status::Success => self.completed = completion.wr_id,
                    status => drop(self.fail(Failure::Link(status))),
                }
            }
            if count < POLLED {
                return;
            }
        }
    }

    /// Takes the replies that have arrived. The server replies in order.
    fn take_replies(&mut self, sink: &mut impl FnMut(u64, Answer<'_>)) -> usize {
        let mut ended = 0;
        while let Some(waiting) = self.waiting.front().copied() {
            let replies = &self.messages.replies;
            // Pairs with the store of a reply's last word, its control word, behind the others.
            let load = |word| replies.load_acquire(word);
            let arrived = arrival(&self.replies, self.answered, &load, &mut self.words);
            let (code, len) = match arrived {
                Arrival::Nothing | Arrival::Incomplete => break,
                Arrival::Message(control) if control.key_len == 0 => {
                    (control.code, control.value_len)
                }
                // A reply has no key.
                Arrival::Message(_) | Arrival::Malformed => (ReplyCode::Refused as u8, 0),
            };
            let known = ReplyCode::ALL.into_iter().find(|it| *it as u8 == code);
            let answer = match (known, waiting.operation) {
                (Some(ReplyCode::Done), Operation::Get) if len <= self.value.len() => {
                    let value = &mut self.value[..len];
                    bytes_at(&self.words, 0, value);
                    Answer::Value(value)
                }
                (Some(ReplyCode::Done), Operation::Put | Operation::Delete) => Answer::Done,
                (Some(ReplyCode::NotFound), _) => Answer::Missing,
                (Some(ReplyCode::Full), _) => Answer::Full,
                _ => Answer::Refused,
            };
            self.waiting.pop_front();
            self.answered += 1;
            ended += 1;
            sink(waiting.token, answer);
        }
        ended
    }

    #[cold]
    fn fail(&mut self, failure: Failure) -> Failure {
        *self.failed.get_or_insert(failure)
    }

    /// Ends every call; READs that are still on the way belong to none.
    #[cold]
    fn end_all<P: Port>(
        &mut self,
        port: &mut P,
        failure: Failure,
        sink: &mut impl FnMut(u64, Answer<'_>),
    ) -> usize {
        self.reader.give_up(Status::Flushed);
        let mut ended = self.lookups(port, sink);
        ended += self.waiting.len() + self.unsure.len();
        for waiting in self.waiting.drain(..) {
            sink(waiting.token, Answer::Failed(failure));
        }
        for (token, place) in self.unsure.drain(..) {
            self.free.push(place);
            sink(token, Answer::Failed(failure));
        }
        ended
    }
}

/// Returns the words of what a READ returned.
fn word_in(bytes: &[u8]) -> impl Fn(usize) -> u64 + use<'_> {
    let words = bytes.as_chunks::<WORD>().0;
    move |n| u64::from_le_bytes(words[n])
}

fn step(probe: &Probe, view: &View, table: Remote) -> Step {
    let extent = probe.extent(view);
    Step::one(Fetch {
        from: table.offset(extent.offset as u64),
        len: extent.len,
    })
}

/// Judges READs of the table, for the reader.
struct TableJudge<'a> {
    view: &'a View,
    table: Remote,
    keys: &'a [Key],
}

impl Judge for TableJudge<'_> {
    type Lookup = Lookup;

    #[inline]
    fn judge(&mut self, lookup: &mut Lookup, read: &Fetched<'_>) -> herdwick_read::Verdict {
        let key = &self.keys[lookup.key as usize];
        let load = word_in(read.part(0));
        let probe = &mut lookup.probe;
        match probe.judge(self.view, &key.bytes[..key.len.into()], &load) {
            Verdict::Hit => herdwick_read::Verdict::Found(read.whole(0)),
            Verdict::Miss => herdwick_read::Verdict::Missing,
            Verdict::More => herdwick_read::Verdict::Follow(step(probe, self.view, self.table)),
            // Not the same READs: after a torn value the probe begins with the neighbourhood again.
            Verdict::Torn => herdwick_read::Verdict::Stale(step(probe, self.view, self.table)),
        }
    }
}
