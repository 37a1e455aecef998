//! Pilaf under faults.

use std::time::Duration;

use herdwick_fabric::Device;
use herdwick_pilaf::{ClientEnd, ClientId, ClientOptions, ServerEnd, ServerOptions};
use herdwick_sim::{Cpu, PartyId, Process, SeededDevice};

use super::machine::{Ask, Asks, Machine, Servers, Told};
use crate::{
    keys::HASH_KEY,
    pilaf::{LAG, PilafServer},
    run::RunError,
};

/// Buckets at the start, so few that the table grows in every run, and at most.
const BUCKETS: u64 = 4;
const BUCKETS_MAX: u64 = 1 << 14;
/// Memory of extents: more than a run fills.
const EXTENT_BYTES: usize = 32 << 20;

/// The server.
pub(super) struct PilafServers {
    device: SeededDevice,
    clients: usize,
    options: ClientOptions,
    cpu: Cpu,
    server: PilafServer,
}

impl PilafServers {
    pub(super) fn new(
        (clients, window): (usize, usize),
        timeout: Duration,
        device: SeededDevice,
        cpu: &Cpu,
    ) -> Result<Self, RunError> {
        let end = open(&device, clients)?;
        Ok(Self {
            server: PilafServer::new(end, cpu),
            device,
            clients,
            options: ClientOptions {
                window,
                // Less than the longest values, so that some GETs are answered by SEND.
                read_value_max: 64,
                timeout,
            },
            cpu: cpu.clone(),
        })
    }
}

fn open(device: &SeededDevice, clients: usize) -> Result<ServerEnd<SeededDevice>, RunError> {
    let options = ServerOptions {
        buckets: BUCKETS,
        buckets_max: BUCKETS_MAX,
        load_percent: 75,
        lag: LAG,
        extent_bytes: EXTENT_BYTES,
        clients,
        hash_key: HASH_KEY,
    };
    Ok(ServerEnd::open(device.clone(), options)?)
}

impl Servers for PilafServers {
    type Lease = ClientId;

    const ASKS: Asks = Asks {
        conditional: false,
        sizes: &[8, 24, 60, 200, 900],
        key_bytes_max: 60,
    };

    fn workers(&mut self) -> Vec<&mut dyn Process> {
        vec![&mut self.server]
    }

    fn join(
        &mut self,
        device: &SeededDevice,
        _: u16,
    ) -> Result<(Box<dyn Machine>, ClientId), RunError> {
        let server = &mut self.server.end;
        let (end, client) = server.join_in_process(device.clone(), &self.options)?;
        let machine = PilafMachine {
            end,
            timeout: self.options.timeout,
            polled: Duration::ZERO,
        };
        Ok((Box::new(machine), client))
    }

    fn dismiss(&mut self, lease: ClientId) {
        self.server.end.remove(lease);
    }

    /// The server's own passes drop clients whose queue pair failed.
    fn hears(&self, _: &ClientId) -> bool {
        true
    }

    fn is_lost(&self) -> bool {
        self.device.health(&self.server.end.port).lost
    }

    fn restart(&mut self, _: bool) -> Result<bool, RunError> {
        let end = open(&self.device, self.clients)?;
        self.server = PilafServer::new(end, &self.cpu);
        Ok(false)
    }

    fn step_clock(&mut self, _: u32) {}
}

struct PilafMachine {
    end: ClientEnd<SeededDevice>,
    timeout: Duration,
    /// The last poll.
    polled: Duration,
}

impl Machine for PilafMachine {
    fn party(&self) -> PartyId {
        self.end.port.party()
    }

    fn submit(&mut self, _: Duration, key: &[u8], ask: Ask<'_>, token: u64) -> bool {
        let client = &mut self.end.client;
        let begun = match ask {
            Ask::Get => client.get(key, token),
            Ask::Put(value) => client.put(key, value, token),
            Ask::Delete => client.delete(key, token),
            Ask::Add(_) | Ask::Increment(_) => return false,
        };
        begun.is_ok()
    }

    fn flush(&mut self, now: Duration) {
        self.end.client.post(&mut self.end.port, now);
    }

    fn poll(&mut self, now: Duration, sink: &mut dyn FnMut(u64, Told<'_>)) {
        self.polled = now;
        // A client that cannot is served by SEND until the table moves again.
        let _ = self.end.follow_in_process();
        let ClientEnd { client, port, .. } = &mut self.end;
        client.poll(port, now, &mut |token, answer| {
            sink(token, Told::of(answer));
        });
    }

    /// Often enough to notice a server that does not answer.
    fn deadline(&self) -> Option<Duration> {
        (self.end.client.in_flight() > 0).then(|| self.polled + self.timeout / 4)
    }

    fn is_broken(&self) -> bool {
        self.end.client.failed().is_some()
    }

    fn close(&mut self, _: Duration, _: &mut dyn FnMut(u64, Told<'_>)) {}
}
