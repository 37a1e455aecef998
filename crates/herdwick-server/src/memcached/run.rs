//! Runs: consecutive requests of one connection, decoded from its input and executed as one batch;
//! and the positions in the input from which decoding continues.

use herdwick_memcache::{
    Admits, Answer, Asked, Command, Decoded, Decoder, Get as Retrieval, InputRange, Keys, Refused,
    meta::KeyRoom,
};
use herdwick_request::{Get, KeyHash, Op, Request};

use super::{owners::Owners, upload_state::Upload};
use crate::runtime::reply_encoding::{PerRequest, RUN_REQUESTS};

/// The owner of a request that is not executed. Workers are fewer.
const NO_OWNER: u16 = u16::MAX;

/// A position in a connection's input, from which decoding continues.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    /// Offset of the command to be decoded next.
    pub(crate) at: usize,
    /// What is known of that command: it is not decoded again.
    pub(crate) ahead: Option<Ahead>,
}

/// A command that was decoded, and is not executed completely.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ahead {
    /// A `get` with keys left.
    Get(Rest),
    /// A command that is answered by an error.
    Refused(Refusing),
}

/// A `get` with keys left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    /// The keys, from the first byte of the `get` on, ...
    keys: InputRange,
    /// ... and the bytes that the `get` takes. A line is far shorter than 2^32 bytes.
    used: u32,
    with_cas: bool,
    touch: Option<u32>,
}

/// A command that is answered by an error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusing {
    pub(crate) refused: Refused,
    /// Bytes of the input that it takes, ...
    used: u32,
    /// ... and bytes of the stream after those that are to be dropped. Its length has 32 bits in each
    /// protocol.
    discard: u32,
}

impl Refusing {
    pub(crate) fn used(&self) -> usize {
        self.used as usize
    }

    pub(crate) fn discard(&self) -> u64 {
        self.discard.into()
    }
}

/// The progress of a connection after a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    pub(crate) cursor: Cursor,
    /// The input behind the cursor is not decoded before it has this many bytes.
    pub(crate) need: usize,
    /// Bytes of the stream behind the cursor that are to be dropped.
    pub(crate) discard: u64,
    /// The decoder knows where the line behind the cursor ends.
    pub(crate) holds_line: bool,
}

impl Progress {
    /// Returns the progress after everything up to `at`.
    pub(crate) fn past(at: usize) -> Self {
        Self::to(Cursor { at, ahead: None })
    }

    /// Returns the progress after everything up to `cursor`.
    pub(crate) fn to(cursor: Cursor) -> Self {
        Self {
            cursor,
            need: 1,
            discard: 0,
            holds_line: false,
        }
    }

    /// Returns the progress after a run that ended at `stop`.
    pub(crate) fn after(cursor: Cursor, stop: &Stop<'_>) -> Self {
        let (need, discard) = match *stop {
            Stop::NeedMore(need) => (need, 0),
            Stop::Discard(discard) => (1, discard),
            _ => (1, 0),
        };
        Self {
            cursor,
            need,
            discard,
            holds_line: matches!(stop, Stop::Held),
        }
    }
}

/// Consecutive requests of one connection that are executed as one batch. All mutations precede all
/// reads: so a read without room for its reply can be executed again later, because no later
/// request of the run has changed what it reads. What is executed later is copied
/// ([`OrderedReplies`](super::gather::OrderedReplies)), so that no request is decoded twice.
///
/// It lives on the stack (26 KiB) of the round that decodes it, because it borrows from the input.
#[derive(Default)]
pub(crate) struct Run<'a> {
    pub(crate) requests: PerRequest<Request<'a>>,
    pub(crate) answers: PerRequest<Answer<'a>>,
    /// The owner of each request's key.
    pub(crate) owners: PerRequest<u16>,
    /// They are for more than one partition.
    pub(crate) is_mixed: bool,
    /// Whether the connection may hold a large value from the first request's owner, ...
    pub(crate) large: bool,
    /// ... and, with this, one from each owner.
    pub(crate) plenty: bool,
}

/// Why a run ends.
pub(crate) enum Stop<'a> {
    /// It is full, or what is next must not be in it.
    Full,
    /// The next command must not be in it, and was not decoded.
    Held,
    /// The input must first have this many bytes, from the cursor on.
    NeedMore(usize),
    /// This many bytes of the stream after the cursor are to be dropped first.
    Discard(u64),
    /// The run is empty, and the next command is not a request to one partition.
    Immediate {
        command: Command<'a>,
        used: usize,
        discard: u64,
    },
    /// The run is empty, and the next command is answered by an error.
    Refused(Refusing),
    /// The run is empty, and the next command has a large value, which begins at `used`.
    Upload {
        upload: Option<Box<Upload>>,
        used: usize,
    },
    /// The stream is not memcached's: close the connection.
    Close,
}

impl<'a> Run<'a> {
    /// Returns whether request `slot` may be answered with a large value.
    pub(crate) fn is_large(&self, slot: usize) -> bool {
        self.large && (self.plenty || self.owners[slot] == self.owners[0])
    }

    /// Decodes requests from `input` and moves `cursor` behind them. Base64 keys are decoded into
    /// `room`, which has room for as many as a run has requests.
    pub(crate) fn collect(
        &mut self,
        input: &'a [u8],
        cursor: &mut Cursor,
        decoder: &mut Decoder,
        room: &'a KeyRoom,
        owners: &Owners,
    ) -> Stop<'a> {
        loop {
            match cursor.ahead {
                None => {}
                Some(Ahead::Get(rest)) => {
                    let rest_of_it = self.retrieve(input, cursor.at, rest, owners);
                    cursor.ahead = rest_of_it.map(Ahead::Get);
                    // The run is full amid the keys of a `get`: the next round goes on behind the
                    // last key.
                    if rest_of_it.is_some() {
                        return Stop::Full;
                    }
                    cursor.at += rest.used as usize;
                }
                Some(Ahead::Refused(refusing)) if self.requests.is_empty() => {
                    return Stop::Refused(refusing);
                }
                // Replies keep the order of the commands: the error comes after the replies of the
                // requests before it.
                Some(Ahead::Refused(_)) => return Stop::Full,
            }
            if cursor.at == input.len() {
                return Stop::NeedMore(1);
            }
            if self.requests.len() >= RUN_REQUESTS {
                // Looked at before the next command is decoded, so that nothing decoded has no
                // place.
                return Stop::Full;
            }
            let decoded = decoder.decode(&input[cursor.at..], room, self.admits());
            if let Some(stop) = self.take(&decoded, cursor, owners) {
                return stop;
            }
        }
    }

    /// Returns the commands that may be next in the run. A mutation after a read would break the
    /// order that `Run` promises.
    #[inline]
    fn admits(&self) -> Admits {
        match self.answers.last() {
            None => Admits::All,
            Some(last) if last.is_read() => Admits::Reads,
            Some(_) => Admits::Requests,
        }
    }

    /// Adds what was decoded at the cursor, unless it ends the run.
    #[inline]
    fn take(
        &mut self,
        decoded: &Decoded<'a>,
        cursor: &mut Cursor,
        owners: &Owners,
    ) -> Option<Stop<'a>> {
        match decoded {
            Decoded::Get { get, used } => {
                cursor.ahead = Some(Ahead::Get(Rest::new(get, *used)));
                None
            }
            Decoded::Request {
                asked,
                used,
                discard,
            } => {
                self.ask(asked, owners);
                cursor.at += used;
                // The bytes to drop come before the next command, so the run cannot go on.
                (*discard > 0).then_some(Stop::Discard(*discard))
            }
            Decoded::Held => Some(Stop::Held),
            Decoded::NeedMore { at } => Some(Stop::NeedMore(*at)),
            Decoded::Close if self.requests.is_empty() => Some(Stop::Close),
            // The requests before it are executed first. The next round finds it again, and closes.
            Decoded::Close => Some(Stop::Full),
            Decoded::Announced {
                asked,
                used,
                value_len,
                has_line_end,
                // Only an empty run meets one: with requests in it the decoder holds the command
                // back (`Admits`).
            } => Some(Stop::Upload {
                upload: Upload::new(asked, *value_len, *has_line_end, owners),
                used: cursor.at + used,
            }),
            Decoded::Command {
                command,
                used,
                discard,
            } => Some(Stop::Immediate {
                command: *command,
                used: *used,
                discard: *discard,
            }),
            Decoded::Refused {
                refused,
                used,
                discard,
            } => {
                let refusing = Refusing {
                    refused: *refused,
                    used: *used as u32,
                    discard: *discard as u32,
                };
                if self.requests.is_empty() {
                    return Some(Stop::Refused(refusing));
                }
                cursor.ahead = Some(Ahead::Refused(refusing));
                Some(Stop::Full)
            }
        }
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
        // The reply cannot state that the client has won a stale item, so a `get` wins none.
        let op = Op::Get(Get {
            touch: rest.touch,
            unaware: true,
            ..Get::default()
        });
        while self.requests.len() < RUN_REQUESTS {
            let key = keys.next()?;
            rest.keys = rest.keys.last(keys.rest().len());
            let last = keys.is_done();
            let answer = Answer::value(rest.with_cas, last);
            self.ask(&Asked { key, op, answer }, owners);
            if last {
                return None;
            }
        }
        Some(rest)
    }

    #[inline]
    fn ask(&mut self, asked: &Asked<'a>, owners: &Owners) {
        let &Asked { key, op, answer } = asked;
        let hash = owners.hash_key.hash(key);
        self.push(Request { hash, key, op }, answer, owners);
    }

    #[inline]
    pub(super) fn push(&mut self, request: Request<'a>, answer: Answer<'a>, owners: &Owners) {
        let owner = request.hash.partition(owners.workers);
        // Partitions are numbered by 16 bits.
        let owner = owner as u16;
        self.is_mixed |= self.owners.first().is_some_and(|&first| first != owner);
        self.requests.push(request);
        self.answers.push(answer);
        self.owners.push(owner);
    }

    /// Adds a request that has its reply, for the sake of those behind it: it is not executed.
    pub(super) fn push_answered(&mut self) {
        self.requests.push(Request {
            hash: KeyHash::default(),
            key: &[],
            op: Op::Get(Get::default()),
        });
        self.answers.push(Answer::value(false, false));
        self.owners.push(NO_OWNER);
    }

    /// Returns a request and its answer.
    pub(super) fn get(&self, slot: usize) -> (Request<'a>, Answer<'a>) {
        (self.requests[slot], self.answers[slot])
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
    /// Returns the bytes of input before the cursor, and the cursor relative to the input without
    /// them.
    pub(crate) fn rebased(self) -> (usize, Self) {
        let Self { at, ahead } = self;
        (at, Self { at: 0, ahead })
    }
}

#[cfg(test)]
mod tests {
    use herdwick_request::HashKey;

    use super::*;

    const OWNERS: Owners = Owners {
        hash_key: HashKey([1, 2]),
        workers: 1,
        own: 0,
    };

    /// A command that is answered by an error ends the run before it, and is not decoded again for
    /// that: its bytes do not matter any more.
    #[test]
    fn refused_command_that_ends_a_run_is_not_decoded_again() {
        for refused in [
            &b"delete\r\n"[..],
            b"mg k v v\r\n",
            b"gat x y\r\n",
            b"add k 0 0 9999999\r\n",
        ] {
            let (mut decoder, room) = (Decoder::new(1 << 20), KeyRoom::new(RUN_REQUESTS));
            let mut input = [b"delete a\r\n", refused].concat();
            let mut cursor = Cursor::default();
            {
                let mut run = Run::default();
                let stop = run.collect(&input, &mut cursor, &mut decoder, &room, &OWNERS);
                assert!(matches!(stop, Stop::Full));
                assert_eq!((run.requests.len(), cursor.at), (1, 10));
            }
            let (used, mut cursor) = cursor.rebased();
            input.drain(..used);
            input.fill(b'?');
            let mut run = Run::default();
            let stop = run.collect(&input, &mut cursor, &mut decoder, &room, &OWNERS);
            let Stop::Refused(refusing) = stop else {
                panic!("it is refused");
            };
            assert_eq!(refusing.used(), refused.len());
            let discard = if refused.starts_with(b"add") {
                10_000_001
            } else {
                0
            };
            assert_eq!(refusing.discard(), discard);
        }
    }

    /// Whatever follows each other: runs end before a mutation behind reads, and before what is no
    /// request, and the decoder decodes each command when it is its turn.
    #[test]
    fn command_that_ends_a_run_is_held_until_the_run_is_over() {
        let input =
            b"set a 0 0 1\r\nx\r\nget a\r\nmg b v\r\nset c 0 0 1\r\nx\r\nversion\r\nget d\r\n";
        let (mut decoder, room) = (Decoder::new(1 << 20), KeyRoom::new(RUN_REQUESTS));
        let (mut cursor, mut seen) = (Cursor::default(), Vec::new());
        for held in [true, true, false] {
            let mut run = Run::default();
            let stop = run.collect(input, &mut cursor, &mut decoder, &room, &OWNERS);
            assert_eq!(matches!(stop, Stop::Held), held);
            assert_eq!(Progress::after(cursor, &stop).holds_line, held);
            let keys = run.requests.iter().map(|request| request.key[0] as char);
            seen.push(keys.collect::<String>());
            if let Stop::Immediate { command, used, .. } = stop {
                assert_eq!(command, Command::Version);
                cursor = Progress::past(cursor.at + used).cursor;
            }
        }
        assert_eq!(seen, ["aab", "c", ""]);
    }

    #[test]
    fn run_ends_when_it_is_full_and_goes_on_behind() {
        let keys: Vec<_> = (0..300).map(|n| format!("k{n}").into_bytes()).collect();
        let input = [b"get ", &keys.join(&b' ')[..], b"\r\n"].concat();
        let (mut decoder, room) = (Decoder::new(1 << 20), KeyRoom::new(RUN_REQUESTS));
        let (mut cursor, mut seen) = (Cursor::default(), Vec::new());
        for full in [true, true, false] {
            let mut run = Run::default();
            let stop = run.collect(&input, &mut cursor, &mut decoder, &room, &OWNERS);
            assert_eq!(matches!(stop, Stop::Full), full);
            seen.extend(run.requests.iter().map(|request| request.key.to_vec()));
        }
        assert_eq!(seen, keys);
    }
}
