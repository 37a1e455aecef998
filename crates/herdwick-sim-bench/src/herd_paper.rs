//! HERD with the request format and the pipeline of its paper: server processes and clients.

use std::time::Duration;

use herdwick_fabric::{Device, Port};
use herdwick_herd::{
    paper::{
        INLINE_BELOW, Keyhash, NO_OP_AFTER, PaperAnswer, PaperClientEnd, PaperClientSetup,
        PaperClientTerms, PaperServerEnd, PaperServerTerms, STAGES, pd_room,
    },
    wire::Window,
};
use herdwick_mica::Store;
use herdwick_sim::{Cpu, PartyId, Process, SeededDevice, SeededPort, Step};

use crate::{
    client::{Client, Ended, SPINS, SystemClient},
    ends::{Ends, Serving, Testbed},
    herd::{CLOCK, partition},
    keys::{self, HASH_KEY},
    memory::CountedStore,
    run::{Run, RunError},
};

/// No answer for so long is a failure: nothing is lost in a run.
const DEADLINE: Duration = Duration::from_millis(500);
/// Passes without a request after which the pipeline is empty.
const DRAINED: u32 = NO_OP_AFTER * STAGES as u32;

pub(crate) fn set_up(run: &Run, bed: Testbed) -> Result<Ends, RunError> {
    let window = Window::new(run.window).ok_or(RunError::Window)?;
    // In the paper a client's one queue pair reaches the slots of all processes.
    bed.network.set_one_context();
    let mut servers = Vec::with_capacity(run.workers);
    for (number, device) in bed.servers.into_iter().enumerate() {
        let terms = PaperServerTerms {
            clients_max: run.clients,
            window,
            inline_below: INLINE_BELOW,
            hash_key: HASH_KEY,
        };
        servers.push(PaperProcess {
            end: PaperServerEnd::open(&device, &terms)?,
            device,
            store: partition(run, number)?,
            cpu: bed.server_cpu.clone(),
            spins: 0,
        });
    }
    let mut clients = Vec::with_capacity(run.clients);
    for (number, device) in bed.clients.iter().enumerate() {
        let caller = join(window, &mut servers, device)?;
        clients.push(Client::new(run, number, caller, &bed.client_cpu));
    }
    Ok(Ends {
        servers: servers.into_iter().map(|s| Box::new(s) as Box<_>).collect(),
        clients: clients.into_iter().map(|c| Box::new(c) as Box<_>).collect(),
    })
}

/// Connects a client to every server process.
fn join(
    window: Window,
    servers: &mut [PaperProcess],
    device: &SeededDevice,
) -> Result<PaperCaller, RunError> {
    let terms = PaperClientTerms {
        servers: servers.len(),
        window,
        deadline: DEADLINE,
    };
    let mut setup = PaperClientSetup::open(device, &terms)?;
    for PaperProcess {
        device: ours, end, ..
    } in servers.iter_mut()
    {
        let pd = ours.create_pd_for(&mut end.port, &pd_room(window))?;
        let (lease, grant) = end.grant(ours, pd)?;
        let their_pd = device.create_pd(&mut setup.port)?;
        let accept = setup.join(device, their_pd, &grant)?;
        end.admit(ours, &lease, &accept)?;
    }
    Ok(PaperCaller {
        end: setup.finish(),
        servers: servers.len(),
    })
}

struct PaperCaller {
    end: PaperClientEnd<SeededPort>,
    servers: usize,
}

impl SystemClient for PaperCaller {
    fn party(&self) -> PartyId {
        self.end.port.party()
    }

    fn call(&mut self, now: Duration, key: &[u8], put: Option<&[u8]>, token: u64) -> bool {
        let server = keys::hash(key).partition(self.servers);
        let keyhash = key.try_into().ok().and_then(Keyhash::new);
        let PaperClientEnd { port, side } = &mut self.end;
        keyhash.is_some_and(|keyhash| {
            side.submit(port, (server, keyhash), put, (token, now))
                .is_ok()
        })
    }

    fn flush(&mut self, now: Duration) {
        self.end.port.flush(now);
    }

    fn poll(&mut self, now: Duration, sink: &mut dyn FnMut(u64, Ended<'_>)) {
        let PaperClientEnd { port, side } = &mut self.end;
        side.poll(port, now, &mut |token, answer| {
            let ended = match answer {
                PaperAnswer::Value(value) => Ended::Value(value),
                PaperAnswer::Stored => Ended::Done,
                PaperAnswer::Missing | PaperAnswer::NotStored | PaperAnswer::Lost => Ended::Failed,
            };
            sink(token, ended);
        });
    }

    fn deadline(&self) -> Option<Duration> {
        self.end.side.deadline()
    }
}

/// A server process and its partition.
struct PaperProcess {
    device: SeededDevice,
    end: PaperServerEnd<SeededPort>,
    store: Store,
    cpu: Cpu,
    /// Passes without a request.
    spins: u32,
}

impl Process for PaperProcess {
    fn party(&self) -> PartyId {
        self.end.port.party()
    }

    fn step(&mut self, now: Duration) -> Step {
        let PaperServerEnd { port, side, .. } = &mut self.end;
        let mut store = CountedStore::new(&mut self.store);
        let served = side.round(port, (now, CLOCK), &mut store);
        let memory_ns = store.accesses.beside_posts_ns(&self.cpu);
        self.spins = if served > 0 { 0 } else { self.spins + 1 };
        let (clients, served) = (f64::from(side.clients() as u32), f64::from(served as u32));
        Step {
            // Passes without a request count towards the next no-op.
            moved: self.spins <= DRAINED + SPINS,
            cost_ns: self.cpu.pass_ns
                + clients * self.cpu.poll_slot_ns
                + served * self.cpu.request_ns
                + memory_ns,
            deadline: None,
        }
    }
}

impl Serving for PaperProcess {
    fn refused(&self) -> u64 {
        self.end.side.counters().replies_refused
    }
}
