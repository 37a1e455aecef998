//! One protection domain, as seen from one of its sides. Whatever the peer wrote is copied, checked
//! against the layout, and only then used.

use std::{io, ops::Range, os::fd::OwnedFd, sync::Arc};

use herdwick_fabric::{Access, Qpn, Rkey};
use herdwick_mem::{
    LINE, Mapping, Span, WORD, Words,
    sync::{Ordering, fence},
};

use crate::{
    area::Area,
    discard,
    layout::{
        CONTROL_BYTES, PARKED_WORD, PdLayout, QPS, REGIONS, RingPlace, SENDERS, Side, qp_word,
        region_word, sender_word,
    },
    park::{Arming, Sleeper},
    ring::{Producer, Shape},
    wakeup::{ClientWakeup, Wakeup},
};

/// The two files of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum File {
    Up,
    Down,
}

/// Both files, mapped.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub(crate) up: Arc<Mapping>,
    pub(crate) down: Arc<Mapping>,
}

impl Files {
    fn mapping(&self, file: File) -> &Arc<Mapping> {
        match file {
            File::Up => &self.up,
            File::Down => &self.down,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Pd {
    pub(crate) side: Side,
    pub(crate) layout: PdLayout,
    files: Files,
    up: Span,
    down: Span,
    /// The control area that this side writes.
    mine: Span,
    /// The control area that the peer writes.
    pub(crate) theirs: Span,
    pub(crate) wakeup: Wakeup,
    pub(crate) sleeper: Sleeper<Span>,
    /// This side's area of `up` and of `down`.
    areas: [Area; 2],
    regions_taken: u64,
    lines_taken: u32,
    senders: [u32; SENDERS],
    serial: u64,
    /// Number of the port's ring to each of the peer's queue pairs, by line.
    pub(crate) outbound: [Option<u32>; QPS],
    /// What the ticket will take; until then no client can signal.
    pub(crate) unclaimed: Option<Unclaimed>,
    ended: bool,
}

/// The descriptors that the client will get.
#[derive(Debug)]
pub(crate) struct Unclaimed {
    pub(crate) up: OwnedFd,
    pub(crate) down: OwnedFd,
    pub(crate) wakeup: ClientWakeup,
}

/// The ring to one queue pair of the peer, shared by all senders on this side.
#[derive(Debug)]
pub(crate) struct Outbound {
    pub(crate) qpn: Qpn,
    /// The domain that it lies in.
    pub(crate) pd: u32,
    /// Number of the last batch that put something here.
    pub(crate) touched: u64,
    pub(crate) ring: Producer<Span>,
}

/// Location of a region in the files, and its entry in the control area.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) file: File,
    pub(crate) bytes: Range<usize>,
    entry: usize,
}

/// What is exhausted on this side.
#[derive(Debug)]
pub(crate) enum Shortage {
    /// A limit, and its value.
    Limit(&'static str, usize),
    /// An error of the operating system.
    System(&'static str, io::Error),
}

/// The parts of a [`Pd`].
pub(crate) struct Parts {
    pub(crate) side: Side,
    pub(crate) layout: PdLayout,
    pub(crate) files: Files,
    pub(crate) wakeup: Wakeup,
    /// The host's board, for a client.
    pub(crate) board: Option<Span>,
    pub(crate) unclaimed: Option<Unclaimed>,
}

impl Pd {
    /// Assembles one side. Populates the pages of the control areas.
    pub(crate) fn new(parts: Parts) -> io::Result<Self> {
        let (layout, files) = (parts.layout, parts.files);
        files.up.populate(0..CONTROL_BYTES)?;
        files.down.populate(0..CONTROL_BYTES)?;
        let up = Span::new(Arc::clone(&files.up));
        let down = Span::new(Arc::clone(&files.down));
        let control = |span: &Span| {
            let too_short = |_| io::Error::from(io::ErrorKind::InvalidInput);
            span.slice(0..CONTROL_BYTES).map_err(too_short)
        };
        let (client_control, host_control) = (control(&up)?, control(&down)?);
        let (mine, theirs, areas) = match parts.side {
            Side::Host => (
                host_control,
                client_control,
                [layout.up_host(), layout.down_host()],
            ),
            Side::Client => (
                client_control,
                host_control,
                [layout.up_client(), layout.down_client()],
            ),
        };
        let parked = parts.board.unwrap_or_else(|| theirs.clone());
        Ok(Self {
            side: parts.side,
            layout,
            files,
            up,
            down,
            mine,
            theirs,
            wakeup: parts.wakeup,
            sleeper: Sleeper::new(parked, PARKED_WORD),
            areas: areas.map(Area::new),
            regions_taken: 0,
            lines_taken: 0,
            senders: [0; SENDERS],
            serial: 0,
            outbound: [None; QPS],
            unclaimed: parts.unclaimed,
            ended: false,
        })
    }

    #[inline]
    pub(crate) fn span(&self, file: File) -> &Span {
        match file {
            File::Up => &self.up,
            File::Down => &self.down,
        }
    }

    /// Shows the host, in a client's control area, whether this port sleeps.
    pub(crate) fn show(&self, arming: Arming) {
        if self.side == Side::Client {
            arming.show(&self.mine, PARKED_WORD);
        }
    }

    /// Allocates and populates `len` zeroed bytes of `file`.
    fn take(&mut self, file: File, len: usize) -> Result<Range<usize>, Shortage> {
        let area = &mut self.areas[file as usize];
        let limit = Shortage::Limit("bytes of the protection domain", area.size());
        let bytes = area.take(len).ok_or(limit)?;
        if let Err(error) = self.files.mapping(file).populate(bytes.clone()) {
            area.give(bytes);
            return Err(Shortage::System("populating shared memory", error));
        }
        Ok(bytes)
    }
}

impl Pd {
    /// Shows the peer that no queue pair is left. Returns what a host must give back to the system
    /// now, although the client may still map it. The domain must not be used afterwards.
    pub(crate) fn end(&mut self) -> Option<Files> {
        if std::mem::replace(&mut self.ended, true) {
            return None;
        }
        for line in 0..QPS {
            self.give_line(line);
        }
        (self.side == Side::Host).then(|| self.files.clone())
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // The port was closed with its domains, so there is no counter left to report to.
        if let Some(files) = self.end() {
            discard::elsewhere(files, Box::new(drop));
        }
    }
}

/// Regions of this side.
impl Pd {
    /// Allocates a region with remote rights, zeroes it and opens it under `rkey`.
    pub(crate) fn open_region(
        &mut self,
        len: usize,
        access: Access,
        scope: u32,
        rkey: impl FnOnce(usize) -> Rkey,
    ) -> Result<(Place, Rkey, Span), Shortage> {
        let entry = self.regions_taken.trailing_ones() as usize;
        if entry >= REGIONS {
            return Err(Shortage::Limit(
                "remote regions of the protection domain",
                REGIONS,
            ));
        }
        let read_only = !access.remote_write && !access.remote_atomic;
        let file = if self.side == Side::Host && read_only {
            File::Down
        } else {
            File::Up
        };
        let bytes = self.take(file, len)?;
        let span = self.slice(file, bytes.clone())?;
        clear(&span);
        self.regions_taken |= 1 << entry;
        let rkey = rkey(entry);
        self.serial = (self.serial + 1) & 0xff_ffff;
        let at = region_word(entry);
        self.mine
            .store(at + 1, bytes.start as u64 | (file as u64) << 63);
        self.mine.store(at + 2, span.len() as u64);
        self.mine.store(at + 3, scope.into());
        // The first word opens the entry, so it is stored last.
        self.mine
            .store_release(at, entry_word(rkey, access, self.serial));
        Ok((Place { file, bytes, entry }, rkey, span))
    }

    /// Closes a region: its rkey is invalid from here on.
    pub(crate) fn close_region(&mut self, place: Place) {
        self.mine.store_release(region_word(place.entry), 0);
        self.regions_taken &= !(1 << place.entry);
        self.areas[place.file as usize].give(place.bytes);
    }

    fn slice(&self, file: File, bytes: Range<usize>) -> Result<Span, Shortage> {
        let outside = |_| Shortage::Limit("bytes of the file", self.span(file).len());
        self.span(file).slice(bytes).map_err(outside)
    }
}

/// Queue pairs of this side.
impl Pd {
    /// Takes a free line of this side's control area.
    pub(crate) fn take_line(&mut self) -> Result<usize, Shortage> {
        let line = self.lines_taken.trailing_ones() as usize;
        if line >= QPS {
            return Err(Shortage::Limit("queue pairs of the protection domain", QPS));
        }
        self.lines_taken |= 1 << line;
        let at = qp_word(line);
        self.mine.copy_in(at, &[0; LINE / WORD]);
        Ok(line)
    }

    pub(crate) fn give_line(&mut self, line: usize) {
        self.mine.store_release(qp_word(line), 0);
        self.lines_taken &= !(1 << line);
    }

    /// Shows the peer a queue pair's number and state.
    pub(crate) fn show_qp(&self, line: usize, qpn: Qpn, state: u64) {
        let word = u64::from(qpn.0) | state;
        self.mine.store_release(qp_word(line), word);
    }

    /// Allocates a ring into a queue pair of this side. Returns its place, its memory, and the line
    /// in which its owner counts.
    ///
    /// It is not freed while the domain lives: a peer that has not noticed the end of the queue
    /// pair may still write there.
    pub(crate) fn take_ring(
        &mut self,
        line: usize,
        shape: Shape,
    ) -> Result<(RingPlace, Span, Span), Shortage> {
        let file = self.inbound();
        let bytes = self.take(file, shape.bytes())?;
        let ring = self.slice(file, bytes.clone())?;
        if self.side == Side::Host {
            // A region may have been here. In the client's area of `down` there are only rings,
            // never reused.
            clear(&ring);
        }
        let taken = self.mine.slice(line_bytes(line));
        let taken = taken.map_err(|_| Shortage::Limit("queue pairs", QPS))?;
        let offset = bytes.start;
        Ok((RingPlace { offset, shape }, ring, taken))
    }

    /// The file that the peer writes its messages to.
    fn inbound(&self) -> File {
        match self.side {
            Side::Host => File::Up,
            Side::Client => File::Down,
        }
    }

    /// Opens the ring to the peer's queue pair at `line`. Its place, which the peer names, is
    /// checked against the layout.
    pub(crate) fn reach_ring(
        &self,
        line: usize,
        place: RingPlace,
    ) -> Result<Producer<Span>, OutboundError> {
        let (file, area) = match self.side {
            Side::Host => (File::Down, self.layout.down_client()),
            Side::Client => (File::Up, self.layout.up_host()),
        };
        let bytes = place.bytes();
        if bytes.start < area.start || bytes.end > area.end {
            return Err(OutboundError::Place);
        }
        let populated = self.files.mapping(file).populate(bytes.clone());
        populated.map_err(OutboundError::System)?;
        let ring = self.span(file).slice(bytes);
        let taken = self.theirs.slice(line_bytes(line));
        match (ring, taken) {
            (Ok(ring), Ok(taken)) => Ok(Producer::new(ring, taken, place.shape)),
            _ => Err(OutboundError::Place),
        }
    }

    /// Lists `qp` as a sender of datagrams. Returns the index that its datagrams carry.
    pub(crate) fn enrol_sender(&mut self, qpn: Qpn) -> Result<usize, Shortage> {
        let known = self.senders.iter().position(|sender| *sender == qpn.0);
        let free = || self.senders.iter().position(|sender| *sender == 0);
        let limit = Shortage::Limit("datagram senders of the protection domain", SENDERS);
        let index = known.or_else(free).ok_or(limit)?;
        self.senders[index] = qpn.0;
        self.mine.store_release(sender_word(index), qpn.0.into());
        Ok(index)
    }

    /// Removes a datagram sender.
    pub(crate) fn strike_sender(&mut self, qpn: Qpn) {
        if let Some(index) = self.senders.iter().position(|sender| *sender == qpn.0) {
            // The word in the control area stays until the index is reused: messages in rings refer
            // to it.
            self.senders[index] = 0;
        }
    }
}

/// Why the peer's ring could not be opened.
#[derive(Debug)]
pub(crate) enum OutboundError {
    Place,
    System(io::Error),
}

fn clear(span: &Span) {
    for word in 0..span.count() {
        span.store(word, 0);
    }
}

fn line_bytes(line: usize) -> Range<usize> {
    let start = qp_word(line) * WORD;
    start..start + LINE
}

const RIGHT_READ: u64 = 1 << 32;
const RIGHT_WRITE: u64 = 1 << 33;
const RIGHT_ATOMIC: u64 = 1 << 34;

/// The first word of a region entry; the serial number makes it differ from earlier ones.
fn entry_word(rkey: Rkey, access: Access, serial: u64) -> u64 {
    let right = |granted: bool, bit: u64| if granted { bit } else { 0 };
    u64::from(rkey.0)
        | right(access.remote_read, RIGHT_READ)
        | right(access.remote_write, RIGHT_WRITE)
        | right(access.remote_atomic, RIGHT_ATOMIC)
        | serial << 40
}

/// The right that a one-sided verb needs: its bit in an entry's first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Right(u64);

impl Right {
    pub(crate) const READ: Self = Self(RIGHT_READ);
    pub(crate) const WRITE: Self = Self(RIGHT_WRITE);
    pub(crate) const ATOMIC: Self = Self(RIGHT_ATOMIC);
}

/// A region of the peer, as this side last read it: copied out of the peer's control area and
/// checked against the layout, so that a false entry harms only the peer itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened {
    word: u64,
    file: File,
    start: usize,
    len: u64,
    scope: u32,
}

impl Opened {
    pub(crate) const NOTHING: Self = Self {
        word: 0,
        file: File::Up,
        start: 0,
        len: 0,
        scope: 0,
    };

    /// Returns file and offset of the `len` bytes at `addr` of the region under `rkey`, for a queue
    /// pair connected with `peer`. `None` if rkey, range, right or scope is wrong.
    #[inline]
    pub(crate) fn reach(
        &mut self,
        pd: &Pd,
        rkey: Rkey,
        (addr, len): (u64, usize),
        right: Right,
        peer: Qpn,
    ) -> Option<(File, usize)> {
        let entry = rkey.0 as usize % REGIONS;
        let word = pd.theirs.load_acquire(region_word(entry));
        if word != self.word {
            *self = Self::check(pd, entry, word)?;
        }
        #[expect(clippy::cast_possible_truncation, reason = "the low half is the rkey")]
        let opens = word as u32 == rkey.0 && rkey.0 != 0 && word & right.0 != 0;
        let inside = addr
            .checked_add(len as u64)
            .is_some_and(|end| end <= self.len);
        let in_scope = self.scope == 0 || self.scope == peer.0;
        if !(opens && inside && in_scope) {
            return None;
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "within the region, which is mapped"
        )]
        Some((self.file, self.start + addr as usize))
    }

    #[cold]
    fn check(pd: &Pd, entry: usize, word: u64) -> Option<Self> {
        // Seqlock: the entry counts only if its first word is the same before and after the copy.
        let [_, place, len, scope] = pd.theirs.copy_out(region_word(entry));
        fence(Ordering::Acquire);
        if pd.theirs.load(region_word(entry)) != word {
            return None;
        }
        let file = if place >> 63 == 0 {
            File::Up
        } else {
            File::Down
        };
        let area = match (pd.side, file) {
            (Side::Host, File::Up) => pd.layout.up_client(),
            (Side::Host, File::Down) => return None,
            (Side::Client, File::Up) => pd.layout.up_host(),
            (Side::Client, File::Down) => pd.layout.down_host(),
        };
        let start = usize::try_from(place & !(1 << 63)).ok()?;
        let end = start.checked_add(usize::try_from(len).ok()?)?;
        let sound = start >= area.start && end <= area.end && start.is_multiple_of(LINE);
        let scope = u32::try_from(scope).ok()?;
        sound.then_some(Self {
            word,
            file,
            start,
            len,
            scope,
        })
    }
}
