//! The internal request language: requests, replies, and the traits that take them. It is the
//! superset of memcached's meta commands; letters in parentheses are their flags.

use crate::{Clock, Deadline, KeyHash, Second, Staged};

/// One operation on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The key's hash under the server's [`HashKey`](crate::HashKey). Every operation that may
    /// store verifies it ([`Status::BadKey`]); a [`Get`] without `vivify` does not, and misses if
    /// it is wrong.
    pub hash: KeyHash,
    /// The key, 1 to 250 bytes.
    pub key: &'a [u8],
    /// The operation.
    pub op: Op<'a>,
}

/// The operations: the superset of memcached's meta commands. Exptimes are memcached's, 32 bits as
/// in its binary protocol; [`Clock::deadline`] converts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op<'a> {
    /// `get`, `gat`, `touch`, `mg`.
    Get(Get),
    /// `set`, `add`, `replace`, `append`, `prepend`, `cas`, `ms`.
    Put(Put<'a>),
    /// `delete`, `md`.
    Delete(Delete),
    /// `incr`, `decr`, `ma`.
    Arith(Arith),
}

/// Reads an item; may change its deadline, or create an empty item on a miss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Get {
    /// New exptime for a hit (`T`, `gat`, `touch`).
    pub touch: Option<u32>,
    /// On a miss, create an empty item with this exptime and win it (`N`).
    pub vivify: Option<u32>,
    /// Win the right to recache when fewer seconds than this are left (`R`).
    pub recache: Option<u32>,
    /// `recache` compares the time left after `touch`, not before (`T` before `R`).
    pub touch_first: bool,
    /// The reader's protocol cannot express that it has won a stale item: leave the win to another
    /// reader.
    pub unaware: bool,
    /// Version for an item created by `vivify` (`E`).
    pub version: Option<u64>,
    /// Do not record the access, neither in the fetched bit nor in the last access time.
    pub quiet_access: bool,
}

/// How a [`Put`] treats the present item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Store unconditionally.
    #[default]
    Set,
    /// Only if absent.
    Add,
    /// Only if present.
    Replace,
    /// Append to the present value; flags and deadline stay.
    Append,
    /// Prepend to the present value; flags and deadline stay.
    Prepend,
}

/// Stores a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Put<'a> {
    /// How to treat the present item.
    pub mode: Mode,
    /// The value.
    pub value: &'a [u8],
    /// The client's flags, opaque.
    pub flags: u32,
    /// memcached exptime.
    pub exptime: u32,
    /// Only if the item's version is this (`C`).
    pub compare: Option<u64>,
    /// Version to give the item instead of the next one (`E`).
    pub version: Option<u64>,
    /// With `compare`: a value with an older version is stored nevertheless, marked stale (`I`).
    pub invalidate: bool,
    /// On a miss of Append or Prepend, store the value with this exptime (`N`).
    pub vivify: Option<u32>,
    /// The value is not `value`, but the one staged under the same key. All conditions are
    /// evaluated now. Whatever the status, the reservation ends.
    pub staged: Option<Staged>,
}

impl Put<'_> {
    /// Returns the bytes of the value, staged or not.
    #[must_use]
    pub fn value_len(&self) -> usize {
        self.staged.map_or(self.value.len(), Staged::value_len)
    }
}

/// Removes an item, or marks it stale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delete {
    /// Only if the item's version is this (`C`).
    pub compare: Option<u64>,
    /// Version to give an item that stays (`E`).
    pub version: Option<u64>,
    /// Keep the item, marked stale (`I`).
    pub invalidate: bool,
    /// With `invalidate`: new exptime (`T`).
    pub exptime: Option<u32>,
    /// Keep the item, with an empty value (`x`).
    pub drop_value: bool,
    /// With `drop_value`: the client's flags from then on (`F`).
    pub flags: u32,
}

/// Adds to, or subtracts from, a decimal value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arith {
    /// Subtract, with 0 as the floor; else add, wrapping at 2^64.
    pub decrement: bool,
    /// The number to add or subtract.
    pub delta: u64,
    /// On a miss store `initial` with this exptime (`N`, `J`).
    pub vivify: Option<u32>,
    /// The number for `vivify`.
    pub initial: u64,
    /// New exptime for a hit (`T`); as in memcached, ignored if the number needs more room than the
    /// old value had.
    pub touch: Option<u32>,
    /// Only if the item's version is this (`C`).
    pub compare: Option<u64>,
    /// Version to give the item instead of the next one (`E`).
    pub version: Option<u64>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Done: a hit, or stored, deleted, touched.
    Done,
    /// No such item.
    NotFound,
    /// The mode's condition failed (Add on a present item, Replace, Append or Prepend on none).
    NotStored,
    /// The version did not match.
    Exists,
    /// The item would exceed the maximum size; a Set has removed the old value, as in memcached.
    TooLarge,
    /// Arithmetic on a value that is not a decimal number below 2^64.
    NonNumeric,
    /// The store has no room without evicting, which it must not.
    OutOfMemory,
    /// The hash is not the key's, or the key is empty or too long; or the staged value is unknown,
    /// incomplete or of another key. Nothing was stored.
    BadKey,
}

/// The attributes of an item in a reply.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// The value, in the store: valid until the sink returns.
    pub value: &'a [u8],
    /// The client's flags.
    pub flags: u32,
    /// The item's version: memcached's CAS unique.
    pub version: u64,
    /// The deadline; if this operation touches the item, the deadline before.
    pub deadline: Deadline,
    /// Whether it had been read before.
    pub fetched: bool,
    /// The second of the access before this one.
    pub last_access: Second,
    /// This reader has won the right to recache it (`W`).
    pub won: bool,
    /// It is stale (`X`).
    pub stale: bool,
    /// Another reader has won before (`Z`).
    pub win_sent: bool,
}

impl<'a> Item<'a> {
    /// An item with this value and version and nothing else: no flags, no deadline, not read yet.
    pub const fn plain(value: &'a [u8], version: u64) -> Self {
        Self {
            value,
            flags: 0,
            version,
            deadline: Deadline::NEVER,
            fetched: false,
            // The first second there is.
            last_access: Second(1),
            won: false,
            stale: false,
            win_sent: false,
        }
    }
}

/// The reply to one request.
#[derive(Clone, Copy, Debug)]
pub struct Reply<'a> {
    /// The status.
    pub status: Status,
    /// The item after the operation: on a hit, and on every mutation that left one.
    pub item: Option<Item<'a>>,
    /// The result of an [`Arith`].
    pub number: u64,
    /// The item was created on a miss (`N`).
    pub made: bool,
    /// The miss was an expired item ([`Status::NotFound`]; feeds `get_expired`).
    pub expired: bool,
    /// The miss was a flushed item ([`Status::NotFound`]; feeds `get_flushed`).
    pub flushed: bool,
    /// What a client of HERD learns of a secondary store.
    pub marks: Marks,
}

/// What a reply tells a client of the server's secondary store, which it may read by itself (docs/hkvs.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The key is in the secondary store.
    pub replicated: bool,
    /// The client may read the secondary store, for the server's lease from the time at which it sent the
    /// request.
    pub leased: bool,
    /// Which secondary store that is, by the lower four bits of a count: 0 to 15. 0 without one.
    pub store: u8,
}

impl<'a> Reply<'a> {
    /// Returns a reply with a status alone.
    #[must_use]
    pub fn bare(status: Status) -> Self {
        Self {
            status,
            item: None,
            number: 0,
            made: false,
            expired: false,
            flushed: false,
            marks: Marks {
                replicated: false,
                leased: false,
                store: 0,
            },
        }
    }

    /// Returns a reply with an item.
    #[must_use]
    pub fn with(status: Status, item: Item<'a>) -> Self {
        Self {
            item: Some(item),
            ..Self::bare(status)
        }
    }
}

/// Receives the replies of a batch, in the order of its requests. Values are borrowed from the store:
/// copy what must outlive the call.
pub trait Sink {
    /// Receives the reply to `batch[index]`.
    fn reply(&mut self, index: usize, reply: &Reply<'_>);

    /// Returns whether the sink has room for the reply to `batch[index]`. If not, the request is
    /// not executed and has no reply.
    #[inline]
    fn has_room(&mut self, _index: usize) -> bool {
        true
    }

    /// Returns whether the sink has room for the value that `batch[index]` reads; called only for
    /// values of at least [`LARGE_BYTES`](crate::LARGE_BYTES). If not, the request is not executed
    /// and has no reply, as without [room](Self::has_room).
    #[inline]
    fn has_room_for(&mut self, _index: usize, _value_len: usize) -> bool {
        true
    }
}

impl<F: FnMut(usize, &Reply<'_>)> Sink for F {
    fn reply(&mut self, index: usize, reply: &Reply<'_>) {
        self(index, reply);
    }
}

/// What a client reports of reads that it made in the store's memory itself.
#[derive(Clone, Copy, Debug)]
pub struct ReadReport<'a> {
    /// Reads since the last report that found an item.
    pub hits: u32,
    /// Hashes of the keys of some of them, little-endian.
    pub hashes: &'a [[u8; 8]],
}

impl ReadReport<'_> {
    /// Returns the hashes.
    #[inline]
    pub fn hashes(&self) -> impl Iterator<Item = KeyHash> {
        let hashes = self.hashes.iter();
        hashes.map(|bytes| KeyHash(u64::from_le_bytes(*bytes)))
    }
}

/// An executor of request batches: the store, or an echo that measures everything around it.
pub trait Execute {
    /// Executes the requests of `batch` in order, with the result of one at a time, and calls
    /// `sink` once for each request that it has room for.
    fn execute(&mut self, clock: Clock, batch: &[Request<'_>], sink: &mut impl Sink);

    /// Notes reads that were made without it. An executor whose memory is not read does nothing.
    #[inline]
    fn note_reads(&mut self, clock: Clock, report: &ReadReport<'_>) {
        let _ = (clock, report);
    }

    /// Returns the stag under which a client READs the item of a key; `None`: there is no item, or the memory is
    /// not read by stags.
    #[inline]
    fn stag(&mut self, clock: Clock, hash: KeyHash, key: &[u8]) -> Option<u32> {
        let _ = (clock, hash, key);
        None
    }
}

/// An executor whose two memory accesses for a request, bucket and item, can be prefetched by a caller that
/// knows its requests some time before it has them executed. One without such accesses does nothing.
pub trait Prefetch {
    /// Prefetches the bucket of a key.
    fn prefetch_bucket(&self, hash: KeyHash) {
        let _ = hash;
    }

    /// Accesses the bucket of a key, and prefetches the item that it points to, if there is one.
    fn prefetch_item(&self, hash: KeyHash) {
        let _ = hash;
    }
}
