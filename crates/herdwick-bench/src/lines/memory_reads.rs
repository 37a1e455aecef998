//! Load by reads of the server's memory, over HERD's session: GETs are looked up together, and requested where
//! the memory does not tell; everything else is a request.

use std::time::Duration;

use herdwick::{Direct, OneSidedReads, RequestPath};
use herdwick_fabric::Port;
use herdwick_herd::{Refused, wire::ReplyStatus};
use herdwick_request::{HashKey, KEY_BYTES_MAX, KeyHash, Op, Request};

use super::{
    HerdTarget,
    driver::{Lines, Reply},
};
use crate::{
    config::Fabric,
    error::BenchError,
    remote::Remote,
    target::{DriveError, Load, Target},
    workload::KeySpace,
};

/// Least window of the session: a report of reads takes a slot.
const WINDOW_MIN: usize = 2;

/// A session that reads the server's memory.
pub(crate) struct MemoryTarget {
    herd: HerdTarget,
    reads: PendingGets,
}

/// The GETs that were submitted since the last poll.
struct PendingGets {
    /// GETs in flight, at most.
    window: usize,
    gets: Vec<PendingGet>,
}

struct PendingGet {
    token: u64,
    hash: KeyHash,
    key: [u8; KEY_BYTES_MAX],
    key_len: u8,
    /// Whether the server has to be asked.
    unread: bool,
}

impl PendingGet {
    fn key(&self) -> &[u8] {
        &self.key[..self.key_len.into()]
    }
}

impl MemoryTarget {
    /// Connects to `server`, which has to grant its stores.
    ///
    /// # Errors
    /// No server answers there, or it grants no lease, or not its stores.
    pub(crate) fn dial(
        server: &Remote,
        (fabric, path): (Fabric, Option<RequestPath>),
        window: usize,
        space: KeySpace,
    ) -> Result<Self, BenchError> {
        let mut server = server.clone();
        server.options.one_sided = OneSidedReads::Always;
        let session = window.max(WINDOW_MIN);
        let herd = HerdTarget::dial(&server, (fabric, path), session, space)?;
        if herd.session.one_sided().is_none() {
            let reason = "it grants no reads of its memory; serve --one-sided-reads".to_owned();
            return Err(BenchError::NoTransport { fabric, reason });
        }
        let gets = Vec::with_capacity(window);
        Ok(Self {
            herd,
            reads: PendingGets { window, gets },
        })
    }
}

impl Target for MemoryTarget {
    fn hash_key(&mut self) -> Option<HashKey> {
        self.herd.hash_key()
    }

    fn drive(
        &mut self,
        load: &mut Load<'_>,
        until_ns: u64,
        clock: &mut impl FnMut() -> u64,
    ) -> Result<(), DriveError> {
        let Self { herd, reads } = self;
        let mut direct = herd.session.direct().ok_or(DriveError::Closed)?;
        if !direct.is_live() {
            return Err(DriveError::Closed);
        }
        let mut lines = MemoryLines {
            direct: &mut direct,
            reads,
        };
        herd.driver.drive(&mut lines, load, until_ns, clock)
    }

    fn in_flight(&self) -> impl Iterator<Item = u64> {
        self.herd.in_flight()
    }
}

struct MemoryLines<'a, 'd, P> {
    direct: &'a mut Direct<'d, P>,
    reads: &'a mut PendingGets,
}

impl<P: Port> Lines for MemoryLines<'_, '_, P> {
    #[inline]
    fn submit(&mut self, request: &Request<'_>, token: u64) -> Result<(), Refused> {
        let Op::Get(_) = request.op else {
            return self.direct.submit(request, token);
        };
        let PendingGets { window, gets } = &mut *self.reads;
        if gets.len() + self.direct.in_flight() >= *window {
            return Err(Refused::Full);
        }
        let mut key = [0; KEY_BYTES_MAX];
        key[..request.key.len()].copy_from_slice(request.key);
        gets.push(PendingGet {
            token,
            hash: request.hash,
            key,
            key_len: request.key.len() as u8,
            unread: false,
        });
        Ok(())
    }

    #[inline]
    fn flush(&mut self, now: Duration) {
        self.direct.flush(now);
    }

    #[inline]
    fn poll(&mut self, now: Duration, sink: &mut impl FnMut(u64, Option<Reply<'_>>)) -> usize {
        let mut answered = 0;
        let gets = &mut self.reads.gets;
        if gets.iter().any(|get| !get.unread) {
            // Beside `gets`, which is borrowed for the keys.
            let mut unread = [0_u64; herdwick_herd::wire::Window::MAX / 64];
            let key_of = |n: usize| (gets[n].hash, gets[n].key());
            self.direct
                .read(now, gets.len(), key_of, &mut |n, hit| match hit {
                    Some(hit) => {
                        answered += 1;
                        let reply = Reply {
                            status: ReplyStatus::Done,
                            value: hit.value,
                        };
                        sink(gets[n].token, Some(reply));
                    }
                    None => unread[n / 64] |= 1 << (n % 64),
                });
            let mut n = 0;
            gets.retain_mut(|get| {
                get.unread = unread[n / 64] >> (n % 64) & 1 == 1;
                n += 1;
                get.unread
            });
        }
        if !gets.is_empty() {
            let direct = &mut *self.direct;
            // What the window has no room for waits for the next poll.
            gets.retain(|get| {
                let request = Request {
                    hash: get.hash,
                    key: get.key(),
                    op: Op::Get(herdwick_request::Get::default()),
                };
                direct.submit(&request, get.token) == Err(Refused::Full)
            });
            direct.flush(now);
        }
        if self.direct.in_flight() > 0 {
            self.direct.flush(now);
            answered += Lines::poll(self.direct, now, sink);
        }
        answered
    }
}
