//! Counters of an engine: packets, retransmissions, and drops by reason.

use herdwick_fabric::{counted_reasons, counters};

counted_reasons! {
    /// The reason why a packet was dropped.
    #[repr(u8)]
    pub enum Drop counted by
    /// Packets dropped, by reason.
    Drops {
        /// Fewer bytes than its headers need.
        Short = "roce_short_packet",
        /// A transport version other than 0.
        Version = "roce_unknown_version",
        /// Another partition.
        Partition = "roce_wrong_partition",
        /// An unsupported opcode.
        Opcode = "roce_unknown_opcode",
        /// A pad that does not round the length up to four bytes.
        Pad = "roce_bad_pad",
        /// The ICRC is wrong.
        Icrc = "roce_bad_icrc",
        /// No such queue pair.
        UnknownQp = "roce_unknown_qpn",
        /// A queue pair that is not connected, or has failed.
        NotReady = "roce_qp_not_ready",
        /// An opcode of another transport than the queue pair's.
        Transport = "roce_wrong_transport",
        /// A source other than the peer that the queue pair is connected to.
        Source = "roce_wrong_source",
        /// A datagram with the wrong Q_Key.
        Qkey = "roce_bad_qkey",
        /// A message without a RECV.
        NoRecv = "roce_no_recv",
        /// A message longer than the buffer of its RECV.
        ShortBuffer = "roce_short_buffer",
        /// Not the expected sequence number.
        Sequence = "roce_out_of_sequence",
        /// A message cut short by the start of another.
        Partial = "roce_message_cut_short",
        /// A wrong length or order of opcodes.
        Length = "roce_bad_length",
        /// An unknown rkey.
        Rkey = "roce_unknown_rkey",
        /// An rkey of another queue pair.
        Scope = "roce_rkey_scope",
        /// A right that was not granted.
        Right = "roce_no_right",
        /// A range outside its region.
        Range = "roce_out_of_range",
        /// An atomic on a word that is not aligned.
        Misaligned = "roce_misaligned_atomic",
        /// A region that was deregistered in the meantime.
        Gone = "roce_region_gone",
        /// A response that matches no outstanding request.
        Answer = "roce_unmatched_responses",
        /// The tag of a keyed packet is wrong.
        Tag = "roce_bad_tag",
        /// A keyed packet whose counter was used before or is too old.
        Replay = "roce_replayed",
        /// No known key, where one is required.
        Unkeyed = "roce_unkeyed",
        /// More READs at once than are served, or a repeated one too old to serve again.
        TooManyReads = "roce_too_many_reads",
        /// A congestion notification (CNP) although no sent packet was markable.
        UnexpectedCnp = "roce_unexpected_cnps",
        /// From a source with too many refused packets in this pass; dropped unseen.
        TooManyRefused = "roce_too_many_refused",
    }
}

counters! {
    /// Counters of the repairs on an engine's connections.
    pub struct ConnectionCounters {
        /// Packets passed to the wire again.
        retransmitted = "roce_retransmitted" as event,
        /// ACK timeouts.
        timeouts = "roce_timeouts" as event,
        /// Sequence NAKs that arrived, and gaps found in responses.
        sequence_naks = "roce_sequence_naks" as event,
        /// RNR NAKs that arrived.
        rnr_naks = "roce_rnr_naks" as event,
        /// Requests that arrived again, and were answered without being executed again.
        duplicates = "roce_duplicates" as event,
        /// Congestion notifications (CNPs) that arrived.
        cnps = "roce_cnps" as event,
        /// Times that the wire had no room.
        no_room = "roce_no_room" as event,
    }
}

impl Drop {
    /// Returns whether a correct sender causes almost none of these drops. The other reasons are
    /// losses, repetitions and reordering in the network, or not the sender's fault.
    pub(crate) const fn is_wrong(self) -> bool {
        match self {
            Self::Short
            | Self::Version
            | Self::Partition
            | Self::Opcode
            | Self::Pad
            | Self::Icrc
            | Self::Transport
            | Self::Qkey
            | Self::Length
            | Self::Rkey
            | Self::Scope
            | Self::Right
            | Self::Range
            | Self::Misaligned
            | Self::Tag
            | Self::Replay
            | Self::Unkeyed
            | Self::UnexpectedCnp => true,
            Self::UnknownQp
            | Self::NotReady
            | Self::Source
            | Self::NoRecv
            | Self::ShortBuffer
            | Self::Sequence
            | Self::Partial
            | Self::Gone
            | Self::Answer
            | Self::TooManyReads
            | Self::TooManyRefused => false,
        }
    }
}

/// Counters of an engine since it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets that arrived, good or bad.
    pub packets_in: u64,
    /// Packets passed to the wire.
    pub packets_out: u64,
    /// The repairs on connections.
    pub connections: ConnectionCounters,
    drops: Drops,
}

impl Counters {
    /// Returns the packets dropped for this reason.
    #[must_use]
    pub fn dropped(&self, reason: Drop) -> u64 {
        self.drops.get(reason)
    }

    /// Returns the counter of every drop reason with its name in `stats`.
    pub fn drops(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.drops.iter()
    }

    #[inline]
    pub(crate) fn drop(&mut self, reason: Drop) {
        self.drops.add(reason, 1);
    }
}
