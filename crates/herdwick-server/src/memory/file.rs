//! The file that keeps items across restarts (memcached's `-e`): a header page that identifies it,
//! followed by one part for each worker's store.

use std::{
    fs::{self, File},
    io,
    ops::Range,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use herdwick_mem::crc32c;
use herdwick_mica::LAYOUT;
use herdwick_request::HashKey;
use rustix::{
    fs::{CWD, FallocateFlags, RenameFlags, fallocate, fstatvfs, renameat_with},
    io::Errno,
    process::geteuid,
};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U32, U64},
};

use super::{
    disk_space::{PIECE, beside, free_bytes, zero},
    recovery::Cold,
};
use crate::{file_lock::open_locked, settings::file_error::MemoryFileError};

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
    pub(crate) left: Option<StoredWith>,
}

/// The hash key and epoch that the file's items were stored under.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredWith {
    pub(crate) hash_key: HashKey,
    pub(crate) epoch_unix: u64,
}

impl MemoryFile {
    /// Opens or creates the file, with room allocated for all parts. Returns why the start is cold,
    /// if it is. Where this fails, what was there stays as it was, unless the error is
    /// [`MemoryFileError::ItemsGone`].
    ///
    /// # Errors
    /// [`MemoryFileError`].
    pub(crate) fn open(path: &Path, parts: Parts) -> Result<(Self, Option<Cold>), MemoryFileError> {
        let size = Size {
            path,
            bytes: parts.offset(parts.workers),
        };
        // Of the link, not of what it names: a link that leads nowhere is not removed below.
        let is_new = fs::symlink_metadata(path).is_err();
        let mut file = lock(path)?;
        let read = read(&file, parts).map_err(|error| size.refused(error))?;
        let (left, cold) = match read {
            Ok(left) => {
                // A file system that has no room now must not fail later, when a page is written
                // (SIGBUS).
                size.allocate(&file)?;
                (Some(left), None)
            }
            Err(Cold::Foreign(_)) => {
                let (ours, aside) = size.replace(&file)?;
                file = ours;
                (None, Some(Cold::Foreign(aside)))
            }
            Err(cold) => {
                size.begin_anew(&file).inspect_err(|_| {
                    if is_new {
                        // Still locked, so no other server has begun to use it.
                        let _ = fs::remove_file(path);
                    }
                })?;
                (None, Some(cold))
            }
        };
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
        // The state first: a kill in between leaves a file of ours, whose header is the old one or
        // none.
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

/// The size that a memory file is to have, at its path.
struct Size<'a> {
    path: &'a Path,
    bytes: u64,
}

impl Size<'_> {
    /// Sorts an error of the system calls that allocate.
    fn refused(&self, source: io::Error) -> MemoryFileError {
        let (path, bytes) = (self.path.to_owned(), self.bytes);
        match Errno::from_io_error(&source) {
            Some(Errno::NOSPC | Errno::DQUOT) => MemoryFileError::Full { path, bytes },
            Some(Errno::FBIG) => MemoryFileError::TooLarge { path, bytes },
            _ => MemoryFileError::Refused { path, source },
        }
    }

    /// Allocates all bytes; those that are there already stay as they are.
    fn allocate(&self, file: &File) -> Result<(), MemoryFileError> {
        let mut at = 0;
        while at < self.bytes {
            let piece = PIECE.min(self.bytes - at);
            match fallocate(file, FallocateFlags::empty(), at, piece) {
                Ok(()) => at += piece,
                // By a signal, which its own handler deals with.
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.refused(errno.into())),
            }
        }
        Ok(())
    }

    /// Empties a file of ours whose items are of no use to this start, and allocates all bytes.
    /// A start with other options could still use the items. So this allocates all bytes of the file
    /// first, and drops the items only if that succeeds. It zeroes them in place, because another process
    /// could take space that is given back.
    fn begin_anew(&self, file: &File) -> Result<(), MemoryFileError> {
        self.begin_anew_by(file, zero)
    }

    fn begin_anew_by(
        &self,
        file: &File,
        zero: impl FnOnce(&File, Range<u64>) -> io::Result<()>,
    ) -> Result<(), MemoryFileError> {
        let refused = |error| self.refused(error);
        let before = file.metadata().map_err(refused)?.len();
        if before > 0 {
            self.check_room(file, true)?;
        } else {
            note_unknown(file).map_err(refused)?;
        }
        // The items are there until the header is written over, which fails as a whole.
        let allocated = self.allocate(file);
        if let Err(error) = allocated.and_then(|()| forget(file).map_err(refused)) {
            return Err(match file.set_len(before) {
                Ok(()) => error,
                Err(source) => MemoryFileError::RoomKept {
                    error: error.into(),
                    path: self.path.to_owned(),
                    source,
                },
            });
        }
        if before == 0 {
            return Ok(());
        }
        // Before any item goes, so that no crash leaves a header that promises them.
        let synced = file.sync_data();
        let old = PAGE..before.clamp(PAGE, self.bytes);
        let zeroed = synced.and_then(|()| zero(file, old));
        // The file may have been larger.
        let cut = zeroed.and_then(|()| file.set_len(self.bytes));
        cut.map_err(|error| MemoryFileError::ItemsGone {
            error: refused(error).into(),
            path: self.path.to_owned(),
        })
    }

    /// Renames what is not ours, and creates a file of ours in its place. Returns it and the new
    /// path of the other one.
    fn replace(&self, foreign: &File) -> Result<(File, PathBuf), MemoryFileError> {
        self.replace_by(foreign, lock)
    }

    fn replace_by(
        &self,
        foreign: &File,
        lock: impl FnOnce(&Path) -> Result<File, MemoryFileError>,
    ) -> Result<(File, PathBuf), MemoryFileError> {
        self.check_room(foreign, false)?;
        let (path, aside) = (self.path, beside(self.path));
        // An older file that was put aside is not written over.
        match renameat_with(CWD, path, CWD, &aside, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                let path = path.to_owned();
                return Err(MemoryFileError::AsideTaken { path, aside });
            }
            Err(errno) => return Err(self.refused(errno.into())),
        }
        let file = match lock(path) {
            Ok(file) => file,
            Err(error) => {
                // Not over the file of a server that has started meanwhile.
                let back = renameat_with(CWD, &aside, CWD, path, RenameFlags::NOREPLACE);
                return Err(self.put_back(aside, back.map_err(io::Error::from), error));
            }
        };
        if let Err(error) = self.begin_anew(&file) {
            // Replaces the empty file, which is still locked.
            let back = fs::rename(&aside, path);
            return Err(self.put_back(aside, back, error));
        }
        Ok((file, aside))
    }

    /// Adds to `error` that renaming the other file back has failed, if it has.
    fn put_back(
        &self,
        aside: PathBuf,
        back: io::Result<()>,
        error: MemoryFileError,
    ) -> MemoryFileError {
        let path = self.path.to_owned();
        match back {
            Ok(()) => error,
            Err(source) => MemoryFileError::KeptAside {
                error: error.into(),
                path,
                aside,
                source,
            },
        }
    }

    /// Checks that the file system has room before any of it is taken; `reused`: the room of `file`
    /// counts too.
    fn check_room(&self, file: &File, reused: bool) -> Result<(), MemoryFileError> {
        let refused = |error| self.refused(error);
        // st_blocks counts units of 512 bytes, whatever the file system's block size (stat(2)).
        let own = file.metadata().map_err(refused)?.blocks() * 512;
        let free = fstatvfs(file).map_err(|errno| refused(errno.into()))?;
        let free = free_bytes(&free, geteuid().is_root());
        if free.saturating_add(if reused { own } else { 0 }) < self.bytes {
            return Err(refused(Errno::NOSPC.into()));
        }
        Ok(())
    }
}

/// Marks an empty file as ours.
fn note_unknown(file: &File) -> io::Result<()> {
    file.write_all_at(&UNKNOWN.to_le_bytes(), STATE_AT)
}

/// Writes over the header, and marks the file as ours.
fn forget(file: &File) -> io::Result<()> {
    let mut page = [0; PAGE as usize];
    let state = STATE_AT as usize..STATE_AT as usize + size_of::<u64>();
    page[state].copy_from_slice(&UNKNOWN.to_le_bytes());
    file.write_all_at(&page, 0)
}

/// Opens the file and locks it exclusively.
fn lock(path: &Path) -> Result<File, MemoryFileError> {
    // Checked before opening: a directory cannot be opened for writing, and opening a pipe would
    // block.
    if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return Err(MemoryFileError::Irregular(path.to_owned()));
    }
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    open_locked(path, options.mode(0o600)).map_err(|source| match source.kind() {
        io::ErrorKind::WouldBlock => MemoryFileError::InUse(path.to_owned()),
        _ => MemoryFileError::Refused {
            path: path.to_owned(),
            source,
        },
    })
}

/// Reads and verifies the header page.
fn read(file: &File, parts: Parts) -> io::Result<Result<StoredWith, Cold>> {
    let mut page = [0; PAGE as usize];
    let len = file.metadata()?.len();
    // A shorter file is read as far as it goes; the rest of the page counts as zeros.
    let read = page.len().min(usize::try_from(len).unwrap_or(page.len()));
    file.read_exact_at(&mut page[..read], 0)?;
    Ok(judge(&page, len, parts))
}

fn judge(page: &[u8; PAGE as usize], len: u64, parts: Parts) -> Result<StoredWith, Cold> {
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
    // Only after the version: another one may have its checksum elsewhere.
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
    // The header ends where the state begins (`STATE_AT`).
    let state = rest.first_chunk().map(|word| u64::from_le_bytes(*word));
    if !is_whole(state, boot()) {
        return Err(Cold::HostWentDown);
    }
    Ok(StoredWith {
        hash_key: HashKey(header.hash_key.map(U64::get)),
        epoch_unix: header.epoch_unix.get(),
    })
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
    // A number of 64 bits instead of the text; the low bit is set, and `UNKNOWN` is even.
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
    fn next_server_recovers_the_file_however_the_last_ended() {
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
    fn file_in_use_is_locked() {
        let place = Place::new("used");
        let _held = place.open(PARTS);
        let second = MemoryFile::open(&place.path(), PARTS);
        assert!(matches!(second, Err(MemoryFileError::InUse(_))));
    }

    #[test]
    fn foreign_file_is_renamed() {
        let place = Place::new("foreign");
        fs::write(place.path(), "a letter").unwrap();
        let (_, cold) = place.open(PARTS);
        let aside = beside(&place.path());
        assert_eq!(cold, Some(Cold::Foreign(aside.clone())));
        assert_eq!(fs::read_to_string(&aside).unwrap(), "a letter");
        // A disk image begins with zeros.
        let image = [&[0; 2 * PAGE as usize][..], b"a letter"].concat();
        fs::write(place.path(), &image).unwrap();
        // What was kept before is not replaced.
        let taken = MemoryFile::open(&place.path(), PARTS);
        assert!(matches!(taken, Err(MemoryFileError::AsideTaken { .. })));
        assert_eq!(fs::read_to_string(&aside).unwrap(), "a letter");
        assert_eq!(fs::read(place.path()).unwrap(), image);
        fs::remove_file(&aside).unwrap();
        assert_eq!(place.open(PARTS).1, Some(Cold::Foreign(aside.clone())));
        assert_eq!(fs::read(aside).unwrap(), image);
        assert!(matches!(
            MemoryFile::open(&place.0, PARTS),
            Err(MemoryFileError::Irregular(_))
        ));
    }

    #[test]
    fn failed_allocation_keeps_the_existing_file() {
        let place = Place::new("room");
        place.used();
        let large = Parts {
            bytes: 1 << 50,
            ..PARTS
        };
        let full = MemoryFile::open(&place.path(), large);
        assert!(matches!(full, Err(MemoryFileError::Full { .. })));
        assert_eq!(place.open(PARTS).1, None, "it is as it was");
        fs::write(place.path(), "a letter").unwrap();
        let full = MemoryFile::open(&place.path(), large);
        assert!(matches!(full, Err(MemoryFileError::Full { .. })));
        assert_eq!(fs::read_to_string(place.path()).unwrap(), "a letter");
        assert!(!beside(&place.path()).exists());
    }

    #[test]
    fn an_allocation_that_fails_cuts_no_file() {
        let place = Place::new("allocation");
        place.used();
        let before = fs::read(place.path()).unwrap();
        let file = sealed(&before);
        let path = &place.path();
        let size = Size {
            path,
            bytes: 1 << 20,
        };
        let is_kept = || contents(&file) == before;
        assert!(size.allocate(&file).is_err() && is_kept(), "a warm start");
        assert!(size.begin_anew(&file).is_err() && is_kept(), "a cold start");
    }

    /// A file with the bytes of one that a server has used, sealed: it refuses to grow, as where
    /// another has taken all room, but can be cut.
    fn sealed(before: &[u8]) -> File {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
        let file = File::from(memfd_create("items", MemfdFlags::ALLOW_SEALING).unwrap());
        file.write_all_at(before, 0).unwrap();
        fcntl_add_seals(&file, SealFlags::GROW).unwrap();
        file
    }

    fn contents(file: &File) -> Vec<u8> {
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    /// Others take whatever room a file gives back, so a cold start gives back none.
    #[test]
    fn a_cold_start_over_an_old_file_keeps_its_room() {
        let place = Place::new("in-place");
        let bytes = PARTS.offset(PARTS.workers);
        let old = vec![7; bytes as usize];
        let size = |bytes| Size {
            path: &place.0,
            bytes,
        };
        let is_empty = |file: &File, bytes: u64| {
            let mut empty = vec![0; bytes as usize];
            empty[STATE_AT as usize..][..8].copy_from_slice(&UNKNOWN.to_le_bytes());
            contents(file) == empty
        };
        // Without a call that zeroes, as tmpfs.
        let file = sealed(&old);
        size(bytes).begin_anew(&file).unwrap();
        assert!(is_empty(&file, bytes));
        let file = sealed(&old);
        size(bytes - PAGE).begin_anew(&file).unwrap();
        assert!(is_empty(&file, bytes - PAGE), "the old file was larger");
        // On the file system of the temporary directory, with a part of a page at its end.
        for old_bytes in [1, 100, PAGE + 1, bytes - 1, bytes, bytes + 1] {
            fs::write(place.path(), &old[..(old_bytes.min(bytes)) as usize]).unwrap();
            let file = lock(&place.path()).unwrap();
            file.set_len(old_bytes).unwrap();
            size(bytes).begin_anew(&file).unwrap();
            assert!(is_empty(&file, bytes), "{old_bytes} bytes");
            assert!(file.metadata().unwrap().blocks() * 512 >= bytes);
        }
    }

    /// A start that fails reports whether a start with other options would still find the items.
    #[test]
    fn a_cold_start_that_fails_tells_whether_the_items_are_gone() {
        let place = Place::new("gone");
        place.used();
        let before = fs::read(place.path()).unwrap();
        let size = Size {
            path: &place.path(),
            bytes: before.len() as u64,
        };
        let file = sealed(&before);
        let full = |_: &File, _| Err(Errno::NOSPC.into());
        let error = size.begin_anew_by(&file, full).unwrap_err();
        let MemoryFileError::ItemsGone { error: first, .. } = &error else {
            panic!("{error}");
        };
        assert!(matches!(**first, MemoryFileError::Full { .. }));
        assert!(error.to_string().ends_with("are gone"), "{error}");
        assert_eq!(contents(&file)[PAGE as usize..], before[PAGE as usize..]);
        let page = contents(&file)[..PAGE as usize].try_into().unwrap();
        let next = judge(&page, before.len() as u64, PARTS);
        assert!(matches!(next, Err(Cold::Damaged)), "no start believes them");
        // Where not even the header can be written over, they stay.
        use rustix::fs::{SealFlags, fcntl_add_seals};
        let file = sealed(&before);
        fcntl_add_seals(&file, SealFlags::WRITE).unwrap();
        let error = size.begin_anew(&file).unwrap_err();
        assert!(matches!(error, MemoryFileError::Refused { .. }), "{error}");
        assert_eq!(contents(&file), before);
    }

    #[test]
    fn what_is_reserved_for_root_is_free_for_root_alone() {
        let place = Place::new("reserved");
        let mut free = fstatvfs(File::open(&place.0).unwrap()).unwrap();
        (free.f_frsize, free.f_blocks, free.f_bfree, free.f_bavail) = (4096, 100, 50, 10);
        assert_eq!(free_bytes(&free, true), 50 * 4096);
        assert_eq!(free_bytes(&free, false), 10 * 4096);
        (free.f_blocks, free.f_bfree, free.f_bavail) = (0, 0, 0);
        assert_eq!(
            free_bytes(&free, false),
            u64::MAX,
            "a tmpfs without a limit"
        );
    }

    /// Threads replace a file that is not ours at the same time: one gets the path, and what was
    /// there is kept.
    #[test]
    fn of_starts_at_the_same_time_over_a_foreign_file_one_goes_on() {
        let place = Place::new("foreign-race");
        for _ in 0..200 {
            fs::write(place.path(), "a letter").unwrap();
            let start = std::sync::Barrier::new(3);
            let opened: Vec<_> = std::thread::scope(|scope| {
                let threads = [(); 3].map(|()| {
                    scope.spawn(|| {
                        start.wait();
                        MemoryFile::open(&place.path(), PARTS).ok()
                    })
                });
                threads.map(|thread| thread.join().unwrap()).into()
            });
            let running: Vec<_> = opened.into_iter().flatten().collect();
            assert!(running.len() <= 1, "{} servers have it", running.len());
            for (file, _) in &running {
                let own = file.file.metadata().unwrap().ino();
                assert_eq!(fs::metadata(place.path()).unwrap().ino(), own);
            }
            let aside = beside(&place.path());
            assert_eq!(fs::read_to_string(&aside).unwrap(), "a letter");
            fs::remove_file(aside).unwrap();
        }
    }

    #[test]
    fn file_is_complete_after_a_clean_end_or_within_the_same_boot() {
        assert!(is_whole(Some(ENDED), None) && is_whole(Some(ENDED), Some(7)));
        assert!(is_whole(Some(7), Some(7)) && !is_whole(Some(7), Some(9)));
        // Neither server could read the boot number.
        assert!(!is_whole(Some(UNKNOWN), None) && !is_whole(None, None));
    }

    #[test]
    fn mismatched_file_starts_cold_and_the_next_start_is_warm() {
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
        // The layout of a circular log, which no server of ours reads any more.
        let log = |file: &File| file.write_all_at(&3u32.to_le_bytes(), 12).unwrap();
        assert_eq!(place.after(log), Some(Cold::Version));
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

    /// The error has both reasons: why the start failed, and why it left something behind.
    #[test]
    fn a_start_that_cannot_undo_its_work_tells_why() {
        let place = Place::new("undo");
        let path = place.path();
        fs::write(&path, [7; 100]).unwrap();
        let size = Size {
            path: &path,
            bytes: 8192,
        };
        // Neither to be allocated nor to be cut.
        let error = size.begin_anew(&File::open(&path).unwrap()).unwrap_err();
        let MemoryFileError::RoomKept { error: first, .. } = &error else {
            panic!("{error}");
        };
        assert!(error.to_string().starts_with(&first.to_string()));
        let back = Err(Errno::ACCESS.into());
        let error = size.put_back("/aside".into(), back, size.refused(Errno::NOSPC.into()));
        let text = error.to_string();
        assert!(text.contains("no room for the 8192 bytes") && text.contains("is now /aside"));
        assert!(text.contains("ermission denied"), "{text}");
    }

    /// Another server begins between the two steps: neither its file nor the other one is lost.
    #[test]
    fn a_file_renamed_away_never_replaces_that_of_another_server() {
        let place = Place::new("race");
        let path = place.path();
        fs::write(&path, "not of a server").unwrap();
        let size = Size {
            path: &path,
            bytes: 8192,
        };
        let foreign = File::open(&path).unwrap();
        let other = std::cell::Cell::new(None);
        let lock_late = |path: &Path| {
            other.set(Some(lock(path)?));
            lock(path)
        };
        let error = size.replace_by(&foreign, lock_late).unwrap_err();
        let MemoryFileError::KeptAside { error, aside, .. } = &error else {
            panic!("{error}");
        };
        assert!(matches!(**error, MemoryFileError::InUse(_)));
        assert_eq!(fs::read(aside).unwrap(), b"not of a server");
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    }
}
