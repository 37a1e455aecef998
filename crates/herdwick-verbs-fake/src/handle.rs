//! The interface for tests: the path of the library, and functions that script its failures. A test
//! links this crate too, but the script must reach the instance that the provider loads.

use std::{
    env,
    ffi::{CString, OsString, c_char, c_int, c_void},
    os::unix::ffi::OsStrExt,
};

/// The marks of packets of the queue pair or address handle that this thread made last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Marks {
    /// The index of the partition in the port's table.
    pub pkey_index: u16,
    /// The traffic class.
    pub traffic_class: u8,
    /// The service level.
    pub sl: u8,
    /// The flow label.
    pub flow_label: u32,
}

type Fail = unsafe extern "C" fn(*const c_char, u32, c_int);
type Tell = unsafe extern "C" fn(c_int);

/// Returns the path of the library that cargo built next to this test.
///
/// # Panics
/// When the file does not exist.
#[must_use]
pub fn path() -> OsString {
    let beside = env::current_exe().expect("this test has a path");
    let path = beside.with_file_name("libherdwick_verbs_fake.so");
    assert!(path.exists(), "{} is built with this test", path.display());
    path.into()
}

/// Makes `function` fail once on this thread, after `after` successful calls.
pub fn fail(function: &str, after: u32, errno: c_int) {
    call_fail("fake_fail", function, after, errno);
}

/// Makes `function` fail once on any other thread, after `after` successful calls.
pub fn fail_elsewhere(function: &str, after: u32, errno: c_int) {
    call_fail("fake_fail_elsewhere", function, after, errno);
}

/// Raises an asynchronous event on the contexts of this thread.
pub fn event(kind: c_int) {
    call_tell("fake_event", kind);
}

/// Raises an asynchronous event on the contexts of all other threads.
pub fn event_elsewhere(kind: c_int) {
    call_tell("fake_event_elsewhere", kind);
}

/// Connects or disconnects the loopback's link.
pub fn link(plugged: bool) {
    call_tell("fake_link", plugged.into());
}

/// Returns the marks of the queue pair or address handle that this thread made last.
#[must_use]
pub fn marks() -> Marks {
    // SAFETY: the symbol is a function of this type (`script`).
    unsafe {
        let marks = std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> Marks>(symbol(
            "fake_marks",
        ));
        marks()
    }
}

fn call_fail(name: &str, function: &str, after: u32, errno: c_int) {
    let function = CString::new(function).expect("a name");
    // SAFETY: the symbols given here are functions of this type (`script`), and the name is a C
    // string.
    unsafe {
        let fail = std::mem::transmute::<*mut c_void, Fail>(symbol(name));
        fail(function.as_ptr(), after, errno);
    }
}

fn call_tell(name: &str, kind: c_int) {
    // SAFETY: the symbols given here are functions of this type (`script`).
    unsafe {
        let tell = std::mem::transmute::<*mut c_void, Tell>(symbol(name));
        tell(kind);
    }
}

/// Returns a symbol of the library, loaded by the provider's path, so that both use one instance.
fn symbol(name: &str) -> *mut c_void {
    let path = CString::new(path().as_bytes()).expect("a path");
    let name = CString::new(name).expect("a name");
    // SAFETY: C strings; the library stays loaded.
    let found = unsafe {
        // The loader returns the instance that is loaded from this path already.
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        libc::dlsym(handle, name.as_ptr())
    };
    assert!(!found.is_null(), "{name:?}");
    found
}
