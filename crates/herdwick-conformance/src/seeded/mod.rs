//! A fabric inside one process, under virtual time, whose every accident is drawn from a seed.
//!
//! It is a provider like any other: [`SeededDevice`] and [`SeededPort`] implement the fabric's
//! traits, regions are [`herdwick_mem::Span`]s, and a system cannot tell. One test thread drives
//! all ports; nothing moves but in [`Port::progress`](herdwick_fabric::Port::progress) of any
//! port, [`SeededNetwork::run`] or [`SeededNetwork::step`]. The same seed and the same calls give
//! the same run, event by event ([`SeededNetwork::trace`]).
//!
//! What it does with messages is [`Faults`]; what it promises is a
//! [`Capabilities`] value that the test may change, such as
//! `ordered_write: false`.
//!
//! - **RC** retries underneath: exactly once, in order. A peer that does not answer for
//!   [`RETRY_DEADLINE`] ends the queue pair with `RetryExceeded`; one that posts no RECV for as
//!   long, with `ReceiverNotReady`.
//! - **UC** and **UD** lose, duplicate and reorder as told, silently.
//! - It is as strict as hardware about queues: a send slot is free again when the completion of
//!   its work request, or of a later one, has been *polled*. Who never asks for a completion runs
//!   into [`PostError::Full`](herdwick_fabric::PostError::Full) after `send_depth` requests.
//! - A payload in a region is fetched at transmission, not at posting.

mod device;
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

/// How long RC tries to reach a silent peer, in virtual time.
pub const RETRY_DEADLINE: Duration = Duration::from_millis(20);

/// What befalls messages. All zero: nothing, and what is posted arrives at the next progress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Packets lost, of a thousand.
    pub drop_per_mille: u16,
    /// Packets that arrive twice, of a thousand.
    pub duplicate_per_mille: u16,
    /// Packets that those behind them may overtake, of a thousand.
    pub reorder_per_mille: u16,
    /// By how much longer such a packet travels, at most.
    pub reorder_window: Duration,
    /// Shortest travel time.
    pub delay_min: Duration,
    /// Longest travel time.
    pub delay_max: Duration,
    /// Longest pause between two words of one WRITE becoming visible; zero: all at one step.
    /// Words appear in any order; the last goes last if `ordered_write` is promised.
    pub tear: Duration,
}

/// Ports that reach each other, and the accidents between them. Clones name the same network.
#[derive(Clone)]
pub struct SeededNetwork {
    world: Arc<Mutex<World>>,
}

impl SeededNetwork {
    /// A network without faults that promises [`SeededNetwork::capabilities`].
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with_capabilities(seed, Self::capabilities())
    }

    /// A network that promises, and has, what `capabilities` says.
    #[must_use]
    pub fn with_capabilities(seed: u64, capabilities: Capabilities) -> Self {
        let world = Arc::new(Mutex::new(World::new(seed, capabilities)));
        Self { world }
    }

    /// Everything in Table 1, coherent atomics, ordered WRITEs, inline receive, waking; not
    /// `lossless`, for faults may come.
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
            trains: false,
            senders: 1,
            postlist_max: 1024,
            scoped_regions: true,
            counted_drops: true,
            virtual_addresses: false,
        }
    }

    /// The control half.
    #[must_use]
    pub fn device(&self) -> SeededDevice {
        SeededDevice::new(self.clone())
    }

    /// From now on, `faults` befall messages.
    pub fn set_faults(&self, faults: Faults) {
        self.world().faults = faults;
    }

    /// Lets everything happen that is due up to `now`; says whether anything did.
    pub fn run(&self, now: Duration) -> bool {
        self.world().run(now)
    }

    /// Lets the next event happen, moving time to it; `false` when there is none.
    pub fn step(&self) -> bool {
        self.world().step()
    }

    /// The virtual time.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.world().now
    }

    /// How many events have happened.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.world().steps
    }

    /// A hash over every event so far: time, kind, parties, payload.
    #[must_use]
    pub fn trace(&self) -> u64 {
        self.world().trace
    }

    /// Packets that the network lost: by chance, by partition, or to a stopped party.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.world().lost
    }

    /// Kills a party, as if its power went: nothing it sent arrives any more, nothing reaches it,
    /// and a WRITE of its own that is half visible stays so. Its port still answers calls.
    pub fn stop(&self, party: PartyId) {
        self.world().stop(party);
    }

    /// Stops `party` when `steps` more events have happened: run a test for each count, and it
    /// has died at every step.
    pub fn stop_after(&self, party: PartyId, steps: u64) {
        self.world().stop_after(party, steps);
    }

    /// Loses everything between `a` and `b`, what is under way included.
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
