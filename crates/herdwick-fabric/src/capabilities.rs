//! What a provider supports: transports, limits and ordering guarantees, as plain data.

/// Features and limits of a provider, as data that a caller can query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The provider's name, as `--fabric` takes it.
    pub name: &'static str,
    /// Reliable connection queue pairs.
    pub rc: bool,
    /// Unreliable connection queue pairs.
    pub uc: bool,
    /// Unreliable datagram queue pairs.
    pub ud: bool,
    /// RC READ.
    pub read: bool,
    /// RC FETCH_ADD and COMPARE_SWAP.
    pub atomics: Atomics,
    /// The last aligned 8 bytes of a WRITE become visible last (crate docs, "Publication").
    pub ordered_write: bool,
    /// An inbound WRITE wakes an armed port, as a completion does.
    pub wakes_on_write: bool,
    /// The port reports which queue pairs were written ([`crate::Port::watch_writes`]). A provider whose
    /// peers, or whose hardware, store WRITEs does not see them.
    pub reports_writes: bool,
    /// UC and UD lose nothing on the way to a receiver that keeps up: every drop means that the
    /// receiver was full.
    pub lossless: bool,
    /// An RC SEND completes when a RECV has taken it. If false, it completes when it has left the
    /// sender, and a short buffer or a missing RECV is an error at the receiver alone.
    pub acknowledged_sends: bool,
    /// Maximum payload bytes of an inline work request.
    pub inline_bytes_max: usize,
    /// Received payloads of up to this many bytes are carried in the completion; 0: never.
    pub inline_receive_bytes: usize,
    /// Bytes in front of the payload in the buffer of a received datagram (the GRH of the verbs:
    /// 40, else 0). [`crate::Completion::byte_len`] and inline receives do not include them.
    pub datagram_header_bytes: usize,
    /// Maximum payload bytes of one UD SEND.
    pub datagram_bytes_max: usize,
    /// Maximum bytes of one RC or UC message: a SEND or a WRITE.
    pub message_bytes_max: usize,
    /// Maximum bytes of one READ.
    pub read_bytes_max: usize,
    /// READs and atomics of one queue pair that can be outstanding on the way to the peer; more may
    /// be posted, and wait. The two ends of a connection agree on what both support. `usize::MAX`:
    /// the depth of the send queue is the only limit.
    pub rd_atomic_max: usize,
    /// The words of a READ are loaded in order of rising addresses, so that a READ that finds what a
    /// writer stored last to a lower word finds in all higher words at least what that writer stored
    /// before. If false, only each aligned 8-byte word is a unit.
    pub ordered_read: bool,
    /// The provider sends messages of equal length to one peer as a GSO batch, which costs much
    /// less than sending them singly.
    pub gso: bool,
    /// Number of queue pairs over which one thread should spread its sends: as many as an RNIC
    /// processes in parallel.
    pub senders: usize,
    /// Maximum work requests in one post.
    pub postlist_max: usize,
    /// The rkey of a region can be bound to one queue pair ([`crate::Scope::Qp`]) before the queue
    /// pair is connected. If false, the protection domain is the narrowest scope.
    pub scoped_regions: bool,
    /// The port counts its drops ([`crate::Port::drops`]). An RNIC drops in hardware and does not
    /// report it.
    pub counted_drops: bool,
    /// Shared memory may have windows, which are bound anew under one rkey ([`crate::SharedMemory::with_windows`]).
    pub windows: bool,
    /// Regions may have addresses that do not start at zero.
    pub virtual_addresses: bool,
}

/// How RC atomics behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomics {
    /// Not supported.
    None,
    /// Atomic with respect to other atomics of the same device only.
    Device,
    /// Atomic with respect to the CPU's own atomic instructions too.
    Coherent,
}
