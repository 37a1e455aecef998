//! Handles, and the guard around every call: no panic leaves it, and no handle serves two calls at once.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, TryLockError},
};

use crate::status::{Failure, Status, report};

/// What C holds a pointer to.
pub(crate) type Handle<T> = Mutex<T>;

/// Runs a call, and reports how it ended.
pub(crate) fn guard(call: impl FnOnce() -> Result<Status, Failure>) -> Status {
    // A handle that was in use is poisoned by its mutex, and nothing else is shared.
    let outcome = catch_unwind(AssertUnwindSafe(call));
    let internal = || Failure::new(Status::Internal, "a defect of the library ended the call");
    outcome
        .unwrap_or_else(|_| Err(internal()))
        .unwrap_or_else(report)
}

/// Runs a call on a handle.
///
/// # Safety
/// `handle` is null, or came from [`give`] and was not yet passed to [`take`].
pub(crate) unsafe fn on<T>(
    handle: *const Handle<T>,
    call: impl FnOnce(&mut T) -> Result<Status, Failure>,
) -> Status {
    guard(|| {
        // SAFETY: the caller's promise. The reference is shared, whatever other threads do.
        let handle = unsafe { handle.as_ref() };
        let handle = handle.ok_or_else(|| Failure::usage("a handle is null"))?;
        match handle.try_lock() {
            Ok(mut inner) => call(&mut inner),
            Err(TryLockError::WouldBlock) => Err(Failure::usage(
                "the handle is in use by another thread, or by the call whose callback this is",
            )),
            Err(TryLockError::Poisoned(_)) => Err(Failure::new(
                Status::Internal,
                "an earlier call ended by a defect of the library: free the handle",
            )),
        }
    })
}

/// Hands a new handle to C, which may use it on any thread.
///
/// # Safety
/// `place` is null, or can be written.
pub(crate) unsafe fn give<T: Send>(
    place: *mut *mut Handle<T>,
    inner: T,
) -> Result<Status, Failure> {
    if place.is_null() {
        return Err(Failure::usage("there is no place for the handle"));
    }
    // SAFETY: it is not null, and the rest is the caller's to promise.
    unsafe { place.write(Box::into_raw(Box::new(Mutex::new(inner)))) };
    Ok(Status::Ok)
}

/// Frees a handle, if there is one.
///
/// # Safety
/// `handle` is null, or came from [`give`], was not freed, and no call uses it.
pub(crate) unsafe fn take<T>(handle: *mut Handle<T>) {
    guard(|| {
        if !handle.is_null() {
            // SAFETY: it is a box's, by the caller's promise, and nothing else refers to it.
            drop(unsafe { Box::from_raw(handle) });
        }
        Ok(Status::Ok)
    });
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;
    use crate::status::herdwick_error_text;

    fn error_text() -> String {
        // SAFETY: the text of this thread, which no call replaces meanwhile.
        let text = unsafe { CStr::from_ptr(herdwick_error_text()) };
        text.to_str().unwrap().to_owned()
    }

    #[test]
    fn panic_is_a_status_and_its_handle_refuses_later_calls() {
        let handle = Mutex::new(1);
        // SAFETY: it lives as long as the test.
        let run = |call: &mut dyn FnMut(&mut i32)| unsafe {
            on(&handle, |inner| {
                call(inner);
                Ok(Status::Ok)
            })
        };
        assert_eq!(run(&mut |inner| *inner += 1), Status::Ok);
        assert_eq!(run(&mut |_| panic!("a defect")), Status::Internal);
        assert!(error_text().contains("defect"), "{}", error_text());
        assert_eq!(run(&mut |_| {}), Status::Internal);
        assert!(error_text().contains("free the handle"), "{}", error_text());
    }

    #[test]
    fn call_within_a_call_is_refused() {
        let handle = Mutex::new(1);
        let mut inside = Status::Ok;
        // SAFETY: the handle lives as long as the test.
        let outside = unsafe {
            on(&handle, |_| {
                inside = on(&handle, |_| Ok(Status::Ok));
                Ok(Status::Ok)
            })
        };
        assert_eq!((outside, inside), (Status::Ok, Status::Usage));
        assert!(error_text().contains("in use"), "{}", error_text());
        // SAFETY: a null handle is allowed.
        let null = unsafe { on(std::ptr::null::<Handle<i32>>(), |_| Ok(Status::Ok)) };
        assert_eq!(null, Status::Usage);
    }
}
