//! The ways in, and the one place of the server that names providers.

use std::os::fd::OwnedFd;

use herdwick_fabric::{ControlError, PdId};
use herdwick_herd::{RECV_SLACK, SetupError, wire::Window};
use herdwick_shm::{PdSize, ShmDevice, ShmPort, datagram_ring_bytes};

use crate::{
    front::Front,
    herd::{HerdConfig, HerdFront, LeaseDevice},
};

impl LeaseDevice for ShmDevice {
    fn domain(&self, port: &mut ShmPort, window: Window) -> Result<PdId, ControlError> {
        self.create_pd_of(port, &domain(window))
    }

    fn ticket(
        &self,
        port: &mut ShmPort,
        pd: PdId,
    ) -> Result<(Vec<u8>, Vec<OwnedFd>), ControlError> {
        let ticket = Self::ticket(self, port, pd)?;
        Ok((ticket.blob, ticket.fds))
    }
}

/// HERD over shared memory.
pub(crate) fn shm(config: HerdConfig) -> Result<Box<dyn Front + Send>, SetupError> {
    let device = ShmDevice::host(PdSize::NONE);
    Ok(Box::new(HerdFront::new("shm", device, config)?))
}

/// Bytes of memory that a lease of `window` holds at all `workers` together: all that its client,
/// which may be hostile, can touch.
pub(crate) fn lease_bytes(window: Window, workers: usize) -> usize {
    workers * domain(window).file_bytes()
}

/// What a client of `window` needs at one worker, and no more.
fn domain(window: Window) -> PdSize {
    PdSize {
        host_inbound: window.line_bytes() + window.overflow_bytes(),
        guest_inbound: datagram_ring_bytes(window.slots() + RECV_SLACK),
        ..PdSize::NONE
    }
}
