//! A file without a name, for unit tests and tests of the store.

use std::{
    env,
    fs::{self, File},
    path::PathBuf,
    process,
    sync::atomic::{AtomicU32, Ordering},
};

/// Returns an unlinked file of `len` zeros, which is freed when it is closed.
#[allow(dead_code, reason = "not every test has a store that lasts")]
pub(crate) fn nameless_file(len: u64) -> File {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    // Cargo names a folder for tests of the crate, but not for unit tests.
    let folder = option_env!("CARGO_TARGET_TMPDIR").map_or_else(env::temp_dir, PathBuf::from);
    let path = folder.join(format!("herdwick-mica-{}-{number}", process::id()));
    let mut options = File::options();
    let file = options.read(true).write(true).create_new(true).open(&path);
    let file = file.unwrap();
    fs::remove_file(path).unwrap();
    file.set_len(len).unwrap();
    file
}
