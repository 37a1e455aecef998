//! The conformance suite on the loopback device, and on the system's RDMA device.

use std::ffi::OsString;

use herdwick_conformance::{BEHAVIOURS, Fixture, LocalParty, Party, conformance, run};
use herdwick_fabric::{Capabilities, Device, PortLimits};
use herdwick_verbs::{Inlining, VerbsDevice, VerbsOptions};

use herdwick_verbs_fake::handle as fake;

/// Two ports of one device.
struct Ports {
    library: Option<OsString>,
    inlining: Inlining,
    timeout: usize,
    rounds: u64,
}

impl Fixture for Ports {
    fn pair(&self) -> [Box<dyn Party>; 2] {
        let devices = [(); 2].map(|()| {
            let options = VerbsOptions {
                library: self.library.clone(),
                inlining: self.inlining,
                ..VerbsOptions::default()
            };
            VerbsDevice::open(&options).expect("a device")
        });
        // No packets are lost within one host.
        let claims = Capabilities {
            lossless: true,
            ..devices[0].capabilities().clone()
        };
        LocalParty::linked(devices, &PortLimits::default())
            .map(|party| Box::new(party.claiming(claims.clone())) as Box<dyn Party>)
    }

    fn timeout(&self) -> usize {
        self.timeout
    }

    fn rounds(&self) -> u64 {
        self.rounds
    }
}

mod loopback {
    use super::*;
    conformance!(Ports {
        library: Some(fake::path()),
        inlining: Inlining::Never,
        timeout: 2_000_000,
        rounds: 2000,
    });
}

mod inlining {
    use super::*;
    conformance!(Ports {
        library: Some(fake::path()),
        inlining: Inlining::UpTo(usize::MAX),
        timeout: 2_000_000,
        rounds: 2000,
    });
}

/// Behaviours in which rdma_rxe of Linux 6.1 differs from the suite and from InfiniBand.
const RXE_DIFFERS: &[(&str, &str)] = &[
    (
        "misaligned_atomics_are_refused",
        "the requester's work is flushed without a word of why",
    ),
    (
        "short_recv_buffer_receives_nothing",
        "the receiver calls it an inconsistency of its own (IBV_WC_LOC_QP_OP_ERR)",
    ),
    (
        "words_of_a_read_are_never_torn",
        "the kernel copies by memcpy, and an emulated CPU does that a byte at a time",
    ),
];

/// Run by `tests/verbs/run.sh` on the kernel's rdma_rxe.
#[test]
#[ignore = "needs an RDMA device"]
fn system_device_passes_conformance() {
    let fixture = Ports {
        library: None,
        inlining: Inlining::Measured,
        timeout: 2_000_000,
        rounds: 300,
    };
    let device = VerbsDevice::open(&VerbsOptions::default()).expect("a device");
    println!("{}\n{:?}", device.place(), device.capabilities());
    let measured = VerbsDevice::open(&VerbsOptions {
        inlining: Inlining::Measured,
        ..VerbsOptions::default()
    });
    let copied = measured.expect("the same").copied_bytes_max();
    println!("worth sending inline: {copied} bytes");
    let rxe = device.place().device.starts_with("rxe");
    let mut failed = Vec::new();
    for (name, _) in BEHAVIOURS {
        let shown = std::panic::catch_unwind(|| run(name, &fixture)).is_ok();
        let differs = RXE_DIFFERS.iter().find(|(known, _)| rxe && known == name);
        println!("{name}: {}", if shown { "shown" } else { "not shown" });
        match differs {
            Some((_, reason)) => println!("  rdma_rxe differs: {reason}"),
            None if shown => {}
            None => failed.push(name),
        }
    }
    assert!(failed.is_empty(), "not shown: {failed:?}");
}

fn devices() -> (VerbsDevice, [VerbsDevice; 2]) {
    let open = || {
        let options = VerbsOptions {
            library: Some(fake::path()),
            ..VerbsOptions::default()
        };
        VerbsDevice::open(&options).expect("a device")
    };
    (open(), [open(), open()])
}

#[test]
fn one_memory_is_served_by_several_ports() {
    let (server, clients) = devices();
    herdwick_conformance::shared::serves_several_ports(&server, clients);
}

#[test]
fn windows_are_bound_anew() {
    let (server, clients) = devices();
    herdwick_conformance::shared::windows_are_bound_anew(&server, clients);
}

#[test]
fn trusted_peers_change_one_memory() {
    let (server, clients) = devices();
    herdwick_conformance::shared::trusted_peers_change_it(&server, clients);
}
