//! The ways in, and the one place of the server that names providers.

use std::os::fd::OwnedFd;

use herdwick_fabric::{ControlError, PdId};
use herdwick_herd::{SetupError, wire::Window};
use herdwick_shm::{PdSize, ShmDevice, ShmPort};

use crate::{
    front::Front,
    herd::{HerdConfig, HerdFront, LeaseDevice},
};

impl LeaseDevice for ShmDevice {
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
    // What no client needs, none gets: a domain's size bounds what a hostile one can take.
    let size = PdSize {
        host_inbound: request_bytes(Window::MAX),
        host_readable: 0,
        guest_inbound: reply_bytes(Window::MAX),
        guest_regions: 0,
    };
    Ok(Box::new(HerdFront::new(ShmDevice::host(size), config)?))
}

/// Bytes of memory that a lease of `window` slots holds at all `workers` together: lines, overflow
/// areas, a ring for the replies, and the pages around them.
pub(crate) fn lease_bytes(window: u16, workers: usize) -> usize {
    const AROUND: usize = 16 * 4096;
    let window = usize::from(window);
    workers * (request_bytes(window) + reply_bytes(window) + AROUND)
}

/// Lines and overflow areas.
fn request_bytes(window: usize) -> usize {
    window * (64 + 1024)
}

/// The ring for replies to so many requests and their retries.
fn reply_bytes(window: usize) -> usize {
    const RETRIES: usize = 64;
    herdwick_shm::datagram_ring_bytes(window + RETRIES)
}
