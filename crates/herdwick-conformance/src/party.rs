//! The interface between the behaviours and a provider: one side of a pair, with its memory.

use std::{os::fd::AsFd, time::Duration};

use herdwick_fabric::{
    AddressHandle, Armed, Capabilities, Completion, ConnectError, ControlError, CqId, CqSpec,
    Device, Endpoint, Local, PdId, Port, PortLimits, PostError, QpId, QpSpec, QpState, RecvWr,
    RegionId, RegionSpec, Remote, SendWr, Source, WriteReport,
};
use herdwick_mem::{WORD, Words};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// One side of a pair, in whatever process: the calls of a device and its port, and its program's
/// accesses to its memory.
///
/// Methods with the name of one of `Device` or `Port` do the same.
#[expect(missing_docs, reason = "the traits of herdwick-fabric say it")]
pub trait Party: Send {
    fn capabilities(&self) -> &Capabilities;
    /// The domain that is linked with the other side's domain.
    fn pd(&self) -> PdId;

    fn create_pd(&mut self) -> Result<PdId, ControlError>;
    fn destroy_pd(&mut self, pd: PdId) -> Result<(), ControlError>;
    fn allocate_region(&mut self, pd: PdId, spec: &RegionSpec) -> Result<RegionId, ControlError>;
    fn free_region(&mut self, region: RegionId) -> Result<(), ControlError>;
    fn remote(&mut self, region: RegionId) -> Result<Remote, ControlError>;
    fn create_cq(&mut self, spec: &CqSpec) -> Result<CqId, ControlError>;
    fn destroy_cq(&mut self, cq: CqId) -> Result<(), ControlError>;
    fn create_qp(&mut self, spec: &QpSpec) -> Result<QpId, ControlError>;
    fn destroy_qp(&mut self, qp: QpId) -> Result<(), ControlError>;
    fn endpoint(&mut self, qp: QpId) -> Result<Endpoint, ControlError>;
    fn source(&mut self, peer: &Endpoint) -> Result<Source, ConnectError>;
    fn connect(&mut self, qp: QpId, peer: &Endpoint) -> Result<(), ConnectError>;
    fn create_address(&mut self, qp: QpId, peer: &Endpoint) -> Result<AddressHandle, ConnectError>;
    fn accept_from(&mut self, qp: QpId, peer: &Endpoint) -> Result<(), ConnectError>;
    fn destroy_address(&mut self, address: AddressHandle) -> Result<(), ControlError>;
    fn fail_qp(&mut self, qp: QpId) -> Result<(), ControlError>;
    fn qp_state(&mut self, qp: QpId) -> Result<QpState, ControlError>;

    fn post_send(&mut self, qp: QpId, batch: &[SendWr<'_>]) -> Result<(), PostError>;
    fn post_recv(&mut self, qp: QpId, batch: &[RecvWr]) -> Result<(), PostError>;
    /// Takes all completions that `cq` holds now.
    fn poll(&mut self, cq: CqId) -> Vec<Completion>;
    fn watch_writes(&mut self, qp: QpId, range: Local, token: u64) -> bool;
    /// Takes all reports of WRITEs.
    fn written(&mut self) -> Vec<WriteReport>;
    /// Returns whether anything moved.
    fn progress(&mut self, now: Duration) -> bool;
    fn arm(&mut self, cq: CqId) -> Armed;
    fn disarm(&mut self, cq: CqId);
    /// Sleeps on the port's descriptor; `false` if `limit` passed without a wakeup, `None` if the
    /// port has no descriptor.
    fn wait(&mut self, limit: Duration) -> Option<bool>;
    /// Number of all drops that the port has counted.
    fn drops(&mut self) -> u64;

    /// Whether the port still has `region`.
    fn has_region(&mut self, region: RegionId) -> bool;
    /// Copies out of a region.
    fn read(&mut self, region: RegionId, offset: usize, len: usize) -> Vec<u8>;
    /// Stores into a region that no peer may write.
    fn write(&mut self, region: RegionId, offset: usize, bytes: &[u8]);
    /// Loads word `index` of a region with acquire ordering.
    fn load(&mut self, region: RegionId, index: usize) -> u64;
    /// Adds one to a word, `times` times, with the CPU's atomic instruction.
    fn count_up(&mut self, region: RegionId, index: usize, times: u64);

    /// Follows a line that counts up to `rounds` in all of its `words` words, from now on. Returns
    /// how often the last word was ahead of another; `None` if the last round does not arrive
    /// within `timeout` checks.
    fn follow(&mut self, region: RegionId, words: usize, rounds: u64, timeout: u64) -> Option<u64> {
        let mut early = 0;
        for check in 0..timeout {
            // The last word first: the others are loaded later, so they may only be newer.
            let last = self.load(region, words - 1);
            let ahead = (0..words - 1).any(|index| self.load(region, index) < last);
            early += u64::from(ahead);
            if last == rounds {
                return Some(early);
            }
            // A provider may place WRITEs in its own passes.
            self.progress(Duration::from_micros(check));
        }
        None
    }
}

/// A party in this process: a device, one of its ports, and a domain that reaches the other side.
pub struct LocalParty<D: Device> {
    device: D,
    port: D::Port,
    pd: PdId,
    claims: Capabilities,
}

impl<D: Device> LocalParty<D> {
    /// Wraps a device, a port and a domain that the provider's own set-up has linked.
    pub fn new(device: D, port: D::Port, pd: PdId) -> Self {
        let claims = device.capabilities().clone();
        Self {
            device,
            port,
            pd,
            claims,
        }
    }

    /// Makes two parties as the set-up of a session does: the first device makes a domain and
    /// exports it, the second imports it.
    ///
    /// # Panics
    /// If a device refuses.
    pub fn linked([exporter, importer]: [D; 2], limits: &PortLimits) -> [Self; 2] {
        let mut port = exporter.open_port(limits).expect("a port");
        let pd = exporter.create_pd(&mut port).expect("a domain");
        let ticket = exporter.export_pd(&mut port, pd).expect("a ticket");
        let exporter = Self::new(exporter, port, pd);
        let mut port = importer.open_port(limits).expect("a port");
        let pd = importer.import_pd(&mut port, ticket).expect("its domain");
        [exporter, Self::new(importer, port, pd)]
    }

    /// Makes the suite assume `claims` instead of the device's own capabilities.
    #[must_use]
    pub fn claiming(self, claims: Capabilities) -> Self {
        Self { claims, ..self }
    }

    fn span(&self, region: RegionId) -> &herdwick_mem::Span {
        self.port.region(region).expect("the behaviour made it")
    }
}

impl<D: Device + Send> Party for LocalParty<D> {
    fn capabilities(&self) -> &Capabilities {
        &self.claims
    }
    fn pd(&self) -> PdId {
        self.pd
    }

    fn create_pd(&mut self) -> Result<PdId, ControlError> {
        self.device.create_pd(&mut self.port)
    }
    fn destroy_pd(&mut self, pd: PdId) -> Result<(), ControlError> {
        self.device.destroy_pd(&mut self.port, pd)
    }
    fn allocate_region(&mut self, pd: PdId, spec: &RegionSpec) -> Result<RegionId, ControlError> {
        self.device.allocate_region(&mut self.port, pd, spec)
    }
    fn free_region(&mut self, region: RegionId) -> Result<(), ControlError> {
        self.device.free_region(&mut self.port, region)
    }
    fn remote(&mut self, region: RegionId) -> Result<Remote, ControlError> {
        self.device.remote(&self.port, region)
    }
    fn create_cq(&mut self, spec: &CqSpec) -> Result<CqId, ControlError> {
        self.device.create_cq(&mut self.port, spec)
    }
    fn destroy_cq(&mut self, cq: CqId) -> Result<(), ControlError> {
        self.device.destroy_cq(&mut self.port, cq)
    }
    fn create_qp(&mut self, spec: &QpSpec) -> Result<QpId, ControlError> {
        self.device.create_qp(&mut self.port, spec)
    }
    fn destroy_qp(&mut self, qp: QpId) -> Result<(), ControlError> {
        self.device.destroy_qp(&mut self.port, qp)
    }
    fn endpoint(&mut self, qp: QpId) -> Result<Endpoint, ControlError> {
        self.device.endpoint(&self.port, qp)
    }
    fn source(&mut self, peer: &Endpoint) -> Result<Source, ConnectError> {
        self.device.source(peer)
    }
    fn connect(&mut self, qp: QpId, peer: &Endpoint) -> Result<(), ConnectError> {
        self.device.connect(&mut self.port, qp, peer)
    }
    fn create_address(&mut self, qp: QpId, peer: &Endpoint) -> Result<AddressHandle, ConnectError> {
        self.device.create_address(&mut self.port, qp, peer)
    }
    fn accept_from(&mut self, qp: QpId, peer: &Endpoint) -> Result<(), ConnectError> {
        self.device.accept_from(&mut self.port, qp, peer).map(drop)
    }
    fn destroy_address(&mut self, address: AddressHandle) -> Result<(), ControlError> {
        self.device.destroy_address(&mut self.port, address)
    }
    fn fail_qp(&mut self, qp: QpId) -> Result<(), ControlError> {
        self.device.fail_qp(&mut self.port, qp)
    }
    fn qp_state(&mut self, qp: QpId) -> Result<QpState, ControlError> {
        self.device.qp_state(&self.port, qp)
    }

    fn post_send(&mut self, qp: QpId, batch: &[SendWr<'_>]) -> Result<(), PostError> {
        self.port.post_send(qp, batch)
    }
    fn post_recv(&mut self, qp: QpId, batch: &[RecvWr]) -> Result<(), PostError> {
        self.port.post_recv(qp, batch)
    }
    fn poll(&mut self, cq: CqId) -> Vec<Completion> {
        let mut out = [Completion::BLANK; 32];
        let mut all = Vec::new();
        loop {
            let count = self.port.poll(cq, &mut out);
            all.extend_from_slice(&out[..count]);
            // A full array may have left completions behind.
            if count < out.len() {
                return all;
            }
        }
    }
    fn watch_writes(&mut self, qp: QpId, range: Local, token: u64) -> bool {
        self.port.watch_writes(qp, range, token)
    }
    fn written(&mut self) -> Vec<WriteReport> {
        let mut out = [WriteReport::BLANK; 4];
        let mut all = Vec::new();
        loop {
            let count = self.port.written(&mut out);
            all.extend_from_slice(&out[..count]);
            if count < out.len() {
                return all;
            }
        }
    }
    fn progress(&mut self, now: Duration) -> bool {
        self.port.progress(now).moved
    }
    fn arm(&mut self, cq: CqId) -> Armed {
        self.port.arm(cq)
    }
    fn disarm(&mut self, cq: CqId) {
        self.port.disarm(cq);
    }
    fn wait(&mut self, limit: Duration) -> Option<bool> {
        let fd = self.port.wait_fd()?;
        let limit = Timespec::try_from(limit).expect("a limit in seconds fits");
        let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
        Some(poll(&mut fds, Some(&limit)).expect("the descriptor can be polled") > 0)
    }
    fn drops(&mut self) -> u64 {
        self.port.drops().iter().map(|(_, count)| count).sum()
    }

    fn has_region(&mut self, region: RegionId) -> bool {
        self.port.region(region).is_some()
    }
    fn read(&mut self, region: RegionId, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.span(region).read_bytes(offset, &mut bytes);
        bytes
    }
    fn write(&mut self, region: RegionId, offset: usize, bytes: &[u8]) {
        self.span(region).write_bytes(offset, bytes);
    }
    fn load(&mut self, region: RegionId, index: usize) -> u64 {
        self.span(region).load_acquire(index)
    }
    fn count_up(&mut self, region: RegionId, index: usize, times: u64) {
        let span = self.span(region);
        debug_assert!(index * WORD < span.len());
        for _ in 0..times {
            span.fetch_add(index, 1);
        }
    }
}
