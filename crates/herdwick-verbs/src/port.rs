//! One thread's device context: its objects, its state, and the descriptor that it sleeps on.

use std::{
    fmt, io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use herdwick_fabric::{PdId, PortLimits, Slab};
use rustix::event::epoll;

use crate::{
    complete::{TAKE, WcBuffer},
    faults::Faults,
    objects::{Address, PortCq, PortQp, Region},
    place::Place,
    raw::{Channel, Context, Pd},
    send::{self, Chain},
    state::DeviceState,
    sys,
};

/// Calls of `progress` between two checks for asynchronous events; each check is a system call.
pub(crate) const CHECK_EVERY: u32 = 4096;

/// The state of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Usable.
    Well,
    /// The link is down; it may recover.
    PortDown,
    /// The port's address or partition has changed: its queue pairs are unreachable.
    Moved,
    /// A completion queue failed.
    QueueLost,
    /// The device is lost, with all its queue pairs.
    DeviceLost,
}

/// One thread's end of an RNIC: a device context of its own.
pub struct VerbsPort {
    // The order of the fields is the order of their destruction: each object precedes those that it
    // refers to.
    pub(crate) addresses: Slab<Address>,
    pub(crate) qps: Slab<PortQp>,
    pub(crate) regions: Slab<Region>,
    pub(crate) cqs: Slab<PortCq>,
    pub(crate) pds: Slab<Arc<Pd>>,
    pub(crate) channel: Arc<Channel>,
    pub(crate) context: Arc<Context>,
    pub(crate) state: Arc<DeviceState>,
    pub(crate) place: Place,
    pub(crate) faults: Faults,
    pub(crate) health: Health,
    pub(crate) scratch: WcBuffer,
    pub(crate) sends: Chain<sys::SendWr>,
    pub(crate) recvs: Chain<sys::RecvWr>,
    pub(crate) wakeup: WakeupFds,
    pub(crate) until_check: u32,
}

impl VerbsPort {
    pub(crate) fn new(
        context: Arc<Context>,
        state: Arc<DeviceState>,
        place: Place,
        limits: &PortLimits,
    ) -> io::Result<Self> {
        // One for all completion queues: a port sleeps on one descriptor.
        let channel = Channel::new(&context)?;
        Ok(Self {
            addresses: Slab::new(limits.addresses),
            qps: Slab::new(limits.qps),
            regions: Slab::new(limits.regions),
            cqs: Slab::new(limits.cqs),
            pds: Slab::new(limits.pds),
            wakeup: WakeupFds::new(&channel, &context)?,
            channel,
            context,
            state,
            place,
            faults: Faults::new(),
            health: Health::Well,
            scratch: Box::new([sys::Wc::default(); TAKE]),
            sends: Chain::new(send::blank_send),
            recvs: Chain::new(send::blank_recv),
            until_check: CHECK_EVERY,
        })
    }

    /// Returns the state of the device and its link, as of the last events processed.
    #[must_use]
    pub fn health(&self) -> Health {
        self.health
    }

    /// Returns the number of failures that ended queue pairs; one failure may count twice.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.faults.of_queue_pairs()
    }

    /// Returns the verbs object of protection domain `pd`.
    pub(crate) fn pd(&self, pd: PdId) -> Option<&Arc<Pd>> {
        self.pds.get(pd.0)
    }
}

impl fmt::Debug for VerbsPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsPort")
            .field("place", &self.place)
            .field("health", &self.health)
            .finish_non_exhaustive()
    }
}

/// The descriptor that a port sleeps on: an epoll instance of the asynchronous event descriptor
/// and, while the port is armed, the completion channel.
pub(crate) struct WakeupFds {
    pub(crate) epoll: OwnedFd,
    channel: Arc<Channel>,
    hears: bool,
}

impl WakeupFds {
    fn new(channel: &Arc<Channel>, context: &Context) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64;
        epoll::add(&epoll, context.async_fd(), data(0), epoll::EventFlags::IN)?;
        // Without IN for now: while the port polls, completion events must not make the descriptor
        // readable.
        epoll::add(&epoll, channel.as_fd(), data(1), epoll::EventFlags::empty())?;
        Ok(Self {
            epoll,
            channel: Arc::clone(channel),
            hears: false,
        })
    }

    /// Sets whether completion events wake the port.
    pub(crate) fn hear(&mut self, hears: bool) -> io::Result<()> {
        // A system call only if something changes.
        if self.hears != hears {
            let flags = if hears {
                epoll::EventFlags::IN
            } else {
                epoll::EventFlags::empty()
            };
            let data = epoll::EventData::new_u64(1);
            epoll::modify(&self.epoll, self.channel.as_fd(), data, flags)?;
            self.hears = hears;
        }
        Ok(())
    }
}
