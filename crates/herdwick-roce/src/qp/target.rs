//! Where the packets of a work request go.

use crate::FlowId;

/// The destination of the packets of a work request.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) flow: FlowId,
    pub(crate) qpn: u32,
    /// UD: the Q_Key that they carry.
    pub(crate) qkey: u32,
    /// The engine's keyed peering that makes their trailers.
    pub(crate) keyed: Option<u32>,
}
