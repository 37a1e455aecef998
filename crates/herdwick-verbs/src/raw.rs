//! libibverbs' objects as values that destroy themselves, in an order that holds: whatever a verbs
//! object refers to is kept alive by it.
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

/// Says that the pointer inside may be used from any thread.
macro_rules! any_thread {
    ($($ty:ty)*) => {
        $(
            // SAFETY: libibverbs may be called from any thread, with any object.
            unsafe impl Send for $ty {}
            // SAFETY: as above, at once from several, too: it locks where it must.
            unsafe impl Sync for $ty {}
        )*
    };
}

any_thread! { Context Pd Mr Channel Cq Qp Ah }

/// What a constructor of libibverbs returned, or why it returned nothing.
fn made<T>(object: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(object).ok_or_else(io::Error::last_os_error)
}

/// The names and transports of the devices there are, as libibverbs lists them.
pub(crate) fn devices(library: &Library) -> io::Result<Vec<(String, c_int)>> {
    let list = List::new(library)?;
    let name = |device: &NonNull<sys::Device>| {
        // SAFETY: the list, alive until the end of this function, keeps its devices; their names
        // are C strings.
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
        // SAFETY: the count is ours to be written.
        let list = made(unsafe { (library.functions.ibv_get_device_list)(&raw mut count) })?;
        Ok(Self {
            library,
            list,
            count: usize::try_from(count).unwrap_or(0),
        })
    }

    fn devices(&self) -> Vec<NonNull<sys::Device>> {
        // SAFETY: libibverbs said that so many stand there.
        let all = unsafe { std::slice::from_raw_parts(self.list.as_ptr(), self.count) };
        all.iter().copied().filter_map(NonNull::new).collect()
    }
}

impl Drop for List<'_> {
    fn drop(&mut self) {
        // SAFETY: it came from ibv_get_device_list, and is given back once.
        unsafe { (self.library.functions.ibv_free_device_list)(self.list.as_ptr()) }
    }
}

/// An open device.
pub(crate) struct Context {
    library: Arc<Library>,
    raw: NonNull<sys::Context>,
    /// Memory that the device would not let go of. Closing the device makes it.
    stuck: Mutex<Vec<Span>>,
}

impl Context {
    /// Opens the device called `wanted`.
    pub(crate) fn open(library: &Arc<Library>, wanted: &str) -> io::Result<Arc<Self>> {
        let list = List::new(library)?;
        let is_it = |device: &&NonNull<sys::Device>| {
            // SAFETY: the list keeps its devices while it lives; names are C strings.
            let name = unsafe { CStr::from_ptr((&raw const (*device.as_ptr()).name).cast()) };
            name.to_bytes() == wanted.as_bytes()
        };
        let devices = list.devices();
        let device = devices.iter().find(is_it);
        let device = device.ok_or(io::ErrorKind::NotFound)?;
        // SAFETY: a device of a list that is still there.
        let raw = made(unsafe { (library.functions.ibv_open_device)(device.as_ptr()) })?;
        let library = Arc::clone(library);
        let context = Arc::new(Self {
            library,
            raw,
            stuck: Mutex::default(),
        });
        never_block(context.async_fd())?;
        Ok(context)
    }

    fn functions(&self) -> &Functions {
        &self.library.functions
    }

    /// Readable when an asynchronous event waits.
    pub(crate) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the context's, and open while it is.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).async_fd) }
    }

    pub(crate) fn query_device(&self) -> io::Result<sys::DeviceAttr> {
        // SAFETY: all zeros is a value of every field; libibverbs fills it in.
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

    /// The P_Key at `index` of a port's table.
    pub(crate) fn pkey(&self, port: u8, index: u16) -> io::Result<u16> {
        let mut found = 0;
        let query = self.functions().ibv_query_pkey;
        // SAFETY: an open context; the key is ours to be written.
        answer(unsafe { query(self.raw.as_ptr(), port, index.into(), &raw mut found) })?;
        Ok(u16::from_be(found))
    }

    /// The addresses of all ports, at most `most`.
    pub(crate) fn gids(&self, most: usize) -> io::Result<Vec<sys::GidEntry>> {
        let none = sys::GidEntry {
            gid: [0; 16],
            gid_index: 0,
            port_num: 0,
            gid_type: 0,
            ndev_ifindex: 0,
        };
        let mut found = vec![none; most];
        let size = size_of::<sys::GidEntry>();
        // SAFETY: there is room for `most` entries of the size that is told.
        let count = unsafe {
            (self.functions()._ibv_query_gid_table)(
                self.raw.as_ptr(),
                found.as_mut_ptr(),
                most,
                0,
                size,
            )
        };
        let failed = |_| io::Error::from_raw_os_error(c_int::try_from(-count).unwrap_or(0));
        found.truncate(usize::try_from(count).map_err(failed)?);
        Ok(found)
    }

    /// The next asynchronous event, already acknowledged; `None` when none waits.
    pub(crate) fn next_event(&self) -> Option<Event> {
        let mut event = sys::AsyncEvent {
            element: sys::Element { port_num: 0 },
            event_type: 0,
        };
        // SAFETY: the descriptor does not block; the event is ours to be written, and is
        // acknowledged once.
        unsafe {
            if (self.functions().ibv_get_async_event)(self.raw.as_ptr(), &raw mut event) != 0 {
                return None;
            }
            let found = Event::read(&event);
            (self.functions().ibv_ack_async_event)(&raw mut event);
            Some(found)
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: whatever was made in it held it by an Arc, and is gone.
        let closed = answer(unsafe { (self.functions().ibv_close_device)(self.raw.as_ptr()) });
        if closed.is_err() {
            // The device may still write there, so the memory is nobody else's again.
            let stuck = self.stuck.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::take(stuck));
        }
    }
}

/// An asynchronous event; objects by their address, for comparison alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Cq(usize),
    Qp(usize),
    DeviceFatal,
    PortUp(c_int),
    PortDown(c_int),
    /// Addresses or partitions are others now.
    Moved,
    Other,
}

impl Event {
    /// # Safety
    /// libibverbs wrote `event`.
    unsafe fn read(event: &sys::AsyncEvent) -> Self {
        let element = event.element;
        // SAFETY: which member of the union is set goes by the type, as the header says.
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
        // SAFETY: whatever was made in it held it by an Arc, and is gone.
        unsafe { (self.context.functions().ibv_dealloc_pd)(self.raw.as_ptr()) };
    }
}

/// Registered memory: what a peer, or this side's own work requests, may name by key.
pub(crate) struct Mr {
    pd: Arc<Pd>,
    raw: NonNull<sys::Mr>,
    memory: Option<Span>,
}

impl Mr {
    /// Registers `memory`, which is addressed from 0 on: a peer learns nothing of where it lies.
    pub(crate) fn new(pd: &Arc<Pd>, memory: &Span, access: c_int) -> io::Result<Self> {
        let functions = pd.context.functions();
        let (start, len) = (memory.as_ptr().cast(), memory.len());
        // SAFETY: the memory is mapped, and stays so: this value holds the span until the device
        // has let go of it. Nothing ever forms a reference into a span, so a device may write it.
        let raw = unsafe { (functions.ibv_reg_mr_iova)(pd.raw.as_ptr(), start, len, 0, access) };
        Ok(Self {
            raw: made(raw)?,
            pd: Arc::clone(pd),
            memory: Some(memory.clone()),
        })
    }

    /// The keys, local and remote.
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
            // The device may still write there, until it is closed: a device that was unplugged
            // refuses everything else.
            let stuck = self.pd.context.stuck.lock();
            let mut stuck = stuck.unwrap_or_else(PoisonError::into_inner);
            stuck.extend(self.memory.take());
        }
    }
}

/// Where completion queues announce what they were asked to announce.
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

    /// Takes and acknowledges all that was announced.
    pub(crate) fn drain(&self) {
        let functions = self.context.functions();
        loop {
            let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the descriptor does not block; an event names a queue of this channel, none
            // of which goes before its events are acknowledged.
            unsafe {
                let got =
                    (functions.ibv_get_cq_event)(self.raw.as_ptr(), &raw mut cq, &raw mut context);
                if got != 0 {
                    return;
                }
                (functions.ibv_ack_cq_events)(cq, 1);
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the channel's, and open while it is.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: its queues held it by an Arc, and are gone.
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

    /// Takes completions into the front of `out`. `None`: the queue has failed.
    #[inline]
    pub(crate) fn poll(&self, out: &mut [sys::Wc]) -> Option<usize> {
        let room = c_int::try_from(out.len()).unwrap_or(c_int::MAX);
        let raw = self.raw.as_ptr();
        // SAFETY: the tables of a context are set before it is given out; there is room for as
        // many completions as is said.
        let count = unsafe { ((*(*raw).context).ops.poll_cq)(raw, room, out.as_mut_ptr()) };
        usize::try_from(count).ok()
    }

    /// Asks for an announcement of the next completion.
    pub(crate) fn announce_next(&self) -> io::Result<()> {
        let raw = self.raw.as_ptr();
        // SAFETY: as in `poll`.
        answer(unsafe { ((*(*raw).context).ops.req_notify_cq)(raw, 0) })
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // Every event is acknowledged where it is taken, so this waits for nothing.
        self.channel.drain();
        let functions = self.channel.context.functions();
        // SAFETY: its queue pairs held it by an Arc, and are gone.
        unsafe { (functions.ibv_destroy_cq)(self.raw.as_ptr()) };
    }
}

fn never_block(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = fcntl_getfl(fd)?;
    Ok(fcntl_setfl(fd, flags | OFlags::NONBLOCK)?)
}
