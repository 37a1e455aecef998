//! The file that items outlive the server in (memcached's `-e`): a page that says whose it is, and
//! behind it a part for each worker's store.

use std::{
    fmt,
    fs::{self, File},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use herdwick_mem::crc32c;
use herdwick_mica::{HashKey, LAYOUT, Recovered};
use rustix::{
    fs::{FallocateFlags, FlockOperation, fallocate, flock},
    io::Errno,
};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U32, U64},
};

/// The first page: the header, and the word that says how the server is.
const PAGE: u64 = 4096;
const MAGIC: [u8; 8] = *b"HERDWICK";
/// Changes with this header and this word; what is behind them has a number of its own.
const FORMAT: u32 = 1;

/// What the file was made for. Everything else in it has been written with this in mind.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    format: U32,
    layout: U32,
    workers: U64,
    part_bytes: U64,
    hash_key: [U64; 2],
    /// Unix time of the items' second 0.
    epoch_unix: U64,
    /// Of all before it.
    crc: U32,
    reserved: U32,
}

const CRC_AT: usize = std::mem::offset_of!(Header, crc);
/// A word of its own line: [`ENDED`], or the number of the boot under which a server runs.
const STATE_AT: u64 = 64;
const _: () = assert!(CRC_AT == 56 && size_of::<Header>() as u64 == STATE_AT);

/// A server ended as it should, and everything is written.
const ENDED: u64 = 0x6465_646e_6520_2e2e;

/// A server uses the file, in a run of the kernel that nobody can tell from others.
const UNKNOWN: u64 = 0;

/// The parts of a file: one for each worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) workers: usize,
    pub(crate) bytes: u64,
}

impl Parts {
    /// Where the part of a worker begins.
    pub(crate) fn offset(&self, worker: usize) -> u64 {
        PAGE + worker as u64 * self.bytes
    }
}

/// The file, locked for as long as this lives.
pub(crate) struct MemoryFile {
    pub(crate) file: File,
    parts: Parts,
    /// What a server before this one has left; taken up, not yet believed.
    pub(crate) left: Option<Left>,
}

/// What items that stay were stored under.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    pub(crate) hash_key: HashKey,
    pub(crate) epoch_unix: u64,
}

/// Why there is no file to keep items in.
#[derive(Debug, thiserror::Error)]
pub enum MemoryFileError {
    /// Another server has it.
    #[error("{0} is in use by another server; give another file (-e), or end that server")]
    InUse(PathBuf),
    /// A directory, a device.
    #[error("{0} is no regular file; give one (-e)")]
    Irregular(PathBuf),
    /// There is no room for it.
    #[error(
        "there is no room for the {bytes} bytes of {path}; give less memory (-m), or a file elsewhere (-e)"
    )]
    Full {
        /// The file.
        path: PathBuf,
        /// What it would take.
        bytes: u64,
    },
    /// The operating system refused something.
    #[error(
        "cannot keep items in {path}: {source}; give a file that this user may write to, on tmpfs, ext4, xfs or btrfs (-e)"
    )]
    Refused {
        /// The file.
        path: PathBuf,
        /// Its answer.
        source: io::Error,
    },
}

/// What became of the items of the server before.
#[derive(Clone, Debug)]
pub struct Restart {
    /// The file.
    pub path: PathBuf,
    /// Why none of them are here.
    pub cold: Option<Cold>,
    /// How many are.
    pub items: u64,
    /// Bytes in which there may have been more.
    pub damaged: u64,
    /// Workers whose part was damaged so that nothing of it is here.
    pub parts_lost: usize,
}

/// Why a start is cold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cold {
    /// Nothing was there.
    #[error("it is new")]
    New,
    /// Something else was there.
    #[error("what was there is not this server's, and is kept as {0}")]
    Foreign(PathBuf),
    /// By its header.
    #[error("its header is damaged")]
    Damaged,
    /// Of other layouts.
    #[error("another version of this server wrote it")]
    Version,
    /// Of another number of workers.
    #[error("{0} workers wrote it, and items stay with their worker; keep to one -t")]
    Workers(u64),
    /// Of another size.
    #[error("it was written with another -m or --shm; keep to one")]
    Size,
    /// Part of what was stored may not have reached the disk.
    #[error("the host went down while a server used it")]
    HostWentDown,
}

impl fmt::Display for Restart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        if let Some(cold) = &self.cold {
            return write!(f, "{path} holds no items to begin with: {cold}");
        }
        write!(f, "{} items are here again from {path}", self.items)?;
        if self.damaged > 0 {
            write!(f, "; {} bytes of it were damaged", self.damaged)?;
        }
        match self.parts_lost {
            0 => Ok(()),
            lost => write!(f, "; the parts of {lost} workers were, and are empty"),
        }
    }
}

impl Restart {
    pub(crate) fn new(path: &Path, cold: Option<Cold>) -> Self {
        Self {
            path: path.to_owned(),
            cold,
            items: 0,
            damaged: 0,
            parts_lost: 0,
        }
    }

    /// Counts a worker's part.
    pub(crate) fn add(&mut self, recovered: Option<Recovered>) {
        match recovered {
            Some(recovered) => {
                self.items += recovered.items;
                self.damaged += recovered.damaged;
            }
            None => self.parts_lost += 1,
        }
    }
}

impl MemoryFile {
    /// Opens the file, or makes it, with room for all parts.
    ///
    /// # Errors
    /// [`MemoryFileError`].
    pub(crate) fn open(path: &Path, parts: Parts) -> Result<(Self, Option<Cold>), MemoryFileError> {
        let refused = |source| MemoryFileError::Refused {
            path: path.to_owned(),
            source,
        };
        let mut file = lock(path)?;
        let (mut left, mut cold) = match read(&file, parts).map_err(refused)? {
            Ok(left) => (Some(left), None),
            Err(cold) => (None, Some(cold)),
        };
        if let Some(Cold::Foreign(aside)) = &mut cold {
            *aside = beside(path);
            fs::rename(path, aside).map_err(refused)?;
            file = lock(path)?;
            left = None;
        }
        let bytes = parts.offset(parts.workers);
        if cold.is_some() {
            file.set_len(0).map_err(refused)?;
        }
        match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
            Ok(()) => {}
            Err(Errno::NOSPC) => {
                // What was taken of the room is of use to others.
                let _ = file.set_len(0);
                let path = path.to_owned();
                return Err(MemoryFileError::Full { path, bytes });
            }
            Err(errno) => return Err(refused(errno.into())),
        }
        Ok((Self { file, parts, left }, cold))
    }

    /// Notes that a server uses the file from now on, with this key and this second 0.
    pub(crate) fn begin(&self, hash_key: HashKey, epoch_unix: u64) -> io::Result<()> {
        let mut header = Header {
            magic: MAGIC,
            format: FORMAT.into(),
            layout: LAYOUT.into(),
            workers: (self.parts.workers as u64).into(),
            part_bytes: self.parts.bytes.into(),
            hash_key: hash_key.0.map(U64::new),
            epoch_unix: epoch_unix.into(),
            crc: 0.into(),
            reserved: 0.into(),
        };
        header.crc.set(crc32c(0, &header.as_bytes()[..CRC_AT]));
        self.note(boot().unwrap_or(UNKNOWN))?;
        if self.left.is_none_or(|left| left.epoch_unix != epoch_unix) {
            self.file.write_all_at(header.as_bytes(), 0)?;
        }
        self.file.sync_data()
    }

    /// Notes that the server has ended, once all that it stored is written.
    pub(crate) fn end(&self) -> io::Result<()> {
        self.file.sync_data()?;
        self.note(ENDED)?;
        self.file.sync_data()
    }

    fn note(&self, state: u64) -> io::Result<()> {
        self.file.write_all_at(&state.to_le_bytes(), STATE_AT)
    }
}

/// Opens a file that nobody else uses.
fn lock(path: &Path) -> Result<File, MemoryFileError> {
    let refused = |source| MemoryFileError::Refused {
        path: path.to_owned(),
        source,
    };
    // A directory cannot be opened for writing, and a pipe would wait for its other end.
    if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return Err(MemoryFileError::Irregular(path.to_owned()));
    }
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    let file = options.mode(0o600).open(path).map_err(refused)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(MemoryFileError::InUse(path.to_owned())),
        Err(errno) => Err(refused(errno.into())),
    }
}

/// What is in the file.
fn read(file: &File, parts: Parts) -> io::Result<Result<Left, Cold>> {
    let mut page = [0; PAGE as usize];
    let len = file.metadata()?.len();
    let read = page.len().min(usize::try_from(len).unwrap_or(page.len()));
    file.read_exact_at(&mut page[..read], 0)?;
    Ok(judge(&page, len, parts))
}

fn judge(page: &[u8; PAGE as usize], len: u64, parts: Parts) -> Result<Left, Cold> {
    // One that was made, and had its state noted, but not its header.
    let state = STATE_AT as usize..STATE_AT as usize + size_of::<u64>();
    let mut others = page
        .iter()
        .enumerate()
        .filter(|(at, _)| !state.contains(at));
    if others.all(|(_, byte)| *byte == 0) {
        return Err(if len == 0 { Cold::New } else { Cold::Damaged });
    }
    let (header, rest) = Header::ref_from_prefix(page).map_err(|_| Cold::Damaged)?;
    if header.magic != MAGIC {
        return Err(Cold::Foreign(PathBuf::new()));
    }
    if header.format.get() != FORMAT || header.layout.get() != LAYOUT {
        return Err(Cold::Version);
    }
    if header.crc.get() != crc32c(0, &header.as_bytes()[..CRC_AT]) {
        return Err(Cold::Damaged);
    }
    if header.workers.get() != parts.workers as u64 {
        return Err(Cold::Workers(header.workers.get()));
    }
    if header.part_bytes.get() != parts.bytes {
        return Err(Cold::Size);
    }
    if len < parts.offset(parts.workers) {
        return Err(Cold::Damaged);
    }
    let state = rest.first_chunk().map(|word| u64::from_le_bytes(*word));
    if !is_whole(state, boot()) {
        return Err(Cold::HostWentDown);
    }
    Ok(Left {
        hash_key: HashKey(header.hash_key.map(U64::get)),
        epoch_unix: header.epoch_unix.get(),
    })
}

/// Where what is not ours is put.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".old");
    name.into()
}

/// Whether all that was stored is there after a server that left `state`, in a kernel's run that has
/// the number `boot`.
fn is_whole(state: Option<u64>, boot: Option<u64>) -> bool {
    state == Some(ENDED) || (boot.is_some() && state == boot)
}

/// A number for this run of the kernel; none if it cannot be asked which one it is. Then a server
/// that was killed may have been so with its host, and the start is cold.
fn boot() -> Option<u64> {
    let id = fs::read("/proc/sys/kernel/random/boot_id").ok()?;
    Some(HashKey([1, 2]).hash(&id).0 | 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: Parts = Parts {
        workers: 2,
        bytes: 8192,
    };

    /// A path in a directory of its own, gone with its owner.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let name = format!("herdwick-memory-file-{}-{name}", std::process::id());
            let directory = std::env::temp_dir().join(name);
            fs::create_dir(&directory).unwrap();
            Self(directory)
        }

        fn path(&self) -> PathBuf {
            self.0.join("items")
        }

        fn open(&self, parts: Parts) -> (MemoryFile, Option<Cold>) {
            MemoryFile::open(&self.path(), parts).unwrap()
        }

        /// Leaves a file behind that a server has used.
        fn used(&self) {
            let (file, _) = self.open(PARTS);
            file.begin(HashKey([3, 4]), 77).unwrap();
        }

        /// Changes the file, and says how a server then begins.
        fn after(&self, change: impl FnOnce(&File)) -> Option<Cold> {
            self.used();
            change(&File::options().write(true).open(self.path()).unwrap());
            self.open(PARTS).1
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_a_server_leaves_the_next_takes_up_however_it_ended() {
        let place = Place::new("left");
        let (file, cold) = place.open(PARTS);
        assert_eq!(cold, Some(Cold::New));
        file.begin(HashKey([3, 4]), 77).unwrap();
        drop(file);
        let (file, cold) = place.open(PARTS);
        let left = file.left.unwrap();
        assert_eq!(cold, None);
        assert_eq!((left.hash_key, left.epoch_unix), (HashKey([3, 4]), 77));
        file.begin(left.hash_key, left.epoch_unix).unwrap();
        file.end().unwrap();
        drop(file);
        assert_eq!(place.open(PARTS).1, None);
    }

    #[test]
    fn a_file_in_use_is_nobody_elses() {
        let place = Place::new("used");
        let _held = place.open(PARTS);
        let second = MemoryFile::open(&place.path(), PARTS);
        assert!(matches!(second, Err(MemoryFileError::InUse(_))));
    }

    #[test]
    fn what_is_foreign_is_kept_aside() {
        let place = Place::new("foreign");
        fs::write(place.path(), "a letter").unwrap();
        let (_, cold) = place.open(PARTS);
        let aside = beside(&place.path());
        assert_eq!(cold, Some(Cold::Foreign(aside.clone())));
        assert_eq!(fs::read_to_string(aside).unwrap(), "a letter");
        assert!(matches!(
            MemoryFile::open(&place.0, PARTS),
            Err(MemoryFileError::Irregular(_))
        ));
    }

    #[test]
    fn only_an_end_or_the_same_run_of_the_kernel_leaves_all_that_was_stored() {
        assert!(is_whole(Some(ENDED), None) && is_whole(Some(ENDED), Some(7)));
        assert!(is_whole(Some(7), Some(7)) && !is_whole(Some(7), Some(9)));
        // Neither of two servers could tell the kernel's run.
        assert!(!is_whole(Some(UNKNOWN), None) && !is_whole(None, None));
    }

    #[test]
    fn whatever_does_not_fit_begins_cold_and_the_next_time_does_not() {
        let place = Place::new("cold");
        let state = |state: u64| {
            move |file: &File| file.write_all_at(&state.to_le_bytes(), STATE_AT).unwrap()
        };
        assert_eq!(place.after(|_| {}), None);
        assert_eq!(
            place.after(state(boot().unwrap() ^ 2)),
            Some(Cold::HostWentDown)
        );
        assert_eq!(place.after(state(ENDED)), None);
        let damaged = Some(Cold::Damaged);
        assert_eq!(
            place.after(|file| file.write_all_at(b"x", 40).unwrap()),
            damaged
        );
        assert_eq!(place.after(|file| file.set_len(9000).unwrap()), damaged);
        assert_eq!(
            place.after(|file| file.write_all_at(&[0; 100], 0).unwrap()),
            damaged
        );
        let version = |file: &File| file.write_all_at(&[9], 8).unwrap();
        assert_eq!(place.after(version), Some(Cold::Version));
        place.used();
        let fewer = Parts {
            workers: 1,
            ..PARTS
        };
        assert_eq!(place.open(fewer).1, Some(Cold::Workers(2)));
        place.used();
        let larger = Parts {
            bytes: 16384,
            ..PARTS
        };
        assert_eq!(place.open(larger).1, Some(Cold::Size));
    }
}
