//! Up to which size it is faster to give a device the bytes than to tell it where they lie.

use std::time::{Duration, Instant};

use herdwick_fabric::{
    Access, AddressHandle, Completion, ConnectError, ControlError, CqId, CqSpec, Device, Local,
    OpenError, Payload, Port, PortLimits, QpId, QpSpec, RegionId, RegionSpec, Scope, SendOp,
    SendWr, Transport,
};

use crate::{VerbsDevice, port::VerbsPort};

/// Sizes tried, the paper's two among them.
const SIZES: [usize; 8] = [64, 96, 128, 144, 192, 256, 512, 1024];
/// Datagrams on their way at once.
const BATCH: usize = 32;
/// How often each way is tried; the fastest counts.
const TRIES: usize = 15;
/// Looks for a completion after which none is expected any more.
const PATIENCE: usize = 10_000_000;

/// The largest of [`SIZES`], `most` at most, up to which datagrams are posted and sent faster
/// inline. Nobody receives them. 0 where that is never so, or they are not sent.
///
/// # Errors
/// What the device refused that it takes.
pub(crate) fn worth_copying(device: &VerbsDevice, most: usize) -> Result<usize, TrialError> {
    let mut rig = Rig::new(device)?;
    let worth = |size: &usize| {
        let [inline, fetched] = rig.fastest(*size)?;
        (inline <= fetched).then_some(*size)
    };
    let sizes = SIZES.iter().filter(|size| **size <= most);
    Ok(sizes.map_while(worth).last().unwrap_or(0))
}

/// A device refused what a trial needs.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// A port.
    #[error("opening a port: {0}")]
    Open(#[from] OpenError),
    /// An object.
    #[error("setting up a port: {0}")]
    Control(#[from] ControlError),
    /// An address of its own.
    #[error("connecting: {0}")]
    Connect(#[from] ConnectError),
}

/// A UD queue pair that speaks to itself.
struct Rig {
    port: VerbsPort,
    cq: CqId,
    qp: QpId,
    memory: RegionId,
    own: AddressHandle,
    bytes: Vec<u8>,
}

impl Rig {
    fn new(device: &VerbsDevice) -> Result<Self, TrialError> {
        let mut port = device.open_port(&PortLimits::default())?;
        let pd = device.create_pd(&mut port)?;
        let cq = device.create_cq(&mut port, &CqSpec { depth: BATCH + 1 })?;
        let spec = QpSpec {
            pd,
            transport: Transport::Ud,
            send_cq: cq,
            recv_cq: cq,
            send_depth: BATCH,
            recv_depth: 1,
        };
        let qp = device.create_qp(&mut port, &spec)?;
        let bytes = vec![0; SIZES[SIZES.len() - 1]];
        let region = RegionSpec {
            len: bytes.len(),
            access: Access::LOCAL,
            scope: Scope::Pd,
        };
        let memory = device.allocate_region(&mut port, pd, &region)?;
        let end = device.endpoint(&port, qp)?;
        let own = device.create_address(&mut port, qp, &end)?;
        Ok(Self {
            port,
            cq,
            qp,
            memory,
            own,
            bytes,
        })
    }

    /// The shortest times of a batch of `size` bytes each, inline and fetched, tried by turns.
    fn fastest(&mut self, size: usize) -> Option<[Duration; 2]> {
        let mut fastest = [Duration::MAX; 2];
        for _ in 0..TRIES {
            for (way, fastest) in fastest.iter_mut().enumerate() {
                *fastest = self.batch(size, way == 0)?.min(*fastest);
            }
        }
        Some(fastest)
    }

    /// How long a batch takes, from its post to the completion of its last.
    #[expect(
        clippy::disallowed_methods,
        reason = "what is measured is this clock's time, before anything runs"
    )]
    fn batch(&mut self, size: usize, inline: bool) -> Option<Duration> {
        let began = Instant::now();
        let payload = if inline {
            Payload::Inline(&self.bytes[..size])
        } else {
            Payload::Region(Local {
                region: self.memory,
                offset: 0,
                len: size,
            })
        };
        let batch: [SendWr<'_>; BATCH] = std::array::from_fn(|n| SendWr {
            wr_id: 0,
            op: SendOp::Send {
                payload,
                imm: None,
                to: Some(self.own),
            },
            signaled: n == BATCH - 1,
            solicited: false,
        });
        self.port.post_send(self.qp, &batch).ok()?;
        let mut out = [Completion::BLANK; 1];
        let done = (0..PATIENCE).any(|_| self.port.poll(self.cq, &mut out) > 0);
        done.then(|| began.elapsed())
    }
}
