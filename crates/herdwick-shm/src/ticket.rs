//! Tickets: what a client needs to attach its side of a domain. A ticket from an untrusted host is
//! checked whole before anything is mapped.

use std::{io, os::fd::OwnedFd};

use herdwick_mem::Span;

use crate::{
    file::{self, BOARD_BYTES, Writers},
    layout::{PdLayout, Side, TICKET_BYTES},
    pd::{Files, Parts, Pd},
    wakeup::{ClientWakeup, Wakeup},
};

/// What a client needs to attach its side of a protection domain: to be sent to it over a unix
/// socket, once.
#[derive(Debug)]
pub struct PdTicket {
    /// [`PdTicket::FDS`] descriptors, in order.
    pub fds: Vec<OwnedFd>,
    /// [`PdTicket::BLOB_BYTES`] bytes.
    pub blob: Vec<u8>,
}

impl PdTicket {
    /// Number of descriptors: `up`, `down`, the host's board, the socket that wakes the client and
    /// the eventfd that wakes the host.
    pub const FDS: usize = 5;
    /// Number of bytes of the blob.
    pub const BLOB_BYTES: usize = TICKET_BYTES;
}

/// Why a ticket cannot be attached. Nothing of it is kept.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The device makes domains and attaches none.
    #[error("a host attaches to nothing; open the port on a client device")]
    NotAClient,
    /// The ticket is not one that a host makes.
    #[error("the ticket makes no sense: {0}; ask the server for a new one")]
    Ticket(&'static str),
    /// A limit of the port is reached.
    #[error("the port has room for {0} protection domains; open it with larger limits")]
    Limit(usize),
    /// The operating system refused.
    #[error("{what}: {source}")]
    System {
        /// The step that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// Attaches the client's side. Trusts nothing in the ticket.
pub(crate) fn open(ticket: PdTicket) -> Result<Pd, AttachError> {
    let layout = PdLayout::decode(&ticket.blob).ok_or(AttachError::Ticket("its blob"))?;
    let fds = <[OwnedFd; PdTicket::FDS]>::try_from(ticket.fds);
    let [up, down, board, socket, event] =
        fds.map_err(|_| AttachError::Ticket("its descriptors"))?;
    let map = |fd, len, writers, what| match file::open(fd, len, writers) {
        Ok(Some(mapping)) => Ok(mapping),
        Ok(None) => Err(AttachError::Ticket(what)),
        Err(source) => Err(AttachError::System { what, source }),
    };
    let files = Files {
        up: map(up, layout.up_len, Writers::Everyone, "the file to write")?,
        down: map(down, layout.down_len, Writers::Owner, "the file to read")?,
    };
    let board = map(board, BOARD_BYTES, Writers::MakerAlone, "the board")?;
    let wakeup = Wakeup::open(ClientWakeup { socket, event })
        .ok_or(AttachError::Ticket("the wakeup descriptor"))?;
    let parts = Parts {
        side: Side::Client,
        layout,
        files,
        wakeup,
        board: Some(Span::new(board)),
        unclaimed: None,
    };
    Pd::new(parts).map_err(|source| AttachError::System {
        what: "populating shared memory",
        source,
    })
}
