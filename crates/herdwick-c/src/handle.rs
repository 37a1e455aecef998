//! Handles, and the guard around every call: no panic leaves it, and no handle serves two calls at once.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
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
/// `handle` is null, or came from [`create`] and was not yet passed to [`take`].
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
            Err(TryLockError::Poisoned(_)) => Err(ended_by_defect()),
        }
    })
}

fn ended_by_defect() -> Failure {
    let text = "an earlier call ended by a defect of the library: free the handle";
    Failure::new(Status::Internal, text)
}

/// Makes what a new handle holds, and hands the handle to C, which may use it on any thread. Where that fails
/// the handle is null, so that C may free it.
///
/// # Safety
/// `place` is null, or can be written.
pub(crate) unsafe fn create<T: Send>(
    place: *mut *mut Handle<T>,
    make: impl FnOnce() -> Result<T, Failure>,
) -> Status {
    guard(|| {
        if place.is_null() {
            return Err(Failure::usage("there is no place for the handle"));
        }
        // SAFETY: it is not null, and the rest is the caller's to promise.
        unsafe { place.write(ptr::null_mut()) };
        let handle = Box::new(Mutex::new(make()?));
        // SAFETY: likewise.
        unsafe { place.write(Box::into_raw(handle)) };
        Ok(Status::Ok)
    })
}

/// Returns a copy of what a handle holds. A call that changes it is short, and is waited for: several threads
/// may copy at once.
///
/// # Safety
/// As [`on`].
pub(crate) unsafe fn cloned<T: Clone>(handle: *const Handle<T>) -> Result<Option<T>, Failure> {
    // SAFETY: the caller's promise.
    let Some(handle) = (unsafe { handle.as_ref() }) else {
        return Ok(None);
    };
    let inner = handle.lock().map_err(|_| ended_by_defect())?;
    Ok(Some(inner.clone()))
}

/// Frees a handle, if there is one.
///
/// # Safety
/// `handle` is null, or came from [`create`], was not freed, and no call uses it.
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
    fn handle_that_is_not_made_is_null() {
        let mut place = ptr::dangling_mut::<Handle<i32>>();
        // SAFETY: `place` can be written.
        let failed = unsafe { create(&raw mut place, || Err(Failure::usage("refused"))) };
        assert_eq!(failed, Status::Usage);
        assert!(place.is_null());
        // SAFETY: likewise.
        let ended = unsafe { create(&raw mut place, || panic!("a defect")) };
        assert_eq!(ended, Status::Internal);
        assert!(place.is_null());
    }

    #[test]
    fn copies_wait_for_a_call_and_are_not_refused() {
        let handle = Mutex::new(1);
        std::thread::scope(|scope| {
            let mut held = handle.lock().unwrap();
            // SAFETY: the handle lives as long as the test.
            let copy = scope.spawn(|| unsafe { cloned(&raw const handle) }.unwrap());
            // A copy that does not wait has failed by now, mostly; one that waits finds the change.
            std::thread::yield_now();
            *held = 2;
            drop(held);
            assert_eq!(copy.join().unwrap(), Some(2));
        });
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
        let null = unsafe { on(ptr::null::<Handle<i32>>(), |_| Ok(Status::Ok)) };
        assert_eq!(null, Status::Usage);
    }
}
