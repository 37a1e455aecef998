//! What is to go wrong.

use std::{
    cell::RefCell,
    ffi::{CStr, c_char, c_int},
};

struct Failure {
    function: String,
    after: u32,
    errno: c_int,
}

thread_local! {
    static FAILURES: RefCell<Vec<Failure>> = const { RefCell::new(Vec::new()) };
}

/// Has `function` fail once on this thread, after `after` calls that do not. For `post_send`, a
/// call is a work request; for `status`, a completion, and `errno` its status.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_fail(function: *const c_char, after: u32, errno: c_int) {
    // SAFETY: the caller gives a C string.
    let function = unsafe { CStr::from_ptr(function) }
        .to_string_lossy()
        .into_owned();
    FAILURES.with_borrow_mut(|all| {
        all.push(Failure {
            function,
            after,
            errno,
        })
    });
}

/// Whether this call of `function` is one that is to fail, and how.
pub(crate) fn failure(function: &str) -> Option<c_int> {
    FAILURES.with_borrow_mut(|all| {
        let i = all
            .iter()
            .position(|failure| failure.function == function)?;
        if all[i].after > 0 {
            all[i].after -= 1;
            return None;
        }
        Some(all.remove(i).errno)
    })
}

/// Lets the contexts that this thread opened tell of an event of `kind`; of a queue or a queue
/// pair, of the one made last.
#[unsafe(no_mangle)]
pub extern "C" fn fake_event(kind: c_int) {
    crate::world::lock().tell_all(std::thread::current().id(), kind);
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: this thread's own errno.
    unsafe { *libc::__errno_location() = errno };
}
