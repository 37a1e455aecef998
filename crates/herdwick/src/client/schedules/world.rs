//! A server in the same thread, its fabric and its sockets, under a clock that advances with every
//! reading.

use std::{
    cell::RefCell,
    collections::VecDeque,
    fmt,
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use herdwick_conformance::seeded::{Faults, SeededDevice, SeededNetwork, SeededPort};
use herdwick_fabric::Device;
use herdwick_herd::{
    Admitted, ClientSetup, ClientTerms, RequestPath, ServerEnd, ServerTerms,
    wire::{Epoch, Window},
};
use herdwick_providers::AnyPort;
use herdwick_request::{Clock, HashKey, Second};

use super::store::{Chance, Store, answered, begin};
use crate::{
    Address, DialError, Fabric, Fallback, OneSidedReads, Options, Session,
    client::caller::Surroundings,
    herd::{Herd, Taken},
    memcached::Memcached,
    memcached_port::MemcachedPort,
    stream::Stream,
    transports::OpenTransport,
};

const WORKERS: usize = 2;
const REPLY_BYTES_MAX: usize = 1040;
/// A call that reads the clock this often after its deadline does not end.
const CHECKS_LATE_MAX: usize = 100;

/// An accident of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Stalled,
    Revoked,
    Idled,
    Killed,
    Restarted,
}

impl Effect {
    pub(super) const ALL: [Self; 5] = [
        Self::Stalled,
        Self::Revoked,
        Self::Idled,
        Self::Killed,
        Self::Restarted,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Stalled => "stalled",
            Self::Revoked => "revoked",
            Self::Idled => "idled",
            Self::Killed => "killed",
            Self::Restarted => "restarted",
        }
    }
}

/// The server's end of a session.
struct Link {
    text: Option<UnixStream>,
    inbox: Vec<u8>,
    outbox: VecDeque<u8>,
    lease: Option<Held>,
}

struct Held {
    socket: Option<UnixStream>,
    admitted: Option<Vec<Admitted>>,
    over: Arc<AtomicBool>,
    /// When the client's thread notices that the lease has ended.
    seen_at: Option<Duration>,
    /// When the workers take their resources back.
    revoked_at: Option<Duration>,
}

struct Server {
    device: SeededDevice,
    workers: Vec<ServerEnd<SeededPort>>,
    links: Vec<Link>,
    hash_key: HashKey,
    stalled_until: Duration,
}

struct Inner {
    now: Duration,
    /// The deadline of the call.
    due: Duration,
    checks_late: usize,
    chance: Chance,
    network: SeededNetwork,
    store: Store,
    server: Option<Server>,
    /// Leases of servers that have ended: their clients still have to notice.
    orphans: Vec<Held>,
    epoch: u16,
    effects: Vec<Effect>,
    /// Whether no accidents happen.
    calm: bool,
    /// Number of clock readings after which every lease ends at once.
    revoke_after: Option<usize>,
}

/// Clones share the world.
#[derive(Clone)]
pub(super) struct World(Rc<RefCell<Inner>>);

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("World")
    }
}

impl Surroundings for World {
    fn now(&self) -> Duration {
        let inner = &mut *self.0.borrow_mut();
        inner.step();
        if inner.now > inner.due {
            inner.checks_late += 1;
            assert!(inner.checks_late < CHECKS_LATE_MAX, "the call does not end");
        }
        inner.now
    }

    fn dial(&self, _: &Address, options: &Options) -> Result<Session, DialError> {
        self.0.borrow_mut().dial(options)
    }
}

impl World {
    pub(super) fn new(mut chance: Chance) -> Self {
        let network = SeededNetwork::new(chance.next());
        network.set_polled_only();
        let mut inner = Inner {
            now: Duration::ZERO,
            due: Duration::MAX,
            checks_late: 0,
            chance,
            network,
            store: Store::default(),
            server: None,
            orphans: Vec::new(),
            epoch: 0,
            effects: Vec::new(),
            calm: false,
            revoke_after: None,
        };
        inner.start();
        Self(Rc::new(RefCell::new(inner)))
    }

    /// Makes a world without accidents, with sessions over the fabric and a window of 1.
    pub(super) fn calm() -> Self {
        let world = Self::new(Chance::new(1));
        world.0.borrow_mut().calm = true;
        world
    }

    /// Ends every lease at the clock reading after `checks` others.
    pub(super) fn revoke_after(&self, checks: usize) {
        self.0.borrow_mut().revoke_after = Some(checks);
    }

    /// Kills the server; the threads of its clients do not come to see it.
    pub(super) fn kill_unseen(&self) {
        let inner = &mut *self.0.borrow_mut();
        let server = inner.server.take().expect("it exists");
        for mut lease in server.links.into_iter().filter_map(|link| link.lease) {
            lease.hang_up(inner.now, &mut inner.chance);
            lease.seen_at = None;
            inner.orphans.push(lease);
        }
    }

    /// A call begins.
    pub(super) fn begin(&self, deadline: Duration) {
        let inner = &mut *self.0.borrow_mut();
        inner.due = inner.now + deadline;
        inner.checks_late = 0;
        let Store { items, record, .. } = &mut inner.store;
        for (key, held) in &mut record.held {
            *held = vec![items.get(key).map(|(value, _)| value.clone())];
        }
    }

    /// Checks that `key` had that value at some time during the call.
    pub(super) fn was(&self, key: &str, value: Option<&[u8]>) {
        let inner = self.0.borrow();
        let none = vec![None];
        let held = inner.store.record.held.get(key.as_bytes()).unwrap_or(&none);
        let shown = value.map(|value| String::from_utf8_lossy(&value[..value.len().min(40)]));
        assert!(
            held.iter().any(|held| held.as_deref() == value),
            "{key} never was {shown:?} in this call"
        );
    }

    /// Returns how often mutation `number` was executed.
    pub(super) fn times(&self, number: u64) -> usize {
        let inner = self.0.borrow();
        inner.store.record.times.get(&number).copied().unwrap_or(0)
    }

    pub(super) fn effects(&self) -> Vec<Effect> {
        self.0.borrow().effects.clone()
    }

    /// Lets time pass between calls, as a caller does that found no server.
    pub(super) fn rest(&self) {
        let inner = &mut *self.0.borrow_mut();
        for _ in 0..100 {
            inner.step();
        }
        inner.now += Duration::from_millis(5);
    }

    /// Lets everything outstanding happen.
    pub(super) fn settle(&self) {
        let inner = &mut *self.0.borrow_mut();
        inner.calm = true;
        inner.network.set_faults(Faults::default());
        for _ in 0..2000 {
            inner.step();
        }
    }
}

impl Inner {
    fn start(&mut self) {
        let device = self.network.device();
        let worker = |worker| {
            let terms = ServerTerms {
                worker,
                workers: WORKERS,
                // A lease is released some time after it ended: a client may have several.
                clients_max: 32,
                spin: Duration::MAX,
                reply_bytes_max: REPLY_BYTES_MAX,
            };
            ServerEnd::open(&device, &terms).unwrap()
        };
        self.server = Some(Server {
            workers: (0..WORKERS).map(worker).collect(),
            device,
            links: Vec::new(),
            hash_key: HashKey([self.chance.next(), self.chance.next()]),
            stalled_until: Duration::ZERO,
        });
        begin(&mut self.store);
    }

    /// Lets some time pass, with accidents.
    fn step(&mut self) {
        self.now += self.chance.micros(8);
        if !self.calm {
            self.befall();
        }
        self.network.run(self.now);
        if let Some(server) = &mut self.server {
            server.serve(self.now, &mut self.store, &mut self.chance);
        }
        let at_once = self.revoke_after == Some(0);
        self.revoke_after = self.revoke_after.and_then(|checks| checks.checked_sub(1));
        let links = self.server.iter_mut().flat_map(|server| &mut server.links);
        let leases = links.filter_map(|link| link.lease.as_mut());
        for lease in leases.chain(&mut self.orphans) {
            if at_once || lease.seen_at.is_some_and(|at| at <= self.now) {
                lease.over.store(true, Ordering::Release);
            }
        }
    }

    fn befall(&mut self) {
        let (now, chance) = (self.now, &mut self.chance);
        let Some(server) = &mut self.server else {
            if chance.one_in(150) {
                self.start();
                self.effects.push(Effect::Restarted);
            }
            return;
        };
        if chance.one_in(300) {
            server.stalled_until = now + chance.micros(3000);
            self.effects.push(Effect::Stalled);
        }
        if chance.one_in(300) {
            let drop_per_mille = [0, 0, 50, 300][chance.below(4)];
            let delay_max = chance.micros(20);
            self.network.set_faults(Faults {
                drop_per_mille,
                delay_max,
                ..Faults::default()
            });
        }
        if chance.one_in(300)
            && let Some(lease) = server
                .some_link(chance)
                .and_then(|link| link.lease.as_mut())
        {
            lease.hang_up(now, chance);
            self.effects.push(Effect::Revoked);
        }
        if chance.one_in(200)
            && let Some(link) = server.some_link(chance)
            && link.inbox.is_empty()
            && link.outbox.is_empty()
        {
            link.text = None;
            self.effects.push(Effect::Idled);
        }
        if chance.one_in(400)
            && let Some(server) = self.server.take()
        {
            for mut lease in server.links.into_iter().filter_map(|link| link.lease) {
                lease.hang_up(now, chance);
                self.orphans.push(lease);
            }
            self.effects.push(Effect::Killed);
        }
    }

    fn dial(&mut self, options: &Options) -> Result<Session, DialError> {
        let refused = DialError::Io(ErrorKind::ConnectionRefused.into());
        let server = self.server.as_mut().ok_or(refused)?;
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        let memcached = Memcached::new(Stream::Unix(ours), options.value_bytes_max);
        let mut link = Link {
            text: Some(theirs),
            inbox: Vec::new(),
            outbox: VecDeque::new(),
            lease: None,
        };
        let (transport, missed) = if !self.calm && self.chance.one_in(4) {
            (
                OpenTransport::Memcached(memcached),
                Some(Fallback::NoAnswer),
            )
        } else {
            self.epoch += 1;
            let window = if self.calm {
                1
            } else {
                1 << self.chance.below(5)
            };
            let path = [RequestPath::UcWrite, RequestPath::UdSend][self.chance.below(2)];
            let device = self.network.device();
            let (taken, held) = server.lease(&device, path, window, self.epoch);
            link.lease = Some(held);
            let memcached_port =
                MemcachedPort::new(&Address::Unix("/no/such/server".into()), options);
            let herd = Herd::new(
                taken,
                server.hash_key,
                memcached,
                memcached_port,
                OneSidedReads::Auto,
            );
            (OpenTransport::Herd(Fabric::ALL[0], Box::new(herd)), None)
        };
        server.links.push(link);
        Ok(Session::over(transport, missed, options.deadline))
    }
}

impl Server {
    fn some_link(&mut self, chance: &mut Chance) -> Option<&mut Link> {
        let index = chance.below(self.links.len().max(1));
        self.links.get_mut(index)
    }

    fn lease(
        &mut self,
        device: &SeededDevice,
        path: RequestPath,
        window: usize,
        epoch: u16,
    ) -> (Taken<AnyPort>, Held) {
        let window = Window::new(window).unwrap();
        let terms = ClientTerms {
            path,
            window,
            epoch: Epoch::new(epoch).unwrap(),
            reply_bytes_max: REPLY_BYTES_MAX,
            retry_after: Duration::from_micros(50),
            retry_after_max: Duration::from_micros(400),
            deadline: Duration::from_secs(1 << 30),
        };
        let mut fixture = ClientSetup::open(device, WORKERS, &terms).unwrap();
        let mut admitted = Vec::new();
        for worker in &mut self.workers {
            let pd = self.device.create_pd(&mut worker.port).unwrap();
            let resources = worker.allocate(&self.device, pd, path, window).unwrap();
            let grant = worker
                .grant(&self.device, &resources, Vec::new(), 0)
                .unwrap();
            let pd = device.create_pd(&mut fixture.port).unwrap();
            let peer = fixture.join(device, pd, &grant).unwrap();
            let client = worker.admit(
                &self.device,
                &resources,
                &peer,
                terms.epoch,
                REPLY_BYTES_MAX,
            );
            admitted.push(client.unwrap());
        }
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let taken = Taken::held(fixture.finish().unwrap(), ours, Arc::clone(&over));
        let held = Held {
            socket: Some(theirs),
            admitted: Some(admitted),
            over,
            seen_at: None,
            revoked_at: None,
        };
        (taken.map(AnyPort::from), held)
    }

    fn serve(&mut self, now: Duration, store: &mut Store, chance: &mut Chance) {
        for link in &mut self.links {
            if let Some(lease) = &mut link.lease {
                lease.listen(now, chance);
                if lease.revoked_at.is_some_and(|at| at <= now)
                    && let Some(admitted) = lease.admitted.take()
                {
                    for (worker, admitted) in self.workers.iter_mut().zip(admitted) {
                        worker.dismiss(&self.device, admitted).unwrap();
                    }
                }
            }
        }
        if now < self.stalled_until {
            return;
        }
        let clock = Clock {
            epoch_unix: 1_700_000_000,
            second: Second(100),
        };
        for worker in &mut self.workers {
            if !chance.one_in(4) {
                worker.side.round(&mut worker.port, (now, clock), store);
            }
        }
        for link in &mut self.links {
            if !chance.one_in(4) {
                link.serve(store, chance);
            }
        }
        self.links.retain(|link| {
            let leased = link.lease.as_ref();
            link.text.is_some() || leased.is_some_and(|lease| lease.admitted.is_some())
        });
    }
}

impl Held {
    /// Ends the lease at the server; the client notices and the workers end it, each some time
    /// later.
    fn hang_up(&mut self, now: Duration, chance: &mut Chance) {
        if self.socket.take().is_some() {
            self.seen_at = Some(now + chance.micros(50));
            self.revoked_at = Some(now + chance.micros(100));
        }
    }

    /// Ends the lease if the client has closed its socket.
    fn listen(&mut self, now: Duration, chance: &mut Chance) {
        if let Some(mut socket) = self.socket.as_ref()
            && let Ok(0) = socket.read(&mut [0; 16])
        {
            self.hang_up(now, chance);
        }
    }
}

impl Link {
    /// Reads bytes and answers at most one command.
    fn serve(&mut self, store: &mut Store, chance: &mut Chance) {
        let Some(mut text) = self.text.as_ref() else {
            return;
        };
        let mut bytes = vec![0; 1 + chance.below(1 << 17)];
        match text.read(&mut bytes) {
            Ok(0) => {
                self.text = None;
                return;
            }
            Ok(len) => self.inbox.extend_from_slice(&bytes[..len]),
            Err(_) => {}
        }
        if let Some((reply, used)) = answered(&self.inbox, store) {
            self.outbox.extend(reply);
            self.inbox.drain(..used);
        }
        if let Ok(written) = text.write(self.outbox.make_contiguous()) {
            self.outbox.drain(..written);
        }
    }
}
