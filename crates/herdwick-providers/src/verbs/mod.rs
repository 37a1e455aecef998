//! The row of RDMA devices, by libibverbs.

mod doctor;

use std::{fs, io};

use herdwick_fabric::Device;
use herdwick_herd::hello::FabricWords;
use herdwick_verbs::{Inlining, NoPlace, VerbsDevice, VerbsError, VerbsOptions};

use crate::{
    AnyDevice, ClientDeviceError, Dial, Fabric, ListenError, ListenOptions, Verbs, Wanted,
    row::{Description, Row},
};

pub(crate) const ROW: Row = Row {
    fabric: Fabric::Verbs,
    words: FabricWords {
        name: "verbs",
        socket: false,
        // Which paths there are depends on the device.
        own_path: true,
        attribute: None,
    },
    title: "RDMA",
    off: "--verbs off",
    why_not_offered: "it has no RDMA device",
    is_hardware: has_rnic,
    may_be_lost: true,
    pd_bytes: VerbsDevice::pd_bytes,
    probe,
    doctor: doctor::checks,
    wanted: |options| match options.verbs {
        Verbs::Off => Wanted::Off,
        Verbs::IfThere(_) => Wanted::IfThere,
        Verbs::Needed(_) => Wanted::Needed,
    },
    has_attribute: |_| false,
    remove: |options| options.verbs = Verbs::Off,
    serve_options: [&[], &["--verbs", "off"]],
    refused,
    listen: |options, _| listen(options),
    dial,
    describe: |device| match device {
        AnyDevice::Verbs(device) => Description {
            place: device.place().to_string(),
            found: format!(", memory to {} bytes inline", device.copied_bytes_max()),
        },
        _ => Description::default(),
    },
    counters: || herdwick_verbs::counters().collect(),
    // One device is enough for both ends: it reaches itself.
    beside: |device| Ok(device.clone()),
    // It opens any number of ports.
    anew: |device| Ok(device.clone()),
    loopback: |_| {
        let device = VerbsDevice::open(&VerbsOptions::default());
        device.map(AnyDevice::Verbs).map_err(io::Error::other)
    },
};

/// The kernel's RDMA devices, one directory each.
const DEVICES: &str = "/sys/class/infiniband";

/// Checks that the kernel lists a device, which may still be unusable.
fn probe() -> io::Result<()> {
    let mut devices = fs::read_dir(DEVICES)?;
    // The directory exists with the subsystem, even if there is no device.
    devices.next().ok_or(io::ErrorKind::NotFound)??;
    Ok(())
}

/// Returns whether there are RDMA devices and all of them are hardware: the kernel's software
/// devices (rxe, siw) have no `device` link in sysfs.
fn has_rnic() -> bool {
    let Ok(devices) = fs::read_dir(DEVICES) else {
        return false;
    };
    let mut devices = devices.flatten().peekable();
    devices.peek().is_some() && devices.all(|device| device.path().join("device").exists())
}

fn listen(options: &ListenOptions) -> Result<AnyDevice, ListenError> {
    let options = match &options.verbs {
        Verbs::Off => VerbsOptions::default(),
        Verbs::IfThere(options) | Verbs::Needed(options) => options.clone(),
    };
    let device = VerbsDevice::open(&VerbsOptions {
        inlining: Inlining::Measured,
        ..options
    });
    device
        .map(AnyDevice::Verbs)
        .map_err(|error| refused(error.to_string()))
}

fn refused(reason: String) -> ListenError {
    ListenError {
        what: "cannot use an RDMA device".to_owned(),
        reason,
        advice: "or do without one (--verbs off)",
    }
}

/// Opens the device that has the address from which the server was reached: the kernel has chosen
/// that route. For a loopback address any device will do.
fn dial(dial: &Dial<'_>) -> Result<AnyDevice, ClientDeviceError> {
    let (local, _) = dial.ends()?;
    let own_address = (!local.ip().to_canonical().is_loopback()).then_some(local.ip());
    let device = VerbsDevice::open(&VerbsOptions {
        own_address,
        // Only the server has to be configured.
        follow_class: true,
        ..dial.options.verbs.clone().unwrap_or_default()
    });
    device.map(AnyDevice::Verbs).map_err(no_device)
}

/// Distinguishes temporary errors from permanent ones.
fn no_device(error: VerbsError) -> ClientDeviceError {
    match error {
        VerbsError::System { .. }
        | VerbsError::Trial(_)
        | VerbsError::Place(NoPlace::PortDown(_)) => ClientDeviceError::Setup(error.to_string()),
        VerbsError::Library(_) | VerbsError::Place(_) => {
            ClientDeviceError::Absent(error.to_string())
        }
    }
}
