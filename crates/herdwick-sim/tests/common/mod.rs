//! Two parties with a queue pair each, connected, and memory that the other may access.

#![allow(dead_code, reason = "each test binary uses a part")]

use herdwick_fabric::{
    Access, CqId, CqSpec, Device, Local, PdId, Port, PortLimits, QpId, QpSpec, RegionId,
    RegionSpec, Remote, Scope, SendOp, SendWr, Transport,
};
use herdwick_sim::{SeededDevice, SeededPort};

/// Bytes of each party's memory.
pub(crate) const BYTES: usize = 4096;

/// A party, its completion queue and its memory.
pub(crate) struct End {
    pub(crate) device: SeededDevice,
    pub(crate) port: SeededPort,
    pub(crate) pd: PdId,
    pub(crate) cq: CqId,
    pub(crate) qp: QpId,
    pub(crate) region: RegionId,
}

impl End {
    fn open(device: SeededDevice, transport: Transport) -> Self {
        let mut port = device.open_port(&PortLimits::default()).unwrap();
        let pd = device.create_pd(&mut port).unwrap();
        let cq = device.create_cq(&mut port, &CqSpec { depth: 128 }).unwrap();
        let spec = RegionSpec {
            len: BYTES,
            access: Access::ALL,
            scope: Scope::Pd,
        };
        let region = device.allocate_region(&mut port, pd, &spec).unwrap();
        let qp = queue_pair(&device, &mut port, (pd, cq, transport));
        Self {
            device,
            port,
            pd,
            cq,
            qp,
            region,
        }
    }

    pub(crate) fn remote(&self) -> Remote {
        self.device.remote(&self.port, self.region).unwrap()
    }

    pub(crate) fn local(&self, len: usize) -> Local {
        Local {
            region: self.region,
            offset: 0,
            len,
        }
    }

    pub(crate) fn post(&mut self, qp: QpId, op: SendOp<'_>) {
        let wr = SendWr {
            wr_id: 7,
            op,
            signaled: true,
            solicited: false,
            fence: false,
        };
        self.port.post_send(qp, &[wr]).unwrap();
    }
}

/// Makes a queue pair whose both sides complete on one queue.
pub(crate) fn queue_pair(
    device: &SeededDevice,
    port: &mut SeededPort,
    (pd, cq, transport): (PdId, CqId, Transport),
) -> QpId {
    let spec = QpSpec {
        pd,
        transport,
        send_cq: cq,
        recv_cq: cq,
        send_depth: 32,
        recv_depth: 0,
    };
    device.create_qp(port, &spec).unwrap()
}

/// Connects a queue pair of each party with one of the other's.
pub(crate) fn connect([a, b]: [&mut End; 2], [of_a, of_b]: [QpId; 2]) {
    let at_a = a.device.endpoint(&a.port, of_a).unwrap();
    let at_b = b.device.endpoint(&b.port, of_b).unwrap();
    a.device.connect(&mut a.port, of_a, &at_b).unwrap();
    b.device.connect(&mut b.port, of_b, &at_a).unwrap();
}

/// Makes a connected pair on these devices.
pub(crate) fn pair(devices: [SeededDevice; 2], transport: Transport) -> [End; 2] {
    let [mut a, mut b] = devices.map(|device| End::open(device, transport));
    let qps = [a.qp, b.qp];
    connect([&mut a, &mut b], qps);
    [a, b]
}
