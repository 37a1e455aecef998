//! The data that all ports of a device share: how it was chosen, what was found of it, and its limits.

use std::net::IpAddr;

use crate::{place::Place, probe::Found, selector::DeviceSelector, send::Bounds};

/// The data that all ports of a device share.
#[derive(Clone, Debug)]
pub(crate) struct DeviceState {
    /// The place when the device was opened; each port has its own.
    pub(crate) place: Place,
    pub(crate) selector: DeviceSelector,
    pub(crate) own_address: Option<IpAddr>,
    pub(crate) follow_class: bool,
    pub(crate) found: Found,
    pub(crate) bounds: Bounds,
}
