//! Exclusive `flock` on a path: after locking, checks that the path still names the locked inode, and
//! else opens it again.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, OFlags, flock};

/// Attempts to lock a file that another process renames or removes meanwhile.
const TRIES: usize = 8;

/// Opens the file at `path` with `options` and locks it exclusively.
///
/// # Errors
/// `WouldBlock` if another process holds the lock, or has replaced the file at each attempt; the
/// errors of the system calls.
pub(crate) fn open_locked(path: &Path, options: &OpenOptions) -> io::Result<File> {
    lock_opened(path, || options.open(path))
}

fn lock_opened(path: &Path, open: impl Fn() -> io::Result<File>) -> io::Result<File> {
    for _ in 0..TRIES {
        let file = open()?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        // The path may name another file since it was opened: its holder would not see this lock.
        if is_at(&file, path)? {
            return Ok(file);
        }
    }
    Err(ErrorKind::WouldBlock.into())
}

/// Returns whether `path` still names `file`.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    match fs::metadata(path) {
        Ok(there) => Ok((own.dev(), own.ino()) == (there.dev(), there.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// A lock on a path where no file can be kept open: that of a file beside it, removed on drop.
#[derive(Debug)]
pub(crate) struct PathLock {
    beside: PathBuf,
    _file: File,
}

impl PathLock {
    /// Locks `path` by the file `path.lock`.
    ///
    /// # Errors
    /// As [`open_locked`].
    pub(crate) fn take(path: &Path) -> io::Result<Self> {
        let mut beside = path.as_os_str().to_owned();
        beside.push(".lock");
        let beside = PathBuf::from(beside);
        let mut options = File::options();
        options.write(true).create(true).truncate(false).mode(0o600);
        // A link could make the server create a file elsewhere, and a pipe could block.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        options.custom_flags(flags.bits().cast_signed());
        let file = open_locked(&beside, &options)?;
        Ok(Self {
            beside,
            _file: file,
        })
    }
}

impl Drop for PathLock {
    fn drop(&mut self) {
        // Removed while it is locked: a process that has it open finds that the path names another file.
        // If it stays, the next lock is that of the same file.
        let _ = fs::remove_file(&self.beside);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path for this test, removed on drop.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let name = format!("herdwick-file-lock-{}-{name}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    fn kind<T>(result: io::Result<T>) -> Option<ErrorKind> {
        result.err().map(|error| error.kind())
    }

    /// Threads take the lock and remove its file, over and over: at no time do two hold it.
    #[test]
    fn one_holds_the_lock_while_its_file_is_removed_and_created_again() {
        use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
        let place = Place::new("removed");
        let (held, taken) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while taken.load(Ordering::SeqCst) < 20_000 {
                        let Ok(lock) = PathLock::take(&place.0) else {
                            continue;
                        };
                        assert!(!held.swap(true, Ordering::SeqCst), "two hold it");
                        taken.fetch_add(1, Ordering::SeqCst);
                        held.store(false, Ordering::SeqCst);
                        drop(lock);
                    }
                });
            }
        });
    }

    /// The file is replaced between opening and locking, as often as is tried, or once less.
    #[test]
    fn lock_is_tried_again_on_the_file_that_replaced_the_first() {
        let place = Place::new("replaced");
        for (replaced, locked) in [(TRIES, None), (TRIES - 1, Some(()))] {
            let left = std::cell::Cell::new(replaced);
            let open = || {
                let file = File::create(&place.0)?;
                if let Some(less) = left.get().checked_sub(1) {
                    left.set(less);
                    fs::remove_file(&place.0)?;
                    File::create_new(&place.0)?;
                }
                Ok(file)
            };
            let result = lock_opened(&place.0, open);
            match (&result, locked) {
                (Ok(file), Some(())) => assert!(is_at(file, &place.0).unwrap()),
                (Err(error), None) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                _ => panic!("{replaced}: {result:?}"),
            }
        }
    }

    #[test]
    fn a_second_lock_is_refused_until_the_first_is_dropped() {
        let place = Place::new("second");
        let first = PathLock::take(&place.0).unwrap();
        let second = PathLock::take(&place.0);
        assert_eq!(kind(second), Some(ErrorKind::WouldBlock));
        let beside = first.beside.clone();
        drop(first);
        assert!(!beside.exists());
        drop(PathLock::take(&place.0).unwrap());
        std::os::unix::fs::symlink(&place.0, &beside).unwrap();
        let linked = PathLock::take(&place.0);
        fs::remove_file(&beside).unwrap();
        assert!(linked.is_err() && !place.0.exists());
    }
}
