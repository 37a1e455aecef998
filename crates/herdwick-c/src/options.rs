//! Options of clients and sessions, `herdwick_options`.

use std::{ffi::c_char, time::Duration};

use herdwick::{ClusterOptions, Distribution, Fabric, Login, OnFailure, Options, Tls, TlsFiles};

use crate::{
    bytes::{some_text, text},
    handle::{Handle, cloned, create, on, take},
    status::{Failure, Status},
};

/// What C sets of a client: of one server the part `client` alone counts.
pub(crate) type OptionsHandle = Handle<ClusterOptions>;

/// Returns a copy of the options; the defaults for null.
///
/// # Safety
/// As [`on`].
pub(crate) unsafe fn copy(options: *const OptionsHandle) -> Result<ClusterOptions, Failure> {
    // SAFETY: the caller's promise.
    Ok(unsafe { cloned(options) }?.unwrap_or_default())
}

/// Makes options with the defaults, to be freed by `herdwick_options_free`.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_options_new(options: *mut *mut OptionsHandle) -> Status {
    // SAFETY: the caller's promise.
    unsafe { create(options, || Ok(ClusterOptions::default())) }
}

/// Frees options; clients keep what they were made with.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_options_free(options: *mut OptionsHandle) {
    // SAFETY: the caller's promise.
    unsafe { take(options) };
}

/// Sets how long a call may take.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_options_deadline(
    options: *mut OptionsHandle,
    milliseconds: u32,
) -> Status {
    let set = |options: &mut ClusterOptions| {
        options.client.deadline = deadline(milliseconds);
        Ok(Status::Ok)
    };
    // SAFETY: the caller's promise.
    unsafe { on(options, set) }
}

/// 0 is for ever.
pub(crate) fn deadline(milliseconds: u32) -> Duration {
    match milliseconds {
        0 => Duration::MAX,
        milliseconds => Duration::from_millis(milliseconds.into()),
    }
}

/// Sets the transport.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_options_transport(
    options: *mut OptionsHandle,
    name: *const c_char,
) -> Status {
    let set = |options: &mut ClusterOptions| {
        // SAFETY: the caller's promise.
        let name = unsafe { some_text(name) }?;
        set_transport(&mut options.client, name)?;
        Ok(Status::Ok)
    };
    // SAFETY: the caller's promise.
    unsafe { on(options, set) }
}

fn set_transport(options: &mut Options, name: &str) -> Result<(), Failure> {
    (options.fabric, options.only) = match name {
        "auto" => (true, None),
        "tcp" => (false, None),
        name => {
            let mut all = Fabric::ALL.iter();
            let found = all.find(|fabric| fabric.name() == name);
            let unknown = || {
                let names: Vec<_> = Fabric::ALL.iter().map(|fabric| fabric.name()).collect();
                Failure::usage(format!(
                    "{name:?} is no transport: auto, tcp, {}",
                    names.join(", ")
                ))
            };
            (true, Some(*found.ok_or_else(unknown)?))
        }
    };
    Ok(())
}

/// Sets the requests in flight at each worker over a fabric.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_options_window(
    options: *mut OptionsHandle,
    requests: u32,
) -> Status {
    let set = |options: &mut ClusterOptions| {
        if !(1..=256).contains(&requests) {
            return Err(Failure::usage("a window is of 1 to 256 requests"));
        }
        options.client.window = requests as usize;
        Ok(Status::Ok)
    };
    // SAFETY: the caller's promise.
    unsafe { on(options, set) }
}

/// Sets the largest value that is accepted from a server.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_options_value_max(
    options: *mut OptionsHandle,
    bytes: usize,
) -> Status {
    let set = |options: &mut ClusterOptions| {
        options.client.value_bytes_max = bytes;
        Ok(Status::Ok)
    };
    // SAFETY: the caller's promise.
    unsafe { on(options, set) }
}

/// Sets the user and the password.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_options_login(
    options: *mut OptionsHandle,
    user: *const c_char,
    password: *const c_char,
) -> Status {
    let set = |options: &mut ClusterOptions| {
        // SAFETY: the caller's promise.
        let (user, password) = unsafe { (some_text(user)?, some_text(password)?) };
        // `parse` ends the user at the first colon of the line, and would take the rest for the
        // password.
        let is_user = !user.contains([' ', ':']);
        let login = is_user.then(|| Login::parse(&format!("{user}:{password}")));
        let refused = || Failure::usage("a user has no space or colon, and a password is one line");
        options.client.login = Some(login.flatten().ok_or_else(refused)?);
        Ok(Status::Ok)
    };
    // SAFETY: the caller's promise.
    unsafe { on(options, set) }
}

/// Sets TLS, with the files that it needs.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_options_tls(
    options: *mut OptionsHandle,
    authorities: *const c_char,
    certificate: *const c_char,
    key: *const c_char,
) -> Status {
    let set = |options: &mut ClusterOptions| {
        // SAFETY: the caller's promise.
        let path = |chars| Ok::<_, Failure>(unsafe { text(chars) }?.map(Into::into));
        let files = TlsFiles {
            authorities: path(authorities)?,
            certificate: path(certificate)?,
            key: path(key)?,
            ..TlsFiles::default()
        };
        if files.certificate.is_none() && files.key.is_some() {
            return Err(Failure::usage("a key without its certificate"));
        }
        let tls = Tls::new(&files).map_err(|error| Failure::usage(error.to_string()))?;
        options.client.tls = Some(tls);
        Ok(Status::Ok)
    };
    // SAFETY: the caller's promise.
    unsafe { on(options, set) }
}

/// Sets how keys are distributed over several servers.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_options_distribution(
    options: *mut OptionsHandle,
    name: *const c_char,
) -> Status {
    let set = |options: &mut ClusterOptions| {
        // SAFETY: the caller's promise.
        options.distribution = match unsafe { some_text(name) }? {
            "ketama" => Distribution::Ketama,
            "ketama-one-at-a-time" => Distribution::KetamaOneAtATime,
            "rendezvous" => Distribution::Rendezvous,
            other => {
                return Err(Failure::usage(format!(
                    "{other:?} is no distribution: ketama, ketama-one-at-a-time, rendezvous"
                )));
            }
        };
        Ok(Status::Ok)
    };
    // SAFETY: the caller's promise.
    unsafe { on(options, set) }
}

/// Sets what a call does whose server fails, of several servers.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_options_on_failure(
    options: *mut OptionsHandle,
    policy: *const c_char,
    failures: u32,
    away_milliseconds: u32,
) -> Status {
    let set = |options: &mut ClusterOptions| {
        // SAFETY: the caller's promise.
        options.on_failure = match unsafe { some_text(policy) }? {
            "fail" => OnFailure::Fail,
            "retry" => OnFailure::Retry,
            "failover" => OnFailure::Failover,
            "eject" => OnFailure::Eject {
                failures,
                away: Duration::from_millis(away_milliseconds.into()),
            },
            other => {
                return Err(Failure::usage(format!(
                    "{other:?} is no policy: fail, retry, failover, eject"
                )));
            }
        };
        Ok(Status::Ok)
    };
    // SAFETY: the caller's promise.
    unsafe { on(options, set) }
}
