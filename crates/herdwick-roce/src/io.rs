use core::net::SocketAddr;

use herdwick_fabric::RegionId;

use crate::icrc::IpId;

/// The registered memory of one engine, kept by whoever drives it.
///
/// The engine names only regions that it has given out and that are still registered, and only
/// ranges inside them; it has checked rights before.
pub trait Memory {
    /// Copies `bytes` to `offset`; the last aligned 8 bytes become visible last.
    fn write(&mut self, region: RegionId, offset: usize, bytes: &[u8]);
    /// Copies from `offset` into all of `out`.
    fn read(&self, region: RegionId, offset: usize, out: &mut [u8]);
    /// Adds to the aligned word at `offset`; returns its value before.
    fn fetch_add(&mut self, region: RegionId, offset: usize, add: u64) -> u64;
    /// Swaps the aligned word at `offset` if it holds `expected`; returns its value before.
    fn compare_swap(&mut self, region: RegionId, offset: usize, expected: u64, new: u64) -> u64;
}

/// A small number that no other registered region of its engine has: the place of `region` in a
/// table. The id itself is none, for its upper bits count how often the place was used.
#[inline]
#[must_use]
pub const fn region_index(region: RegionId) -> usize {
    crate::slab::index(region.0)
}

/// Where packets go.
pub trait Wire {
    /// Room for one packet of exactly `len` bytes towards the peer of `flow`, from the BTH on; the
    /// last four are the ICRC, which [`crate::icrc::seal`] fills in once the route is known. The
    /// room may hold anything; the engine writes all of it but the ICRC.
    ///
    /// `ordered`: it must leave after every earlier ordered packet of this flow. `None`: no room
    /// now; the engine offers the packet again in [`crate::Engine::poll_transmit`].
    fn packet(&mut self, flow: FlowId, len: usize, ordered: bool) -> Option<&mut [u8]>;
}

/// A destination: equal peers share one flow, so that one train may carry packets of many queue
/// pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId(pub(crate) u32);

impl FlowId {
    /// A small number that no other living flow of this engine has.
    #[must_use]
    pub fn index(self) -> usize {
        crate::slab::index(self.0)
    }
}

/// One UDP datagram that arrived, or several as one, for [`crate::Engine::handle_train`].
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Its source.
    pub from: SocketAddr,
    /// The address and port it was sent to.
    pub to: SocketAddr,
    /// UDP payload: BTH to ICRC.
    pub bytes: &'a [u8],
    /// What is known of its IPv4 identification.
    pub ip_id: IpId,
    /// The IP header's type of service or traffic class, 0 where it is not known.
    pub tos: u8,
}
