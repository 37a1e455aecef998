//! A server and its clients on devices of one fabric, driven by one thread.

use std::time::Duration;

use herdwick_conformance::seeded::{SeededDevice, SeededNetwork};
use herdwick_fabric::{Device, Port};
use herdwick_pilaf::{ClientEnd, ClientId, ClientOptions, Failure, ServerEnd, ServerOptions};
use herdwick_request::HashKey;
use herdwick_shm::{PdSize, ShmDevice};

/// Time of one pass.
pub(crate) const PASS: Duration = Duration::from_micros(1);

pub(crate) fn server_options(buckets: u64) -> ServerOptions {
    ServerOptions {
        buckets,
        buckets_max: buckets,
        load_percent: 75,
        lag: 2000 * PASS,
        extent_bytes: 4 << 20,
        clients: 4,
        hash_key: HashKey([3, 4]),
    }
}

/// An answer, kept.
pub(crate) type Kept = herdwick_read::Answer<Vec<u8>, Failure>;

/// Adds a client, as a session's set-up does.
pub(crate) fn join<D: Device>(
    server: &mut ServerEnd<D>,
    device: D,
    options: &ClientOptions,
) -> (ClientId, ClientEnd<D>) {
    let (end, id) = server.join_in_process(device, options).unwrap();
    (id, end)
}

/// A server with clients.
pub(crate) struct World<D: Device> {
    pub(crate) server: ServerEnd<D>,
    pub(crate) clients: Vec<(ClientId, ClientEnd<D>)>,
    pub(crate) now: Duration,
    /// Whether clients fetch a table that has moved.
    pub(crate) follows: bool,
}

impl<D: Device> World<D> {
    pub(crate) fn of(host: D, others: Vec<D>, options: ServerOptions) -> Self {
        let mut server = ServerEnd::open(host, options).unwrap();
        let clients = others
            .into_iter()
            .map(|device| join(&mut server, device, &ClientOptions::default()));
        let clients = clients.collect();
        Self {
            server,
            clients,
            now: Duration::ZERO,
            follows: true,
        }
    }

    /// One pass of every party's loop; returns every answer with its client.
    pub(crate) fn pass(&mut self) -> Vec<(usize, u64, Kept)> {
        self.now += PASS;
        self.server.port.progress(self.now);
        self.server.pass(self.now);
        let mut answers = Vec::new();
        for (index, (id, end)) in self.clients.iter_mut().enumerate() {
            end.client.post(&mut end.port, self.now);
            end.port.progress(self.now);
            end.client
                .poll(&mut end.port, self.now, &mut |user, answer| {
                    answers.push((index, user, answer.copied()));
                });
            // A client that was dropped, and has not noticed, is given none.
            if self.follows
                && !end.client.follows()
                && let Ok(grant) = self.server.table_of(*id)
            {
                end.adopt(grant).unwrap();
            }
        }
        answers
    }

    /// Runs until the only request in flight is answered.
    pub(crate) fn answer(&mut self) -> Kept {
        for _ in 0..2_000_000 {
            if let Some((_, _, kept)) = self.pass().pop() {
                return kept;
            }
        }
        panic!("no answer");
    }

    pub(crate) fn get(&mut self, client: usize, key: &[u8]) -> Kept {
        self.clients[client].1.client.get(key, 0).unwrap();
        self.answer()
    }

    pub(crate) fn put(&mut self, client: usize, key: &[u8], value: &[u8]) -> Kept {
        self.clients[client].1.client.put(key, value, 0).unwrap();
        self.answer()
    }
}

pub(crate) fn seeded(
    seed: u64,
    clients: usize,
    options: ServerOptions,
) -> (SeededNetwork, World<SeededDevice>) {
    let network = SeededNetwork::new(seed);
    let others = (0..clients).map(|_| network.device()).collect();
    let world = World::of(network.device(), others, options);
    (network, world)
}

pub(crate) fn shm(clients: usize, options: ServerOptions) -> World<ShmDevice> {
    let others = (0..clients).map(|_| ShmDevice::client()).collect();
    World::of(ShmDevice::host(PdSize::NONE), others, options)
}

pub(crate) fn key(n: u64) -> Vec<u8> {
    format!("{n:016}").into_bytes()
}
