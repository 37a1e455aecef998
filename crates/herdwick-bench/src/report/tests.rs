use serde_json::Value;

use super::*;

fn report() -> Report {
    let subject = Subject {
        system: "herd".to_owned(),
        fabric: "tcp".to_owned(),
        word: Word::Soft.name().to_owned(),
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

/// The names that readers of schema 1 rely on.
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
fn schema_1_has_all_its_names() {
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
    for name in "mean p5 p50 p90 p95 p99 p999 max".split(' ') {
        assert!(latency[name].is_number(), "latency_us.{name}");
    }
    assert!(json["results"][0]["latency_us"].is_null());
    assert!(json["results"][1]["offered_per_s"].is_null());
}

#[test]
fn json_reads_back_as_it_was() {
    let report = report();
    let back: Report = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!(back, report);
    assert!(!back.is_sound());
}

#[test]
fn the_table_says_what_was_measured_and_what_is_doubtful() {
    let table = Table(&report()).to_string();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(
        lines[0],
        "herdwick 0.1.0 (abc), shm,soft; box: CPU, 2 CPUs, Linux 6.1"
    );
    assert!(lines[1].starts_with("1000 keys of 0 B"), "{table}");
    let tcp = lines
        .iter()
        .find(|line| line.contains("herd    tcp"))
        .unwrap();
    for cell in [
        "b 95%", "2 c50 p4", " 250 ", "99.80", "12.2", "40.0", "80.5", "300>310",
    ] {
        assert!(tcp.contains(cell), "{cell} in {table}");
    }
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
fn columns_line_up() {
    let table = Table(&report()).to_string();
    let grid: Vec<&str> = table.lines().skip(3).take(3).collect();
    assert!(
        grid.iter().all(|line| line.len() == grid[0].len()),
        "{table}"
    );
}
