//! Options of the worker side.

use herdwick_fabric::{CqId, QpId, RegionId};

/// Most UD queue pairs that send a worker's replies.
pub const REPLY_QPS_MAX: usize = 3;

/// Options of a [`ServerSide`](crate::ServerSide).
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Number of this worker, below `workers`.
    pub worker: usize,
    /// Number of workers: each owns one partition of the keys.
    pub workers: usize,
    /// The UD queue pairs that send the replies, 1 to [`REPLY_QPS_MAX`], each with a send queue of
    /// at least [`SEND_DEPTH_MIN`](crate::SEND_DEPTH_MIN).
    pub replies: Vec<QpId>,
    /// Completion queue of their SENDs, and of nothing else.
    pub reply_cq: CqId,
    /// Completion queue of clients' datagrams, of announced WRITEs and of connections that end.
    pub request_cq: CqId,
    /// Bytes that precede a datagram in its buffer: the provider's `datagram_header_bytes`.
    pub request_header_bytes: usize,
    /// Most bytes of a reply, head included: no more than the provider's `datagram_bytes_max`.
    pub reply_bytes_max: usize,
    /// Local memory for replies too large for a completion, in the domain of `replies`:
    /// [`ServerOptions::reply_memory`] bytes.
    pub reply_region: RegionId,
    /// Most work requests in one post: the provider's `postlist_max`.
    pub postlist_max: usize,
    /// Most inline bytes of a work request, at least [`REPLY_BYTES_MIN`](crate::REPLY_BYTES_MIN): the provider's
    /// `inline_bytes_max`.
    pub inline_bytes_max: usize,
    /// The provider's `gso` (GSO): short replies are padded to the length of those that carry
    /// values, and one hot client may fill a batch, however many clients there are.
    pub gso: bool,
    /// Most clients.
    pub clients_max: usize,
}
