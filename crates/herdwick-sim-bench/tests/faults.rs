//! Systems under faults: every history is linearizable, every fault does something, a seed gives one
//! run.

mod planted;

use herdwick_sim::Profile;
use herdwick_sim_bench::{FaultKind, FaultReport, FaultRun, Shrunk, System, shrink};

fn apt() -> Profile {
    Profile::named("apt").unwrap()
}

fn report(run: &FaultRun) -> FaultReport {
    let report = run.on(&apt()).unwrap();
    if report.violation.is_some() {
        let Shrunk { run, violation, .. } = shrink(run, &report, &apt()).unwrap();
        panic!("{run:?}: {violation}");
    }
    report
}

/// Runs so many seeds of a system; returns how often each kind of fault had an effect.
fn effects(run: &FaultRun, count: u64) -> Vec<(FaultKind, u64)> {
    let mut effects = vec![0; FaultKind::ALL.len()];
    for seed in 1..=count {
        let report = report(&FaultRun {
            seed,
            ..run.clone()
        });
        assert!(
            report.answered * 2 > report.begun,
            "seed {seed}: {report:?}"
        );
        for (sum, injected) in effects.iter_mut().zip(report.injected) {
            *sum += injected.effects;
        }
    }
    FaultKind::ALL.into_iter().zip(effects).collect()
}

/// Seeds 9 and 16 found that a worker took a request that was half visible, at the announcement of
/// an earlier one in its slot.
#[test]
fn herd_is_linearizable_under_faults() {
    let run = FaultRun {
        operations: 8000,
        ..FaultRun::default()
    };
    for (kind, effects) in effects(&run, 16) {
        assert!(effects > 0, "{kind:?}");
    }
}

#[test]
fn stores_of_reads_are_linearizable_under_faults() {
    for system in [System::Farm, System::FarmVar, System::Pilaf, System::Clover] {
        let run = FaultRun {
            system,
            operations: 4000,
            ..FaultRun::default()
        };
        effects(&run, 4);
    }
}

#[test]
fn faults_of_a_seed_repeat_event_by_event() {
    let run = FaultRun {
        operations: 500,
        clients: 5,
        ..FaultRun::default()
    };
    let again = report(&run);
    assert_eq!(report(&run), again);
    let other = report(&FaultRun { seed: 2, ..run });
    assert_ne!(other.trace, again.trace);
}
