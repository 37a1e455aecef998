//! HERD as in the paper: both machines over the seeded fabric, beside a map.

use std::{collections::HashMap, time::Duration};

use herdwick_check::Rng;
use herdwick_conformance::seeded::{Faults, SeededDevice, SeededNetwork, SeededPort};
use herdwick_fabric::{
    Capabilities, CqSpec, Device, Payload, Port, PortLimits, QpSpec, SendOp, SendWr, Transport,
};
use herdwick_herd::{
    paper::{
        INLINE_BELOW, KEYHASH_BYTES, Keyhash, PaperAnswer, PaperClientEnd, PaperClientId,
        PaperClientSetup, PaperClientTerms, PaperGrant, PaperLease, PaperLoss, PaperRefused,
        PaperServerEnd, PaperServerTerms, SLOT_BYTES, VALUE_BYTES_MAX,
    },
    wire::Window,
};
use herdwick_mica::{Store, StoreConfig};
use herdwick_request::Prefetch;

use crate::{
    fixture::{CLOCK, HASH_KEY, capabilities},
    model::Model,
};

const DEADLINE: Duration = Duration::from_millis(2);
const STEP: Duration = Duration::from_micros(1);

impl Prefetch for Model {}

struct Client {
    end: PaperClientEnd<SeededPort>,
    /// At each server process.
    leases: Vec<(PaperLease, PaperClientId)>,
}

struct Bed<E> {
    network: SeededNetwork,
    device: SeededDevice,
    servers: Vec<(PaperServerEnd<SeededPort>, E)>,
    clients: Vec<Client>,
    window: Window,
    now: Duration,
}

impl<E: herdwick_request::Execute + Prefetch> Bed<E> {
    fn new(seed: u64, window: usize, execs: Vec<E>) -> Self {
        Self::on(capabilities(), (seed, window), execs)
    }

    fn on(has: Capabilities, (seed, window): (u64, usize), execs: Vec<E>) -> Self {
        let network = SeededNetwork::with_capabilities(seed, has);
        let device = network.device();
        let window = Window::new(window).unwrap();
        let terms = PaperServerTerms {
            clients_max: 4,
            window,
            inline_below: INLINE_BELOW,
            hash_key: HASH_KEY,
        };
        let server = |exec| (PaperServerEnd::open(&device, &terms).unwrap(), exec);
        let servers = execs.into_iter().map(server).collect();
        Self {
            network,
            device,
            servers,
            clients: Vec::new(),
            window,
            now: Duration::ZERO,
        }
    }

    /// Connects a client, and returns its number.
    fn join(&mut self) -> usize {
        let client = self.newcomer();
        self.clients.push(client);
        self.clients.len() - 1
    }

    /// Replaces a client that has ended.
    fn rejoin(&mut self, number: usize) {
        let leases = std::mem::take(&mut self.clients[number].leases);
        for ((server, _), (lease, id)) in self.servers.iter_mut().zip(leases) {
            server.dismiss(&self.device, lease, id).unwrap();
        }
        self.clients[number] = self.newcomer();
    }

    fn newcomer(&mut self) -> Client {
        let device = self.network.device();
        let terms = PaperClientTerms {
            servers: self.servers.len(),
            window: self.window,
            deadline: DEADLINE,
        };
        let mut setup = PaperClientSetup::open(&device, &terms).unwrap();
        let mut leases = Vec::new();
        for (server, _) in &mut self.servers {
            let pd = self.device.create_pd(&mut server.port).unwrap();
            let (lease, grant) = server.grant(&self.device, pd).unwrap();
            let pd = device.create_pd(&mut setup.port).unwrap();
            let accept = setup.join(&device, pd, &grant).unwrap();
            let id = server.admit(&self.device, &lease, &accept).unwrap();
            leases.push((lease, id));
        }
        let end = setup.finish();
        Client { end, leases }
    }

    /// Runs one microsecond; `sink` gets the client, the token and the answer.
    fn step(&mut self, sink: &mut impl FnMut(usize, u64, PaperAnswer<'_>)) {
        self.now += STEP;
        self.network.run(self.now);
        for (server, exec) in &mut self.servers {
            server.side.round(&mut server.port, (self.now, CLOCK), exec);
        }
        for (number, client) in self.clients.iter_mut().enumerate() {
            let PaperClientEnd { port, side } = &mut client.end;
            side.poll(port, self.now, &mut |token, answer| {
                sink(number, token, answer)
            });
        }
    }

    fn submit(
        &mut self,
        client: usize,
        key: [u8; KEYHASH_BYTES],
        value: Option<&[u8]>,
        token: u64,
    ) -> Result<(), PaperRefused> {
        let server = HASH_KEY.hash(&key).partition(self.servers.len());
        let keyhash = Keyhash::new(key).unwrap();
        let PaperClientEnd { port, side } = &mut self.clients[client].end;
        side.submit(port, (server, keyhash), value, (token, self.now))
    }

    /// Submits one request and waits for its answer.
    fn call(&mut self, key: [u8; KEYHASH_BYTES], value: Option<&[u8]>) -> Said {
        self.submit(0, key, value, 1).unwrap();
        let mut said = None;
        while said.is_none() {
            self.step(&mut |_, _, answer| said = Some(Said::of(answer)));
        }
        said.unwrap()
    }
}

/// An answer, kept.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    Value(Vec<u8>),
    Stored,
    Missing,
    NotStored,
    Lost,
}

impl Said {
    fn of(answer: PaperAnswer<'_>) -> Self {
        match answer {
            PaperAnswer::Value(value) => Self::Value(value.to_vec()),
            PaperAnswer::Stored => Self::Stored,
            PaperAnswer::Missing => Self::Missing,
            PaperAnswer::NotStored => Self::NotStored,
            PaperAnswer::Lost => Self::Lost,
        }
    }
}

/// Key `index` of client `client`.
fn key(client: usize, index: u64) -> [u8; KEYHASH_BYTES] {
    let mut key = [0; KEYHASH_BYTES];
    key[0] = client as u8;
    key[8..].copy_from_slice(&(index + 1).to_le_bytes());
    key
}

fn value(draws: &mut Rng, version: u64) -> Vec<u8> {
    let sizes = [1, 8, 32, 54, 143, 144, 238, 239, VALUE_BYTES_MAX as u64];
    let len = match draws.below(2) {
        0 => sizes[draws.below(sizes.len() as u64) as usize],
        _ => 1 + draws.below(VALUE_BYTES_MAX as u64),
    };
    (0..len)
        .map(|i| (version.wrapping_mul(31) + i) as u8)
        .collect()
}

fn stores(count: usize) -> Vec<Store> {
    let config = StoreConfig {
        memory_bytes: 4 << 20,
        item_bytes_max: 2048,
        hash_key: HASH_KEY,
    };
    (0..count).map(|_| Store::new(&config).unwrap()).collect()
}

/// The requests of a client to a key are executed in the order in which they were submitted, and each is
/// answered as by a map, with one server process and several, on a network that delays and tears.
#[test]
fn answers_are_those_of_a_map() {
    for (seed, window, servers) in [(1, 1, 1), (2, 4, 2), (3, 16, 1), (4, 64, 3)] {
        with_a_map(seed, window, stores(servers));
        with_a_map(seed, window, vec![Model::default(); servers]);
    }
}

fn with_a_map<E: herdwick_request::Execute + Prefetch>(seed: u64, window: usize, execs: Vec<E>) {
    const CLIENTS: usize = 3;
    const REQUESTS: u64 = 1_500;
    let mut bed = Bed::new(seed, window, execs);
    bed.network.set_faults(Faults {
        delay_min: Duration::from_micros(1),
        delay_max: Duration::from_micros(20),
        reorder_per_mille: 100,
        reorder_window: Duration::from_micros(30),
        tear: Duration::from_nanos(300),
        ..Faults::default()
    });
    for _ in 0..CLIENTS {
        bed.join();
    }
    let mut draws = Rng::new(seed);
    let mut map: HashMap<[u8; KEYHASH_BYTES], Vec<u8>> = HashMap::new();
    let mut expected: HashMap<(usize, u64), Said> = HashMap::new();
    let (mut token, mut answered) = (0, 0);
    while answered < REQUESTS {
        for client in 0..CLIENTS {
            let (key, put) = (key(client, draws.below(40)), draws.below(2) == 0);
            let value = value(&mut draws, token);
            if token == REQUESTS {
                break;
            }
            match bed.submit(client, key, put.then_some(&value), token) {
                Ok(()) => (),
                Err(PaperRefused::Full) => continue,
                Err(error) => panic!("{error}"),
            }
            let said = match map.get(&key) {
                _ if put => Said::Stored,
                Some(value) => Said::Value(value.clone()),
                None => Said::Missing,
            };
            if put {
                map.insert(key, value);
            }
            expected.insert((client, token), said);
            token += 1;
        }
        bed.step(&mut |client, token, answer| {
            let said = expected.remove(&(client, token)).expect("asked once");
            assert_eq!(Said::of(answer), said, "request {token} of client {client}");
            answered += 1;
        });
    }
    let counters = bed
        .servers
        .iter()
        .map(|(server, _)| *server.side.counters());
    let executed: u64 = counters.clone().map(|counted| counted.requests).sum();
    assert_eq!(executed, REQUESTS);
    assert!(counters.clone().all(|counted| counted.replies_refused == 0));
    assert!(counters.clone().any(|counted| counted.replies_staged > 0));
}

/// On a network that loses messages a client ends, says why, and one that connects in its place goes on: no
/// value of another key, none older than what was acknowledged, and nothing is left at the server.
#[test]
fn lost_messages_end_a_client_and_nothing_else() {
    for seed in 0..4 {
        let mut bed = Bed::new(seed, 8, stores(2));
        bed.network.set_faults(Faults {
            drop_per_mille: 2,
            delay_min: Duration::from_micros(1),
            delay_max: Duration::from_micros(9),
            reorder_per_mille: 50,
            reorder_window: Duration::from_micros(20),
            ..Faults::default()
        });
        for _ in 0..2 {
            bed.join();
        }
        let mut draws = Rng::new(seed);
        // Of each key the last version that was acknowledged; of each request its key, the version that it
        // stores, and the one that was acknowledged before it.
        let mut known: HashMap<[u8; KEYHASH_BYTES], u64> = HashMap::new();
        let mut asked: HashMap<u64, ([u8; KEYHASH_BYTES], bool, u64)> = HashMap::new();
        let (mut token, mut losses, mut answers) = (1_u64, 0, 0);
        while losses < 6 || answers < 3_000 {
            for client in 0..2 {
                let (key, put) = (key(client, draws.below(20)), draws.below(2) == 0);
                let text = [&key[..], &token.to_le_bytes()].concat();
                if bed.submit(client, key, put.then_some(&text), token).is_ok() {
                    let before = known.get(&key).copied().unwrap_or_default();
                    asked.insert(token, (key, put, before));
                    token += 1;
                }
            }
            let mut ended = [false; 2];
            bed.step(&mut |client, token, answer| {
                let (key, put, before) = asked.remove(&token).expect("asked once");
                match Said::of(answer) {
                    Said::Value(value) => {
                        assert!(!put);
                        assert_eq!(value[..KEYHASH_BYTES], key, "of another key");
                        let version =
                            u64::from_le_bytes(value[KEYHASH_BYTES..].try_into().unwrap());
                        assert!(before <= version && version < token, "{before} {version}");
                    }
                    Said::Missing => assert!(!put && before == 0),
                    Said::Stored => {
                        assert!(put);
                        let last = known.entry(key).or_default();
                        *last = token.max(*last);
                    }
                    Said::NotStored => panic!("nothing is refused"),
                    Said::Lost => {
                        ended[client] = true;
                        return;
                    }
                }
                answers += 1;
            });
            for client in (0..2).filter(|client| ended[*client]) {
                let side = &bed.clients[client].end.side;
                assert_eq!(side.ended(), Some(PaperLoss::Deadline));
                let refused = bed.submit(client, key(client, 1), None, 0);
                assert_eq!(refused, Err(PaperRefused::Ended(PaperLoss::Deadline)));
                losses += 1;
                bed.rejoin(client);
            }
        }
        for (server, _) in &bed.servers {
            assert_eq!(server.side.clients(), 2);
        }
    }
}

/// A client whose window is full sends nothing before it is answered: the no-op moves its request on.
#[test]
fn a_single_request_passes_the_pipeline() {
    let mut bed = Bed::new(1, 1, vec![Model::default()]);
    bed.join();
    assert_eq!(bed.call(key(0, 1), None), Said::Missing);
    assert_eq!(bed.call(key(0, 1), Some(b"one")), Said::Stored);
    assert_eq!(bed.call(key(0, 1), None), Said::Value(b"one".to_vec()));
    let counters = bed.servers[0].0.side.counters();
    assert_eq!((counters.requests, counters.no_ops), (3, 6));
}

/// Replies of 144 bytes and more are not inlined, nor is one that the provider cannot inline.
#[test]
fn replies_are_inlined_below_the_cut_off() {
    for (inline_bytes_max, first_staged) in [(256, INLINE_BELOW), (64, 65)] {
        let has = Capabilities {
            inline_bytes_max,
            ..capabilities()
        };
        let mut bed = Bed::on(has, (1, 4), vec![Model::default()]);
        bed.join();
        for (len, staged) in [
            (first_staged - 1, 0),
            (first_staged, 1),
            (VALUE_BYTES_MAX, 2),
        ] {
            let value = vec![7; len];
            assert_eq!(bed.call(key(0, 1), Some(&value)), Said::Stored);
            assert_eq!(bed.call(key(0, 1), None), Said::Value(value));
            let counters = bed.servers[0].0.side.counters();
            assert_eq!(counters.replies_staged, staged, "{len}");
        }
    }
}

#[test]
fn values_that_no_slot_can_hold_are_refused() {
    let mut bed = Bed::new(1, 2, vec![Model::default()]);
    bed.join();
    for len in [0, VALUE_BYTES_MAX + 1] {
        let refused = bed.submit(0, key(0, 1), Some(&vec![0; len]), 0);
        assert_eq!(refused, Err(PaperRefused::Length(len)));
    }
    assert_eq!(bed.call(key(0, 1), None), Said::Missing);
}

/// A request that is in the pipeline when its client goes is dropped, and the next client in the place gets no
/// answer to it.
#[test]
fn requests_of_a_client_that_is_gone_are_dropped() {
    let mut bed = Bed::new(1, 4, vec![Model::default()]);
    bed.join();
    bed.submit(0, key(0, 1), Some(b"late"), 1).unwrap();
    while bed.servers[0].0.side.counters().requests == 0 {
        // Found by a pass, and not moved on by another request.
        bed.now += STEP;
        bed.network.run(bed.now);
        let (server, exec) = &mut bed.servers[0];
        if server.side.pass(&mut server.port, CLOCK, exec) > 0 {
            break;
        }
    }
    bed.rejoin(0);
    assert_eq!(bed.call(key(0, 1), None), Said::Missing);
    let counters = bed.servers[0].0.side.counters();
    assert_eq!((counters.requests, counters.orphans), (1, 1));
}

/// A peer that writes what no client writes: lengths beyond a slot are answered and counted, and other
/// clients are served.
#[test]
fn absurd_lengths_are_counted_and_answered() {
    let mut bed = Bed::new(1, 4, vec![Model::default()]);
    bed.join();
    let (device, mut raw) = (bed.network.device(), Raw::default());
    let server = &mut bed.servers[0].0;
    let pd = bed.device.create_pd(&mut server.port).unwrap();
    let (lease, grant) = server.grant(&bed.device, pd).unwrap();
    let accept = raw.open(&device, &grant);
    server.admit(&bed.device, &lease, &accept).unwrap();
    for (count, len) in [1001, 1008, u16::MAX].into_iter().enumerate() {
        raw.write(&grant, count, len);
        while bed.servers[0].0.side.counters().bad_lengths <= count as u64 {
            bed.step(&mut |_, _, _| ());
        }
    }
    assert_eq!(bed.call(key(0, 1), Some(b"well")), Said::Stored);
    assert_eq!(bed.call(key(0, 1), None), Said::Value(b"well".to_vec()));
    let (_, exec) = &bed.servers[0];
    assert_eq!(exec.items.len(), 1);
}

/// A peer that posts WRITEs of its own.
#[derive(Default)]
struct Raw(Option<(SeededPort, herdwick_fabric::QpId)>);

impl Raw {
    fn open(
        &mut self,
        device: &SeededDevice,
        grant: &PaperGrant,
    ) -> herdwick_herd::paper::PaperAccept {
        let mut port = device.open_port(&PortLimits::default()).unwrap();
        let pd = device.create_pd(&mut port).unwrap();
        let cq = device.create_cq(&mut port, &CqSpec { depth: 64 }).unwrap();
        let mut qp = |transport| {
            let spec = QpSpec {
                pd,
                transport,
                send_cq: cq,
                recv_cq: cq,
                send_depth: 16,
                recv_depth: 16,
            };
            device.create_qp(&mut port, &spec).unwrap()
        };
        let (requests, replies) = (qp(Transport::Uc), qp(Transport::Ud));
        device
            .connect(&mut port, requests, &grant.requests)
            .unwrap();
        let accept = herdwick_herd::paper::PaperAccept {
            requests: device.endpoint(&port, requests).unwrap(),
            replies: device.endpoint(&port, replies).unwrap(),
        };
        self.0 = Some((port, requests));
        accept
    }

    /// Writes a keyhash and `len` as LEN at the right end of slot `slot`.
    fn write(&mut self, grant: &PaperGrant, slot: usize, len: u16) {
        let (port, qp) = self.0.as_mut().unwrap();
        let bytes = [&len.to_le_bytes()[..], &[9; KEYHASH_BYTES]].concat();
        let at = (slot + 1) * SLOT_BYTES - bytes.len();
        let wr = SendWr {
            wr_id: 0,
            op: SendOp::Write {
                payload: Payload::Inline(&bytes),
                to: grant.slots.offset(at as u64),
                imm: None,
            },
            signaled: false,
            solicited: false,
            fence: false,
        };
        port.post_send(*qp, &[wr]).unwrap();
    }
}
