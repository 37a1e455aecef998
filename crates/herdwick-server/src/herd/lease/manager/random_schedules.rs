//! Random schedules of clients that connect, claim, stay silent, leave and die at any point, and of
//! workers that carry out commands late or fail, under virtual time. In every order the lease
//! manager's counts are right, and nothing is left at the end.
//!
//! The test has found these planted faults: a lease that ends without its bytes being returned, and
//! a client that leaves while workers allocate, and is removed before they have revoked.

use std::{
    collections::{HashMap, HashSet},
    io::Write,
    os::unix::net::UnixStream,
    sync::mpsc::{self, Sender},
};

use herdwick_herd::hello::{Claim, Token};
use herdwick_request::HashKey;
use proptest::prelude::*;

use super::{
    tests::{LOCAL, accept, worker_grant},
    *,
};
use crate::{
    herd::lease::commands::{CommandReceiver, command_channel},
    net::{stream::Stream, unix::UnixSocket},
};

const WORKERS: usize = 3;
const BYTES_MAX: usize = 16 << 10;
const LEASES_MAX: usize = 12;

/// One of a client's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Fresh,
    Used,
    Forged,
    Nothing,
}

struct AttachedClient {
    id: LeaseId,
    socket: UnixStream,
}

struct World {
    manager: LeaseManager,
    tokens: Arc<LeaseTokens>,
    now: Duration,
    clients: Vec<AttachedClient>,
    commands: Vec<CommandReceiver>,
    answers: Sender<(usize, LeaseAnswer)>,
    /// The leases that each worker holds resources for.
    held: Vec<HashSet<LeaseId>>,
    /// Every lease that the first worker has granted.
    granted: HashSet<LeaseId>,
    used: Token,
}

impl World {
    fn new() -> Self {
        let tokens = Arc::new(LeaseTokens::new(HashKey([3, 4]), Arc::default()));
        let (to_manager, answers) = mpsc::channel();
        let (links, commands) = (0..WORKERS)
            .map(|_| {
                let (commands, taken) = command_channel();
                let wake = Box::new(|| ());
                (WorkerLink { commands, wake }, taken)
            })
            .unzip();
        let config = LeaseConfig {
            leases_max: LEASES_MAX,
            reply_bytes_max: vec![4096],
            bytes_max: BYTES_MAX,
            lease_bytes: |_, window, workers| window.line_bytes() * workers,
            is_local: |_| true,
            readers: OneSidedReads::Off,
        };
        let channels = LeaseChannels {
            listener: None,
            arrivals: mpsc::channel().1,
            tokens: Arc::clone(&tokens),
            links: vec![links],
            answers,
            random: |bytes| Ok(getrandom::fill(bytes)?),
        };
        let manager = LeaseManager::new(Poll::new().unwrap(), config, channels).unwrap();
        let used = tokens.issue(LOCAL, Duration::ZERO);
        tokens.redeem(used, Duration::ZERO).unwrap();
        Self {
            manager,
            tokens,
            now: Duration::ZERO,
            clients: Vec::new(),
            commands,
            answers: to_manager,
            held: vec![HashSet::new(); WORKERS],
            granted: HashSet::new(),
            used,
        }
    }

    fn come(&mut self) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        let ours = UnixSocket::new(mio::net::UnixStream::from_std(ours));
        let id = self
            .manager
            .admit(Stream::Unix(ours), None, self.now)
            .unwrap();
        self.clients.push(AttachedClient { id, socket: theirs });
    }

    /// A client sends `bytes`, which may or may not be valid in its state.
    fn say(&mut self, client: usize, bytes: &[u8]) {
        let client = &mut self.clients[client];
        // The lease manager may have closed the socket.
        let _ = client.socket.write(bytes);
        self.manager.handle_client(client.id, self.now);
    }

    fn claim(&mut self, client: usize, said: Said, window: u32, cut: usize) {
        let token = match said {
            Said::Fresh => self.tokens.issue(LOCAL, self.now),
            Said::Used => self.used,
            Said::Forged | Said::Nothing => Token([7; 16]),
        };
        let claim = Claim {
            token,
            window,
            reply_bytes_max: 4096,
            reads: false,
        };
        let frame = claim.to_frame();
        let len = if said == Said::Nothing {
            cut % frame.len()
        } else {
            frame.len()
        };
        self.say(client, &frame[..len]);
    }

    /// A worker carries out its next command, or fails to.
    fn work(&mut self, worker: usize, fails: bool) -> bool {
        let Some(command) = self.commands[worker].take() else {
            return false;
        };
        let held = &mut self.held[worker];
        let answer = match command {
            LeaseCommand::Grant(id, _) if fails => LeaseAnswer::Granted(id, None),
            LeaseCommand::Grant(id, _) => {
                assert!(worker > 0 || self.granted.insert(id), "an id is reused");
                assert!(held.insert(id));
                let grant = WorkerGrant {
                    fds: 0,
                    ..worker_grant()
                };
                LeaseAnswer::Granted(id, Some(Box::new((grant, Vec::new()))))
            }
            LeaseCommand::Connect(id, _) => {
                assert!(held.contains(&id), "connected before the grant");
                let outcome = if fails {
                    Err(Refusal::Malformed)
                } else {
                    Ok(())
                };
                LeaseAnswer::Connected(id, outcome)
            }
            LeaseCommand::ConnectParts(id, _) => panic!("{id:?}: HERD grants no parts"),
            LeaseCommand::Revoke(id) => {
                held.remove(&id);
                LeaseAnswer::Revoked(id)
            }
        };
        self.answers.send((worker, answer)).unwrap();
        true
    }

    fn lose(&mut self, worker: usize, which: usize) {
        if let Some(id) = self.held[worker].iter().nth(which) {
            self.answers.send((worker, LeaseAnswer::Lost(*id))).unwrap();
        }
    }

    fn check(&self) {
        let clients = &self.manager.clients;
        let claimed = || clients.values().filter(|client| client.terms.is_some());
        let bytes: usize = claimed().map(|client| client.bytes).sum();
        assert_eq!(self.manager.quotas.bytes(), bytes);
        let counters = &self.manager.counters;
        assert_eq!(counters.bytes.load(Ordering::Relaxed), bytes as u64);
        assert!(bytes <= BYTES_MAX && claimed().count() <= LEASES_MAX);
        let lives = |client: &&LeaseRecord| client.live && client.stream.is_some();
        let live = clients.values().filter(lives).count() as u64;
        assert_eq!(counters.live.load(Ordering::Relaxed), live);
        for id in self.held.iter().flatten() {
            assert!(clients.contains_key(id), "{id:?} is held and not known");
        }
    }

    fn settle(&mut self) {
        for AttachedClient { id, socket } in std::mem::take(&mut self.clients) {
            drop(socket);
            self.manager.handle_client(id, self.now);
        }
        while (0..WORKERS).any(|worker| self.work(worker, false)) {
            self.manager.handle_answers(self.now);
        }
        self.manager.handle_answers(self.now);
        self.check();
        let left: HashMap<_, _> = self
            .manager
            .clients
            .iter()
            .map(|(id, it)| (*id, it.revoking))
            .collect();
        assert!(left.is_empty(), "{left:?}");
        assert!(self.held.iter().all(HashSet::is_empty));
        assert_eq!(
            self.manager
                .quotas
                .left(super::super::quota::Holder::User(u32::MAX - 1)),
            Some(BYTES_MAX - BYTES_MAX / super::super::quota::KEPT)
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn lease_resources_are_all_counted_and_returned(
        steps in prop::collection::vec((0u8..24, any::<u16>(), any::<u16>()), 50..400),
    ) {
        let mut world = World::new();
        for (step, a, b) in steps {
            let (clients, a, b) = (world.clients.len(), usize::from(a), usize::from(b));
            let client = a.checked_rem(clients);
            match (step, client) {
                (0..3, _) => world.come(),
                (3..7, Some(client)) => {
                    let said = [Said::Fresh, Said::Fresh, Said::Fresh, Said::Used, Said::Forged, Said::Nothing];
                    world.claim(client, said[b % 6], 1 << (b % 7), b);
                }
                (7..10, Some(client)) => {
                    let workers = if b % 8 == 0 { WORKERS + 1 } else { WORKERS };
                    world.say(client, &accept(workers).to_frame());
                }
                (10, Some(client)) => world.say(client, &[0]),
                (11, Some(client)) => drop(world.clients.swap_remove(client)),
                (12, Some(client)) => {
                    let AttachedClient { id, socket } = world.clients.swap_remove(client);
                    drop(socket);
                    world.manager.handle_client(id, world.now);
                }
                (13, _) => world.lose(a % WORKERS, b % 4),
                (14, _) => {
                    world.now += Duration::from_millis(b as u64 % 3000);
                    world.manager.handle_timeouts(world.now);
                }
                (15..19, _) => world.manager.handle_answers(world.now),
                _ => {
                    world.work(a % WORKERS, b % 16 == 0);
                }
            }
            world.check();
        }
        // Clients that died without closing are found by their missing heartbeats.
        world.now += 10 * HEARTBEAT;
        world.manager.handle_timeouts(world.now);
        world.settle();
    }
}
