//! Prefetch hints under safe names: a hint has no effect other than on speed.

/// Prefetches the cache line of `slice[index]` for reading. Out of bounds: does nothing.
#[inline]
pub fn prefetch_read<T>(slice: &[T], index: usize) {
    // A hint for an address outside would be harmless, but forming it by pointer arithmetic is not.
    if let Some(item) = slice.get(index) {
        line(std::ptr::from_ref(item).cast());
    }
}

/// Prefetches the cache line of `slice[index]` for writing. Out of bounds: does nothing.
#[inline]
pub fn prefetch_write<T>(slice: &[T], index: usize) {
    if let Some(item) = slice.get(index) {
        line_for_write(std::ptr::from_ref(item).cast());
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
pub(crate) fn line(at: *const i8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: PREFETCHT0 is a hint: it never faults and changes no architectural state.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at) };
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn line_for_write(at: *const i8) {
    use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
    // SAFETY: as in `line`; a CPU without PREFETCHW treats it as a no-op.
    unsafe { _mm_prefetch::<_MM_HINT_ET0>(at) };
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) fn line(_at: *const i8) {}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn line_for_write(_at: *const i8) {}
