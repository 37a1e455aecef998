//! The client's side of one lease socket: from the claim to the server's go. Nothing that the server
//! sends is trusted.

use std::os::fd::OwnedFd;

use herdwick_fabric::PdTicket;

use crate::hello::{Accept, Claim, FrameError, Grant, HEADER_BYTES, Header, Kind, Parts, Refusal};

/// The state of a lease socket.
#[derive(Debug)]
pub struct ClientHandshake {
    state: ClientState,
    input: Vec<u8>,
    /// What came with the frame's first byte.
    fds: Vec<OwnedFd>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientState {
    /// The claim is sent; waiting for the grant.
    Claimed,
    /// Joining the domains; the server does not send.
    Granted,
    /// The accept is sent; waiting for the go.
    Accepted,
    /// Requests may be written; the server does not send.
    Live,
}

/// A complete message from the server.
#[derive(Debug)]
pub enum ClientEvent {
    /// A lease, and the tickets of each worker, in the order of [`Grant::workers`].
    Granted(Grant, Vec<WorkerTickets>),
    /// A lease of another engine than HERD: its parts, each with its descriptors.
    Parts(Vec<PdTicket>),
    /// Requests may be written.
    Go,
}

/// The tickets of one worker.
#[derive(Debug)]
pub struct WorkerTickets {
    /// That of its domain.
    pub domain: PdTicket,
    /// That of its store, if it is granted.
    pub store: Option<PdTicket>,
}

/// Why there is no lease. The socket must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The server's answer.
    #[error("the server refuses: {0}")]
    Refused(Refusal),
    /// The bytes are malformed or out of order.
    #[error("the server's frame: {0}")]
    Frame(#[from] FrameError),
}

impl ClientHandshake {
    /// Starts with a claim. Returns the bytes to send, too.
    #[must_use]
    pub fn new(claim: &Claim) -> (Self, Vec<u8>) {
        let shake = Self {
            state: ClientState::Claimed,
            input: Vec::new(),
            fds: Vec::new(),
        };
        (shake, claim.to_frame())
    }

    /// Returns how many bytes are due, at most: those that follow belong to the next frame.
    #[must_use]
    pub fn wanted(&self) -> usize {
        if matches!(self.state, ClientState::Granted | ClientState::Live) {
            return 0;
        }
        let whole = match self.header() {
            Some(Ok(header)) => HEADER_BYTES + header.body_bytes,
            _ => HEADER_BYTES,
        };
        whole.saturating_sub(self.input.len())
    }

    /// Parses bytes from the socket, at most those that are [`wanted`](Self::wanted), and the
    /// descriptors that came with the first of them.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub fn handle_input(
        &mut self,
        bytes: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<Option<ClientEvent>, HandshakeError> {
        let due = match self.state {
            ClientState::Claimed => Kind::Grant,
            ClientState::Accepted => Kind::Go,
            ClientState::Granted | ClientState::Live => return Err(FrameError::Body.into()),
        };
        // Descriptors ride on the first byte of a grant, so that no server can send any number.
        let rides = self.input.is_empty() && due == Kind::Grant;
        if bytes.len() > self.wanted() || (!fds.is_empty() && !rides) {
            return Err(FrameError::Body.into());
        }
        self.fds.extend(fds);
        self.input.extend_from_slice(bytes);
        let Some(header) = self.header().transpose()? else {
            return Ok(None);
        };
        // A lease of another engine has parts in the place of the grant.
        let grants = due == Kind::Grant && header.kind == Kind::Parts;
        if ![due, Kind::Refusal].contains(&header.kind) && !grants {
            return Err(FrameError::Body.into());
        }
        if self.wanted() > 0 {
            return Ok(None);
        }
        let frame = std::mem::take(&mut self.input);
        let body = &frame[HEADER_BYTES..];
        match header.kind {
            Kind::Refusal => Err(HandshakeError::Refused(Refusal::parse(body))),
            Kind::Go => {
                self.state = ClientState::Live;
                Ok(Some(ClientEvent::Go))
            }
            Kind::Parts => {
                let Parts(parts) = Parts::parse(body)?;
                self.state = ClientState::Granted;
                let mut fds = std::mem::take(&mut self.fds).into_iter();
                let parts = parts.iter();
                let parts = parts.map(|part| ticket(&part.blob, part.fds, &mut fds));
                Ok(Some(ClientEvent::Parts(parts.collect())))
            }
            _ => {
                let grant = Grant::parse(body)?;
                self.state = ClientState::Granted;
                let mut fds = std::mem::take(&mut self.fds).into_iter();
                let workers = grant.workers.iter();
                let workers = workers.map(|worker| WorkerTickets {
                    domain: ticket(&worker.ticket, worker.fds, &mut fds),
                    store: (worker.store.as_ref())
                        .map(|store| ticket(&store.ticket, store.fds, &mut fds)),
                });
                let tickets = workers.collect();
                Ok(Some(ClientEvent::Granted(grant, tickets)))
            }
        }
    }

    /// Accepts the grant. Returns the bytes to send.
    #[must_use]
    pub fn accept(&mut self, accept: &Accept) -> Vec<u8> {
        self.state = ClientState::Accepted;
        accept.to_frame()
    }

    /// Accepts the parts of another engine than HERD. Returns the bytes to send.
    #[must_use]
    pub fn accept_parts(&mut self, accept: &Parts) -> Vec<u8> {
        self.state = ClientState::Accepted;
        accept.to_frame()
    }

    /// Returns the header of the frame that is coming, if there is enough of it.
    fn header(&self) -> Option<Result<Header, FrameError>> {
        self.input.first_chunk().map(Header::parse)
    }
}

/// Makes a ticket with its number of the frame's descriptors, which are dealt out in order. Where there are
/// too few, a provider finds its ticket malformed.
fn ticket(blob: &[u8], count: u8, fds: &mut impl Iterator<Item = OwnedFd>) -> PdTicket {
    PdTicket {
        fds: fds.by_ref().take(count.into()).collect(),
        blob: blob.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use herdwick_fabric::{Endpoint, Remote, Rkey};
    use proptest::prelude::*;

    use super::*;
    use crate::{
        Announce,
        handshake::{ServerEvent, ServerHandshake},
        hello::{Go, Part, StoreGrant, Token, WorkerAccept, WorkerGrant},
    };

    fn claim() -> Claim {
        Claim {
            token: Token([1; 16]),
            window: 16,
            reply_bytes_max: 4096,
            reads: false,
        }
    }

    fn grant() -> Grant {
        let endpoint = Endpoint::new(&[7; 40]).unwrap();
        let remote = Remote {
            rkey: Rkey(5),
            addr: 64,
        };
        let worker = |fds| WorkerGrant {
            ticket: vec![fds; 20],
            fds,
            lines: remote,
            overflow: remote,
            announce: Announce::Never,
            requests: endpoint,
            replies: endpoint,
            store: Some(StoreGrant {
                fds: 2 - fds,
                memory: remote,
                now: 7,
                ticket: vec![fds; 9],
            }),
        };
        Grant {
            epoch: 3,
            window: 16,
            reply_bytes_max: 4096,
            workers: vec![worker(1), worker(2)],
        }
    }

    fn accept() -> Accept {
        let endpoint = Endpoint::new(&[8; 40]).unwrap();
        let worker = WorkerAccept {
            requests: endpoint,
            replies: endpoint,
        };
        Accept {
            workers: vec![worker; 2],
        }
    }

    fn descriptors(count: usize) -> Vec<OwnedFd> {
        let file = || std::fs::File::open("/dev/null").unwrap().into();
        (0..count).map(|_| file()).collect()
    }

    /// Feeds `frame` in pieces of `step` bytes, never more than are wanted.
    fn feed(
        shake: &mut ClientHandshake,
        mut frame: &[u8],
        mut fds: Vec<OwnedFd>,
        step: usize,
    ) -> Result<ClientEvent, HandshakeError> {
        loop {
            let (piece, rest) = frame.split_at(step.min(shake.wanted()).min(frame.len()));
            assert!(!piece.is_empty(), "an event is due");
            if let Some(event) = shake.handle_input(piece, std::mem::take(&mut fds))? {
                assert!(rest.is_empty());
                return Ok(event);
            }
            frame = rest;
        }
    }

    #[test]
    fn both_sides_meet_however_the_bytes_are_cut() {
        const NOW: Duration = Duration::from_secs(1);
        for step in [1, 7, usize::MAX] {
            let (mut client, bytes) = ClientHandshake::new(&claim());
            let mut server = ServerHandshake::new(NOW);
            let event = server.handle_input(NOW, &bytes);
            assert_eq!(event, Ok(Some(ServerEvent::Claim(claim()))));
            server.granted();
            let event = feed(&mut client, &grant().to_frame(), descriptors(4), step);
            let Ok(ClientEvent::Granted(granted, tickets)) = event else {
                panic!("{event:?}");
            };
            assert_eq!(granted, grant());
            let count = |worker: &WorkerTickets| {
                let store = worker.store.as_ref().map(|store| store.fds.len());
                (worker.domain.fds.len(), store)
            };
            let counts: Vec<_> = tickets.iter().map(count).collect();
            assert_eq!(counts, [(1, Some(1)), (2, Some(0))]);
            let blob = &tickets[1].domain.blob[..];
            assert_eq!((client.wanted(), blob), (0, &[2; 20][..]));
            let event = server.handle_input(NOW, &client.accept(&accept()));
            assert_eq!(event, Ok(Some(ServerEvent::Accept(accept()))));
            server.connected(NOW);
            let event = feed(&mut client, &Go.to_frame(), Vec::new(), step);
            assert!(matches!(event, Ok(ClientEvent::Go)), "{event:?}");
            assert!(client.handle_input(b"x", Vec::new()).is_err());
        }
    }

    #[test]
    fn an_engines_parts_take_the_places_of_grant_and_accept() {
        const NOW: Duration = Duration::from_secs(1);
        let part = |byte, fds| Part {
            blob: vec![byte; 700],
            fds,
        };
        let (grant, accept) = (Parts(vec![part(1, 2), part(2, 1)]), Parts(vec![part(3, 0)]));
        let (mut client, bytes) = ClientHandshake::new(&claim());
        let mut server = ServerHandshake::new(NOW);
        assert!(server.handle_input(NOW, &grant.to_frame()).is_err());
        let mut server = ServerHandshake::new(NOW);
        server.handle_input(NOW, &bytes).unwrap();
        server.granted();
        let event = feed(&mut client, &grant.to_frame(), descriptors(3), usize::MAX);
        let Ok(ClientEvent::Parts(parts)) = event else {
            panic!("{event:?}");
        };
        let counts = parts.iter().map(|part| (part.blob[0], part.fds.len()));
        assert_eq!(counts.collect::<Vec<_>>(), [(1, 2), (2, 1)]);
        let event = server.handle_input(NOW, &client.accept_parts(&accept));
        assert_eq!(event, Ok(Some(ServerEvent::Parts(accept.clone()))));
        // In place of go there are none.
        let again = feed(&mut client, &grant.to_frame(), Vec::new(), 9);
        assert!(again.is_err());
    }

    #[test]
    fn a_refusal_is_told_at_each_step() {
        let (mut shake, _) = ClientHandshake::new(&claim());
        let refused = feed(&mut shake, &Refusal::Full.to_frame(), Vec::new(), 3);
        assert_eq!(refused.err(), Some(HandshakeError::Refused(Refusal::Full)));
        let (mut shake, _) = ClientHandshake::new(&claim());
        feed(&mut shake, &grant().to_frame(), Vec::new(), 9).unwrap();
        let _ = shake.accept(&accept());
        let refused = feed(&mut shake, &Refusal::Memory.to_frame(), Vec::new(), 3);
        let memory = HandshakeError::Refused(Refusal::Memory);
        assert_eq!(refused.err(), Some(memory));
    }

    #[test]
    fn frames_and_descriptors_out_of_place_end_it() {
        let out_of_place = |shake: &mut ClientHandshake, bytes: &[u8], fds| {
            matches!(
                shake.handle_input(bytes, descriptors(fds)),
                Err(HandshakeError::Frame(FrameError::Body))
            )
        };
        let (mut shake, _) = ClientHandshake::new(&claim());
        assert!(out_of_place(&mut shake, &Go.to_frame(), 0), "no go yet");
        let frame = grant().to_frame();
        let (mut shake, _) = ClientHandshake::new(&claim());
        assert!(out_of_place(&mut shake, &frame, 0), "more than is wanted");
        let (mut shake, _) = ClientHandshake::new(&claim());
        shake.handle_input(&frame[..4], descriptors(1)).unwrap();
        assert!(out_of_place(&mut shake, &frame[4..8], 1), "a later byte");
        let (mut shake, _) = ClientHandshake::new(&claim());
        feed(&mut shake, &frame, descriptors(4), 9).unwrap();
        let _ = shake.accept(&accept());
        assert!(out_of_place(&mut shake, &Go.to_frame(), 1), "on a go");
    }

    proptest! {
        #[test]
        fn decoding_random_bytes_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0usize..60) {
            let frame = grant().to_frame();
            let input = [&frame[..cut], &bytes[..]].concat();
            let (mut shake, _) = ClientHandshake::new(&claim());
            for byte in input {
                if shake.handle_input(&[byte], Vec::new()).is_err() {
                    break;
                }
            }
        }
    }
}
