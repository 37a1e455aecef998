//! Access to memory that other threads use at the same time: by words where
//! aligned, as an RNIC does.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Copies `bytes` to `at`, in rising order; the last store is a release.
///
/// # Safety
/// The memory is mapped, and accessed by atomics only.
pub(crate) unsafe fn store(at: *mut u8, bytes: &[u8]) {
    let mut done = 0;
    while done < bytes.len() {
        // SAFETY: within the run, by the caller's promise.
        unsafe {
            let to = at.add(done);
            if to.addr().is_multiple_of(8) && bytes.len() - done >= 8 {
                let mut word = [0; 8];
                word.copy_from_slice(&bytes[done..done + 8]);
                // Release in the last word alone: a reader of it sees all before it, which is what
                // the order of a WRITE promises.
                let order = if done + 8 == bytes.len() {
                    Ordering::Release
                } else {
                    Ordering::Relaxed
                };
                AtomicU64::from_ptr(to.cast()).store(u64::from_le_bytes(word), order);
                done += 8;
            } else {
                // Bytes at an odd end are rare: each may be the last.
                AtomicU8::from_ptr(to).store(bytes[done], Ordering::Release);
                done += 1;
            }
        }
    }
}

/// Copies `len` bytes from `at`, in rising order; each aligned word of 8 bytes at once.
///
/// # Safety
/// As for [`store`].
pub(crate) unsafe fn load(at: *mut u8, len: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(len);
    while out.len() < len {
        // SAFETY: within the run, by the caller's promise.
        unsafe {
            let from = at.add(out.len());
            if from.addr().is_multiple_of(8) && len - out.len() >= 8 {
                let word = AtomicU64::from_ptr(from.cast()).load(Ordering::Acquire);
                out.extend(word.to_le_bytes());
            } else {
                out.push(AtomicU8::from_ptr(from).load(Ordering::Acquire));
            }
        }
    }
    out
}

/// Returns the word at `at`, for atomics.
///
/// # Safety
/// As for [`store`], and `at` is aligned.
pub(crate) unsafe fn word<'a>(at: *mut u8) -> &'a AtomicU64 {
    // SAFETY: the caller's promise.
    unsafe { AtomicU64::from_ptr(at.cast()) }
}
