//! Posting: translates a batch to a chain of verbs work requests, posted with one call of the
//! driver.
#![expect(unsafe_code, reason = "posts memory by address")]

use std::{ffi::c_int, ptr::NonNull};

use herdwick_fabric::{
    Local, Opcode, Payload, PostError, QpId, QpState, RecvWr, Remote, SendOp, SendWr, Slab,
    Transport,
};

use crate::{
    POSTLIST_MAX,
    objects::{Address, Batch, Outstanding, PortQp, Region, local},
    sys,
};

/// Work requests in the verbs' form, allocated and linked once.
pub(crate) struct Chain<W> {
    entries: NonNull<[Entry<W>]>,
}

/// A work request and its only scatter/gather element.
#[repr(C)]
struct Entry<W> {
    wr: W,
    sge: sys::Sge,
}

// SAFETY: it owns its allocation, which its links point into and which stays in place when the
// value moves. Each post writes the other addresses in it, those of payloads and address handles,
// before the driver follows them.
unsafe impl<W> Send for Chain<W> {}

/// A work request of either kind: both can be linked in a chain.
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
    /// Allocates a chain; `blank` makes unlinked work requests.
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

    /// Returns the address of work request `i`.
    #[inline]
    fn wr(&self, i: usize) -> *mut W {
        // The work request is the first field of its entry.
        const { assert!(std::mem::offset_of!(Entry<W>, wr) == 0) };
        self.entries
            .cast::<Entry<W>>()
            .as_ptr()
            .wrapping_add(i)
            .cast()
    }

    #[inline]
    fn entries(&mut self) -> &mut [Entry<W>] {
        // SAFETY: the allocation belongs to this value, which is borrowed as long as the slice
        // lives.
        unsafe { self.entries.as_mut() }
    }

    /// Calls `post` with the first `count` requests, at least one, as a chain of their own. They
    /// must have been filled in.
    #[inline]
    fn cut<R>(&mut self, count: usize, post: impl FnOnce(*mut W) -> R) -> R {
        let (first, next) = (self.wr(0), self.wr(count));
        *self.entries()[count - 1].wr.next() = std::ptr::null_mut();
        let posted = post(first);
        // Linked again, so that the next post need not build the chain.
        *self.entries()[count - 1].wr.next() = next;
        posted
    }
}

impl<W> Drop for Chain<W> {
    fn drop(&mut self) {
        // SAFETY: it came from Box::leak, and there is no other pointer to it.
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

/// The size limits of a device, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) inline: usize,
    pub(crate) datagram: usize,
    pub(crate) message: usize,
    /// Payloads in regions are sent inline up to this length.
    pub(crate) copied: usize,
}

/// The parts of a port that a post needs in addition to the queue pair.
pub(crate) struct Post<'a> {
    pub(crate) regions: &'a Slab<Region>,
    pub(crate) addresses: &'a Slab<Address>,
    pub(crate) bounds: Bounds,
}

/// The properties of a queue pair that work requests are checked against.
struct Face {
    id: QpId,
    pd: u32,
    transport: Transport,
}

/// Posts a batch. All of it is checked before any of it is posted. Returns how many requests the
/// driver took; fewer than all if the driver found an error that these checks do not cover.
#[inline]
pub(crate) fn post(
    qp: &mut PortQp,
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
    // Two loops, so that each keeps what it needs in registers.
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
    // mapped as long as the port has them; all others lie in such regions, as `local` checked, and
    // are named by their own keys. If a region is freed before its completion, its key is invalid.
    let posted = chain.cut(batch.len(), |first| unsafe { qp.raw.post_send(first) });
    let count = taken(posted, chain, batch.len());
    qp.sends.took(count);
    Ok(count as usize)
}

/// Posts RECVs, as [`post`] does sends.
pub(crate) fn post_recv(
    qp: &mut PortQp,
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
    // SAFETY: `local` checked that every buffer lies within a region of this port, named by its own
    // key.
    let posted = chain.cut(batch.len(), |first| unsafe { qp.raw.post_recv(first) });
    let count = taken(posted, chain, batch.len());
    qp.recvs.took(count);
    Ok(count as usize)
}

/// Returns whether there is anything to post; an error if `queue` or a chain has no room for it.
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

/// Returns how many of `count` requests were taken, from the address of the first refused one.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "at most POSTLIST_MAX")]
fn taken<W: Link>(posted: Result<(), *mut W>, chain: &Chain<W>, count: usize) -> u32 {
    let Err(bad) = posted else {
        return count as u32;
    };
    // What a driver returns is not trusted: an address outside the chain counts as all or none.
    let gone = bad.addr().wrapping_sub(chain.wr(0).addr()) / size_of::<Entry<W>>();
    if bad.is_null() {
        0
    } else {
        gone.min(count) as u32
    }
}

/// Fills the front of `chain` with `batch`. `write` fills in each request and returns its verb; the
/// completion flags and the token are set here.
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

/// Fills in a UD SEND; `inline_max` is the maximum inline payload.
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
    carry(payload, inline_max, entry, |local, entry| {
        let bounds = (port.bounds.datagram, port.bounds.copied);
        refer(qp, port, bounds, local, entry)
    })?;
    Ok(Opcode::Send)
}

/// Fills in a request of a connected queue pair; `inline_max` is the maximum inline payload.
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
        op if qp.transport == Transport::Rc => {
            let opcode = fetch(qp, port, op, entry)?;
            entry.wr.send_flags |= flag(from.fence, sys::IBV_SEND_FENCE);
            return Ok(opcode);
        }
        _ => return Err(PostError::Transport(qp.transport)),
    };
    carry(payload, inline_max, entry, |local, entry| {
        // Inline bytes are copied now, before what the fence waits for has come.
        let copied = if from.fence { 0 } else { port.bounds.copied };
        refer(qp, port, (port.bounds.message, copied), local, entry)
    })?;
    // A datagram has no READ before it to wait for.
    entry.wr.send_flags |= flag(from.fence, sys::IBV_SEND_FENCE);
    Ok(opcode)
}

/// Fills in a READ or an atomic.
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

/// Attaches `payload` to the work request; `refer` handles one in a region.
#[inline]
fn carry(
    payload: &Payload<'_>,
    inline_max: usize,
    entry: &mut Entry<sys::SendWr>,
    refer: impl Fn(Local, &mut Entry<sys::SendWr>) -> Result<(), PostError>,
) -> Result<(), PostError> {
    // The driver copies inline bytes before the post returns, and ignores the lkey.
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

/// Attaches the range `from` of a region, at most `most` bytes long: by its key for the device to
/// read later, or, up to `copied` bytes, inline.
#[inline(never)]
fn refer(
    qp: &Face,
    port: &Post<'_>,
    (most, copied): (usize, usize),
    from: Local,
    Entry { wr, sge }: &mut Entry<sys::SendWr>,
) -> Result<(), PostError> {
    *sge = local(port.regions, qp.pd, from)
        .filter(|_| from.len <= most)
        .ok_or(PostError::Bounds)?;
    wr.num_sge = c_int::from(sge.length > 0);
    wr.send_flags = 0;
    if (1..=copied).contains(&from.len)
        && let Some(region) = port.regions.get(from.region.0)
    {
        // The driver reads inline data at its virtual address, not at the zero-based address of the
        // region.
        sge.addr += region.span.as_ptr().expose_provenance() as u64;
        wr.send_flags = sys::IBV_SEND_INLINE.cast_unsigned();
    }
    Ok(())
}

// `Payload::Words` are little-endian, and passed to the driver as they are in memory.
const _: () = assert!(cfg!(target_endian = "little"));

/// Sets the opcode `verb`, or the next one, which is the same verb with an immediate.
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
