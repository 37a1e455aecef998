//! Paths of flags, made absolute.

use std::path::{Path, PathBuf};

use herdwick_server::Leases;

/// Returns the directory of the lease socket, from `--shm-dir` or the default.
pub(crate) fn lease_directory(asked: Option<&Path>) -> PathBuf {
    absolute(asked.unwrap_or(&Leases::default().directory))
}

/// Makes a path absolute, since the process may change its directory.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
