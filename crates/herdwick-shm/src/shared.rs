//! Shared memory of many domains: a sealed file of its own, which each client maps once it has the
//! ticket of the region.

use std::os::fd::OwnedFd;

use herdwick_fabric::{
    Access, ControlError, ImportError, PdId, PdTicket, RegionId, Rkey, Scope, SharedMemory,
    Sharing, Windows,
};
use herdwick_mem::{Span, WORD};

use crate::{
    control::{self, PD, limit, system},
    file::{self, Writers},
    imported::Shared,
    layout::{DomainSide, PAGE, word_of},
    port::ShmPort,
    qp::Region,
};

/// Bytes of the blob of a region's ticket: magic and version, rkey, bytes of the file, sharing.
pub const REGION_TICKET_BYTES: usize = 4 * WORD;
const MAGIC: u64 = u64::from_le_bytes(*b"hwreg\0\0\x01");

/// Seals that the file has in a mode of sharing.
fn writers(sharing: Sharing) -> Writers {
    match sharing {
        Sharing::ReadOnly => Writers::MakerAlone,
        Sharing::TrustedPeers => Writers::Everyone,
    }
}

/// How a ticket's holder maps the file: the last word of the blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
enum Mapped {
    /// Its maker alone writes it.
    Sealed = 0,
    /// The holder writes it.
    ToWrite = 1,
    /// Others write it; the holder's descriptor is open for reading.
    ToRead = 2,
}

impl Mapped {
    fn of(word: u64) -> Option<Self> {
        let all = [Self::Sealed, Self::ToWrite, Self::ToRead];
        all.into_iter().find(|mapped| *mapped as u64 == word)
    }

    /// Seals and mode of the file that it is for.
    fn writers(self) -> Writers {
        match self {
            Self::Sealed => Writers::MakerAlone,
            Self::ToWrite => Writers::Everyone,
            Self::ToRead => Writers::Owner,
        }
    }
}

pub(crate) fn allocate(len: usize, sharing: Sharing) -> Result<SharedMemory, ControlError> {
    // A file of no bytes cannot be mapped.
    let bytes = len.max(1).checked_next_multiple_of(PAGE);
    let bytes = bytes.filter(|bytes| isize::try_from(*bytes).is_ok());
    let bytes = bytes.ok_or_else(|| limit("bytes of shared memory", isize::MAX.cast_unsigned()))?;
    let made = file::make(bytes, writers(sharing));
    let (fd, mapping) = made.map_err(system("making shared memory"))?;
    if sharing == Sharing::ReadOnly {
        mapping.advise_huge();
    }
    let populated = mapping.populate(0..bytes);
    populated.map_err(system("populating shared memory"))?;
    let words = len.next_multiple_of(WORD);
    let span = Span::new(mapping).slice(0..words);
    let span = span.map_err(|_| limit("bytes of shared memory", bytes))?;
    Ok(SharedMemory::new(span, Some(fd), sharing))
}

/// Opens an entry for `memory` in the control area of a host's domain. The client reaches it once it has
/// imported the region.
pub(crate) fn register(
    port: &mut ShmPort,
    id: PdId,
    memory: &SharedMemory,
    access: Access,
    scope: Scope,
) -> Result<RegionId, ControlError> {
    memory.may_grant(access)?;
    if memory.file().is_none() {
        let foreign = "memory that was not allocated by a device of its own";
        return Err(ControlError::Unsupported(foreign));
    }
    let full = limit("regions", port.regions.capacity());
    if !port.regions.has_room() {
        return Err(full);
    }
    let scope = control::scope(port, id, scope)?;
    let random = control::random()?;
    let pd = port.pds.get_mut(id.0).ok_or(ControlError::Unknown(PD))?;
    // There are no tickets from a client to a host.
    if pd.side == DomainSide::Client {
        return Err(ControlError::Unsupported("shared memory of a client"));
    }
    let rkey = |entry| control::rkey(random, entry);
    let opened = pd.open_shared(memory.region_len(), access, scope, rkey);
    let (place, rkey) = opened.map_err(control::short)?;
    let region = Region {
        pd: id.0,
        rkey,
        span: memory.span().clone(),
        place: Some(place),
        shared: Some(memory.clone()),
        read_only: !access.remote_write && !access.remote_atomic,
    };
    port.regions.insert(region).map(RegionId).map_err(|_| full)
}

/// Makes the ticket by which the client of the region's domain maps it; empty for a region that lies
/// in the domain.
pub(crate) fn export(port: &ShmPort, region: RegionId) -> Result<PdTicket, ControlError> {
    let region = port.regions.get(region.0);
    let region = region.ok_or(ControlError::Unknown("region"))?;
    let Some((memory, file)) = (region.shared.as_ref()).and_then(|m| Some((m, m.file()?))) else {
        return Ok(PdTicket::default());
    };
    let mapped = match (memory.sharing(), region.read_only) {
        (Sharing::ReadOnly, _) => Mapped::Sealed,
        (Sharing::TrustedPeers, false) => Mapped::ToWrite,
        (Sharing::TrustedPeers, true) => Mapped::ToRead,
    };
    let file = match mapped {
        Mapped::ToRead => file::for_readers(file),
        Mapped::Sealed | Mapped::ToWrite => file.try_clone_to_owned(),
    };
    let file = file.map_err(system("duplicating a descriptor"))?;
    // As `allocate` computed it: the importer compares the length with the file's.
    let bytes = memory.span().len().max(1).next_multiple_of(PAGE);
    let windows = memory.windows().map_or(0, |windows| {
        u64::from(windows.shift()) << 8 | u64::from(windows.count()) << 32
    });
    let words = [
        MAGIC,
        region.rkey.0.into(),
        bytes as u64,
        mapped as u64 | windows,
    ];
    Ok(PdTicket {
        fds: vec![file],
        blob: words.iter().flat_map(|word| word.to_le_bytes()).collect(),
    })
}

/// Returns the memory that [`import`] has mapped under this rkey.
pub(crate) fn imported(port: &ShmPort, pd: PdId, rkey: Rkey) -> Option<Span> {
    let shared = port.pds.get(pd.0)?.shared.get(rkey)?;
    Some(shared.span.clone())
}

/// Maps what [`export`] named, for a client. Trusts nothing in the ticket.
pub(crate) fn import(port: &mut ShmPort, pd: PdId, ticket: PdTicket) -> Result<(), ImportError> {
    let pd = port.pds.get_mut(pd.0).ok_or(ControlError::Unknown(PD))?;
    if ticket.blob.is_empty() && ticket.fds.is_empty() {
        return Ok(());
    }
    let wrong = ImportError::Ticket;
    let blob: &[u8; REGION_TICKET_BYTES] =
        (ticket.blob.as_slice().try_into()).map_err(|_| wrong("the blob of a region"))?;
    let [file] =
        <[OwnedFd; 1]>::try_from(ticket.fds).map_err(|_| wrong("the descriptors of a region"))?;
    let (mapped, windows) =
        mapped_as(word_of(blob, 3)).ok_or_else(|| wrong("the blob of a region"))?;
    let sizes = (
        u32::try_from(word_of(blob, 1)),
        usize::try_from(word_of(blob, 2)),
    );
    let (Ok(rkey), Ok(bytes), MAGIC) = (sizes.0, sizes.1, word_of(blob, 0)) else {
        return Err(wrong("the blob of a region"));
    };
    let opened = file::open(file, bytes, mapped.writers());
    let mapping = opened.map_err(system("mapping shared memory"))?;
    let mapping = mapping.ok_or(ImportError::Ticket("the file of a region"))?;
    let span = Span::new(mapping);
    // A READ looks up its window in the table; outside the mapping it would panic.
    if windows.is_some_and(|windows| windows.table_bytes() > span.len()) {
        return Err(wrong("the windows of a region"));
    }
    pd.shared.insert(Rkey(rkey), Shared { span, windows });
    Ok(())
}

/// Returns what a ticket's last word says: how its holder maps the file, and the windows; `None` if it says
/// nothing valid.
fn mapped_as(word: u64) -> Option<(Mapped, Option<Windows>)> {
    let (shift, count) = (word >> 8 & 0xff, word >> 32);
    let windows = match (shift, count) {
        (0, 0) => None,
        _ => Some(Windows::new(u32::try_from(count).ok()?, shift as u32)?),
    };
    let mapped = Mapped::of(word & 0xffff_00ff)?;
    // A writer could bind them anew.
    (mapped == Mapped::Sealed || windows.is_none()).then_some((mapped, windows))
}
