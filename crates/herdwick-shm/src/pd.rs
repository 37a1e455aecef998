//! One protection domain, as seen from one of its sides. Whatever the peer wrote is copied, checked
//! against the layout, and only then used.

use std::{io, ops::Range, os::fd::OwnedFd, sync::Arc};

use herdwick_fabric::{Access, Qpn, Rkey, Slab};
use herdwick_mem::{
    LINE, Span, WORD, Words,
    sync::{Ordering, fence},
};

use crate::{
    area::Area,
    discard,
    entry::{SHARED, entry_word},
    files::{File, Files},
    imported::Imported,
    layout::{
        CONTROL_BYTES, DomainSide, PARKED_WORD, PdLayout, QPS, REGIONS, RingPlace, SENDERS,
        qp_word, region_word, sender_word,
    },
    outbound::Outbound,
    park::{Arming, Sleeper},
    ring::{RingProducer, Shape},
    senders::Senders,
    wakeup::{ClientWakeup, Wakeup},
};

#[derive(Debug)]
pub(crate) struct Pd {
    pub(crate) side: DomainSide,
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
    senders: Senders,
    serial: u64,
    /// What this side, a client, has mapped of the memory that the host shares.
    pub(crate) shared: Imported,
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

/// Location of a region in the files, and its entry in the control area.
#[derive(Debug)]
pub(crate) struct RegionPlace {
    entry: usize,
    /// `None` for shared memory, which has a file of its own.
    bytes: Option<(File, Range<usize>)>,
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
    pub(crate) side: DomainSide,
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
        // Both sides poll these words; a fault in a poll loop would stall it.
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
            DomainSide::Host => (
                host_control,
                client_control,
                [layout.up_host(), layout.down_host()],
            ),
            DomainSide::Client => (
                client_control,
                host_control,
                [layout.up_client(), layout.down_client()],
            ),
        };
        // A host shows its sleep once for all clients, on its board; a client in its own control
        // area.
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
            senders: Senders::new(),
            serial: 0,
            shared: Imported::default(),
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
        if self.side == DomainSide::Client {
            arming.show(&self.mine, PARKED_WORD);
        }
    }

    /// Allocates and populates `len` zeroed bytes of `file`.
    fn take(&mut self, file: File, len: usize) -> Result<Range<usize>, Shortage> {
        let area = &mut self.areas[file as usize];
        let limit = Shortage::Limit("bytes of the protection domain", area.size());
        let bytes = area.take(len).ok_or(limit)?;
        // Populated now, so that a host without memory fails here and not with SIGBUS at a store.
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
        // `Drop` follows `destroy`, and gives the files back once only.
        if std::mem::replace(&mut self.ended, true) {
            return None;
        }
        for line in 0..QPS {
            // A client that still runs finds no queue pair, and its posts end as errors.
            self.give_line(line);
        }
        (self.side == DomainSide::Host).then(|| self.files.clone())
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
    ) -> Result<(RegionPlace, Rkey, Span), Shortage> {
        let entry = self.free_entry()?;
        // In `down`, which the client cannot write whatever it does; the rights in the entry bind
        // honest peers alone.
        let read_only = !access.remote_write && !access.remote_atomic;
        let file = if self.side == DomainSide::Host && read_only {
            File::Down
        } else {
            File::Up
        };
        let bytes = self.take(file, len)?;
        let span = self.slice(file, bytes.clone())?;
        // An earlier region may have been here: its bytes are not for this one's peer.
        clear(&span);
        let rkey = rkey(entry);
        // The top bit names the file (docs/wire.md); a file has at most 2^32 bytes, so an offset never
        // reaches it.
        let place = bytes.start as u64 | (file as u64) << 63;
        let shown = [place, span.len() as u64, scope.into()];
        // After `clear`: the peer may read as soon as the entry is open.
        self.show_region(entry, rkey, access, shown);
        let bytes = Some((file, bytes));
        Ok((RegionPlace { entry, bytes }, rkey, span))
    }

    /// Opens `len` bytes of memory with a file of its own under `rkey`.
    pub(crate) fn open_shared(
        &mut self,
        len: usize,
        access: Access,
        scope: u32,
        rkey: impl FnOnce(usize) -> Rkey,
    ) -> Result<(RegionPlace, Rkey), Shortage> {
        let entry = self.free_entry()?;
        let rkey = rkey(entry);
        self.show_region(entry, rkey, access, [SHARED, len as u64, scope.into()]);
        Ok((RegionPlace { entry, bytes: None }, rkey))
    }

    fn free_entry(&self) -> Result<usize, Shortage> {
        // The lowest free entry: one bit for each of 64.
        let entry = self.regions_taken.trailing_ones() as usize;
        let limit = Shortage::Limit("remote regions of the protection domain", REGIONS);
        (entry < REGIONS).then_some(entry).ok_or(limit)
    }

    /// Opens an entry, whose second to fourth word are `shown`.
    fn show_region(&mut self, entry: usize, rkey: Rkey, access: Access, shown: [u64; 3]) {
        self.regions_taken |= 1 << entry;
        // 24 bits, what an entry's first word has room for: a region that is opened again under the
        // same number has another word, so the peer checks it anew.
        self.serial = (self.serial + 1) & 0xff_ffff;
        let at = region_word(entry);
        self.mine.copy_in(at + 1, &shown);
        // The first word opens the entry, so it is stored last.
        self.mine
            .store_release(at, entry_word(rkey, access, self.serial));
    }

    /// Closes a region: its rkey is invalid from here on.
    pub(crate) fn close_region(&mut self, place: RegionPlace) {
        self.mine.store_release(region_word(place.entry), 0);
        // Before what comes into its memory: a READ looks at the entry again behind its copy.
        fence(Ordering::Release);
        self.regions_taken &= !(1 << place.entry);
        if let Some((file, bytes)) = place.bytes {
            self.areas[file as usize].give(bytes);
        }
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
        // The counters of an earlier queue pair must not be taken for this one's.
        self.mine.copy_in(at, &[0; LINE / WORD]);
        Ok(line)
    }

    pub(crate) fn give_line(&mut self, line: usize) {
        // 0 is no queue pair: the peer finds the end of this one at its next check of the word.
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
        if self.side == DomainSide::Host {
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
            DomainSide::Host => File::Up,
            DomainSide::Client => File::Down,
        }
    }

    /// Opens the ring to the peer's queue pair at `line`. Its place, which the peer names, is
    /// checked against the layout.
    pub(crate) fn reach_ring(
        &self,
        line: usize,
        place: RingPlace,
    ) -> Result<RingProducer<Span>, OutboundError> {
        let (file, area) = match self.side {
            DomainSide::Host => (File::Down, self.layout.down_client()),
            DomainSide::Client => (File::Up, self.layout.up_host()),
        };
        let bytes = place.bytes();
        // The place is the peer's word. Outside the area lie other objects of this side.
        if bytes.start < area.start || bytes.end > area.end {
            return Err(OutboundError::Place);
        }
        let populated = self.files.mapping(file).populate(bytes.clone());
        populated.map_err(OutboundError::System)?;
        let ring = self.span(file).slice(bytes);
        let taken = self.theirs.slice(line_bytes(line));
        match (ring, taken) {
            (Ok(ring), Ok(taken)) => Ok(RingProducer::new(ring, taken, place.shape)),
            _ => Err(OutboundError::Place),
        }
    }

    /// Lists `qpn` as a sender of datagrams. Returns the index that its datagrams carry.
    pub(crate) fn enrol_sender(
        &mut self,
        qpn: Qpn,
        outbounds: &mut Slab<Outbound>,
    ) -> Result<usize, Shortage> {
        let limit = Shortage::Limit("datagram senders of the protection domain", SENDERS);
        let index = self.senders.add(qpn, outbounds).ok_or(limit)?;
        // Before any message that carries the index: its receiver looks the number up here.
        self.mine.store_release(sender_word(index), qpn.0.into());
        Ok(index)
    }

    /// Removes a datagram sender. Its word in the control area stays until the index is reused:
    /// messages in rings refer to it.
    pub(crate) fn strike_sender(&mut self, qpn: Qpn, outbounds: &mut Slab<Outbound>) {
        self.senders.remove(qpn, &self.outbound, outbounds);
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
