//! Recognises memcached text replies of known sizes, and checks their keys and values.

use std::collections::VecDeque;

use herdwick_mem::same;
use herdwick_memcache::reply::{FixedReplies, FixedReply, Reply, parse};

use crate::{
    counters::RunCounters,
    replies::{refuse, unexpected},
    target::DriveError,
    workload::KeySpace,
};

/// Recognises replies. Every key and value has a known size.
#[derive(Debug)]
pub(super) struct Reader {
    space: KeySpace,
    replies: FixedReplies,
    /// Buffer for the next expected key.
    key: Vec<u8>,
}

/// A request that waits for its reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// When it was due.
    pub(super) start_ns: u64,
    /// Whether it writes.
    pub(super) is_put: bool,
    /// Keys not answered yet.
    pub(super) remaining: usize,
}

/// What the front of the received bytes is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextReply {
    /// An incomplete reply line or value.
    Partial,
    /// This many bytes of a reply that continues.
    Part(usize),
    /// This many bytes that complete a reply.
    End(usize),
}

/// Largest foreign value that is skipped, in bytes; a connection has room for it beside its own
/// values.
pub(super) const FOREIGN_MAX: usize = 60 << 10;

impl Reader {
    pub(super) fn new(space: KeySpace) -> Self {
        Self {
            key: space.key_filler(),
            replies: FixedReplies::new(space.key_size(), space.value_size()),
            space,
        }
    }

    /// Parses the front of `bytes`, part of the reply to `asked`, whose keys are at the front of
    /// `wanted`.
    #[inline]
    pub(super) fn front(
        &mut self,
        bytes: &[u8],
        asked: &mut Asked,
        wanted: &mut VecDeque<u32>,
        counters: &mut RunCounters,
    ) -> Result<NextReply, DriveError> {
        match self.replies.front(bytes) {
            Some((FixedReply::Stored, used)) if asked.is_put => {
                counters.puts += 1;
                Ok(NextReply::End(used))
            }
            Some((FixedReply::End, used)) if !asked.is_put => {
                counters.misses += asked.remaining as u64;
                wanted.drain(..asked.remaining);
                Ok(NextReply::End(used))
            }
            Some((FixedReply::Value { key, data }, used)) if !asked.is_put => {
                match self.expected(key, asked, wanted, counters) {
                    Some(key) if self.space.check(key, data) => counters.hits += 1,
                    _ => counters.wrong_values += 1,
                }
                Ok(NextReply::Part(used))
            }
            // Or a part of one that it would recognise, of whatever size that is.
            _ => {
                let most = FOREIGN_MAX.max(self.space.value_size());
                other((bytes, most), asked, wanted, counters)
            }
        }
    }

    /// Returns the index of the requested key that `key` is; the requested keys before it were
    /// misses.
    fn expected(
        &mut self,
        key: &[u8],
        asked: &mut Asked,
        wanted: &mut VecDeque<u32>,
        counters: &mut RunCounters,
    ) -> Option<u32> {
        while asked.remaining > 0 {
            let index = wanted.pop_front()?;
            asked.remaining -= 1;
            self.space.key_digits(index, &mut self.key);
            if same(&self.key, key) {
                return Some(index);
            }
            counters.misses += 1;
        }
        None
    }
}

/// Skips a value of another size or with flags: not stored by this benchmark, so it counts as wrong
/// whatever it contains. Counts an error line, which ends the reply, whatever keys were still to be
/// answered. A value of more than `most` bytes is refused.
fn other(
    (bytes, most): (&[u8], usize),
    asked: &mut Asked,
    wanted: &mut VecDeque<u32>,
    counters: &mut RunCounters,
) -> Result<NextReply, DriveError> {
    match parse(bytes, most).map_err(|flaw| refuse(flaw, bytes))? {
        None => Ok(NextReply::Partial),
        Some((Reply::Value(_), total)) if !asked.is_put => {
            counters.wrong_values += 1;
            if asked.remaining > 0 {
                wanted.pop_front();
                asked.remaining -= 1;
            }
            Ok(NextReply::Part(total))
        }
        Some((reply, len)) if is_refusal(&reply) => {
            wanted.drain(..asked.remaining);
            counters.errors += 1;
            Ok(NextReply::End(len))
        }
        Some(_) => Err(unexpected(bytes)),
    }
}

fn is_refusal(reply: &Reply<'_>) -> bool {
    matches!(
        reply,
        Reply::NotStored | Reply::Error(_) | Reply::ServerError(_) | Reply::ClientError(_)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `replies` as the answers to `asked`, all at once and byte by byte; both must agree.
    fn read(asked: &[Asked], wanted: &[u32], replies: &[u8]) -> Result<RunCounters, DriveError> {
        let whole = feed(asked, wanted, replies, replies.len());
        let bytewise = feed(asked, wanted, replies, 1);
        match (&whole, &bytewise) {
            (Ok(a), Ok(b)) => assert_eq!(counts(a), counts(b)),
            (Err(a), Err(b)) => assert_eq!(a.to_string(), b.to_string()),
            _ => panic!("{whole:?} but bytewise {bytewise:?}"),
        }
        whole
    }

    fn feed(
        asked: &[Asked],
        wanted: &[u32],
        replies: &[u8],
        step: usize,
    ) -> Result<RunCounters, DriveError> {
        let mut reader = Reader::new(space());
        let mut wanted: VecDeque<u32> = wanted.iter().copied().collect();
        let mut asked: VecDeque<Asked> = asked.iter().copied().collect();
        let (mut counters, mut at, mut seen) = (RunCounters::new(), 0, 0);
        while let Some(front) = asked.front_mut() {
            match reader.front(&replies[at..seen], front, &mut wanted, &mut counters)? {
                NextReply::Partial => {
                    assert!(
                        seen < replies.len(),
                        "requests more bytes than the replies have"
                    );
                    seen = (seen + step).min(replies.len());
                }
                NextReply::Part(n) => at += n,
                NextReply::End(n) => {
                    at += n;
                    asked.pop_front();
                }
            }
        }
        assert_eq!((at, wanted.len()), (replies.len(), 0));
        Ok(counters)
    }

    fn counts(counters: &RunCounters) -> [u64; 5] {
        let RunCounters {
            hits,
            misses,
            puts,
            errors,
            wrong_values,
            ..
        } = counters;
        [*hits, *misses, *puts, *errors, *wrong_values]
    }

    fn space() -> KeySpace {
        KeySpace::new(100, 4, 12).unwrap()
    }

    fn get(remaining: usize) -> Asked {
        Asked {
            start_ns: 0,
            is_put: false,
            remaining,
        }
    }

    const PUT: Asked = Asked {
        start_ns: 0,
        is_put: true,
        remaining: 0,
    };

    fn value(key: u32, of: u32) -> Vec<u8> {
        let mut value = [0; 12];
        space().value(of, 9, &mut value);
        let header = format!("VALUE {key:04x} 0 12\r\n");
        [header.as_bytes(), &value, b"\r\n"].concat()
    }

    #[test]
    fn hits_misses_and_stores_are_counted_in_order() {
        let replies = [
            &b"STORED\r\n"[..],
            &value(7, 7),
            b"END\r\nEND\r\nSTORED\r\n",
        ]
        .concat();
        let counters = read(&[PUT, get(1), get(1), PUT], &[7, 8], &replies).unwrap();
        assert_eq!(counts(&counters), [1, 1, 2, 0, 0]);
    }

    #[test]
    fn missing_keys_of_a_multiget_are_counted_as_misses() {
        let replies = [&value(2, 2)[..], &value(4, 4), b"END\r\n"].concat();
        let counters = read(&[get(5)], &[1, 2, 3, 4, 5], &replies).unwrap();
        assert_eq!(counts(&counters), [2, 3, 0, 0, 0]);
    }

    #[test]
    fn value_of_another_key_is_counted_as_wrong() {
        let counters = read(&[get(1)], &[1], &[&value(1, 2)[..], b"END\r\n"].concat()).unwrap();
        assert_eq!(counts(&counters), [0, 0, 0, 0, 1]);
        let counters = read(&[get(1)], &[1], &[&value(2, 2)[..], b"END\r\n"].concat()).unwrap();
        assert_eq!(
            counts(&counters),
            [0, 1, 0, 0, 1],
            "no request was sent for it"
        );
    }

    #[test]
    fn values_of_another_size_or_with_flags_are_counted_as_wrong() {
        for odd in [
            "VALUE 0001 0 1\r\nx\r\n",
            "VALUE 0001 0 20\r\n01234567890123456789\r\n",
        ] {
            let counters = read(&[get(1)], &[1], [odd, "END\r\n"].concat().as_bytes()).unwrap();
            assert_eq!(counts(&counters), [0, 0, 0, 0, 1], "{odd}");
        }
        let flags = "VALUE 0001 5 12\r\n012345678901\r\nEND\r\n";
        assert_eq!(
            counts(&read(&[get(1)], &[1], flags.as_bytes()).unwrap()),
            [0, 0, 0, 0, 1]
        );
        let huge = read(&[get(1)], &[1], b"VALUE 0001 0 99999999\r\n");
        assert!(matches!(huge, Err(DriveError::ForeignValue(99_999_999))));
    }

    #[test]
    fn values_larger_than_any_foreign_one_are_read_in_pieces() {
        let space = KeySpace::new(100, 4, 2 * FOREIGN_MAX).unwrap();
        let mut value = vec![0; 2 * FOREIGN_MAX];
        space.value(7, 9, &mut value);
        let header = format!("VALUE 0007 0 {}\r\n", value.len());
        let reply = [header.as_bytes(), &value, b"\r\n"].concat();
        let (mut asked, mut wanted) = (get(1), VecDeque::from([7]));
        let (mut reader, mut counters) = (Reader::new(space), RunCounters::new());
        for len in (0..reply.len()).step_by(4099).chain([reply.len() - 1]) {
            let front = reader.front(&reply[..len], &mut asked, &mut wanted, &mut counters);
            assert!(matches!(front, Ok(NextReply::Partial)), "{len}: {front:?}");
        }
        let front = reader.front(&reply, &mut asked, &mut wanted, &mut counters);
        assert!(matches!(front, Ok(NextReply::Part(len)) if len == reply.len()));
        assert_eq!(counts(&counters)[0], 1);
    }

    #[test]
    fn refusals_are_counted_and_malformed_replies_end_the_run() {
        let replies = b"SERVER_ERROR out of memory storing object\r\nERROR\r\nNOT_STORED\r\n";
        let counters = read(&[PUT, get(3), PUT], &[1, 2, 3], replies).unwrap();
        assert_eq!(counts(&counters), [0, 0, 0, 3, 0]);
        let http = read(&[get(1)], &[1], b"HTTP/1.1 400 Bad Request\r\n");
        assert!(matches!(http, Err(DriveError::Reply(text)) if text.starts_with("HTTP")));
        assert!(matches!(
            read(&[PUT], &[], &[b'x'; 10_000]),
            Err(DriveError::Reply(_))
        ));
        assert!(matches!(
            read(&[PUT], &[], b"END\r\n"),
            Err(DriveError::Reply(_))
        ));
    }
}
