//! The exported functions of libibverbs that make, change and destroy objects of a device.

use std::{
    collections::VecDeque,
    ffi::{c_int, c_uint, c_void},
    ptr,
};

use herdwick_verbs::sys;

use crate::{
    data,
    ffi::{self, give, none, semaphore, unbox},
    script::{self, failure},
    world::{self, Channel, Cq, Mr, Qp, lock},
};

/// Maximum inline bytes of a queue pair.
const INLINE_MAX: u32 = 400;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut sys::Context) -> *mut sys::Pd {
    match failure("ibv_alloc_pd") {
        Some(errno) => none(errno),
        None => give(sys::Pd { context, handle: 0 }),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut sys::Pd) -> c_int {
    let world = lock();
    // As libibverbs demands: an object is destroyed after all that refer to it.
    let used = world.mrs.values().any(|mr| mr.pd == pd.addr())
        || world.qps.values().any(|qp| qp.pd == pd.addr());
    if used {
        return libc::EBUSY;
    }
    // SAFETY: nothing made in it exists any more.
    unsafe { unbox(pd) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut sys::Pd,
    start: *mut c_void,
    len: usize,
    iova: u64,
    access: c_int,
) -> *mut sys::Mr {
    if let Some(errno) = failure("ibv_reg_mr_iova") {
        return none(errno);
    }
    assert_eq!(iova, 0, "the only one that is built here");
    let mut world = lock();
    // An rkey is index and 8 bits of key, as of `rdma_rxe`; 0 is never one.
    let key = world.number() << 8;
    let mr = Mr {
        pd: pd.addr(),
        start: start.expose_provenance(),
        len: len as u64,
        access,
    };
    world.mrs.insert(key, mr);
    // SAFETY: the caller's domain.
    let context = unsafe { (*pd).context };
    give(sys::Mr {
        context,
        pd,
        addr: start,
        length: len,
        handle: key,
        lkey: key,
        rkey: key,
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut sys::Mr) -> c_int {
    if let Some(errno) = failure("ibv_dereg_mr") {
        return errno;
    }
    // SAFETY: the caller's region, which is no longer used.
    unsafe {
        // Before the object is freed: no other thread reaches the memory afterwards.
        lock().mrs.remove(&(*mr).lkey);
        unbox(mr);
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut sys::Context,
) -> *mut sys::CompChannel {
    if let Some(errno) = failure("ibv_create_comp_channel") {
        return none(errno);
    }
    let fd = semaphore();
    let channel = give(sys::CompChannel {
        context,
        fd,
        refcnt: 0,
    });
    let state = Channel {
        fd,
        events: VecDeque::new(),
    };
    lock().channels.insert(channel.addr(), state);
    channel
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut sys::CompChannel) -> c_int {
    if let Some(state) = lock().channels.remove(&channel.addr()) {
        // SAFETY: its own descriptor, and the channel is no longer used.
        unsafe {
            libc::close(state.fd);
            unbox(channel);
        }
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut sys::Context,
    depth: c_int,
    cq_context: *mut c_void,
    channel: *mut sys::CompChannel,
    _vector: c_int,
) -> *mut sys::Cq {
    if let Some(errno) = failure("ibv_create_cq") {
        return none(errno);
    }
    let cq = give(sys::Cq {
        context,
        channel,
        cq_context,
        handle: 0,
        cqe: depth,
    });
    let state = Cq {
        context: context.addr(),
        channel: channel.addr(),
        depth: usize::try_from(depth).unwrap_or(0),
        entries: VecDeque::new(),
        announces: false,
        failed: false,
    };
    lock().cqs.insert(cq.addr(), state);
    cq
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut sys::Cq) -> c_int {
    let mut world = lock();
    // A real driver returns EBUSY, too.
    if world
        .qps
        .values()
        .any(|qp| qp.send_cq == cq.addr() || qp.recv_cq == cq.addr())
    {
        return libc::EBUSY;
    }
    world.cqs.remove(&cq.addr());
    // SAFETY: the queue is no longer used.
    unsafe { unbox(cq) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut sys::CompChannel,
    cq: *mut *mut sys::Cq,
    _context: *mut *mut c_void,
) -> c_int {
    let mut world = lock();
    let Some(state) = world.channels.get_mut(&channel.addr()) else {
        return -1;
    };
    if !world::take(state.fd) {
        return -1;
    }
    let found = state.events.pop_front().unwrap_or(0);
    // SAFETY: the caller passes room for a pointer.
    unsafe { cq.write(ptr::without_provenance_mut(found)) };
    0
}

#[unsafe(no_mangle)]
// Nothing waits for it: a queue is destroyed with its events.
pub extern "C" fn ibv_ack_cq_events(_: *mut sys::Cq, _count: c_uint) {}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(
    pd: *mut sys::Pd,
    init: *mut sys::QpInitAttr,
) -> *mut sys::Qp {
    // SAFETY: the caller's domain and attributes.
    let (context, init) = unsafe { ((*pd).context, &*init) };
    if let Some(errno) = failure("ibv_create_qp") {
        return none(errno);
    }
    let cap = init.cap;
    // A device refuses what it lacks, and grants what is asked for otherwise.
    if cap.max_inline_data > INLINE_MAX || cap.max_send_wr.max(cap.max_recv_wr) > ffi::WORK_MAX {
        return none(libc::EINVAL);
    }
    let mut world = lock();
    let number = world.number();
    let qp = give(sys::Qp {
        context,
        qp_context: ptr::null_mut(),
        pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: ptr::null_mut(),
        handle: 0,
        qp_num: number,
        state: 0,
        qp_type: init.qp_type,
    });
    let state = Qp {
        address: qp.addr(),
        context: context.addr(),
        pd: pd.addr(),
        kind: init.qp_type,
        state: 0,
        qkey: 0,
        peer: 0,
        cap,
        serves: 0,
        asks: 0,
        send_cq: init.send_cq.addr(),
        recv_cq: init.recv_cq.addr(),
        sends: VecDeque::new(),
        recvs: VecDeque::new(),
    };
    world.qps.insert(number, state);
    qp
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(
    qp: *mut sys::Qp,
    attr: *mut sys::QpAttr,
    mask: c_int,
) -> c_int {
    if let Some(errno) = failure("ibv_modify_qp") {
        return errno;
    }
    // SAFETY: the caller's queue pair and attributes.
    let (number, attr) = unsafe { ((*qp).qp_num, &*attr) };
    let mut world = lock();
    // Possible from every state.
    if attr.qp_state == sys::IBV_QPS_ERR {
        data::fail(&mut world, number);
        return 0;
    }
    let Some(qp) = world.qps.get_mut(&number) else {
        return libc::EINVAL;
    };
    // The states INIT, RTR and RTS have to follow in order.
    if attr.qp_state != qp.state + 1 {
        return libc::EINVAL;
    }
    qp.state = attr.qp_state;
    if mask & sys::IBV_QP_QKEY != 0 {
        qp.qkey = attr.qkey;
    }
    if mask & sys::IBV_QP_PKEY_INDEX != 0 {
        script::mark(|marks| marks.pkey_index = attr.pkey_index);
    }
    if mask & sys::IBV_QP_MAX_DEST_RD_ATOMIC != 0 {
        qp.serves = attr.max_dest_rd_atomic;
    }
    if mask & sys::IBV_QP_MAX_QP_RD_ATOMIC != 0 {
        qp.asks = attr.max_rd_atomic;
    }
    if mask & sys::IBV_QP_AV != 0 {
        script::mark(|marks| marks.set(&attr.ah_attr));
    }
    if mask & sys::IBV_QP_DEST_QPN != 0 {
        qp.peer = attr.dest_qp_num;
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut sys::Qp) -> c_int {
    // SAFETY: the caller's queue pair, which is no longer used. Its completions stay in the queues,
    // as with some drivers.
    unsafe {
        lock().qps.remove(&(*qp).qp_num);
        unbox(qp);
    }
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_qp_data_in_order(
    _: *mut sys::Qp,
    _opcode: c_int,
    _flags: u32,
) -> c_int {
    // In order, unless the script says otherwise.
    c_int::from(failure("ibv_query_qp_data_in_order").is_none())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(pd: *mut sys::Pd, attr: *mut sys::AhAttr) -> *mut sys::Ah {
    if let Some(errno) = failure("ibv_create_ah") {
        return none(errno);
    }
    // SAFETY: the caller's attributes.
    script::mark(|marks| marks.set(unsafe { &*attr }));
    // SAFETY: the caller's domain.
    let context = unsafe { (*pd).context };
    give(sys::Ah {
        context,
        pd,
        handle: 0,
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut sys::Ah) -> c_int {
    // SAFETY: the caller's handle, which is no longer used.
    unsafe { unbox(ah) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(
    context: *mut sys::Context,
    out: *mut sys::AsyncEvent,
) -> c_int {
    let mut world = lock();
    let Some(state) = world.contexts.get_mut(&context.addr()) else {
        return -1;
    };
    if !world::take(state.async_fd) {
        return -1;
    }
    let (event_type, element) = state.events.pop_front().unwrap_or((-1, 0));
    let element = match event_type {
        sys::IBV_EVENT_PORT_ERR | sys::IBV_EVENT_PORT_ACTIVE => sys::Element {
            port_num: c_int::try_from(element).unwrap_or(0),
        },
        _ => sys::Element {
            qp: ptr::without_provenance_mut(element),
        },
    };
    // SAFETY: the caller passes room for an event.
    unsafe {
        out.write(sys::AsyncEvent {
            element,
            event_type,
        })
    };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_ack_async_event(_: *mut sys::AsyncEvent) {}
