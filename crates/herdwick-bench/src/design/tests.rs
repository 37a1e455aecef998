//! Tests of the designs: each returns the bytes that were sent, at every level of optimization.

use herdwick_check::length;
use herdwick_fabric::Transport;

use super::*;
use crate::messages::Way;

/// Tries to measure something at each point, each twice as long as the one before: a thread that gets no
/// CPU for as long as a run lasts answers nothing in it.
const TRIES: i32 = 10;

/// A short run of `plan` in which every point has answers.
fn measured(plan: &DesignPlan, fabric: Fabric) -> Report {
    let mut tries = (0..TRIES).map(|turn| {
        let config = Config {
            fabrics: vec![fabric],
            seconds: 0.01 * 2_f64.powi(turn),
            runs: 1,
            ..Config::default()
        };
        design(&config, plan, &mut |_| ()).unwrap()
    });
    let is_busy = |report: &Report| report.results.iter().all(|result| result.ops_per_s > 0.0);
    tries.find(is_busy).expect("answers at every point")
}

fn sound(report: &Report) {
    for result in &report.results {
        let wrong = (result.wrong_values, result.errors);
        assert_eq!(wrong, (0, 0), "{:?}", result.subject);
    }
}

#[test]
fn every_design_returns_the_bytes_that_were_sent() {
    let designs = ["send-send", "send-send-ud", "write-write", "write-send"];
    let ends = vec![Level::Basic, Level::Inlined];
    let all = length(ends.clone(), Level::ALL.to_vec());
    for (fabric, levels, payloads) in [
        (Fabric::BEST, all, vec![32]),
        (Fabric::BEST, ends.clone(), vec![200]),
        (Fabric::BARE, ends, vec![32]),
    ] {
        let plan = DesignPlan {
            designs: designs.map(|name| name.parse().unwrap()).to_vec(),
            levels,
            windows: vec![8],
            clients: vec![2],
            payloads,
            ..DesignPlan::default()
        };
        let report = measured(&plan, fabric);
        assert_eq!(report.results.len(), 4 * plan.levels.len());
        sound(&report);
    }
}

/// A window shorter than the pipeline is answered by its no-ops.
#[test]
fn memory_accesses_delay_no_answer_for_good() {
    let plan = DesignPlan {
        windows: vec![1, 8],
        accesses: vec![0, 2],
        prefetch: vec![true, false],
        ..DesignPlan::default()
    };
    let report = measured(&plan, Fabric::BEST);
    let points = report.results.iter().map(|result| {
        let verb = result.subject.verb.as_ref().unwrap();
        (verb.window, verb.accesses, verb.prefetch)
    });
    let of_window = |window| {
        [(0, false), (2, true), (2, false)].map(|(accesses, prefetch)| (window, accesses, prefetch))
    };
    assert_eq!(
        points.collect::<Vec<_>>(),
        [of_window(1), of_window(8)].concat()
    );
    sound(&report);
}

#[test]
fn levels_are_those_of_fig_5() {
    let at = |design, level| {
        let plan = DesignPlan {
            designs: vec![design],
            levels: vec![level],
            windows: vec![16],
            ..DesignPlan::default()
        };
        let exchange = plan.points().unwrap()[0].exchange();
        (exchange.ways, exchange.signaled, exchange.inline)
    };
    let send = |transport| [Way::Send(transport); 2];
    assert_eq!(
        at(Design::SendSend, Level::Basic),
        (send(Transport::Rc), 1, false)
    );
    let unsignaled = at(Design::SendSend, Level::Unsignaled);
    assert_eq!(unsignaled, (send(Transport::Rc), 16, false));
    let unreliable = at(Design::SendSend, Level::Unreliable);
    assert_eq!(unreliable, (send(Transport::Uc), 16, false));
    let datagrams = at(Design::SendSendUd, Level::Unreliable);
    assert_eq!(datagrams, (send(Transport::Ud), 16, false));
    let herd = [Way::Write(Transport::Uc), Way::Send(Transport::Ud)];
    assert_eq!(at(Design::WriteSend, Level::Inlined), (herd, 16, true));
    let basic = [Way::Write(Transport::Rc), Way::Send(Transport::Ud)];
    assert_eq!(at(Design::WriteSend, Level::Basic), (basic, 1, false));
}
