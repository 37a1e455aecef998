//! `herdwick sim`: exit codes, and a run under faults from the command line.

use std::process::{Command, Output};

fn sim(args: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_herdwick"));
    command.arg("sim").args(args.split_whitespace());
    command.output().unwrap()
}

const SMALL: &str = "--clients 4 --machines 2 --workers 2 --operations 400";

#[test]
fn runs_under_faults_repeat() {
    let first = sim(&format!("herd --faults all --seeds 2 {SMALL} --hash"));
    assert_eq!(first.status.code(), Some(0), "{first:?}");
    let again = sim(&format!("herd --faults all --seeds 2 {SMALL} --hash"));
    assert_eq!(first.stdout, again.stdout);
    let other = sim(&format!(
        "herd --faults all --seeds 2 --seed 3 {SMALL} --hash"
    ));
    assert_ne!(first.stdout, other.stdout);
}

#[test]
fn last_seed_of_all_is_run() {
    let last = sim(&format!(
        "herd --faults loss --only 0 --seed {} {SMALL}",
        u64::MAX
    ));
    assert_eq!(last.status.code(), Some(0), "{last:?}");
}

#[test]
fn report_lists_the_faults_that_were_asked_for() {
    let report = sim(&format!("pilaf --faults loss,pause {SMALL}"));
    assert_eq!(report.status.code(), Some(0), "{report:?}");
    let report = String::from_utf8(report.stdout).unwrap();
    let has = |name: &str| report.lines().any(|line| line.starts_with(name));
    assert!(has("loss") && has("pause") && !has("kill"), "{report}");
}

#[test]
fn wrong_options_exit_with_2() {
    for args in [
        "herd --faults gremlins",
        "verbs --faults all",
        "clover --clients 2",
        "herd --seeds 2",
        "herd --window 3",
        "herd --profile none",
        "herd --profile /nowhere/at/all.toml",
        "herd --faults all --clients 0",
        "herd --faults all --clients 99999999999",
        "herd --faults all,",
        "herd --faults all --seeds 0",
        "herd --faults all --operations 0",
        "herd --faults all --seeds 18446744073709551616",
        "herd --faults all --seed 18446744073709551615 --seeds 2",
    ] {
        let output = sim(args);
        assert_eq!(output.status.code(), Some(2), "{args}: {output:?}");
    }
}
