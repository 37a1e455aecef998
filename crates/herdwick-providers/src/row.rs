//! A provider's row: what is known of it before any device is open, and how its devices are opened.

use std::{io, net::SocketAddr, time::Duration};

use herdwick_fabric::{Counter, PdRoom};
use herdwick_herd::hello::FabricWords;

use crate::{AnyDevice, Checks, DialOptions, Fabric, ListenOptions, Wanted};

/// What one provider puts in the table.
pub(crate) struct Row {
    /// Its fabric.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "a test compares it with the place")
    )]
    pub(crate) fabric: Fabric,
    pub(crate) words: FabricWords,
    /// Its name in sentences for the operator.
    pub(crate) title: &'static str,
    /// The option with which `herdwick serve` does without it.
    pub(crate) off: &'static str,
    /// Why a server may not offer it: "it ..."
    pub(crate) why_not_offered: &'static str,
    pub(crate) may_be_lost: bool,
    pub(crate) pd_bytes: fn(&PdRoom) -> usize,
    /// Whether its devices on this host are hardware.
    pub(crate) is_hardware: fn() -> bool,
    pub(crate) probe: fn() -> io::Result<()>,
    /// Examines what it needs of this host; for the operator.
    pub(crate) doctor: fn() -> Checks,
    /// Whether a server is to offer it.
    pub(crate) wanted: fn(&ListenOptions) -> Wanted,
    /// Whether its offer has the attribute of its words.
    pub(crate) has_attribute: fn(&ListenOptions) -> bool,
    /// Has a server not offer it.
    pub(crate) remove: fn(&mut ListenOptions),
    /// The options with which `herdwick serve` offers it on this host; and with which it does not,
    /// where a benchmark does without.
    pub(crate) serve_options: [&'static [&'static str]; 2],
    /// Makes an error of a reason why a device cannot serve.
    pub(crate) refused: fn(String) -> ListenError,
    pub(crate) listen: fn(&ListenOptions, &ListenHost) -> Result<AnyDevice, ListenError>,
    pub(crate) dial: fn(&Dial<'_>) -> Result<AnyDevice, ClientDeviceError>,
    pub(crate) loopback: fn(End) -> io::Result<AnyDevice>,
    /// Opens a device of the server's own process that is a client of its device.
    pub(crate) beside: fn(&AnyDevice) -> io::Result<AnyDevice>,
    /// Opens a device at the place of one whose ports are all closed.
    pub(crate) anew: fn(&AnyDevice) -> io::Result<AnyDevice>,
    /// Returns the counters of its ports.
    pub(crate) counters: fn() -> Vec<&'static Counter>,
    /// Returns an open device's place, and how it is used; for the operator.
    pub(crate) describe: fn(&AnyDevice) -> Description,
}

/// The server that opens a device.
#[derive(Clone, Copy, Debug)]
pub struct ListenHost {
    /// Number of the ports that are opened on the device: those of its workers.
    pub workers: usize,
    /// The time of day, since 1970, at which its clock is zero.
    pub origin: Duration,
}

/// A server's device cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {reason}; {advice}")]
pub struct ListenError {
    /// What was tried.
    pub what: String,
    /// Why it failed.
    pub reason: String,
    /// What helps.
    pub advice: &'static str,
}

/// What a client knows when it opens a device for a lease.
#[derive(Clone, Copy, Debug)]
pub struct Dial<'a> {
    /// The client's options.
    pub options: &'a DialOptions,
    /// Both addresses of the TCP connection on which the fabric was offered; `None` on a unix
    /// socket.
    pub ends: Option<(SocketAddr, SocketAddr)>,
    /// The provider's own word in the offer, if there is one.
    pub attribute: Option<(&'static str, &'static str)>,
}

impl Dial<'_> {
    /// Returns both addresses of the connection.
    pub(crate) fn ends(&self) -> Result<(SocketAddr, SocketAddr), ClientDeviceError> {
        // A unix socket has none: this fabric needs an address to route by.
        let no_address = || ClientDeviceError::Absent("the connection has no address".to_owned());
        self.ends.ok_or_else(no_address)
    }
}

/// A client's device cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientDeviceError {
    /// This host has none.
    #[error("{0}")]
    Absent(String),
    /// Another attempt may succeed.
    #[error("{0}")]
    Setup(String),
}

/// A device, for the operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// Which device, port and address it is.
    pub place: String,
    /// What was found of it, to follow the place; may be empty.
    pub found: String,
}

/// An end of a session, where both are in one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The end that exports domains.
    Worker,
    /// The end that imports them.
    Client,
}
