//! The receive queues of one client: for its datagrams, or for announcements of its WRITEs.

use herdwick_fabric::{Local, Port, PostError, QpId, RecvWr, RegionId, Source};
use herdwick_mem::{Span, WORD};

use super::job::BATCH;
use crate::wire::REQUEST_BYTES_MAX;

/// One client's UD receive queue: a queue pair of its own, so that other clients' datagrams cannot
/// use up its RECVs.
#[derive(Clone, Debug)]
pub struct UdQueue {
    /// The UD queue pair; its RECVs complete at
    /// [`ServerOptions::request_cq`](crate::ServerOptions::request_cq).
    pub qp: QpId,
    /// The source that the client's datagrams carry; others are dropped.
    pub source: Source,
    /// Number of RECVs: the client's window, and some for its retries.
    pub recvs: usize,
    /// Local memory for them, `recvs` x [`UdQueue::recv_bytes`], in the domain of `qp`.
    pub memory: RegionId,
    /// Where in that memory they begin.
    pub offset: usize,
}

/// One client's receive queue for announcements, at the connection of its WRITEs.
#[derive(Clone, Debug)]
pub struct WriteNotify {
    /// The connected queue pair; its RECVs complete at
    /// [`ServerOptions::request_cq`](crate::ServerOptions::request_cq).
    pub qp: QpId,
    /// Number of RECVs. They have no buffers.
    pub recvs: usize,
    /// A region in the domain of `qp`: even a buffer of 0 bytes names one.
    pub memory: RegionId,
    /// Whether every WRITE is announced. A line is then not checked before its announcement.
    pub always: bool,
}

/// Where one client's WRITEs to its request lines arrive, for a port that reports them
/// ([`Port::watch_writes`]).
#[derive(Clone, Copy, Debug)]
pub struct LineWatch {
    /// The connected queue pair.
    pub qp: QpId,
    /// The request lines.
    pub range: Local,
}

/// A UD receive queue in service.
pub(super) struct OpenUdQueue {
    pub(super) ud_queue: UdQueue,
    pub(super) memory: Span,
    /// Bytes that the provider places before a datagram.
    header: usize,
    /// The client's index in the client table, which the work request ids of its RECVs carry.
    client: u32,
}

impl UdQueue {
    /// Bytes of memory for each RECV, on a provider that places `header` bytes before a datagram.
    /// The header is rounded up so that a datagram begins at a word boundary.
    #[must_use]
    pub const fn recv_bytes(header: usize) -> usize {
        header.next_multiple_of(WORD) + REQUEST_BYTES_MAX
    }
}

impl OpenUdQueue {
    /// Posts the RECVs of the client at index `client` of the client table.
    pub(super) fn open<P: Port>(
        port: &mut P,
        ud_queue: UdQueue,
        header: usize,
        client: u32,
    ) -> Result<Self, PostError> {
        let needed = ud_queue.offset + ud_queue.recvs * UdQueue::recv_bytes(header);
        let memory = port.region(ud_queue.memory).cloned();
        let memory = memory.filter(|memory| memory.len() >= needed);
        let open = Self {
            memory: memory.ok_or(PostError::Bounds)?,
            header,
            client,
            ud_queue,
        };
        let recvs: Vec<_> = (0..open.ud_queue.recvs).map(|n| open.recv(n)).collect();
        let mut posts = recvs.chunks(BATCH);
        posts.try_for_each(|recvs| port.post_recv(open.ud_queue.qp, recvs))?;
        Ok(open)
    }

    #[inline]
    pub(super) fn recv(&self, number: usize) -> RecvWr {
        RecvWr {
            wr_id: u64::from(self.client) << 32 | number as u64,
            into: Local {
                region: self.ud_queue.memory,
                // The header ends where the datagram begins, at a word boundary.
                offset: self.start(number) - self.header,
                len: self.header + REQUEST_BYTES_MAX,
            },
        }
    }

    /// Where the datagram in buffer `number` begins, in bytes from the start of the memory.
    #[inline]
    pub(super) fn start(&self, number: usize) -> usize {
        let before = self.ud_queue.offset + number * UdQueue::recv_bytes(self.header);
        before + self.header.next_multiple_of(WORD)
    }
}

impl WriteNotify {
    /// Posts the RECVs of the client at `index` of the client table.
    pub(super) fn open<P: Port>(&self, port: &mut P, index: u32) -> Result<(), PostError> {
        let recvs: Vec<_> = (0..self.recvs).map(|n| self.recv(index, n)).collect();
        let mut posts = recvs.chunks(BATCH);
        posts.try_for_each(|recvs| port.post_recv(self.qp, recvs))
    }

    #[inline]
    pub(super) fn recv(&self, index: u32, number: usize) -> RecvWr {
        RecvWr {
            wr_id: u64::from(index) << 32 | number as u64,
            into: Local {
                region: self.memory,
                offset: 0,
                len: 0,
            },
        }
    }
}
