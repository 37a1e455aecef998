//! The libibverbs of the tests: where it lies, and how it is told to fail.

use std::{
    env,
    ffi::{CString, OsString, c_char, c_int, c_void},
    os::unix::ffi::OsStrExt,
};

/// The library that cargo built beside this test.
pub(crate) fn path() -> OsString {
    let beside = env::current_exe().expect("this test has a path");
    let path = beside.with_file_name("libherdwick_verbs_fake.so");
    assert!(path.exists(), "{} is built with this test", path.display());
    path.into()
}

/// Has `function` fail once on this thread, after so many calls that do not.
pub(crate) fn fail(function: &str, after: u32, errno: c_int) {
    let function = CString::new(function).expect("a name");
    // SAFETY: the symbol is a function of this type (herdwick-verbs-fake's `script`), and the name
    // a C string.
    unsafe {
        let fail = std::mem::transmute::<
            *mut c_void,
            unsafe extern "C" fn(*const c_char, u32, c_int),
        >(symbol("fake_fail"));
        fail(function.as_ptr(), after, errno);
    }
}

/// Lets the contexts of this thread tell of an asynchronous event.
pub(crate) fn event(kind: c_int) {
    // SAFETY: the symbol is a function of this type (herdwick-verbs-fake's `script`).
    unsafe {
        let event =
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int)>(symbol("fake_event"));
        event(kind);
    }
}

/// The same library that the provider loads, by the same path: one instance in this process.
fn symbol(name: &str) -> *mut c_void {
    let path = CString::new(path().as_bytes()).expect("a path");
    let name = CString::new(name).expect("a name");
    // SAFETY: C strings; the library stays loaded.
    let found = unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        libc::dlsym(handle, name.as_ptr())
    };
    assert!(!found.is_null(), "{name:?}");
    found
}
