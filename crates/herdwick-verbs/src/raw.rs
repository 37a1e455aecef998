//! Owned wrappers of libibverbs objects, destroyed on drop in a valid order: each keeps the objects
//! alive that it refers to.
//!
//! Circular import with `qp`: a queue pair keeps its domain and completion queues alive, and is made by the
//! domain.
#![expect(unsafe_code, reason = "calls a C library")]

mod qp;

use std::{
    ffi::{CStr, c_int},
    io,
    os::fd::{AsFd, BorrowedFd},
    ptr::{self, NonNull},
    sync::{Arc, Mutex, PoisonError},
};

use herdwick_mem::Span;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::{
    library::{Functions, Library, answer},
    sys,
};

pub(crate) use qp::{Ah, Qp, QpShape};

/// Marks types as usable from any thread.
macro_rules! any_thread {
    ($($ty:ty)*) => {
        $(
            // SAFETY: libibverbs may be called from any thread, with any object.
            unsafe impl Send for $ty {}
            // SAFETY: as above, and from several threads at once: the library locks where
            // necessary.
            unsafe impl Sync for $ty {}
        )*
    };
}

any_thread! { Context Pd Mr Channel Cq Qp Ah }

/// Returns the object that a constructor of libibverbs made, or errno if it returned null.
fn made<T>(object: *mut T) -> io::Result<NonNull<T>> {
    // Constructors of libibverbs return null and set errno.
    NonNull::new(object).ok_or_else(io::Error::last_os_error)
}

/// Returns the names and transports of the devices that libibverbs lists.
pub(crate) fn devices(library: &Library) -> io::Result<Vec<(String, c_int)>> {
    let list = List::new(library)?;
    let name = |device: &NonNull<sys::Device>| {
        // SAFETY: the list is alive until the end of this function and keeps its devices alive;
        // their names are C strings.
        unsafe {
            let name = CStr::from_ptr((&raw const (*device.as_ptr()).name).cast());
            let name = name.to_string_lossy().into_owned();
            (name, (*device.as_ptr()).transport_type)
        }
    };
    Ok(list.devices().iter().map(name).collect())
}

struct List<'a> {
    library: &'a Library,
    list: NonNull<*mut sys::Device>,
    count: usize,
}

impl<'a> List<'a> {
    fn new(library: &'a Library) -> io::Result<Self> {
        let mut count = 0;
        // SAFETY: `count` is valid for the write.
        let list = made(unsafe { (library.functions.ibv_get_device_list)(&raw mut count) })?;
        Ok(Self {
            library,
            list,
            count: usize::try_from(count).unwrap_or(0),
        })
    }

    fn devices(&self) -> Vec<NonNull<sys::Device>> {
        // SAFETY: libibverbs returned an array of this length.
        let all = unsafe { std::slice::from_raw_parts(self.list.as_ptr(), self.count) };
        all.iter().copied().filter_map(NonNull::new).collect()
    }
}

impl Drop for List<'_> {
    fn drop(&mut self) {
        // SAFETY: it came from ibv_get_device_list, and is freed once.
        unsafe { (self.library.functions.ibv_free_device_list)(self.list.as_ptr()) }
    }
}

/// An open device.
pub(crate) struct Context {
    library: Arc<Library>,
    raw: NonNull<sys::Context>,
    /// Memory that the device refused to deregister; it is unmapped once the device is closed.
    stuck: Mutex<Vec<Span>>,
}

impl Context {
    /// Opens the device `wanted`.
    pub(crate) fn open(library: &Arc<Library>, wanted: &str) -> io::Result<Arc<Self>> {
        let list = List::new(library)?;
        let is_it = |device: &&NonNull<sys::Device>| {
            // SAFETY: the list keeps its devices alive; names are C strings.
            let name = unsafe { CStr::from_ptr((&raw const (*device.as_ptr()).name).cast()) };
            name.to_bytes() == wanted.as_bytes()
        };
        let devices = list.devices();
        let device = devices.iter().find(is_it);
        let device = device.ok_or(io::ErrorKind::NotFound)?;
        // SAFETY: a device of a list that is still alive.
        let raw = made(unsafe { (library.functions.ibv_open_device)(device.as_ptr()) })?;
        let library = Arc::clone(library);
        let context = Arc::new(Self {
            library,
            raw,
            stuck: Mutex::default(),
        });
        // libibverbs reads events with a blocking read(2).
        never_block(context.async_fd())?;
        Ok(context)
    }

    fn functions(&self) -> &Functions {
        &self.library.functions
    }

    /// Returns a descriptor that is readable when an asynchronous event is queued.
    pub(crate) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the context's, and open as long as the context is.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).async_fd) }
    }

    pub(crate) fn query_device(&self) -> io::Result<sys::DeviceAttr> {
        // SAFETY: all zeros is a valid value of every field; libibverbs fills them in.
        unsafe {
            let mut found = std::mem::zeroed();
            answer((self.functions().ibv_query_device)(
                self.raw.as_ptr(),
                &raw mut found,
            ))?;
            Ok(found)
        }
    }

    pub(crate) fn query_port(&self, port: u8) -> io::Result<sys::PortAttr> {
        // SAFETY: as in `query_device`.
        unsafe {
            let mut found = std::mem::zeroed();
            answer((self.functions().ibv_query_port)(
                self.raw.as_ptr(),
                port,
                &raw mut found,
            ))?;
            Ok(found)
        }
    }

    /// Returns the P_Key at `index` of a port's table.
    pub(crate) fn pkey(&self, port: u8, index: u16) -> io::Result<u16> {
        let mut found = 0;
        let query = self.functions().ibv_query_pkey;
        // SAFETY: an open context; `found` is valid for the write.
        answer(unsafe { query(self.raw.as_ptr(), port, index.into(), &raw mut found) })?;
        // The verbs return P_Keys in network byte order.
        Ok(u16::from_be(found))
    }

    /// Returns the GIDs of all ports, at most `most`.
    pub(crate) fn gids(&self, most: usize) -> io::Result<Vec<sys::GidEntry>> {
        let none = sys::GidEntry {
            gid: [0; 16],
            gid_index: 0,
            port_num: 0,
            gid_type: 0,
            ndev_ifindex: 0,
        };
        let mut found = vec![none; most];
        // The size of the caller's entry, by which later versions of the library know its layout.
        let size = size_of::<sys::GidEntry>();
        // SAFETY: there is room for `most` entries of the size that is passed.
        let count = unsafe {
            (self.functions()._ibv_query_gid_table)(
                self.raw.as_ptr(),
                found.as_mut_ptr(),
                most,
                0,
                size,
            )
        };
        // The function returns the negated error number.
        let failed = |_| io::Error::from_raw_os_error(c_int::try_from(-count).unwrap_or(0));
        found.truncate(usize::try_from(count).map_err(failed)?);
        Ok(found)
    }

    /// Returns the next asynchronous event, already acknowledged; `None` when none is queued.
    pub(crate) fn next_event(&self) -> Option<Event> {
        let mut event = sys::AsyncEvent {
            element: sys::Element { port_num: 0 },
            event_type: 0,
        };
        // SAFETY: the descriptor is non-blocking; the event is valid for the write, and is
        // acknowledged once.
        unsafe {
            if (self.functions().ibv_get_async_event)(self.raw.as_ptr(), &raw mut event) != 0 {
                return None;
            }
            // Before the acknowledgement: afterwards the object that the event names may be
            // destroyed.
            let found = Event::read(&event);
            (self.functions().ibv_ack_async_event)(&raw mut event);
            Some(found)
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: all objects made in it held it by an Arc, and are destroyed.
        let closed = answer(unsafe { (self.functions().ibv_close_device)(self.raw.as_ptr()) });
        if closed.is_err() {
            // The device may still write to the memory, so it must never be unmapped and reused.
            let stuck = self.stuck.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::take(stuck));
        }
    }
}

/// An asynchronous event. Objects are identified by their address, for comparison only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Cq(usize),
    Qp(usize),
    DeviceFatal,
    PortUp(c_int),
    PortDown(c_int),
    /// An address or a partition changed.
    Moved,
    Other,
}

impl Event {
    /// # Safety
    /// libibverbs wrote `event`.
    unsafe fn read(event: &sys::AsyncEvent) -> Self {
        let element = event.element;
        // SAFETY: the event type determines which member of the union is set, as in the header.
        unsafe {
            match event.event_type {
                sys::IBV_EVENT_CQ_ERR => Self::Cq(element.cq.addr()),
                sys::IBV_EVENT_QP_FATAL
                | sys::IBV_EVENT_QP_REQ_ERR
                | sys::IBV_EVENT_QP_ACCESS_ERR => Self::Qp(element.qp.addr()),
                sys::IBV_EVENT_DEVICE_FATAL => Self::DeviceFatal,
                sys::IBV_EVENT_PORT_ACTIVE => Self::PortUp(element.port_num),
                sys::IBV_EVENT_PORT_ERR => Self::PortDown(element.port_num),
                sys::IBV_EVENT_LID_CHANGE
                | sys::IBV_EVENT_PKEY_CHANGE
                | sys::IBV_EVENT_GID_CHANGE => Self::Moved,
                _ => Self::Other,
            }
        }
    }
}

/// A protection domain.
pub(crate) struct Pd {
    context: Arc<Context>,
    raw: NonNull<sys::Pd>,
}

impl Pd {
    pub(crate) fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: an open context.
        let raw = made(unsafe { (context.functions().ibv_alloc_pd)(context.raw.as_ptr()) })?;
        let context = Arc::clone(context);
        Ok(Arc::new(Self { context, raw }))
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: all objects made in it held it by an Arc, and are destroyed.
        unsafe { (self.context.functions().ibv_dealloc_pd)(self.raw.as_ptr()) };
    }
}

/// Registered memory, which peers and local work requests access by key.
pub(crate) struct Mr {
    pd: Arc<Pd>,
    raw: NonNull<sys::Mr>,
    memory: Option<Span>,
}

impl Mr {
    /// Registers `memory` with addresses from 0 on: a peer learns no virtual address.
    pub(crate) fn new(pd: &Arc<Pd>, memory: &Span, access: c_int) -> io::Result<Self> {
        let functions = pd.context.functions();
        let (start, len) = (memory.as_ptr().cast(), memory.len());
        // SAFETY: the memory stays mapped: this value holds the span until the device has
        // deregistered it. No code forms a reference into a span, so a device may write to it.
        let raw = unsafe { (functions.ibv_reg_mr_iova)(pd.raw.as_ptr(), start, len, 0, access) };
        Ok(Self {
            raw: made(raw)?,
            pd: Arc::clone(pd),
            memory: Some(memory.clone()),
        })
    }

    /// Returns the local and the remote key.
    pub(crate) fn keys(&self) -> (u32, u32) {
        // SAFETY: libibverbs wrote them when it made the object.
        unsafe { ((*self.raw.as_ptr()).lkey, (*self.raw.as_ptr()).rkey) }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        let functions = self.pd.context.functions();
        // SAFETY: made by ibv_reg_mr_iova, destroyed once.
        let gone = answer(unsafe { (functions.ibv_dereg_mr)(self.raw.as_ptr()) });
        if gone.is_err() {
            // The device may write to the memory until it is closed; an unplugged device refuses
            // all other calls.
            // Kept by the context, which outlives every region.
            let stuck = self.pd.context.stuck.lock();
            let mut stuck = stuck.unwrap_or_else(PoisonError::into_inner);
            stuck.extend(self.memory.take());
        }
    }
}

/// A channel for the completion events of queues.
pub(crate) struct Channel {
    context: Arc<Context>,
    raw: NonNull<sys::CompChannel>,
}

impl Channel {
    pub(crate) fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        let functions = context.functions();
        // SAFETY: an open context.
        let raw = made(unsafe { (functions.ibv_create_comp_channel)(context.raw.as_ptr()) })?;
        let context = Arc::clone(context);
        let channel = Arc::new(Self { context, raw });
        never_block(channel.as_fd())?;
        Ok(channel)
    }

    /// Reads and acknowledges all queued completion events.
    pub(crate) fn drain(&self) {
        let functions = self.context.functions();
        loop {
            let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the descriptor is non-blocking; an event names a queue of this channel, and
            // no queue is destroyed before its events are acknowledged.
            unsafe {
                let got =
                    (functions.ibv_get_cq_event)(self.raw.as_ptr(), &raw mut cq, &raw mut context);
                if got != 0 {
                    return;
                }
                // At once: `ibv_destroy_cq` waits for events that are not acknowledged.
                (functions.ibv_ack_cq_events)(cq, 1);
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the channel's, and open as long as the channel is.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: its queues held it by an Arc, and are destroyed.
        unsafe { (self.context.functions().ibv_destroy_comp_channel)(self.raw.as_ptr()) };
    }
}

/// A completion queue.
pub(crate) struct Cq {
    channel: Arc<Channel>,
    raw: NonNull<sys::Cq>,
}

impl Cq {
    pub(crate) fn new(channel: &Arc<Channel>, depth: c_int) -> io::Result<Arc<Self>> {
        let context = &channel.context;
        let create = context.functions().ibv_create_cq;
        let (device, events) = (context.raw.as_ptr(), channel.raw.as_ptr());
        // SAFETY: an open context and a channel of it.
        let raw = made(unsafe { create(device, depth, ptr::null_mut(), events, 0) })?;
        let channel = Arc::clone(channel);
        Ok(Arc::new(Self { channel, raw }))
    }

    pub(crate) fn address(&self) -> usize {
        self.raw.as_ptr().addr()
    }

    /// Polls completions into the front of `out`; returns how many. `None`: the queue has failed.
    #[inline]
    pub(crate) fn poll(&self, out: &mut [sys::Wc]) -> Option<usize> {
        let room = c_int::try_from(out.len()).unwrap_or(c_int::MAX);
        let raw = self.raw.as_ptr();
        // SAFETY: the tables of a context are set before `ibv_open_device` returns it; there is
        // room for `room` completions.
        let count = unsafe { ((*(*raw).context).ops.poll_cq)(raw, room, out.as_mut_ptr()) };
        // A negative number means that the queue has failed.
        usize::try_from(count).ok()
    }

    /// Requests an event for the next completion.
    pub(crate) fn announce_next(&self) -> io::Result<()> {
        let raw = self.raw.as_ptr();
        // 0: at any completion, not at solicited ones alone.
        // SAFETY: as in `poll`.
        answer(unsafe { ((*(*raw).context).ops.req_notify_cq)(raw, 0) })
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // Destroying a queue waits for unacknowledged events. Each event is acknowledged when it is
        // read, so there are none.
        self.channel.drain();
        let functions = self.channel.context.functions();
        // SAFETY: its queue pairs held it by an Arc, and are destroyed.
        unsafe { (functions.ibv_destroy_cq)(self.raw.as_ptr()) };
    }
}

fn never_block(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = fcntl_getfl(fd)?;
    Ok(fcntl_setfl(fd, flags | OFlags::NONBLOCK)?)
}
