//! A fabric inside one process, under virtual time, with every fault drawn from a seed.
//!
//! It is a provider like any other: [`SeededDevice`] and [`SeededPort`] implement the fabric's
//! traits, regions are [`herdwick_mem::Span`]s, and a system cannot tell the difference. One test
//! thread drives all ports; events happen only in
//! [`Port::progress`](herdwick_fabric::Port::progress) of any port, [`SeededNetwork::run`] or
//! [`SeededNetwork::step`]. The same seed and the same calls give the same run, event by event
//! ([`SeededNetwork::trace`]).
//!
//! [`Faults`] define what happens to messages; a [`Capabilities`] value, which the test may change,
//! defines what the fabric promises, such as `ordered_write: false`.
//!
//! - **RC** retransmits: exactly once, in order. A peer that does not answer for [`RETRY_DEADLINE`]
//!   ends the queue pair with `RetryExceeded`; one that posts no RECV for as long, with
//!   `ReceiverNotReady`.
//! - **UC** and **UD** lose, duplicate and reorder as configured, silently.
//! - It is as strict as hardware about queues: a send slot is free again once the completion of its
//!   work request, or of a later one, was *polled*. A sender that never requests a completion gets
//!   [`PostError::Full`](herdwick_fabric::PostError::Full) after `send_depth` requests.
//! - A payload in a region is read at transmission, not at posting.

mod device;
mod load;
mod party;
mod port;
mod receive;
mod rng;
mod send;
mod world;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use herdwick_fabric::{Atomics, Capabilities, INLINE_RECEIVE};

pub use device::SeededDevice;
pub use party::PartyId;
pub use port::SeededPort;

use world::World;

/// Virtual time for which RC tries to reach a silent peer.
pub const RETRY_DEADLINE: Duration = Duration::from_millis(20);

/// The faults of messages. All zero: none, and a posted message arrives at the next progress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Packets lost, per thousand.
    pub drop_per_mille: u16,
    /// Packets that arrive twice, per thousand.
    pub duplicate_per_mille: u16,
    /// Packets that later ones may overtake, per thousand.
    pub reorder_per_mille: u16,
    /// Longest additional travel time of such a packet.
    pub reorder_window: Duration,
    /// Shortest travel time.
    pub delay_min: Duration,
    /// Longest travel time.
    pub delay_max: Duration,
    /// Longest pause between two words of one WRITE becoming visible; zero: all in one step. Words
    /// appear in any order; the last one appears last if `ordered_write` is promised.
    pub tear: Duration,
    /// Longest pause between two words that one READ loads; zero: all in one step. Words are loaded in
    /// rising order if `ordered_read` is promised, else in any order.
    pub tear_reads: Duration,
}

/// Ports that reach each other, and the faults between them. Clones share the network.
#[derive(Clone)]
pub struct SeededNetwork {
    world: Arc<Mutex<World>>,
}

impl SeededNetwork {
    /// Makes a network without faults that promises [`SeededNetwork::capabilities`].
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with_capabilities(seed, Self::capabilities())
    }

    /// Makes a network that promises, and has, `capabilities`.
    #[must_use]
    pub fn with_capabilities(seed: u64, capabilities: Capabilities) -> Self {
        let world = Arc::new(Mutex::new(World::new(seed, capabilities)));
        Self { world }
    }

    /// Everything in Table 1, coherent atomics, ordered WRITEs, inline receive, waking; not
    /// `lossless`, because faults may be set.
    #[must_use]
    pub fn capabilities() -> Capabilities {
        Capabilities {
            name: "seeded",
            rc: true,
            uc: true,
            ud: true,
            read: true,
            atomics: Atomics::Coherent,
            ordered_write: true,
            wakes_on_write: true,
            lossless: false,
            acknowledged_sends: true,
            inline_bytes_max: 256,
            inline_receive_bytes: INLINE_RECEIVE,
            datagram_header_bytes: 0,
            datagram_bytes_max: 4096,
            message_bytes_max: 1 << 20,
            read_bytes_max: 1 << 24,
            rd_atomic_max: 1024,
            ordered_read: true,
            gso: false,
            senders: 1,
            postlist_max: 1024,
            scoped_regions: true,
            counted_drops: true,
            virtual_addresses: false,
        }
    }

    /// Returns the control half.
    #[must_use]
    pub fn device(&self) -> SeededDevice {
        SeededDevice::new(self.clone())
    }

    /// Applies `faults` to messages from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.world().faults = faults;
    }

    /// Executes all events that are due up to `now`. Returns whether there was any.
    pub fn run(&self, now: Duration) -> bool {
        self.world().run(now)
    }

    /// Executes the next event and advances time to it; `false` if there is none.
    pub fn step(&self) -> bool {
        self.world().step()
    }

    /// The virtual time.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.world().now
    }

    /// Number of events so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.world().steps
    }

    /// A hash over every event so far: time, kind, parties, payload.
    #[must_use]
    pub fn trace(&self) -> u64 {
        self.world().trace
    }

    /// Number of packets that the network lost: at random, by partition, or to a stopped party.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.world().lost
    }

    /// Kills a party, as by a power failure: nothing that it sent arrives any more, nothing reaches
    /// it, and a WRITE of its own that is half visible stays so. Its port still accepts calls.
    pub fn stop(&self, party: PartyId) {
        self.world().stop(party);
    }

    /// Stops `party` after `steps` more events: a test that runs once for each count kills it at
    /// every step.
    pub fn stop_after(&self, party: PartyId, steps: u64) {
        self.world().stop_after(party, steps);
    }

    /// Loses every packet between `a` and `b`, including those under way.
    pub fn partition(&self, a: PartyId, b: PartyId) {
        self.world().partition(a, b);
    }

    /// Ends a partition.
    pub fn heal(&self, a: PartyId, b: PartyId) {
        self.world().heal(a, b);
    }

    fn world(&self) -> MutexGuard<'_, World> {
        // A panicking test thread must not hide its message behind a second panic here.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
