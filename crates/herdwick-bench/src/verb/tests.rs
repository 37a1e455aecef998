//! Tests of the benchmark of verbs: points and their obstacles, what arrives, and who pays for it.

use herdwick_fabric::{Capabilities, Transport};

use super::*;

fn capabilities() -> Capabilities {
    let device = Fabric::BEST
        .session()
        .unwrap()
        .loopback(End::Client)
        .unwrap();
    device.capabilities().clone()
}

/// Tries to measure something at each point: a thread that gets no CPU for as long as a run posts
/// nothing in it.
const TRIES: usize = 20;

/// A short run of `plan` over shared memory in which every point has verbs.
fn measured(plan: &VerbPlan) -> Report {
    let config = Config {
        seconds: 0.02,
        runs: 1,
        workers: Some(1),
        ..Config::default()
    };
    let mut tries = (0..TRIES).map(|_| verb(&config, plan, &mut |_| ()).unwrap());
    let is_busy = |report: &Report| report.results.iter().all(|result| result.ops_per_s > 0.0);
    tries.find(is_busy).expect("verbs at every point")
}

#[test]
fn sweep_has_every_combination_once_and_only_what_takes_effect() {
    let plan = VerbPlan {
        kinds: vec![Verb::Write, Verb::Read, Verb::FetchAdd],
        payloads: vec![16, 64],
        windows: vec![4, 32],
        signaled: vec![1, 16],
        ..VerbPlan::default()
    };
    let points = plan.points(1, &capabilities());
    // WRITE and READ: 2 payloads x 2 windows x 2 periods; an atomic has one payload.
    assert_eq!(points.len(), 8 + 8 + 4);
    assert!(points.iter().all(|point| point.signaled <= point.window));
    assert!(points.iter().all(|p| p.inline == (p.verb == Verb::Write)));
    let atomics = points.iter().filter(|p| p.verb == Verb::FetchAdd);
    assert!(atomics.into_iter().all(|p| p.payload == 8));
}

#[test]
fn obstacles_are_those_of_table_1() {
    let plan = VerbPlan {
        kinds: vec![Verb::Send, Verb::Write, Verb::Read],
        transports: vec![Transport::Rc, Transport::Uc, Transport::Ud],
        ..VerbPlan::default()
    };
    let has = capabilities();
    let carried = plan.points(1, &has).into_iter();
    let carried = carried.filter(|point| point.obstacle(&has).is_none());
    let carried: Vec<_> = carried.map(|p| (p.verb, p.transport)).collect();
    let (send, write, read) = (Verb::Send, Verb::Write, Verb::Read);
    let (rc, uc, ud) = (Transport::Rc, Transport::Uc, Transport::Ud);
    assert_eq!(
        carried,
        [
            (send, rc),
            (send, uc),
            (send, ud),
            (write, rc),
            (write, uc),
            (read, rc)
        ]
    );
}

#[test]
fn pairs_are_one_to_one_or_all_to_all() {
    let plan = VerbPlan {
        clients: vec![4],
        ..VerbPlan::default()
    };
    let point = plan.points(2, &capabilities())[0];
    assert_eq!(point.pairs(), [(0, 0), (0, 2), (1, 1), (1, 3)]);
    let point = Point {
        all_to_all: true,
        ..point
    };
    assert_eq!(point.pairs().len(), 8);
}

#[test]
fn every_verb_runs_both_ways_on_every_transport_that_carries_it() {
    let report = measured(&VerbPlan {
        kinds: vec![
            Verb::Send,
            Verb::Write,
            Verb::Read,
            Verb::FetchAdd,
            Verb::CompareSwap,
        ],
        transports: vec![Transport::Rc, Transport::Uc, Transport::Ud],
        directions: vec![Direction::Inbound, Direction::Outbound],
        clients: vec![2],
        queue_pairs: vec![2],
        windows: vec![8],
        postlists: vec![3],
        signaled: vec![4],
        ..VerbPlan::default()
    });
    // Table 1: three transports carry SEND, two WRITE, one the rest.
    assert_eq!(report.results.len(), 2 * (3 + 2 + 1 + 1 + 1));
    for result in &report.results {
        assert!(result.ops_per_s > 0.0, "{:?}", result.subject);
        assert_eq!(result.errors, 0, "{:?}", result.subject);
        let lost = result.subject.verb.as_ref().unwrap().lost;
        assert_eq!(lost, None, "this fabric loses nothing");
    }
    assert!(
        report.manifest.left_out.is_some(),
        "what UC and UD do not carry"
    );
}

#[test]
fn all_to_all_and_payloads_from_memory_run() {
    let report = measured(&VerbPlan {
        kinds: vec![Verb::Send, Verb::Write],
        transports: vec![Transport::Uc],
        inline: vec![false],
        payloads: vec![13, 1000],
        clients: vec![2],
        all_to_all: true,
        ..VerbPlan::default()
    });
    assert_eq!(report.results.len(), 4);
    assert!(report.results.iter().all(|result| result.ops_per_s > 0.0));
}

#[test]
fn what_no_transport_carries_is_an_error_that_says_so() {
    let plan = VerbPlan {
        kinds: vec![Verb::Read],
        transports: vec![Transport::Uc],
        ..VerbPlan::default()
    };
    let error = verb(&Config::default(), &plan, &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("does not carry"), "{error}");
}
