//! The data half of the provider `verbs`: posting, polling and wakeups of one thread's device
//! context.

use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use herdwick_fabric::{
    Armed, Completion, CqId, Opcode, PdId, Port, PortLimits, PostError, Progress, QpId, QpState,
    RecvWr, RegionId, SendWr, Slab, Status,
};
use herdwick_mem::Span;
use rustix::event::epoll;

use crate::{
    complete::{self, Check, Scratch, TAKE},
    device::DeviceState,
    events::{self, Fault, Faults},
    objects::{Address, PortCq, PortQp, Region},
    place::Place,
    raw::{Channel, Context, Pd},
    send::{self, Chain, Post},
    sys,
};

/// Calls of [`Port::progress`] between two checks for asynchronous events; each check is a system
/// call.
const CHECK_EVERY: u32 = 4096;

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
    pub(crate) scratch: Scratch,
    sends: Chain<sys::SendWr>,
    recvs: Chain<sys::RecvWr>,
    wakeup: WakeupFds,
    until_check: u32,
}

impl VerbsPort {
    pub(crate) fn new(
        context: Arc<Context>,
        state: Arc<DeviceState>,
        place: Place,
        limits: &PortLimits,
    ) -> io::Result<Self> {
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

    /// Processes the device's asynchronous events now; otherwise that is done every so often.
    pub fn check(&mut self) {
        events::take(self);
    }

    /// Returns the verbs object of protection domain `pd`.
    pub(crate) fn pd(&self, pd: PdId) -> Option<&Arc<Pd>> {
        self.pds.get(pd.0)
    }

    /// Handles a post of which the driver refused a part: fails the queue pair, and completes the
    /// refused requests as flushed.
    #[cold]
    fn refused(&mut self, id: QpId, rest: impl Iterator<Item = (u64, Opcode)>, cq: CqId) {
        self.faults.count(Fault::Post);
        if let Some(qp) = self.qps.get_mut(id.0) {
            qp.state = QpState::Error;
            let error = sys::QpAttr {
                qp_state: sys::IBV_QPS_ERR,
                ..sys::QpAttr::default()
            };
            // Ignored: a lost device refuses this too.
            let _ = qp.raw.modify(error, sys::IBV_QP_STATE);
        }
        if let Some(cq) = self.cqs.get_mut(cq.0) {
            cq.stash.extend(rest.map(|(wr_id, opcode)| Completion {
                wr_id,
                opcode,
                qp: id,
                status: Status::Flushed,
                ..Completion::BLANK
            }));
        }
    }

    fn settle(&mut self) {
        self.channel.drain();
        events::take(self);
    }
}

impl Port for VerbsPort {
    #[inline]
    fn post_send(&mut self, id: QpId, batch: &[SendWr<'_>]) -> Result<(), PostError> {
        let qp = self.qps.get_mut(id.0).ok_or(PostError::UnknownQp)?;
        if self.health != Health::Well {
            // Requests posted to a port that is down would be lost.
            return Err(PostError::State(QpState::Error));
        }
        let post = Post {
            regions: &self.regions,
            addresses: &self.addresses,
            bounds: self.state.bounds,
        };
        let taken = send::post(qp, &mut self.sends, &post, batch)?;
        if taken < batch.len() {
            let (cq, rest) = (qp.send_cq, batch[taken..].iter());
            self.refused(id, rest.map(|wr| (wr.wr_id, Opcode::Send)), cq);
        }
        Ok(())
    }

    #[inline]
    fn post_recv(&mut self, id: QpId, batch: &[RecvWr]) -> Result<(), PostError> {
        let qp = self.qps.get_mut(id.0).ok_or(PostError::UnknownQp)?;
        let taken = send::post_recv(qp, &mut self.recvs, &self.regions, batch)?;
        if taken < batch.len() {
            let (cq, rest) = (qp.recv_cq, batch[taken..].iter());
            self.refused(id, rest.map(|wr| (wr.wr_id, Opcode::Recv)), cq);
        }
        Ok(())
    }

    #[inline]
    fn poll(&mut self, id: CqId, out: &mut [Completion]) -> usize {
        let Some(cq) = self.cqs.get_mut(id.0) else {
            return 0;
        };
        match complete::poll(cq, &mut self.qps, &mut self.faults, &mut self.scratch, out) {
            Check::Found(count) => count,
            Check::Failed => {
                events::fail_queue(self, id.0);
                0
            }
        }
    }

    #[inline]
    fn progress(&mut self, _now: Duration) -> Progress {
        self.until_check -= 1;
        if self.until_check == 0 {
            self.until_check = CHECK_EVERY;
            events::take(self);
        }
        Progress::default()
    }

    fn arm(&mut self, id: CqId) -> Armed {
        self.settle();
        let Some(cq) = self.cqs.get_mut(id.0) else {
            return Armed::Never;
        };
        if cq.raw.announce_next().is_err() {
            return Armed::Never;
        }
        let (qps, faults) = (&mut self.qps, &mut self.faults);
        // Completions that arrived before the request cause no event, so they are polled here.
        if complete::put_aside(cq, qps, faults, &mut self.scratch, 1) {
            return Armed::Pending;
        }
        cq.armed = true;
        if self.wakeup.hear(true).is_err() {
            return Armed::Never;
        }
        Armed::Yes
    }

    fn disarm(&mut self, id: CqId) {
        if let Some(cq) = self.cqs.get_mut(id.0) {
            cq.armed = false;
        }
        if !self.cqs.iter().any(|(_, cq)| cq.armed) {
            // An event requested of a queue cannot be cancelled, so its descriptor is ignored.
            let _ = self.wakeup.hear(false);
        }
        self.settle();
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wakeup.epoll.as_fd())
    }

    fn region(&self, region: RegionId) -> Option<&Span> {
        self.regions.get(region.0).map(|region| &region.span)
    }

    fn drops(&self) -> Vec<(&'static str, u64)> {
        self.faults.iter().collect()
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
struct WakeupFds {
    epoll: OwnedFd,
    channel: Arc<Channel>,
    hears: bool,
}

impl WakeupFds {
    fn new(channel: &Arc<Channel>, context: &Context) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64;
        epoll::add(&epoll, context.async_fd(), data(0), epoll::EventFlags::IN)?;
        epoll::add(&epoll, channel.as_fd(), data(1), epoll::EventFlags::empty())?;
        Ok(Self {
            epoll,
            channel: Arc::clone(channel),
            hears: false,
        })
    }

    /// Sets whether completion events wake the port.
    fn hear(&mut self, hears: bool) -> io::Result<()> {
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
