//! Posting: a batch becomes one chain of the verbs' work requests, and one call of the driver.
#![expect(unsafe_code, reason = "posts memory by address")]

use std::{ffi::c_int, ptr::NonNull};

use herdwick_fabric::{
    Local, Opcode, Payload, PostError, QpId, QpState, RecvWr, Remote, SendOp, SendWr, Slab,
    Transport,
};

use crate::{
    POSTLIST_MAX,
    objects::{Address, Batch, Outstanding, Qp, Region, local},
    sys,
};

/// Work requests in the verbs' shape, made once, and linked once.
pub(crate) struct Chain<W> {
    entries: NonNull<[Entry<W>]>,
}

/// A work request and its only run of bytes.
#[repr(C)]
struct Entry<W> {
    wr: W,
    sge: sys::Sge,
}

// SAFETY: it owns its allocation, into which its links point, and which moves with it. The other
// addresses in it, those of payloads and of address handles, each post writes anew before the driver
// follows them.
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
        let entry = |_| Entry {
            wr: blank(),
            sge: sys::Sge::default(),
        };
        let entries: Box<[Entry<W>]> = (0..POSTLIST_MAX).map(entry).collect();
        let mut chain = Self {
            entries: NonNull::from(Box::leak(entries)),
        };
        for i in 0..POSTLIST_MAX {
            let next = chain.wr(i + 1);
            let Entry { wr, sge } = &mut chain.entries()[i];
            wr.link(next, sge);
        }
        chain
    }

    /// Where work request `i` lies.
    #[inline]
    fn wr(&self, i: usize) -> *mut W {
        // A work request is the first thing in its entry.
        const { assert!(std::mem::offset_of!(Entry<W>, wr) == 0) };
        self.entries
            .cast::<Entry<W>>()
            .as_ptr()
            .wrapping_add(i)
            .cast()
    }

    #[inline]
    fn entries(&mut self) -> &mut [Entry<W>] {
        // SAFETY: the allocation is this value's, which is borrowed for as long as the slice lives.
        unsafe { self.entries.as_mut() }
    }

    /// Lets `post` have the first `count`, one at least, which must be filled, as a chain of their
    /// own.
    #[inline]
    fn cut<R>(&mut self, count: usize, post: impl FnOnce(*mut W) -> R) -> R {
        let (first, next) = (self.wr(0), self.wr(count));
        *self.entries()[count - 1].wr.next() = std::ptr::null_mut();
        let posted = post(first);
        *self.entries()[count - 1].wr.next() = next;
        posted
    }
}

impl<W> Drop for Chain<W> {
    fn drop(&mut self) {
        // SAFETY: it came from Box::leak, and nothing else names it.
        drop(unsafe { Box::from_raw(self.entries.as_ptr()) });
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
    /// Of a region, sent inline.
    pub(crate) copied: usize,
}

/// What a post needs of its port, beside the queue pair.
pub(crate) struct Post<'a> {
    pub(crate) regions: &'a Slab<Region>,
    pub(crate) addresses: &'a Slab<Address>,
    pub(crate) bounds: Bounds,
}

/// What of a queue pair its work requests are checked against.
struct Face {
    id: QpId,
    pd: u32,
    transport: Transport,
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
    if !has_room(&qp.sends, batch.len())? {
        return Ok(0);
    }
    let face = Face {
        id: qp.id,
        pd: qp.pd,
        transport: qp.transport,
    };
    let noted = qp.sends.batch(qp.id);
    // Each of the two loops holds in registers what it needs.
    match qp.transport {
        Transport::Ud => {
            let most = port.bounds.inline.min(port.bounds.datagram);
            fill(batch, chain, noted, |from, entry| {
                datagram(&face, port, most, from, entry)
            })?;
        }
        Transport::Rc | Transport::Uc => {
            let most = port.bounds.inline.min(port.bounds.message);
            fill(batch, chain, noted, |from, entry| {
                connected(&face, port, most, from, entry)
            })?;
        }
    }
    // SAFETY: inline payloads are borrowed by `batch`, or lie in regions of this port, which are
    // mapped as long as it has them; all others are by `local` within such regions, under their own
    // keys. A region freed before its completion is closed by its key.
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
    if !has_room(&qp.recvs, batch.len())? {
        return Ok(0);
    }
    let mut noted = qp.recvs.batch(qp.id);
    for (from, Entry { wr, sge }) in batch.iter().zip(chain.entries()) {
        *sge = local(regions, qp.pd, from.into).ok_or(PostError::Bounds)?;
        wr.num_sge = c_int::from(sge.length > 0);
        wr.wr_id = noted.put(from.wr_id, Opcode::Recv);
    }
    // SAFETY: every buffer lies, by `local`, within a region of this port, under its own key.
    let posted = chain.cut(batch.len(), |first| unsafe { qp.raw.post_recv(first) });
    let count = taken(posted, chain, batch.len());
    qp.recvs.took(count);
    Ok(count as usize)
}

/// Whether there is something to post, for which `queue` and a chain have room.
#[inline]
fn has_room(queue: &Outstanding, count: usize) -> Result<bool, PostError> {
    if count > queue.room() {
        return Err(PostError::Full);
    }
    if count > POSTLIST_MAX {
        return Err(PostError::Bounds);
    }
    Ok(count > 0)
}

/// How many of `count` were taken, by the first that was not.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "at most POSTLIST_MAX")]
fn taken<W: Link>(posted: Result<(), *mut W>, chain: &Chain<W>, count: usize) -> u32 {
    let Err(bad) = posted else {
        return count as u32;
    };
    let gone = bad.addr().wrapping_sub(chain.wr(0).addr()) / size_of::<Entry<W>>();
    if bad.is_null() {
        0
    } else {
        gone.min(count) as u32
    }
}

/// Writes `batch` to the front of `chain`, each by `write`, which says which verb it is. Who is told
/// of its end is written here.
#[inline]
fn fill(
    batch: &[SendWr<'_>],
    chain: &mut Chain<sys::SendWr>,
    mut noted: Batch<'_>,
    write: impl Fn(&SendWr<'_>, &mut Entry<sys::SendWr>) -> Result<Opcode, PostError>,
) -> Result<(), PostError> {
    for (from, entry) in batch.iter().zip(chain.entries()) {
        let opcode = write(from, entry)?;
        entry.wr.send_flags |= flag(from.signaled, sys::IBV_SEND_SIGNALED)
            | flag(from.solicited, sys::IBV_SEND_SOLICITED);
        entry.wr.wr_id = noted.put(from.wr_id, opcode);
    }
    Ok(())
}

/// `inline_max`: most bytes that travel in the work request.
#[inline]
fn datagram(
    qp: &Face,
    port: &Post<'_>,
    inline_max: usize,
    from: &SendWr<'_>,
    entry: &mut Entry<sys::SendWr>,
) -> Result<Opcode, PostError> {
    let SendOp::Send {
        payload,
        imm,
        to: Some(to),
    } = &from.op
    else {
        return Err(PostError::Transport(qp.transport));
    };
    let address = port.addresses.get(to.0);
    let address = address.filter(|address| address.qp == qp.id);
    let address = address.ok_or(PostError::Transport(qp.transport))?;
    entry.wr.wr.ud = sys::Datagram {
        ah: address.ah.as_ptr(),
        remote_qpn: address.qpn,
        remote_qkey: address.qkey,
    };
    with_imm(&mut entry.wr, *imm, sys::IBV_WR_SEND);
    carry(payload, inline_max, entry, |from, entry| {
        refer(qp, port, port.bounds.datagram, from, entry)
    })?;
    Ok(Opcode::Send)
}

#[inline]
fn connected(
    qp: &Face,
    port: &Post<'_>,
    inline_max: usize,
    from: &SendWr<'_>,
    entry: &mut Entry<sys::SendWr>,
) -> Result<Opcode, PostError> {
    let (payload, opcode) = match &from.op {
        SendOp::Send {
            payload,
            imm,
            to: None,
        } => {
            with_imm(&mut entry.wr, *imm, sys::IBV_WR_SEND);
            (payload, Opcode::Send)
        }
        SendOp::Write { payload, to, imm } => {
            with_imm(&mut entry.wr, *imm, sys::IBV_WR_RDMA_WRITE);
            entry.wr.wr = target(*to);
            (payload, Opcode::Write)
        }
        op if qp.transport == Transport::Rc => return fetch(qp, port, op, entry),
        _ => return Err(PostError::Transport(qp.transport)),
    };
    carry(payload, inline_max, entry, |from, entry| {
        refer(qp, port, port.bounds.message, from, entry)
    })?;
    Ok(opcode)
}

/// The verbs that bring something back.
#[inline(never)]
fn fetch(
    qp: &Face,
    port: &Post<'_>,
    op: &SendOp<'_>,
    Entry { wr, sge }: &mut Entry<sys::SendWr>,
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
    *sge = local(port.regions, qp.pd, into)
        .filter(|_| fits)
        .ok_or(PostError::Bounds)?;
    wr.num_sge = c_int::from(sge.length > 0);
    wr.opcode = number;
    wr.send_flags = 0;
    Ok(opcode)
}

/// Has the work request carry `payload`, or by `refer` what lies in a region.
#[inline]
fn carry(
    payload: &Payload<'_>,
    inline_max: usize,
    entry: &mut Entry<sys::SendWr>,
    refer: impl Fn(Local, &mut Entry<sys::SendWr>) -> Result<(), PostError>,
) -> Result<(), PostError> {
    // The driver copies inline bytes before the post returns; the key is not looked at.
    let (at, len) = match *payload {
        Payload::Words(words) => (words.as_ptr().expose_provenance(), size_of_val(words)),
        Payload::Inline(bytes) => (bytes.as_ptr().expose_provenance(), bytes.len()),
        Payload::Region(from) => return refer(from, entry),
    };
    if len > inline_max {
        return Err(PostError::Bounds);
    }
    let Entry { wr, sge } = entry;
    #[expect(clippy::cast_possible_truncation, reason = "within the inline bound")]
    let length = len as u32;
    (sge.addr, sge.length) = (at as u64, length);
    wr.num_sge = c_int::from(len > 0);
    wr.send_flags = flag(len > 0, sys::IBV_SEND_INLINE);
    Ok(())
}

/// Has the work request name `from`, which the device reads later, or the driver now, and which is
/// no longer than `most`.
#[inline(never)]
fn refer(
    qp: &Face,
    port: &Post<'_>,
    most: usize,
    from: Local,
    Entry { wr, sge }: &mut Entry<sys::SendWr>,
) -> Result<(), PostError> {
    *sge = local(port.regions, qp.pd, from)
        .filter(|_| from.len <= most)
        .ok_or(PostError::Bounds)?;
    wr.num_sge = c_int::from(sge.length > 0);
    wr.send_flags = 0;
    if (1..=port.bounds.copied).contains(&from.len)
        && let Some(region) = port.regions.get(from.region.0)
    {
        // The driver reads it where it lies here, which is not where the device would.
        sge.addr += region.span.as_ptr().expose_provenance() as u64;
        wr.send_flags = sys::IBV_SEND_INLINE.cast_unsigned();
    }
    Ok(())
}

// `Payload::Words` are little-endian, and given to the driver where they lie.
const _: () = assert!(cfg!(target_endian = "little"));

/// `verb`, or the one after it, which carries an immediate.
#[inline]
fn with_imm(wr: &mut sys::SendWr, imm: Option<u32>, verb: c_int) {
    match imm {
        None => wr.opcode = verb,
        Some(imm) => (wr.opcode, wr.imm_data) = (verb + 1, imm.to_be()),
    }
}

const _: () = assert!(sys::IBV_WR_SEND_WITH_IMM == sys::IBV_WR_SEND + 1);
const _: () = assert!(sys::IBV_WR_RDMA_WRITE_WITH_IMM == sys::IBV_WR_RDMA_WRITE + 1);

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
