//! HERD's objects on shared memory, made by hand.

use std::{os::fd::OwnedFd, time::Duration};

use herdwick_fabric::ControlError;
use herdwick_herd::{
    ClientEnd, ClientRig, ClientSide, ClientTerms, Outcome, Refused, RequestPath, SetupError,
    hello::{WorkerAccept, WorkerGrant},
    wire::{Epoch, Window},
};
use herdwick_mica::Request;
use herdwick_shm::{PdTicket, ShmDevice, ShmPort};

use super::Lines;

/// The rig could not be built.
#[derive(Debug, thiserror::Error)]
pub enum RigError {
    /// HERD's objects could not be made, or do not meet.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The provider refused a domain.
    #[error("setting up a domain: {0}")]
    Control(#[from] ControlError),
    /// A domain was not taken up.
    #[error("taking up a domain: {0}")]
    Ticket(#[from] herdwick_shm::AttachError),
    /// No thread.
    #[error("starting a thread: {0}")]
    Thread(#[from] std::io::Error),
    /// A window that HERD has not.
    #[error("--window is a power of two from 1 to {max}, not {0}", max = Window::MAX)]
    Window(usize),
    /// Values that do not travel in a reply.
    #[error("the echo has values up to {REPLY_BYTES_MAX} bytes, head included: lower --value-size")]
    Value,
}

/// Largest reply, as the client that people link has it.
pub(crate) const REPLY_BYTES_MAX: usize = 4096;
/// Nothing is lost in shared memory: a retry here would be a bug of ours, and is not hidden.
const NEVER: Duration = Duration::from_secs(1 << 30);

/// A client ready to ask.
pub(crate) struct End {
    port: ShmPort,
    side: ClientSide,
}

impl Lines for End {
    #[inline]
    fn submit(&mut self, request: &Request<'_>, token: u64) -> Result<(), Refused> {
        self.side.submit(request, token).map(drop)
    }

    #[inline]
    fn flush(&mut self, now: Duration) {
        self.side.flush(&mut self.port, now);
    }

    #[inline]
    fn poll(&mut self, now: Duration, sink: &mut impl FnMut(u64, Outcome<'_>)) -> usize {
        self.side.poll(&mut self.port, now, sink)
    }
}

/// A client's rig on this provider.
pub(crate) struct Guest {
    device: ShmDevice,
    rig: ClientRig<ShmPort>,
}

impl Guest {
    /// Of `workers` workers.
    pub(crate) fn new(window: Window, epoch: Epoch, workers: usize) -> Result<Self, RigError> {
        let device = ShmDevice::guest();
        let terms = ClientTerms {
            path: RequestPath::UcWrite,
            window,
            epoch,
            reply_bytes_max: REPLY_BYTES_MAX,
            retry_after: NEVER,
            retry_after_max: NEVER,
            deadline: NEVER,
        };
        let rig = ClientRig::open(&device, workers, &terms)?;
        Ok(Self { device, rig })
    }

    /// Takes up the next worker's domain.
    pub(crate) fn join(
        &mut self,
        grant: &WorkerGrant,
        fds: Vec<OwnedFd>,
    ) -> Result<WorkerAccept, RigError> {
        let blob = grant.ticket.clone();
        let ticket = PdTicket { fds, blob };
        let pd = self.device.attach(&mut self.rig.port, ticket)?;
        Ok(self.rig.join(&self.device, pd, grant)?)
    }

    /// Posts the RECVs.
    pub(crate) fn finish(self) -> Result<End, RigError> {
        let ClientEnd { port, side, .. } = self.rig.finish()?;
        Ok(End { port, side })
    }
}
