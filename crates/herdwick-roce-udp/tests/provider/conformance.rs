//! The conformance suite over loopback sockets: IPv4, IPv6, and keyed packets.

use herdwick_conformance::{Fixture, LocalParty, Party};
use herdwick_fabric::{Capabilities, Device, PortLimits};
use herdwick_roce_udp::{RoceDevice, RoceOptions};

/// Two devices of this process, each on a loopback port of its own; the flag selects keyed packets.
struct Loopback(&'static str, bool);

impl Fixture for Loopback {
    fn pair(&self) -> [Box<dyn Party>; 2] {
        let devices = [(); 2].map(|()| {
            let address = self.0.parse().expect("an address");
            let device = RoceDevice::bind(RoceOptions {
                keyed: self.1,
                ..RoceOptions::new(address)
            });
            device.expect("a port")
        });
        // Socket buffers of megabytes do not overflow while both sides are polled in turn.
        let claims = Capabilities {
            lossless: true,
            ..devices[0].capabilities().clone()
        };
        LocalParty::linked(devices, &LIMITS)
            .map(|party| Box::new(party.claiming(claims.clone())) as Box<dyn Party>)
    }

    /// A pass is a few system calls, so fewer passes than usual cover the time in which a silent
    /// peer times out.
    fn timeout(&self) -> usize {
        2_000_000
    }
}

const LIMITS: PortLimits = PortLimits {
    pds: 64,
    qps: 512,
    cqs: 16,
    regions: 512,
    addresses: 512,
};

mod over_ipv4 {
    use super::*;
    herdwick_conformance::conformance!(Loopback("127.0.0.1:0", false));
}

mod over_ipv6 {
    use super::*;
    herdwick_conformance::conformance!(Loopback("[::1]:0", false));
}

mod keyed {
    use super::*;
    herdwick_conformance::conformance!(Loopback("127.0.0.1:0", true));
}

/// A server with two ports at one address, and two clients.
fn server_and_clients() -> (RoceDevice, [RoceDevice; 2]) {
    let bind = |shards| {
        let address = "127.0.0.1:0".parse().expect("an address");
        let options = RoceOptions::new(address);
        RoceDevice::bind(RoceOptions { shards, ..options }).expect("a port")
    };
    (bind(2), [bind(1), bind(1)])
}

#[test]
fn one_memory_is_served_by_several_ports() {
    let (server, clients) = server_and_clients();
    herdwick_conformance::shared::serves_several_ports(&server, clients);
}

#[test]
fn windows_are_bound_anew() {
    let (server, clients) = server_and_clients();
    herdwick_conformance::shared::windows_are_bound_anew(&server, clients);
}

#[test]
fn trusted_peers_change_one_memory() {
    let (server, clients) = server_and_clients();
    herdwick_conformance::shared::trusted_peers_change_it(&server, clients);
}
