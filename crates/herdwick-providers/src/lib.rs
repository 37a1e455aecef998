//! The providers, one row each: what a fabric is called, which is preferred, and how a device of it
//! is opened for a server, for a client, and for both ends in one process, and what it needs of a host.
//!
//! A system names no provider. It takes a [`Fabric`] from this table, opens an [`AnyDevice`], and
//! either has its own code compiled for each device behind it ([`Visit`]), as a server's worker
//! does, or goes on with an [`AnyPort`], one branch a call, as a client does.
//!
//! To add a provider: its crate, its folder here (its row, and what `herdwick doctor` examines), and
//! its line in the list below; then its line in the workspace, its floor in `floors.rs` of `herdwick-cli`, and
//! its rows in ARCHITECTURE.md, each of which a test asks for. No other source file names it.
#![forbid(unsafe_code)]

mod any;
mod any_device;
mod check;
mod fabric;
mod options;
mod roce;
mod row;
mod shm;
mod table;
mod verbs;

/// The list of providers, the best first: the fabric, the folder of its row, its device and its
/// port. `providers!(m)` is `m!` of the list.
macro_rules! providers {
    ($make:ident) => {
        $make! {
            /// Shared memory, on the same host.
            Shm: shm, herdwick_shm::ShmDevice, herdwick_shm::ShmPort;
            /// An RDMA device, to any host that has one.
            Verbs: verbs, herdwick_verbs::VerbsDevice, herdwick_verbs::VerbsPort;
            /// RoCEv2 over UDP, from any host.
            Roce: roce, herdwick_roce_udp::RoceDevice, herdwick_roce_udp::RocePort;
        }
    };
}
use providers;

pub use any::{AnyPort, Visit, VisitAll};
pub use any_device::AnyDevice;
pub use check::{Check, Checks, Fact, Status};
pub use fabric::Fabric;
pub use herdwick_roce_udp::UDP_PORT as ROCE_PORT;
pub use herdwick_verbs::{DeviceSelector, VerbsOptions};
pub use options::{DialOptions, ListenOptions, Verbs, Wanted};
pub use row::{ClientDeviceError, Description, Dial, End, ListenError, ListenHost};
