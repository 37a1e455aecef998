//! The row of shared memory.

mod doctor;

use std::io;

use herdwick_fabric::{Device, PortLimits};
use herdwick_herd::hello::FabricWords;
use herdwick_shm::{PdSize, ShmDevice};

use crate::{
    AnyDevice, End, Fabric, ListenError, Wanted,
    row::{Description, Row},
};

pub(crate) const ROW: Row = Row {
    fabric: Fabric::Shm,
    words: FabricWords {
        name: "shm",
        socket: true,
        own_path: false,
        attribute: None,
    },
    title: "shared memory",
    off: "--shm off",
    why_not_offered: "it runs on another host, or as `herdwick serve --shm off`, or cannot share memory \
                      (`herdwick doctor` shows the reason on its host)",
    is_hardware: || false,
    // Memory has no device that could go away.
    may_be_lost: false,
    pd_bytes: ShmDevice::pd_bytes,
    probe,
    doctor: doctor::checks,
    // It is offered where there is a lease socket.
    wanted: |_| Wanted::Off,
    has_attribute: |_| false,
    remove: |_| (),
    // An idle lease socket costs nothing.
    serve_options: [&[], &[]],
    refused: |reason| ListenError {
        what: "cannot share memory with clients".to_owned(),
        reason,
        advice: "`herdwick doctor` shows what is missing, or do without shared memory (--shm off)",
    },
    // Nothing to open: memory is made with the domains.
    listen: |_, _| Ok(host()),
    dial: |_| Ok(AnyDevice::Shm(ShmDevice::client())),
    describe: |_| Description::default(),
    counters: || herdwick_shm::counters().collect(),
    loopback: |end| {
        Ok(match end {
            End::Worker => host(),
            End::Client => AnyDevice::Shm(ShmDevice::client()),
        })
    },
    beside: |_| Ok(AnyDevice::Shm(ShmDevice::client())),
    // It opens any number of ports, so it is still as good as new.
    anew: |device| Ok(device.clone()),
};

/// Makes a host whose domains are made for their peers, each with its room.
fn host() -> AnyDevice {
    AnyDevice::Shm(ShmDevice::host(PdSize::NONE))
}

/// Makes a domain and destroys it.
fn probe() -> io::Result<()> {
    let limits = PortLimits {
        pds: 1,
        qps: 1,
        cqs: 1,
        regions: 1,
        addresses: 1,
    };
    let device = ShmDevice::host(PdSize::NONE);
    let mut port = device.open_port(&limits).map_err(io::Error::other)?;
    let pd = device.create_pd(&mut port).map_err(io::Error::other)?;
    device.destroy_pd(&mut port, pd).map_err(io::Error::other)
}
