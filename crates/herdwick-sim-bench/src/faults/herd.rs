//! HERD under faults: the workers of a server, and clients that connect again when their lease ends.

use std::time::Duration;

use herdwick_fabric::{Device, PdId};
use herdwick_herd::{
    Admitted, ClientEnd, ClientTerms, LeaseResources, Outcome, RequestPath,
    wire::{Epoch, ReplyStatus, Window},
};
use herdwick_request::{Arith, Delete, Get, Mode, Op, Put, Request};
use herdwick_sim::{Cpu, PartyId, Process, SeededDevice, SeededPort};

use super::machine::{Ask, Asks, Machine, Servers, Told};
use crate::{
    herd::{self, Worker},
    keys,
    run::RunError,
};

/// Workers may sleep: clients announce requests after a pause, and retries.
const SPIN: Duration = Duration::from_millis(1);

/// Memory of a worker's items: more than a run fills.
const STORE_BYTES: usize = 64 << 20;

/// What clients and workers agree on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) path: RequestPath,
    pub(super) window: Window,
    pub(super) clients_max: usize,
    pub(super) retry_after: Duration,
    pub(super) deadline: Duration,
}

/// The workers of a server.
pub(super) struct HerdServers {
    terms: Terms,
    cpu: Cpu,
    devices: Vec<SeededDevice>,
    workers: Vec<Worker>,
}

impl HerdServers {
    pub(super) fn new(
        terms: Terms,
        devices: Vec<SeededDevice>,
        cpu: &Cpu,
    ) -> Result<Self, RunError> {
        let mut servers = Self {
            terms,
            cpu: cpu.clone(),
            devices,
            workers: Vec::new(),
        };
        servers.restart(false)?;
        Ok(servers)
    }
}

impl Servers for HerdServers {
    type Lease = Vec<(PdId, LeaseResources, Admitted)>;

    const ASKS: Asks = Asks {
        conditional: true,
        sizes: &[8, 24, 32, 60, 200, 700],
        key_bytes_max: 60,
    };

    fn workers(&mut self) -> Vec<&mut dyn Process> {
        let workers = self.workers.iter_mut();
        workers.map(|worker| worker as &mut dyn Process).collect()
    }

    fn join(
        &mut self,
        device: &SeededDevice,
        epoch: u16,
    ) -> Result<(Box<dyn Machine>, Self::Lease), RunError> {
        let terms = ClientTerms {
            path: self.terms.path,
            window: self.terms.window,
            epoch: Epoch::new(epoch).ok_or(RunError::Window)?,
            reply_bytes_max: herd::REPLY_BYTES_MAX,
            retry_after: self.terms.retry_after,
            retry_after_max: 8 * self.terms.retry_after,
            deadline: self.terms.deadline,
        };
        let (end, lease) = herd::join(&terms, &mut self.workers, device)?;
        Ok((Box::new(HerdMachine(end)), lease))
    }

    fn dismiss(&mut self, lease: Self::Lease) {
        for (worker, (pd, _, admitted)) in self.workers.iter_mut().zip(lease) {
            let Worker { device, end, .. } = worker;
            // What is left goes with the domain.
            let _ = end.dismiss(device, admitted);
            let _ = device.destroy_pd(&mut end.port, pd);
        }
    }

    fn hears(&self, lease: &Self::Lease) -> bool {
        let mut places = self.workers.iter().zip(lease);
        places.all(|(worker, (_, resources, _))| worker.end.hears(&worker.device, resources))
    }

    fn is_lost(&self) -> bool {
        let mut workers = self.workers.iter();
        workers.any(|worker| worker.end.is_lost(&worker.device))
    }

    fn restart(&mut self, keeps: bool) -> Result<bool, RunError> {
        let mut stores = self.workers.drain(..).map(|worker| worker.store);
        let mut workers = Vec::with_capacity(self.devices.len());
        for (number, device) in self.devices.iter().enumerate() {
            let place = (number, self.devices.len(), self.terms.clients_max, SPIN);
            let store = match stores.next() {
                // The device was lost, and the process lives: its memory is what it was.
                Some(store) if keeps => store,
                _ => herd::empty_store(STORE_BYTES)?,
            };
            workers.push(Worker::open(
                place,
                device.clone(),
                store,
                (&self.cpu, self.terms.path),
            )?);
        }
        drop(stores);
        self.workers = workers;
        Ok(keeps)
    }

    fn step_clock(&mut self, seconds: u32) {
        for worker in &mut self.workers {
            worker.clock.second.0 += seconds;
        }
    }
}

struct HerdMachine(ClientEnd<SeededPort>);

impl Machine for HerdMachine {
    fn party(&self) -> PartyId {
        self.0.port.party()
    }

    fn submit(&mut self, _: Duration, key: &[u8], ask: Ask<'_>, token: u64) -> bool {
        let put = |mode, value| {
            Op::Put(Put {
                mode,
                value,
                ..Put::default()
            })
        };
        let op = match ask {
            Ask::Get => Op::Get(Get::default()),
            Ask::Put(value) => put(Mode::Set, value),
            Ask::Add(value) => put(Mode::Add, value),
            Ask::Delete => Op::Delete(Delete::default()),
            Ask::Increment(delta) => Op::Arith(Arith {
                delta,
                ..Arith::default()
            }),
        };
        let hash = keys::hash(key);
        let request = Request { hash, key, op };
        self.0.side.submit(&request, token).is_ok()
    }

    fn flush(&mut self, now: Duration) {
        self.0.side.flush(&mut self.0.port, now);
    }

    fn poll(&mut self, now: Duration, sink: &mut dyn FnMut(u64, Told<'_>)) {
        let ClientEnd { port, side, .. } = &mut self.0;
        side.poll(port, now, &mut |token, outcome| sink(token, told(&outcome)));
    }

    fn deadline(&self) -> Option<Duration> {
        self.0.side.poll_timeout()
    }

    fn is_broken(&self) -> bool {
        self.0.side.is_broken()
    }

    fn close(&mut self, now: Duration, sink: &mut dyn FnMut(u64, Told<'_>)) {
        let ClientEnd { port, side, .. } = &mut self.0;
        side.close(port, now, &mut |token, outcome| sink(token, told(&outcome)));
    }
}

fn told<'a>(outcome: &Outcome<'a>) -> Told<'a> {
    let answer = match outcome {
        Outcome::Answered(answer) => answer,
        Outcome::Timeout => return Told::Nothing,
        Outcome::Unknown => return Told::Unknown,
    };
    match answer.status {
        ReplyStatus::Done => match (answer.value, answer.number) {
            ([], Some(number)) => Told::DoneWith(number),
            // No value that is stored here is empty.
            ([], None) => Told::Done,
            (value, _) => Told::Value(value),
        },
        ReplyStatus::NotFound | ReplyStatus::NotStored => Told::NotDone,
        _ => Told::Odd("another status"),
    }
}
