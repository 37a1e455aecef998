//! The script of failures and events that tests set.

use std::{
    cell::RefCell,
    ffi::{CStr, c_char, c_int},
    sync::{Mutex, PoisonError},
    thread::{self, ThreadId},
};

use herdwick_verbs::sys;

use crate::handle::Marks;

struct Failure {
    function: String,
    after: u32,
    errno: c_int,
}

/// Returns the marks of the object that this thread made last.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fake_marks() -> Marks {
    MARKS.with_borrow(|marks| *marks)
}

impl Marks {
    pub(crate) fn set(&mut self, attr: &sys::AhAttr) {
        self.traffic_class = attr.grh.traffic_class;
        self.flow_label = attr.grh.flow_label;
        self.sl = attr.sl;
    }
}

pub(crate) fn mark(change: impl FnOnce(&mut Marks)) {
    MARKS.with_borrow_mut(change);
}

thread_local! {
    static MARKS: RefCell<Marks> = const { RefCell::new(Marks { pkey_index: 0, traffic_class: 0, sl: 0, flow_label: 0 }) };
    static FAILURES: RefCell<Vec<Failure>> = const { RefCell::new(Vec::new()) };
}

/// Failures on all threads but the named one.
static ELSEWHERE: Mutex<Vec<(ThreadId, Failure)>> = Mutex::new(Vec::new());

/// Makes `function` fail once on this thread, after `after` successful calls. For `post_send`, a
/// call is a work request; for `status`, a completion, and `errno` is its status.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_fail(function: *const c_char, after: u32, errno: c_int) {
    // SAFETY: the caller's promise.
    let failure = unsafe { scripted(function, after, errno) };
    FAILURES.with_borrow_mut(|all| all.push(failure));
}

/// Makes `function` fail once on any other thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_fail_elsewhere(function: *const c_char, after: u32, errno: c_int) {
    // SAFETY: the caller's promise.
    let failure = unsafe { scripted(function, after, errno) };
    let mut all = ELSEWHERE.lock().unwrap_or_else(PoisonError::into_inner);
    all.push((thread::current().id(), failure));
}

/// # Safety
/// `function` is a C string.
unsafe fn scripted(function: *const c_char, after: u32, errno: c_int) -> Failure {
    // SAFETY: the caller's promise.
    let function = unsafe { CStr::from_ptr(function) };
    Failure {
        function: function.to_string_lossy().into_owned(),
        after,
        errno,
    }
}

/// Returns the scripted error if this call of `function` has to fail.
pub(crate) fn failure(function: &str) -> Option<c_int> {
    let own = FAILURES.with_borrow_mut(|all| {
        let due = all
            .iter_mut()
            .position(|failure| failure.is_due(function))?;
        Some(all.remove(due).errno)
    });
    // The thread's own script first.
    own.or_else(|| {
        let here = thread::current().id();
        let mut all = ELSEWHERE.lock().unwrap_or_else(PoisonError::into_inner);
        let due =
            |(but, failure): &mut (ThreadId, Failure)| *but != here && failure.is_due(function);
        let due = all.iter_mut().position(due)?;
        Some(all.remove(due).1.errno)
    })
}

impl Failure {
    /// Counts a call of `function`; returns whether it has to fail.
    fn is_due(&mut self, function: &str) -> bool {
        if self.function != function {
            return false;
        }
        let due = self.after == 0;
        self.after = self.after.saturating_sub(1);
        due
    }
}
