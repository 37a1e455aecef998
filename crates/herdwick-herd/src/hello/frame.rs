//! Frames of the lease handshake: CLAIM, GRANT, ACCEPT and GO as bytes and back. Parsing
//! bounds every length first and never panics.

use herdwick_fabric::{Endpoint, Remote, Rkey};

use super::{Token, VERSION, WORKERS_MAX};
use crate::Announce;

/// Bytes of a frame's header: magic "HWL" 3, version 1, kind 1, reserved 1 (0), body length 2 (LE).
pub const HEADER_BYTES: usize = 8;
/// Most bytes of a frame, header included.
pub const FRAME_BYTES_MAX: usize = HEADER_BYTES + u16::MAX as usize;
/// Most bytes of a provider's ticket.
pub const TICKET_BYTES_MAX: usize = 512;
/// Most file descriptors of a provider's ticket: those of all workers stay below the kernel's limit
/// of 253 a message (SCM_MAX_FD).
pub const TICKET_FDS_MAX: usize = 6;

/// Most file descriptors of the ticket to a worker's store.
pub const STORE_FDS_MAX: usize = 1;

/// First bytes of a frame. No memcached command begins with them.
pub const MAGIC: [u8; 3] = *b"HWL";

// A grant for the most workers, each with the largest ticket and two endpoints, fits one frame.
const _: () = assert!(WORKERS_MAX * (2 * TICKET_BYTES_MAX + 340) + 16 <= u16::MAX as usize);
const _: () = assert!(WORKERS_MAX * (TICKET_FDS_MAX + STORE_FDS_MAX) <= 253);

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Client: a token, and the requested window and reply size.
    Claim,
    /// Server: memory, one ticket a worker; file descriptors accompany it.
    Grant,
    /// Client: its queue pairs.
    Accept,
    /// Server: connected; requests may be written.
    Go,
    /// Server: no lease, and the reason.
    Refusal,
    /// Server and client, for an engine other than HERD: what it grants, and what is accepted.
    Parts,
}

/// The code of [`Kind::Parts`].
pub(super) const KIND_PARTS: u8 = 6;

/// Why bytes are not the frame they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not our magic.
    #[error("not a lease frame")]
    Magic,
    /// The other end speaks another version.
    #[error("the other end has version {0}, this one {VERSION}")]
    Version(u8),
    /// An unknown kind, or not the one that is due.
    #[error("frame of kind {0} is out of place")]
    Kind(u8),
    /// Lengths or values out of bounds.
    #[error("malformed frame body")]
    Body,
}

/// A frame's first [`HEADER_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Kind of the frame.
    pub kind: Kind,
    /// Bytes of the body that follows.
    pub body_bytes: usize,
}

impl Header {
    /// Reads a header.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        let [m0, m1, m2, version, kind, _, len0, len1] = *bytes;
        // The magic before the version: what is no frame at all has no version to complain of.
        if [m0, m1, m2] != MAGIC {
            return Err(FrameError::Magic);
        }
        if version != VERSION {
            return Err(FrameError::Version(version));
        }
        let kind = match kind {
            1 => Kind::Claim,
            2 => Kind::Grant,
            3 => Kind::Accept,
            4 => Kind::Go,
            5 => Kind::Refusal,
            KIND_PARTS => Kind::Parts,
            other => return Err(FrameError::Kind(other)),
        };
        Ok(Self {
            kind,
            body_bytes: u16::from_le_bytes([len0, len1]).into(),
        })
    }
}

/// The client's claim: 24 bytes {token 16, window u32, max_reply u32}, and one more that is 1 if it asks for
/// the stores, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// From the offer.
    pub token: Token,
    /// Requested slots a worker.
    pub window: u32,
    /// Largest reply payload it takes over the fabric; the server takes less than
    /// [`RECV_BYTES_MIN`](crate::RECV_BYTES_MIN) for so much.
    pub reply_bytes_max: u32,
    /// Whether it asks to read the workers' stores. Only of a server that offers them
    /// ([`Offer::one_sided`](super::Offer::one_sided)): others take no such claim.
    pub reads: bool,
}

/// The server's grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Epoch in every request line and reply of this lease; never 0.
    pub epoch: u16,
    /// Slots a worker: a power of two.
    pub window: u16,
    /// Largest reply in bytes that the server will send.
    pub reply_bytes_max: u32,
    /// One for each worker, in order.
    pub workers: Vec<WorkerGrant>,
}

/// One worker's part of a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerGrant {
    /// The provider's ticket, opaque here.
    pub ticket: Vec<u8>,
    /// Number of the frame's file descriptors that belong to this ticket.
    pub fds: u8,
    /// Remote address of slot 0's line.
    pub lines: Remote,
    /// Remote address of slot 0's overflow area.
    pub overflow: Remote,
    /// Which WRITEs carry an immediate.
    pub announce: Announce,
    /// The worker's queue pair for requests: UC, RC or UD, by the request path.
    pub requests: Endpoint,
    /// The worker's UD queue pair that sends replies.
    pub replies: Endpoint,
    /// The worker's store, if the client asked for it and may read it: all workers', or none.
    pub store: Option<StoreGrant>,
}

/// A worker's store in published memory (`herdwick_layout::published`), for READs by the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreGrant {
    /// Number of the frame's file descriptors that belong to its ticket.
    pub fds: u8,
    /// Where its first byte is, in the domain of the worker.
    pub memory: Remote,
    /// The server's monotonic clock when it granted, in nanoseconds.
    pub now: u64,
    /// The provider's ticket of the region, opaque here.
    pub ticket: Vec<u8>,
}

/// The client's side of the queue pairs, one for each worker, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accept {
    /// In the order of [`Grant::workers`].
    pub workers: Vec<WorkerAccept>,
}

/// The client's queue pairs for one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerAccept {
    /// Its queue pair for requests: UC or RC, or with `ud-send` the one for replies.
    pub requests: Endpoint,
    /// Its UD queue pair for replies.
    pub replies: Endpoint,
}

/// The lease is established: requests may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Go;

impl Claim {
    /// Token (16), window (4), reply_bytes_max (4).
    const BODY: usize = 24;
    /// Bytes of the frame, one that asks for no stores.
    pub const FRAME_BYTES: usize = HEADER_BYTES + Self::BODY;

    /// Encodes the frame.
    #[must_use]
    pub fn to_frame(&self) -> Vec<u8> {
        let mut out = Writer::new(1);
        out.bytes(&self.token.0);
        out.u32(self.window);
        out.u32(self.reply_bytes_max);
        // Left out if it is 0: servers of before take a claim of 24 bytes alone.
        if self.reads {
            out.u8(1);
        }
        out.finish()
    }

    /// Parses a body.
    ///
    /// # Errors
    /// [`FrameError::Body`].
    pub fn parse(body: &[u8]) -> Result<Self, FrameError> {
        let mut from = Reader(body);
        let claim = Self {
            token: Token(from.array()?),
            window: from.u32()?,
            reply_bytes_max: from.u32()?,
            reads: match body.get(Self::BODY) {
                None => false,
                Some(1) => from.u8()? == 1,
                Some(_) => return Err(FrameError::Body),
            },
        };
        from.end()?;
        Ok(claim)
    }
}

impl Grant {
    /// The frame: {epoch u16, window u16, reply_bytes_max u32, workers u8}, then for each worker
    /// {fds u8, lines rkey u32 + addr u64, overflow rkey u32 + addr u64, announce u8, then three
    /// blobs, each a u16 length and its bytes: ticket, requests endpoint, replies endpoint}, then, if they
    /// are granted, for each worker its store {fds u8, rkey u32 + addr u64, now u64, ticket as a blob}.
    ///
    /// # Panics
    /// For more than [`WORKERS_MAX`] workers, or a ticket of more than [`TICKET_BYTES_MAX`] bytes.
    #[must_use]
    pub fn to_frame(&self) -> Vec<u8> {
        let mut out = Writer::new(2);
        out.u16(self.epoch);
        out.u16(self.window);
        out.u32(self.reply_bytes_max);
        out.count(self.workers.len());
        for worker in &self.workers {
            out.u8(worker.fds);
            out.remote(worker.lines);
            out.remote(worker.overflow);
            out.u8(match worker.announce {
                Announce::Never => 0,
                Announce::AfterPause => 1,
                Announce::Always => 2,
            });
            out.blob(&worker.ticket);
            out.blob(worker.requests.as_bytes());
            out.blob(worker.replies.as_bytes());
        }
        let stores = self.workers.iter().map(|worker| worker.store.as_ref());
        // All stores or none: a client could not tell whose a single one is.
        for store in stores.collect::<Option<Vec<_>>>().unwrap_or_default() {
            out.u8(store.fds);
            out.remote(store.memory);
            out.bytes(&store.now.to_le_bytes());
            out.blob(&store.ticket);
        }
        out.finish()
    }

    /// Parses a body.
    ///
    /// # Errors
    /// [`FrameError::Body`], also for an epoch of 0 or a window that is no power of two.
    pub fn parse(body: &[u8]) -> Result<Self, FrameError> {
        let mut from = Reader(body);
        let (epoch, window, reply_bytes_max) = (from.u16()?, from.u16()?, from.u32()?);
        // Epoch 0 is that of lines that were never written: they are zero.
        if epoch == 0 || !window.is_power_of_two() {
            return Err(FrameError::Body);
        }
        // At most `WORKERS_MAX`, so that a peer has little allocated.
        let mut workers = (0..from.count()?)
            .map(|_| from.worker_grant())
            .collect::<Result<Vec<_>, _>>()?;
        // Bytes behind the workers are their stores; an older server sends none.
        if from.end().is_err() {
            for worker in &mut workers {
                worker.store = Some(from.store_grant()?);
            }
        }
        from.end()?;
        Ok(Self {
            epoch,
            window,
            reply_bytes_max,
            workers,
        })
    }
}

impl Accept {
    /// The frame: {workers u8}, then for each two blobs: requests and replies endpoint.
    ///
    /// # Panics
    /// For more than [`WORKERS_MAX`] workers.
    #[must_use]
    pub fn to_frame(&self) -> Vec<u8> {
        let mut out = Writer::new(3);
        out.count(self.workers.len());
        for worker in &self.workers {
            out.blob(worker.requests.as_bytes());
            out.blob(worker.replies.as_bytes());
        }
        out.finish()
    }

    /// Parses a body.
    ///
    /// # Errors
    /// [`FrameError::Body`].
    pub fn parse(body: &[u8]) -> Result<Self, FrameError> {
        let mut from = Reader(body);
        let one = |from: &mut Reader<'_>| {
            Ok(WorkerAccept {
                requests: from.endpoint()?,
                replies: from.endpoint()?,
            })
        };
        let workers = (0..from.count()?)
            .map(|_| one(&mut from))
            .collect::<Result<_, _>>()?;
        from.end()?;
        Ok(Self { workers })
    }
}

impl Go {
    /// Encodes the frame; it has no body.
    #[must_use]
    pub fn to_frame(self) -> Vec<u8> {
        Writer::new(4).finish()
    }
}

/// Builds a frame. Its input is this end's own, so it asserts bounds.
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn new(kind: u8) -> Self {
        let [m0, m1, m2] = MAGIC;
        Self(vec![m0, m1, m2, VERSION, kind, 0, 0, 0])
    }
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
    pub(super) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }
    pub(super) fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }
    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }
    fn count(&mut self, workers: usize) {
        assert!(workers <= WORKERS_MAX);
        self.u8(workers as u8);
    }
    fn remote(&mut self, remote: Remote) {
        self.u32(remote.rkey.0);
        self.bytes(&remote.addr.to_le_bytes());
    }
    fn blob(&mut self, blob: &[u8]) {
        assert!(blob.len() <= TICKET_BYTES_MAX);
        self.u16(blob.len() as u16);
        self.bytes(blob);
    }
    pub(super) fn finish(mut self) -> Vec<u8> {
        let body = u16::try_from(self.0.len() - HEADER_BYTES).expect("bounded by the const above");
        self.0[6..8].copy_from_slice(&body.to_le_bytes());
        self.0
    }
}

/// Parses a body. Its input is the peer's, so every step may fail.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, bytes: usize) -> Result<&'a [u8], FrameError> {
        let (head, rest) = self.0.split_at_checked(bytes).ok_or(FrameError::Body)?;
        self.0 = rest;
        Ok(head)
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        self.take(N)?.try_into().map_err(|_| FrameError::Body)
    }
    pub(super) fn u8(&mut self) -> Result<u8, FrameError> {
        Ok(u8::from_le_bytes(self.array()?))
    }
    pub(super) fn u16(&mut self) -> Result<u16, FrameError> {
        Ok(u16::from_le_bytes(self.array()?))
    }
    fn u32(&mut self) -> Result<u32, FrameError> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    fn count(&mut self) -> Result<usize, FrameError> {
        let count = self.u8()?.into();
        if (1..=WORKERS_MAX).contains(&count) {
            Ok(count)
        } else {
            Err(FrameError::Body)
        }
    }
    fn remote(&mut self) -> Result<Remote, FrameError> {
        Ok(Remote {
            rkey: Rkey(self.u32()?),
            addr: u64::from_le_bytes(self.array()?),
        })
    }
    fn blob(&mut self) -> Result<&'a [u8], FrameError> {
        let len = self.u16()?.into();
        if len > TICKET_BYTES_MAX {
            Err(FrameError::Body)
        } else {
            self.take(len)
        }
    }
    fn endpoint(&mut self) -> Result<Endpoint, FrameError> {
        Endpoint::new(self.blob()?).map_err(|_| FrameError::Body)
    }
    fn worker_grant(&mut self) -> Result<WorkerGrant, FrameError> {
        let fds = self.u8()?;
        if usize::from(fds) > TICKET_FDS_MAX {
            return Err(FrameError::Body);
        }
        let (lines, overflow) = (self.remote()?, self.remote()?);
        let announce = match self.u8()? {
            0 => Announce::Never,
            1 => Announce::AfterPause,
            2 => Announce::Always,
            _ => return Err(FrameError::Body),
        };
        let ticket = self.blob()?.to_vec();
        let (requests, replies) = (self.endpoint()?, self.endpoint()?);
        Ok(WorkerGrant {
            ticket,
            fds,
            lines,
            overflow,
            announce,
            requests,
            replies,
            store: None,
        })
    }
    fn store_grant(&mut self) -> Result<StoreGrant, FrameError> {
        let fds = self.u8()?;
        if usize::from(fds) > STORE_FDS_MAX {
            return Err(FrameError::Body);
        }
        Ok(StoreGrant {
            fds,
            memory: self.remote()?,
            now: u64::from_le_bytes(self.array()?),
            ticket: self.blob()?.to_vec(),
        })
    }
    pub(super) fn end(&self) -> Result<(), FrameError> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(FrameError::Body)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hello::Refusal;
    use proptest::prelude::*;

    fn endpoint(byte: u8, len: usize) -> Endpoint {
        Endpoint::new(&vec![byte; len]).unwrap()
    }

    fn split(frame: &[u8]) -> (Header, &[u8]) {
        let (head, body) = frame.split_at(HEADER_BYTES);
        let header = Header::parse(head.try_into().unwrap()).unwrap();
        assert_eq!(header.body_bytes, body.len());
        (header, body)
    }

    fn grant(workers: usize) -> Grant {
        let remote = |n| Remote {
            rkey: Rkey(n),
            addr: u64::from(n) << 20,
        };
        let worker = |n: usize| WorkerGrant {
            ticket: vec![n as u8; TICKET_BYTES_MAX],
            fds: 3,
            lines: remote(1),
            overflow: remote(2),
            announce: Announce::AfterPause,
            requests: endpoint(4, 96),
            replies: endpoint(5, 0),
            store: None,
        };
        Grant {
            epoch: 9,
            window: 256,
            reply_bytes_max: 4096,
            workers: (0..workers).map(worker).collect(),
        }
    }

    fn with_stores(mut grant: Grant) -> Grant {
        for (n, worker) in (0..).zip(&mut grant.workers) {
            worker.store = Some(StoreGrant {
                fds: 1,
                memory: worker.lines,
                now: 1 << 60 | n,
                ticket: vec![9; TICKET_BYTES_MAX],
            });
        }
        grant
    }

    #[test]
    fn frames_round_trip() {
        let claim = Claim {
            token: Token([3; 16]),
            window: 64,
            reply_bytes_max: 4096,
            reads: false,
        };
        for claim in [
            claim,
            Claim {
                reads: true,
                ..claim
            },
        ] {
            let frame = claim.to_frame();
            let (header, body) = split(&frame);
            assert_eq!((header.kind, Claim::parse(body)), (Kind::Claim, Ok(claim)));
            let other = [body, &[1]].concat();
            assert_eq!(Claim::parse(&other).is_ok(), !claim.reads);
            assert!(Claim::parse(&[body, &[0]].concat()).is_err());
        }

        for grant in [grant(WORKERS_MAX), with_stores(grant(WORKERS_MAX))] {
            let frame = grant.to_frame();
            let (header, body) = split(&frame);
            assert_eq!((header.kind, Grant::parse(body)), (Kind::Grant, Ok(grant)));
        }

        let pair = WorkerAccept {
            requests: endpoint(1, 10),
            replies: endpoint(2, 20),
        };
        let accept = Accept {
            workers: vec![pair; 3],
        };
        let frame = accept.to_frame();
        let (header, body) = split(&frame);
        assert_eq!(
            (header.kind, Accept::parse(body)),
            (Kind::Accept, Ok(accept))
        );

        for refusal in [
            Refusal::Token,
            Refusal::Full,
            Refusal::Malformed,
            Refusal::Memory,
        ] {
            let frame = refusal.to_frame();
            let (header, body) = split(&frame);
            assert_eq!(
                (header.kind, Refusal::parse(body)),
                (Kind::Refusal, refusal)
            );
        }
        assert_eq!(
            split(&Go.to_frame()).0,
            Header {
                kind: Kind::Go,
                body_bytes: 0
            }
        );
    }

    #[test]
    fn truncated_and_overlong_frames_are_refused() {
        let frame = grant(2).to_frame();
        let body = &frame[HEADER_BYTES..];
        for cut in 0..body.len() {
            assert_eq!(
                Grant::parse(&body[..cut]),
                Err(FrameError::Body),
                "cut at {cut}"
            );
        }
        let surplus = [body, &[0]].concat();
        assert_eq!(Grant::parse(&surplus), Err(FrameError::Body));
        let (stores, none) = (with_stores(grant(2)).to_frame(), body.len());
        let body = &stores[HEADER_BYTES..];
        for cut in (0..body.len()).filter(|cut| *cut != none) {
            assert_eq!(Grant::parse(&body[..cut]), Err(FrameError::Body), "{cut}");
        }
    }

    #[test]
    fn out_of_range_values_are_refused_before_allocation() {
        assert_eq!(
            Grant::parse(&[0, 0, 1, 0, 0, 0, 0, 0, 1]),
            Err(FrameError::Body)
        );
        assert_eq!(
            Grant::parse(&[1, 0, 3, 0, 0, 0, 0, 0, 1]),
            Err(FrameError::Body)
        );
        assert_eq!(Accept::parse(&[255]), Err(FrameError::Body));
        assert_eq!(Accept::parse(&[1, 0xff, 0xff]), Err(FrameError::Body));
        assert_eq!(Header::parse(b"GET / HT"), Err(FrameError::Magic));
        assert_eq!(
            Header::parse(b"HWL\x07\x01\0\0\0"),
            Err(FrameError::Version(7))
        );
        assert_eq!(
            Header::parse(b"HWL\x00\x09\0\0\0"),
            Err(FrameError::Kind(9))
        );
    }

    proptest! {
        #[test]
        fn decoding_random_bytes_does_not_panic(body in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = (Claim::parse(&body), Grant::parse(&body), Accept::parse(&body), Refusal::parse(&body));
        }

        #[test]
        fn decoding_a_mutated_grant_does_not_panic(at in 0usize..1000, byte: u8) {
            let mut frame = grant(1).to_frame();
            let at = HEADER_BYTES + at % (frame.len() - HEADER_BYTES);
            frame[at] = byte;
            let _ = Grant::parse(&frame[HEADER_BYTES..]);
        }
    }
}
