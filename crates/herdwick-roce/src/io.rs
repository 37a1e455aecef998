//! The interface between the engine and its driver: registered memory, outgoing packets, arriving
//! packets.

use core::net::SocketAddr;

use herdwick_fabric::RegionId;

use crate::icrc::IpId;

/// The registered memory of one engine, owned by its driver.
///
/// The engine names only regions that it has registered and not yet deregistered, and only ranges
/// inside them; it has checked the rights before.
pub trait Memory {
    /// Copies `bytes` to `offset`; the last aligned 8 bytes become visible last.
    fn write(&mut self, region: RegionId, offset: usize, bytes: &[u8]);
    /// Copies from `offset` into all of `out`.
    fn read(&self, region: RegionId, offset: usize, out: &mut [u8]);
    /// Adds to the aligned word at `offset`; returns the old value.
    fn fetch_add(&mut self, region: RegionId, offset: usize, add: u64) -> u64;
    /// Replaces the aligned word at `offset` by `new` if it holds `expected`; returns the old
    /// value.
    fn compare_swap(&mut self, region: RegionId, offset: usize, expected: u64, new: u64) -> u64;
}

/// Returns the table index of `region`: a small number that no other registered region of its
/// engine has. The id itself is no index, because its upper bits count how often the index was
/// reused.
#[inline]
#[must_use]
pub const fn region_index(region: RegionId) -> usize {
    crate::slab::index(region.0)
}

/// Buffers for outgoing packets.
pub trait Wire {
    /// Returns a buffer for one packet of exactly `len` bytes to the peer of `flow`, from the BTH
    /// on. The last four bytes are the ICRC, which [`crate::icrc::seal`] fills in once the route is
    /// known. The buffer may hold anything; the engine writes all of it except the ICRC.
    /// `ordered`: the packet must be sent after every earlier ordered packet of this flow. `None`:
    /// no room now; the engine offers the packet again in [`crate::Engine::poll_transmit`].
    fn packet(&mut self, flow: FlowId, len: usize, ordered: bool) -> Option<&mut [u8]>;
}

/// A destination. Queue pairs with equal peers share one flow, so that one GSO batch may carry
/// packets of many queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId(pub(crate) u32);

impl FlowId {
    /// Returns a small number that no other live flow of this engine has.
    #[must_use]
    pub fn index(self) -> usize {
        crate::slab::index(self.0)
    }
}

/// One UDP datagram that arrived, or several as a GRO batch, for [`crate::Engine::handle_batch`].
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// The source address.
    pub from: SocketAddr,
    /// The destination address and port.
    pub to: SocketAddr,
    /// The UDP payload: BTH to ICRC.
    pub bytes: &'a [u8],
    /// What is known of its IPv4 identification.
    pub ip_id: IpId,
    /// The type of service or traffic class in the IP header, 0 if unknown.
    pub tos: u8,
}
