//! A port with one domain, one completion queue and one region: what each process of a point has.

use herdwick_fabric::{
    Access, CqId, CqSpec, Device, Local, PdId, Port, PortLimits, QpId, QpSpec, RecvWr, RegionId,
    RegionSpec, Remote, Scope, Transport,
};
use herdwick_mem::Span;

use super::VerbsError;
use crate::{SeededDevice, SeededPort};

/// Work requests that a send queue holds, at most.
pub(super) const SEND_DEPTH: usize = 1024;

/// One end.
pub(super) struct End {
    pub(super) device: SeededDevice,
    pub(super) port: SeededPort,
    pub(super) pd: PdId,
    pub(super) cq: CqId,
    pub(super) region: RegionId,
    pub(super) memory: Span,
    datagrams: Option<QpId>,
}

impl End {
    /// Opens a port for `qps` queue pairs, each with up to `recvs` RECVs, and `bytes` of memory.
    pub(super) fn open(
        device: SeededDevice,
        qps: usize,
        recvs: usize,
        bytes: usize,
    ) -> Result<Self, VerbsError> {
        let mut port = device.open_port(&PortLimits {
            qps,
            addresses: qps,
            ..PortLimits::default()
        })?;
        let pd = device.create_pd(&mut port)?;
        let depth = qps * (SEND_DEPTH + recvs);
        let cq = device.create_cq(&mut port, &CqSpec { depth })?;
        let region = device.allocate_region(
            &mut port,
            pd,
            &RegionSpec {
                len: bytes,
                access: Access::ALL,
                scope: Scope::Pd,
            },
        )?;
        let memory = port.region(region).cloned();
        Ok(Self {
            memory: memory.ok_or(herdwick_fabric::ControlError::Unknown("region"))?,
            device,
            port,
            pd,
            cq,
            region,
            datagrams: None,
        })
    }

    pub(super) fn queue_pair(
        &mut self,
        transport: Transport,
        recv_depth: usize,
    ) -> Result<QpId, VerbsError> {
        let spec = QpSpec {
            pd: self.pd,
            transport,
            send_cq: self.cq,
            recv_cq: self.cq,
            send_depth: SEND_DEPTH,
            recv_depth,
        };
        Ok(self.device.create_qp(&mut self.port, &spec)?)
    }

    /// The queue pair that sends datagrams to all peers.
    pub(super) fn datagrams(&mut self) -> Result<QpId, VerbsError> {
        if self.datagrams.is_none() {
            self.datagrams = Some(self.queue_pair(Transport::Ud, 0)?);
        }
        let unknown = herdwick_fabric::ControlError::Unknown("queue pair");
        Ok(self.datagrams.ok_or(unknown)?)
    }

    pub(super) fn remote(&self) -> Result<Remote, VerbsError> {
        Ok(self.device.remote(&self.port, self.region)?)
    }

    /// Posts `count` RECVs of `bytes` at the front of the region: what they receive is not read.
    pub(super) fn post_recvs(
        &mut self,
        qp: QpId,
        count: usize,
        bytes: usize,
    ) -> Result<(), VerbsError> {
        for _ in 0..count {
            self.port.post_recv(qp, &[self.recv(0, bytes)])?;
        }
        Ok(())
    }

    pub(super) fn recv(&self, wr_id: u64, bytes: usize) -> RecvWr {
        RecvWr {
            wr_id,
            into: self.local(0, bytes),
        }
    }

    pub(super) fn local(&self, offset: usize, len: usize) -> Local {
        Local {
            region: self.region,
            offset,
            len,
        }
    }
}

/// Connects a new queue pair of `a` to a new one of `b`.
pub(super) fn connect(
    a: &mut End,
    b: &mut End,
    transport: Transport,
    recvs: [usize; 2],
) -> Result<[QpId; 2], VerbsError> {
    let ours = a.queue_pair(transport, recvs[0])?;
    let theirs = b.queue_pair(transport, recvs[1])?;
    let our_end = a.device.endpoint(&a.port, ours)?;
    let their_end = b.device.endpoint(&b.port, theirs)?;
    a.device.connect(&mut a.port, ours, &their_end)?;
    b.device.connect(&mut b.port, theirs, &our_end)?;
    Ok([ours, theirs])
}
