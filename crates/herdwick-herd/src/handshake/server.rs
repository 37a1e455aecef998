//! The server's side of one lease socket: from the claim to the last heartbeat. Input is bounded in
//! size and time in every state.

use std::time::Duration;

use herdwick_fabric::ENDPOINT_BYTES_MAX;

use crate::hello::{
    Accept, BEATS_MAX, Claim, FrameError, HANDSHAKE_DEADLINE, HEADER_BYTES, HEARTBEAT, Header,
    Kind, LEASE_DEADLINE, PARTS_BODY_MAX, Parts, WORKERS_MAX,
};

/// Largest body from a client, in bytes: the parts of an engine.
const BODY_BYTES_MAX: usize = PARTS_BODY_MAX;
// An accept for the most workers, two endpoints each, is shorter.
const _: () = assert!(WORKERS_MAX * 2 * (2 + ENDPOINT_BYTES_MAX) < BODY_BYTES_MAX);

/// The state of a lease socket.
#[derive(Debug)]
pub struct ServerHandshake {
    state: ServerState,
    input: Vec<u8>,
    /// When the socket times out, unless it progresses.
    deadline: Duration,
    /// Heartbeats received in the current period, and the end of that period.
    beats: usize,
    period_end: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerState {
    /// Waiting for the client's claim.
    Claim,
    /// The workers are allocating; the client must not send.
    Granting,
    /// Waiting for the client's accept.
    Accept,
    /// The workers are connecting; the client must not send.
    Connecting,
    /// The lease is live; every byte is a heartbeat.
    Live,
}

/// A complete message from the client.
#[derive(Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// A claim of a lease.
    Claim(Claim),
    /// The client's queue pairs, in answer to the grant.
    Accept(Accept),
    /// The same, in answer to the parts of another engine than HERD.
    Parts(Parts),
}

impl ServerHandshake {
    /// Awaits the claim of a client that connected at `now`.
    #[must_use]
    pub fn new(now: Duration) -> Self {
        Self {
            state: ServerState::Claim,
            input: Vec::new(),
            deadline: now + HANDSHAKE_DEADLINE,
            beats: 0,
            period_end: now,
        }
    }

    /// Parses bytes from the socket. At most one event is due at a time.
    ///
    /// # Errors
    /// The bytes are malformed or out of order; the socket must be closed.
    pub fn handle_input(
        &mut self,
        now: Duration,
        bytes: &[u8],
    ) -> Result<Option<ServerEvent>, FrameError> {
        let due = match self.state {
            ServerState::Live => return self.beat(now, bytes.len()).map(|()| None),
            ServerState::Granting | ServerState::Connecting => return Err(FrameError::Body),
            ServerState::Claim => Kind::Claim,
            ServerState::Accept => Kind::Accept,
        };
        // Checked before it is kept, so that a client which never completes a frame holds no more.
        if self.input.len() + bytes.len() > HEADER_BYTES + BODY_BYTES_MAX {
            return Err(FrameError::Body);
        }
        self.input.extend_from_slice(bytes);
        let Some((head, body)) = self.input.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let header = Header::parse(head)?;
        // The accept of another engine's lease is a frame of parts.
        let accepts = due == Kind::Accept && header.kind == Kind::Parts;
        if header.kind != due && !accepts
            || header.body_bytes > BODY_BYTES_MAX
            || body.len() > header.body_bytes
        {
            return Err(FrameError::Body);
        }
        if body.len() < header.body_bytes {
            return Ok(None);
        }
        let event = match header.kind {
            Kind::Claim => ServerEvent::Claim(Claim::parse(body)?),
            Kind::Parts => ServerEvent::Parts(Parts::parse(body)?),
            _ => ServerEvent::Accept(Accept::parse(body)?),
        };
        self.state = if due == Kind::Claim {
            ServerState::Granting
        } else {
            ServerState::Connecting
        };
        // Not `clear`: the buffer's memory goes back. Heartbeats need none.
        self.input = Vec::new();
        Ok(Some(event))
    }

    /// Extends the lease. A flood of heartbeats ends it instead, because it would keep the lease
    /// manager from its other clients.
    fn beat(&mut self, now: Duration, beats: usize) -> Result<(), FrameError> {
        if now >= self.period_end {
            self.period_end = now + HEARTBEAT;
            self.beats = 0;
        }
        self.beats += beats;
        if self.beats > BEATS_MAX {
            return Err(FrameError::Body);
        }
        self.deadline = now + LEASE_DEADLINE;
        Ok(())
    }

    /// The grant was sent.
    pub fn granted(&mut self) {
        self.state = ServerState::Accept;
    }

    /// Every worker has connected the lease.
    pub fn connected(&mut self, now: Duration) {
        self.state = ServerState::Live;
        self.deadline = now + LEASE_DEADLINE;
    }

    /// Extends the deadline by `late`.
    pub fn excuse(&mut self, late: Duration) {
        self.deadline += late;
    }

    /// Returns when this client times out, unless it sends something.
    #[must_use]
    pub fn poll_timeout(&self) -> Duration {
        self.deadline
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hello::{Token, WorkerAccept};
    use herdwick_fabric::Endpoint;

    const T0: Duration = Duration::from_secs(100);

    fn claim() -> Claim {
        Claim {
            token: Token([1; 16]),
            window: 16,
            reply_bytes_max: 4096,
            reads: false,
        }
    }

    fn accept() -> Accept {
        let endpoint = Endpoint::new(&[7; 96]).unwrap();
        Accept {
            workers: vec![
                WorkerAccept {
                    requests: endpoint,
                    replies: endpoint
                };
                2
            ],
        }
    }

    #[test]
    fn handshake_gives_the_same_events_at_every_split() {
        let (claim_frame, accept_frame) = (claim().to_frame(), accept().to_frame());
        for cut in 0..claim_frame.len() {
            let mut shake = ServerHandshake::new(T0);
            assert_eq!(shake.handle_input(T0, &claim_frame[..cut]), Ok(None));
            let event = shake.handle_input(T0, &claim_frame[cut..]);
            assert_eq!(event, Ok(Some(ServerEvent::Claim(claim()))));
            shake.granted();
            for byte in &accept_frame[..accept_frame.len() - 1] {
                assert_eq!(shake.handle_input(T0, &[*byte]), Ok(None));
            }
            let event = shake.handle_input(T0, &accept_frame[accept_frame.len() - 1..]);
            assert_eq!(event, Ok(Some(ServerEvent::Accept(accept()))));
        }
    }

    #[test]
    fn frames_out_of_order_or_repeated_end_the_handshake() {
        let mut shake = ServerHandshake::new(T0);
        assert!(shake.handle_input(T0, &accept().to_frame()).is_err());
        let mut shake = ServerHandshake::new(T0);
        let twice = [claim().to_frame(), claim().to_frame()].concat();
        assert!(shake.handle_input(T0, &twice).is_err());
        let mut shake = ServerHandshake::new(T0);
        assert!(shake.handle_input(T0, &claim().to_frame()).is_ok());
        assert!(
            shake.handle_input(T0, b"x").is_err(),
            "nothing is due while granting"
        );
    }

    #[test]
    fn out_of_range_lengths_are_refused_without_allocation() {
        let mut shake = ServerHandshake::new(T0);
        assert!(shake.handle_input(T0, b"HWL\x00\x01\x00\xff\xff").is_err());
        let mut shake = ServerHandshake::new(T0);
        assert!(shake.handle_input(T0, &vec![b'H'; 1 << 20]).is_err());
        assert!(shake.input.is_empty());
    }

    #[test]
    fn slow_bytes_do_not_extend_the_handshake_and_heartbeats_extend_the_lease() {
        let mut shake = ServerHandshake::new(T0);
        let frame = claim().to_frame();
        let later = T0 + Duration::from_secs(4);
        assert_eq!(shake.handle_input(later, &frame[..9]), Ok(None));
        assert_eq!(shake.poll_timeout(), T0 + HANDSHAKE_DEADLINE);
        let mut shake = ServerHandshake::new(T0);
        let _ = shake.handle_input(T0, &frame);
        shake.granted();
        let _ = shake.handle_input(T0, &accept().to_frame());
        shake.connected(T0);
        assert_eq!(shake.handle_input(later, &[0]), Ok(None));
        assert_eq!(shake.poll_timeout(), later + LEASE_DEADLINE);
    }

    #[test]
    fn flood_of_heartbeats_ends_the_lease() {
        let mut shake = ServerHandshake::new(T0);
        let _ = shake.handle_input(T0, &claim().to_frame());
        shake.granted();
        let _ = shake.handle_input(T0, &accept().to_frame());
        shake.connected(T0);
        for period in 0..4 {
            // As many as accumulate while the server is stopped.
            let now = T0 + period * HEARTBEAT;
            assert_eq!(shake.handle_input(now, &[0; BEATS_MAX - 1]), Ok(None));
            assert_eq!(shake.handle_input(now, &[0]), Ok(None));
        }
        assert!(shake.handle_input(T0 + 3 * HEARTBEAT, &[0]).is_err());
    }
}
