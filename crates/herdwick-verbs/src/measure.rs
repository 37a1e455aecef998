//! Measures up to which size inline datagrams are faster than datagrams fetched from registered
//! memory.

use std::time::{Duration, Instant};

use herdwick_fabric::{
    Access, AddressHandle, Completion, ConnectError, ControlError, CqId, CqSpec, Device, Local,
    OpenError, Payload, Port, PortLimits, QpId, QpSpec, RegionId, RegionSpec, Scope, SendOp,
    SendWr, Transport,
};

/// Tested sizes in bytes, including the two of the HERD paper (144, 192).
const SIZES: [usize; 8] = [64, 96, 128, 144, 192, 256, 512, 1024];
/// Datagrams in flight.
const BATCH: usize = 32;
/// Trials of each method; the fastest counts.
const TRIES: usize = 15;
/// Polls without a completion after which the trial ends.
const TIMEOUT: usize = 10_000_000;

/// Returns the largest of [`SIZES`], at most `most`, up to which datagrams are posted and sent at
/// least as fast inline. They are sent to a queue pair without RECVs. 0 if that is true of no size,
/// or the datagrams cannot be sent.
///
/// The device refuses a call that it supports.
pub(crate) fn worth_copying(device: &impl Device, most: usize) -> Result<usize, TrialError> {
    let mut fixture = LoopbackQp::new(device)?;
    let worth = |size: &usize| {
        let [inline, fetched] = fixture.fastest(*size)?;
        (inline <= fetched).then_some(*size)
    };
    let sizes = SIZES.iter().filter(|size| **size <= most);
    // Up to the first size that is slower: the result is one limit, below which all sizes are
    // inlined.
    Ok(sizes.map_while(worth).last().unwrap_or(0))
}

/// A device refused a call that the trial needs.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// Opening a port.
    #[error("opening a port: {0}")]
    Open(#[from] OpenError),
    /// Making an object.
    #[error("setting up a port: {0}")]
    Control(#[from] ControlError),
    /// Addressing its own queue pair.
    #[error("connecting: {0}")]
    Connect(#[from] ConnectError),
}

/// A UD queue pair that sends to itself.
struct LoopbackQp<P> {
    port: P,
    cq: CqId,
    qp: QpId,
    memory: RegionId,
    own: AddressHandle,
    bytes: Vec<u8>,
}

impl<P: Port> LoopbackQp<P> {
    fn new<D: Device<Port = P>>(device: &D) -> Result<Self, TrialError> {
        let mut port = device.open_port(&PortLimits::default())?;
        let pd = device.create_pd(&mut port)?;
        // The sends and one RECV, which the queue pair has but never posts.
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

    /// Returns the shortest times of a batch of `size` bytes each, inline and fetched, tried in
    /// turns.
    fn fastest(&mut self, size: usize) -> Option<[Duration; 2]> {
        let mut fastest = [Duration::MAX; 2];
        for _ in 0..TRIES {
            // By turns, so that a change of the CPU's clock affects both.
            for (way, fastest) in fastest.iter_mut().enumerate() {
                // The fastest: interruptions only ever add time.
                *fastest = self.batch(size, way == 0)?.min(*fastest);
            }
        }
        Some(fastest)
    }

    /// Returns the time of a batch, from its post to the completion of its last datagram.
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
            // A send queue completes in order, so the last one stands for all.
            signaled: n == BATCH - 1,
            solicited: false,
            fence: false,
        });
        self.port.post_send(self.qp, &batch).ok()?;
        let mut out = [Completion::BLANK; 1];
        // A bound without a clock, for a device that completes nothing.
        let done = (0..TIMEOUT).any(|_| self.port.poll(self.cq, &mut out) > 0);
        done.then(|| began.elapsed())
    }
}
