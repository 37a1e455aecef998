//! The capture file of a port: contents, mode, and behaviour on a full disk.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

use herdwick_fabric::{Device, Port, PortLimits};
use herdwick_roce_udp::{RoceDevice, RoceOptions, RocePort};

use crate::shards::write_across;

/// The file header, a record header, IPv4 and UDP headers, and a WRITE of one word.
const FILE_BYTES: u64 = 24 + 16 + 28 + 12 + 16 + 8 + 4;

fn open(capture: Option<PathBuf>) -> (RoceDevice, RocePort) {
    let address = "127.0.0.1:0".parse().expect("an address");
    let device = RoceDevice::bind(RoceOptions {
        capture,
        ..RoceOptions::new(address)
    });
    let device = device.expect("a port");
    let port = device.open_port(&PortLimits::default()).expect("a port");
    (device, port)
}

/// Writes one packet to a port that sends nothing itself.
fn listen(capture: PathBuf) -> RocePort {
    let ((here, mut port), (there, mut far)) = (open(None), open(Some(capture)));
    write_across((&here, &mut port), (&there, &mut far), 7);
    far
}

fn failed(port: &RocePort) -> u64 {
    let drops = port.drops();
    let failed = drops
        .iter()
        .find(|(name, _)| *name == "roce_capture_failed");
    failed.expect("a counter").1
}

#[test]
fn capture_file_is_written_at_once_and_private() {
    let name = format!("herdwick-listener-{}.pcap", std::process::id());
    let path = std::env::temp_dir().join(name);
    let port = listen(path.clone());
    let file = fs::metadata(&path).expect("a file");
    fs::remove_file(&path).expect("ours");
    assert_eq!(file.len(), FILE_BYTES);
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
    assert_eq!(failed(&port), 0);
}

#[test]
fn packets_not_captured_on_a_full_disk_are_counted() {
    assert_eq!(failed(&listen("/dev/full".into())), 1);
}

/// Of two ports only one was opened: its socket, the capture of its packets, and the socket of the other.
#[test]
fn device_is_bound_again_and_goes_on_with_its_capture() {
    let name = format!("herdwick-again-{}.pcap", std::process::id());
    let path = std::env::temp_dir().join(name);
    let mut device = RoceDevice::bind(RoceOptions {
        capture: Some(path.clone()),
        shards: 2,
        ..RoceOptions::new("127.0.0.1:0".parse().expect("an address"))
    })
    .expect("a port");
    let local = device.local();
    for times in 1..=3 {
        let (here, mut port) = open(None);
        let mut far = device.open_port(&PortLimits::default()).expect("a port");
        write_across((&here, &mut port), (&device, &mut far), 7);
        let bytes = fs::metadata(&path).expect("a file").len();
        assert_eq!(bytes, 24 + times * (FILE_BYTES - 24));
        drop(far);
        device = device.bind_again().expect("the same address");
        assert_eq!(device.local(), local);
    }
    fs::remove_file(&path).expect("ours");
}
