//! The exported functions of libibverbs that list, open and query devices. There are two devices:
//! one without a link, and the loopback.

use std::{
    collections::VecDeque,
    ffi::{c_char, c_int},
    ptr,
};

use herdwick_verbs::sys;

use crate::{
    data,
    ffi::{WORK_MAX, give, none, semaphore, unbox},
    script::failure,
    world::{Context, lock},
};

/// Limits of the devices, like those of small real ones.
const CQE_MAX: c_int = 32767;
const MTU_1024: c_int = 3;

const NAMES: [&[u8]; 2] = [b"fake_down", b"fake0"];

fn device(name: &[u8]) -> sys::Device {
    let mut chars = [0; 64];
    for (to, from) in chars.iter_mut().zip(name) {
        *to = (*from).cast_signed();
    }
    sys::Device {
        _ops: [None; 2],
        // IBV_NODE_CA.
        node_type: 1,
        transport_type: sys::IBV_TRANSPORT_IB,
        name: chars,
        dev_name: [0; 64],
        dev_path: [0; 256],
        ibdev_path: [0; 256],
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut sys::Device {
    if let Some(errno) = failure("ibv_get_device_list") {
        return none(errno);
    }
    let none_there = failure("devices").is_some();
    let names = if none_there { &NAMES[..0] } else { &NAMES[..] };
    // The list ends with a null, as libibverbs' does.
    let mut list = [ptr::null_mut(); 3];
    for (to, name) in list.iter_mut().zip(names) {
        *to = give(device(name));
    }
    // SAFETY: the caller passes room for a count.
    unsafe { count.write(c_int::try_from(names.len()).unwrap_or(0)) };
    give(list).cast()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut sys::Device) {
    let list: *mut [*mut sys::Device; 3] = list.cast();
    // SAFETY: it came from `ibv_get_device_list`, whose devices no context refers to.
    unsafe {
        for device in (*list).into_iter().filter(|device| !device.is_null()) {
            unbox(device);
        }
        unbox(list);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut sys::Device) -> *mut sys::Context {
    if let Some(errno) = failure("ibv_open_device") {
        return none(errno);
    }
    // SAFETY: a device of a list.
    let name: [c_char; 64] = unsafe { (*device).name };
    let context = give(sys::Context {
        device: ptr::null_mut(),
        ops: sys::ContextOps {
            _before_poll: [None; 11],
            poll_cq: data::poll_cq,
            req_notify_cq: data::req_notify_cq,
            _before_post: [None; 12],
            post_send: data::post_send,
            post_recv: data::post_recv,
            _after_post: [None; 5],
        },
        // Abused as a flag: 1 for the loopback, 0 for the device without a link.
        cmd_fd: c_int::from(name[4] == b'0'.cast_signed()),
        async_fd: semaphore(),
        num_comp_vectors: 1,
    });
    let state = Context {
        // Events are raised for the contexts of one thread, so that tests in one process do not
        // meet.
        opener: std::thread::current().id(),
        // SAFETY: just made.
        async_fd: unsafe { (*context).async_fd },
        events: VecDeque::new(),
    };
    lock().contexts.insert(context.addr(), state);
    context
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut sys::Context) -> c_int {
    if let Some(state) = lock().contexts.remove(&context.addr()) {
        // SAFETY: its own descriptor, and the context is no longer used.
        unsafe {
            libc::close(state.async_fd);
            unbox(context);
        }
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(
    _: *mut sys::Context,
    out: *mut sys::DeviceAttr,
) -> c_int {
    if let Some(errno) = failure("ibv_query_device") {
        return errno;
    }
    let fetches = |which| failure(which).unwrap_or(16);
    // SAFETY: the caller passes room for the attributes, and all zeros is a valid value of them.
    unsafe {
        out.write_bytes(0, 1);
        (*out).max_qp = 1 << 16;
        (*out).max_qp_wr = WORK_MAX.cast_signed();
        (*out).max_cqe = CQE_MAX;
        (*out).max_qp_rd_atom = fetches("max_qp_rd_atom");
        (*out).max_qp_init_rd_atom = fetches("max_qp_init_rd_atom");
        (*out).atomic_cap = sys::IBV_ATOMIC_GLOB;
        (*out).phys_port_cnt = 1;
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    context: *mut sys::Context,
    _: u8,
    out: *mut sys::PortAttr,
) -> c_int {
    // SAFETY: the caller passes a context, and room for the attributes.
    unsafe {
        out.write_bytes(0, 1);
        (*out).state = if (*context).cmd_fd == 1 && !lock().unplugged {
            sys::IBV_PORT_ACTIVE
        } else {
            // IBV_PORT_DOWN.
            1
        };
        (*out).active_mtu = MTU_1024;
        (*out).pkey_tbl_len = 2;
        (*out).max_msg_sz = 1 << 20;
        // Ethernet.
        (*out).link_layer = 2;
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(
    _: *mut sys::Context,
    _: u8,
    index: c_int,
    out: *mut u16,
) -> c_int {
    let pkey: u16 = match index {
        // The default partition, and one of which the port is a full member.
        0 => 0xffff,
        1 => 0x8001,
        _ => return -1,
    };
    // libibverbs returns P_Keys in network byte order.
    // SAFETY: the caller passes room for a key.
    unsafe { out.write(pkey.to_be()) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    _: *mut sys::Context,
    out: *mut sys::GidEntry,
    most: usize,
    _flags: u32,
    _size: usize,
) -> isize {
    // The scripted error number is the last byte of the changed address.
    let last = failure("address").and_then(|byte| u8::try_from(byte).ok());
    let last = last.unwrap_or(1);
    let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, last];
    let local = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    // A link-local and an IPv4 address, each as RoCEv1 and RoCEv2: the provider has to choose.
    let all = [(0, local, 1), (1, local, 2), (2, mapped, 1), (3, mapped, 2)];
    let count = all.len().min(most);
    for (i, (gid_index, gid, gid_type)) in all.into_iter().take(count).enumerate() {
        let entry = sys::GidEntry {
            gid,
            gid_index,
            port_num: 1,
            gid_type,
            ndev_ifindex: 1,
        };
        // SAFETY: the caller passes room for `most` entries.
        unsafe { out.add(i).write(entry) };
    }
    count.cast_signed()
}
