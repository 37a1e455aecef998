//! Server and clients together: on the seeded fabric, which loses, duplicates, reorders and tears, and
//! over shared memory on threads.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use herdwick_check::{Rng, Stopwatch, count, length};
use herdwick_conformance::seeded::{Faults, SeededDevice, SeededNetwork, SeededPort};
use herdwick_fabric::{
    Completion, CqSpec, Device, Payload, Port, PortLimits, QpSpec, SendOp, SendWr, Status,
    Transport,
};
use herdwick_farm::{
    Answer, CallError, ClientEnd, ClientId, ClientTerms, Failure, ServerEnd, ServerTerms, Terms,
    Values,
};
use herdwick_mem::crc32c;
use herdwick_providers::{AnyPort, End, Fabric, VisitAll};
use herdwick_request::HashKey;

const MODES: [Values; 2] = [Values::Inline, Values::OutOfTable { lines: 600 }];
const WINDOW: usize = 8;

fn terms(values: Values) -> ServerTerms {
    ServerTerms {
        table: Terms {
            buckets: 70,
            neighbourhood: 6,
            overflow: 32,
            key_bytes_max: 24,
            value_bytes_max: 1024,
            values,
        },
        hash_key: HashKey([5, 6]),
        clients_max: 3,
        window: WINDOW,
    }
}

fn connect<D: Device>(
    (there, server): (&D, &mut ServerEnd<D::Port>),
    here: &D,
    terms: &ClientTerms,
) -> (ClientEnd<D::Port>, ClientId) {
    server.join_in_process((there, here), terms).unwrap()
}

fn key(n: usize) -> Vec<u8> {
    let mut key = format!("key-{n:012}").into_bytes();
    key.extend(std::iter::repeat_n(b'x', n % 9));
    key
}

/// What a call ended with, kept.
type Kept = herdwick_read::Answer<Vec<u8>, Failure>;

/// A server and its clients on the seeded fabric.
struct Seeded {
    network: SeededNetwork,
    device: SeededDevice,
    server: ServerEnd<SeededPort>,
    clients: Vec<(ClientEnd<SeededPort>, ClientId)>,
    now: Duration,
}

impl Seeded {
    fn new(seed: u64, terms: &ServerTerms, clients: usize, client: &ClientTerms) -> Self {
        let network = SeededNetwork::new(seed);
        let device = network.device();
        let mut server = ServerEnd::open(&device, terms).unwrap();
        let clients = (0..clients)
            .map(|_| connect((&device, &mut server), &network.device(), client))
            .collect();
        Self {
            network,
            device,
            server,
            clients,
            now: Duration::ZERO,
        }
    }

    /// One turn of everybody; returns how the calls of each client that ended did.
    fn turn(&mut self) -> Vec<(usize, u64, Kept)> {
        let mut ended = Vec::new();
        self.server.side.poll(&mut self.server.port);
        self.now += Duration::from_nanos(500);
        self.server.port.progress(self.now);
        for (index, (client, _)) in self.clients.iter_mut().enumerate() {
            client.side.post(&mut client.port);
            client.port.progress(self.now);
            client
                .side
                .poll(&mut client.port, self.now, &mut |token, answer| {
                    ended.push((index, token, answer.copied()));
                });
        }
        ended
    }

    /// Runs until one call of client 0 has ended.
    fn wait(&mut self) -> Kept {
        for _ in 0..1_000_000 {
            if let Some((_, _, kept)) = self.turn().into_iter().next() {
                return kept;
            }
        }
        panic!("a call without end");
    }

    fn put(&mut self, client: usize, n: usize, value: &[u8], token: u64) -> Result<(), CallError> {
        let (client, _) = &mut self.clients[client];
        let item = (&key(n)[..], value);
        client.side.put(&mut client.port, item, token, self.now)
    }

    fn delete(&mut self, client: usize, n: usize, token: u64) -> Result<(), CallError> {
        let (client, _) = &mut self.clients[client];
        client
            .side
            .delete(&mut client.port, &key(n), token, self.now)
    }
}

fn storms() -> Faults {
    Faults {
        drop_per_mille: 20,
        duplicate_per_mille: 20,
        reorder_per_mille: 50,
        reorder_window: Duration::from_micros(20),
        delay_min: Duration::from_micros(1),
        delay_max: Duration::from_micros(3),
        tear: Duration::from_micros(1),
        tear_reads: Duration::from_micros(2),
        ..Faults::default()
    }
}

fn operations(default: u64) -> u64 {
    count("HERDWICK_FARM_OPERATIONS", default)
}

/// Random calls, several at once but one a key, give what a map gives.
#[test]
fn calls_agree_with_a_map_on_a_bad_network() {
    for values in MODES {
        let mut world = Seeded::new(1, &terms(values), 1, &ClientTerms::default());
        world.network.set_faults(storms());
        let (mut rng, mut model) = (Rng::new(2), BTreeMap::<usize, Vec<u8>>::new());
        // What each key's call is to end with; `None`: a PUT of this value.
        let mut expected = BTreeMap::<u64, (Option<Kept>, Vec<u8>)>::new();
        let (mut begun, mut ended, mut full) = (0, 0, 0);
        let total = operations(15_000);
        while ended < total {
            let n = rng.index(130);
            if begun < total && !expected.contains_key(&(n as u64)) {
                let token = n as u64;
                let value = vec![rng.bits() as u8; rng.index(300)];
                let known = model.get(&n).cloned();
                let (call, due) = match rng.index(10) {
                    0..4 => (world.put(0, n, &value, token), None),
                    4..6 => {
                        let due = known.map_or(Kept::Missing, |_| Kept::Done);
                        let call = world.delete(0, n, token);
                        if call.is_ok() {
                            model.remove(&n);
                        }
                        (call, Some(due))
                    }
                    _ => {
                        let (client, _) = &mut world.clients[0];
                        let due = known.map_or(Kept::Missing, Kept::Value);
                        (client.side.get(&key(n), token), Some(due))
                    }
                };
                match call {
                    Ok(()) => {
                        begun += 1;
                        expected.insert(token, (due, value));
                    }
                    Err(error) => assert_eq!(error, CallError::Window),
                }
            }
            for (_, token, kept) in world.turn() {
                ended += 1;
                match expected.remove(&token).expect("ends once") {
                    (Some(due), _) => assert_eq!(kept, due),
                    (None, _) if kept == Kept::Full => full += 1,
                    (None, value) => {
                        assert_eq!(kept, Kept::Done);
                        model.insert(token as usize, value);
                    }
                }
            }
        }
        let counts = world.server.side.table().counts();
        assert_eq!((counts.items, counts.full), (model.len() as u64, full));
        assert!(
            world.network.lost() > 100 && counts.displaced > 10,
            "{counts:?}"
        );
    }
}

/// Keys below this are changed, but always there.
const STAY: usize = 16;
/// All keys: more than fit, so that items are displaced and chained all the time.
const KEYS: usize = 90;

/// The value of a key: its number, then all A or all B, in a length for each.
fn flip(n: usize, round: u64) -> Vec<u8> {
    let byte = if round.is_multiple_of(2) { b'A' } else { b'B' };
    let mut value = (n as u64).to_le_bytes().to_vec();
    let longest = [0, 40, 200, 1016][n % 4];
    value.resize(8 + longest - (round % 2) as usize * longest / 3, byte);
    value
}

fn check(n: usize, value: &[u8]) {
    assert_eq!(
        value[..8],
        (n as u64).to_le_bytes(),
        "a value of another key"
    );
    let whole = [flip(n, 0), flip(n, 1)];
    assert!(whole.iter().any(|whole| whole == value), "a mixed value");
}

fn check_read(n: usize, kept: &Kept) {
    match kept {
        Kept::Value(value) => check(n, value),
        Kept::Missing => assert!(n >= STAY, "key {n} was there throughout"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn readers_beside_a_writer_on_a_bad_network() {
    for values in MODES {
        // A torn READ ends at the server's CPU.
        let client = ClientTerms {
            retries: 0,
            ..ClientTerms::default()
        };
        let mut world = Seeded::new(3, &terms(values), 2, &client);
        for n in 0..STAY {
            let table = world.server.side.table_mut();
            table.put(&key(n), &flip(n, 0)).unwrap();
        }
        world.network.set_faults(Faults {
            drop_per_mille: 0,
            ..storms()
        });
        let mut rng = Rng::new(4);
        let (mut reads, mut writes) = (0_u64, 0_u64);
        while reads < 6_000 || writes < 6_000 {
            let n = rng.index(KEYS);
            let _ = if n < STAY || rng.index(2) == 0 {
                world.put(0, n, &flip(n, rng.bits()), 0)
            } else {
                world.delete(0, n, 0)
            };
            let n = rng.index(KEYS);
            let (reader, _) = &mut world.clients[1];
            let _ = reader.side.get(&key(n), n as u64);
            for (client, token, kept) in world.turn() {
                if client == 1 {
                    reads += 1;
                    check_read(token as usize, &kept);
                } else {
                    writes += 1;
                    assert!(matches!(kept, Kept::Done | Kept::Missing | Kept::Full));
                }
            }
        }
        let read = world.clients[1].0.read_counters();
        assert!(read.unsure_retries > 20, "{read:?}");
        assert!(world.server.side.counters().gets > 20);
    }
}

/// Stops the other threads when its own ends, be it by a panic.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A server, two writers and a reader on threads of their own, until the reader has had so many answers and the
/// writers half as many.
struct BesideWriters {
    values: Values,
    gets: u64,
}

/// What the threads share.
struct Shared {
    time: Stopwatch,
    /// How long each thread has run, in nanoseconds.
    ran: [AtomicU64; 4],
    stop: AtomicBool,
    writes: AtomicU64,
}

/// The clock of a thread. The time that all see is that of the thread that ran least, and a pass counts for a
/// millisecond at most: a thread that a loaded host does not run is not taken for a peer that is gone.
struct Clock<'a> {
    shared: &'a Shared,
    place: usize,
    last: Duration,
}

impl<'a> Clock<'a> {
    fn new(shared: &'a Shared, place: usize) -> Self {
        Self {
            shared,
            place,
            last: shared.time.now(),
        }
    }

    fn now(&mut self) -> Duration {
        let time = self.shared.time.now();
        let pass = (time - self.last).min(Duration::from_millis(1));
        self.last = time;
        let ran = &self.shared.ran;
        ran[self.place].fetch_add(pass.as_nanos() as u64, Ordering::Relaxed);
        let least = ran.iter().map(|ran| ran.load(Ordering::Relaxed)).min();
        Duration::from_nanos(least.unwrap())
    }
}

impl VisitAll for BesideWriters {
    type Output = ();

    fn visit<D>(self, host: D, clients: Vec<D>)
    where
        D: Device<Port: Into<AnyPort> + 'static> + Send + 'static,
    {
        let mut server = ServerEnd::open(&host, &terms(self.values)).unwrap();
        for n in 0..STAY {
            server.side.table_mut().put(&key(n), &flip(n, 0)).unwrap();
        }
        let options = ClientTerms::default();
        let ends = clients.iter();
        let ends = ends.map(|client| connect((&host, &mut server), client, &options).0);
        let mut ends: Vec<_> = ends.collect();
        let shared = Shared {
            time: Stopwatch::start(),
            ran: Default::default(),
            stop: AtomicBool::new(false),
            writes: AtomicU64::new(0),
        };
        let mut reader = ends.remove(0);
        std::thread::scope(|scope| {
            scope.spawn(|| serve(&mut server, &shared));
            for (place, writer) in (2..).zip(ends) {
                let shared = &shared;
                scope.spawn(move || write(writer, place, shared));
            }
            read(&mut reader, self.gets, &shared);
        });
        println!("{:?}", reader.read_counters());
    }
}

fn serve<P: Port>(server: &mut ServerEnd<P>, shared: &Shared) {
    let _stops = Stops(&shared.stop);
    let mut clock = Clock::new(shared, 0);
    while !shared.stop.load(Ordering::Relaxed) {
        let now = clock.now();
        server.port.progress(now);
        if server.side.poll(&mut server.port) == 0 {
            std::thread::yield_now();
        }
        server.port.flush(now);
    }
}

fn write<P: Port>(mut end: ClientEnd<P>, place: usize, shared: &Shared) {
    let _stops = Stops(&shared.stop);
    let mut clock = Clock::new(shared, place);
    let mut rng = Rng::new(3 + place as u64);
    while !shared.stop.load(Ordering::Relaxed) {
        let (n, now) = (rng.index(KEYS), clock.now());
        let (key, value) = (key(n), flip(n, rng.bits()));
        let (port, side) = (&mut end.port, &mut end.side);
        let call = if n < STAY || rng.index(2) == 0 {
            side.put(port, (&key, &value), 0, now)
        } else {
            side.delete(port, &key, 0, now)
        };
        port.progress(now);
        let ended = side.poll(port, now, &mut |_, answer| {
            assert!(!matches!(answer, Answer::Refused | Answer::Failed(_)));
        });
        port.flush(now);
        shared.writes.fetch_add(ended as u64, Ordering::Relaxed);
        if call.is_err() {
            std::thread::yield_now();
        }
    }
}

fn read<P: Port>(reader: &mut ClientEnd<P>, gets: u64, shared: &Shared) {
    let _stops = Stops(&shared.stop);
    let mut clock = Clock::new(shared, 1);
    let (mut rng, mut reads) = (Rng::new(6), 0);
    let enough = |reads| reads >= gets && shared.writes.load(Ordering::Relaxed) >= gets / 2;
    while !shared.stop.load(Ordering::Relaxed) && !enough(reads) {
        let (n, now) = (rng.index(KEYS), clock.now());
        let (port, side) = (&mut reader.port, &mut reader.side);
        let _ = side.get(&key(n), n as u64);
        side.post(port);
        port.progress(now);
        port.flush(now);
        side.poll(port, now, &mut |n, answer| {
            reads += 1;
            match answer {
                Answer::Value(value) => check(n as usize, value),
                Answer::Missing => assert!(n as usize >= STAY, "key {n} was there"),
                other => panic!("{other:?}"),
            }
        });
    }
}

fn beside_writers(fabric: Fabric, gets: u64) {
    for values in MODES {
        let open = |end| fabric.loopback(end).unwrap();
        let clients = (0..3).map(|_| open(End::Client)).collect();
        open(End::Worker).visit_all(clients, BesideWriters { values, gets });
    }
}

#[test]
fn readers_beside_writers_over_shared_memory() {
    beside_writers(
        Fabric::Shm,
        count("HERDWICK_FARM_OPERATIONS", length(5_000, 60_000)),
    );
}

#[test]
fn readers_beside_writers_over_an_rnic_in_software() {
    beside_writers(
        Fabric::Roce,
        count("HERDWICK_FARM_ROCE_GETS", length(800, 2_000)),
    );
}

#[test]
fn a_server_that_is_gone_ends_every_call_and_another_one_goes_on() {
    let client = ClientTerms {
        deadline: Duration::from_secs(1),
        ..ClientTerms::default()
    };
    let mut world = Seeded::new(7, &terms(Values::Inline), 1, &client);
    world.put(0, 1, b"one", 1).unwrap();
    assert_eq!(world.wait(), Kept::Done);
    // The server's port is the first of the network.
    world.network.stop(world.server.port.party());
    world.put(0, 2, b"two", 2).unwrap();
    world.clients[0].0.side.get(&key(1), 3).unwrap();
    let mut ended = BTreeMap::new();
    while ended.len() < 2 {
        for (_, token, kept) in world.turn() {
            assert!(ended.insert(token, kept).is_none(), "ends once");
        }
    }
    let lost = Failure::Link(Status::RetryExceeded);
    for kept in ended.values() {
        assert!(matches!(kept, Kept::Failed(Failure::Link(_))), "{kept:?}");
    }
    let refused = world.clients[0].0.side.get(&key(1), 4);
    assert!(matches!(refused, Err(CallError::Failed(_))));
    assert!(lost.to_string().contains("connect again"));
    // The server starts again, empty; the client connects again.
    let mut next = Seeded {
        server: ServerEnd::open(&world.device, &terms(Values::Inline)).unwrap(),
        clients: Vec::new(),
        ..world
    };
    let here = next.network.device();
    let end = connect((&next.device, &mut next.server), &here, &client);
    next.clients.push(end);
    next.clients[0].0.side.get(&key(1), 5).unwrap();
    assert_eq!(next.wait(), Kept::Missing);
    next.put(0, 1, b"one again", 6).unwrap();
    assert_eq!(next.wait(), Kept::Done);
    next.clients[0].0.side.get(&key(1), 7).unwrap();
    assert_eq!(next.wait(), Kept::Value(b"one again".to_vec()));
}

#[test]
fn a_server_that_does_not_answer_is_lost_at_the_deadline() {
    let client = ClientTerms {
        deadline: Duration::from_millis(1),
        ..ClientTerms::default()
    };
    let mut world = Seeded::new(8, &terms(Values::Inline), 1, &client);
    world.put(0, 1, b"one", 1).unwrap();
    let (client, _) = &mut world.clients[0];
    let mut kept = Vec::new();
    for micros in 0..2_000 {
        let now = Duration::from_micros(micros);
        client.port.progress(now);
        client.side.poll(&mut client.port, now, &mut |_, answer| {
            kept.push(answer.copied())
        });
    }
    assert_eq!(kept, [Kept::Failed(Failure::Silent)]);
}

/// A client that dies between its grant and its admission leaves nothing held, however often.
#[test]
fn grants_that_are_withdrawn_leave_their_places() {
    let mut world = Seeded::new(3, &terms(MODES[0]), 1, &ClientTerms::default());
    let here = world.network.device();
    let Seeded { device, server, .. } = &mut world;
    for _ in 0..20 {
        let granted = [server.grant(device).unwrap(), server.grant(device).unwrap()];
        assert!(server.grant(device).is_err(), "three clients may be there");
        for (resources, _) in granted {
            server.withdraw(device, resources).unwrap();
            // Twice is once.
            server.withdraw(device, resources).unwrap();
        }
    }
    // A grant that was withdrawn is not admitted, and those in service stay.
    let (resources, grant) = server.grant(device).unwrap();
    let (_, accept) = ClientEnd::open(&here, &ClientTerms::default(), grant).unwrap();
    server.withdraw(device, resources).unwrap();
    assert!(server.admit(device, resources, &accept).is_err());
    assert_eq!(server.side.clients(), 1);
    let more = [(); 2].map(|()| connect((device, server), &here, &ClientTerms::default()));
    world.clients.extend(more);
    world.put(2, 1, b"x", 0).unwrap();
    assert_eq!(world.wait(), Kept::Done);
    // An admitted client is not withdrawn.
    let (_, id) = world.clients.pop().unwrap();
    world.server.detach(&world.device, id).unwrap();
    assert_eq!(world.server.side.clients(), 2);
}

/// A server that saw a client fail, and the end of that client's session later, detaches it twice.
#[test]
fn a_client_that_is_detached_twice_takes_no_other_along() {
    let mut world = Seeded::new(3, &terms(MODES[0]), 1, &ClientTerms::default());
    let here = world.network.device();
    let (_, gone) = world.clients.pop().unwrap();
    world.server.detach(&world.device, gone).unwrap();
    let at = (&world.device, &mut world.server);
    world
        .clients
        .push(connect(at, &here, &ClientTerms::default()));
    world.server.detach(&world.device, gone).unwrap();
    assert_eq!(world.server.side.clients(), 1);
    world.put(0, 1, b"x", 0).unwrap();
    assert_eq!(world.wait(), Kept::Done);
}

#[test]
fn a_client_that_cannot_join_leaves_nothing_held() {
    let options = terms(MODES[0]);
    let mut world = Seeded::new(3, &options, 0, &ClientTerms::default());
    let here = world.network.device();
    let none = ClientTerms {
        lookups: 0,
        ..ClientTerms::default()
    };
    for _ in 0..20 {
        let joined = world.server.join_in_process((&world.device, &here), &none);
        assert!(joined.is_err());
    }
    for _ in 0..options.clients_max {
        connect(
            (&world.device, &mut world.server),
            &here,
            &ClientTerms::default(),
        );
    }
}

#[test]
fn servers_have_a_bounded_number_of_clients() {
    for clients_max in [0, 4097, usize::MAX] {
        let network = SeededNetwork::new(1);
        let terms = ServerTerms {
            clients_max,
            ..terms(MODES[0])
        };
        let error = ServerEnd::open(&network.device(), &terms).unwrap_err();
        assert!(error.to_string().contains("1 to 4096"), "{error}");
    }
}

/// A server that answers no READ is lost at the deadline too, also for a client that only GETs.
#[test]
fn a_server_that_answers_no_read_is_lost_at_the_deadline() {
    let client = ClientTerms {
        deadline: Duration::from_millis(1),
        ..ClientTerms::default()
    };
    let mut world = Seeded::new(1, &terms(MODES[0]), 1, &client);
    let (client, _) = &mut world.clients[0];
    client.side.get(&key(1), 5).unwrap();
    let (mut kept, mut now) = (Vec::new(), Duration::ZERO);
    // Nothing moves the network: the server has stopped.
    while kept.is_empty() && now < Duration::from_millis(2) {
        now += Duration::from_micros(10);
        client.side.post(&mut client.port);
        let sink = &mut |_, answer: Answer<'_>| kept.push(answer.copied());
        client.side.poll(&mut client.port, now, sink);
    }
    assert_eq!(kept, [Kept::Failed(Failure::Silent)]);
    assert!(now > Duration::from_millis(1));
}

/// The READs of most GETs are not posted yet when the deadline passes.
#[test]
fn a_server_that_is_lost_ends_gets_that_wait_to_be_posted() {
    let client = ClientTerms {
        outstanding: 1,
        deadline: Duration::from_millis(1),
        ..ClientTerms::default()
    };
    let mut world = Seeded::new(14, &terms(Values::Inline), 1, &client);
    world.put(0, 1, b"one", 100).unwrap();
    let (client, _) = &mut world.clients[0];
    for n in 0..5 {
        client.side.get(&key(n), n as u64).unwrap();
    }
    client.side.post(&mut client.port);
    let late = Duration::from_millis(2);
    let mut ended = BTreeMap::new();
    let count = client
        .side
        .poll(&mut client.port, late, &mut |token, answer| {
            assert!(ended.insert(token, answer.copied()).is_none(), "ends once");
        });
    assert_eq!((count, client.side.in_flight()), (6, 0));
    assert!(
        ended
            .values()
            .all(|it| *it == Kept::Failed(Failure::Silent))
    );
    // The READ that was on its way may come back: it belongs to no call.
    for _ in 0..20_000 {
        assert_eq!(world.turn(), []);
    }
}

/// A client is killed at each event of a few PUTs and a GET. All that it held is given back: the limits
/// of the server's port are exact.
///
/// It finds this bug when it is planted: `ServerEnd::detach` leaves the client's protection domain.
#[test]
fn a_client_killed_at_any_step_leaves_nothing() {
    let mut survived = 0;
    for steps in (0..600).step_by(3) {
        let options = terms(Values::Inline);
        let mut world = Seeded::new(9, &options, 2, &ClientTerms::default());
        world.network.set_faults(Faults {
            drop_per_mille: 0,
            ..storms()
        });
        let victim = world.clients[1].0.port.party();
        world.network.stop_after(victim, steps);
        for n in 0..3 {
            world.put(1, n, &[n as u8; 100], 0).unwrap();
        }
        world.clients[1].0.side.get(&key(0), 1).unwrap();
        let mut turns = 0;
        while world.clients[1].0.side.in_flight() > 0 && turns < 200 {
            world.turn();
            turns += 1;
        }
        survived += u64::from(world.clients[1].0.side.in_flight() == 0);
        // The other client is served as before.
        world.put(0, 5, b"alive", 1).unwrap();
        while world.clients[0].0.side.in_flight() > 0 {
            world.turn();
        }
        let (_, id) = world.clients.pop().unwrap();
        world.server.detach(&world.device, id).unwrap();
        for _ in 0..2 {
            let here = world.network.device();
            let end = connect(
                (&world.device, &mut world.server),
                &here,
                &ClientTerms::default(),
            );
            world.clients.push(end);
        }
        assert_eq!(world.server.side.clients(), options.clients_max);
        assert!(
            world.server.grant(&world.device).is_err(),
            "all places are taken"
        );
        let newest = world.clients.len() - 1;
        world.put(newest, 6, b"new", 2).unwrap();
        while world.clients[newest].0.side.in_flight() > 0 {
            world.turn();
        }
    }
    assert!(
        (1..200).contains(&survived),
        "{survived} were killed too late"
    );
}

/// A connected queue pair that gets no messages.
fn rc(pd: herdwick_fabric::PdId, cq: herdwick_fabric::CqId) -> QpSpec {
    QpSpec {
        pd,
        transport: Transport::Rc,
        send_cq: cq,
        recv_cq: cq,
        send_depth: 32,
        recv_depth: 0,
    }
}

/// A client that posts what it likes: it reaches its own ring and nothing else, and what it writes
/// there is refused and counted.
struct Hostile {
    port: SeededPort,
    qp: herdwick_fabric::QpId,
    cq: herdwick_fabric::CqId,
    grant: herdwick_farm::Grant,
}

impl Hostile {
    fn connect(world: &mut Seeded) -> Self {
        let here = world.network.device();
        let mut port = here.open_port(&PortLimits::default()).unwrap();
        let (resources, grant) = world.server.grant(&world.device).unwrap();
        let pd = here.create_pd(&mut port).unwrap();
        let cq = here.create_cq(&mut port, &CqSpec { depth: 64 }).unwrap();
        let [qp, reads] = [(); 2].map(|()| here.create_qp(&mut port, &rc(pd, cq)).unwrap());
        let access = herdwick_fabric::Access::ALL;
        let scope = herdwick_fabric::Scope::Pd;
        let spec = herdwick_fabric::RegionSpec {
            len: 1 << 16,
            access,
            scope,
        };
        let region = here.allocate_region(&mut port, pd, &spec).unwrap();
        here.connect(&mut port, qp, &grant.messages).unwrap();
        let accept = herdwick_farm::Accept {
            replies: here.remote(&port, region).unwrap(),
            reads: here.endpoint(&port, reads).unwrap(),
            messages: here.endpoint(&port, qp).unwrap(),
        };
        world
            .server
            .admit(&world.device, resources, &accept)
            .unwrap();
        Self {
            port,
            qp,
            cq,
            grant,
        }
    }

    fn write(&mut self, world: &mut Seeded, words: &[u64], to: herdwick_fabric::Remote) -> Status {
        self.post(words, to);
        let mut done = [Completion::BLANK; 1];
        loop {
            world.turn();
            self.port.progress(world.now);
            if self.port.poll(self.cq, &mut done) == 1 {
                return done[0].status;
            }
        }
    }

    fn post(&mut self, words: &[u64], to: herdwick_fabric::Remote) {
        let op = SendOp::Write {
            payload: Payload::Words(words),
            to,
            imm: None,
        };
        let wr = SendWr {
            wr_id: 1,
            op,
            signaled: true,
            solicited: false,
            fence: false,
        };
        self.port.post_send(self.qp, &[wr]).unwrap();
    }
}

/// A message of zeros with the right checksum.
fn message(number: u64, key_len: u8, value_len: u16, code: u16) -> Vec<u64> {
    let count = usize::from(key_len).div_ceil(8) + usize::from(value_len).div_ceil(8);
    let mut words = vec![0; count];
    let [low, high] = (value_len | code << 12).to_le_bytes();
    let half = [(number / WINDOW as u64) as u8 + 1, key_len, low, high];
    let crc = words.iter().fold(crc32c(0, &half), |crc, word: &u64| {
        crc32c(crc, &word.to_le_bytes())
    });
    words.push(u64::from(u32::from_le_bytes(half)) | u64::from(crc) << 32);
    words
}

#[test]
fn absurd_messages_are_counted_and_refused() {
    let mut world = Seeded::new(10, &terms(Values::Inline), 1, &ClientTerms::default());
    let mut hostile = Hostile::connect(&mut world);
    // The last word of each cell, of 1,024 + 24 bytes and a control word, in whole lines.
    let cell = 1088;
    let mut rng = Rng::new(11);
    let mut next = 0;
    for round in 0..2_000_u64 {
        // Any control word, now and then with the lap that the server waits for.
        let word = rng.bits() & !0xff | ((next / WINDOW as u64 + 1) & 0xff);
        let at = ((next % WINDOW as u64) + 1) * cell - 8;
        let to = hostile.grant.requests.offset(at);
        assert_eq!(hostile.write(&mut world, &[word], to), Status::Success);
        world.turn();
        next = world.server.side.counters().refused;
        if round % 100 == 0 {
            world.put(0, 1, b"served", 0).unwrap();
            assert_eq!(world.wait(), Kept::Done);
        }
    }
    let counters = world.server.side.counters();
    assert!(
        counters.refused > 100 && counters.incomplete > 100,
        "{counters:?}"
    );
    assert_eq!(counters.puts, 20);
}

/// Whole messages, with the right checksum, whose lengths fit their cell but not the table.
#[test]
fn lengths_that_the_table_lacks_are_counted_and_refused_whatever_the_checksum() {
    const CHUNK: usize = 16;
    let mut world = Seeded::new(15, &terms(Values::Inline), 1, &ClientTerms::default());
    let mut hostile = Hostile::connect(&mut world);
    let (cell, put, get) = (1088, 2_u16, 1_u16);
    let lengths: [(u8, u16, u16); 5] = [
        (8, 1032, put),
        (0, 8, put),
        (25, 8, put),
        (200, 0, get),
        (0, 0, get),
    ];
    for (number, (key_len, value_len, operation)) in (0_u64..).zip(lengths) {
        let words = message(number, key_len, value_len, operation);
        let end = (number % WINDOW as u64 + 1) * cell;
        let first = end - 8 * words.len() as u64;
        for (chunk, words) in (0..).zip(words.chunks(CHUNK)) {
            let to = hostile
                .grant
                .requests
                .offset(first + chunk * 8 * CHUNK as u64);
            assert_eq!(hostile.write(&mut world, words, to), Status::Success);
        }
        for _ in 0..10 {
            world.turn();
        }
        assert_eq!(
            world.server.side.counters().refused,
            number + 1,
            "{key_len}"
        );
    }
    assert_eq!(world.server.side.counters().puts, 0);
    world.put(0, 1, b"served", 0).unwrap();
    assert_eq!(world.wait(), Kept::Done);
}

/// A client to which nothing gets through for a while has more replies on their way than it takes: the
/// server executes its next message when some are known to have left, and loses neither.
#[test]
fn messages_wait_for_room_for_their_replies() {
    const ROOM: u64 = 2 * WINDOW as u64;
    let mut world = Seeded::new(16, &terms(Values::Inline), 1, &ClientTerms::default());
    let mut hostile = Hostile::connect(&mut world);
    let (server, client) = (world.server.port.party(), hostile.port.party());
    let turns = |world: &mut Seeded, hostile: &mut Hostile| {
        for _ in 0..20 {
            world.turn();
            hostile.port.progress(world.now);
        }
    };
    world.network.cut(server, client);
    for number in 0..=ROOM {
        // A DELETE of a key that is not there, at the end of its cell of 1,088 bytes.
        let words = message(number, 8, 0, 3);
        let end = (number % WINDOW as u64 + 1) * 1088;
        let to = hostile.grant.requests.offset(end - 8 * words.len() as u64);
        hostile.post(&words, to);
        turns(&mut world, &mut hostile);
        let executed = world.server.side.counters().deletes;
        assert_eq!(executed, (number + 1).min(ROOM));
    }
    let counters = world.server.side.counters();
    assert!(counters.held > 0 && counters.lost == 0, "{counters:?}");
    world.network.heal(server, client);
    while world.server.side.counters().deletes == ROOM {
        turns(&mut world, &mut hostile);
        assert_eq!(world.server.side.lost_client(), None);
    }
}

/// A server that answers what it likes, with the right checksum.
struct FalseServer {
    port: SeededPort,
    qp: herdwick_fabric::QpId,
    replies: herdwick_fabric::Remote,
    client: ClientEnd<SeededPort>,
}

impl FalseServer {
    /// Connects a client; the slots of the table are being written for ever.
    fn connect(network: &SeededNetwork) -> Self {
        use herdwick_fabric::{Access, RegionSpec, Scope};
        let (there, here) = (network.device(), network.device());
        let mut port = there.open_port(&PortLimits::default()).unwrap();
        let pd = there.create_pd(&mut port).unwrap();
        let spec = |len| RegionSpec {
            len,
            access: Access::ALL,
            scope: Scope::Pd,
        };
        let table = terms(Values::Inline).table;
        let bytes = herdwick_farm::Geometry::new(table).unwrap().bytes();
        let [table_at, requests] = [bytes, WINDOW * 1088]
            .map(|len| there.allocate_memory(&mut port, pd, &spec(len)).unwrap());
        for word in (herdwick_farm::LINE_WORDS - 1..bytes / 8).step_by(herdwick_farm::LINE_WORDS) {
            herdwick_mem::Words::store(&table_at.1, word, 1);
        }
        let cq = there.create_cq(&mut port, &CqSpec { depth: 64 }).unwrap();
        let [qp, reads] = [(); 2].map(|()| there.create_qp(&mut port, &rc(pd, cq)).unwrap());
        let grant = herdwick_farm::Grant {
            table,
            hash_key: HashKey([5, 6]),
            window: WINDOW,
            memory: there.remote(&port, table_at.0).unwrap(),
            requests: there.remote(&port, requests.0).unwrap(),
            reads: there.endpoint(&port, reads).unwrap(),
            messages: there.endpoint(&port, qp).unwrap(),
            domain: there.export_pd(&mut port, pd).unwrap(),
            region: there.export_region(&port, table_at.0).unwrap(),
        };
        let terms = ClientTerms::default();
        let (client, accept) = ClientEnd::open(&here, &terms, grant).unwrap();
        there.connect(&mut port, qp, &accept.messages).unwrap();
        there.connect(&mut port, reads, &accept.reads).unwrap();
        Self {
            port,
            qp,
            replies: accept.replies,
            client,
        }
    }

    /// Answers the client's first message; returns how its call ends.
    fn answer(&mut self, network: &SeededNetwork, reply: &[u64]) -> Kept {
        // The cell of the first reply, of 1,024 bytes and a control word, in whole lines.
        let first = 1088 - 8 * reply.len() as u64;
        for (chunk, words) in (0..).zip(reply.chunks(16)) {
            let op = SendOp::Write {
                payload: Payload::Words(words),
                to: self.replies.offset(first + chunk * 128),
                imm: None,
            };
            let wr = SendWr {
                wr_id: 1,
                op,
                signaled: false,
                solicited: false,
                fence: false,
            };
            self.port.post_send(self.qp, &[wr]).unwrap();
        }
        let mut kept = None;
        let mut now = network.now();
        for _ in 0..100_000 {
            now += Duration::from_nanos(500);
            let ClientEnd { port, side } = &mut self.client;
            side.post(port);
            port.progress(now);
            side.poll(port, now, &mut |_, answer| kept = Some(answer.copied()));
            if let Some(kept) = kept.take() {
                return kept;
            }
        }
        panic!("a call without end");
    }
}

/// Replies with lengths that no server of this table sends are no values, and end nothing but their call.
#[test]
fn replies_with_lengths_that_the_table_lacks_are_refused() {
    let replies = [
        // As long as the cell has room for, and longer than any value.
        (message(0, 0, 1032, 1), Kept::Refused),
        // With a key, as no reply has.
        (message(0, 8, 16, 1), Kept::Refused),
        (message(0, 0, 1024, 1), Kept::Value(vec![0; 1024])),
    ];
    for (reply, expected) in replies {
        let network = SeededNetwork::new(17);
        let mut server = FalseServer::connect(&network);
        // READs find torn slots alone, so the GET becomes a message.
        server.client.side.get(&key(1), 0).unwrap();
        assert_eq!(server.answer(&network, &reply), expected);
        let read = server.client.read_counters();
        assert_eq!(read.unsure_retries, 1, "{read:?}");
    }
}

/// A client takes no dimensions from a server that no server has.
#[test]
fn grants_with_absurd_dimensions_are_refused() {
    let mut world = Seeded::new(18, &terms(Values::Inline), 1, &ClientTerms::default());
    let here = world.network.device();
    let changes: [fn(&mut herdwick_farm::Grant); 5] = [
        |grant| grant.window = 0,
        |grant| grant.window = usize::MAX,
        |grant| grant.table.buckets = 0,
        |grant| grant.table.key_bytes_max = 251,
        |grant| grant.table.value_bytes_max = usize::MAX,
    ];
    for change in changes {
        let (resources, mut grant) = world.server.grant(&world.device).unwrap();
        change(&mut grant);
        let opened = ClientEnd::open(&here, &ClientTerms::default(), grant);
        assert!(opened.is_err());
        world.server.withdraw(&world.device, resources).unwrap();
    }
}

/// A client whose queue pairs cannot be connected, because of what it says that they are, leaves its place.
#[test]
fn a_client_with_a_false_endpoint_leaves_nothing_held() {
    let options = terms(Values::Inline);
    let mut world = Seeded::new(19, &options, 0, &ClientTerms::default());
    let here = world.network.device();
    let Seeded { device, server, .. } = &mut world;
    for round in 0..20 {
        let (resources, grant) = server.grant(device).unwrap();
        let (_end, mut accept) = ClientEnd::open(&here, &ClientTerms::default(), grant).unwrap();
        let nowhere = herdwick_fabric::Endpoint::new(&[0; 12]).unwrap();
        *(match round % 2 {
            0 => &mut accept.reads,
            _ => &mut accept.messages,
        }) = nowhere;
        assert!(server.admit(device, resources, &accept).is_err());
    }
    for _ in 0..options.clients_max {
        connect((device, server), &here, &ClientTerms::default());
    }
}

#[test]
fn a_client_writes_to_its_ring_alone() {
    let mut world = Seeded::new(12, &terms(Values::Inline), 1, &ClientTerms::default());
    world.put(0, 1, b"kept", 0).unwrap();
    assert_eq!(world.wait(), Kept::Done);
    let mut hostile = Hostile::connect(&mut world);
    let beyond = hostile.grant.requests.offset((WINDOW * 1088) as u64);
    assert_eq!(
        hostile.write(&mut world, &[1], beyond),
        Status::RemoteAccess
    );
    // The failed queue pair was that client's; with another it tries the table.
    let mut hostile = Hostile::connect(&mut world);
    let table = hostile.grant.memory;
    assert_eq!(hostile.write(&mut world, &[1], table), Status::RemoteAccess);
    world.clients[0].0.side.get(&key(1), 0).unwrap();
    assert_eq!(world.wait(), Kept::Value(b"kept".to_vec()));
}

#[test]
fn options_out_of_range_are_refused() {
    let device = SeededNetwork::new(1).device();
    for window in [0, 129] {
        let options = ServerTerms {
            window,
            ..terms(Values::Inline)
        };
        let error = ServerEnd::open(&device, &options).unwrap_err();
        assert!(error.to_string().contains("1 to 128"), "{error}");
    }
    let mut world = Seeded::new(13, &terms(Values::Inline), 1, &ClientTerms::default());
    for (key, value) in [(0, 0), (25, 0), (24, 1025)] {
        let (client, _) = &mut world.clients[0];
        let item = (&vec![1; key][..], &vec![1; value][..]);
        let refused = client.side.put(&mut client.port, item, 0, Duration::ZERO);
        assert_eq!(refused, Err(CallError::Length));
    }
}
