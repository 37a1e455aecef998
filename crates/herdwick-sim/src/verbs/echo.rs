//! Clients send requests and servers return them (HERD paper, Figures 2 and 5).

use std::{collections::VecDeque, time::Duration};

use herdwick_fabric::{
    AddressHandle, Completion, Device, Opcode, Payload, Port, PostError, QpId, Remote, SendOp,
    SendWr, Transport,
};
use herdwick_mem::{WORD, Words};

use super::{
    Bed, Outcome, Span, VerbsError, Worker, ends,
    ends::{End, SEND_DEPTH},
    measure,
};
use crate::{PartyId, Process, Profile, Step, profile::Cpu};

/// How a message travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A UC WRITE into memory that the receiver polls.
    Write,
    /// A SEND over UC.
    Send,
    /// A SEND over UD.
    Datagram,
}

impl Way {
    fn transport(self) -> Transport {
        match self {
            Self::Write | Self::Send => Transport::Uc,
            Self::Datagram => Transport::Ud,
        }
    }
}

/// Requests of many clients to one machine, returned as they came. All are inlined and unsignaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo {
    /// How requests travel.
    pub request: Way,
    /// How replies travel.
    pub reply: Way,
    /// Bytes of a message: whole words.
    pub payload: usize,
    /// Threads of the one server machine.
    pub servers: usize,
    /// Threads of the client machines.
    pub clients: usize,
    /// Client machines.
    pub machines: usize,
    /// Requests of a client under way.
    pub window: usize,
}

/// Completions that a pass polls.
const POLLS: usize = 64;
/// One send in so many is signaled.
const SIGNAL_EVERY: usize = SEND_DEPTH / 4;

impl Echo {
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
            self.payload / WORD,
        ];
        if counts.contains(&0) || !self.payload.is_multiple_of(WORD) {
            return Err(VerbsError::Empty);
        }
        let bed = Bed::new(profile, seed, self.servers, self.clients, self.machines)?;
        let network = bed.network.clone();
        let peers = self.clients.div_ceil(self.servers);
        let mut servers = Vec::new();
        for device in bed.servers {
            servers.push(Server::new(*self, device, peers, &bed.cpus[0])?);
        }
        let mut workers: Vec<Box<dyn Worker>> = Vec::new();
        for (index, device) in bed.clients.into_iter().enumerate() {
            let server = &mut servers[index % self.servers];
            workers.push(Box::new(Client::join(*self, device, server, &bed.cpus[1])?));
        }
        for server in servers {
            workers.push(Box::new(server));
        }
        measure(&network, workers, span, 2.0)
    }

    fn recvs(&self, way: Way) -> usize {
        match way {
            Way::Write => 0,
            Way::Send | Way::Datagram => 2 * self.window,
        }
    }

    fn area(&self) -> usize {
        self.window * self.payload
    }

    fn recv_bytes(&self, end: &End) -> usize {
        end.device.capabilities().datagram_header_bytes + self.payload
    }
}

/// One direction of a client and its server, at the side that sends.
struct Sender {
    way: Way,
    qp: QpId,
    remote: Remote,
    address: Option<AddressHandle>,
    sent: u64,
}

impl Sender {
    /// Makes a queue pair each, of `end` to send and of `peer` to receive into what is `offset`
    /// bytes into its memory.
    fn make(
        echo: &Echo,
        way: Way,
        end: &mut End,
        peer: &mut End,
        offset: usize,
    ) -> Result<Self, VerbsError> {
        let recvs = echo.recvs(way);
        let remote = peer.remote()?.offset(offset as u64);
        let (qp, target, address) = if way == Way::Datagram {
            let qp = end.queue_pair(Transport::Ud, 0)?;
            let target = peer.queue_pair(Transport::Ud, recvs)?;
            let there = peer.device.endpoint(&peer.port, target)?;
            let address = end.device.create_address(&mut end.port, qp, &there)?;
            (qp, target, Some(address))
        } else {
            let [qp, target] = ends::connect(end, peer, way.transport(), [0, recvs])?;
            (qp, target, None)
        };
        peer.post_recvs(target, recvs, echo.recv_bytes(peer))?;
        Ok(Self {
            way,
            qp,
            remote,
            address,
            sent: 0,
        })
    }

    /// Sends message `number`, whose words all are its number plus one, and never 0.
    fn send(
        &mut self,
        echo: &Echo,
        port: &mut crate::SeededPort,
        imm: u32,
    ) -> Result<(), PostError> {
        let number = self.sent;
        // Messages have up to 4,096 bytes.
        let words = [number + 1; 512];
        let words = words.get(..echo.payload / WORD).ok_or(PostError::Bounds)?;
        let slot = number % echo.window as u64;
        let payload = Payload::Words(words);
        let op = match self.way {
            Way::Write => SendOp::Write {
                payload,
                to: self.remote.offset(slot * echo.payload as u64),
                imm: None,
            },
            Way::Send | Way::Datagram => SendOp::Send {
                payload,
                imm: Some(imm),
                to: self.address,
            },
        };
        let wr = SendWr {
            wr_id: 0,
            op,
            signaled: (number + 1).is_multiple_of(SIGNAL_EVERY as u64),
            solicited: false,
            fence: false,
        };
        port.post_send(self.qp, &[wr])?;
        self.sent += 1;
        Ok(())
    }
}

/// What a side has received from one peer by WRITEs.
struct Slots {
    offset: usize,
    received: u64,
}

impl Slots {
    /// Whether the next message is here.
    fn next(&mut self, echo: &Echo, end: &End) -> bool {
        let slot = usize::try_from(self.received % echo.window as u64).unwrap_or(0);
        let last = self.offset + (slot + 1) * echo.payload - WORD;
        // Pairs with the release by which the last word of a WRITE becomes visible.
        let here = end.memory.load_acquire(last / WORD) == self.received + 1;
        self.received += u64::from(here);
        here
    }
}

/// Polls for messages received by SEND, posts their RECVs again, and returns their immediates.
fn poll_messages(
    echo: &Echo,
    end: &mut End,
    completions: &mut [Completion],
    into: &mut Vec<u32>,
) -> Result<bool, PostError> {
    let count = end.port.poll(end.cq, completions);
    let recv = end.recv(0, echo.recv_bytes(end));
    for completion in completions.iter().take(count) {
        if completion.opcode == Opcode::Recv {
            end.port.post_recv(completion.qp, &[recv])?;
            into.extend(completion.imm);
        }
    }
    Ok(count > 0)
}

struct Client {
    echo: Echo,
    end: End,
    requests: Sender,
    replies: Slots,
    /// Its number at the server.
    number: u32,
    sent_at: VecDeque<Duration>,
    latencies: Vec<u64>,
    completions: Vec<Completion>,
    messages: Vec<u32>,
    pass_ns: f64,
    failure: Option<PostError>,
}

impl Client {
    fn join(
        echo: Echo,
        device: crate::SeededDevice,
        server: &mut Server,
        cpu: &Cpu,
    ) -> Result<Self, VerbsError> {
        // RECVs are at the front of the memory, and the slots of replies at its end.
        let mut end = End::open(device, 2, 2 * echo.window, 64 + echo.area() + echo.payload)?;
        let number = server.peers.len();
        let offset = server.area + number * echo.area();
        let requests = Sender::make(&echo, echo.request, &mut end, &mut server.end, offset)?;
        let here = end.memory.len() - echo.area();
        let replies = Sender::make(&echo, echo.reply, &mut server.end, &mut end, here)?;
        let slots = |offset| Slots {
            offset,
            received: 0,
        };
        server.peers.push((slots(offset), replies));
        Ok(Self {
            echo,
            end,
            requests,
            replies: slots(here),
            number: u32::try_from(number).unwrap_or(u32::MAX),
            sent_at: VecDeque::with_capacity(echo.window),
            latencies: Vec::new(),
            completions: vec![Completion::BLANK; POLLS],
            messages: Vec::with_capacity(POLLS),
            pass_ns: cpu.pass_ns,
            failure: None,
        })
    }

    fn pass(&mut self, now: Duration) -> Result<bool, PostError> {
        self.messages.clear();
        let (echo, end) = (&self.echo, &mut self.end);
        let mut moved = poll_messages(echo, end, &mut self.completions, &mut self.messages)?;
        let mut replies = self.messages.len();
        while echo.reply == Way::Write && self.replies.next(echo, end) {
            replies += 1;
        }
        for sent in self.sent_at.drain(..replies.min(self.sent_at.len())) {
            let nanos = now.saturating_sub(sent).as_nanos();
            self.latencies
                .push(u64::try_from(nanos).unwrap_or(u64::MAX));
        }
        moved |= replies > 0;
        while self.sent_at.len() < echo.window {
            self.requests.send(echo, &mut end.port, self.number)?;
            self.sent_at.push_back(now);
            moved = true;
        }
        Ok(moved)
    }
}

impl Process for Client {
    fn party(&self) -> PartyId {
        self.end.port.party()
    }

    fn step(&mut self, now: Duration) -> Step {
        let moved = self.pass(now).unwrap_or_else(|failure| {
            self.failure = Some(failure);
            false
        });
        Step {
            moved,
            cost_ns: self.pass_ns,
            deadline: None,
        }
    }
}

impl Worker for Client {
    fn forget(&mut self) {
        self.latencies.clear();
    }

    fn latencies(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.latencies)
    }

    fn failure(&self) -> Option<PostError> {
        self.failure
    }
}

struct Server {
    echo: Echo,
    end: End,
    /// Where the requests of the first client are.
    area: usize,
    peers: Vec<(Slots, Sender)>,
    completions: Vec<Completion>,
    messages: Vec<u32>,
    cpu: Cpu,
    failure: Option<PostError>,
}

impl Server {
    fn new(
        echo: Echo,
        device: crate::SeededDevice,
        peers: usize,
        cpu: &Cpu,
    ) -> Result<Self, VerbsError> {
        let area = (64 + echo.payload).next_multiple_of(64);
        let bytes = area + peers * echo.area();
        Ok(Self {
            end: End::open(device, 2 * peers, 2 * echo.window, bytes)?,
            echo,
            area,
            peers: Vec::with_capacity(peers),
            completions: vec![Completion::BLANK; POLLS],
            messages: Vec::with_capacity(POLLS),
            cpu: cpu.clone(),
            failure: None,
        })
    }

    /// Returns the number of requests returned.
    fn pass(&mut self) -> Result<(bool, u32), PostError> {
        self.messages.clear();
        let (echo, end) = (&self.echo, &mut self.end);
        let moved = poll_messages(echo, end, &mut self.completions, &mut self.messages)?;
        let mut returned = 0;
        for from in &self.messages {
            let (_, replies) = &mut self.peers[*from as usize];
            replies.send(echo, &mut end.port, 0)?;
            returned += 1;
        }
        // One request of each client in a pass, as HERD polls.
        // A client that has sent more waits for the next pass.
        for (slots, replies) in &mut self.peers {
            if echo.request == Way::Write && slots.next(echo, end) {
                replies.send(echo, &mut end.port, 0)?;
                returned += 1;
            }
        }
        Ok((moved || returned > 0, returned))
    }
}

impl Process for Server {
    fn party(&self) -> PartyId {
        self.end.port.party()
    }

    fn step(&mut self, _: Duration) -> Step {
        let (moved, returned) = self.pass().unwrap_or_else(|failure| {
            self.failure = Some(failure);
            (false, 0)
        });
        let slots = match self.echo.request {
            Way::Write => u32::try_from(self.peers.len()).unwrap_or(u32::MAX),
            Way::Send | Way::Datagram => 0,
        };
        let requests = f64::from(returned) * self.cpu.request_ns;
        Step {
            moved,
            cost_ns: self.cpu.pass_ns + f64::from(slots) * self.cpu.poll_slot_ns + requests,
            deadline: None,
        }
    }
}

impl Worker for Server {
    fn failure(&self) -> Option<PostError> {
        self.failure
    }
}
