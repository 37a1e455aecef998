//! One side of a domain, with the operations that the tests share.

use std::os::fd::BorrowedFd;

use herdwick_fabric::{
    Access, AddressHandle, Completion, CqId, CqSpec, Device, Endpoint, Local, Payload, PdId,
    PdTicket, Port, PortLimits, QpId, QpSpec, RecvWr, RegionId, RegionSpec, Remote, Scope, SendOp,
    SendWr, Transport,
};
use herdwick_shm::{PdSize, ShmDevice, ShmPort};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub(crate) struct Party {
    pub(crate) device: ShmDevice,
    pub(crate) port: ShmPort,
    pub(crate) pd: PdId,
    pub(crate) cq: CqId,
}

impl Party {
    fn new(device: ShmDevice, pd: impl FnOnce(&ShmDevice, &mut ShmPort) -> PdId) -> Self {
        let mut port = device.open_port(&PortLimits::default()).unwrap();
        let pd = pd(&device, &mut port);
        let cq = device.create_cq(&mut port, &CqSpec { depth: 8192 });
        Self {
            pd,
            cq: cq.unwrap(),
            device,
            port,
        }
    }

    /// Makes a domain, in which the calls below work from now on.
    pub(crate) fn domain(&mut self) -> PdTicket {
        self.pd = self.device.create_pd(&mut self.port).unwrap();
        self.device.export_pd(&mut self.port, self.pd).unwrap()
    }

    pub(crate) fn qp(&mut self, transport: Transport, recv_depth: usize) -> QpId {
        let spec = QpSpec {
            pd: self.pd,
            transport,
            send_cq: self.cq,
            recv_cq: self.cq,
            send_depth: 64,
            recv_depth,
        };
        self.device.create_qp(&mut self.port, &spec).unwrap()
    }

    pub(crate) fn region(&mut self, len: usize, access: Access) -> RegionId {
        let scope = Scope::Pd;
        let spec = RegionSpec { len, access, scope };
        let region = self.device.allocate_region(&mut self.port, self.pd, &spec);
        region.unwrap()
    }

    pub(crate) fn remote(&self, region: RegionId) -> Remote {
        self.device.remote(&self.port, region).unwrap()
    }

    pub(crate) fn endpoint(&self, qp: QpId) -> Endpoint {
        self.device.endpoint(&self.port, qp).unwrap()
    }

    pub(crate) fn connect(&mut self, qp: QpId, peer: &Endpoint) {
        self.device.connect(&mut self.port, qp, peer).unwrap();
    }

    pub(crate) fn address(&mut self, qp: QpId, peer: &Endpoint) -> AddressHandle {
        let made = self.device.create_address(&mut self.port, qp, peer);
        made.unwrap()
    }

    /// Posts RECVs 0 to `count`, each with 4 KiB of `buffers`.
    pub(crate) fn recvs(&mut self, qp: QpId, buffers: RegionId, count: usize) {
        let recv = |n: usize| RecvWr {
            wr_id: n as u64,
            into: Local {
                region: buffers,
                offset: n * 4096,
                len: 4096,
            },
        };
        let recvs: Vec<_> = (0..count).map(recv).collect();
        self.port.post_recv(qp, &recvs).unwrap();
    }

    pub(crate) fn poll(&mut self) -> Vec<Completion> {
        let mut out = [Completion::BLANK; 64];
        let count = self.port.poll(self.cq, &mut out);
        out[..count].to_vec()
    }

    pub(crate) fn drops(&self) -> u64 {
        self.port.drops().iter().map(|(_, count)| count).sum()
    }
}

/// Makes a host without a domain; [`Party::domain`] sets `pd`.
pub(crate) fn host(size: PdSize) -> Party {
    let device = ShmDevice::host(size);
    Party::new(device, |_, _| PdId(0))
}

/// Makes a client of the domain of `ticket`.
pub(crate) fn client(ticket: PdTicket) -> Party {
    let device = ShmDevice::client();
    Party::new(device, |device, port| {
        device.import_pd(port, ticket).unwrap()
    })
}

/// Makes a host and its client.
pub(crate) fn pair() -> (Party, Party) {
    let mut host = host(PdSize::default());
    let ticket = host.domain();
    (host, client(ticket))
}

/// Connects two queue pairs.
pub(crate) fn connect(a: &mut Party, a_qp: QpId, b: &mut Party, b_qp: QpId) {
    let (a_end, b_end) = (a.endpoint(a_qp), b.endpoint(b_qp));
    a.connect(a_qp, &b_end);
    b.connect(b_qp, &a_end);
}

pub(crate) fn write(payload: Payload<'_>, to: Remote) -> SendWr<'_> {
    SendWr {
        wr_id: 1,
        op: SendOp::Write {
            payload,
            to,
            imm: None,
        },
        signaled: false,
        solicited: false,
        fence: false,
    }
}

pub(crate) fn send(
    payload: Payload<'_>,
    imm: Option<u32>,
    to: Option<AddressHandle>,
) -> SendWr<'_> {
    SendWr {
        wr_id: 2,
        op: SendOp::Send { payload, imm, to },
        signaled: false,
        solicited: false,
        fence: false,
    }
}

pub(crate) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
}
