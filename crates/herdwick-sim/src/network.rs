//! The seeded network as a test holds it: faults, time, stopped parties and partitions.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use herdwick_fabric::{Atomics, Capabilities, INLINE_RECEIVE};

use super::{
    faults::{FaultCounts, Faults},
    host::Host,
    party::PartyId,
    profile::Profile,
    world::World,
};

/// Queue pairs that a thread spreads its sends over, at most (ATC'16: 2 to 4 gain).
const SENDERS_MAX: usize = 4;

/// A host of a [`SeededNetwork`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId(pub(super) usize);

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

    /// Makes a network without faults whose hosts are to be made by [`SeededNetwork::host`]; it
    /// promises what RNICs of `profile` do.
    #[must_use]
    pub fn of(seed: u64, profile: &Profile) -> Self {
        Self::with_capabilities(seed, Self::promised_by(profile))
    }

    /// What RNICs of `profile` promise.
    #[must_use]
    pub fn promised_by(profile: &Profile) -> Capabilities {
        Capabilities {
            name: "sim",
            atomics: Atomics::Device,
            wakes_on_write: false,
            inline_bytes_max: profile.rnic.inline_bytes_max,
            inline_receive_bytes: 0,
            // The GRH, which RNICs store in front of a datagram.
            datagram_header_bytes: 40,
            datagram_bytes_max: usize::try_from(profile.link.mtu).unwrap_or(usize::MAX),
            postlist_max: profile.rnic.postlist_max,
            rd_atomic_max: profile.rnic.rd_atomic_max,
            senders: profile.rnic.units.clamp(1, SENDERS_MAX),
            ..Self::capabilities()
        }
    }

    /// Adds a host with an RNIC: what its ports post, poll and receive takes time.
    #[must_use]
    pub fn host(&self, profile: &Profile) -> HostId {
        let mut world = self.world();
        world.hosts.push(Host::new(profile.clone()));
        HostId(world.hosts.len() - 1)
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
            reports_writes: false,
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
            windows: true,
            virtual_addresses: false,
        }
    }

    /// Applies `faults` to messages from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.world().faults = faults;
    }

    /// Has every core done what it was charged for: setting up a run takes no time of it.
    pub fn rest_cores(&self) {
        self.world().rest_cores();
    }

    /// Has the core of `party` take so many times as long for everything; 1: as its profile says.
    pub fn slow(&self, party: PartyId, times: u32) {
        self.world().parties[party.0].slowness = times.max(1);
    }

    /// Lets no port be armed: for a test with virtual time, which does not pass while the test sleeps.
    pub fn set_polled_only(&self) {
        self.world().polled_only = true;
    }

    /// Has the RNICs count all queue pairs to which a party sends as one: of clients that are connected once, to
    /// memory that all processes of a server share, though here each process has its own.
    pub fn set_one_context(&self) {
        self.world().one_context = true;
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

    /// Number of requests that were executed at their receivers, refused ones included.
    #[must_use]
    pub fn executed(&self) -> u64 {
        self.world().executed
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
        self.cut(a, b);
        self.cut(b, a);
    }

    /// Loses every packet from one party to another, including those under way, and none back.
    pub fn cut(&self, from: PartyId, to: PartyId) {
        self.world().cut(from, to);
    }

    /// Takes a party's device away, as a hot unplug or a fatal event does: its queue pairs fail, its
    /// [`Device::health`](herdwick_fabric::Device::health) returns that it is lost, and no packet arrives
    /// or leaves any more.
    pub fn lose_device(&self, party: PartyId) {
        self.world().lose_device(party);
    }

    /// Overruns one of a party's completion queues, number `which` modulo how many it has: the
    /// completions in it are lost, and the queue pairs that complete there fail without one.
    pub fn overrun(&self, party: PartyId, which: u64) {
        self.world().overrun(party, which);
    }

    /// How often each fault had an effect.
    #[must_use]
    pub fn fault_counts(&self) -> FaultCounts {
        self.world().counts
    }

    /// Ends a partition or cut.
    pub fn heal(&self, a: PartyId, b: PartyId) {
        self.world().heal(a, b);
    }

    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        // A panicking test thread must not hide its message behind a second panic here.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
