//! The fixture: ports on the loopback device.

use std::{error::Error, time::Duration};

use herdwick_fabric::{
    Access, AddressHandle, Completion, ConnectError, CqId, CqSpec, Device, Endpoint, Local,
    Payload, PdId, Port, PortLimits, PostError, QpId, QpSpec, QpState, RecvWr, RegionId,
    RegionSpec, Scope, SendOp, SendWr, Status, Transport,
};
use herdwick_verbs::{VerbsDevice, VerbsError, VerbsOptions, VerbsPort};

use herdwick_verbs_fake::handle as fake;

pub(crate) fn open() -> Result<VerbsDevice, VerbsError> {
    let library = Some(fake::path());
    VerbsDevice::open(&VerbsOptions {
        library,
        ..VerbsOptions::default()
    })
}

/// A port whose UD queue pair sends to itself.
pub(crate) struct Side {
    pub(crate) device: VerbsDevice,
    pub(crate) port: VerbsPort,
    pub(crate) pd: PdId,
    pub(crate) cq: CqId,
    pub(crate) qp: QpId,
    pub(crate) inbox: RegionId,
    pub(crate) own: AddressHandle,
}

impl Side {
    pub(crate) fn new() -> Self {
        Self::attempt().unwrap()
    }

    pub(crate) fn attempt() -> Result<Self, Box<dyn Error>> {
        Self::on(open()?)
    }

    /// Opens another port of the same device.
    pub(crate) fn again(&mut self) {
        *self = Self::on(self.device.clone()).unwrap();
    }

    fn on(device: VerbsDevice) -> Result<Self, Box<dyn Error>> {
        let mut port = device.open_port(&PortLimits::default())?;
        let pd = device.create_pd(&mut port)?;
        let cq = device.create_cq(&mut port, &CqSpec { depth: 64 })?;
        let qp = device.create_qp(&mut port, &spec(pd, cq))?;
        let inbox = device.allocate_region(&mut port, pd, &REGION)?;
        let end = device.endpoint(&port, qp)?;
        let own = device.create_address(&mut port, qp, &end)?;
        Ok(Self {
            device,
            port,
            pd,
            cq,
            qp,
            inbox,
            own,
        })
    }

    pub(crate) fn send(&mut self, wr_id: u64) -> Result<(), PostError> {
        let wr = signaled(wr_id, self.own);
        self.port
            .post_send(self.qp, &[wr, signaled(wr_id + 1, self.own)])
    }

    pub(crate) fn recv(&mut self) {
        let into = Local {
            region: self.inbox,
            offset: 0,
            len: 256,
        };
        let recv = RecvWr { wr_id: 7, into };
        self.port.post_recv(self.qp, &[recv]).unwrap();
    }

    pub(crate) fn poll(&mut self) -> Vec<(u64, Status)> {
        let mut out = [Completion::BLANK; 16];
        let count = self.port.poll(self.cq, &mut out);
        out[..count]
            .iter()
            .map(|done| (done.wr_id, done.status))
            .collect()
    }

    pub(crate) fn state(&self) -> QpState {
        self.device.qp_state(&self.port, self.qp).unwrap()
    }

    pub(crate) fn count(&self, fault: &str) -> u64 {
        let drops = self.port.drops();
        drops.iter().find(|(name, _)| *name == fault).unwrap().1
    }

    /// Makes enough passes for the port to process asynchronous events.
    pub(crate) fn hear(&mut self) {
        for _ in 0..5000 {
            self.port.progress(Duration::ZERO);
        }
    }

    /// Sends messages to itself and checks that all complete.
    pub(crate) fn works(&mut self) {
        self.recv();
        self.recv();
        self.send(1).unwrap();
        let done = self.poll();
        assert_eq!(done.len(), 4);
        assert!(
            done.iter().all(|(_, status)| *status == Status::Success),
            "{done:?}"
        );
    }
}

/// An RC queue pair, and memory that may be read.
pub(crate) struct Reliable {
    device: VerbsDevice,
    port: VerbsPort,
    cq: CqId,
    qp: QpId,
    memory: RegionId,
}

impl Reliable {
    pub(crate) fn new(device: &VerbsDevice) -> Self {
        let mut port = device.open_port(&PortLimits::default()).unwrap();
        let pd = device.create_pd(&mut port).unwrap();
        let cq = device.create_cq(&mut port, &CqSpec { depth: 64 }).unwrap();
        let spec = QpSpec {
            transport: Transport::Rc,
            ..spec(pd, cq)
        };
        let qp = device.create_qp(&mut port, &spec).unwrap();
        let open = RegionSpec {
            access: Access::ALL,
            ..REGION
        };
        let memory = device.allocate_region(&mut port, pd, &open).unwrap();
        Self {
            device: device.clone(),
            port,
            cq,
            qp,
            memory,
        }
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        self.device.endpoint(&self.port, self.qp).unwrap()
    }

    pub(crate) fn attempt(&mut self, peer: &Endpoint) -> Result<(), ConnectError> {
        self.device.connect(&mut self.port, self.qp, peer)
    }

    pub(crate) fn connect(&mut self, peer: &Endpoint) {
        self.attempt(peer).unwrap();
    }

    /// READs a word of `peer`'s memory.
    pub(crate) fn read(&mut self, peer: &Self) -> Status {
        let into = Local {
            region: self.memory,
            offset: 0,
            len: 8,
        };
        let from = peer.device.remote(&peer.port, peer.memory).unwrap();
        let read = SendWr {
            wr_id: 1,
            op: SendOp::Read { into, from },
            signaled: true,
            solicited: false,
            fence: false,
        };
        self.port.post_send(self.qp, &[read]).unwrap();
        let mut out = [Completion::BLANK; 1];
        while self.port.poll(self.cq, &mut out) == 0 {}
        out[0].status
    }
}

pub(crate) const REGION: RegionSpec = RegionSpec {
    len: 4096,
    access: Access::LOCAL,
    scope: Scope::Pd,
};

pub(crate) fn spec(pd: PdId, cq: CqId) -> QpSpec {
    QpSpec {
        pd,
        transport: Transport::Ud,
        send_cq: cq,
        recv_cq: cq,
        send_depth: 16,
        recv_depth: 16,
    }
}

pub(crate) fn signaled(wr_id: u64, to: AddressHandle) -> SendWr<'static> {
    SendWr {
        wr_id,
        op: SendOp::Send {
            payload: Payload::Words(&[1]),
            imm: None,
            to: Some(to),
        },
        signaled: true,
        solicited: false,
        fence: false,
    }
}
