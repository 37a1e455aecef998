//! The seeded fabric passes the conformance suite: without faults, with torn and delayed WRITEs,
//! with fewer capabilities, and, on RC, with all faults at once.

use std::{
    os::unix::net::UnixStream,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use herdwick_conformance::{
    Fixture, LocalParty, Party,
    far::{FarParty, serve},
    seeded::{Faults, SeededNetwork},
};
use herdwick_fabric::{Atomics, Capabilities, Device, PortLimits};

/// Seeded parties with these capabilities and faults.
struct Seeded {
    capabilities: Capabilities,
    faults: Faults,
}

impl Fixture for Seeded {
    fn pair(&self) -> [Box<dyn Party>; 2] {
        pair(&self.capabilities, &self.capabilities, &self.faults)
    }

    fn rounds(&self) -> u64 {
        500
    }
}

fn pair(has: &Capabilities, claims: &Capabilities, faults: &Faults) -> [Box<dyn Party>; 2] {
    let network = SeededNetwork::with_capabilities(42, has.clone());
    network.set_faults(faults.clone());
    [(); 2].map(|()| {
        let device = network.device();
        let mut port = device.open_port(&PortLimits::default()).unwrap();
        let pd = device.create_pd(&mut port).unwrap();
        let party = LocalParty::new(device, port, pd).claiming(claims.clone());
        Box::new(party) as Box<dyn Party>
    })
}

fn lossless() -> Capabilities {
    Capabilities {
        lossless: true,
        reports_writes: true,
        ..SeededNetwork::capabilities()
    }
}

fn torn() -> Faults {
    Faults {
        delay_min: Duration::from_nanos(100),
        delay_max: Duration::from_micros(3),
        tear: Duration::from_nanos(200),
        tear_reads: Duration::from_nanos(200),
        ..Faults::default()
    }
}

mod calm {
    use super::*;
    herdwick_conformance::conformance!(Seeded {
        capabilities: lossless(),
        faults: Faults::default(),
    });
}

mod with_headers {
    use super::*;
    herdwick_conformance::conformance!(Seeded {
        capabilities: Capabilities {
            datagram_header_bytes: 40,
            ..lossless()
        },
        faults: Faults::default(),
    });
}

mod torn_and_late {
    use super::*;
    herdwick_conformance::conformance!(Seeded {
        capabilities: lossless(),
        faults: torn(),
    });
}

mod storm {
    use super::*;
    herdwick_conformance::conformance!(Seeded {
        capabilities: Capabilities {
            reports_writes: true,
            ..SeededNetwork::capabilities()
        },
        faults: Faults {
            drop_per_mille: 100,
            duplicate_per_mille: 100,
            reorder_per_mille: 100,
            reorder_window: Duration::from_micros(10),
            ..torn()
        },
    });
}

mod lean {
    use super::*;
    herdwick_conformance::conformance!(Seeded {
        capabilities: Capabilities {
            rc: false,
            read: false,
            atomics: Atomics::None,
            inline_receive_bytes: 0,
            wakes_on_write: false,
            ..lossless()
        },
        faults: Faults::default(),
    });
}

/// Side B is served over a stream, as if it were in another process.
struct Far;

impl Fixture for Far {
    fn pair(&self) -> [Box<dyn Party>; 2] {
        let claims = lossless();
        let [near, there] = pair(&claims, &claims, &Faults::default());
        let (here, other) = UnixStream::pair().unwrap();
        std::thread::spawn(move || serve(there, other).unwrap());
        [near, Box::new(FarParty::new(here, claims).unwrap())]
    }

    fn rounds(&self) -> u64 {
        200
    }

    fn quiet(&self) -> usize {
        50
    }
}

mod far {
    use super::*;
    herdwick_conformance::conformance!(Far);
}

/// Claims capabilities that it lacks: a behaviour that does not detect this one tests nothing.
struct Liar {
    has: Capabilities,
    faults: Faults,
}

impl Fixture for Liar {
    fn pair(&self) -> [Box<dyn Party>; 2] {
        pair(&self.has, &lossless(), &self.faults)
    }

    fn timeout(&self) -> usize {
        100_000
    }
}

fn alarmed(behaviour: &str, has: Capabilities, faults: Faults) {
    let liar = Liar { has, faults };
    let run = || herdwick_conformance::run(behaviour, &liar);
    assert!(catch_unwind(AssertUnwindSafe(run)).is_err(), "{behaviour}");
}

#[test]
fn suite_detects_unordered_writes() {
    let has = Capabilities {
        ordered_write: false,
        ..lossless()
    };
    alarmed(
        "write_publishes_its_last_word_last_step_by_step",
        has,
        torn(),
    );
}

#[test]
fn suite_detects_loss_and_duplication() {
    let lossy = Faults {
        drop_per_mille: 50,
        ..Faults::default()
    };
    let doubling = Faults {
        duplicate_per_mille: 50,
        ..Faults::default()
    };
    for faults in [lossy, doubling] {
        alarmed("sends_match_recvs_in_order", lossless(), faults);
    }
}

#[test]
fn suite_detects_missing_wakeups() {
    let has = Capabilities {
        wakes_on_write: false,
        ..lossless()
    };
    alarmed("a_write_wakes_an_armed_port", has, Faults::default());
}

#[test]
fn suite_detects_missing_reports() {
    let has = Capabilities {
        reports_writes: false,
        ..lossless()
    };
    alarmed(
        "writes_into_a_watched_range_are_reported",
        has,
        Faults::default(),
    );
}

#[test]
fn suite_detects_missing_verbs() {
    let has = [
        Capabilities {
            read: false,
            ..lossless()
        },
        Capabilities {
            atomics: Atomics::None,
            ..lossless()
        },
        Capabilities {
            inline_bytes_max: 4,
            ..lossless()
        },
    ];
    for has in has {
        alarmed(
            "each_transport_allows_the_verbs_of_table_1",
            has,
            Faults::default(),
        );
    }
}

#[test]
fn windows_are_bound_anew() {
    let network = SeededNetwork::new(4);
    herdwick_conformance::shared::windows_are_bound_anew(
        &network.device(),
        [network.device(), network.device()],
    );
}

#[test]
fn one_memory_is_served_by_several_ports() {
    let network = SeededNetwork::new(3);
    let clients = [(); 2].map(|()| network.device());
    herdwick_conformance::shared::serves_several_ports(&network.device(), clients);
    let clients = [(); 2].map(|()| network.device());
    herdwick_conformance::shared::trusted_peers_change_it(&network.device(), clients);
}
