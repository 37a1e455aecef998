//! What the exported functions share: how they return objects and errors, and one limit.

use std::{ffi::c_int, ptr};

/// Maximum work requests of a queue, like that of a small real device.
pub(crate) const WORK_MAX: u32 = 4096;

/// Makes the descriptor of an event channel.
pub(crate) fn semaphore() -> c_int {
    // A semaphore: each read takes one event, so the descriptor is readable while one is queued.
    // SAFETY: a new descriptor.
    unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC) }
}

/// Returns null with `errno` set, as a failing constructor does.
pub(crate) fn none<T>(errno: c_int) -> *mut T {
    set_errno(errno);
    ptr::null_mut()
}

/// Allocates `object`; its destructor frees it with [`unbox`].
pub(crate) fn give<T>(object: T) -> *mut T {
    Box::into_raw(Box::new(object))
}

/// # Safety
/// `object` came from [`give`], and nothing uses it any more.
pub(crate) unsafe fn unbox<T>(object: *mut T) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(object) });
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: this thread's own errno.
    unsafe { *libc::__errno_location() = errno };
}
