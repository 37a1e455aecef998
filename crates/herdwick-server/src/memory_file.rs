//! The file that keeps items across restarts (memcached's `-e`): a header page that identifies it,
//! followed by one part for each worker's store.

use std::{
    fmt,
    fs::{self, File},
    io,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use herdwick_mem::crc32c;
use herdwick_mica::{HashKey, LAYOUT, Recovered};
use rustix::{
    fs::{FallocateFlags, FlockOperation, fallocate, flock, fstatvfs},
    io::Errno,
};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U32, U64},
};

/// The first page: the header, and the state word.
const PAGE: u64 = 4096;
const MAGIC: [u8; 8] = *b"HERDWICK";
/// Version of the header and the state word; the parts have a version of their own ([`LAYOUT`]).
const FORMAT: u32 = 1;

/// What the file was created for. Everything else in it depends on these values.
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
    /// CRC-32C of all fields before it.
    crc: U32,
    reserved: U32,
}

const CRC_AT: usize = std::mem::offset_of!(Header, crc);
/// The state word, on a cache line of its own: [`ENDED`], or the boot number under which a server
/// uses the file.
const STATE_AT: u64 = 64;
const _: () = assert!(CRC_AT == 56 && size_of::<Header>() as u64 == STATE_AT);

/// The server ended cleanly, and all data was written.
const ENDED: u64 = 0x6465_646e_6520_2e2e;

/// A server uses the file, and the kernel gave it no boot number. Not 0: from its first moment on, a
/// file of ours differs from a foreign one that begins with zeros.
const UNKNOWN: u64 = 0x6e77_6f6e_6b6e_7520;

/// The parts of a file, one for each worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) workers: usize,
    pub(crate) bytes: u64,
}

impl Parts {
    /// Returns the offset of a worker's part.
    pub(crate) fn offset(&self, worker: usize) -> u64 {
        PAGE + worker as u64 * self.bytes
    }
}

/// The file, locked while this value lives.
pub(crate) struct MemoryFile {
    pub(crate) file: File,
    parts: Parts,
    /// What a previous server left, from a valid header; its items are not verified yet.
    pub(crate) left: Option<Left>,
}

/// The hash key and epoch that the file's items were stored under.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    pub(crate) hash_key: HashKey,
    pub(crate) epoch_unix: u64,
}

/// Why the file for items cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MemoryFileError {
    /// Another server uses it.
    #[error("{0} is in use by another server; give another file (-e), or end that server")]
    InUse(PathBuf),
    /// It is a directory, a device, or otherwise not a regular file.
    #[error("{0} is no regular file; give one (-e)")]
    Irregular(PathBuf),
    /// The file system has no room for it.
    #[error(
        "there is no room for the {bytes} bytes of {path}; give less memory (-m), or a file elsewhere (-e)"
    )]
    Full {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// The operating system refused something.
    #[error(
        "cannot keep items in {path}: {source}; give a file that this user may write to, on tmpfs, ext4, xfs or btrfs (-e)"
    )]
    Refused {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

/// What was recovered of the previous server's items.
#[derive(Clone, Debug)]
pub struct Restart {
    /// The file.
    pub path: PathBuf,
    /// Why no items were recovered; `None`: the start is warm.
    pub cold: Option<Cold>,
    /// Number of recovered items.
    pub items: u64,
    /// Damaged bytes, which may have held more items.
    pub damaged: u64,
    /// Number of workers with a part too damaged to recover anything.
    pub parts_lost: usize,
}

/// Why a start is cold: no items were recovered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cold {
    /// The file did not exist or was empty.
    #[error("it is new")]
    New,
    /// The file was not this server's; it was renamed to this path.
    #[error("what was there is not this server's, and is kept as {0}")]
    Foreign(PathBuf),
    /// The header's checksum or the file's length is wrong.
    #[error("its header is damaged")]
    Damaged,
    /// Another version of the layout.
    #[error("another version of this server wrote it")]
    Version,
    /// Another number of workers.
    #[error("{0} workers wrote it, and items stay with their worker; keep to one -t")]
    Workers(u64),
    /// Another part size.
    #[error("it was written with another -m or --shm; keep to one")]
    Size,
    /// The host went down during use: stores may not have reached the disk, in any order.
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

    /// Adds the result of a worker's part.
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
    /// Opens or creates the file, with room allocated for all parts. Returns why the start is cold,
    /// if it is.
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
            // What was there is of no use from here on, but may be to a start with other options:
            // it goes only where this start can do without more room.
            if cold != Some(Cold::New) && room(&file).map_err(refused)? < bytes {
                let path = path.to_owned();
                return Err(MemoryFileError::Full { path, bytes });
            }
            file.set_len(0).map_err(refused)?;
            file.write_all_at(&UNKNOWN.to_le_bytes(), STATE_AT)
                .map_err(refused)?;
        }
        match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
            Ok(()) => {}
            Err(Errno::NOSPC) => {
                // Gives back the room that was already allocated.
                let _ = file.set_len(0);
                let path = path.to_owned();
                return Err(MemoryFileError::Full { path, bytes });
            }
            Err(errno) => return Err(refused(errno.into())),
        }
        Ok((Self { file, parts, left }, cold))
    }

    /// Marks the file as used by this server, with this hash key and epoch.
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

    /// Marks the file as cleanly ended, once everything stored has been synced.
    pub(crate) fn end(&self) -> io::Result<()> {
        // The first sync puts the data on disk before ENDED, the second makes ENDED durable.
        self.file.sync_data()?;
        self.note(ENDED)?;
        self.file.sync_data()
    }

    fn note(&self, state: u64) -> io::Result<()> {
        self.file.write_all_at(&state.to_le_bytes(), STATE_AT)
    }
}

/// Returns the most bytes that the file may take, those that it has included. Where the file system
/// does not tell, as a tmpfs without a limit, there is no bound; what is reserved for root counts.
fn room(file: &File) -> io::Result<u64> {
    let free = fstatvfs(file)?;
    if free.f_blocks == 0 {
        return Ok(u64::MAX);
    }
    let own = file.metadata()?.blocks() * 512;
    Ok((free.f_bfree * free.f_frsize).saturating_add(own))
}

/// Opens the file and locks it exclusively.
fn lock(path: &Path) -> Result<File, MemoryFileError> {
    let refused = |source| MemoryFileError::Refused {
        path: path.to_owned(),
        source,
    };
    // Checked before opening: a directory cannot be opened for writing, and opening a pipe would
    // block.
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

/// Reads and verifies the header page.
fn read(file: &File, parts: Parts) -> io::Result<Result<Left, Cold>> {
    let mut page = [0; PAGE as usize];
    let len = file.metadata()?.len();
    let read = page.len().min(usize::try_from(len).unwrap_or(page.len()));
    file.read_exact_at(&mut page[..read], 0)?;
    Ok(judge(&page, len, parts))
}

fn judge(page: &[u8; PAGE as usize], len: u64, parts: Parts) -> Result<Left, Cold> {
    // A server that was killed between noting its state and writing the header leaves all other
    // bytes zero.
    let state = STATE_AT as usize..STATE_AT as usize + size_of::<u64>();
    let noted = page[state.clone()].iter().any(|byte| *byte != 0);
    let mut others = page
        .iter()
        .enumerate()
        .filter(|(at, _)| !state.contains(at));
    if others.all(|(_, byte)| *byte == 0) {
        return Err(match (len, noted) {
            (0, _) => Cold::New,
            (_, true) => Cold::Damaged,
            // No server of ours leaves the state 0: another's file that begins with zeros.
            (_, false) => Cold::Foreign(PathBuf::new()),
        });
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

/// Returns the path that a foreign file is renamed to.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".old");
    name.into()
}

/// Returns whether everything stored is in the file, given the state word and the current boot
/// number: the server ended cleanly, or was killed while the kernel kept running, so that the page
/// cache survived.
fn is_whole(state: Option<u64>, boot: Option<u64>) -> bool {
    state == Some(ENDED) || (boot.is_some() && state == boot)
}

/// Returns a number for this boot of the kernel, never [`UNKNOWN`]; `None`: the kernel does not
/// report it. Then a killed server may have died with its host, so the start is cold.
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

    /// A path in a directory of its own, removed on drop.
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

        /// Leaves a file that a server has used.
        fn used(&self) {
            let (file, _) = self.open(PARTS);
            file.begin(HashKey([3, 4]), 77).unwrap();
        }

        /// Changes the file; returns why the next start is cold.
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
        assert_eq!(fs::read_to_string(&aside).unwrap(), "a letter");
        // A disk image begins with zeros.
        let image = [&[0; 2 * PAGE as usize][..], b"a letter"].concat();
        fs::write(place.path(), &image).unwrap();
        assert_eq!(place.open(PARTS).1, Some(Cold::Foreign(aside.clone())));
        assert_eq!(fs::read(aside).unwrap(), image);
        assert!(matches!(
            MemoryFile::open(&place.0, PARTS),
            Err(MemoryFileError::Irregular(_))
        ));
    }

    #[test]
    fn what_has_no_room_leaves_what_was_there() {
        let place = Place::new("room");
        place.used();
        let large = Parts {
            bytes: 1 << 50,
            ..PARTS
        };
        let full = MemoryFile::open(&place.path(), large);
        assert!(matches!(full, Err(MemoryFileError::Full { .. })));
        assert_eq!(place.open(PARTS).1, None, "it is as it was");
    }

    #[test]
    fn only_an_end_or_the_same_run_of_the_kernel_leaves_all_that_was_stored() {
        assert!(is_whole(Some(ENDED), None) && is_whole(Some(ENDED), Some(7)));
        assert!(is_whole(Some(7), Some(7)) && !is_whole(Some(7), Some(9)));
        // Neither server could read the boot number.
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
            place.after(|file| file.write_all_at(&[0; 64], 0).unwrap()),
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
