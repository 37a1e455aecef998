//! FaRM-KV under faults.

use std::time::Duration;

use herdwick_farm::{
    Answer, ClientEnd, ClientId, ClientTerms, NEIGHBOURHOOD, ServerEnd, ServerTerms, Terms, Values,
    WINDOW_MAX, value_lines,
};
use herdwick_sim::{Cpu, PartyId, Process, SeededDevice, SeededPort};

use super::machine::{Ask, Asks, Machine, Servers, Told};
use crate::{
    farm::FarmServer,
    keys::{self, Draws, HASH_KEY},
    run::RunError,
};

/// Items that a large table has room for: more than a run stores.
const ITEMS: usize = 1 << 14;
/// Buckets and overflow slots of a small one, in which items are moved and chained, and for which there is
/// often no room.
const FEW: (usize, usize) = (24, 48);
/// Bytes of the longest value: several lines, so that a READ of it can be torn.
const VALUE_BYTES_MAX: usize = 120;

/// The server.
pub(super) struct FarmServers {
    device: SeededDevice,
    terms: ServerTerms,
    deadline: Duration,
    cpu: Cpu,
    server: FarmServer,
    /// Whether the table is a small one: half of the seeds have one.
    small: bool,
}

impl FarmServers {
    pub(super) fn new(
        (clients_max, window, out_of_table): (usize, usize, bool),
        (deadline, draws): (Duration, &mut Draws),
        device: SeededDevice,
        cpu: &Cpu,
    ) -> Result<Self, RunError> {
        let small = draws.below(2) == 0;
        let (buckets, overflow) = if small { FEW } else { (2 * ITEMS, ITEMS / 16) };
        let values = if out_of_table {
            // A block for each slot, and one more for a value that takes the place of another.
            let slots = buckets + NEIGHBOURHOOD + overflow;
            let lines = slots * value_lines(VALUE_BYTES_MAX).next_power_of_two();
            Values::OutOfTable { lines }
        } else {
            Values::Inline
        };
        let terms = ServerTerms {
            table: Terms {
                buckets,
                neighbourhood: NEIGHBOURHOOD,
                overflow,
                key_bytes_max: keys::KEY_BYTES,
                value_bytes_max: VALUE_BYTES_MAX,
                values,
            },
            hash_key: HASH_KEY,
            clients_max,
            window: window.min(WINDOW_MAX),
        };
        let end = ServerEnd::open(&device, &terms)?;
        Ok(Self {
            server: FarmServer::new(end, cpu),
            device,
            terms,
            deadline,
            cpu: cpu.clone(),
            small,
        })
    }
}

impl Servers for FarmServers {
    type Lease = ClientId;

    const ASKS: Asks = Asks {
        conditional: false,
        sizes: &[8, 24, 60, VALUE_BYTES_MAX],
        key_bytes_max: keys::KEY_BYTES,
    };

    fn workers(&mut self) -> Vec<&mut dyn Process> {
        vec![&mut self.server]
    }

    fn join(
        &mut self,
        device: &SeededDevice,
        _: u16,
    ) -> Result<(Box<dyn Machine>, ClientId), RunError> {
        let terms = ClientTerms {
            lookups: self.terms.window,
            outstanding: self.terms.window,
            deadline: self.deadline,
            ..ClientTerms::default()
        };
        let server = &mut self.server;
        let devices = (&self.device, device);
        let (end, client) = server.end.join_in_process(devices, &terms)?;
        let machine = FarmMachine {
            end,
            timeout: self.deadline,
            polled: Duration::ZERO,
            may_be_full: self.small,
        };
        Ok((Box::new(machine), client))
    }

    fn dismiss(&mut self, lease: ClientId) {
        // What is left goes with the port.
        let _ = self.server.end.detach(&self.device, lease);
    }

    fn hears(&self, lease: &ClientId) -> bool {
        self.server.end.side.lost_client() != Some(*lease)
    }

    fn is_lost(&self) -> bool {
        herdwick_fabric::Device::health(&self.device, &self.server.end.port).lost
    }

    fn restart(&mut self, _: bool) -> Result<bool, RunError> {
        let end = ServerEnd::open(&self.device, &self.terms)?;
        self.server = FarmServer::new(end, &self.cpu);
        Ok(false)
    }

    fn step_clock(&mut self, _: u32) {}
}

struct FarmMachine {
    end: ClientEnd<SeededPort>,
    timeout: Duration,
    /// The last poll.
    polled: Duration,
    /// Whether the server may have no room for an item.
    may_be_full: bool,
}

impl Machine for FarmMachine {
    fn party(&self) -> PartyId {
        self.end.port.party()
    }

    fn submit(&mut self, now: Duration, key: &[u8], ask: Ask<'_>, token: u64) -> bool {
        let ClientEnd { port, side } = &mut self.end;
        let begun = match ask {
            Ask::Get => side.get(key, token),
            Ask::Put(value) => side.put(port, (key, value), token, now),
            Ask::Delete => side.delete(port, key, token, now),
            Ask::Add(_) | Ask::Increment(_) => return false,
        };
        begun.is_ok()
    }

    fn flush(&mut self, _: Duration) {
        self.end.side.post(&mut self.end.port);
    }

    fn poll(&mut self, now: Duration, sink: &mut dyn FnMut(u64, Told<'_>)) {
        self.polled = now;
        let Self {
            end: ClientEnd { port, side },
            may_be_full,
            ..
        } = self;
        side.poll(port, now, &mut |token, answer| {
            let told = match answer {
                Answer::Full if *may_be_full => Told::NoRoom,
                answer => Told::of(answer),
            };
            sink(token, told);
        });
    }

    /// Often enough to notice a server that does not answer.
    fn deadline(&self) -> Option<Duration> {
        (self.end.side.in_flight() > 0).then(|| self.polled + self.timeout / 4)
    }

    fn is_broken(&self) -> bool {
        self.end.side.failed().is_some()
    }

    fn close(&mut self, _: Duration, _: &mut dyn FnMut(u64, Told<'_>)) {}
}
