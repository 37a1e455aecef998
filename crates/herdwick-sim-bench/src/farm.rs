//! FaRM-KV's server and clients.

use std::time::Duration;

use herdwick_farm::{
    ClientEnd, ClientTerms, NEIGHBOURHOOD, ServerCounters, ServerEnd, ServerTerms, Terms, Values,
    WINDOW_MAX, value_lines,
};
use herdwick_sim::{Cpu, PartyId, Process, SeededPort, Step};

use crate::{
    client::{Client, Ended, SPINS, SystemClient},
    ends::{Ends, Serving, Testbed},
    keys::{self, HASH_KEY},
    memory::Accesses,
    run::{Run, RunError},
};

/// Slots of the table for three keys.
const SLOTS: usize = 4;
/// Overflow slots of the smallest table.
const OVERFLOW_MIN: usize = 64;
/// Accesses to memory of a message, one after the other: the neighbourhood, whose lines are beside each other. A
/// value's block is stored to, which no core waits for.
const ACCESSES: f64 = 1.0;
/// A PUT takes the new value's block before it gives the old one's back.
const BLOCKS_TO_SPARE: usize = 64;

pub(crate) fn set_up(run: &Run, bed: Testbed, out_of_table: bool) -> Result<Ends, RunError> {
    let (device, window) = (&bed.servers[0], run.window.min(WINDOW_MAX));
    let terms = ServerTerms {
        table: table(run, out_of_table),
        hash_key: HASH_KEY,
        clients_max: run.clients,
        window,
    };
    let mut server = ServerEnd::open(device, &terms)?;
    let mut value = vec![0; run.value_bytes];
    for index in 0..run.keys {
        keys::fill(index, &mut value);
        server.side.table_mut().put(&keys::key(index), &value)?;
    }
    let options = ClientTerms {
        lookups: run.window,
        outstanding: window,
        ..ClientTerms::default()
    };
    let mut clients = Vec::with_capacity(run.clients);
    for (number, client) in bed.clients.iter().enumerate() {
        let (end, _) = server.join_in_process((device, client), &options)?;
        clients.push(Client::new(run, number, FarmCaller(end), &bed.client_cpu));
    }
    let server = FarmServer {
        item_bytes: Some(keys::KEY_BYTES + run.value_bytes),
        ..FarmServer::new(server, &bed.server_cpu)
    };
    Ok(Ends {
        servers: vec![Box::new(server)],
        clients: clients.into_iter().map(|c| Box::new(c) as Box<_>).collect(),
    })
}

fn table(run: &Run, out_of_table: bool) -> Terms {
    let keys = run.keys as usize;
    // Blocks are powers of two of lines.
    let lines = value_lines(run.value_bytes).next_power_of_two();
    Terms {
        buckets: (keys * SLOTS).div_ceil(3),
        neighbourhood: NEIGHBOURHOOD,
        overflow: (keys / 16).max(OVERFLOW_MIN),
        key_bytes_max: keys::KEY_BYTES,
        value_bytes_max: run.value_bytes,
        values: if out_of_table {
            Values::OutOfTable {
                lines: (keys + BLOCKS_TO_SPARE) * lines,
            }
        } else {
            Values::Inline
        },
    }
}

struct FarmCaller(ClientEnd<SeededPort>);

impl SystemClient for FarmCaller {
    fn party(&self) -> PartyId {
        self.0.port.party()
    }

    fn call(&mut self, now: Duration, key: &[u8], put: Option<&[u8]>, token: u64) -> bool {
        let ClientEnd { port, side } = &mut self.0;
        match put {
            Some(value) => side.put(port, (key, value), token, now).is_ok(),
            None => side.get(key, token).is_ok(),
        }
    }

    fn flush(&mut self, _: Duration) {
        self.0.side.post(&mut self.0.port);
    }

    fn poll(&mut self, now: Duration, sink: &mut dyn FnMut(u64, Ended<'_>)) {
        let ClientEnd { port, side } = &mut self.0;
        side.poll(port, now, &mut |token, answer| {
            sink(token, Ended::of(answer));
        });
    }

    fn deadline(&self) -> Option<Duration> {
        None
    }
}

pub(crate) struct FarmServer {
    pub(crate) end: ServerEnd<SeededPort>,
    cpu: Cpu,
    spins: u32,
    /// Bytes of key and value, where all items are alike: then accesses to memory are charged by their count.
    item_bytes: Option<usize>,
}

impl FarmServer {
    pub(crate) fn new(end: ServerEnd<SeededPort>, cpu: &Cpu) -> Self {
        Self {
            end,
            cpu: cpu.clone(),
            spins: 0,
            item_bytes: None,
        }
    }

    /// Returns what the core waits for memory, for the messages since `before`, a copy of the counters.
    fn memory_ns(&self, served: u32, before: &ServerCounters) -> f64 {
        let puts = self.end.side.counters().puts - before.puts;
        self.item_bytes.map_or(0.0, |bytes| {
            Accesses::of_puts(served.into(), puts, bytes).one_by_one_ns(ACCESSES, &self.cpu)
        })
    }
}

impl Process for FarmServer {
    fn party(&self) -> PartyId {
        self.end.port.party()
    }

    fn step(&mut self, _: Duration) -> Step {
        let before = *self.end.side.counters();
        let served = self.end.side.poll(&mut self.end.port) as u32;
        let memory_ns = self.memory_ns(served, &before);
        self.spins = if served > 0 { 0 } else { self.spins + 1 };
        Step {
            moved: self.spins <= SPINS,
            cost_ns: self.cpu.pass_ns
                + f64::from(self.end.side.clients() as u32) * self.cpu.poll_slot_ns
                + f64::from(served) * self.cpu.request_ns
                + memory_ns,
            deadline: None,
        }
    }
}

impl Serving for FarmServer {}
