/// What a provider can and cannot do, as data a caller can ask for.
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
    /// A WRITE's last aligned 8 bytes become visible last (crate docs, "Publication").
    pub ordered_write: bool,
    /// An armed port also wakes at an inbound WRITE, not only at a completion.
    pub wakes_on_write: bool,
    /// UC and UD deliver everything to a receiver that keeps up: drops mean a full receiver.
    pub lossless: bool,
    /// An RC SEND completes when a RECV has taken it; without, when it is out of the sender's
    /// hands, and a short buffer or a missing RECV is the receiver's affair alone.
    pub acknowledged_sends: bool,
    /// Most payload bytes of an inline work request.
    pub inline_bytes_max: usize,
    /// Received payloads up to this many bytes travel in the completion; 0: never.
    pub inline_receive_bytes: usize,
    /// Bytes that a received datagram's buffer holds in front of the payload (the verbs' GRH: 40,
    /// else 0); [`crate::Completion::byte_len`] and inline receives are without them.
    pub datagram_header_bytes: usize,
    /// Most payload bytes of one UD SEND.
    pub datagram_bytes_max: usize,
    /// Most bytes of one RC or UC message.
    pub message_bytes_max: usize,
    /// Messages of one length to one peer travel together, and cost much less than others.
    pub trains: bool,
    /// Queue pairs that one thread does well to spread its sends over: those that an RNIC works on
    /// at once.
    pub senders: usize,
    /// Most work requests in one post.
    pub postlist_max: usize,
    /// A region's rkey can be bound to one queue pair ([`crate::Scope::Qp`]) before that is
    /// connected; without, the protection domain is the narrowest scope.
    pub scoped_regions: bool,
    /// What is dropped at a port is counted there ([`crate::Port::drops`]); an RNIC drops in
    /// hardware and says nothing.
    pub counted_drops: bool,
    /// Regions may be given addresses other than zero-based ones.
    pub virtual_addresses: bool,
}

/// How RC atomics behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomics {
    /// There are none.
    None,
    /// Atomic against other atomics of the same port's device only.
    Device,
    /// Atomic against the CPU's own instructions too.
    Coherent,
}
