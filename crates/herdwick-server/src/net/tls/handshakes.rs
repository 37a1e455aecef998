//! TLS handshakes in progress, with a deadline each and a bound on the bytes of all of them.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use mio::{Registry, Token, net::TcpStream};

use super::{
    Certificates, TlsStream,
    stream::{HANDSHAKE_BYTES_MAX, Shaken},
};

/// How often deadlines are checked.
const TICK: Duration = Duration::from_secs(1);
/// Bytes that all peers together may have sent in unfinished handshakes: 256 of the longest.
const BYTES_MAX: usize = 256 * HANDSHAKE_BYTES_MAX;

/// Connections with a handshake in progress. They belong to no worker yet, so no worker waits for a
/// signature.
pub(crate) struct Handshakes {
    places: Vec<Option<Handshake>>,
    vacant: Vec<usize>,
    /// Bytes that all their peers have sent.
    came: usize,
    /// When deadlines are checked next.
    next_check: Duration,
    /// The token of the first entry.
    first: usize,
}

struct Handshake {
    stream: Box<TlsStream>,
    came: usize,
    deadline: Duration,
}

/// The state of a handshake after a step.
#[derive(Debug)]
pub(crate) enum HandshakeProgress {
    /// In progress.
    UnderWay,
    /// Completed; the connection can be served.
    Done(Box<TlsStream>),
    /// Failed; the connection is closed.
    Failed,
}

impl Handshakes {
    /// Creates an empty table. Its tokens begin with `first`.
    pub(crate) fn new(first: usize) -> Self {
        Self {
            places: Vec::new(),
            vacant: Vec::new(),
            came: 0,
            next_check: Duration::ZERO,
            first,
        }
    }

    /// Returns the longest time to sleep: until a deadline may have passed.
    pub(crate) fn tick(&self) -> Option<Duration> {
        (self.vacant.len() < self.places.len()).then_some(TICK)
    }

    /// Begins a handshake that must be complete by `deadline`.
    pub(crate) fn begin(
        &mut self,
        socket: TcpStream,
        certificates: &Certificates,
        registry: &Registry,
        deadline: Duration,
    ) -> HandshakeProgress {
        let Ok(session) = certificates.session() else {
            certificates.counters.failed.fetch_add(1, Relaxed);
            return HandshakeProgress::Failed;
        };
        let mut stream = Box::new(TlsStream::new(socket, session));
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        let both = mio::Interest::READABLE | mio::Interest::WRITABLE;
        let token = Token(self.first + place);
        if registry.register(stream.socket_mut(), token, both).is_err() {
            certificates.counters.failed.fetch_add(1, Relaxed);
            self.vacant.push(place);
            return HandshakeProgress::Failed;
        }
        self.places[place] = Some(Handshake {
            stream,
            came: 0,
            deadline,
        });
        self.go_on(token, certificates, registry)
    }

    /// Continues the handshake at `token` after an event.
    pub(crate) fn go_on(
        &mut self,
        token: Token,
        certificates: &Certificates,
        registry: &Registry,
    ) -> HandshakeProgress {
        // A token below the first wraps to a place that does not exist.
        let place = token.0.wrapping_sub(self.first);
        // The token of the wakeup, or of a handshake that ended earlier in the same batch of events.
        let Some(Some(handshake)) = self.places.get_mut(place) else {
            return HandshakeProgress::UnderWay;
        };
        let before = handshake.came;
        let shaken = handshake.stream.shake_hands(&mut handshake.came);
        self.came += handshake.came - before;
        match shaken {
            Ok(Shaken::NotYet) => HandshakeProgress::UnderWay,
            Ok(Shaken::Done) => match self.take_out(place, registry) {
                Some(stream) => {
                    let new = u64::from(!stream.is_resumed());
                    certificates.counters.new_sessions.fetch_add(new, Relaxed);
                    HandshakeProgress::Done(stream)
                }
                None => HandshakeProgress::Failed,
            },
            Err(_) => {
                certificates.counters.failed.fetch_add(1, Relaxed);
                self.take_out(place, registry);
                HandshakeProgress::Failed
            }
        }
    }

    /// Aborts handshakes that are past their deadline, then the largest ones while all together
    /// exceed [`BYTES_MAX`]. Returns how many it aborted.
    pub(crate) fn give_up(
        &mut self,
        now: Duration,
        certificates: &Certificates,
        registry: &Registry,
    ) -> usize {
        let counters = &certificates.counters;
        let mut given_up = 0;
        if now >= self.next_check {
            self.next_check = now + TICK;
            for place in 0..self.places.len() {
                let late = matches!(&self.places[place], Some(one) if one.deadline <= now);
                if late && self.take_out(place, registry).is_some() {
                    counters.timeouts.fetch_add(1, Relaxed);
                    given_up += 1;
                }
            }
        }
        while self.came > BYTES_MAX {
            let came = |place: &usize| self.places[*place].as_ref().map_or(0, |one| one.came);
            let Some(largest) = (0..self.places.len()).max_by_key(came) else {
                break;
            };
            self.take_out(largest, registry);
            counters.over_memory.fetch_add(1, Relaxed);
            given_up += 1;
        }
        given_up
    }

    fn take_out(&mut self, place: usize, registry: &Registry) -> Option<Box<TlsStream>> {
        let mut handshake = self.places[place].take()?;
        self.vacant.push(place);
        self.came -= handshake.came;
        // Closing the descriptor would deregister it as well.
        let _ = registry.deregister(handshake.stream.socket_mut());
        Some(handshake.stream)
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, net};

    use mio::Poll;
    use rcgen::{CertifiedKey, generate_simple_self_signed};

    use super::*;
    use crate::settings::tls::{ClientCertificates, KeyFormat, Tls};

    /// Unfinished handshakes with peers that send nothing for now.
    struct Fixture {
        poll: Poll,
        certificates: Certificates,
        listener: mio::net::TcpListener,
        handshakes: Handshakes,
    }

    impl Fixture {
        fn new(name: &str) -> Self {
            let CertifiedKey { cert, signing_key } =
                generate_simple_self_signed(["localhost".into()]).unwrap();
            let name = format!("herdwick-fixture-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::write(&path, cert.pem() + &signing_key.serialize_pem()).unwrap();
            let files = Tls {
                chain: path.clone(),
                key: path.clone(),
                key_format: KeyFormat::Pem,
                authorities: None,
                clients: ClientCertificates::Ignored,
                only_1_3: false,
                session_cache: false,
            };
            let certificates = Certificates::open(&files).unwrap();
            std::fs::remove_file(&path).unwrap();
            Self {
                poll: Poll::new().unwrap(),
                certificates,
                listener: mio::net::TcpListener::bind(([127, 0, 0, 1], 0).into()).unwrap(),
                handshakes: Handshakes::new(1),
            }
        }

        fn begin(&mut self, said: &[u8], now: u64) -> net::TcpStream {
            let mut peer = net::TcpStream::connect(self.listener.local_addr().unwrap()).unwrap();
            peer.write_all(said).unwrap();
            let socket = loop {
                if let Ok((socket, _)) = self.listener.accept() {
                    break socket;
                }
            };
            let registry = self.poll.registry();
            let deadline = Duration::from_secs(now + 10);
            let progress = self
                .handshakes
                .begin(socket, &self.certificates, registry, deadline);
            assert!(
                matches!(progress, HandshakeProgress::UnderWay),
                "{progress:?}"
            );
            peer
        }

        /// Waits until the `said` bytes of each peer have been read.
        fn take_in(&mut self, peers: usize, said: usize) {
            while self.handshakes.came < peers * said {
                for place in 0..peers {
                    let registry = self.poll.registry();
                    self.handshakes
                        .go_on(Token(1 + place), &self.certificates, registry);
                }
            }
        }

        fn give_up(&mut self, now: u64) -> usize {
            let registry = self.poll.registry();
            let now = Duration::from_secs(now);
            self.handshakes.give_up(now, &self.certificates, registry)
        }
    }

    #[test]
    fn handshake_times_out() {
        let mut fixture = Fixture::new("late");
        let _early = [fixture.begin(b"", 0), fixture.begin(b"\x16", 0)];
        let _later = fixture.begin(b"", 5);
        assert_eq!(fixture.give_up(9), 0);
        assert_eq!(fixture.give_up(10), 2);
        assert_eq!(fixture.give_up(14), 0);
        assert!(fixture.handshakes.tick().is_some());
        assert_eq!(fixture.give_up(15), 1);
        assert!(fixture.handshakes.tick().is_none());
        assert_eq!(fixture.certificates.counters.timeouts.load(Relaxed), 3);
        assert_eq!(fixture.handshakes.came, 0);
    }

    /// The beginning of a ClientHello that announces a great length.
    fn endless(bytes: usize) -> Vec<u8> {
        let announced = [&[0x01, 0, 0xfe, 0][..], &vec![0; bytes]].concat();
        let mut said = Vec::new();
        for record in announced.chunks(1 << 14) {
            said.extend_from_slice(&[0x16, 3, 3]);
            said.extend_from_slice(&(record.len() as u16).to_be_bytes());
            said.extend_from_slice(record);
        }
        said
    }

    #[test]
    fn largest_handshake_is_ended_when_the_total_is_exceeded() {
        let mut fixture = Fixture::new("crowded");
        let said = endless(HANDSHAKE_BYTES_MAX - 100);
        let count = BYTES_MAX / said.len() + 2;
        let _peers: Vec<_> = (0..count).map(|_| fixture.begin(&said, 0)).collect();
        fixture.take_in(count, said.len());
        assert!(fixture.handshakes.came > BYTES_MAX);
        let given_up = fixture.give_up(1);
        assert!(given_up > 0 && fixture.handshakes.came <= BYTES_MAX);
        let crowded = fixture.certificates.counters.over_memory.load(Relaxed);
        assert_eq!(crowded, given_up as u64);
    }

    #[test]
    fn bytes_of_one_handshake_are_bounded() {
        let mut fixture = Fixture::new("long");
        let mut peer = fixture.begin(b"", 0);
        peer.write_all(&endless(2 * HANDSHAKE_BYTES_MAX)).unwrap();
        let failed = loop {
            let registry = fixture.poll.registry();
            let certificates = &fixture.certificates;
            match fixture.handshakes.go_on(Token(1), certificates, registry) {
                HandshakeProgress::UnderWay => {}
                other => break other,
            }
        };
        assert!(matches!(failed, HandshakeProgress::Failed));
        assert_eq!(fixture.certificates.counters.failed.load(Relaxed), 1);
    }
}
