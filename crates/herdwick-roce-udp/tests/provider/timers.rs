//! Timers and retransmissions when passes are rare.

use std::time::Duration;

use herdwick_fabric::{Device, Port};
use herdwick_roce_udp::RocePort;

use crate::attended::{Side, signaled, write};

/// Polls of a port before the test fails.
const TIMEOUT: usize = 1_000_000;

#[test]
fn request_posted_after_a_long_pause_does_not_time_out_at_once() {
    let ((ours, mut port), (theirs, mut far)) = (Side::new(), Side::new());
    Side::connect([&ours, &theirs], [&mut port, &mut far]);
    let to = theirs.remote(&far);
    // The queue pair is gone, so no packet is answered, and each is counted.
    let gone = theirs.device.destroy_qp(&mut far, theirs.qp);
    gone.expect("a queue pair");
    port.progress(Duration::ZERO);

    let later = Duration::from_secs(10);
    let request = signaled(write(&[77], to));
    port.post_send(ours.qp, &[request]).expect("room");
    port.flush(later);
    port.progress(later);

    let mut checks = 0..TIMEOUT;
    while strangers(&far) == 0 {
        assert!(checks.next().is_some(), "nothing arrived");
        far.progress(Duration::ZERO);
    }
    far.progress(Duration::ZERO);
    assert_eq!(strangers(&far), 1, "it was sent exactly once");
}

#[test]
fn retransmissions_to_a_silent_peer_are_counted() {
    let ((ours, mut port), (theirs, mut far)) = (Side::new(), Side::new());
    Side::connect([&ours, &theirs], [&mut port, &mut far]);
    let to = theirs.remote(&far);
    let request = signaled(write(&[77], to));
    port.post_send(ours.qp, &[request]).expect("room");
    // No passes are made at the far side.
    (0..4).for_each(|second| {
        port.progress(Duration::from_secs(second));
    });
    let counts = port.connection_counts();
    for (name, least) in [("roce_timeouts", 2), ("roce_retransmitted", 2)] {
        let found = counts.iter().find(|(found, _)| *found == name);
        let (_, count) = found.expect("a counter");
        assert!(*count >= least, "{name}: {count}");
    }
}

/// Returns the packets that arrived for an unknown queue pair.
fn strangers(port: &RocePort) -> u64 {
    let drops = port.drops();
    let unknown = drops.iter().find(|(name, _)| *name == "roce_unknown_qpn");
    unknown.expect("a counter").1
}
