//! Runs: consecutive requests of one connection, decoded from its input and executed as one batch;
//! and the positions in the input from which decoding continues.

use herdwick_memcache::{Command, Decoded, Decoder, Get as Retrieval, Keys};
use herdwick_mica::{Get, HashKey, Op, Request};

use super::{
    keys::KeyRoom,
    protocol::{self, Answer, Asked, Read, classic},
    upload::Announced,
};

/// Maximum number of requests in a run; a `get` of 100 keys is one batch of the store.
pub(crate) const RUN_REQUESTS: usize = 128;

/// The position of a connection in its input.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    /// Offset of the command to be decoded next; in the middle of a `get`, of that `get`.
    pub(crate) at: usize,
    /// The keys of that `get` that are left.
    pub(crate) rest: Option<Rest>,
}

/// A `get` with keys left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    keys_at: usize,
    keys_end: usize,
    /// Offset of the command behind it.
    next: usize,
    with_cas: bool,
    touch: Option<u32>,
}

/// The progress of a connection after a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    pub(crate) cursor: Cursor,
    /// The input behind the cursor is not decoded before it has this many bytes.
    pub(crate) need: usize,
    /// Bytes of the stream behind the cursor that are to be dropped.
    pub(crate) swallow: u64,
}

impl Progress {
    /// Returns the progress after everything up to `at`.
    pub(crate) fn past(at: usize) -> Self {
        Self::to(Cursor { at, rest: None })
    }

    /// Returns the progress after everything up to `cursor`.
    pub(crate) fn to(cursor: Cursor) -> Self {
        Self {
            cursor,
            need: 1,
            swallow: 0,
        }
    }

    /// Returns the progress after a run that ended at `stop`.
    pub(crate) fn after(cursor: Cursor, stop: &Stop<'_>) -> Self {
        let (need, swallow) = match *stop {
            Stop::NeedMore(need) => (need, 0),
            Stop::Swallow(swallow) => (1, swallow),
            _ => (1, 0),
        };
        Self {
            cursor,
            need,
            swallow,
        }
    }
}

/// The position of a request in the input, from which it can be decoded again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    at: usize,
    /// Offset of its key, in a `get`.
    keys_at: Option<usize>,
}

impl Point {
    /// The front of the input.
    pub(crate) const FRONT: Self = Self {
        at: 0,
        keys_at: None,
    };
}

/// The mapping of keys to the workers that own them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owners {
    pub(crate) hash_key: HashKey,
    pub(crate) workers: usize,
    pub(crate) own: usize,
}

/// Consecutive requests of one connection that are executed as one batch. All mutations precede all
/// reads: so a read without room for its reply can be executed again later, because no later
/// request of the run has changed what it reads.
#[derive(Default)]
pub(crate) struct Run<'a> {
    pub(crate) requests: Vec<Request<'a>>,
    pub(crate) answers: Vec<Answer<'a>>,
    pub(crate) points: Vec<Point>,
    /// The owner of each request's key.
    pub(crate) owners: Vec<u16>,
    /// Some requests are for other workers.
    pub(crate) crosses: bool,
    /// Whether the connection may hold a large value from the first request's owner, ...
    pub(crate) large: bool,
    /// ... and, with this, one from each owner.
    pub(crate) plenty: bool,
}

/// Why a run ends.
pub(crate) enum Stop<'a> {
    /// It is full, or the next command must not be in it.
    Full,
    /// The input must first have this many bytes, from the cursor on.
    NeedMore(usize),
    /// This many bytes of the stream after the cursor are to be dropped first.
    Swallow(u64),
    /// The run is empty, and the next command is not a request to one partition.
    Immediate {
        command: Command<'a>,
        used: usize,
        swallow: u64,
    },
    /// The run is empty, and the next command has a large value.
    Upload(Announced<'a>),
    /// The stream is not memcached's: close the connection.
    Close,
}

impl<'a> Run<'a> {
    /// Creates an empty run that reuses the allocations of an earlier one.
    pub(crate) fn reuse(old: Run<'_>) -> Self {
        let mut run = Self {
            requests: crate::recycle(old.requests),
            answers: crate::recycle(old.answers),
            points: old.points,
            owners: old.owners,
            crosses: false,
            large: false,
            plenty: false,
        };
        run.points.clear();
        run.owners.clear();
        run
    }

    /// Returns whether request `slot` may be answered with a large value.
    pub(crate) fn is_large(&self, slot: usize) -> bool {
        self.large && (self.plenty || self.owners[slot] == self.owners[0])
    }

    /// Returns the progress once the first `count` requests are answered; `end` if that is all of
    /// them.
    pub(crate) fn after(&self, count: usize, input: &[u8], end: Progress) -> Progress {
        match self.points.get(count) {
            Some(&point) => Progress::to(Cursor::back_to(point, input)),
            None => end,
        }
    }

    /// Decodes requests from `input` and moves `cursor` behind them.
    pub(crate) fn collect(
        &mut self,
        input: &'a [u8],
        cursor: &mut Cursor,
        decoder: &mut Decoder,
        room: &'a KeyRoom,
        owners: &Owners,
    ) -> Stop<'a> {
        loop {
            if let Some(rest) = cursor.rest {
                cursor.rest = self.retrieve(input, cursor.at, rest, owners);
                if cursor.rest.is_some() {
                    return Stop::Full;
                }
                cursor.at = rest.next;
            }
            if cursor.at == input.len() {
                return Stop::NeedMore(1);
            }
            if self.requests.len() >= RUN_REQUESTS {
                return Stop::Full;
            }
            let decoded = decoder.decode(&input[cursor.at..]);
            if let Some(stop) = self.take(decoded, input, cursor, room, owners) {
                return stop;
            }
        }
    }

    /// Adds the command that was decoded at the cursor, unless it ends the run.
    fn take(
        &mut self,
        decoded: Decoded<'a>,
        input: &'a [u8],
        cursor: &mut Cursor,
        room: &'a KeyRoom,
        owners: &Owners,
    ) -> Option<Stop<'a>> {
        let (command, used, swallow) = match decoded {
            Decoded::NeedMore { at } => return Some(Stop::NeedMore(at)),
            Decoded::Close if self.requests.is_empty() => return Some(Stop::Close),
            Decoded::Close => return Some(Stop::Full),
            Decoded::Announced {
                command,
                used,
                value_len,
                has_line_end,
            } => {
                let Read::Request(asked) = protocol::read(&command, room) else {
                    return Some(Stop::Full);
                };
                if !self.requests.is_empty() {
                    return Some(Stop::Full);
                }
                return Some(Stop::Upload(Announced {
                    asked,
                    used: cursor.at + used,
                    value_len,
                    has_line_end,
                }));
            }
            Decoded::Command {
                command,
                used,
                swallow,
            } => (command, used, swallow),
        };
        if let Command::Get(get) = command
            && let Some(rest) = Rest::new(&get, input, cursor.at + used)
        {
            cursor.rest = Some(rest);
            return None;
        }
        let asked = match protocol::read(&command, room) {
            Read::Request(asked) => asked,
            Read::Other if self.requests.is_empty() => {
                return Some(Stop::Immediate {
                    command,
                    used,
                    swallow,
                });
            }
            Read::Other | Read::NoRoom => return Some(Stop::Full),
        };
        // A mutation after a read would break the order that `Run` promises.
        let reading = self.answers.last().is_some_and(Answer::is_read);
        if reading && !asked.answer.is_read() {
            return Some(Stop::Full);
        }
        let point = Point {
            at: cursor.at,
            keys_at: None,
        };
        self.push(asked, point, owners);
        cursor.at += used;
        (swallow > 0).then_some(Stop::Swallow(swallow))
    }

    /// Adds the keys of a `get`, as many as fit; returns the rest, if there is one.
    fn retrieve(
        &mut self,
        input: &'a [u8],
        at: usize,
        mut rest: Rest,
        owners: &Owners,
    ) -> Option<Rest> {
        let mut keys = Keys::new(&input[rest.keys_at..rest.keys_end]);
        let op = Op::Get(Get {
            touch: rest.touch,
            unaware: true,
            ..Get::default()
        });
        while self.requests.len() < RUN_REQUESTS {
            let point = Point {
                at,
                keys_at: Some(rest.keys_end - keys.rest().len()),
            };
            let key = keys.next()?;
            let last = keys.rest().iter().all(|&byte| byte == b' ');
            let answer = Answer::Classic(classic::Answer::value(rest.with_cas, last));
            self.push(Asked { key, op, answer }, point, owners);
            if last {
                return None;
            }
        }
        rest.keys_at = rest.keys_end - keys.rest().len();
        Some(rest)
    }

    fn push(&mut self, asked: Asked<'a>, point: Point, owners: &Owners) {
        let Asked { key, op, answer } = asked;
        let hash = owners.hash_key.hash(key);
        let owner = hash.partition(owners.workers);
        self.crosses |= owner != owners.own;
        self.requests.push(Request { hash, key, op });
        self.answers.push(answer);
        self.points.push(point);
        // Partitions are numbered by 16 bits.
        self.owners.push(owner as u16);
    }
}

impl Rest {
    /// Returns all keys of a `get` that ends at `next`; `None` if it has none (`gat` may).
    fn new(get: &Retrieval<'_>, input: &[u8], next: usize) -> Option<Self> {
        get.keys.clone().next()?;
        let keys = get.keys.rest();
        // The keys are a slice of the input, so the difference of the addresses is their offset.
        let keys_at = keys.as_ptr() as usize - input.as_ptr() as usize;
        Some(Self {
            keys_at,
            keys_end: keys_at + keys.len(),
            next,
            with_cas: get.with_cas,
            touch: get.touch,
        })
    }
}

impl Cursor {
    /// Returns the bytes of input before the cursor, and the cursor relative to the input without
    /// them.
    pub(crate) fn rebased(self) -> (usize, Self) {
        let rest = self.rest.map(|rest| Rest {
            keys_at: rest.keys_at - self.at,
            keys_end: rest.keys_end - self.at,
            next: rest.next - self.at,
            ..rest
        });
        (self.at, Self { at: 0, rest })
    }

    /// Returns the cursor from which the request at `point` is decoded again.
    pub(crate) fn back_to(point: Point, input: &[u8]) -> Self {
        let rest = point.keys_at.and_then(|keys_at| {
            let decoded = Decoder::new(0).decode(&input[point.at..]);
            let Decoded::Command {
                command: Command::Get(get),
                used,
                ..
            } = decoded
            else {
                return None;
            };
            let rest = Rest::new(&get, input, point.at + used)?;
            Some(Rest { keys_at, ..rest })
        });
        Self { at: point.at, rest }
    }
}
