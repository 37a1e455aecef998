//! Behaviours of shared memory: one table that two ports of a server serve to two clients.

use std::time::Duration;

use herdwick_fabric::{
    Access, Atomics, Completion, ControlError, CqId, CqSpec, Device, Local, Payload, PdId, Port,
    PortLimits, QpId, QpSpec, RegionId, RegionSpec, Remote, Scope, SendOp, SendWr, SharedMemory,
    Sharing, Status, Transport, Windows,
};
use herdwick_mem::{Span, Words};

/// Passes after which a completion counts as lost.
const TIMEOUT: usize = 2_000_000;
/// Bytes of the memory: more than one message on most fabrics, and no whole number of pages.
const LEN: usize = (9 << 20) + 24;

/// One end: a port, and its queue pair with the other end.
struct End<D: Device> {
    device: D,
    port: D::Port,
    pd: PdId,
    cq: CqId,
    qp: QpId,
}

impl<D: Device> End<D> {
    fn new(device: D, mut port: D::Port, pd: PdId) -> Self {
        let cq = device.create_cq(&mut port, &CqSpec { depth: 16 });
        let cq = cq.expect("a completion queue");
        let spec = QpSpec {
            pd,
            transport: Transport::Rc,
            send_cq: cq,
            recv_cq: cq,
            send_depth: 16,
            // No SEND comes: each request is one-sided.
            recv_depth: 0,
        };
        let qp = device.create_qp(&mut port, &spec).expect("a queue pair");
        Self {
            device,
            port,
            pd,
            cq,
            qp,
        }
    }

    fn region(&mut self, len: usize) -> RegionId {
        let (access, scope) = (Access::LOCAL, Scope::Pd);
        let spec = RegionSpec { len, access, scope };
        let made = self.device.allocate_region(&mut self.port, self.pd, &spec);
        made.expect("a region")
    }
}

/// A server's port and a client of it.
struct SharedPair<D: Device> {
    server: End<D>,
    client: End<D>,
    inbox: RegionId,
    now: Duration,
}

impl<D: Device + Clone> SharedPair<D> {
    fn new(server: &D, client: D) -> Self {
        let limits = PortLimits::default();
        let mut port = server.open_port(&limits).expect("a port");
        let pd = server.create_pd(&mut port).expect("a domain");
        let ticket = server.export_pd(&mut port, pd).expect("a ticket");
        let mut server = End::new(server.clone(), port, pd);
        let mut port = client.open_port(&limits).expect("a port");
        let pd = client.import_pd(&mut port, ticket).expect("its domain");
        let mut client = End::new(client, port, pd);
        let here = client.device.endpoint(&client.port, client.qp);
        let there = server.device.endpoint(&server.port, server.qp);
        let (here, there) = (here.expect("one"), there.expect("one"));
        let connected = client.device.connect(&mut client.port, client.qp, &there);
        connected.expect("a connection");
        let connected = server.device.connect(&mut server.port, server.qp, &here);
        connected.expect("a connection");
        let inbox = client.region(LEN);
        Self {
            server,
            client,
            inbox,
            now: Duration::ZERO,
        }
    }

    fn register(
        &mut self,
        memory: &SharedMemory,
        access: Access,
    ) -> Result<(RegionId, Remote), ControlError> {
        let End {
            device, port, pd, ..
        } = &mut self.server;
        let region = device.register_shared(port, *pd, memory, access, Scope::Pd)?;
        let ticket = device.export_region(port, region).expect("a ticket");
        let remote = device.remote(port, region).expect("ours");
        let End {
            device, port, pd, ..
        } = &mut self.client;
        let imported = device.import_region(port, *pd, ticket);
        imported.expect("a region to import");
        Ok((region, remote))
    }

    /// Returns where the client READs the memory, if the provider registers it.
    fn register_if_it_can(&mut self, memory: &SharedMemory) -> Option<Remote> {
        match self.register(memory, Access::READ) {
            Ok((_, remote)) => Some(remote),
            Err(ControlError::Unsupported(_)) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Performs one request of the client.
    fn perform(&mut self, op: SendOp<'_>) -> Status {
        let End { port, cq, qp, .. } = &mut self.client;
        let wr = SendWr {
            wr_id: 1,
            op,
            signaled: true,
            solicited: false,
            fence: false,
        };
        port.post_send(*qp, &[wr]).expect("room");
        let mut done = [Completion::BLANK; 1];
        for _ in 0..TIMEOUT {
            if port.poll(*cq, &mut done) == 1 {
                return done[0].status;
            }
            self.now += Duration::from_micros(1);
            port.progress(self.now);
            self.server.port.progress(self.now);
        }
        panic!("no completion");
    }

    /// READs into the inbox, in as many pieces as the provider's limit demands.
    fn read(&mut self, from: Remote, len: usize) -> Status {
        let most = self.client.device.capabilities().read_bytes_max;
        for offset in (0..len).step_by(most) {
            let into = Local {
                region: self.inbox,
                offset,
                len: most.min(len - offset),
            };
            let from = from.offset(offset as u64);
            let status = self.perform(SendOp::Read { into, from });
            if status != Status::Success {
                return status;
            }
        }
        Status::Success
    }

    fn found(&self) -> &Span {
        self.client.port.region(self.inbox).expect("ours")
    }
}

/// Checks that two ports of `server` serve one memory to two clients: READs of all of it at once,
/// CPU stores that both see, rights as the sharing allows, and an rkey for each domain.
///
/// # Panics
/// If a provider does not show it.
pub fn serves_several_ports<D: Device + Clone>(server: &D, clients: [D; 2]) {
    let mut pairs = clients.map(|client| SharedPair::new(server, client));
    let memory = server.allocate_shared(LEN, Sharing::ReadOnly);
    let memory = memory.expect("memory");
    let words = LEN / 8;
    (0..words).for_each(|n| memory.span().store(n, n as u64 * 0x9e37_79b9));
    let regions = [0, 1].map(|n: usize| {
        let pair = &mut pairs[n];
        // The memory is read-only, so these rights are refused.
        for access in [Access::WRITE, Access::ALL] {
            let refused = pair.register(&memory, access);
            assert!(matches!(refused, Err(ControlError::Unsupported(_))));
        }
        pair.register(&memory, Access::READ).expect("a region")
    });
    for (pair, (_, from)) in pairs.iter_mut().zip(regions) {
        assert_eq!(pair.read(from, LEN), Status::Success);
        let found = pair.found();
        assert!((0..words).all(|n| found.load(n) == n as u64 * 0x9e37_79b9));
        memory.span().store_release(words - 1, 7);
        assert_eq!(pair.read(from.offset(LEN as u64 - 8), 8), Status::Success);
        assert_eq!(pair.found().load(0), 7, "a store after the registration");
        // As the other pair expects it.
        memory
            .span()
            .store(words - 1, (words - 1) as u64 * 0x9e37_79b9);
    }
    // One rkey is revoked, the other stays.
    let [first, second] = &mut pairs;
    let End { device, port, .. } = &mut first.server;
    device.free_region(port, regions[0].0).expect("ours");
    assert_eq!(second.read(regions[1].1, 64), Status::Success);
    assert_eq!(first.read(regions[0].1, 64), Status::RemoteAccess);
    assert_eq!(
        second.read(regions[1].1.offset(LEN as u64), 1),
        Status::RemoteAccess
    );
}

/// Checks that trusted peers change one memory through two ports: WRITEs that the other sees, and
/// atomics that lose no count.
///
/// # Panics
/// If a provider does not show it.
pub fn trusted_peers_change_it<D: Device + Clone>(server: &D, clients: [D; 2]) {
    let mut pairs = clients.map(|client| SharedPair::new(server, client));
    let memory = server.allocate_shared(4096, Sharing::TrustedPeers);
    let memory = memory.expect("memory");
    let keys = [0, 1].map(|n: usize| pairs[n].register(&memory, Access::ALL).expect("a region").1);
    for round in 1..=100u64 {
        for n in [0, 1] {
            let (payload, to) = (Payload::Words(&[round]), keys[n].offset(64));
            let op = SendOp::Write {
                payload,
                to,
                imm: None,
            };
            assert_eq!(pairs[n].perform(op), Status::Success);
            assert_eq!(
                pairs[1 - n].read(keys[1 - n].offset(64), 8),
                Status::Success
            );
            assert_eq!(pairs[1 - n].found().load(0), round);
            let (region, at) = (pairs[n].inbox, keys[n]);
            let into = Local {
                region,
                offset: 0,
                len: 8,
            };
            let add = SendOp::FetchAdd { into, at, add: 1 };
            assert_eq!(pairs[n].perform(add), Status::Success);
        }
    }
    if server.capabilities().atomics == Atomics::Coherent {
        assert_eq!(memory.span().load(0), 200);
    }
}

/// Windows, and the bytes of each as a power of two.
const WINDOWS: u32 = 5;
const SHIFT: u32 = 12;
/// Bytes of the memory that they show.
const PLACES: usize = 16 << 10;

/// Checks that windows onto shared memory show other places under the same rkey when they are bound anew, and
/// that a READ beside that returns words of one place or the other; or that the provider says that it has
/// none.
///
/// # Panics
/// If a provider does not show it.
pub fn windows_are_bound_anew<D: Device + Clone>(server: &D, [first, second]: [D; 2]) {
    let mut pair = SharedPair::new(server, first);
    let memory = server.allocate_shared(PLACES, Sharing::ReadOnly);
    let windows = Windows::new(WINDOWS, SHIFT).expect("windows");
    let memory = memory.expect("memory").with_windows(windows);
    let memory = memory.expect("room for their places");
    let registered = pair.register_if_it_can(&memory);
    assert_eq!(registered.is_some(), server.capabilities().windows);
    let Some(from) = registered else { return };
    let span = memory.span();
    let words = PLACES / 8;
    // Behind the words of the table of windows.
    (WINDOWS as usize..words).for_each(|n| span.store(n, n as u64));
    // One that was never bound shows the beginning.
    assert_eq!(pair.read(from.offset(windows.addr(3)), 64), Status::Success);
    assert_eq!(pair.found().load(5), 5);
    for (window, place) in [(0, 4096), (4, 8), (0, 8192 - 24), (2, 8192), (0, 4096)] {
        windows.bind(span, window, place);
        let at = windows.addr(window) + 16;
        assert_eq!(pair.read(from.offset(at), 1000), Status::Success);
        let first = place / 8 + 2;
        assert!((0..125).all(|n| {
            let due = span.load(first + n);
            pair.found().load(n) == due
        }));
    }
    reads_beside_binding(&mut pair, &memory, from);
    let beyond = pair.read(from.offset(windows.addr(WINDOWS)), 8);
    assert_eq!(beyond, Status::RemoteAccess, "beyond the last window");
    // From one window into the next.
    let mut pair = SharedPair::new(server, second);
    let from = pair.register_if_it_can(&memory).expect("a region");
    let status = pair.read(from.offset(windows.addr(1) - 8), 16);
    // Either is right, as long as no other bytes are shown.
    let zeros = status == Status::Success && [0, 1].map(|n| pair.found().load(n)) == [0, 0];
    assert!(zeros || status == Status::RemoteAccess, "{status:?}");
}

/// READs a window that another thread binds to two places in turn.
fn reads_beside_binding<D: Device + Clone>(
    pair: &mut SharedPair<D>,
    memory: &SharedMemory,
    from: Remote,
) {
    let (span, windows) = (memory.span(), memory.windows().expect("windows"));
    let places = [4096, 8192];
    let words = 256;
    for place in places {
        // Each word implies its place and its number.
        (0..words).for_each(|n| span.store(place / 8 + n, (place + n) as u64));
    }
    windows.bind(span, 0, places[0]);
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut turn = 0;
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                windows.bind(span, 0, places[turn % 2]);
                turn += 1;
            }
        });
        for _ in 0..200 {
            assert_eq!(pair.read(from, words * 8), Status::Success);
            for n in 0..words {
                let word = pair.found().load(n) as usize;
                assert!(places.contains(&word.wrapping_sub(n)), "{word} at {n}");
            }
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    windows.bind(span, 0, places[1]);
    assert_eq!(pair.read(from, 8), Status::Success);
    assert_eq!(pair.found().load(0), places[1] as u64, "after the binding");
}
