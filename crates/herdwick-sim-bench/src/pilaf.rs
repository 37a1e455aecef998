//! Pilaf's server and clients.

use std::time::Duration;

use herdwick_pilaf::{ClientEnd, ClientOptions, ServerCounters, ServerEnd, ServerOptions};
use herdwick_sim::{Cpu, PartyId, Process, SeededDevice, Step};

use crate::{
    client::{Client, Ended, SPINS, SystemClient},
    ends::{Ends, Serving, Testbed},
    keys::{self, HASH_KEY},
    memory::Accesses,
    run::{Run, RunError},
};

/// Share of the buckets that hold an item (HERD paper, 5.1.1).
const LOAD_PERCENT: u64 = 75;
/// Accesses to memory of a message, one after the other, at that load: as many buckets as a GET READs, and the extent
/// with the key. A new extent is stored to, which no core waits for.
const ACCESSES: f64 = 2.6;
/// Bytes of the smallest extent.
const EXTENT_UNIT: usize = 64;
/// A PUT takes the new value's extent before it gives the old one's back.
const EXTENTS_TO_SPARE: usize = 16 << 20;
/// Time for which a larger table waits for clients that READ the one before the last.
pub(crate) const LAG: Duration = Duration::from_millis(100);

pub(crate) fn set_up(run: &Run, mut bed: Testbed) -> Result<Ends, RunError> {
    let buckets = (u64::from(run.keys) * 100).div_ceil(LOAD_PERCENT);
    let extent = (keys::KEY_BYTES + run.value_bytes).next_power_of_two();
    let options = ServerOptions {
        buckets,
        buckets_max: buckets,
        // Above the load, so that the table does not grow.
        load_percent: 90,
        lag: LAG,
        extent_bytes: run.keys as usize * extent.max(EXTENT_UNIT) + EXTENTS_TO_SPARE,
        clients: run.clients,
        hash_key: HASH_KEY,
    };
    let mut server = ServerEnd::open(bed.servers.swap_remove(0), options)?;
    let mut value = vec![0; run.value_bytes];
    for index in 0..run.keys {
        keys::fill(index, &mut value);
        server.store_mut().put(&keys::key(index), &value)?;
    }
    let options = ClientOptions {
        window: run.window,
        read_value_max: run.value_bytes,
        ..ClientOptions::default()
    };
    let mut clients = Vec::with_capacity(run.clients);
    for (number, device) in bed.clients.into_iter().enumerate() {
        let (end, _) = server.join_in_process(device, &options)?;
        clients.push(Client::new(run, number, PilafCaller(end), &bed.client_cpu));
    }
    let server = PilafServer {
        item_bytes: Some(keys::KEY_BYTES + run.value_bytes),
        ..PilafServer::new(server, &bed.server_cpu)
    };
    Ok(Ends {
        servers: vec![Box::new(server)],
        clients: clients.into_iter().map(|c| Box::new(c) as Box<_>).collect(),
    })
}

struct PilafCaller(ClientEnd<SeededDevice>);

impl SystemClient for PilafCaller {
    fn party(&self) -> PartyId {
        self.0.port.party()
    }

    fn call(&mut self, _: Duration, key: &[u8], put: Option<&[u8]>, token: u64) -> bool {
        match put {
            Some(value) => self.0.client.put(key, value, token).is_ok(),
            None => self.0.client.get(key, token).is_ok(),
        }
    }

    fn flush(&mut self, now: Duration) {
        self.0.client.post(&mut self.0.port, now);
    }

    fn poll(&mut self, now: Duration, sink: &mut dyn FnMut(u64, Ended<'_>)) {
        // A client that cannot follow is served by SEND.
        let _ = self.0.follow_in_process();
        let ClientEnd { client, port, .. } = &mut self.0;
        client.poll(port, now, &mut |token, answer| {
            sink(token, Ended::of(answer));
        });
    }

    fn deadline(&self) -> Option<Duration> {
        None
    }
}

pub(crate) struct PilafServer {
    pub(crate) end: ServerEnd<SeededDevice>,
    cpu: Cpu,
    spins: u32,
    /// Bytes of key and value, where all items are alike: then accesses to memory are charged by their count.
    item_bytes: Option<usize>,
}

impl PilafServer {
    pub(crate) fn new(end: ServerEnd<SeededDevice>, cpu: &Cpu) -> Self {
        Self {
            end,
            cpu: cpu.clone(),
            spins: 0,
            item_bytes: None,
        }
    }

    /// Returns what the core waits for memory, for the requests since `before`, a copy of the counters.
    fn memory_ns(&self, before: &ServerCounters) -> f64 {
        let counters = self.end.server().counters();
        let requests = counters.requests - before.requests;
        let puts = counters.puts - before.puts;
        self.item_bytes.map_or(0.0, |bytes| {
            Accesses::of_puts(requests, puts, bytes).one_by_one_ns(ACCESSES, &self.cpu)
        })
    }
}

impl Process for PilafServer {
    fn party(&self) -> PartyId {
        self.end.port.party()
    }

    fn step(&mut self, now: Duration) -> Step {
        let before = *self.end.server().counters();
        let served = self.end.pass(now) as u32;
        let memory_ns = self.memory_ns(&before);
        self.spins = if served > 0 { 0 } else { self.spins + 1 };
        Step {
            moved: self.spins <= SPINS,
            // No slots to look at: each request arrives by SEND, and a completion announces it.
            cost_ns: self.cpu.pass_ns + f64::from(served) * self.cpu.request_ns + memory_ns,
            deadline: None,
        }
    }
}

impl Serving for PilafServer {}
