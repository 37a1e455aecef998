//! Probes: a client tests the path to each worker before it uses it, and changes nothing by that.

use herdwick_conformance::seeded::Faults;
use herdwick_herd::RequestPath;
use herdwick_request::{Op, Put};

use crate::{fixture::Fixture, model::Model};

const WORKERS: usize = 2;
const STEPS: usize = 20_000;

/// Sends probes and steps until every worker has answered. Returns whether they did in time.
fn probed(fixture: &mut Fixture<Model>) -> bool {
    let now = fixture.now;
    let client = &mut fixture.clients[0];
    client.side.probe(&mut client.port, now);
    assert_eq!(client.side.in_flight(), WORKERS);
    for _ in 0..STEPS {
        fixture.step(&mut |_, _, outcome| panic!("an outcome for nothing: {outcome:?}"));
        if fixture.clients[0].side.in_flight() == 0 {
            return true;
        }
    }
    false
}

#[test]
fn probe_is_answered_and_has_no_effect() {
    for path in RequestPath::ALL {
        for drop_per_mille in [0, 300] {
            // A reliable connection that loses too many packets fails.
            if path == RequestPath::RcWrite && drop_per_mille > 0 {
                continue;
            }
            let mut fixture = Fixture::over(path, 7, 1, vec![Model::default(); WORKERS]);
            fixture.join(1);
            fixture.faults(Faults {
                drop_per_mille,
                ..Faults::default()
            });
            assert!(probed(&mut fixture), "{path}");
            assert!(
                probed(&mut fixture),
                "{path}: again, under the next sequence"
            );
            let executed = fixture.workers.iter().map(|worker| worker.exec.executed);
            assert_eq!(executed.sum::<u64>(), 0);
            fixture.faults(Faults::default());
            let put = Op::Put(Put::default());
            fixture.call(0, b"key", put, |outcome| {
                assert!(matches!(outcome, herdwick_herd::Outcome::Answered(_)));
            });
            assert_eq!(fixture.clients[0].side.counters().slots_lost, 0);
        }
    }
}

#[test]
fn unanswered_probe_stays_in_flight() {
    let mut fixture = Fixture::new(7, 4, vec![Model::default(); WORKERS]);
    fixture.join(1);
    let (here, there) = (fixture.clients[0].party(), fixture.workers[1].port.party());
    fixture.network.partition(here, there);
    assert!(!probed(&mut fixture));
    assert_eq!(fixture.clients[0].side.in_flight(), 1, "that worker's");
}
