//! The data path: a post executes its work requests at once, as far as the receiver is ready.

use std::ffi::c_int;

use herdwick_verbs::sys;

use crate::{
    memory,
    script::failure,
    world::{OpenObjects, Qp, Target, Work, lock},
};

/// Polls after which an RC send to a receiver without RECVs fails.
const TIMEOUT: u32 = 1000;

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut sys::Qp,
    mut wr: *mut sys::SendWr,
    bad: *mut *mut sys::SendWr,
) -> c_int {
    let mut world = lock();
    // SAFETY: the caller's queue pair and chain, as with libibverbs.
    unsafe {
        let number = (*qp).qp_num;
        // One after the other, as the chain is linked; what is before a refused request is posted.
        while let Some(request) = wr.as_ref() {
            if request.send_flags & sys::IBV_SEND_FENCE.cast_unsigned() != 0 {
                // Its payload may be the result of an earlier READ.
                pump(&mut world, number);
            }
            let refused = failure("post_send");
            let refused = refused.or_else(|| take_send(&mut world, number, request).err());
            if let Some(errno) = refused {
                *bad = wr;
                // What was taken is executed, as a device does.
                pump(&mut world, number);
                return errno;
            }
            wr = request.next;
        }
        pump(&mut world, number);
    }
    0
}

/// # Safety
/// `wr` is valid, as libibverbs requires.
unsafe fn take_send(world: &mut OpenObjects, number: u32, wr: &sys::SendWr) -> Result<(), c_int> {
    let qp = world.qps.get(&number).ok_or(libc::EINVAL)?;
    if qp.state < sys::IBV_QPS_RTS || qp.sends.len() >= qp.cap.max_send_wr as usize {
        return Err(if qp.state < sys::IBV_QPS_RTS {
            libc::EINVAL
        } else {
            libc::ENOMEM
        });
    }
    // SAFETY: the caller's promise; the opcode determines which member of the union is set.
    let work = unsafe {
        let sge = if wr.num_sge > 0 {
            *wr.sg_list
        } else {
            sys::Sge::default()
        };
        let len = sge.length as usize;
        let inline = wr.send_flags & sys::IBV_SEND_INLINE.cast_unsigned() != 0;
        // The numbers of READ and atomics follow those of SEND and WRITE.
        let fetches = wr.opcode >= sys::IBV_WR_RDMA_READ;
        if inline && sge.length > qp.cap.max_inline_data {
            return Err(libc::EINVAL);
        }
        // An inline payload is at an address of the caller, any other in registered memory.
        let from = match inline {
            true => Some(std::ptr::with_exposed_provenance_mut(sge.addr as usize)),
            false => world.reach(qp.pd, sge.lkey, sge.addr, len, 0),
        };
        let payload = match from {
            _ if fetches || len == 0 => Vec::new(),
            Some(from) if inline => std::slice::from_raw_parts(from, len).to_vec(),
            // Copied now: the device of this test reads a payload when it is posted.
            Some(from) => memory::load(from, len),
            None => return Err(libc::EINVAL),
        };
        let with_imm = [sys::IBV_WR_SEND_WITH_IMM, sys::IBV_WR_RDMA_WRITE_WITH_IMM];
        Work {
            wr_id: wr.wr_id,
            opcode: wr.opcode,
            signaled: wr.send_flags & sys::IBV_SEND_SIGNALED.cast_unsigned() != 0,
            imm: with_imm.contains(&wr.opcode).then_some(wr.imm_data),
            payload,
            into: sge,
            target: target(qp, wr),
            timeout: TIMEOUT,
        }
    };
    world
        .qps
        .get_mut(&number)
        .ok_or(libc::EINVAL)?
        .sends
        .push_back(work);
    Ok(())
}

/// # Safety
/// As for [`take_send`].
unsafe fn target(qp: &Qp, wr: &sys::SendWr) -> Target {
    let mut target = Target {
        addr: 0,
        rkey: 0,
        add_or_compare: 0,
        swap: 0,
        qpn: qp.peer,
        qkey: 0,
    };
    // SAFETY: opcode and transport determine which member of the union is set.
    unsafe {
        match wr.opcode {
            sys::IBV_WR_ATOMIC_CMP_AND_SWP | sys::IBV_WR_ATOMIC_FETCH_AND_ADD => {
                let at = wr.wr.atomic;
                (target.addr, target.rkey) = (at.remote_addr, at.rkey);
                (target.add_or_compare, target.swap) = (at.compare_add, at.swap);
            }
            _ if qp.kind == sys::IBV_QPT_UD => {
                (target.qpn, target.qkey) = (wr.wr.ud.remote_qpn, wr.wr.ud.remote_qkey);
            }
            _ => (target.addr, target.rkey) = (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey),
        }
    }
    target
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut sys::Qp,
    mut wr: *mut sys::RecvWr,
    bad: *mut *mut sys::RecvWr,
) -> c_int {
    let mut world = lock();
    // SAFETY: the caller's queue pair and chain, as with libibverbs.
    unsafe {
        let number = (*qp).qp_num;
        while let Some(request) = wr.as_ref() {
            let sge = if request.num_sge > 0 {
                *request.sg_list
            } else {
                sys::Sge::default()
            };
            let qp = world.qps.get_mut(&number);
            let room = qp.filter(|qp| qp.recvs.len() < qp.cap.max_recv_wr as usize);
            let Some(qp) = room.filter(|_| failure("post_recv").is_none()) else {
                *bad = wr;
                return libc::ENOMEM;
            };
            qp.recvs.push_back((request.wr_id, sge));
            wr = request.next;
        }
        // A send of the peer may wait for a RECV here.
        if let Some(peer) = world.qps.get(&number).map(|qp| qp.peer) {
            pump(&mut world, peer);
        }
    }
    0
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut sys::Cq, room: c_int, out: *mut sys::Wc) -> c_int {
    let mut world = lock();
    // Polling drives the sends that wait: the device has no thread of its own.
    let waiting = world
        .qps
        .iter()
        .filter(|(_, qp)| qp.send_cq == cq.addr() && !qp.sends.is_empty());
    for number in waiting.map(|(number, _)| *number).collect::<Vec<_>>() {
        pump(&mut world, number);
    }
    let Some(queue) = world.cqs.get_mut(&cq.addr()).filter(|queue| !queue.failed) else {
        return -1;
    };
    let count = queue.entries.len().min(usize::try_from(room).unwrap_or(0));
    for (i, wc) in queue.entries.drain(..count).enumerate() {
        // SAFETY: the caller passes space for `room` completions.
        unsafe { out.add(i).write(wc) };
    }
    c_int::try_from(count).unwrap_or(0)
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut sys::Cq, _solicited: c_int) -> c_int {
    let mut world = lock();
    match world.cqs.get_mut(&cq.addr()) {
        Some(queue) => {
            queue.announces = true;
            0
        }
        None => libc::EINVAL,
    }
}

/// Executes the queued sends of a queue pair until one has to wait.
fn pump(world: &mut OpenObjects, number: u32) {
    while let Some(mut work) = world
        .qps
        .get_mut(&number)
        .and_then(|qp| qp.sends.pop_front())
    {
        match execute(world, number, &work) {
            Some(status) => finish(world, number, &work, status),
            None if work.timeout == 0 => {
                finish(world, number, &work, sys::IBV_WC_RNR_RETRY_EXC_ERR);
            }
            None => {
                work.timeout -= 1;
                if let Some(qp) = world.qps.get_mut(&number) {
                    qp.sends.push_front(work);
                }
                return;
            }
        }
    }
}

fn finish(world: &mut OpenObjects, number: u32, work: &Work, status: c_int) {
    let Some(qp) = world.qps.get(&number) else {
        return;
    };
    let cq = qp.send_cq;
    if work.signaled || status != sys::IBV_WC_SUCCESS {
        let wc = sys::Wc {
            wr_id: work.wr_id,
            status,
            qp_num: number,
            ..sys::Wc::default()
        };
        world.complete(cq, wc);
    }
    // A flushed request is the effect of a failure, not another one.
    if status != sys::IBV_WC_SUCCESS && status != sys::IBV_WC_WR_FLUSH_ERR {
        fail(world, number);
    }
}

/// Moves a queue pair to the error state and flushes its queues.
pub(crate) fn fail(world: &mut OpenObjects, number: u32) {
    let Some(qp) = world.qps.get_mut(&number) else {
        return;
    };
    qp.state = sys::IBV_QPS_ERR;
    let (send_cq, recv_cq) = (qp.send_cq, qp.recv_cq);
    // Collected first, since `complete` borrows all objects.
    let sends: Vec<u64> = qp.sends.drain(..).map(|work| work.wr_id).collect();
    let recvs: Vec<u64> = qp.recvs.drain(..).map(|(wr_id, _)| wr_id).collect();
    let flushed = |wr_id| sys::Wc {
        wr_id,
        status: sys::IBV_WC_WR_FLUSH_ERR,
        qp_num: number,
        ..sys::Wc::default()
    };
    sends
        .into_iter()
        .for_each(|wr_id| world.complete(send_cq, flushed(wr_id)));
    recvs
        .into_iter()
        .for_each(|wr_id| world.complete(recv_cq, flushed(wr_id)));
}

/// Executes one send; returns its status, or `None` if the receiver is not ready.
fn execute(world: &mut OpenObjects, number: u32, work: &Work) -> Option<c_int> {
    let qp = world.qps.get(&number)?;
    let (kind, state) = (qp.kind, qp.state);
    if state == sys::IBV_QPS_ERR {
        return Some(sys::IBV_WC_WR_FLUSH_ERR);
    }
    let reliable = kind == sys::IBV_QPT_RC;
    // UC and UD know nothing of the receiver.
    let lost = if reliable {
        sys::IBV_WC_RETRY_EXC_ERR
    } else {
        sys::IBV_WC_SUCCESS
    };
    let told = |status| {
        Some(if reliable {
            status
        } else {
            sys::IBV_WC_SUCCESS
        })
    };
    // A datagram with another Q_Key is dropped, and its sender does not learn of it.
    let there = world.qps.get(&work.target.qpn).filter(|peer| {
        let meant = kind != sys::IBV_QPT_UD || peer.qkey == work.target.qkey;
        meant && peer.kind == kind && (sys::IBV_QPS_RTR..sys::IBV_QPS_ERR).contains(&peer.state)
    });
    let Some(peer_pd) = there.map(|peer| peer.pd) else {
        return Some(lost);
    };
    match work.opcode {
        sys::IBV_WR_SEND | sys::IBV_WR_SEND_WITH_IMM => receive(world, number, work, kind),
        sys::IBV_WR_RDMA_WRITE | sys::IBV_WR_RDMA_WRITE_WITH_IMM => {
            let at = &work.target;
            let len = work.payload.len();
            let reached = world.reach(peer_pd, at.rkey, at.addr, len, sys::IBV_ACCESS_REMOTE_WRITE);
            // A WRITE of no bytes accesses no memory, so its key is not checked (IBTA C9-88).
            if reached.is_none() && len > 0 {
                return refuse(world, work.target.qpn, reliable)
                    .and_then(|()| told(sys::IBV_WC_REM_ACCESS_ERR));
            }
            // Before the bytes are stored: the request may be executed again.
            if work.imm.is_some() && world.qps.get(&at.qpn)?.recvs.is_empty() {
                return if reliable { None } else { Some(lost) };
            }
            if let Some(to) = reached {
                // SAFETY: `reach` returned a registered range of this length.
                unsafe { memory::store(to, &work.payload) };
            }
            if work.imm.is_some() {
                announce(world, number, work);
            }
            Some(sys::IBV_WC_SUCCESS)
        }
        _ => Some(fetch(world, number, work, peer_pd)),
    }
}

/// Fails the responder of a reliable connection.
fn refuse(world: &mut OpenObjects, peer: u32, reliable: bool) -> Option<()> {
    if reliable {
        fail(world, peer);
    }
    Some(())
}

/// Executes a READ or an atomic.
fn fetch(world: &mut OpenObjects, number: u32, work: &Work, peer_pd: usize) -> c_int {
    let read = work.opcode == sys::IBV_WR_RDMA_READ;
    let right = if read {
        sys::IBV_ACCESS_REMOTE_READ
    } else {
        sys::IBV_ACCESS_REMOTE_ATOMIC
    };
    let at = work.target;
    let len = work.into.length as usize;
    if !read && !at.addr.is_multiple_of(8) {
        // Both ends fail: this one here, the requester with its completion.
        fail(world, at.qpn);
        return sys::IBV_WC_REM_INV_REQ_ERR;
    }
    let ends = [number, at.qpn].map(|number| world.qps.get(&number));
    if let [Some(asking), Some(serving)] = ends
        && asking.asks > serving.serves
    {
        // The peer lacks resources for this many. A real device may find that out only in a burst.
        fail(world, at.qpn);
        return sys::IBV_WC_REM_INV_REQ_ERR;
    }
    let from = world.reach(peer_pd, at.rkey, at.addr, len, right);
    let pd = world.qps.get(&number).map_or(0, |qp| qp.pd);
    let into = world.reach(
        pd,
        work.into.lkey,
        work.into.addr,
        len,
        sys::IBV_ACCESS_LOCAL_WRITE,
    );
    // A READ of no bytes accesses no memory, so its key is not checked (IBTA C9-88).
    if len == 0 {
        return sys::IBV_WC_SUCCESS;
    }
    let (Some(from), Some(into)) = (from, into) else {
        fail(world, at.qpn);
        return sys::IBV_WC_REM_ACCESS_ERR;
    };
    use std::sync::atomic::Ordering::SeqCst;
    // SAFETY: `reach` returned registered ranges of this length; aligned for an atomic, as checked
    // above.
    unsafe {
        let old = match work.opcode {
            sys::IBV_WR_RDMA_READ => memory::load(from, len),
            sys::IBV_WR_ATOMIC_FETCH_AND_ADD => memory::word(from)
                .fetch_add(at.add_or_compare, SeqCst)
                .to_le_bytes()
                .to_vec(),
            _ => {
                let swapped =
                    memory::word(from).compare_exchange(at.add_or_compare, at.swap, SeqCst, SeqCst);
                swapped.unwrap_or_else(|old| old).to_le_bytes().to_vec()
            }
        };
        memory::store(into, &old);
    }
    sys::IBV_WC_SUCCESS
}

/// Delivers a message to the peer's next RECV.
fn receive(world: &mut OpenObjects, number: u32, work: &Work, kind: c_int) -> Option<c_int> {
    let peer = world.qps.get(&work.target.qpn)?;
    let reliable = kind == sys::IBV_QPT_RC;
    let Some((_, into)) = peer.recvs.front().copied() else {
        return if reliable {
            None
        } else {
            Some(sys::IBV_WC_SUCCESS)
        };
    };
    // The GRH, all zeros; no test reads it.
    let header = if kind == sys::IBV_QPT_UD { 40 } else { 0 };
    let message = [vec![0; header], work.payload.clone()].concat();
    let fits = message.len() <= into.length as usize;
    let to = world.reach(
        peer.pd,
        into.lkey,
        into.addr,
        message.len(),
        sys::IBV_ACCESS_LOCAL_WRITE,
    );
    if let Some(to) = to.filter(|_| fits) {
        // SAFETY: `reach` returned a registered range of this length.
        unsafe { memory::store(to, &message) };
    }
    let wc = sys::Wc {
        status: if fits {
            sys::IBV_WC_SUCCESS
        } else {
            sys::IBV_WC_LOC_LEN_ERR
        },
        opcode: sys::IBV_WC_RECV,
        byte_len: u32::try_from(message.len()).unwrap_or(0),
        ..received(number, work)
    };
    // Also if the message is too long: the RECV completes with the error.
    take_recv(world, work.target.qpn, wc);
    if fits {
        return Some(sys::IBV_WC_SUCCESS);
    }
    // A UD queue pair goes on after it.
    if kind != sys::IBV_QPT_UD {
        fail(world, work.target.qpn);
    }
    Some(if reliable {
        sys::IBV_WC_REM_INV_REQ_ERR
    } else {
        sys::IBV_WC_SUCCESS
    })
}

/// Completes the peer's next RECV for a WRITE with an immediate.
fn announce(world: &mut OpenObjects, number: u32, work: &Work) {
    let wc = sys::Wc {
        opcode: sys::IBV_WC_RECV_RDMA_WITH_IMM,
        byte_len: u32::try_from(work.payload.len()).unwrap_or(0),
        ..received(number, work)
    };
    take_recv(world, work.target.qpn, wc);
}

fn received(number: u32, work: &Work) -> sys::Wc {
    sys::Wc {
        imm_data: work.imm.unwrap_or(0),
        wc_flags: work.imm.map_or(0, |_| sys::IBV_WC_WITH_IMM.cast_unsigned()),
        src_qp: number,
        qp_num: work.target.qpn,
        ..sys::Wc::default()
    }
}

fn take_recv(world: &mut OpenObjects, number: u32, wc: sys::Wc) {
    let Some(qp) = world.qps.get_mut(&number) else {
        return;
    };
    let cq = qp.recv_cq;
    if let Some((wr_id, _)) = qp.recvs.pop_front() {
        world.complete(cq, sys::Wc { wr_id, ..wc });
    }
}
