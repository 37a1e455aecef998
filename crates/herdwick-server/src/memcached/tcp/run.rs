//! Runs: consecutive requests of one connection, decoded from its input and executed as one batch;
//! and the positions in the input from which decoding continues.

use herdwick_memcache::{Command, Decoded, Decoder, Extent, Get as Retrieval, Keys};
use herdwick_request::{Get, HashKey, Op, Request};

use crate::memcached::{
    keys::KeyRoom,
    protocol::{self, Answer, Asked, PerRequest, RUN_REQUESTS, Read, classic},
};

/// A position in a connection's input, from which decoding continues.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    /// Offset of the command to be decoded next; in the middle of a `get`, of that `get`.
    pub(crate) at: usize,
    /// The keys of that `get` that are left. They need no decoder.
    pub(crate) rest: Option<Rest>,
}

/// A `get` with keys left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    /// The keys, from the first byte of the `get` on, ...
    keys: Extent,
    /// ... and the bytes that the `get` takes. A line is far shorter than 2^32 bytes.
    used: u32,
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
///
/// It stands on the stack of the round that decodes it, some 30 KiB: it borrows from the input, so no
/// list of it can be kept for the next round.
#[derive(Default)]
pub(crate) struct Run<'a> {
    pub(crate) requests: PerRequest<Request<'a>>,
    pub(crate) answers: PerRequest<Answer<'a>>,
    /// From where each request is decoded again.
    pub(crate) points: PerRequest<Cursor>,
    /// The owner of each request's key.
    pub(crate) owners: PerRequest<u16>,
    /// They are for more than one partition.
    pub(crate) is_mixed: bool,
    /// Whether the connection may hold a large value from the first request's owner, ...
    pub(crate) large: bool,
    /// ... and, with this, one from each owner.
    pub(crate) plenty: bool,
}

/// An announced command, see [`Decoded::Announced`].
pub(super) struct Announced<'a> {
    pub(super) asked: Asked<'a>,
    /// Bytes of the command before the value.
    pub(super) used: usize,
    pub(super) value_len: usize,
    pub(super) has_line_end: bool,
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
    /// Returns whether request `slot` may be answered with a large value.
    pub(crate) fn is_large(&self, slot: usize) -> bool {
        self.large && (self.plenty || self.owners[slot] == self.owners[0])
    }

    /// Returns the progress once the first `count` requests are answered; `end` if that is all of
    /// them.
    pub(crate) fn after(&self, count: usize, end: Progress) -> Progress {
        self.points.get(count).map_or(end, |&at| Progress::to(at))
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
                cursor.at += rest.used as usize;
            }
            if cursor.at == input.len() {
                return Stop::NeedMore(1);
            }
            if self.requests.len() >= RUN_REQUESTS {
                return Stop::Full;
            }
            let decoded = decoder.decode(&input[cursor.at..]);
            if let Some(stop) = self.take(decoded, cursor, room, owners) {
                return stop;
            }
        }
    }

    /// Adds the command that was decoded at the cursor, unless it ends the run.
    fn take(
        &mut self,
        decoded: Decoded<'a>,
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
        if let Command::Get(get) = command {
            cursor.rest = Some(Rest::new(&get, used));
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
        self.push(asked, *cursor, owners);
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
        let mut keys = Keys::new(rest.keys.of(&input[at..]));
        let op = Op::Get(Get {
            touch: rest.touch,
            unaware: true,
            ..Get::default()
        });
        while self.requests.len() < RUN_REQUESTS {
            let here = Cursor {
                at,
                rest: Some(rest),
            };
            let key = keys.next()?;
            rest.keys = rest.keys.last(keys.rest().len());
            let last = keys.is_done();
            let answer = Answer::Classic(classic::Answer::value(rest.with_cas, last));
            self.push(Asked { key, op, answer }, here, owners);
            if last {
                return None;
            }
        }
        Some(rest)
    }

    fn push(&mut self, asked: Asked<'a>, point: Cursor, owners: &Owners) {
        let Asked { key, op, answer } = asked;
        let hash = owners.hash_key.hash(key);
        let owner = hash.partition(owners.workers);
        // Partitions are numbered by 16 bits.
        let owner = owner as u16;
        self.is_mixed |= self.owners.first().is_some_and(|&first| first != owner);
        self.requests.push(Request { hash, key, op });
        self.answers.push(answer);
        self.points.push(point);
        self.owners.push(owner);
    }
}

impl Rest {
    /// Returns all keys of a `get` that takes `used` bytes.
    fn new(get: &Retrieval, used: usize) -> Self {
        let Retrieval {
            keys,
            with_cas,
            touch,
        } = *get;
        Self {
            keys,
            used: used as u32,
            with_cas,
            touch,
        }
    }
}

impl Cursor {
    /// The front of the input.
    pub(crate) const FRONT: Self = Self { at: 0, rest: None };

    /// Returns the bytes of input before the cursor, and the cursor relative to the input without
    /// them.
    pub(crate) fn rebased(self) -> (usize, Self) {
        let Self { at, rest } = self;
        (at, Self { at: 0, rest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNERS: Owners = Owners {
        hash_key: HashKey([1, 2]),
        workers: 1,
        own: 0,
    };

    /// Collects a run of `input` from `cursor` on; returns its keys and where each is decoded again.
    fn collect(input: &[u8], mut cursor: Cursor) -> (Vec<Vec<u8>>, Vec<Cursor>) {
        let (mut decoder, room) = (Decoder::new(1 << 20), KeyRoom::new(RUN_REQUESTS));
        let mut run = Run::default();
        run.collect(input, &mut cursor, &mut decoder, &room, &OWNERS);
        let keys = run.requests.iter().map(|request| request.key.to_vec());
        (keys.collect(), run.points.to_vec())
    }

    /// Whichever reply is deferred, its `get` goes on at that key: without the decoder, so that
    /// nothing of the command before its keys is read again, wherever the input begins by then.
    #[test]
    fn get_goes_on_at_each_key_without_decoding_it_again() {
        const BEFORE: &[u8] = b"delete old\r\n";
        let gets = b"gats 5  a bb   ccc \r\nget d\r\n";
        let input = [BEFORE, gets].concat();
        let (keys, points) = collect(&input, Cursor::FRONT);
        assert_eq!(keys, [&b"old"[..], b"a", b"bb", b"ccc", b"d"]);
        for (n, point) in points.iter().enumerate().skip(1).take(3) {
            let (gone, cursor) = point.rebased();
            assert_eq!(gone, BEFORE.len());
            let mut rest = input[gone..].to_vec();
            rest[..7].fill(b'?');
            assert_eq!(collect(&rest, cursor).0, keys[n..], "from request {n}");
        }
    }

    #[test]
    fn run_ends_when_it_is_full_and_goes_on_behind() {
        let keys: Vec<_> = (0..300).map(|n| format!("k{n}").into_bytes()).collect();
        let input = [b"get ", &keys.join(&b' ')[..], b"\r\n"].concat();
        let (mut decoder, room) = (Decoder::new(1 << 20), KeyRoom::new(RUN_REQUESTS));
        let (mut cursor, mut seen) = (Cursor::FRONT, Vec::new());
        for full in [true, true, false] {
            let mut run = Run::default();
            let stop = run.collect(&input, &mut cursor, &mut decoder, &room, &OWNERS);
            assert_eq!(matches!(stop, Stop::Full), full);
            seen.extend(run.requests.iter().map(|request| request.key.to_vec()));
        }
        assert_eq!(seen, keys);
    }
}
