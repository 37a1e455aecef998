//! Probes: a client tests the path to each worker before it uses it, and changes nothing by that.

use herdwick_conformance::seeded::Faults;
use herdwick_herd::RequestPath;
use herdwick_mica::{Op, Put};

use crate::{model::Model, rig::Rig};

const WORKERS: usize = 2;
const STEPS: usize = 20_000;

/// Sends probes and steps until every worker has answered. Returns whether they did in time.
fn probed(rig: &mut Rig<Model>) -> bool {
    let now = rig.now;
    let client = &mut rig.clients[0];
    client.side.probe(&mut client.port, now);
    assert_eq!(client.side.in_flight(), WORKERS);
    for _ in 0..STEPS {
        rig.step(&mut |_, _, outcome| panic!("an outcome for nothing: {outcome:?}"));
        if rig.clients[0].side.in_flight() == 0 {
            return true;
        }
    }
    false
}

#[test]
fn a_probe_is_answered_and_does_nothing() {
    for path in RequestPath::ALL {
        for drop_per_mille in [0, 300] {
            // A reliable connection that loses too many packets fails.
            if path == RequestPath::RcWrite && drop_per_mille > 0 {
                continue;
            }
            let mut rig = Rig::over(path, 7, 1, vec![Model::default(); WORKERS]);
            rig.join(1);
            rig.faults(Faults {
                drop_per_mille,
                ..Faults::default()
            });
            assert!(probed(&mut rig), "{path}");
            assert!(probed(&mut rig), "{path}: again, under the next sequence");
            let executed = rig.workers.iter().map(|worker| worker.exec.executed);
            assert_eq!(executed.sum::<u64>(), 0);
            rig.faults(Faults::default());
            let put = Op::Put(Put::default());
            rig.call(0, b"key", put, |outcome| {
                assert!(matches!(outcome, herdwick_herd::Outcome::Answered(_)));
            });
            assert_eq!(rig.clients[0].side.counters().slots_lost, 0);
        }
    }
}

#[test]
fn a_probe_that_nobody_answers_stays_in_flight() {
    let mut rig = Rig::new(7, 4, vec![Model::default(); WORKERS]);
    rig.join(1);
    let (here, there) = (rig.clients[0].party(), rig.workers[1].port.party());
    rig.network.partition(here, there);
    assert!(!probed(&mut rig));
    assert_eq!(rig.clients[0].side.in_flight(), 1, "that worker's");
}
