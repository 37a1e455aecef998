//! The stage of a behaviour: two sides, their queue pairs and buffers, and virtual time.
//!
//! Circular import with `suite`: a stage is set up by the fixture that is declared there, and the list there
//! runs each behaviour on a stage.

use std::{collections::VecDeque, time::Duration};

use herdwick_fabric::{
    Access, AddressHandle, Capabilities, Completion, CqId, CqSpec, Endpoint, Local, Payload, QpId,
    QpSpec, RecvWr, RegionId, RegionSpec, Remote, Scope, SendOp, SendWr, Status, Transport,
};

use crate::{Fixture, Party, Skip};

/// The sides of a stage. By convention A requests and B responds.
pub(crate) const A: usize = 0;
pub(crate) const B: usize = 1;

/// Depth of the send and the receive queue of the suite's queue pairs.
pub(crate) const DEPTH: usize = 64;
/// Most queue pairs of a behaviour on one side.
const QPS: usize = 8;
/// Bytes of a region of the suite.
pub(crate) const REGION: usize = 8192;
/// Bytes of one receive buffer; [`REGION`] holds 16 of them.
pub(crate) const BUFFER: usize = 512;
/// Virtual time of one pass.
const PASS: Duration = Duration::from_micros(1);

pub(crate) const TRANSPORTS: [Transport; 3] = [Transport::Rc, Transport::Uc, Transport::Ud];

pub(crate) struct Side {
    pub(crate) party: Box<dyn Party>,
    pub(crate) cq: CqId,
    /// Memory of its RECVs and READs.
    pub(crate) inbox: RegionId,
    /// Memory of its region payloads.
    pub(crate) outbox: RegionId,
    seen: VecDeque<Completion>,
}

impl Side {
    fn new(mut party: Box<dyn Party>) -> Self {
        // Room for the completions of all queue pairs.
        let depth = 2 * DEPTH * QPS;
        let cq = party.create_cq(&CqSpec { depth }).expect("a queue");
        let inbox = region(&mut *party, Access::LOCAL, Scope::Pd);
        let outbox = region(&mut *party, Access::LOCAL, Scope::Pd);
        Self {
            party,
            cq,
            inbox,
            outbox,
            seen: VecDeque::new(),
        }
    }

    pub(crate) fn spec(&self, transport: Transport) -> QpSpec {
        QpSpec {
            pd: self.party.pd(),
            transport,
            send_cq: self.cq,
            recv_cq: self.cq,
            send_depth: DEPTH,
            recv_depth: DEPTH,
        }
    }

    pub(crate) fn qp(&mut self, transport: Transport) -> QpId {
        let spec = self.spec(transport);
        self.party.create_qp(&spec).expect("a queue pair")
    }

    /// Makes a region of [`REGION`] bytes in the linked domain.
    pub(crate) fn region(&mut self, access: Access) -> RegionId {
        region(&mut *self.party, access, Scope::Pd)
    }

    pub(crate) fn scoped_region(&mut self, access: Access, qp: QpId) -> RegionId {
        region(&mut *self.party, access, Scope::Qp(qp))
    }

    pub(crate) fn remote(&mut self, region: RegionId) -> Remote {
        self.party.remote(region).expect("a region of ours")
    }

    /// Returns receive buffer `index` of 16.
    pub(crate) fn buffer(&self, index: usize) -> Local {
        Local {
            region: self.inbox,
            offset: index % (REGION / BUFFER) * BUFFER,
            len: BUFFER,
        }
    }

    /// Posts RECV `wr_id` with the buffer of that number.
    pub(crate) fn recv(&mut self, qp: QpId, wr_id: u64) {
        let into = self.buffer(usize::try_from(wr_id).expect("small"));
        self.recv_into(qp, wr_id, into);
    }

    pub(crate) fn recv_into(&mut self, qp: QpId, wr_id: u64, into: Local) {
        let posted = self.party.post_recv(qp, &[RecvWr { wr_id, into }]);
        posted.expect("room for a RECV");
    }

    pub(crate) fn post(&mut self, qp: QpId, batch: &[SendWr<'_>]) {
        let posted = self.party.post_send(qp, batch);
        posted.expect("room for a batch that Table 1 allows");
    }

    fn check(&mut self, now: Duration) -> bool {
        let moved = self.party.progress(now);
        let found = self.party.poll(self.cq);
        let any = !found.is_empty();
        self.seen.extend(found);
        moved || any
    }
}

fn region(party: &mut dyn Party, access: Access, scope: Scope) -> RegionId {
    let spec = RegionSpec {
        len: REGION,
        access,
        scope,
    };
    let pd = party.pd();
    party.allocate_region(pd, &spec).expect("a region")
}

/// A queue pair on each side, which reach each other.
#[derive(Clone, Copy)]
pub(crate) struct Link {
    pub(crate) transport: Transport,
    pub(crate) qp: [QpId; 2],
    pub(crate) to: [Option<AddressHandle>; 2],
}

impl Link {
    /// Builds a SEND from `side` to the other.
    pub(crate) fn send<'a>(
        &self,
        side: usize,
        payload: Payload<'a>,
        imm: Option<u32>,
    ) -> SendOp<'a> {
        SendOp::Send {
            payload,
            imm,
            to: self.to[side],
        }
    }
}

/// Two sides, and the virtual time that they share.
pub(crate) struct Stage {
    pub(crate) sides: [Side; 2],
    pub(crate) now: Duration,
    timeout: usize,
    quiet: usize,
    rounds: u64,
}

impl Stage {
    pub(crate) fn new(fixture: &dyn Fixture) -> Self {
        Self {
            sides: fixture.pair().map(Side::new),
            now: Duration::ZERO,
            timeout: fixture.timeout(),
            quiet: fixture.quiet(),
            rounds: fixture.rounds(),
        }
    }

    pub(crate) fn timeout(&self) -> usize {
        self.timeout
    }

    pub(crate) fn rounds(&self) -> u64 {
        self.rounds
    }

    pub(crate) fn capabilities(&self) -> &Capabilities {
        // Those of B are the same.
        self.sides[A].party.capabilities()
    }

    /// Bytes that precede the payload in a RECV's buffer.
    pub(crate) fn header(&self, transport: Transport) -> usize {
        match transport {
            Transport::Ud => self.capabilities().datagram_header_bytes,
            Transport::Rc | Transport::Uc => 0,
        }
    }

    pub(crate) fn has(&self, transport: Transport) -> bool {
        let capabilities = self.capabilities();
        match transport {
            Transport::Rc => capabilities.rc,
            Transport::Uc => capabilities.uc,
            Transport::Ud => capabilities.ud,
        }
    }

    /// The transports of `wanted` that the provider has and that lose nothing.
    pub(crate) fn dependable(&self, wanted: &[Transport]) -> Result<Vec<Transport>, Skip> {
        let lossless = self.capabilities().lossless;
        // RC sends again what is lost.
        let brings = |transport| transport == Transport::Rc || lossless;
        let mut found = wanted.to_vec();
        found.retain(|transport| self.has(*transport) && brings(*transport));
        if found.is_empty() {
            return Err(Skip("no such transport here is lossless"));
        }
        Ok(found)
    }

    pub(crate) fn link(&mut self, transport: Transport) -> Link {
        let [a, b] = &mut self.sides;
        let qp = [a.qp(transport), b.qp(transport)];
        let ends = self.endpoints(qp);
        let [a, b] = &mut self.sides;
        let mut to = [None; 2];
        if transport == Transport::Ud {
            to[A] = Some(a.party.create_address(qp[A], &ends[B]).expect("an address"));
            to[B] = Some(b.party.create_address(qp[B], &ends[A]).expect("an address"));
        } else {
            self.connect(qp);
        }
        Link { transport, qp, to }
    }

    /// Connects two queue pairs with each other.
    pub(crate) fn connect(&mut self, qp: [QpId; 2]) {
        let ends = self.endpoints(qp);
        let [a, b] = &mut self.sides;
        a.party.connect(qp[A], &ends[B]).expect("a connection");
        b.party.connect(qp[B], &ends[A]).expect("a connection");
    }

    pub(crate) fn endpoints(&mut self, qp: [QpId; 2]) -> [Endpoint; 2] {
        let [a, b] = &mut self.sides;
        let end = |side: &mut Side, qp| side.party.endpoint(qp).expect("an endpoint");
        [end(a, qp[A]), end(b, qp[B])]
    }

    /// Makes one pass over both sides. Returns whether anything moved.
    pub(crate) fn pass(&mut self) -> bool {
        self.now += PASS;
        let mut moved = false;
        for side in &mut self.sides {
            moved |= side.check(self.now);
        }
        if !moved {
            // What is awaited may need this core.
            std::thread::yield_now();
        }
        moved
    }

    /// Returns the next completion of `side`, whatever its status.
    pub(crate) fn next(&mut self, side: usize) -> Completion {
        for _ in 0..self.timeout {
            if let Some(completion) = self.sides[side].seen.pop_front() {
                return completion;
            }
            self.pass();
        }
        panic!("no completion came to side {side}");
    }

    /// Returns the next completion of `side`, if one is under way.
    pub(crate) fn maybe(&mut self, side: usize) -> Option<Completion> {
        for _ in 0..self.quiet {
            self.pass();
        }
        self.sides[side].seen.pop_front()
    }

    /// Returns the next completion of `side`, which must be a success.
    pub(crate) fn success(&mut self, side: usize) -> Completion {
        let completion = self.next(side);
        assert_eq!(completion.status, Status::Success, "{completion:?}");
        completion
    }

    /// Passes until nothing more can arrive; no completion may be left over.
    pub(crate) fn silence(&mut self) {
        for _ in 0..self.quiet {
            self.pass();
        }
        for (name, side) in ["A", "B"].iter().zip(&self.sides) {
            assert!(side.seen.is_empty(), "side {name} has {:?}", side.seen);
        }
    }

    /// Posts one signaled request on A and waits for its success.
    pub(crate) fn perform(&mut self, qp: QpId, op: SendOp<'_>) -> Completion {
        self.sides[A].post(qp, &[signaled(1, op)]);
        let completion = self.success(A);
        assert_eq!((completion.wr_id, completion.qp), (1, qp));
        completion
    }

    /// Passes until what A wrote to `region` of B is there: UC reports success to the writer
    /// earlier.
    pub(crate) fn arrived(&mut self, region: RegionId, offset: usize, bytes: &[u8]) {
        for _ in 0..self.timeout {
            let found = self.sides[B].party.read(region, offset, bytes.len());
            if found == bytes {
                return;
            }
            self.pass();
        }
        let found = self.sides[B].party.read(region, offset, bytes.len());
        assert_eq!(found, bytes, "at byte {offset}");
    }

    pub(crate) fn drops(&mut self) -> u64 {
        self.sides.iter_mut().map(|side| side.party.drops()).sum()
    }
}

pub(crate) fn signaled(wr_id: u64, op: SendOp<'_>) -> SendWr<'_> {
    SendWr {
        wr_id,
        op,
        signaled: true,
        solicited: false,
        fence: false,
    }
}

pub(crate) fn unsignaled(wr_id: u64, op: SendOp<'_>) -> SendWr<'_> {
    SendWr {
        signaled: false,
        ..signaled(wr_id, op)
    }
}

pub(crate) fn write(payload: Payload<'_>, to: Remote) -> SendOp<'_> {
    SendOp::Write {
        payload,
        to,
        imm: None,
    }
}

/// Skips the behaviour unless `capable`.
pub(crate) fn need(capable: bool, otherwise: &'static str) -> Result<(), Skip> {
    capable.then_some(()).ok_or(Skip(otherwise))
}
