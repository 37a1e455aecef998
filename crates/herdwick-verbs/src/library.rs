//! Loading of libibverbs with dlopen: a host without the library runs the same binary.
#![expect(
    unsafe_code,
    reason = "calls the dynamic loader, and types what it finds"
)]

use std::{
    ffi::{CStr, CString, OsStr, c_char, c_int, c_void},
    io,
    os::unix::ffi::OsStrExt,
};

use crate::sys;

/// The names passed to the dynamic loader, in this order.
pub const LIBRARY_NAMES: [&str; 2] = ["libibverbs.so.1", "libibverbs.so"];

/// libibverbs cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// The dynamic loader does not find the library.
    #[error(
        "{name} cannot be loaded ({reason}); install rdma-core: `apt-get install libibverbs1 ibverbs-providers`, or `dnf install libibverbs`"
    )]
    Missing {
        /// The name passed to the loader.
        name: String,
        /// The loader's error message.
        reason: String,
    },
    /// The library lacks a function that is needed.
    #[error("{name} has no `{symbol}`; rdma-core 33 or later is needed")]
    TooOld {
        /// The name of the library.
        name: String,
        /// The missing symbol.
        symbol: &'static str,
    },
}

macro_rules! functions {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// The functions of libibverbs that this crate calls; those of the data path are in the
        /// tables of [`sys::ContextOps`].
        #[derive(Debug)]
        pub(crate) struct Functions {
            $($(#[$doc])* pub(crate) $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            /// Since rdma-core 36.
            pub(crate) ibv_query_qp_data_in_order:
                Option<unsafe extern "C" fn(*mut sys::Qp, c_int, u32) -> c_int>,
        }

        impl Functions {
            fn find(handle: &Handle, name: &str) -> Result<Self, LibraryError> {
                let too_old = |symbol| LibraryError::TooOld { name: name.to_owned(), symbol };
                Ok(Self {
                    $($name: {
                        let symbol = stringify!($name);
                        let found = handle.symbol(symbol).ok_or_else(|| too_old(symbol))?;
                        // SAFETY: the symbol of that name has this type in the header, and a
                        // function pointer has the same size and ABI.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) $(-> $ret)?>(found) }
                    },)*
                    // Optional: without it WRITEs are announced, as on devices that promise no
                    // order.
                    ibv_query_qp_data_in_order: handle.symbol("ibv_query_qp_data_in_order").map(|found| {
                        // SAFETY: as above.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut sys::Qp, c_int, u32) -> c_int>(found) }
                    }),
                })
            }
        }
    };
}

functions! {
    fn ibv_get_device_list(*mut c_int) -> *mut *mut sys::Device;
    fn ibv_free_device_list(*mut *mut sys::Device);
    fn ibv_open_device(*mut sys::Device) -> *mut sys::Context;
    fn ibv_close_device(*mut sys::Context) -> c_int;
    fn ibv_query_device(*mut sys::Context, *mut sys::DeviceAttr) -> c_int;
    fn ibv_query_port(*mut sys::Context, u8, *mut sys::PortAttr) -> c_int;
    fn ibv_query_pkey(*mut sys::Context, u8, c_int, *mut u16) -> c_int;
    fn _ibv_query_gid_table(*mut sys::Context, *mut sys::GidEntry, usize, u32, usize) -> isize;
    fn ibv_alloc_pd(*mut sys::Context) -> *mut sys::Pd;
    fn ibv_dealloc_pd(*mut sys::Pd) -> c_int;
    fn ibv_reg_mr_iova(*mut sys::Pd, *mut c_void, usize, u64, c_int) -> *mut sys::Mr;
    fn ibv_dereg_mr(*mut sys::Mr) -> c_int;
    fn ibv_create_comp_channel(*mut sys::Context) -> *mut sys::CompChannel;
    fn ibv_destroy_comp_channel(*mut sys::CompChannel) -> c_int;
    fn ibv_create_cq(*mut sys::Context, c_int, *mut c_void, *mut sys::CompChannel, c_int) -> *mut sys::Cq;
    fn ibv_destroy_cq(*mut sys::Cq) -> c_int;
    fn ibv_get_cq_event(*mut sys::CompChannel, *mut *mut sys::Cq, *mut *mut c_void) -> c_int;
    fn ibv_ack_cq_events(*mut sys::Cq, u32);
    fn ibv_create_qp(*mut sys::Pd, *mut sys::QpInitAttr) -> *mut sys::Qp;
    fn ibv_modify_qp(*mut sys::Qp, *mut sys::QpAttr, c_int) -> c_int;
    fn ibv_destroy_qp(*mut sys::Qp) -> c_int;
    fn ibv_create_ah(*mut sys::Pd, *mut sys::AhAttr) -> *mut sys::Ah;
    fn ibv_destroy_ah(*mut sys::Ah) -> c_int;
    fn ibv_get_async_event(*mut sys::Context, *mut sys::AsyncEvent) -> c_int;
    fn ibv_ack_async_event(*mut sys::AsyncEvent);
}

/// The loaded library. It is never unloaded: its drivers start threads and keep pointers of their
/// own.
#[derive(Debug)]
pub struct Library {
    pub(crate) functions: Functions,
}

impl Library {
    /// Loads libibverbs by its usual names.
    ///
    /// # Errors
    /// [`LibraryError`], for the first name if both are missing.
    pub fn load() -> Result<Self, LibraryError> {
        let [first, second] = LIBRARY_NAMES;
        let missing = |error: &LibraryError| matches!(error, LibraryError::Missing { .. });
        match Self::load_from(first.as_ref()) {
            // The name without a version is of the development package. The first error is
            // reported, for it names what is usually installed.
            Err(error) if missing(&error) => Self::load_from(second.as_ref()).or(Err(error)),
            loaded => loaded,
        }
    }

    /// Loads the library `name`, a path or a name that the dynamic loader searches for.
    ///
    /// # Errors
    /// [`LibraryError`].
    pub fn load_from(name: &OsStr) -> Result<Self, LibraryError> {
        let told = name.to_string_lossy().into_owned();
        let handle = Handle::open(name).map_err(|reason| LibraryError::Missing {
            name: told.clone(),
            reason,
        })?;
        let functions = Functions::find(&handle, &told)?;
        if let Some(found) = handle.symbol("ibv_fork_init") {
            // SAFETY: the symbol of that name has this type in the header; it is called before any
            // device is opened. Without it, a process that forks before Linux 5.12 loses the pages
            // that its devices access; a failure is ignored and leaves it so.
            unsafe {
                let fork_init =
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(found);
                fork_init();
            }
        }
        Ok(Self { functions })
    }
}

/// A handle returned by `dlopen`; never closed.
struct Handle(*mut c_void);

impl Handle {
    fn open(name: &OsStr) -> Result<Self, String> {
        let name = CString::new(name.as_bytes()).map_err(|_| "a name with a NUL".to_owned())?;
        // RTLD_NOW, so that a symbol that the library misses is an error here and not a crash
        // later. RTLD_LOCAL, so that its names do not replace others.
        // SAFETY: a C string; running the library's initialisers is the purpose of the call.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(reason());
        }
        Ok(Self(handle))
    }

    fn symbol(&self, name: &str) -> Option<*mut c_void> {
        let name = CString::new(name).ok()?;
        // SAFETY: the handle came from dlopen and is never closed; the name is a C string.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }
}

/// Returns the error message of this thread's last `dlopen`.
fn reason() -> String {
    // SAFETY: dlerror returns null or a C string that lives until this thread's next dl call.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".to_owned();
    }
    text_at(text)
}

fn text_at(text: *const c_char) -> String {
    // SAFETY: the callers pass live C strings.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

/// Converts the return value of a verb to a result. Some verbs return the error number, older ones
/// -1 with errno set.
pub(crate) fn answer(code: c_int) -> io::Result<()> {
    match code {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        code => Err(io::Error::from_raw_os_error(code.abs())),
    }
}
