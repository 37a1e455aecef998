//! What C passes and gets: bytes with their length, texts, keys, values and items.

use std::{
    ffi::{CStr, c_char, c_void},
    ptr,
};

use herdwick::{Item, Put, Ttl};

use crate::status::{Failure, Status};

/// A key, `herdwick_key`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CKey {
    data: *const c_void,
    length: usize,
}

/// An item, `herdwick_item`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CItem {
    value: *const c_void,
    length: usize,
    version: u64,
    flags: u32,
    status: Status,
}

impl CItem {
    /// An item without a value.
    pub(crate) fn none(status: Status) -> Self {
        Self {
            value: ptr::null(),
            length: 0,
            version: 0,
            flags: 0,
            status,
        }
    }

    /// Whether there is one, or why it is not known.
    pub(crate) fn status(&self) -> Status {
        self.status
    }

    /// Borrows `value`, without its lifetime: what owns it is said in the header.
    pub(crate) fn of(value: &[u8], flags: u32, version: u64) -> Self {
        Self {
            value: value.as_ptr().cast(),
            length: value.len(),
            version,
            flags,
            status: Status::Ok,
        }
    }
}

impl From<&Option<Item>> for CItem {
    fn from(item: &Option<Item>) -> Self {
        match item {
            Some(item) => Self::of(&item.value, item.flags, item.version),
            None => Self::none(Status::NotFound),
        }
    }
}

/// Returns the bytes at `data`.
///
/// # Safety
/// Unless `length` is 0 or `data` is null, `length` bytes there are readable and do not change for `'a`.
pub(crate) unsafe fn bytes<'a>(data: *const c_void, length: usize) -> Result<&'a [u8], Failure> {
    if length == 0 {
        return Ok(&[]);
    }
    // `from_raw_parts` allows at most `isize::MAX` bytes.
    if data.is_null() || isize::try_from(length).is_err() {
        return Err(Failure::usage("a pointer is null, or a length is negative"));
    }
    // SAFETY: it is not null, the length fits, and the rest is the caller's to promise.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), length) })
}

/// Returns the elements at `data`.
///
/// # Safety
/// Unless `count` is 0 or `data` is null, `count` aligned elements there are initialised and do not change
/// for `'a`.
pub(crate) unsafe fn elements<'a, T>(data: *const T, count: usize) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    // `from_raw_parts` allows at most `isize::MAX` bytes.
    if data.is_null() || count > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Failure::usage("an array is null, or too long"));
    }
    // SAFETY: it is not null, the size fits, and the rest is the caller's to promise.
    Ok(unsafe { std::slice::from_raw_parts(data, count) })
}

/// Returns the keys in an array.
///
/// # Safety
/// As [`elements`], and each key is as [`bytes`] needs it.
pub(crate) unsafe fn key_list<'a>(
    data: *const CKey,
    count: usize,
) -> Result<Vec<&'a [u8]>, Failure> {
    // SAFETY: the caller's promise.
    let keys = unsafe { elements(data, count) }?;
    // SAFETY: likewise, for each key.
    let keys = keys
        .iter()
        .map(|key| unsafe { bytes(key.data, key.length) });
    keys.collect()
}

/// Returns a text; `None` for null.
///
/// # Safety
/// Unless it is null, a NUL byte ends it, and it does not change for `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: it is not null, and the rest is the caller's to promise.
    let text = unsafe { CStr::from_ptr(text) };
    let text = text.to_str();
    text.map(Some)
        .map_err(|_| Failure::usage("a text is not UTF-8"))
}

/// As [`text`], for one that must be there.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn some_text<'a>(chars: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: the caller's promise.
    let found = unsafe { text(chars) }?;
    found.ok_or_else(|| Failure::usage("a text is null"))
}

/// Stores `value` where the caller wants it; nowhere, if that is null.
///
/// # Safety
/// Unless it is null, `place` can be written.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: it is not null, and the rest is the caller's to promise. What is there is not dropped:
        // C has not initialised it.
        unsafe { place.write(value) };
    }
}

/// A value to store. `ttl` is in seconds, and 0: for ever.
pub(crate) fn new_put(value: &[u8], flags: u32, ttl: u32) -> Put<'_> {
    Put::new(value).flags(flags).ttl(new_ttl(ttl))
}

pub(crate) fn new_ttl(seconds: u32) -> Ttl {
    match seconds {
        0 => Ttl::Never,
        seconds => Ttl::Seconds(seconds),
    }
}
