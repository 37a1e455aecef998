//! The row of RoCEv2 over UDP, by the software RNIC.

pub(crate) mod doctor;

use std::{
    fs::File,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
};

use herdwick_fabric::Device;
use herdwick_herd::hello::FabricWords;
use herdwick_roce_udp::{RoceDevice, RoceOptions};

use crate::{
    AnyDevice, ClientDeviceError, Dial, Fabric, ListenError, ListenHost, ListenOptions, Wanted,
    row::{Description, Row},
};

pub(crate) const ROW: Row = Row {
    fabric: Fabric::Roce,
    words: FabricWords {
        name: "roce",
        socket: false,
        own_path: false,
        // The kind of packet authentication (`docs/roce.md`).
        attribute: Some(("keys", "siphash24")),
    },
    title: "RoCEv2",
    off: "--roce off",
    why_not_offered: "it runs without `--roce`",
    is_hardware: || false,
    may_be_lost: false,
    pd_bytes: RoceDevice::pd_bytes,
    // The kernel has UDP.
    probe: || Ok(()),
    doctor: doctor::checks,
    // An address that was given is meant: without it the server does not start.
    wanted: |options| match options.roce {
        Some(_) => Wanted::Needed,
        None => Wanted::Off,
    },
    has_attribute: |options| options.roce_keyed,
    remove: |options| options.roce = None,
    // Port 0: any free port.
    serve_options: [&["--roce", "127.0.0.1:0"], &[]],
    refused: |reason| ListenError {
        what: "cannot take RoCEv2".to_owned(),
        reason,
        advice: ADVICE,
    },
    listen,
    dial,
    describe: |device| match device {
        AnyDevice::Roce(device) => Description {
            place: format!("UDP {}", device.local()),
            found: String::new(),
        },
        _ => Description::default(),
    },
    counters: || herdwick_roce_udp::counters().collect(),
    loopback: |_| RoceDevice::bind(RoceOptions::new(LOOPBACK)).map(AnyDevice::Roce),
    beside,
    anew,
};

/// What helps against a device that cannot be used.
const ADVICE: &str = "give another address (--roce ADDR:PORT), or do without it (--roce off)";

/// Any free port of the loopback interface.
const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn listen(options: &ListenOptions, host: &ListenHost) -> Result<AnyDevice, ListenError> {
    let address = options.roce.unwrap_or(LOOPBACK);
    let capture = options.roce_capture.as_deref();
    capture.map_or(Ok(()), writable)?;
    let bound = RoceDevice::bind(RoceOptions {
        // Each worker opens one port.
        shards: host.workers,
        keyed: options.roce_keyed,
        capture: options.roce_capture.clone(),
        origin: host.origin,
        ..RoceOptions::new(address)
    });
    bound.map(AnyDevice::Roce).map_err(|source| ListenError {
        what: format!("cannot take RoCEv2 on UDP {address}"),
        reason: source.to_string(),
        advice: ADVICE,
    })
}

/// Checks that a capture of packets can be written to `path`. Does not truncate an existing file: the
/// start may still fail.
fn writable(path: &Path) -> Result<(), ListenError> {
    let opened = File::options().append(true).create(true).open(path);
    opened.map(drop).map_err(|source| ListenError {
        what: format!("cannot write packets to {}", path.display()),
        reason: source.to_string(),
        advice: "give another file (--roce-pcap), in a directory that this user may write to",
    })
}

/// Binds another port of the device's address.
fn beside(device: &AnyDevice) -> io::Result<AnyDevice> {
    let AnyDevice::Roce(device) = device else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    let host = match device.local().ip() {
        // A wildcard address is none to send from or to; the loopback reaches it.
        any if any.is_unspecified() => LOOPBACK.ip(),
        host => host,
    };
    let mut own = device.local();
    own.set_ip(host);
    // The device has its own port already; any other one will do.
    own.set_port(0);
    let device = RoceDevice::bind(RoceOptions {
        // Its peer is the device that serves, at that address.
        peer_host: Some(host),
        keyed: device.options().keyed,
        ..RoceOptions::new(own)
    });
    device.map(AnyDevice::Roce)
}

/// Binds a device with the options of this one to the same address.
fn anew(device: &AnyDevice) -> io::Result<AnyDevice> {
    let AnyDevice::Roce(device) = device else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    device.bind_again().map(AnyDevice::Roce)
}

/// Binds the address from which the kernel reaches the server.
fn dial(dial: &Dial<'_>) -> Result<AnyDevice, ClientDeviceError> {
    let (local, peer) = dial.ends()?;
    // Copy the whole address: a link-local one needs its scope.
    let mut own = local;
    // Any free port: the server learns it from the endpoint.
    own.set_port(0);
    let device = RoceDevice::bind(RoceOptions {
        peer_host: Some(peer.ip()),
        // Both ends need the same choice, and the server has made it.
        keyed: dial.attribute.is_some(),
        ..RoceOptions::new(own)
    });
    let device = device.map_err(|error| ClientDeviceError::Setup(error.to_string()));
    device.map(AnyDevice::Roce)
}
