use crate::{Clock, Deadline, KeyHash, Second, Staged};

/// One operation on one key.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The key's hash under the server's key. What stores checks it ([`Status::BadKey`]); a [`Get`] that
    /// makes nothing does not, and with a wrong one misses.
    pub hash: KeyHash,
    /// The key, 1 to 250 bytes.
    pub key: &'a [u8],
    /// What to do.
    pub op: Op<'a>,
}

/// The operations: the superset of memcached's meta commands. Exptimes are memcached's, as
/// its binary protocol carries them; [`Clock::deadline`] reads them.
#[derive(Clone, Copy, Debug)]
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

/// Reads an item; may change its deadline, or make an empty one on a miss.
#[derive(Clone, Copy, Debug, Default)]
pub struct Get {
    /// New exptime for a hit (`T`, `gat`, `touch`).
    pub touch: Option<u32>,
    /// On a miss make an empty item with this exptime and win it (`N`).
    pub vivify: Option<u32>,
    /// Win the right to recache when fewer seconds than this are left (`R`).
    pub recache: Option<u32>,
    /// What `recache` looks at is the time left after `touch`, not before (`T` before `R`).
    pub touch_first: bool,
    /// The reader would not understand that it has won a stale item: leave that to another.
    pub unaware: bool,
    /// Version for an item made by `vivify` (`E`).
    pub version: Option<u64>,
    /// Leave no trace of the access: neither the fetched bit nor the last access time.
    pub quiet_access: bool,
}

/// How a [`Put`] treats what is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Store whatever is there.
    #[default]
    Set,
    /// Only if absent.
    Add,
    /// Only if present.
    Replace,
    /// Behind the present value; flags and deadline stay.
    Append,
    /// Before the present value; flags and deadline stay.
    Prepend,
}

/// Stores a value.
#[derive(Clone, Copy, Debug, Default)]
pub struct Put<'a> {
    /// How to treat what is there.
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
    /// With `compare`: an older version is stored all the same, marked stale (`I`).
    pub invalidate: bool,
    /// Append and Prepend on a miss: store the value with this exptime (`N`).
    pub vivify: Option<u32>,
    /// The value is not `value`, but what has been staged under the same key. All else is judged now,
    /// as if it came now. Whatever the answer, nothing is staged after it.
    pub staged: Option<Staged>,
}

impl Put<'_> {
    /// Bytes of the value, staged or not.
    #[must_use]
    pub fn value_len(&self) -> usize {
        self.staged.map_or(self.value.len(), Staged::value_len)
    }
}

/// Removes an item, or marks it stale.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delete {
    /// Only if the item's version is this (`C`).
    pub compare: Option<u64>,
    /// Version to give an item that stays (`E`).
    pub version: Option<u64>,
    /// Keep the item, marked stale (`I`).
    pub invalidate: bool,
    /// With `invalidate`: new exptime (`T`).
    pub exptime: Option<u32>,
    /// Keep the item, without its value (`x`).
    pub drop_value: bool,
    /// With `drop_value`: the client's flags from then on (`F`).
    pub flags: u32,
}

/// Adds to, or subtracts from, a decimal value.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arith {
    /// Subtract, with 0 as the floor; else add, wrapping at 2^64.
    pub decrement: bool,
    /// By how much.
    pub delta: u64,
    /// On a miss store `initial` with this exptime (`N`, `J`).
    pub vivify: Option<u32>,
    /// The number for `vivify`.
    pub initial: u64,
    /// New exptime for a hit (`T`); as in memcached, none for a number that needs more room.
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
    /// The item would exceed the largest; a Set has removed the old value, as memcached does.
    TooLarge,
    /// Arithmetic on a value that is no decimal number below 2^64.
    NonNumeric,
    /// The store has no room that it may free.
    OutOfMemory,
    /// The hash is not the key's, or the key is empty or too long: nothing was done.
    BadKey,
}

/// What a reply shows of an item.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// The value, in the log: valid until the sink returns.
    pub value: &'a [u8],
    /// The client's flags.
    pub flags: u32,
    /// The item's version: memcached's CAS unique.
    pub version: u64,
    /// When it goes; if this operation touches it, when it would have gone.
    pub deadline: Deadline,
    /// Whether it had been read before.
    pub fetched: bool,
    /// The second of the access before this one.
    pub last_access: Second,
    /// This reader is to recache it (`W`).
    pub won: bool,
    /// It is stale (`X`).
    pub stale: bool,
    /// Another reader has been told to recache it (`Z`).
    pub win_sent: bool,
}

/// The answer to one request.
#[derive(Clone, Copy, Debug)]
pub struct Reply<'a> {
    /// How it ended.
    pub status: Status,
    /// The item after the operation: on a hit, and on every mutation that left one.
    pub item: Option<Item<'a>>,
    /// The new number of an [`Arith`].
    pub number: u64,
    /// The item was made on a miss (`N`).
    pub made: bool,
    /// The miss was an expired item ([`Status::NotFound`]; feeds `get_expired`).
    pub expired: bool,
    /// The miss was a flushed item ([`Status::NotFound`]; feeds `get_flushed`).
    pub flushed: bool,
}

impl<'a> Reply<'a> {
    /// A reply with nothing but a status.
    #[must_use]
    pub fn bare(status: Status) -> Self {
        Self {
            status,
            item: None,
            number: 0,
            made: false,
            expired: false,
            flushed: false,
        }
    }

    /// A reply with an item.
    #[must_use]
    pub fn with(status: Status, item: Item<'a>) -> Self {
        Self {
            item: Some(item),
            ..Self::bare(status)
        }
    }
}

/// Takes the replies of a batch, in the order of its requests. The value is borrowed from the log:
/// copy what must outlive the call.
pub trait Sink {
    /// The reply to `batch[index]`.
    fn reply(&mut self, index: usize, reply: &Reply<'_>);

    /// Whether the reply to `batch[index]` can be taken. If not, the request is not executed and
    /// has no reply.
    #[inline]
    fn has_room(&mut self, _index: usize) -> bool {
        true
    }

    /// Whether the value that `batch[index]` reads can be taken, asked only of one of at least
    /// [`LARGE_BYTES`](crate::LARGE_BYTES). If not, it is as if there were [no
    /// room](Self::has_room).
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

/// Whatever executes batches of requests: the store, or an echo that measures everything around it.
pub trait Execute {
    /// Executes `batch` as if one request after the other, in order, calling `sink` once for each
    /// that it has room for.
    fn execute(&mut self, clock: Clock, batch: &[Request<'_>], sink: &mut impl Sink);
}
