//! Counters of an engine: packets, retransmissions, and drops by reason.

/// The reason why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Drop {
    /// Fewer bytes than its headers need.
    Short,
    /// A transport version other than 0.
    Version,
    /// Another partition.
    Partition,
    /// An unsupported opcode.
    Opcode,
    /// A pad that does not round the length up to four bytes.
    Pad,
    /// The ICRC is wrong.
    Icrc,
    /// No such queue pair.
    UnknownQp,
    /// A queue pair that is not connected, or has failed.
    NotReady,
    /// An opcode of another transport than the queue pair's.
    Transport,
    /// A source other than the peer that the queue pair is connected to.
    Source,
    /// A datagram with the wrong Q_Key.
    Qkey,
    /// A message without a RECV.
    NoRecv,
    /// A message longer than the buffer of its RECV.
    ShortBuffer,
    /// Not the expected sequence number.
    Sequence,
    /// A message cut short by the start of another.
    Partial,
    /// A wrong length or order of opcodes.
    Length,
    /// An unknown rkey.
    Rkey,
    /// An rkey of another queue pair.
    Scope,
    /// A right that was not granted.
    Right,
    /// A range outside its region.
    Range,
    /// An atomic on a word that is not aligned.
    Misaligned,
    /// A region that was deregistered in the meantime.
    Gone,
    /// A response that matches no outstanding request.
    Answer,
    /// The tag of a keyed packet is wrong.
    Tag,
    /// A keyed packet whose counter was used before or is too old.
    Replay,
    /// No known key, where one is required.
    Unkeyed,
    /// More READs at once than are served, or a repeated one too old to serve again.
    TooManyReads,
    /// A congestion notification although no sent packet was markable.
    Unasked,
    /// From a source with too many refused packets in this pass; dropped unseen.
    TooManyRefused,
}

impl Drop {
    /// Every reason, in the order of the counters.
    pub const ALL: [Self; 29] = [
        Self::Short,
        Self::Version,
        Self::Partition,
        Self::Opcode,
        Self::Pad,
        Self::Icrc,
        Self::UnknownQp,
        Self::NotReady,
        Self::Transport,
        Self::Source,
        Self::Qkey,
        Self::NoRecv,
        Self::ShortBuffer,
        Self::Sequence,
        Self::Partial,
        Self::Length,
        Self::Rkey,
        Self::Scope,
        Self::Right,
        Self::Range,
        Self::Misaligned,
        Self::Gone,
        Self::Answer,
        Self::Tag,
        Self::Replay,
        Self::Unkeyed,
        Self::TooManyReads,
        Self::Unasked,
        Self::TooManyRefused,
    ];

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
            | Self::Unasked => true,
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

    /// Returns its name in `stats`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Short => "roce_short_packet",
            Self::Version => "roce_unknown_version",
            Self::Partition => "roce_wrong_partition",
            Self::Opcode => "roce_unknown_opcode",
            Self::Pad => "roce_bad_pad",
            Self::Icrc => "roce_bad_icrc",
            Self::UnknownQp => "roce_unknown_qpn",
            Self::NotReady => "roce_qp_not_ready",
            Self::Transport => "roce_wrong_transport",
            Self::Source => "roce_wrong_source",
            Self::Qkey => "roce_bad_qkey",
            Self::NoRecv => "roce_no_recv",
            Self::ShortBuffer => "roce_short_buffer",
            Self::Sequence => "roce_out_of_sequence",
            Self::Partial => "roce_message_cut_short",
            Self::Length => "roce_bad_length",
            Self::Rkey => "roce_unknown_rkey",
            Self::Scope => "roce_rkey_scope",
            Self::Right => "roce_no_right",
            Self::Range => "roce_out_of_range",
            Self::Misaligned => "roce_misaligned_atomic",
            Self::Gone => "roce_region_gone",
            Self::Answer => "roce_stray_answer",
            Self::Tag => "roce_bad_tag",
            Self::Replay => "roce_replayed",
            Self::Unkeyed => "roce_unkeyed",
            Self::TooManyReads => "roce_too_many_reads",
            Self::Unasked => "roce_unasked_congestion",
            Self::TooManyRefused => "roce_too_many_refused",
        }
    }
}

const _: () = {
    let mut i = 0;
    while i < Drop::ALL.len() {
        assert!(Drop::ALL[i] as usize == i, "in the order of the enum");
        i += 1;
    }
};

/// Counters of an engine since it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets that arrived, good or bad.
    pub packets_in: u64,
    /// Packets passed to the wire.
    pub packets_out: u64,
    /// Packets passed to the wire again.
    pub retransmitted: u64,
    /// ACK timeouts.
    pub timeouts: u64,
    /// Sequence NAKs that arrived, and gaps found in responses.
    pub gaps_told: u64,
    /// RNR NAKs that arrived.
    pub not_ready_told: u64,
    /// Requests that arrived again, and were answered without being executed again.
    pub duplicates: u64,
    /// Congestion notifications that arrived.
    pub congestion: u64,
    /// Times that the wire had no room.
    pub no_room: u64,
    drops: [u64; Drop::ALL.len()],
}

impl Counters {
    /// Returns the packets dropped for this reason.
    #[must_use]
    pub fn dropped(&self, reason: Drop) -> u64 {
        self.drops[reason as usize]
    }

    /// Returns the counters of repairs on connections with their names in `stats`, zeros included.
    pub fn of_connections(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let met = [
            ("roce_retransmitted", self.retransmitted),
            ("roce_timeouts", self.timeouts),
            ("roce_gaps_told", self.gaps_told),
            ("roce_not_ready_told", self.not_ready_told),
            ("roce_duplicates", self.duplicates),
            ("roce_congestion", self.congestion),
            ("roce_no_room", self.no_room),
        ];
        met.into_iter()
    }

    /// Returns the counter of every drop reason with its name in `stats`.
    pub fn drops(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let names = Drop::ALL.iter().map(|reason| reason.name());
        names.zip(self.drops)
    }

    #[inline]
    pub(crate) fn drop(&mut self, reason: Drop) {
        self.drops[reason as usize] += 1;
    }
}
