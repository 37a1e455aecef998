//! HERD's workers and clients.

use std::time::Duration;

use herdwick_fabric::{Device, PdId};
use herdwick_herd::{
    Admitted, ClientEnd, ClientSetup, ClientTerms, LeaseResources, Outcome, RECV_SLACK,
    RequestPath, ServerEnd, ServerTerms,
    wire::{Epoch, ReplyStatus, Window},
};
use herdwick_mica::{Store, StoreConfig};
use herdwick_request::{Clock, Execute, Get, Op, Put, Reply, Request, Second, Sink};
use herdwick_sim::{Cpu, PartyId, Process, SeededDevice, SeededPort, Step};

use crate::{
    client::{Client, Ended, SPINS, SystemClient},
    ends::{Ends, Serving, Testbed},
    keys::{self, HASH_KEY},
    memory::CountedStore,
    run::{Run, RunError},
};

/// A constant time: nothing expires in a run.
pub(crate) const CLOCK: Clock = Clock {
    epoch_unix: 1_700_000_000,
    second: Second(100),
};
/// Largest reply: a value of 1 KiB, and 64 bytes for its head.
pub(crate) const REPLY_BYTES_MAX: usize = 1088;
/// No answer for so long, and longer if there are many requests before it, is a failure: nothing is lost in a
/// run, so nothing is repeated.
const RETRY_AFTER: Duration = Duration::from_millis(5);
const DEADLINE: Duration = Duration::from_millis(500);
/// How long a request waits for each other one, at most.
const QUEUED: Duration = Duration::from_nanos(100);
/// Requests under way up to which the shortest times do.
const FEW: usize = 8192;
/// Cold clients that a worker looks at in a pass.
const COLD_PER_PASS: usize = 16;

pub(crate) fn set_up(run: &Run, bed: Testbed) -> Result<Ends, RunError> {
    let window = Window::new(run.window).ok_or(RunError::Window)?;
    let mut workers = Vec::with_capacity(run.workers);
    for (worker, device) in bed.servers.into_iter().enumerate() {
        workers.push(Worker::new(run, worker, device, &bed.server_cpu)?);
    }
    let mut clients = Vec::with_capacity(run.clients);
    for (number, device) in bed.clients.iter().enumerate() {
        let terms = terms(run, window, number)?;
        let (end, _) = join(&terms, &mut workers, device)?;
        clients.push(Client::new(run, number, HerdCaller(end), &bed.client_cpu));
    }
    Ok(Ends {
        servers: workers.into_iter().map(|w| Box::new(w) as Box<_>).collect(),
        clients: clients.into_iter().map(|c| Box::new(c) as Box<_>).collect(),
    })
}

fn terms(run: &Run, window: Window, number: usize) -> Result<ClientTerms, RunError> {
    let others = (run.clients * run.window).saturating_sub(FEW);
    let queued = QUEUED * u32::try_from(others).unwrap_or(u32::MAX);
    // Never 0, which no lease has.
    let epoch = u16::try_from(number % usize::from(u16::MAX) + 1).unwrap_or(1);
    Ok(ClientTerms {
        path: run.path,
        window,
        epoch: Epoch::new(epoch).ok_or(RunError::Window)?,
        reply_bytes_max: REPLY_BYTES_MAX,
        retry_after: RETRY_AFTER + queued,
        retry_after_max: RETRY_AFTER + queued,
        deadline: DEADLINE + 2 * queued,
    })
}

/// What a worker has of a client.
pub(crate) type Joined = (PdId, LeaseResources, Admitted);

/// Connects a client to every worker.
pub(crate) fn join(
    terms: &ClientTerms,
    workers: &mut [Worker],
    device: &SeededDevice,
) -> Result<(ClientEnd<SeededPort>, Vec<Joined>), RunError> {
    let mut setup = ClientSetup::open(device, workers.len(), terms)?;
    let mut joined = Vec::with_capacity(workers.len());
    for Worker {
        device: ours, end, ..
    } in workers
    {
        let pd = ours.create_pd(&mut end.port)?;
        let resources = end.allocate(ours, pd, terms.path, terms.window)?;
        let grant = end.grant(ours, &resources, Vec::new(), 0)?;
        let their_pd = device.create_pd(&mut setup.port)?;
        let accept = setup.join(device, their_pd, &grant)?;
        let admitted = end.admit(ours, &resources, &accept, terms.epoch, REPLY_BYTES_MAX)?;
        joined.push((pd, resources, admitted));
    }
    Ok((setup.finish()?, joined))
}

struct HerdCaller(ClientEnd<SeededPort>);

impl SystemClient for HerdCaller {
    fn party(&self) -> PartyId {
        self.0.port.party()
    }

    fn call(&mut self, _: Duration, key: &[u8], put: Option<&[u8]>, token: u64) -> bool {
        let op = match put {
            Some(value) => Op::Put(Put {
                value,
                ..Put::default()
            }),
            None => Op::Get(Get::default()),
        };
        let hash = keys::hash(key);
        self.0
            .side
            .submit(&Request { hash, key, op }, token)
            .is_ok()
    }

    fn flush(&mut self, now: Duration) {
        self.0.side.flush(&mut self.0.port, now);
    }

    fn poll(&mut self, now: Duration, sink: &mut dyn FnMut(u64, Ended<'_>)) {
        let ClientEnd { port, side, .. } = &mut self.0;
        side.poll(port, now, &mut |token, outcome| {
            let ended = match outcome {
                Outcome::Answered(answer) if answer.status == ReplyStatus::Done => {
                    match answer.value {
                        // Values have at least 8 bytes, so an answer without one is that to a PUT.
                        [] => Ended::Done,
                        value => Ended::Value(value),
                    }
                }
                _ => Ended::Failed,
            };
            sink(token, ended);
        });
    }

    fn deadline(&self) -> Option<Duration> {
        self.0.side.poll_timeout()
    }
}

/// A worker and its partition.
pub(crate) struct Worker {
    pub(crate) device: SeededDevice,
    pub(crate) end: ServerEnd<SeededPort>,
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    cpu: Cpu,
    /// Whether it polls slots of clients: those of UD announce each request by a completion.
    polls_slots: bool,
    spins: u32,
}

impl Worker {
    /// Opens a worker without clients: its number, how many there are, most clients, and for how long it
    /// polls after a request before it may sleep.
    pub(crate) fn open(
        (worker, workers, clients_max, spin): (usize, usize, usize, Duration),
        device: SeededDevice,
        store: Store,
        (cpu, path): (&Cpu, RequestPath),
    ) -> Result<Self, RunError> {
        let terms = ServerTerms {
            worker,
            workers,
            clients_max,
            spin,
            reply_bytes_max: REPLY_BYTES_MAX,
        };
        // No client is refused for the memory of its RECVs.
        let recvs = clients_max.saturating_mul(Window::MAX + RECV_SLACK);
        let end = ServerEnd::open_for_recvs(&device, &terms, recvs)?;
        Ok(Self {
            device,
            end,
            store,
            clock: CLOCK,
            cpu: cpu.clone(),
            polls_slots: path != RequestPath::UdSend,
            spins: 0,
        })
    }

    fn new(run: &Run, worker: usize, device: SeededDevice, cpu: &Cpu) -> Result<Self, RunError> {
        let store = partition(run, worker)?;
        // It never sleeps, so no request is announced.
        let terms = (worker, run.workers, run.clients, Duration::MAX);
        Self::open(terms, device, store, (cpu, run.path))
    }
}

/// Makes the store of a worker, with the items of its partition.
pub(crate) fn partition(run: &Run, worker: usize) -> Result<Store, RunError> {
    // Twice the items, so that the load evicts none.
    let item = (keys::KEY_BYTES + run.value_bytes + 64) * 4;
    let items = run.keys as usize / run.workers + 1024;
    let mut store = empty_store((4 << 20) + items * item)?;
    let mut value = vec![0; run.value_bytes];
    for index in 0..run.keys {
        let key = keys::key(index);
        let hash = keys::hash(&key);
        if hash.partition(run.workers) == worker {
            keys::fill(index, &mut value);
            let put = Put {
                value: &value,
                ..Put::default()
            };
            let (key, op) = (&key[..], Op::Put(put));
            store.execute(CLOCK, &[Request { hash, key, op }], &mut Ignore);
        }
    }
    Ok(store)
}

pub(crate) fn empty_store(memory_bytes: usize) -> Result<Store, RunError> {
    Ok(Store::new(&StoreConfig {
        memory_bytes,
        item_bytes_max: 2048,
        hash_key: HASH_KEY,
    })?)
}

/// The replies to the items that are stored beforehand.
struct Ignore;

impl Sink for Ignore {
    fn reply(&mut self, _: usize, _: &Reply<'_>) {}
}

impl Process for Worker {
    fn party(&self) -> PartyId {
        self.end.port.party()
    }

    fn step(&mut self, now: Duration) -> Step {
        let ServerEnd { port, side, .. } = &mut self.end;
        let mut store = CountedStore::new(&mut self.store);
        let served = side.round(port, (now, self.clock), &mut store);
        let memory_ns = store.accesses.together_ns(&self.cpu);
        let clients = self.end.side.clients();
        // A client that became cold is found some passes later.
        let turns = SPINS + u32::try_from(clients / COLD_PER_PASS).unwrap_or(u32::MAX);
        self.spins = if served > 0 { 0 } else { self.spins + 1 };
        let slots = if self.polls_slots { clients } else { 0 };
        let (slots, served) = (f64::from(slots as u32), f64::from(served as u32));
        Step {
            moved: self.spins <= turns,
            cost_ns: self.cpu.pass_ns
                + slots * self.cpu.poll_slot_ns
                + served * self.cpu.request_ns
                + memory_ns,
            deadline: None,
        }
    }
}

impl Serving for Worker {
    fn refused(&self) -> u64 {
        self.end.side.counters().replies_refused
    }
}
