//! Posting: a batch becomes one chain of the verbs' work requests, and one call of the driver.
#![expect(unsafe_code, reason = "posts memory by address")]

use std::{ffi::c_int, ptr::NonNull};

use herdwick_fabric::{
    Local, Opcode, Payload, PostError, QpState, RecvWr, Remote, SendOp, SendWr, Slab, Transport,
};

use crate::{
    POSTLIST_MAX,
    objects::{Address, Qp, Region, Token, local},
    sys,
};

/// Work requests in the verbs' shape, made once, and linked once.
pub(crate) struct Chain<W> {
    wrs: NonNull<[W]>,
    sges: NonNull<[sys::Sge]>,
}

// SAFETY: it owns its two allocations, and the addresses left in them are followed only by a post,
// which writes them anew.
unsafe impl<W> Send for Chain<W> {}

/// A work request of either kind: what they have in common is their place in a chain.
pub(crate) trait Link: Sized {
    fn link(&mut self, next: *mut Self, sges: *mut sys::Sge);
    fn next(&mut self) -> &mut *mut Self;
}

impl Link for sys::SendWr {
    fn link(&mut self, next: *mut Self, sges: *mut sys::Sge) {
        (self.next, self.sg_list) = (next, sges);
    }
    fn next(&mut self) -> &mut *mut Self {
        &mut self.next
    }
}

impl Link for sys::RecvWr {
    fn link(&mut self, next: *mut Self, sges: *mut sys::Sge) {
        (self.next, self.sg_list) = (next, sges);
    }
    fn next(&mut self) -> &mut *mut Self {
        &mut self.next
    }
}

impl<W: Link> Chain<W> {
    /// `blank` makes unlinked work requests.
    pub(crate) fn new(blank: impl Fn() -> W) -> Self {
        let wrs: Box<[W]> = (0..POSTLIST_MAX).map(|_| blank()).collect();
        let sges: Box<[sys::Sge]> = vec![sys::Sge::default(); POSTLIST_MAX].into();
        let mut chain = Self {
            wrs: NonNull::from(Box::leak(wrs)),
            sges: NonNull::from(Box::leak(sges)),
        };
        for i in 0..POSTLIST_MAX {
            let next = chain.wrs.cast::<W>().as_ptr().wrapping_add(i + 1);
            let (wr, sge) = chain.entry(i);
            let sge = std::ptr::from_mut(sge);
            wr.link(next, sge);
        }
        chain
    }

    /// Work request `i` and its only run of bytes.
    #[inline]
    fn entry(&mut self, i: usize) -> (&mut W, &mut sys::Sge) {
        assert!(i < POSTLIST_MAX);
        // SAFETY: in bounds by the assertion; the allocations are this value's, which is borrowed
        // for as long as the references live.
        unsafe {
            (
                self.wrs.cast::<W>().add(i).as_mut(),
                self.sges.cast::<sys::Sge>().add(i).as_mut(),
            )
        }
    }

    /// Lets `post` have the first `count`, which must be filled, as a chain of their own.
    #[inline]
    fn cut<R>(&mut self, count: usize, post: impl FnOnce(*mut W) -> R) -> R {
        let last = count.saturating_sub(1);
        *self.entry(last).0.next() = std::ptr::null_mut();
        let posted = post(self.wrs.cast::<W>().as_ptr());
        *self.entry(last).0.next() = self.wrs.cast::<W>().as_ptr().wrapping_add(last + 1);
        posted
    }
}

impl<W> Drop for Chain<W> {
    fn drop(&mut self) {
        // SAFETY: both came from Box::leak, and nothing else names them.
        unsafe {
            drop(Box::from_raw(self.wrs.as_ptr()));
            drop(Box::from_raw(self.sges.as_ptr()));
        }
    }
}

pub(crate) fn blank_send() -> sys::SendWr {
    sys::SendWr {
        wr_id: 0,
        next: std::ptr::null_mut(),
        sg_list: std::ptr::null_mut(),
        num_sge: 0,
        opcode: 0,
        send_flags: 0,
        imm_data: 0,
        wr: target(Remote {
            rkey: herdwick_fabric::Rkey(0),
            addr: 0,
        }),
        qp_type: 0,
        _extra: [0; 6],
    }
}

pub(crate) fn blank_recv() -> sys::RecvWr {
    sys::RecvWr {
        wr_id: 0,
        next: std::ptr::null_mut(),
        sg_list: std::ptr::null_mut(),
        num_sge: 0,
    }
}

/// What a device carries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) inline: usize,
    pub(crate) datagram: usize,
    pub(crate) message: usize,
}

/// What a post needs of its port, beside the queue pair.
pub(crate) struct Post<'a> {
    pub(crate) regions: &'a Slab<Region>,
    pub(crate) addresses: &'a Slab<Address>,
    pub(crate) bounds: Bounds,
}

/// Posts a batch: all of it is checked before any of it is posted. Returns how much of it the driver
/// took; less than all, when something stopped it that the checks here do not know.
#[inline]
pub(crate) fn post(
    qp: &mut Qp,
    chain: &mut Chain<sys::SendWr>,
    port: &Post<'_>,
    batch: &[SendWr<'_>],
) -> Result<usize, PostError> {
    if qp.state != QpState::ReadyToSend {
        return Err(PostError::State(qp.state));
    }
    if batch.len() > qp.sends.room() {
        return Err(PostError::Full);
    }
    if batch.len() > POSTLIST_MAX {
        return Err(PostError::Bounds);
    }
    if batch.is_empty() {
        return Ok(0);
    }
    for (i, from) in batch.iter().enumerate() {
        #[expect(clippy::cast_possible_truncation, reason = "at most POSTLIST_MAX")]
        let position = qp.sends.position(i as u32);
        let (wr, sge) = chain.entry(i);
        let opcode = fill(qp, port, from, wr, sge)?;
        wr.wr_id = Token {
            qp: qp.id.0,
            recv: false,
            position,
        }
        .encode();
        qp.sends.put(position, (from.wr_id, opcode));
    }
    // SAFETY: inline payloads are borrowed by `batch`; all others are by `local` within regions of
    // this port, under their own keys. A region freed before its completion is closed by its key.
    let posted = chain.cut(batch.len(), |first| unsafe { qp.raw.post_send(first) });
    let count = taken(posted, chain, batch.len());
    qp.sends.took(count);
    Ok(count as usize)
}

/// Posts RECVs, likewise.
pub(crate) fn post_recv(
    qp: &mut Qp,
    chain: &mut Chain<sys::RecvWr>,
    regions: &Slab<Region>,
    batch: &[RecvWr],
) -> Result<usize, PostError> {
    if qp.state == QpState::Error {
        return Err(PostError::State(qp.state));
    }
    if batch.len() > qp.recvs.room() {
        return Err(PostError::Full);
    }
    if batch.len() > POSTLIST_MAX {
        return Err(PostError::Bounds);
    }
    if batch.is_empty() {
        return Ok(0);
    }
    for (i, from) in batch.iter().enumerate() {
        #[expect(clippy::cast_possible_truncation, reason = "at most POSTLIST_MAX")]
        let position = qp.recvs.position(i as u32);
        let (wr, sge) = chain.entry(i);
        *sge = local(regions, qp.pd, from.into).ok_or(PostError::Bounds)?;
        wr.num_sge = c_int::from(sge.length > 0);
        wr.wr_id = Token {
            qp: qp.id.0,
            recv: true,
            position,
        }
        .encode();
        qp.recvs.put(position, from.wr_id);
    }
    // SAFETY: every buffer lies, by `local`, within a region of this port, under its own key.
    let posted = chain.cut(batch.len(), |first| unsafe { qp.raw.post_recv(first) });
    let count = taken(posted, chain, batch.len());
    qp.recvs.took(count);
    Ok(count as usize)
}

/// How many of `count` were taken, by the first that was not.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "at most POSTLIST_MAX")]
fn taken<W>(posted: Result<(), *mut W>, chain: &Chain<W>, count: usize) -> u32 {
    let Err(bad) = posted else {
        return count as u32;
    };
    let first = chain.wrs.cast::<W>().as_ptr();
    let gone = bad.addr().wrapping_sub(first.addr()) / size_of::<W>();
    if bad.is_null() {
        0
    } else {
        gone.min(count) as u32
    }
}

/// Writes one work request; which verb it is.
#[inline]
fn fill(
    qp: &Qp,
    port: &Post<'_>,
    from: &SendWr<'_>,
    wr: &mut sys::SendWr,
    sge: &mut sys::Sge,
) -> Result<Opcode, PostError> {
    let flags =
        flag(from.signaled, sys::IBV_SEND_SIGNALED) | flag(from.solicited, sys::IBV_SEND_SOLICITED);
    wr.send_flags = flags;
    match (&from.op, qp.transport) {
        (
            SendOp::Send {
                payload,
                imm,
                to: Some(to),
            },
            Transport::Ud,
        ) => {
            let address = port
                .addresses
                .get(to.0)
                .filter(|address| address.qp == qp.id);
            let address = address.ok_or(PostError::Transport(qp.transport))?;
            wr.wr.ud = sys::Datagram {
                ah: address.ah.as_ptr(),
                remote_qpn: address.qpn,
                remote_qkey: address.qkey,
            };
            carry(qp, port, payload, port.bounds.datagram, wr, sge)?;
            with_imm(wr, *imm, sys::IBV_WR_SEND, sys::IBV_WR_SEND_WITH_IMM);
            Ok(Opcode::Send)
        }
        (
            SendOp::Send {
                payload,
                imm,
                to: None,
            },
            Transport::Rc | Transport::Uc,
        ) => {
            carry(qp, port, payload, port.bounds.message, wr, sge)?;
            with_imm(wr, *imm, sys::IBV_WR_SEND, sys::IBV_WR_SEND_WITH_IMM);
            Ok(Opcode::Send)
        }
        (SendOp::Write { payload, to, imm }, Transport::Rc | Transport::Uc) => {
            carry(qp, port, payload, port.bounds.message, wr, sge)?;
            with_imm(
                wr,
                *imm,
                sys::IBV_WR_RDMA_WRITE,
                sys::IBV_WR_RDMA_WRITE_WITH_IMM,
            );
            wr.wr = target(*to);
            Ok(Opcode::Write)
        }
        (op, Transport::Rc) => fetch(qp, port, op, wr, sge),
        _ => Err(PostError::Transport(qp.transport)),
    }
}

/// The verbs that bring something back.
#[inline(never)]
fn fetch(
    qp: &Qp,
    port: &Post<'_>,
    op: &SendOp<'_>,
    wr: &mut sys::SendWr,
    sge: &mut sys::Sge,
) -> Result<Opcode, PostError> {
    let (into, opcode, number) = match *op {
        SendOp::Read { into, from } => {
            wr.wr = target(from);
            (into, Opcode::Read, sys::IBV_WR_RDMA_READ)
        }
        SendOp::FetchAdd { into, at, add } => {
            wr.wr = atomic(at, add, 0);
            (into, Opcode::FetchAdd, sys::IBV_WR_ATOMIC_FETCH_AND_ADD)
        }
        SendOp::CompareSwap {
            into,
            at,
            expected,
            new,
        } => {
            wr.wr = atomic(at, expected, new);
            (into, Opcode::CompareSwap, sys::IBV_WR_ATOMIC_CMP_AND_SWP)
        }
        SendOp::Send { .. } | SendOp::Write { .. } => {
            return Err(PostError::Transport(qp.transport));
        }
    };
    let word = into.len == 8 && into.offset.is_multiple_of(8);
    let fits = if opcode == Opcode::Read {
        into.len <= port.bounds.message
    } else {
        word
    };
    *sge = lies(qp, port, into)
        .filter(|_| fits)
        .ok_or(PostError::Bounds)?;
    wr.num_sge = c_int::from(sge.length > 0);
    wr.opcode = number;
    Ok(opcode)
}

#[inline]
fn carry(
    qp: &Qp,
    port: &Post<'_>,
    payload: &Payload<'_>,
    most: usize,
    wr: &mut sys::SendWr,
    sge: &mut sys::Sge,
) -> Result<(), PostError> {
    // The driver copies inline bytes before the post returns; the key is not looked at.
    let (at, len) = match *payload {
        Payload::Words(words) => (words.as_ptr().expose_provenance(), size_of_val(words)),
        Payload::Inline(bytes) => (bytes.as_ptr().expose_provenance(), bytes.len()),
        Payload::Region(from) => {
            *sge = lies(qp, port, from)
                .filter(|_| from.len <= most)
                .ok_or(PostError::Bounds)?;
            wr.num_sge = c_int::from(sge.length > 0);
            return Ok(());
        }
    };
    if len > port.bounds.inline.min(most) {
        return Err(PostError::Bounds);
    }
    #[expect(clippy::cast_possible_truncation, reason = "within the inline bound")]
    let length = len as u32;
    (sge.addr, sge.length) = (at as u64, length);
    wr.num_sge = c_int::from(len > 0);
    wr.send_flags |= flag(len > 0, sys::IBV_SEND_INLINE);
    Ok(())
}

// `Payload::Words` are little-endian, and given to the driver where they lie.
const _: () = assert!(cfg!(target_endian = "little"));

#[inline]
fn lies(qp: &Qp, port: &Post<'_>, at: Local) -> Option<sys::Sge> {
    local(port.regions, qp.pd, at)
}

#[inline]
fn with_imm(wr: &mut sys::SendWr, imm: Option<u32>, without: c_int, with: c_int) {
    wr.opcode = if imm.is_some() { with } else { without };
    wr.imm_data = imm.unwrap_or(0).to_be();
}

#[inline]
fn flag(set: bool, flag: c_int) -> u32 {
    if set { flag.cast_unsigned() } else { 0 }
}

#[inline]
fn target(at: Remote) -> sys::Target {
    sys::Target {
        rdma: sys::Rdma {
            remote_addr: at.addr,
            rkey: at.rkey.0,
        },
    }
}

fn atomic(at: Remote, compare_add: u64, swap: u64) -> sys::Target {
    sys::Target {
        atomic: sys::Atomic {
            remote_addr: at.addr,
            compare_add,
            swap,
            rkey: at.rkey.0,
        },
    }
}
