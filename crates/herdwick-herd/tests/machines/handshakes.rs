//! Random schedules of the lease handshake, both sides, under virtual time: clients take a place,
//! send their frames in pieces, pause, die at any byte, send garbage, keep their lease for a while
//! and leave; the next one takes the same place. The server is stopped now and then, and extends its
//! clients' deadlines by that time.
//!
//! A client that keeps to the protocol gets its lease and keeps it; any other loses its place in time.
//!
//! The schedules find these bugs when they are planted: a handshake that each byte extends (a client
//! that dies in the middle, or sends a byte now and then, keeps its place), a lease that no heartbeat
//! extends, and a client's frame that keeps the bytes of the one before.

use std::time::Duration;

use herdwick_check::Rng;
use herdwick_fabric::{Endpoint, Remote, Rkey};
use herdwick_herd::{
    Announce,
    handshake::{ClientEvent, ClientHandshake, ServerEvent, ServerHandshake},
    hello::{
        Accept, Claim, Go, Grant, HANDSHAKE_DEADLINE, HEARTBEAT, LEASE_DEADLINE, Token,
        WorkerAccept, WorkerGrant,
    },
};

const PLACES: usize = 6;
const STEPS: usize = 6_000;
const SEEDS: u64 = 40;

/// What a client will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// It sends something at each of its turns, and heartbeats in time.
    Honest,
    /// It sends a byte now and then, and never ends.
    Dribbles,
    /// It does nothing more once it has sent so many bytes.
    DiesAfter(usize),
    /// One of its bytes is another.
    Garbles(usize),
}

/// A client at its place, and the server's side of its socket.
struct Place {
    manner: Manner,
    client: ClientHandshake,
    server: ServerHandshake,
    /// Which frame of the server is due.
    granted: bool,
    is_live: bool,
    /// Bytes on their way to the server, and to the client.
    up: Vec<u8>,
    down: Vec<u8>,
    sent: usize,
    begun: Duration,
    last_beat: Duration,
    /// For how long the server was stopped since the deadline was last set.
    excused: Duration,
    token: u8,
}

fn claim(token: u8) -> Claim {
    Claim {
        token: Token([token; 16]),
        window: 16,
        reply_bytes_max: 4096,
        reads: false,
    }
}

/// Several of each: frames of a client that differ in length and content from those of the last.
fn accept(token: u8) -> Accept {
    let endpoint = Endpoint::new(&[token; 40]).unwrap();
    let worker = WorkerAccept {
        requests: endpoint,
        replies: endpoint,
    };
    Accept {
        workers: vec![worker; 1 + usize::from(token % 3)],
    }
}

fn grant(token: u8) -> Grant {
    let endpoint = Endpoint::new(&[token; 40]).unwrap();
    let remote = Remote {
        rkey: Rkey(token.into()),
        addr: 64,
    };
    let worker = WorkerGrant {
        ticket: vec![token; 20],
        fds: 0,
        lines: remote,
        overflow: remote,
        announce: Announce::Never,
        requests: endpoint,
        replies: endpoint,
        store: None,
    };
    Grant {
        epoch: u16::from(token) + 1,
        window: 16,
        reply_bytes_max: 4096,
        workers: vec![worker; 1 + usize::from(token % 3)],
    }
}

/// Why a place is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    TimedOut,
    Malformed,
    Left,
}

impl Place {
    fn new(now: Duration, manner: Manner, token: u8) -> Self {
        let (client, up) = ClientHandshake::new(&claim(token));
        Self {
            manner,
            client,
            server: ServerHandshake::new(now),
            granted: false,
            is_live: false,
            up,
            down: Vec::new(),
            sent: 0,
            begun: now,
            last_beat: now,
            excused: Duration::ZERO,
            token,
        }
    }

    /// Whether the client has bytes that it will send at its next turn.
    fn sends(&mut self, now: Duration, dice: &mut Rng) -> usize {
        let most = match self.manner {
            Manner::Honest | Manner::Garbles(_) => 1 + dice.index(200),
            Manner::Dribbles => usize::from(dice.index(20) == 0),
            Manner::DiesAfter(bytes) => (1 + dice.index(200)).min(bytes - bytes.min(self.sent)),
        };
        let lives = matches!(self.manner, Manner::Honest | Manner::Garbles(_));
        if self.is_live && lives && now >= self.last_beat + HEARTBEAT {
            self.last_beat = now;
            self.up.push(0);
        }
        most.min(self.up.len())
    }

    /// Moves bytes from the client to the server.
    fn up(&mut self, now: Duration, dice: &mut Rng) -> Result<(), End> {
        let count = self.sends(now, dice);
        if count == 0 {
            return Ok(());
        }
        let mut bytes: Vec<u8> = self.up.drain(..count).collect();
        if let Manner::Garbles(at) = self.manner
            && (self.sent..self.sent + count).contains(&at)
        {
            bytes[at - self.sent] ^= 0x55;
        }
        self.sent += count;
        self.excused = if self.is_live {
            Duration::ZERO
        } else {
            self.excused
        };
        match self.server.handle_input(now, &bytes) {
            Ok(Some(ServerEvent::Claim(said))) => {
                self.is_told(said == claim(self.token))?;
                self.down = grant(self.token).to_frame();
                self.granted = true;
                self.server.granted();
            }
            Ok(Some(ServerEvent::Accept(said))) => {
                self.is_told(said == accept(self.token))?;
                self.down = Go.to_frame();
                self.server.connected(now);
                self.excused = Duration::ZERO;
            }
            Ok(None) => {}
            Ok(Some(ServerEvent::Parts(_))) | Err(_) => return Err(End::Malformed),
        }
        Ok(())
    }

    /// What a client of this place has sent is its own, and not that of another.
    fn is_told(&self, own: bool) -> Result<(), End> {
        let garbled = matches!(self.manner, Manner::Garbles(_));
        assert!(own || garbled, "{:?}: another's frame", self.manner);
        if own { Ok(()) } else { Err(End::Malformed) }
    }

    /// Moves bytes from the server to the client.
    fn down(&mut self, now: Duration, dice: &mut Rng) {
        let count = (1 + dice.index(200))
            .min(self.down.len())
            .min(self.client.wanted());
        if count == 0 {
            return;
        }
        let bytes: Vec<u8> = self.down.drain(..count).collect();
        match self.client.handle_input(&bytes, Vec::new()) {
            Ok(Some(ClientEvent::Granted(said, tickets))) => {
                assert_eq!(said, grant(self.token));
                assert_eq!(tickets.len(), said.workers.len());
                self.up = self.client.accept(&accept(self.token));
            }
            Ok(Some(ClientEvent::Go)) => {
                self.is_live = true;
                self.last_beat = now;
            }
            Ok(Some(ClientEvent::Parts(parts))) => panic!("HERD grants no parts: {parts:?}"),
            Ok(None) => {}
            Err(error) => panic!("the server keeps to the rules: {error}"),
        }
    }

    /// By when the server has given up a client that is silent from now on.
    fn bound(&self) -> Duration {
        let from_begin = self.begun + HANDSHAKE_DEADLINE;
        let from_beat = self.last_beat.max(self.begun) + HANDSHAKE_DEADLINE + LEASE_DEADLINE;
        self.excused
            + if self.is_live {
                from_beat
            } else {
                from_begin.max(from_beat)
            }
    }
}

/// How the places of a schedule were left.
#[derive(Debug, Default)]
struct Ends {
    lived: usize,
    timed_out: usize,
    malformed: usize,
    left: usize,
}

fn manner(dice: &mut Rng) -> Manner {
    match dice.index(8) {
        0..4 => Manner::Honest,
        4 => Manner::Dribbles,
        5 | 6 => Manner::DiesAfter(dice.index(300)),
        _ => Manner::Garbles(dice.index(120)),
    }
}

fn run(seed: u64) -> Ends {
    let mut dice = Rng::new(seed);
    let mut places: Vec<Option<Place>> = (0..PLACES).map(|_| None).collect();
    let (mut now, mut ends, mut tokens) = (Duration::from_secs(1), Ends::default(), 0_u8);
    for _ in 0..STEPS {
        now += Duration::from_millis(dice.index(20) as u64);
        if dice.index(400) == 0 {
            // The server was stopped for so long.
            let late = Duration::from_millis(dice.index(8000) as u64);
            now += late;
            for place in places.iter_mut().flatten() {
                place.server.excuse(late);
                place.excused += late;
            }
        }
        let index = dice.index(PLACES);
        let Some(place) = &mut places[index] else {
            tokens = tokens.wrapping_add(1) % 250;
            places[index] = Some(Place::new(now, manner(&mut dice), tokens));
            continue;
        };
        let was_live = place.is_live;
        let mut end = place.up(now, &mut dice).err();
        place.down(now, &mut dice);
        ends.lived += usize::from(place.is_live && !was_live);
        if dice.index(400) == 0 {
            end = end.or(Some(End::Left));
        }
        if now >= place.server.poll_timeout() {
            end = end.or(Some(End::TimedOut));
        }
        assert!(
            end.is_some() || now <= place.bound(),
            "{:?} keeps its place since {:?}, at {now:?}",
            place.manner,
            place.begun
        );
        match end {
            None => continue,
            Some(End::TimedOut) => ends.timed_out += 1,
            Some(End::Malformed) => ends.malformed += 1,
            Some(End::Left) => ends.left += 1,
        }
        if place.manner == Manner::Honest {
            assert_eq!(end, Some(End::Left), "it kept to the rules");
        }
        places[index] = None;
    }
    ends
}

#[test]
fn places_of_the_handshake_are_kept_by_the_honest_alone() {
    let mut all = Ends::default();
    for seed in 1..=SEEDS {
        println!("seed {seed}");
        let ends = run(seed);
        all.lived += ends.lived;
        all.timed_out += ends.timed_out;
        all.malformed += ends.malformed;
        all.left += ends.left;
    }
    println!("{all:?}");
    let least = SEEDS as usize;
    assert!(all.lived > least && all.timed_out > least, "{all:?}");
    assert!(all.malformed > least && all.left > least, "{all:?}");
}
