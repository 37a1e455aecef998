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

fn lines(output: Output) -> Vec<String> {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

const SHORT: &str = "--workers 2 --machines 2 --keys 1000 --microseconds 30";

/// Lists are combined, and each row has what the same run has alone.
#[test]
fn lists_make_a_table_of_all_combinations() {
    let table = lines(sim(&format!("herd,farm --clients 2,4,6 {SHORT}")));
    assert_eq!(table.len(), 2 + 6, "{table:?}");
    let alone = lines(sim(&format!("farm --clients 4 {SHORT}")));
    let rate = alone[1].split_whitespace().nth(1).unwrap();
    let row: Vec<_> = table[6].split_whitespace().collect();
    assert_eq!(row[..3], ["farm", "4", rate], "{table:?}");
    let hashes = lines(sim(&format!("farm --clients 2,4 {SHORT} --hash")));
    let hash = lines(sim(&format!("farm --clients 4 {SHORT} --hash")));
    assert_eq!(hashes[1..], hash);
}

/// A scenario runs what the same options do on the command line.
#[test]
fn scenarios_run_what_their_options_say() {
    let name = format!("herdwick-scenario-{}.toml", std::process::id());
    let path = std::env::temp_dir().join(name);
    let text = "workers = 2\nmachines = 2\nkeys = 1000\nmicroseconds = 30\nhash = true\n\
                [[run]]\nsystem = \"herd\"\nclients = [2, 4]\n\
                [[run]]\nsystem = \"herd\"\nclients = 4\nfaults = \"loss\"\noperations = 400\n";
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap();
    let scenario = sim(path);
    let refused = sim(&format!("{path} --clients 3"));
    std::fs::remove_file(path).unwrap();
    let mut expected = lines(sim(&format!("herd --clients 2,4 {SHORT} --hash")));
    expected.extend(lines(sim(
        "herd --clients 4 --workers 2 --machines 2 --faults loss --operations 400 --hash",
    )));
    assert_eq!(lines(scenario), expected);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}

/// More RNICs are needed for more requests, and what one serves within the bound does not depend on that.
#[test]
fn capacity_is_of_whole_rnics() {
    let rows = |mops: u32| {
        let table = lines(sim(&format!(
            "herd --workers 1,2 --machines 2 --keys 1000 --microseconds 30 --capacity {mops} --p99 8"
        )));
        let cells = |row: &String| row.split_whitespace().map(str::to_owned).collect();
        table[2..].iter().map(cells).collect::<Vec<Vec<String>>>()
    };
    let (few, many) = (rows(1), rows(100));
    assert_eq!((few.len(), many.len()), (2, 2), "{few:?}");
    for (few, many) in few.iter().zip(&many) {
        // The last cells: M/s, p99, clients; RNICs, their cores and clients.
        let from = few.len() - 6;
        assert_eq!(few[..from + 3], many[..from + 3]);
        let number = |row: &[String], cell: usize| row[from + cell].parse::<f64>().unwrap();
        let rnics = (100.0 / number(many, 0)).ceil();
        assert!((number(many, 3) - rnics).abs() <= 1.0, "{many:?}");
        assert_eq!(few[from + 3], "1");
        assert!(number(few, 1) <= 8.0, "{few:?}");
    }
}

#[test]
fn wrong_options_exit_with_2() {
    for args in [
        "herd --faults gremlins",
        "verbs --faults all",
        "clover --clients 2",
        "herd --seeds 2",
        "gremlins",
        "/nowhere/at/all.toml",
        "herd,/nowhere/at/all.toml",
        "herd --capacity 20",
        "herd --capacity 0 --p99 10",
        "verbs --capacity 20 --p99 10",
        "herd --capacity 20 --p99 10 --clients 3",
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
        "verbs --timeline /nowhere/at/all.svg",
        "herd --clients 2,3 --timeline /nowhere/at/all.svg",
        "herd --faults all --seeds 2 --timeline /nowhere/at/all.svg",
        "herd --hash --timeline /nowhere/at/all.svg",
        "fit --timeline /nowhere/at/all.svg",
    ] {
        let output = sim(args);
        assert_eq!(output.status.code(), Some(2), "{args}: {output:?}");
    }
    for args in [
        "herd --workers 2x",
        "herd --machines 1,2",
        "herd --put 5,many",
    ] {
        let output = sim(args);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args}: {output:?}");
        assert!(text.contains("not a number"), "{args}: {text}");
    }
}

/// With faults or without, a timeline shows the run whose numbers are printed: it changes none of them.
#[test]
fn timeline_is_of_the_run_that_is_reported() {
    let folder = std::env::temp_dir();
    let path = folder.join(format!("herdwick-timeline-{}.svg", std::process::id()));
    for (run, faults) in [
        ("pilaf --clients 6 --microseconds 100", false),
        ("farm --faults pause,loss --operations 2000", true),
    ] {
        let [plain, drawn] = [String::new(), format!(" --timeline {}", path.display())]
            .map(|more| lines(sim(&format!("{run}{more}"))));
        let hash = |lines: &[String]| lines.iter().find(|line| line.contains("hash")).cloned();
        assert_eq!(hash(&plain), hash(&drawn));
        let svg = std::fs::read_to_string(&path).unwrap();
        assert_eq!(svg.contains("latency, us"), !faults, "{run}");
        assert_eq!(
            svg.contains("pause") && svg.contains("loss"),
            faults,
            "{run}"
        );
        std::fs::remove_file(&path).unwrap();
    }
    for run in ["herd --clients 2", "herd --faults loss --operations 100"] {
        let refused = sim(&format!("{run} --timeline {}", folder.display()));
        let text = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{run}");
        assert!(text.contains("writing "), "{run}: {text}");
    }
}

/// What a fit has no use for, or no points for, is refused with what to give instead.
#[test]
fn fit_refuses_what_it_does_not_use() {
    for (arguments, cause) in [
        ("fit --clients 3", "fit has --profile and --seed"),
        ("fit,herd", "fit has --profile and --seed"),
        (
            "fit --profile susitna",
            "there are those of apt and connect-ib",
        ),
    ] {
        let refused = sim(arguments);
        let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(complaint.contains(cause), "{arguments}: {complaint}");
        assert_eq!(refused.status.code(), Some(2), "{arguments}: {complaint}");
    }
}
