//! The verbs, as vocabulary and traits: what every provider speaks and every system is written to.
//!
//! Words and rules are those of the InfiniBand verbs, as summarised in section 2.2 and Table 1 of
//! the HERD paper: RC carries SEND, WRITE, READ and atomics; UC carries SEND and WRITE; UD carries
//! SEND. What a provider lacks stands in its [`Capabilities`], as data.
//!
//! Control ([`Device`]) may block, allocate and fail richly. Data ([`Port`]) never blocks,
//! allocates, locks or reads a clock.
//!
//! **Publication.** A WRITE makes its last aligned 8 bytes visible last. Whoever loads that word
//! with `herdwick_mem`'s `Words::load_acquire` and finds the new value, finds the rest of the WRITE
//! too. A provider that cannot promise it says so ([`Capabilities::ordered_write`]).
//!
//! Without the feature `std` this crate is the vocabulary alone, for `no_std` engines.
#![cfg_attr(not(feature = "std"), no_std)]
#![forbid(unsafe_code)]

mod capabilities;
mod completion;
mod endpoint;
mod error;
mod id;
#[cfg(feature = "std")]
mod slab;
mod spec;
mod work;

pub use capabilities::{Atomics, Capabilities};
pub use completion::{Completion, INLINE_RECEIVE, InlineData, Opcode, Source, Status};
pub use endpoint::{ENDPOINT_BYTES_MAX, Endpoint, EndpointTooLong};
pub use error::{ConnectError, ControlError, OpenError, PostError};
pub use id::{AddressHandle, CqId, PdId, Psn, QpId, Qpn, RegionId, Rkey};
#[cfg(feature = "std")]
pub use slab::{SLOTS_MAX, Slab};
pub use spec::{Access, CqSpec, PortLimits, QpSpec, QpState, RegionSpec, Scope, Transport};
pub use work::{Local, Payload, RecvWr, Remote, SendOp, SendWr};

use core::time::Duration;
#[cfg(feature = "std")]
use {herdwick_mem::Span, std::os::fd::BorrowedFd};

/// The control half of a provider: set-up and tear-down. May block, allocate, and fail richly.
///
/// Objects belong to the port they were made on and are named by small ids, valid on that port
/// only. An id that names nothing is [`ControlError::Unknown`] in every call, and so is one that was
/// destroyed before. What lives in a domain goes with it; a completion queue stays as long as queue
/// pairs use it ([`ControlError::InUse`]).
#[cfg(feature = "std")]
pub trait Device {
    /// The data half; one per thread.
    type Port: Port + Send;
    /// What this provider can and cannot do.
    fn capabilities(&self) -> &Capabilities;

    /// Opens a port for one thread.
    ///
    /// # Errors
    /// Limits beyond the device's, or the operating system's refusal.
    fn open_port(&self, limits: &PortLimits) -> Result<Self::Port, OpenError>;

    /// Makes a protection domain: regions, queue pairs and address handles meet only within one.
    ///
    /// # Errors
    /// Limits, or the operating system's refusal; [`ControlError::Unsupported`] of a device that only
    /// joins the domains of others.
    fn create_pd(&self, port: &mut Self::Port) -> Result<PdId, ControlError>;

    /// Destroys a domain and everything left in it; its memory is no longer reachable by a peer.
    ///
    /// # Errors
    /// [`ControlError::Unknown`].
    fn destroy_pd(&self, port: &mut Self::Port, pd: PdId) -> Result<(), ControlError>;

    /// Allocates and registers zeroed memory that the provider can reach.
    ///
    /// # Errors
    /// Limits, rights the provider lacks, or no memory.
    fn allocate_region(
        &self,
        port: &mut Self::Port,
        pd: PdId,
        spec: &RegionSpec,
    ) -> Result<RegionId, ControlError>;

    /// Deregisters a region. From the return on, its rkey opens nothing.
    ///
    /// # Errors
    /// [`ControlError::Unknown`].
    fn free_region(&self, port: &mut Self::Port, region: RegionId) -> Result<(), ControlError>;

    /// Where a peer finds `region`: what it puts into [`Remote`] to reach its first byte.
    ///
    /// # Errors
    /// [`ControlError::Unknown`].
    fn remote(&self, port: &Self::Port, region: RegionId) -> Result<Remote, ControlError>;

    /// Makes a completion queue of `spec.depth` entries.
    ///
    /// # Errors
    /// Limits.
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
    /// Limits, or a transport the provider lacks.
    fn create_qp(&self, port: &mut Self::Port, spec: &QpSpec) -> Result<QpId, ControlError>;

    /// Destroys a queue pair; its outstanding work is forgotten without completions.
    ///
    /// # Errors
    /// [`ControlError::Unknown`].
    fn destroy_qp(&self, port: &mut Self::Port, qp: QpId) -> Result<(), ControlError>;

    /// What the peer needs to connect to, or address, `qp`.
    ///
    /// # Errors
    /// [`ControlError::Unknown`].
    fn endpoint(&self, port: &Self::Port, qp: QpId) -> Result<Endpoint, ControlError>;

    /// Whom a datagram names that the UD queue pair at `peer` sent: what
    /// [`Completion::source`] then holds.
    ///
    /// # Errors
    /// An endpoint that makes no sense, or of another transport.
    fn source(&self, peer: &Endpoint) -> Result<Source, ConnectError>;

    /// Connects an RC or UC queue pair with the peer's: [`QpState::ReadyToSend`] at return. Both
    /// sides connect; traffic may start when both have.
    ///
    /// # Errors
    /// A wrong state or transport, or an endpoint that makes no sense.
    fn connect(&self, port: &mut Self::Port, qp: QpId, peer: &Endpoint)
    -> Result<(), ConnectError>;

    /// Makes an address handle: where UD SENDs of `qp` go when they go to `peer`.
    ///
    /// # Errors
    /// A wrong transport, limits, or an endpoint that makes no sense.
    fn create_address(
        &self,
        port: &mut Self::Port,
        qp: QpId,
        peer: &Endpoint,
    ) -> Result<AddressHandle, ConnectError>;

    /// Lets datagrams of `peer` in to `qp`, on a provider that takes them from known peers alone; the
    /// handle to forget it by. `None`: it takes them from anybody. An address handle does as much.
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

    /// Forgets an address handle.
    ///
    /// # Errors
    /// [`ControlError::Unknown`].
    fn destroy_address(
        &self,
        port: &mut Self::Port,
        address: AddressHandle,
    ) -> Result<(), ControlError>;

    /// Moves a queue pair to [`QpState::Error`]; outstanding work completes as
    /// [`Status::Flushed`].
    ///
    /// # Errors
    /// [`ControlError::Unknown`], or the driver's refusal; the queue pair sends nothing more then,
    /// either.
    fn fail_qp(&self, port: &mut Self::Port, qp: QpId) -> Result<(), ControlError>;

    /// The state of a queue pair.
    ///
    /// # Errors
    /// [`ControlError::Unknown`].
    fn qp_state(&self, port: &Self::Port, qp: QpId) -> Result<QpState, ControlError>;
}

/// The data half of a provider: owned by one thread, never blocks, allocates, locks or reads a
/// clock.
#[cfg(feature = "std")]
pub trait Port {
    /// Posts `batch` to the send queue of `qp`, in order, with one doorbell.
    ///
    /// # Errors
    /// Nothing was posted: [`PostError`] says whose fault it is. Whatever goes wrong after
    /// posting arrives as a [`Completion`], errors even when unsignaled.
    fn post_send(&mut self, qp: QpId, batch: &[SendWr<'_>]) -> Result<(), PostError>;

    /// Posts receive buffers to `qp`.
    ///
    /// # Errors
    /// Nothing was posted.
    fn post_recv(&mut self, qp: QpId, batch: &[RecvWr]) -> Result<(), PostError>;

    /// Takes completions from `cq` into the front of `out`; returns how many.
    fn poll(&mut self, cq: CqId, out: &mut [Completion]) -> usize;

    /// Lets a provider without hardware of its own do its work: move packets, run timers.
    fn progress(&mut self, now: Duration) -> Progress;

    /// Has what was posted leave now, and no more, where [`Port::progress`] would do it. The timers
    /// of what leaves run from `now`.
    fn flush(&mut self, now: Duration) {
        let _ = now;
    }

    /// Asks to be woken: [`Port::wait_fd`] becomes readable at the next completion on `cq`, and,
    /// where [`Capabilities::wakes_on_write`] says so, at the next inbound WRITE to any region of
    /// this port. The caller looks once more for work after arming, then sleeps. One arming, one
    /// wake.
    fn arm(&mut self, cq: CqId) -> Armed;

    /// Takes back an arming and drains the wake descriptor, after sleeping or instead of it.
    fn disarm(&mut self, cq: CqId);

    /// The descriptor to sleep on; `None` where the provider can only be polled.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;

    /// The memory of a region of this port, or `None` for an id that names none. Cheap to clone;
    /// hold the clone rather than asking again in a loop.
    fn region(&self, region: RegionId) -> Option<&Span>;

    /// What was dropped at this port since it was opened, by reason: `(reason, count)`. For
    /// statistics, not for the poll loop: it allocates.
    fn drops(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// What its connections met with and mended since it was opened, by name: repetitions,
    /// timeouts. As [`Port::drops`], for statistics.
    fn connection_counts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// What [`Port::progress`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Whether anything moved; a poll loop that sees `false` everywhere may rest.
    pub moved: bool,
    /// When to call again at the latest, even if nothing arrives.
    pub deadline: Option<Duration>,
}

/// The answer to [`Port::arm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// Armed: look once more, then sleep on [`Port::wait_fd`].
    Yes,
    /// Completions wait already; poll instead.
    Pending,
    /// The provider cannot wake; keep polling.
    Never,
}
