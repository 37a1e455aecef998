//! Tests of the report: the JSON schema, the table, and the comparison with a baseline.

use serde_json::Value;

use super::*;

fn report() -> Report {
    let subject = Subject {
        system: "herd".to_owned(),
        fabric: "tcp".to_owned(),
        word: FigureClass::Soft.name().to_owned(),
        workload: "b".to_owned(),
        get_share: 0.95,
        clients: 2,
        connections: Some(50),
        pipeline: Some(4),
        ..Subject::default()
    };
    let run = Run {
        ops_per_s: 250_000.0,
        slowest_client: Some(0.87),
        hit_ratio: Some(0.998),
        generator_ns_per_op: Some(2000.0),
        line_rtt_ns: BeforeAfter {
            before: Some(300.0),
            after: Some(310.0),
        },
        latency_us: Some(Latency {
            p50: 12.25,
            p99: 40.0,
            p999: 80.5,
            ..Latency::default()
        }),
        ..Run::default()
    };
    let faster = Outcome::of(
        Subject {
            fabric: "shm".to_owned(),
            ..subject.clone()
        },
        &[Run {
            ops_per_s: 1_000_000.0,
            wrong_values: 3,
            line_rtt_ns: BeforeAfter {
                before: Some(300.0),
                after: Some(600.0),
            },
            ..Run::default()
        }],
    );
    Report {
        schema: SCHEMA,
        manifest: Manifest {
            commit: "abc".to_owned(),
            version: "0.1.0".to_owned(),
            machine: Machine {
                host: "box".to_owned(),
                cpu_model: "CPU".to_owned(),
                cpus: 2,
                kernel: "6.1".to_owned(),
                libc_vectors: "avx2".to_owned(),
                glibc_tunables: None,
            },
            fabric: "shm,tcp".to_owned(),
            word: "shm,soft".to_owned(),
            line_rtt_ns: BeforeAfter::default(),
            left_out: None,
            knobs: Knobs {
                keys: 1000,
                runs: 1,
                seconds: 5.0,
                ..Knobs::default()
            },
        },
        results: vec![faster, Outcome::of(subject, &[run])],
    }
}

/// Field names that readers of schema 1 rely on.
const RESULT: &str = "system fabric workload get_share dist keys key_bytes value_bytes workers \
    clients window runs ops_per_s offered_per_s hit_ratio errors wrong_values batch_mean \
    cpu_ns_per_op line_rtt_ns latency_us";

fn names(value: &Value) -> Vec<&str> {
    value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

#[test]
fn json_schema_1_has_all_its_fields() {
    let json: Value = serde_json::from_str(&report().to_json()).unwrap();
    assert_eq!(json["schema"], 1);
    let manifest = names(&json["manifest"]);
    for name in "commit version host cpu_model cpus kernel fabric word line_rtt_ns knobs".split(' ')
    {
        assert!(manifest.contains(&name), "manifest.{name}");
    }
    for result in json["results"].as_array().unwrap() {
        let present = names(result);
        for name in RESULT.split_whitespace() {
            assert!(present.contains(&name), "results[].{name}");
        }
        assert_eq!(names(&result["cpu_ns_per_op"]), ["client", "server"]);
        assert_eq!(names(&result["line_rtt_ns"]), ["after", "before"]);
    }
    let latency = &json["results"][1]["latency_us"];
    for name in "mean p5 p50 p90 p95 p99 p999 p9999 max".split(' ') {
        assert!(latency[name].is_number(), "latency_us.{name}");
    }
    assert!(json["results"][0]["latency_us"].is_null());
    assert!(json["results"][1]["offered_per_s"].is_null());
}

#[test]
fn json_round_trips() {
    let report = report();
    let back: Report = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!(back, report);
    assert!(!back.is_sound());
}

#[test]
fn table_names_measurements_and_warnings() {
    let table = Table(&report()).to_string();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(
        lines[0],
        "herdwick 0.1.0 (abc), shm,soft; box: CPU, 2 CPUs, Linux 6.1, libc's memcpy with"
    );
    assert!(lines[2].starts_with("1000 keys of 0 B"), "{table}");
    let tcp = lines
        .iter()
        .find(|line| line.starts_with("herd tcp"))
        .unwrap();
    for cell in [
        "b 95%", " 250.0 ", "99.80", "12.25", "40.00", "80.50", " 2000 ", " 25",
    ] {
        assert!(tcp.contains(cell), "{cell} in {table}");
    }
    assert!(
        table.contains("tcp: 2 clients, 50 connections, pipeline 4"),
        "{table}"
    );
    assert!(table.contains("herd tcp 300>310"), "{table}");
    let costly = "generator: herd over tcp: the benchmark itself takes 25 %";
    assert!(table.contains(costly), "{table}");
    assert!(!table.contains("generator: herd over shm"), "{table}");
    assert!(
        table.contains("herd over shm : herd over tcp = 4.00"),
        "{table}"
    );
    let fair = "fairness: herd over tcp: the slowest of 2 clients had 0.87 of the mean";
    assert!(table.contains(fair), "{table}");
    assert!(!table.contains("fairness: herd over shm"), "{table}");
    assert!(table.contains("WRONG: herd over shm: 3 values"), "{table}");
    assert!(table.contains("drift: herd over shm:"), "{table}");
    assert!(!table.contains("drift: herd over tcp"), "{table}");
}

#[test]
fn table_columns_align_within_80_characters() {
    let mut report = report();
    let table = Table(&report).to_string();
    let grid: Vec<&str> = table
        .lines()
        .skip_while(|line| !line.is_empty())
        .skip(1)
        .take(3)
        .collect();
    assert!(grid[0].starts_with("what"), "{table}");
    assert!(
        grid.iter().all(|line| line.len() == grid[0].len()),
        "{table}"
    );
    // Also with the longest names there are, and figures from hundredths to billions.
    for (scale, beside) in [
        (1.0, None),
        (1e-3, Some("scribbler")),
        (1e4, Some("spinner")),
    ] {
        report.manifest.left_out = Some("a reason of many words ".repeat(9));
        for result in &mut report.results {
            result.subject.beside = beside.map(str::to_owned);
            result.subject.workload = "first".to_owned();
            (result.runs, result.errors) = (3, 1_000_000_000);
            result.ops_per_s *= scale;
            result.ops_per_s_max = result.ops_per_s * 3.0;
            let latency = result.latency_us.get_or_insert_default();
            latency.p99 = 1e7 * scale;
            result.cpu_ns_per_op.server = Some(100_000.0 * scale);
            result.generator_ns_per_op = Some(1234.5 * scale);
        }
        let table = Table(&report).to_string();
        for line in table.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}

/// Returns a report of one line: herd over tcp, with runs at these operations per second.
fn runs_at(rates: &[f64], latency: Latency) -> Report {
    let run = |ops_per_s: &f64| Run {
        ops_per_s: *ops_per_s,
        hit_ratio: Some(0.5),
        latency_us: Some(latency),
        ..Run::default()
    };
    let runs: Vec<Run> = rates.iter().map(run).collect();
    let mut report = report();
    let subject = report.results[1].subject.clone();
    report.results = vec![Outcome::of(subject, &runs)];
    report
}

#[test]
fn change_is_reported_with_the_range_of_the_runs() {
    let latency = |p99| Latency {
        p99,
        ..Latency::default()
    };
    let before = runs_at(&[100e3, 90e3, 110e3], latency(10.0));
    let mut now = runs_at(&[120e3, 121e3, 132e3], latency(10.0));
    let baseline: Report = serde_json::from_str(&before.to_json()).unwrap();
    now.results[0].subject.server = Some("another version".to_owned());
    let show = |report: &Report| {
        let (baseline, report) = (&baseline, report);
        Against { baseline, report }.to_string()
    };
    let text = show(&now);
    let words = |text: &str, figure: &str| -> Vec<String> {
        let line = text.lines().find(|line| line.contains(figure));
        let line = line.unwrap_or_else(|| panic!("{figure} in {text}"));
        line.split_whitespace().map(str::to_owned).collect()
    };
    // The medians: 121/100; the least ratio: 120/110; the largest: 132/90.
    let rate = words(&text, "kops/s");
    let expected = [
        "herd",
        "tcp",
        "kops/s",
        "100.00",
        "121.00",
        "+21.0",
        "%",
        "[+9.1..+46.7]",
        "*",
    ];
    assert_eq!(rate, expected, "{text}");
    let p99 = words(&text, "p99 us");
    assert_eq!(p99[5..], ["10.00", "+0.0", "%", "[+0.0..+0.0]"], "{text}");
    assert!(
        !text.contains("srv ns"),
        "unmeasured rows are omitted: {text}"
    );
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");

    let inside = show(&runs_at(&[105e3, 95e3], latency(10.0)));
    assert_eq!(words(&inside, "kops/s").last().unwrap(), "[-13.6..+16.7]");
    let one = show(&runs_at(&[105e3], latency(10.0)));
    assert_eq!(words(&one, "kops/s")[7..], ["[one", "run]"]);

    now.manifest.machine.libc_vectors = "avx512".to_owned();
    now.results[0].subject.keys += 1;
    let other = show(&now);
    assert!(
        other.contains("another machine: avx2, now avx512"),
        "{other}"
    );
    assert!(
        other.contains("herd tcp       not in the baseline"),
        "{other}"
    );
}

#[test]
fn json_has_the_figures_of_each_run() {
    let report = runs_at(&[100e3, 90e3], Latency::default());
    let json: Value = serde_json::from_str(&report.to_json()).unwrap();
    let rates: Vec<_> = json["results"][0]["per_run"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| run["ops_per_s"].as_f64().unwrap())
        .collect();
    assert_eq!(rates, [100e3, 90e3]);
    assert_eq!(json["manifest"]["libc_vectors"], "avx2");
}
