//! RNICs of a profile pass the conformance suite, and runs repeat.

use herdwick_conformance::{Fixture, LocalParty, Party};
use herdwick_fabric::{PortLimits, Transport};
use herdwick_sim::{
    Profile, SeededNetwork,
    verbs::{Direction, Flood, FloodVerb, Span},
};

/// Two hosts with the RNICs of a profile.
struct Hosts(&'static str);

impl Fixture for Hosts {
    fn pair(&self) -> [Box<dyn Party>; 2] {
        let profile = Profile::named(self.0).unwrap();
        let network = SeededNetwork::of(42, &profile);
        let devices = [(); 2].map(|()| network.device_at(network.host(&profile)));
        let parties = LocalParty::linked(devices, &PortLimits::default());
        parties.map(|party| Box::new(party) as Box<dyn Party>)
    }

    fn rounds(&self) -> u64 {
        500
    }
}

mod apt {
    use super::*;
    herdwick_conformance::conformance!(Hosts("apt"));
}

/// The same seed gives the same events, and another seed others. The hash is that of any machine: a
/// change of it is a change of the model.
#[test]
fn run_repeats_event_by_event() {
    let apt = Profile::named("apt").unwrap();
    let flood = Flood {
        direction: Direction::Outbound,
        verb: FloodVerb::Write,
        transport: Transport::Uc,
        payload: 32,
        inline: true,
        servers: 4,
        clients: 8,
        machines: 3,
        window: 8,
        postlist: 1,
        all_to_all: true,
    };
    let trace = |seed| flood.run(&apt, seed, Span::default()).unwrap().trace;
    assert_eq!(trace(7), trace(7));
    assert_ne!(trace(7), trace(8));
    assert_eq!(trace(7), HASH);
}

const HASH: u64 = 1_562_179_062_486_733_893;

#[test]
fn malformed_profiles_are_refused() {
    let text = include_str!("../profiles/apt.toml");
    assert!(Profile::parse(text).is_ok());
    let refused = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        assert!(Profile::parse(&text.replace(from, to)).is_err(), "{to}");
    };
    refused("post_ns = 150.0", "post_ns = -1.0");
    refused("pass_ns = 10.0", "pass_ns = nan");
    refused("units = 0 ", "units = -1");
    refused("lines_under_way = 10.0", "lines_under_way = 0.5");
    refused("tlp_payload_bytes = 128", "tlp_payload_bytes = 0");
    refused("mtu = 4096", "mtu = 0");
    refused("rd_atomic_max = 16", "rd_atomic_max = 0");
    refused("gbits =", "gigabits =");
}
