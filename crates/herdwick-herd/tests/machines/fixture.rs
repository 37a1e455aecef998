//! Fixture: workers and clients on the seeded fabric, in one thread under virtual time.

use std::time::Duration;

use herdwick_conformance::seeded::{Faults, PartyId, SeededDevice, SeededNetwork, SeededPort};
use herdwick_fabric::{
    Access, AddressHandle, Capabilities, CqId, CqSpec, Device, Endpoint, Local, PdId, Port,
    PortLimits, QpId, QpSpec, RecvWr, RegionId, RegionSpec, Scope, Transport,
};
use herdwick_herd::{
    Announce, Chunk, ClientId, ClientOptions, ClientSide, Destination, LineWatch, Outcome,
    RequestPath, SEND_DEPTH_MIN, ServerOptions, ServerSide, UdQueue, WorkerChannel, WriteNotify,
    wire::{Epoch, REQUEST_BYTES_MAX, Window},
};
use herdwick_mem::Span;
use herdwick_request::{Clock, Execute, HashKey, Op, Request, Second};

pub(crate) const HASH_KEY: HashKey = HashKey([0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210]);
pub(crate) const CLOCK: Clock = Clock {
    epoch_unix: 1_700_000_000,
    second: Second(100),
};
pub(crate) const REPLY_BYTES_MAX: usize = 1040;
const SLACK: usize = 16;
const DEADLINE: Duration = Duration::from_millis(5);
const RETRY_AFTER: Duration = Duration::from_micros(50);

/// One worker and its port.
pub(crate) struct Worker<E> {
    pub(crate) device: SeededDevice,
    pub(crate) port: SeededPort,
    pub(crate) side: ServerSide,
    pub(crate) exec: E,
    pub(crate) cq: CqId,
    /// Whether a new lease reuses the memory of one that has ended.
    pub(crate) pools: bool,
    spare: Vec<[RegionId; 3]>,
    replies: [QpId; 2],
    leases: usize,
    pd: PdId,
}

/// One client and its port.
pub(crate) struct Client {
    pub(crate) port: SeededPort,
    pub(crate) side: ClientSide,
    pub(crate) request_cq: CqId,
    pub(crate) reply_cq: CqId,
    /// The client's leases, one for each worker.
    pub(crate) leases: Vec<Lease>,
    pub(crate) channels: Vec<WorkerChannel>,
}

/// One client at one worker, as the worker knows it.
pub(crate) struct Lease {
    pub(crate) id: ClientId,
    pub(crate) lines: Span,
    pub(crate) overflow: Span,
    pub(crate) address: AddressHandle,
    /// The worker's queue pair that sends its replies.
    pub(crate) replies: QpId,
    /// The endpoint that the client connects to, or sends to.
    pub(crate) requests: Endpoint,
    /// The queue pair that receives its requests, and their memory.
    qp: QpId,
    memory: [RegionId; 3],
}

/// Workers, clients, and the network between them.
pub(crate) struct Fixture<E> {
    pub(crate) network: SeededNetwork,
    pub(crate) workers: Vec<Worker<E>>,
    pub(crate) clients: Vec<Client>,
    pub(crate) path: RequestPath,
    /// For clients that join from now on.
    pub(crate) announce: Announce,
    pub(crate) window: Window,
    /// For clients that join from now on.
    pub(crate) request_bytes_max: usize,
    /// For clients that join from now on.
    pub(crate) deadline: Duration,
    /// For clients that join from now on.
    pub(crate) retry_after: Duration,
    pub(crate) now: Duration,
}

impl<E: Execute> Fixture<E> {
    pub(crate) fn new(seed: u64, window: usize, execs: Vec<E>) -> Self {
        Self::over(RequestPath::UcWrite, seed, window, execs)
    }

    pub(crate) fn over(path: RequestPath, seed: u64, window: usize, execs: Vec<E>) -> Self {
        Self::on(capabilities(), path, (seed, window), execs)
    }

    /// Makes a fixture on a network with the capabilities `has`.
    pub(crate) fn on(
        has: Capabilities,
        path: RequestPath,
        (seed, window): (u64, usize),
        execs: Vec<E>,
    ) -> Self {
        let network = SeededNetwork::with_capabilities(seed, has);
        let workers = execs.len();
        let workers = execs
            .into_iter()
            .enumerate()
            .map(|(number, exec)| Worker::new(&network, number, workers, exec))
            .collect();
        Self {
            network,
            workers,
            clients: Vec::new(),
            path,
            announce: Announce::Never,
            window: Window::new(window).unwrap(),
            request_bytes_max: REQUEST_BYTES_MAX,
            deadline: DEADLINE,
            retry_after: RETRY_AFTER,
            now: Duration::ZERO,
        }
    }

    /// Adds a client and returns its number.
    pub(crate) fn join(&mut self, epoch: u16) -> usize {
        let client = self.newcomer(epoch);
        self.clients.push(client);
        self.clients.len() - 1
    }

    /// Replaces a client, whose leases have ended, by a new one.
    pub(crate) fn rejoin(&mut self, number: usize, epoch: u16) {
        assert!(self.clients[number].leases.is_empty());
        self.clients[number] = self.newcomer(epoch);
    }

    /// Ends the leases of client `number` at every worker, without the client's consent.
    pub(crate) fn revoke(&mut self, number: usize) {
        let leases = self.clients[number].leases.drain(..);
        for (worker, lease) in self.workers.iter_mut().zip(leases) {
            worker.end(lease);
        }
    }

    fn newcomer(&mut self, epoch: u16) -> Client {
        let (request_bytes_max, deadline) = (self.request_bytes_max, self.deadline);
        let retry_after = self.retry_after;
        Client::new(
            &self.network,
            &mut self.workers,
            (self.path, self.announce, self.window),
            epoch,
            |window, cqs| ClientOptions {
                request_bytes_max,
                deadline,
                retry_after,
                ..options(window, cqs)
            },
        )
    }

    pub(crate) fn faults(&self, faults: Faults) {
        self.network.set_faults(faults);
    }

    /// Runs one microsecond: the network delivers, workers pass, clients flush and poll.
    pub(crate) fn step(&mut self, sink: &mut impl FnMut(usize, u64, Outcome<'_>)) {
        self.advance();
        self.serve();
        self.poll_clients(sink);
    }

    pub(crate) fn advance(&mut self) {
        self.now += Duration::from_micros(1);
        self.network.run(self.now);
    }

    pub(crate) fn poll_clients(&mut self, sink: &mut impl FnMut(usize, u64, Outcome<'_>)) {
        for (number, client) in self.clients.iter_mut().enumerate() {
            let mut sink = |token, outcome: Outcome<'_>| sink(number, token, outcome);
            client.side.flush(&mut client.port, self.now);
            client.side.poll(&mut client.port, self.now, &mut sink);
        }
    }

    pub(crate) fn serve(&mut self) -> usize {
        let workers = self.workers.iter_mut();
        workers.map(Worker::pass).sum()
    }

    /// Submits one request and waits for its outcome.
    pub(crate) fn call<T>(
        &mut self,
        client: usize,
        key: &[u8],
        op: Op<'_>,
        mut read: impl FnMut(Outcome<'_>) -> T,
    ) -> T {
        let request = request(key, op);
        let side = &mut self.clients[client].side;
        side.submit(&request, 7).expect("a free slot");
        let mut got = None;
        while got.is_none() {
            self.step(&mut |from, token, outcome| {
                assert_eq!((from, token), (client, 7));
                got = Some(read(outcome));
            });
        }
        got.unwrap()
    }
}

pub(crate) fn request<'a>(key: &'a [u8], op: Op<'a>) -> Request<'a> {
    Request {
        hash: HASH_KEY.hash(key),
        key,
        op,
    }
}

/// Capabilities with a header before each datagram, as with verbs.
pub(crate) fn capabilities() -> Capabilities {
    Capabilities {
        datagram_header_bytes: 40,
        gso: true,
        ..SeededNetwork::capabilities()
    }
}

pub(crate) fn options(window: Window, cq: [CqId; 2]) -> ClientOptions {
    ClientOptions {
        window,
        recv_slack: SLACK,
        reply_bytes_max: REPLY_BYTES_MAX,
        reply_header_bytes: capabilities().datagram_header_bytes,
        inline_bytes_max: 256,
        request_bytes_max: REQUEST_BYTES_MAX,
        request_cq: cq[0],
        reply_cq: cq[1],
        postlist_max: 32,
        retry_after: RETRY_AFTER,
        retry_after_max: Duration::from_millis(1),
        deadline: DEADLINE,
    }
}

impl<E: Execute> Worker<E> {
    fn new(network: &SeededNetwork, worker: usize, workers: usize, exec: E) -> Self {
        let device = network.device();
        let mut port = device.open_port(&PortLimits::default()).unwrap();
        let pd = device.create_pd(&mut port).unwrap();
        let [cq, request_cq] = [(); 2].map(|()| {
            let depth = CqSpec { depth: 8192 };
            device.create_cq(&mut port, &depth).unwrap()
        });
        let replies = [(); 2].map(|()| qp(&device, &mut port, pd, Transport::Ud, [cq; 2], 1));
        let bytes = ServerOptions::reply_memory(4096);
        let reply_region = local(&device, &mut port, pd, bytes);
        let options = ServerOptions {
            worker,
            workers,
            replies: replies.to_vec(),
            reply_cq: cq,
            request_cq,
            request_header_bytes: device.capabilities().datagram_header_bytes,
            reply_bytes_max: 4096,
            reply_region,
            postlist_max: 1024,
            inline_bytes_max: 256,
            gso: device.capabilities().gso,
            clients_max: 64,
        };
        Self {
            side: ServerSide::new(&port, options).unwrap(),
            device,
            port,
            exec,
            pd,
            cq: request_cq,
            pools: false,
            spare: Vec::new(),
            replies,
            leases: 0,
        }
    }

    pub(crate) fn pass(&mut self) -> usize {
        self.side.pass(&mut self.port, CLOCK, &mut self.exec)
    }

    /// Makes the lease of one client at this worker, and the client's channel.
    fn lease(
        &mut self,
        client: (&SeededDevice, &mut SeededPort, PdId, [CqId; 2]),
        (path, announce, window): (RequestPath, Announce, Window),
        epoch: Epoch,
    ) -> (Lease, WorkerChannel) {
        let (theirs, their_port, their_pd, [their_requests, their_replies]) = client;
        let (ours, port) = (&self.device, &mut self.port);
        let recvs = window.slots() + SLACK;
        let cqs = [their_requests, their_replies];
        let their_ud = qp(theirs, their_port, their_pd, Transport::Ud, cqs, recvs);
        let reply_end = theirs.endpoint(their_port, their_ud).unwrap();
        // Clients that join one after the other get their replies from different queue pairs.
        let reply_qp = self.leases % self.replies.len();
        self.leases += 1;
        let address = ours.create_address(port, self.replies[reply_qp], &reply_end);
        let address = address.unwrap();
        let transport = match path {
            RequestPath::UcWrite => Transport::Uc,
            RequestPath::RcWrite => Transport::Rc,
            RequestPath::UdSend => Transport::Ud,
        };
        let our_end = qp(ours, port, self.pd, transport, [self.cq; 2], recvs);
        let header = ours.capabilities().datagram_header_bytes;
        let mut memory = |len, access, scope| {
            let spec = RegionSpec { len, access, scope };
            ours.allocate_region(port, self.pd, &spec).unwrap()
        };
        let scope = if self.pools {
            Scope::Pd
        } else {
            Scope::Qp(our_end)
        };
        let memory = self.spare.pop().unwrap_or_else(|| {
            let recv_memory = recvs * UdQueue::recv_bytes(header);
            [
                memory(window.line_bytes(), Access::WRITE, scope),
                memory(window.overflow_bytes(), Access::WRITE, scope),
                memory(recv_memory, Access::LOCAL, Scope::Pd),
            ]
        });
        let ([lines, overflow, recv_memory], areas) = (memory, [memory[0], memory[1]]);
        let requests = ours.endpoint(port, our_end).unwrap();
        let (their_requests, to, ud_queue) = if path == RequestPath::UdSend {
            let to = theirs.create_address(their_port, their_ud, &requests);
            let ud_queue = UdQueue {
                qp: our_end,
                source: ours.source(&reply_end).unwrap(),
                recvs,
                memory: recv_memory,
                offset: 0,
            };
            (their_ud, Destination::UdQueue(to.unwrap()), Some(ud_queue))
        } else {
            let cqs = [their_requests; 2];
            let their_end = qp(theirs, their_port, their_pd, transport, cqs, 1);
            let end = theirs.endpoint(their_port, their_end).unwrap();
            ours.connect(port, our_end, &end).unwrap();
            theirs.connect(their_port, their_end, &requests).unwrap();
            let [lines, overflow] = areas.map(|area| ours.remote(port, area).unwrap());
            (their_end, Destination::Slots { lines, overflow }, None)
        };
        let notify = (announce != Announce::Never).then_some(WriteNotify {
            qp: our_end,
            recvs,
            memory: recv_memory,
            always: announce == Announce::Always,
        });
        let watch = (path != RequestPath::UdSend).then_some(LineWatch {
            qp: our_end,
            range: Local {
                region: lines,
                offset: 0,
                len: window.line_bytes(),
            },
        });
        let [lines, overflow] =
            [lines, overflow].map(|region| port.region(region).unwrap().clone());
        let channel = WorkerChannel {
            epoch,
            requests: their_requests,
            replies: their_ud,
            to,
            announce,
            receive: local(
                theirs,
                their_port,
                their_pd,
                recvs * (header + REPLY_BYTES_MAX),
            ),
            stage: local(theirs, their_port, their_pd, window.stage_bytes()),
        };
        let chunk = Chunk {
            lines: lines.clone(),
            overflow: overflow.clone(),
            ud_queue,
            notify,
            watch,
            window,
            epoch,
            reply_qp: reply_qp as u8,
            address,
            reply_bytes_max: REPLY_BYTES_MAX,
            reads: true,
        };
        let lease = Lease {
            id: self.side.attach(port, chunk).unwrap(),
            lines,
            overflow,
            address,
            replies: self.replies[reply_qp],
            requests,
            qp: our_end,
            memory,
        };
        (lease, channel)
    }

    /// Takes a client out of service. Its later WRITEs find no queue pair.
    fn end(&mut self, lease: Lease) {
        assert!(self.side.detach(lease.id).is_some());
        let (ours, port) = (&self.device, &mut self.port);
        ours.destroy_address(port, lease.address).unwrap();
        ours.destroy_qp(port, lease.qp).unwrap();
        if self.pools {
            self.spare.push(lease.memory);
        }
    }
}

impl Client {
    pub(crate) fn new<E: Execute>(
        network: &SeededNetwork,
        workers: &mut [Worker<E>],
        (path, announce, window): (RequestPath, Announce, Window),
        epoch: u16,
        options: impl FnOnce(Window, [CqId; 2]) -> ClientOptions,
    ) -> Self {
        let device = network.device();
        let mut port = device.open_port(&PortLimits::default()).unwrap();
        let pd = device.create_pd(&mut port).unwrap();
        let depth = CqSpec { depth: 4096 };
        let cqs = [(); 2].map(|()| device.create_cq(&mut port, &depth).unwrap());
        let epoch = Epoch::new(epoch).unwrap();
        let (mut leases, mut channels) = (Vec::new(), Vec::new());
        for worker in workers {
            let ours = (&device, &mut port, pd, cqs);
            let (lease, channel) = worker.lease(ours, (path, announce, window), epoch);
            leases.push(lease);
            channels.push(channel);
        }
        let side = ClientSide::new(&mut port, options(window, cqs), channels.clone()).unwrap();
        Self {
            port,
            side,
            request_cq: cqs[0],
            reply_cq: cqs[1],
            leases,
            channels,
        }
    }

    /// The client's id in the network's faults.
    pub(crate) fn party(&self) -> PartyId {
        self.port.party()
    }

    /// Posts `count` RECVs at the first worker's channel, for a test that polls by itself.
    pub(crate) fn post_recvs(&mut self, count: usize) {
        let into = Local {
            region: self.channels[0].receive,
            offset: 0,
            len: REPLY_BYTES_MAX,
        };
        let recvs = vec![RecvWr { wr_id: 0, into }; count];
        self.port
            .post_recv(self.channels[0].replies, &recvs)
            .unwrap();
    }
}

fn qp(
    device: &SeededDevice,
    port: &mut SeededPort,
    pd: PdId,
    transport: Transport,
    [send_cq, recv_cq]: [CqId; 2],
    recv_depth: usize,
) -> QpId {
    let spec = QpSpec {
        pd,
        transport,
        send_cq,
        recv_cq,
        send_depth: SEND_DEPTH_MIN,
        recv_depth,
    };
    device.create_qp(port, &spec).unwrap()
}

fn local(device: &SeededDevice, port: &mut SeededPort, pd: PdId, len: usize) -> RegionId {
    let spec = RegionSpec {
        len,
        access: Access::LOCAL,
        scope: Scope::Pd,
    };
    device.allocate_region(port, pd, &spec).unwrap()
}
