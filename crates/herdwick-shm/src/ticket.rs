//! Tickets: what a client needs to attach its side of a domain. A ticket from an untrusted host is
//! checked whole before anything is mapped.

use std::os::fd::OwnedFd;

use herdwick_fabric::{ImportError, PdTicket};
use herdwick_mem::Span;

use crate::{
    control,
    file::{self, BOARD_BYTES, Writers},
    files::Files,
    layout::{DomainSide, PdLayout},
    pd::{Parts, Pd},
    wakeup::{ClientWakeup, Wakeup},
};

/// Number of descriptors of a ticket: `up`, `down`, the host's board, the socket that wakes the
/// client and the eventfd that wakes the host.
pub const TICKET_FDS: usize = 5;

/// Attaches the client's side. Trusts nothing in the ticket.
pub(crate) fn open(ticket: PdTicket) -> Result<Pd, ImportError> {
    let layout = PdLayout::decode(&ticket.blob).ok_or(ImportError::Ticket("its blob"))?;
    let fds = <[OwnedFd; TICKET_FDS]>::try_from(ticket.fds);
    let [up, down, board, socket, event] =
        fds.map_err(|_| ImportError::Ticket("its descriptors"))?;
    // Each descriptor is checked as what its place says: a host that swaps two of them is refused.
    let map = |fd, len, writers, what| match file::open(fd, len, writers) {
        Ok(Some(mapping)) => Ok(mapping),
        Ok(None) => Err(ImportError::Ticket(what)),
        Err(source) => Err(control::system(what)(source).into()),
    };
    let files = Files {
        up: map(up, layout.up_len, Writers::Everyone, "the file to write")?,
        down: map(down, layout.down_len, Writers::Owner, "the file to read")?,
    };
    let board = map(board, BOARD_BYTES, Writers::MakerAlone, "the board")?;
    let wakeup = Wakeup::open(ClientWakeup { socket, event })
        .ok_or(ImportError::Ticket("the wakeup descriptor"))?;
    let parts = Parts {
        side: DomainSide::Client,
        layout,
        files,
        wakeup,
        board: Some(Span::new(board)),
        unclaimed: None,
    };
    Ok(Pd::new(parts).map_err(control::system("populating shared memory"))?)
}
