//! The ways in, and the one place of the server that names providers.

use std::os::fd::OwnedFd;

use herdwick_fabric::{ControlError, PdId};
use herdwick_shm::{PdSize, ShmDevice, ShmPort};

use crate::{
    front::Front,
    herd::{HerdConfig, HerdFront, HerdStartError, LeaseDevice},
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
pub(crate) fn shm(config: HerdConfig) -> Result<Box<dyn Front + Send>, HerdStartError> {
    Ok(Box::new(HerdFront::new(
        ShmDevice::host(PdSize::default()),
        config,
    )?))
}

/// Bytes of memory that a lease of `window` slots holds at all `workers` together: lines, overflow
/// areas, a reply ring of two cells a slot, and the pages around them.
pub(crate) fn lease_bytes(window: u16, workers: usize) -> usize {
    const AROUND: usize = 16 * 4096;
    workers * (usize::from(window) * (64 + 1024 + 2 * 64) + AROUND)
}
