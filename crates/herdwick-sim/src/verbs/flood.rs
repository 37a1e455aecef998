//! One side issues a verb as fast as its windows allow (HERD paper, Figures 3, 4 and 6).

use std::time::Duration;

use herdwick_fabric::{
    AddressHandle, Completion, Device, Payload, Port, PostError, QpId, Remote, SendOp, SendWr,
    Transport,
};

use super::{
    Bed, Outcome, Span, VerbsError, Worker, ends,
    ends::{End, SEND_DEPTH},
    measure,
};
use crate::{PartyId, Process, Profile, Step, rng::Rng};

/// Which side issues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The clients.
    Inbound,
    /// The servers.
    Outbound,
}

/// What is issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloodVerb {
    /// WRITEs.
    Write,
    /// READs.
    Read,
    /// SENDs: over UD if the transport is.
    Send,
    /// FETCH_ADDs of 8 bytes.
    FetchAdd,
}

/// A verb from one machine to many, or from many to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flood {
    /// Which side issues.
    pub direction: Direction,
    /// The verb.
    pub verb: FloodVerb,
    /// Its transport.
    pub transport: Transport,
    /// Bytes of a message.
    pub payload: usize,
    /// Whether the payload is inlined.
    pub inline: bool,
    /// Threads of the one server machine.
    pub servers: usize,
    /// Threads of the client machines.
    pub clients: usize,
    /// Client machines.
    pub machines: usize,
    /// Messages of a thread under way.
    pub window: usize,
    /// Messages of a post: more than one are given to the RNIC by a doorbell.
    pub postlist: usize,
    /// Whether each thread of one side has a queue pair to every thread of the other, and draws one
    /// for each message. If not, the clients are shared out to the servers.
    pub all_to_all: bool,
}

/// Messages that an issuer posts in a pass.
const POSTS: usize = 8;
/// Completions that a pass polls.
const POLLS: usize = 64;

impl Flood {
    /// Runs it.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn run(&self, profile: &Profile, seed: u64, span: Span) -> Result<Outcome, VerbsError> {
        let counts = [
            self.servers,
            self.clients,
            self.machines,
            self.window,
            self.payload,
            self.postlist,
        ];
        if counts.contains(&0) {
            return Err(VerbsError::Empty);
        }
        let bed = Bed::new(profile, seed, self.servers, self.clients, self.machines)?;
        let network = bed.network.clone();
        let [mut servers, mut clients] = self.open(bed)?;
        let mut flows: [Vec<Vec<Flow>>; 2] =
            [&servers, &clients].map(|side| side.iter().map(|_| Vec::new()).collect());
        for client in 0..self.clients {
            for server in 0..self.servers {
                if self.all_to_all || client % self.servers == server {
                    let (s, c) = (&mut servers[server], &mut clients[client]);
                    match self.direction {
                        Direction::Inbound => flows[1][client].push(self.flow(c, s)?),
                        Direction::Outbound => flows[0][server].push(self.flow(s, c)?),
                    }
                }
            }
        }
        let ends = servers.into_iter().chain(clients);
        let flows = flows.into_iter().flatten();
        let workers = ends.zip(flows).enumerate().map(|(index, (end, flows))| {
            let worker: Box<dyn Worker> = match flows.is_empty() {
                true => Box::new(Receiver::new(*self, end)),
                false => Box::new(Issuer::new(*self, end, flows, seed ^ index as u64)),
            };
            worker
        });
        measure(&network, workers.collect(), span, 1.0)
    }

    /// Messages of a thread under way: what its queue pair has room for.
    fn limit(&self) -> usize {
        self.window.min(SEND_DEPTH / 2)
    }

    fn recvs(&self) -> usize {
        match self.verb {
            FloodVerb::Send => 2 * self.window,
            _ => 0,
        }
    }

    fn open(&self, bed: Bed) -> Result<[Vec<End>; 2], VerbsError> {
        let (to_clients, to_servers) = match self.all_to_all {
            true => (self.clients, self.servers),
            false => (self.clients.div_ceil(self.servers), 1),
        };
        let bytes = 64 + self.payload.next_multiple_of(8);
        let open = |devices: Vec<crate::SeededDevice>, qps| {
            let ends = devices
                .into_iter()
                .map(|device| End::open(device, qps, self.recvs(), bytes));
            ends.collect::<Result<Vec<_>, _>>()
        };
        Ok([
            open(bed.servers, to_clients)?,
            open(bed.clients, to_servers)?,
        ])
    }

    /// Makes a flow from one end to the other.
    fn flow(&self, from: &mut End, to: &mut End) -> Result<Flow, VerbsError> {
        let recvs = self.recvs();
        let remote = to.remote()?;
        let (qp, target, address) = if self.transport == Transport::Ud {
            let qp = from.datagrams()?;
            let target = to.queue_pair(Transport::Ud, recvs)?;
            let end = to.device.endpoint(&to.port, target)?;
            let address = from.device.create_address(&mut from.port, qp, &end)?;
            (qp, target, Some(address))
        } else {
            let [qp, target] = ends::connect(from, to, self.transport, [0, recvs])?;
            (qp, target, None)
        };
        let header = to.device.capabilities().datagram_header_bytes;
        to.post_recvs(target, recvs, header + self.payload)?;
        Ok(Flow {
            qp,
            remote,
            address,
        })
    }
}

struct Flow {
    qp: QpId,
    remote: Remote,
    address: Option<AddressHandle>,
}

/// A thread that issues. Of one queue pair, one message in half a window is signaled; of several, each,
/// so that the thread knows its window.
struct Issuer {
    flood: Flood,
    end: End,
    flows: Vec<Flow>,
    every: usize,
    under_way: usize,
    /// Messages since the last signaled one.
    unsignaled: usize,
    rng: Rng,
    payload: Vec<u8>,
    completions: Vec<Completion>,
    failure: Option<PostError>,
}

impl Issuer {
    fn new(flood: Flood, end: End, flows: Vec<Flow>, seed: u64) -> Self {
        Self {
            payload: vec![7; flood.payload],
            every: match flows.len() {
                1 => flood.limit().div_ceil(2),
                _ => 1,
            },
            under_way: 0,
            unsignaled: 0,
            flood,
            end,
            flows,
            rng: Rng::new(seed),
            completions: vec![Completion::BLANK; POLLS],
            failure: None,
        }
    }

    fn poll(&mut self) -> bool {
        let count = self.end.port.poll(self.end.cq, &mut self.completions);
        // A queue pair that failed completes each message.
        self.under_way = self.under_way.saturating_sub(count * self.every);
        count > 0
    }

    /// Posts messages of a flow that is drawn at random, as a server process of section 3.3 does; `false` if
    /// the window has no room.
    fn post(&mut self) -> Result<bool, PostError> {
        if self.under_way + self.flood.postlist > self.flood.limit() {
            return Ok(false);
        }
        let count = self.flows.len() as u64;
        let index = usize::try_from(self.rng.below(count)).unwrap_or(0);
        let flow = &self.flows[index];
        let len = self.flood.payload;
        let payload = match self.flood.inline {
            true => Payload::Inline(&self.payload),
            false => Payload::Region(self.end.local(0, len)),
        };
        let (into, to) = (self.end.local(0, len), flow.remote);
        let op = match self.flood.verb {
            FloodVerb::Write => SendOp::Write {
                payload,
                to,
                imm: None,
            },
            FloodVerb::Read => SendOp::Read { into, from: to },
            FloodVerb::Send => SendOp::Send {
                payload,
                imm: None,
                to: flow.address,
            },
            FloodVerb::FetchAdd => SendOp::FetchAdd {
                into: self.end.local(0, 8),
                at: to,
                add: 1,
            },
        };
        let mut batch = Vec::with_capacity(self.flood.postlist);
        for _ in 0..self.flood.postlist {
            self.unsignaled += 1;
            let signaled = self.unsignaled == self.every;
            if signaled {
                self.unsignaled = 0;
            }
            batch.push(SendWr {
                wr_id: index as u64,
                op,
                signaled,
                solicited: false,
                fence: false,
            });
        }
        self.end.port.post_send(flow.qp, &batch)?;
        self.under_way += batch.len();
        Ok(true)
    }
}

impl Process for Issuer {
    fn party(&self) -> PartyId {
        self.end.port.party()
    }

    fn step(&mut self, _: Duration) -> Step {
        let mut moved = self.poll();
        for _ in 0..POSTS {
            match self.post() {
                Ok(true) => moved = true,
                Ok(false) => break,
                Err(failure) => self.failure = Some(failure),
            }
        }
        let room = self.flood.limit().saturating_sub(self.under_way);
        // An issuer that has room has something to do.
        moved |= self.failure.is_none() && room >= self.flood.postlist;
        Step {
            moved,
            cost_ns: 10.0,
            deadline: None,
        }
    }
}

impl Worker for Issuer {
    fn failure(&self) -> Option<PostError> {
        self.failure
    }
}

/// A thread that posts RECVs again, where there are any.
struct Receiver {
    flood: Flood,
    end: End,
    completions: Vec<Completion>,
    failure: Option<PostError>,
}

impl Receiver {
    fn new(flood: Flood, end: End) -> Self {
        Self {
            flood,
            end,
            completions: vec![Completion::BLANK; POLLS],
            failure: None,
        }
    }
}

impl Process for Receiver {
    fn party(&self) -> PartyId {
        self.end.port.party()
    }

    fn step(&mut self, _: Duration) -> Step {
        let count = self.end.port.poll(self.end.cq, &mut self.completions);
        let header = self.end.device.capabilities().datagram_header_bytes;
        let recv = self.end.recv(0, header + self.flood.payload);
        for completion in &self.completions[..count] {
            if let Err(failure) = self.end.port.post_recv(completion.qp, &[recv]) {
                self.failure = Some(failure);
            }
        }
        Step {
            moved: count > 0,
            cost_ns: 10.0,
            deadline: None,
        }
    }
}

impl Worker for Receiver {
    fn failure(&self) -> Option<PostError> {
        self.failure
    }
}
