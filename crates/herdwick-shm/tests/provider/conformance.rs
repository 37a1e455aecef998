//! Every behaviour of the conformance suite, between a host's port and a client's in one process:
//! once with the client as the requester, as in HERD, and once with the host.

use herdwick_conformance::{Fixture, LocalParty, Party};
use herdwick_fabric::PortLimits;
use herdwick_shm::{PdSize, ShmDevice};

/// Ring memory is not reused while its domain lives, and some behaviours make hundreds of queue
/// pairs one after another.
pub(crate) const ROOMY: PdSize = PdSize {
    host_inbound: 128 << 20,
    host_readable: 1 << 20,
    client_inbound: 128 << 20,
    client_regions: 1 << 20,
};

/// A client, and its host.
fn pair() -> [Box<dyn Party>; 2] {
    let devices = [ShmDevice::host(ROOMY), ShmDevice::client()];
    let [host, client] = LocalParty::linked(devices, &PortLimits::default());
    [Box::new(client), Box::new(host)]
}

mod client_asks {
    struct Shm;
    impl super::Fixture for Shm {
        fn pair(&self) -> [Box<dyn super::Party>; 2] {
            super::pair()
        }
    }
    herdwick_conformance::conformance!(Shm);
}

mod host_asks {
    struct Shm;
    impl super::Fixture for Shm {
        fn pair(&self) -> [Box<dyn super::Party>; 2] {
            let [client, host] = super::pair();
            [host, client]
        }
    }
    herdwick_conformance::conformance!(Shm);
}

fn host_and_clients() -> (ShmDevice, [ShmDevice; 2]) {
    (
        ShmDevice::host(ROOMY),
        [(); 2].map(|()| ShmDevice::client()),
    )
}

#[test]
fn one_memory_is_served_by_several_ports() {
    let (host, clients) = host_and_clients();
    herdwick_conformance::shared::serves_several_ports(&host, clients);
}

#[test]
fn windows_are_bound_anew() {
    let (server, clients) = host_and_clients();
    herdwick_conformance::shared::windows_are_bound_anew(&server, clients);
}

#[test]
fn trusted_peers_change_one_memory() {
    let (host, clients) = host_and_clients();
    herdwick_conformance::shared::trusted_peers_change_it(&host, clients);
}
