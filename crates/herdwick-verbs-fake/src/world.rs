//! The state of the fake devices: all open objects, by number or by address.

use std::{
    collections::{BTreeMap, VecDeque},
    ffi::c_int,
    sync::{Mutex, MutexGuard, PoisonError},
    thread::ThreadId,
};

use herdwick_verbs::sys;

static WORLD: Mutex<OpenObjects> = Mutex::new(OpenObjects {
    // 0 and 1 are management queue pairs.
    next: 0x11,
    unplugged: false,
    contexts: BTreeMap::new(),
    channels: BTreeMap::new(),
    cqs: BTreeMap::new(),
    mrs: BTreeMap::new(),
    qps: BTreeMap::new(),
});

/// Locks the state for one call.
pub(crate) fn lock() -> MutexGuard<'static, OpenObjects> {
    // A panic of one test must not fail the others.
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All open objects; those of the C interface by their address.
pub(crate) struct OpenObjects {
    next: u32,
    /// Whether the loopback's link is down.
    pub(crate) unplugged: bool,
    pub(crate) contexts: BTreeMap<usize, Context>,
    pub(crate) channels: BTreeMap<usize, Channel>,
    pub(crate) cqs: BTreeMap<usize, Cq>,
    pub(crate) mrs: BTreeMap<u32, Mr>,
    pub(crate) qps: BTreeMap<u32, Qp>,
}

pub(crate) struct Context {
    pub(crate) opener: ThreadId,
    pub(crate) async_fd: c_int,
    /// Kind of the event, and the address or number of its object.
    pub(crate) events: VecDeque<(c_int, usize)>,
}

pub(crate) struct Channel {
    pub(crate) fd: c_int,
    pub(crate) events: VecDeque<usize>,
}

pub(crate) struct Cq {
    pub(crate) context: usize,
    pub(crate) channel: usize,
    pub(crate) depth: usize,
    pub(crate) entries: VecDeque<sys::Wc>,
    pub(crate) announces: bool,
    pub(crate) failed: bool,
}

pub(crate) struct Mr {
    pub(crate) pd: usize,
    pub(crate) start: usize,
    pub(crate) len: u64,
    pub(crate) access: c_int,
}

/// A queued send.
pub(crate) struct Work {
    pub(crate) wr_id: u64,
    pub(crate) opcode: c_int,
    pub(crate) signaled: bool,
    pub(crate) imm: Option<u32>,
    pub(crate) payload: Vec<u8>,
    /// The destination of fetched data.
    pub(crate) into: sys::Sge,
    pub(crate) target: Target,
    /// Polls left before the send fails because the receiver has no RECV.
    pub(crate) timeout: u32,
}

#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    pub(crate) add_or_compare: u64,
    pub(crate) swap: u64,
    pub(crate) qpn: u32,
    pub(crate) qkey: u32,
}

pub(crate) struct Qp {
    pub(crate) address: usize,
    pub(crate) context: usize,
    pub(crate) pd: usize,
    pub(crate) kind: c_int,
    pub(crate) state: c_int,
    pub(crate) qkey: u32,
    pub(crate) peer: u32,
    pub(crate) cap: sys::QpCap,
    /// READs and atomics at a time: served, and requested.
    pub(crate) serves: u8,
    pub(crate) asks: u8,
    pub(crate) send_cq: usize,
    pub(crate) recv_cq: usize,
    pub(crate) sends: VecDeque<Work>,
    pub(crate) recvs: VecDeque<(u64, sys::Sge)>,
}

impl OpenObjects {
    /// Returns a number that was not used before.
    pub(crate) fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// Returns the address of a range of registered memory, if the key, the domain and the right
    /// permit it.
    pub(crate) fn reach(
        &self,
        pd: usize,
        key: u32,
        addr: u64,
        len: usize,
        right: c_int,
    ) -> Option<*mut u8> {
        let mr = self.mrs.get(&key)?;
        let end = addr.checked_add(len as u64)?;
        let allowed = mr.pd == pd && end <= mr.len && mr.access & right == right;
        // After the check of the range only: the pointer is returned if it is allowed.
        let at = mr.start + usize::try_from(addr).ok()?;
        allowed.then(|| std::ptr::with_exposed_provenance_mut(at))
    }

    /// Adds a completion to a queue; an overrun fails the queue.
    pub(crate) fn complete(&mut self, cq: usize, mut wc: sys::Wc) {
        if let Some(status) = crate::script::failure("status") {
            wc.status = status;
        }
        let Some(queue) = self.cqs.get_mut(&cq) else {
            return;
        };
        // An overrun is fatal for a queue, as in the verbs.
        if queue.entries.len() == queue.depth {
            queue.failed = true;
            let context = queue.context;
            return self.tell(context, sys::IBV_EVENT_CQ_ERR, cq);
        }
        queue.entries.push_back(wc);
        // One request, one event.
        if std::mem::take(&mut queue.announces)
            && let Some(channel) = self.channels.get_mut(&queue.channel)
        {
            channel.events.push_back(cq);
            ring(channel.fd);
        }
    }

    fn tell(&mut self, context: usize, kind: c_int, element: usize) {
        if let Some(context) = self.contexts.get_mut(&context) {
            context.events.push_back((kind, element));
            ring(context.async_fd);
        }
    }

    /// Raises an event on the contexts whose opener `of` selects.
    pub(crate) fn tell_all(&mut self, of: impl Fn(ThreadId) -> bool, kind: c_int) {
        let own = self
            .contexts
            .iter()
            .filter(|(_, context)| of(context.opener));
        for context in own.map(|(address, _)| *address).collect::<Vec<_>>() {
            let element = match kind {
                sys::IBV_EVENT_CQ_ERR => {
                    let mut cqs = self.cqs.iter_mut().filter(|(_, cq)| cq.context == context);
                    cqs.next_back().map(|(address, cq)| {
                        cq.failed = true;
                        *address
                    })
                }
                sys::IBV_EVENT_PORT_ERR | sys::IBV_EVENT_PORT_ACTIVE => Some(1),
                _ => {
                    let mut qps = self.qps.values().filter(|qp| qp.context == context);
                    Some(qps.next_back().map_or(0, |qp| qp.address))
                }
            };
            if let Some(element) = element {
                self.tell(context, kind, element);
            }
        }
    }
}

/// Increments a semaphore eventfd.
pub(crate) fn ring(fd: c_int) {
    let one = 1u64.to_le_bytes();
    // SAFETY: eight readable bytes, into an open descriptor.
    unsafe { libc::write(fd, one.as_ptr().cast(), one.len()) };
}

/// Decrements a semaphore eventfd; returns whether it was above zero.
pub(crate) fn take(fd: c_int) -> bool {
    let mut count = [0; 8];
    // SAFETY: eight writable bytes, from an open descriptor.
    unsafe { libc::read(fd, count.as_mut_ptr().cast(), count.len()) == 8 }
}
