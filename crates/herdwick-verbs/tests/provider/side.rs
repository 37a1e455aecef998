//! A port on the loopback device.

use std::{error::Error, time::Duration};

use herdwick_fabric::{
    Access, AddressHandle, Completion, CqId, CqSpec, Device, Local, Payload, PdId, Port,
    PortLimits, PostError, QpId, QpSpec, QpState, RecvWr, RegionId, RegionSpec, Scope, SendOp,
    SendWr, Status, Transport,
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

/// A port whose UD queue pair speaks to itself.
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
        let device = open()?;
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

    /// Lets the port hear what the device tells unasked.
    pub(crate) fn hear(&mut self) {
        for _ in 0..5000 {
            self.port.progress(Duration::ZERO);
        }
    }

    /// Sends a message to itself, whole.
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
    }
}
