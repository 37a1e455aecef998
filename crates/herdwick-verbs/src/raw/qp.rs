//! Queue pairs and address handles, destroyed on drop.
//!
//! Circular import with `raw`: a queue pair keeps its domain and completion queues alive, and is made by the
//! domain.

use std::{
    ffi::c_int,
    io,
    ptr::{self, NonNull},
    sync::Arc,
};

use super::{Cq, Pd, made};
use crate::{library::answer, sys};

/// The sizes of a queue pair's queues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpShape {
    pub(crate) kind: c_int,
    pub(crate) sends: u32,
    pub(crate) recvs: u32,
    pub(crate) inline_bytes: u32,
}

/// A queue pair.
pub(crate) struct Qp {
    raw: NonNull<sys::Qp>,
    pd: Arc<Pd>,
    _cqs: [Arc<Cq>; 2],
}

impl Qp {
    pub(crate) fn new(
        pd: &Arc<Pd>,
        send: &Arc<Cq>,
        recv: &Arc<Cq>,
        shape: QpShape,
    ) -> io::Result<Self> {
        let mut init = sys::QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: send.raw.as_ptr(),
            recv_cq: recv.raw.as_ptr(),
            srq: ptr::null_mut(),
            cap: sys::QpCap {
                // Drivers refuse a queue without entries.
                max_send_wr: shape.sends.max(1),
                max_recv_wr: shape.recvs.max(1),
                // Each work request has one element at most.
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: shape.inline_bytes,
            },
            qp_type: shape.kind,
            // Each work request says whether it is signaled.
            sq_sig_all: 0,
        };
        let create = pd.context.functions().ibv_create_qp;
        // SAFETY: a live domain and live queues, which this value keeps alive.
        let raw = made(unsafe { create(pd.raw.as_ptr(), &raw mut init) })?;
        Ok(Self {
            raw,
            pd: Arc::clone(pd),
            _cqs: [Arc::clone(send), Arc::clone(recv)],
        })
    }

    pub(crate) fn address(&self) -> usize {
        self.raw.as_ptr().addr()
    }

    pub(crate) fn number(&self) -> u32 {
        // SAFETY: libibverbs wrote it when it made the object.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    pub(crate) fn modify(&self, mut attributes: sys::QpAttr, mask: c_int) -> io::Result<()> {
        let modify = self.pd.context.functions().ibv_modify_qp;
        // SAFETY: the attributes contain no pointers.
        answer(unsafe { modify(self.raw.as_ptr(), &raw mut attributes, mask) })
    }

    /// Returns whether the device promises that the bytes of a WRITE become visible in rising
    /// order.
    pub(crate) fn writes_in_order(&self) -> bool {
        let asked = self.pd.context.functions().ibv_query_qp_data_in_order;
        let ask = |ask: unsafe extern "C" fn(*mut sys::Qp, c_int, u32) -> c_int| {
            // SAFETY: a live queue pair.
            // With flags 0 it returns 1 if the whole of a message is in order
            // (ibv_query_qp_data_in_order(3)).
            unsafe { ask(self.raw.as_ptr(), sys::IBV_WR_RDMA_WRITE, 0) == 1 }
        };
        // A library without the function promises nothing.
        asked.is_some_and(ask)
    }

    /// Posts a chain of work requests; the error is the first request that was not taken.
    ///
    /// # Safety
    /// `first` is the head of a chain of valid work requests. Their inline payloads are readable
    /// now; their other buffers stay registered under the keys given with them until completion.
    #[inline]
    pub(crate) unsafe fn post_send(&self, first: *mut sys::SendWr) -> Result<(), *mut sys::SendWr> {
        let raw = self.raw.as_ptr();
        let mut bad = ptr::null_mut();
        // SAFETY: the caller's promise, and the tables of a context are set before
        // `ibv_open_device` returns it.
        match unsafe { ((*(*raw).context).ops.post_send)(raw, first, &raw mut bad) } {
            0 => Ok(()),
            // The number of the error is not used: the queue pair fails in any case.
            _ => Err(bad),
        }
    }

    /// Posts RECVs, as [`Qp::post_send`] does sends.
    ///
    /// # Safety
    /// `first` is the head of a chain of valid work requests, whose buffers stay registered under
    /// the keys given with them until completion.
    #[inline]
    pub(crate) unsafe fn post_recv(&self, first: *mut sys::RecvWr) -> Result<(), *mut sys::RecvWr> {
        let raw = self.raw.as_ptr();
        let mut bad = ptr::null_mut();
        // SAFETY: as in `post_send`.
        match unsafe { ((*(*raw).context).ops.post_recv)(raw, first, &raw mut bad) } {
            0 => Ok(()),
            _ => Err(bad),
        }
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        let functions = self.pd.context.functions();
        // SAFETY: made by ibv_create_qp, destroyed once, before its domain and queues.
        unsafe { (functions.ibv_destroy_qp)(self.raw.as_ptr()) };
    }
}

/// An address handle.
pub(crate) struct Ah {
    raw: NonNull<sys::Ah>,
    pd: Arc<Pd>,
}

impl Ah {
    pub(crate) fn new(pd: &Arc<Pd>, mut to: sys::AhAttr) -> io::Result<Self> {
        let create = pd.context.functions().ibv_create_ah;
        // SAFETY: a live domain, which this value keeps alive.
        let raw = made(unsafe { create(pd.raw.as_ptr(), &raw mut to) })?;
        let pd = Arc::clone(pd);
        Ok(Self { raw, pd })
    }

    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut sys::Ah {
        self.raw.as_ptr()
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        let functions = self.pd.context.functions();
        // SAFETY: made by ibv_create_ah, destroyed once.
        unsafe { (functions.ibv_destroy_ah)(self.raw.as_ptr()) };
    }
}
