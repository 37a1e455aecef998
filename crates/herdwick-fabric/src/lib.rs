//! The RDMA verbs as types and traits: providers implement them, systems are written against them.
//!
//! Start with [`Device`] and [`Port`]; `work` has the work requests, `spec` what a queue pair or a
//! region is created from. A WRITE over a reliable connection, posted and polled:
//!
//! ```
//! use std::time::Duration;
//! use herdwick_fabric::{
//!     Access, Completion, CqSpec, Device, Payload, Port, PortLimits, QpSpec, RegionSpec, Scope,
//!     SendOp, SendWr, Status, Transport,
//! };
//! use herdwick_mem::Words;
//! # // Any provider will do; this one runs in one process under virtual time.
//! # let network = herdwick_conformance::seeded::SeededNetwork::new(1);
//! # let (here, there) = (network.device(), network.device());
//!
//! // One queue pair at each end, and a region that the peer may WRITE.
//! let open = |device: &herdwick_conformance::seeded::SeededDevice| {
//!     let mut port = device.open_port(&PortLimits::default()).unwrap();
//!     let pd = device.create_pd(&mut port).unwrap();
//!     let cq = device.create_cq(&mut port, &CqSpec { depth: 16 }).unwrap();
//!     let qp = device.create_qp(&mut port, &QpSpec {
//!         pd, transport: Transport::Rc, send_cq: cq, recv_cq: cq, send_depth: 8, recv_depth: 8,
//!     }).unwrap();
//!     (port, pd, cq, qp)
//! };
//! let (mut port, _, cq, qp) = open(&here);
//! let (mut peer_port, peer_pd, _, peer_qp) = open(&there);
//! let spec = RegionSpec { len: 64, access: Access::WRITE, scope: Scope::Pd };
//! let region = there.allocate_region(&mut peer_port, peer_pd, &spec).unwrap();
//!
//! // The ends exchange endpoints and connect.
//! let end = here.endpoint(&port, qp).unwrap();
//! let peer = there.endpoint(&peer_port, peer_qp).unwrap();
//! here.connect(&mut port, qp, &peer).unwrap();
//! there.connect(&mut peer_port, peer_qp, &end).unwrap();
//!
//! // Post the WRITE, and poll for its completion.
//! let to = there.remote(&peer_port, region).unwrap();
//! let op = SendOp::Write { payload: Payload::Words(&[42]), to, imm: None };
//! let wr = SendWr { wr_id: 7, op, signaled: true, solicited: false, fence: false };
//! port.post_send(qp, &[wr]).unwrap();
//! let mut done = [Completion::BLANK; 1];
//! let mut now = Duration::ZERO;
//! while port.poll(cq, &mut done) == 0 {
//!     now += Duration::from_micros(1);
//!     port.progress(now);
//!     peer_port.progress(now);
//! }
//! assert_eq!((done[0].wr_id, done[0].status), (7, Status::Success));
//! assert_eq!(peer_port.region(region).unwrap().load_acquire(0), 42);
//! ```
//!
//! The terms and rules are those of the InfiniBand verbs, as summarised in section 2.2 and Table 1
//! of the HERD paper: RC carries SEND, WRITE, READ and atomics; UC carries SEND and WRITE; UD
//! carries SEND. [`Capabilities`] lists, as data, what a provider lacks.
//!
//! The control half ([`Device`]) may block and allocate, and returns detailed errors. The data half
//! ([`Port`]) never blocks, allocates, locks or reads a clock.
//!
//! **Publication.** A WRITE makes its last aligned 8 bytes visible last. A thread that loads that
//! word with `herdwick_mem`'s `Words::load_acquire` and finds the new value finds the rest of the
//! WRITE too. A provider that cannot promise this clears [`Capabilities::ordered_write`].
//!
//! **Contract of the one-sided verbs.** `herdwick-conformance` tests it on each provider:
//!
//! - A READ or WRITE accesses exactly its bytes, at any alignment of either end. Bytes beside a WRITE
//!   that the peer's CPU stores at the same time are kept, with the exceptions of [`SendOp::Write`].
//! - Each aligned 8-byte word is loaded, or stored, at once, if the remote address is a multiple of 8.
//!   So a READ beside a writer returns words that were stored, but words of different stores.
//!   The kernel's `rdma_rxe` on an emulated CPU does not hold to this (`docs/rdma.md`).
//! - The words of a READ are loaded in rising order only with [`Capabilities::ordered_read`]; those of
//!   a WRITE are stored in any order but for the last one (above).
//! - One that touches a byte outside its region, or lacks the right, fails as a whole with
//!   [`Status::RemoteAccess`], and so does its queue pair; UC drops and counts it instead.
//! - When [`Device::free_region`] has returned, no peer reads what is stored there afterwards: a READ
//!   under way fails, or returns what the region held before.
//! - READs of a queue pair are executed in the order in which they were posted, and so are atomics. A
//!   later request of another kind may overtake them unless it is fenced ([`SendWr::fence`]).
//! - An atomic accesses its word at once with respect to other atomics, and to the CPU's own as well
//!   where [`Capabilities::atomics`] is [`Atomics::Coherent`].
//! - The result of a READ or atomic is in local memory when its completion, or a later one of its
//!   queue pair, has been polled; not before. A provider may execute a READ as late as in that poll.
//!
//! **Shared memory.** [`Device::allocate_region`] makes memory of one domain. A table that several
//! cores serve to many clients is [`SharedMemory`], registered in each domain with an rkey of its
//! own. Peers may only READ it, unless it is made for [`Sharing::TrustedPeers`]. It may have [`Windows`].
//!
//! Without the feature `std` this crate has only the types, for `no_std` engines.
#![cfg_attr(not(feature = "std"), no_std)]
#![forbid(unsafe_code)]

mod capabilities;
mod completion;
mod counters;
mod endpoint;
mod error;
#[cfg(feature = "std")]
mod handover;
mod id;
mod progress;
#[cfg(feature = "std")]
mod setup;
#[cfg(feature = "std")]
mod shared;
#[cfg(feature = "std")]
mod slab;
mod spec;
mod work;

pub use capabilities::{Atomics, Capabilities};
pub use completion::{
    Completion, INLINE_RECEIVE, InlineData, Opcode, Received, Source, Status, WriteReport,
};
pub use counters::Counter;
pub use endpoint::{ENDPOINT_BYTES_MAX, Endpoint, EndpointTooLong};
pub use error::{ConnectError, ControlError, OpenError, PostError};
#[cfg(feature = "std")]
pub use handover::{ImportError, PdRoom, PdTicket, PortHealth, Released};
pub use id::{AddressHandle, CqId, PdId, Psn, QpId, Qpn, RegionId, Rkey};
pub use progress::{Armed, Progress};
#[cfg(feature = "std")]
pub use setup::SetupError;
#[cfg(feature = "std")]
pub use shared::{SharedMemory, Sharing, Windows};
#[cfg(feature = "std")]
pub use slab::{SLOTS_MAX, Slab};
pub use spec::{Access, CqSpec, PortLimits, QpSpec, QpState, RegionSpec, Scope, Transport};
pub use work::{Local, Payload, RecvWr, Remote, SendOp, SendWr};

use core::time::Duration;
#[cfg(feature = "std")]
use {
    herdwick_mem::Span,
    std::{net::IpAddr, os::fd::BorrowedFd},
};

/// The control half of a provider: set-up and tear-down. May block and allocate; returns detailed
/// errors.
///
/// Objects belong to the port they were made on and are named by small ids, valid on that port
/// only. An id that names nothing is [`ControlError::Unknown`] in every call, and so is one that was
/// destroyed before. What lives in a domain goes with it; a completion queue stays as long as queue
/// pairs use it ([`ControlError::InUse`]).
#[cfg(feature = "std")]
pub trait Device {
    /// The data half; one per thread.
    type Port: Port + Send;
    /// Returns what this provider supports.
    fn capabilities(&self) -> &Capabilities;

    /// Opens a port for one thread.
    ///
    /// # Errors
    /// A limit beyond the device's, or an error of the operating system.
    fn open_port(&self, limits: &PortLimits) -> Result<Self::Port, OpenError>;

    /// Makes a protection domain. Regions, queue pairs and address handles work together only
    /// within one domain.
    ///
    /// # Errors
    /// Limits, or the operating system's refusal; [`ControlError::Unsupported`] of a device that only
    /// joins the domains of others.
    fn create_pd(&self, port: &mut Self::Port) -> Result<PdId, ControlError>;

    /// Destroys a domain and every object left in it. No peer can reach its memory afterwards.
    ///
    /// # Errors
    /// [`ControlError::Unknown`].
    fn destroy_pd(&self, port: &mut Self::Port, pd: PdId) -> Result<(), ControlError>;

    /// Allocates and registers zeroed memory that the provider can access.
    ///
    /// # Errors
    /// A limit is reached, the provider lacks one of the rights, or memory is short.
    fn allocate_region(
        &self,
        port: &mut Self::Port,
        pd: PdId,
        spec: &RegionSpec,
    ) -> Result<RegionId, ControlError>;

    /// As [`Device::allocate_region`]; returns the memory as well.
    ///
    /// # Errors
    /// As [`Device::allocate_region`].
    fn allocate_memory(
        &self,
        port: &mut Self::Port,
        pd: PdId,
        spec: &RegionSpec,
    ) -> Result<(RegionId, Span), ControlError> {
        let region = self.allocate_region(port, pd, spec)?;
        let memory = port.region(region).cloned();
        Ok((region, memory.ok_or(ControlError::Unknown("region"))?))
    }

    /// Allocates zeroed memory of any length that many domains can register, on any ports of devices
    /// of this provider in this process. It belongs to the caller, not to a port.
    ///
    /// # Errors
    /// Memory is short.
    fn allocate_shared(&self, len: usize, sharing: Sharing) -> Result<SharedMemory, ControlError> {
        SharedMemory::anonymous(len, sharing)
    }

    /// Registers shared memory in a domain, with an rkey of its own. To be exported to the peer
    /// ([`Device::export_region`]) before the peer uses the rkey.
    ///
    /// # Errors
    /// A limit, a right that the memory's [`Sharing`] excludes, or windows ([`Capabilities::windows`]).
    fn register_shared(
        &self,
        port: &mut Self::Port,
        pd: PdId,
        memory: &SharedMemory,
        access: Access,
        scope: Scope,
    ) -> Result<RegionId, ControlError>;

    /// Returns the ticket by which the peer of its domain reaches `region`, as often as it is asked;
    /// empty where an rkey is enough.
    ///
    /// # Errors
    /// [`ControlError::Unknown`], or the operating system's refusal.
    fn export_region(&self, port: &Self::Port, region: RegionId) -> Result<PdTicket, ControlError> {
        self.remote(port, region).map(|_| PdTicket::default())
    }

    /// Makes a region that the peer of `pd` has exported reachable through `pd`; the ticket is not trusted.
    ///
    /// # Errors
    /// A malformed ticket, or an error of the operating system.
    fn import_region(
        &self,
        port: &mut Self::Port,
        pd: PdId,
        ticket: PdTicket,
    ) -> Result<(), ImportError> {
        let _ = (port, pd, ticket);
        Ok(())
    }

    /// Returns the memory of a region that was imported, for loads without verbs, if it is mapped here.
    fn imported(&self, _port: &Self::Port, _pd: PdId, _rkey: Rkey) -> Option<Span> {
        None
    }

    /// Deregisters a region. Its rkey is invalid once the call returns.
    ///
    /// # Errors
    /// [`ControlError::Unknown`].
    fn free_region(&self, port: &mut Self::Port, region: RegionId) -> Result<(), ControlError>;

    /// Returns the remote address of `region`: the [`Remote`] that a peer uses to reach its first
    /// byte.
    ///
    /// # Errors
    /// [`ControlError::Unknown`].
    fn remote(&self, port: &Self::Port, region: RegionId) -> Result<Remote, ControlError>;

    /// Makes a completion queue of `spec.depth` entries.
    ///
    /// # Errors
    /// A limit is reached.
    fn create_cq(&self, port: &mut Self::Port, spec: &CqSpec) -> Result<CqId, ControlError>;

    /// Destroys a completion queue that no queue pair uses.
    ///
    /// # Errors
    /// [`ControlError::Unknown`], [`ControlError::InUse`].
    fn destroy_cq(&self, port: &mut Self::Port, cq: CqId) -> Result<(), ControlError>;

    /// Makes a queue pair, in [`QpState::Init`]: it takes RECVs, but neither sends nor receives.
    /// A UD queue pair is ready at once ([`QpState::ReadyToSend`]).
    ///
    /// # Errors
    /// A limit is reached, or the provider lacks the transport.
    fn create_qp(&self, port: &mut Self::Port, spec: &QpSpec) -> Result<QpId, ControlError>;

    /// Destroys a queue pair; its outstanding work is dropped without completions.
    ///
    /// # Errors
    /// [`ControlError::Unknown`].
    fn destroy_qp(&self, port: &mut Self::Port, qp: QpId) -> Result<(), ControlError>;

    /// Returns what a peer needs to connect to `qp` or to address it.
    ///
    /// # Errors
    /// [`ControlError::Unknown`].
    fn endpoint(&self, port: &Self::Port, qp: QpId) -> Result<Endpoint, ControlError>;

    /// Returns the source of datagrams that the UD queue pair at `peer` sends, as
    /// [`Completion::source`] holds it.
    ///
    /// # Errors
    /// A malformed endpoint, or one of another transport.
    fn source(&self, peer: &Endpoint) -> Result<Source, ConnectError>;

    /// Connects an RC or UC queue pair to the peer's and moves it to [`QpState::ReadyToSend`]. Both
    /// sides connect; traffic may start when both have.
    ///
    /// # Errors
    /// A wrong state or transport, or a malformed endpoint.
    fn connect(&self, port: &mut Self::Port, qp: QpId, peer: &Endpoint)
    -> Result<(), ConnectError>;

    /// Makes an address handle, the destination of UD SENDs from `qp` to `peer`.
    ///
    /// # Errors
    /// A wrong transport, a limit, or a malformed endpoint.
    fn create_address(
        &self,
        port: &mut Self::Port,
        qp: QpId,
        peer: &Endpoint,
    ) -> Result<AddressHandle, ConnectError>;

    /// Admits datagrams from `peer` to `qp`, on a provider that takes them from known peers only,
    /// and returns the handle by which [`Device::destroy_address`] revokes it. `None`: the provider
    /// takes datagrams from any peer. An address handle admits its peer too.
    ///
    /// # Errors
    /// Those of [`Device::create_address`].
    fn accept_from(
        &self,
        port: &mut Self::Port,
        qp: QpId,
        peer: &Endpoint,
    ) -> Result<Option<AddressHandle>, ConnectError> {
        let _ = (port, qp, peer);
        Ok(None)
    }

    /// Destroys an address handle.
    ///
    /// # Errors
    /// [`ControlError::Unknown`].
    fn destroy_address(
        &self,
        port: &mut Self::Port,
        address: AddressHandle,
    ) -> Result<(), ControlError>;

    /// Moves a queue pair to [`QpState::Error`]; outstanding work completes as [`Status::Flushed`].
    ///
    /// # Errors
    /// [`ControlError::Unknown`], or the driver's refusal; the queue pair sends nothing more then,
    /// either.
    fn fail_qp(&self, port: &mut Self::Port, qp: QpId) -> Result<(), ControlError>;

    /// Returns the state of a queue pair.
    ///
    /// # Errors
    /// [`ControlError::Unknown`].
    fn qp_state(&self, port: &Self::Port, qp: QpId) -> Result<QpState, ControlError>;

    /// Makes a domain for one peer, with the room that the peer needs. The peer joins it by its
    /// ticket ([`Device::export_pd`]).
    ///
    /// # Errors
    /// Those of [`Device::create_pd`].
    fn create_pd_for(&self, port: &mut Self::Port, room: &PdRoom) -> Result<PdId, ControlError> {
        let _ = room;
        self.create_pd(port)
    }

    /// Returns the bytes of memory that a domain of this room occupies, the regions that the peer
    /// may WRITE included.
    fn pd_bytes(room: &PdRoom) -> usize
    where
        Self: Sized,
    {
        room.writable
    }

    /// Returns the ticket by which the peer joins `pd`; empty where there is nothing to hand over.
    ///
    /// # Errors
    /// [`ControlError::Unknown`]; [`ControlError::InUse`] where a domain has one ticket only, and
    /// it was taken; the operating system's refusal.
    fn export_pd(&self, port: &mut Self::Port, pd: PdId) -> Result<PdTicket, ControlError> {
        let _ = (port, pd);
        Ok(PdTicket::default())
    }

    /// Makes this side of the domain that a peer has exported; a domain of its own where there was
    /// nothing to hand over. The ticket is not trusted.
    ///
    /// # Errors
    /// A malformed ticket, a limit, or an error of the operating system.
    fn import_pd(&self, port: &mut Self::Port, ticket: PdTicket) -> Result<PdId, ImportError> {
        let _ = ticket;
        Ok(self.create_pd(port)?)
    }

    /// Destroys `pd`, as [`Device::destroy_pd`] does, and calls `done` when the operating system
    /// has its memory again. A peer can delay that, so a provider that can does it on another
    /// thread.
    fn release_pd(&self, port: &mut Self::Port, pd: PdId, done: Released) {
        done(self.destroy_pd(port, pd));
    }

    /// Returns whether `endpoints` belong to the peer of `pd`, whose host is `host` (`None`: this
    /// host), so that it directs no replies to others. Providers decide by the host, or by the
    /// domain. To be called before the first use of an endpoint that came from an untrusted peer.
    fn is_at(
        &self,
        port: &Self::Port,
        pd: PdId,
        endpoints: &[&Endpoint],
        host: Option<IpAddr>,
    ) -> bool;

    /// Processes the device's asynchronous events, if it has any; otherwise that is done every so
    /// often in [`Port::progress`].
    fn check(&self, port: &mut Self::Port) {
        let _ = port;
    }

    /// Returns the health of a port. Cheap enough for every pass of a poll loop.
    fn health(&self, port: &Self::Port) -> PortHealth {
        let _ = port;
        PortHealth::default()
    }
}

/// The data half of a provider: owned by one thread; never blocks, allocates, locks or reads a
/// clock.
#[cfg(feature = "std")]
pub trait Port {
    /// Posts `batch` to the send queue of `qp`, in order, with one doorbell.
    ///
    /// # Errors
    /// [`PostError`] names the cause; nothing of the batch was posted. A failure after posting
    /// arrives as a [`Completion`], even of an unsignaled work request.
    fn post_send(&mut self, qp: QpId, batch: &[SendWr<'_>]) -> Result<(), PostError>;

    /// Posts receive buffers to `qp`.
    ///
    /// # Errors
    /// [`PostError`], as above; nothing of the batch was posted.
    fn post_recv(&mut self, qp: QpId, batch: &[RecvWr]) -> Result<(), PostError>;

    /// Moves completions from `cq` to the front of `out`; returns how many.
    fn poll(&mut self, cq: CqId, out: &mut [Completion]) -> usize;

    /// Watches a queue pair: from now on [`Port::written`] reports the WRITEs on it that change a byte of
    /// `range`, under `token`. Watched anew, it drops what it had to report. Returns `false` if the id names
    /// no queue pair, or the provider lacks [`Capabilities::reports_writes`].
    fn watch_writes(&mut self, qp: QpId, range: Local, token: u64) -> bool {
        let _ = (qp, range, token);
        false
    }

    /// Moves reports to the front of `out`; returns how many. A queue pair has one report at a time. The
    /// whole of a reported WRITE is in memory; one that is in memory is reported when [`Port::progress`] or
    /// [`Port::arm`] has returned. What a destroyed queue pair had to report is dropped.
    fn written(&mut self, out: &mut [WriteReport]) -> usize {
        let _ = out;
        0
    }

    /// Drives a provider that has no hardware: moves packets, runs timers.
    fn progress(&mut self, now: Duration) -> Progress;

    /// Sends now what was posted, and does nothing else. Providers that send when posting, or in
    /// [`Port::progress`] alone, do nothing. The timers of what is sent start at `now`.
    fn flush(&mut self, now: Duration) {
        let _ = now;
    }

    /// Arms a wakeup: [`Port::wait_fd`] becomes readable at the next completion on `cq` and, with
    /// [`Capabilities::wakes_on_write`], at the next inbound WRITE to any region of this port.
    /// After arming, the caller polls once more, then sleeps: work that arrived before the arming
    /// causes no wakeup. One arming yields one wakeup. Reports of WRITEs count as completions.
    fn arm(&mut self, cq: CqId) -> Armed;

    /// Cancels an arming and drains the wakeup descriptor, after sleeping or instead of it.
    fn disarm(&mut self, cq: CqId);

    /// Returns the descriptor to sleep on; `None` where the provider can only be polled.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Returns the memory of a region of this port, or `None` for an id that names no region.
    /// Clones are cheap; keep one rather than call this in a loop.
    fn region(&self, region: RegionId) -> Option<&Span>;

    /// Returns the drops at this port since it was opened, as `(reason, count)`. For statistics,
    /// not for the poll loop: it allocates.
    fn drops(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Returns counters of the repairs on this port's connections since it was opened, such as
    /// retransmissions and timeouts, as `(name, count)`. For statistics, as [`Port::drops`].
    fn connection_counts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}
