//! Tests of the `herdwick bench` binary: its help, short runs of each system, and its JSON.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use crate::common::{Clock, Folder, Server, memcached_is_installed};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open},
};
use serde_json::Value;

fn bench(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_herdwick"))
        .arg("bench")
        .args(arguments.split_whitespace())
        .output()
        .unwrap()
}

/// Returns the options that make these arguments a short run, as far as they have an effect.
fn brief(arguments: &str, seconds: f64) -> String {
    let system = arguments.split([' ', ',']).next();
    match system {
        _ if arguments.contains("--trace") => String::new(),
        Some("verbs") => format!("--seconds {seconds} --runs 1"),
        Some("cache") => "--keys 2K".to_owned(),
        Some("pilaf" | "clover") => format!("--seconds {seconds} --runs 1"),
        Some("farm") => format!("--keys 2K --seconds {seconds} --runs 1"),
        Some("idle") => format!("--seconds {seconds} --runs 1 --memory 64"),
        _ if arguments.contains("--server") => format!("--keys 2K --seconds {seconds} --runs 1"),
        _ => format!("--keys 2K --seconds {seconds} --runs 1 --memory 64"),
    }
}

/// Runs a tiny benchmark; returns its table and its JSON. A busy host may let little be done in so short a
/// time: then it takes longer.
fn tiny(name: &str, arguments: &str) -> (String, Value) {
    for seconds in [0.1, 1.0] {
        let (table, report) = run(name, arguments, seconds);
        let results = report["results"].as_array().unwrap();
        if !results.iter().any(was_cut_short) {
            return (table, report);
        }
    }
    run(name, arguments, 10.0)
}

/// Whether a run ended before a request of each kind was answered, or before the READs of a GET were posted.
fn was_cut_short(result: &Value) -> bool {
    let gets = result["get_share"].as_f64() > Some(0.0);
    let unread = result["reads_per_get"].as_f64() == Some(0.0);
    result["ops_per_s"].as_f64() == Some(0.0) || gets && (result["hit_ratio"].is_null() || unread)
}

fn run(name: &str, arguments: &str, seconds: f64) -> (String, Value) {
    let json: PathBuf = [env!("CARGO_TARGET_TMPDIR"), name].iter().collect();
    let output = bench(&format!(
        "{arguments} {} --json {}",
        brief(arguments, seconds),
        json.display()
    ));
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{complaint}");
    assert_eq!(complaint, "", "progress is for terminals");
    let report = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    fs::remove_file(json).unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    let wide = table.lines().find(|line| line.chars().count() > 80);
    assert_eq!(wide, None, "{table}");
    (table, report)
}

/// Asserts that every request was answered rightly and from the store.
fn is_sound(result: &Value, table: &str) {
    let wrong = (&result["errors"], &result["wrong_values"]);
    assert_eq!(wrong, (&0.into(), &0.into()), "{table}");
    assert_eq!(result["hit_ratio"], 1.0, "{table}");
    assert!(result["ops_per_s"].as_f64().unwrap() > 0.0, "{table}");
}

#[test]
fn help_lists_every_flag() {
    let help = String::from_utf8(bench("--help").stdout).unwrap();
    let flags = "fabric server workload get-share dist keys key-size value-size seconds clients \
        window connections idle-connections pipeline multiget rate runs json batch workers memory hdr against trace \
        quick verb transport direction all-to-all payload inline signaled postlist queue-pairs region echo level \
        accesses prefetch replicas";
    for flag in flags.split_whitespace() {
        assert!(help.contains(&format!("--{flag}")), "{flag}");
    }
    for system in [
        "store",
        "echo",
        "farm",
        "farm-var",
        "pilaf",
        "clover",
        "pilaf-em-opt",
        "farm-em",
        "farm-em-var",
        "herd",
        "hostile",
        "idle",
        "cache",
        "verbs",
    ] {
        assert!(help.contains(&format!("- {system}")), "{system}");
    }
}

#[test]
fn store_benchmark_reports_reads_and_writes() {
    let (table, report) = tiny("store", "store --dist uniform");
    let results = report["results"].as_array().unwrap();
    let workloads: Vec<_> = results.iter().map(|result| &result["workload"]).collect();
    assert_eq!(workloads, ["get", "put"]);
    assert_eq!(results[0]["hit_ratio"], 1.0);
    assert_eq!(results[0]["batch_mean"], 16.0);
    assert!(
        table.contains("get 100%") && table.contains("put 0%"),
        "{table}"
    );
}

#[test]
fn idle_benchmark_reports_cpu_time_and_wakeup_latency() {
    let (table, report) = tiny("idle", "idle");
    let results = report["results"].as_array().unwrap();
    let fabrics: Vec<_> = results.iter().map(|result| &result["fabric"]).collect();
    assert_eq!(fabrics, ["shm", "tcp"]);
    for result in results {
        assert_eq!(result["hit_ratio"], 1.0);
        assert!(result["latency_us"]["p99"].as_f64().unwrap() > 0.0);
        assert!(result["idle_cpu_ms"].as_f64().is_some(), "{result}");
    }
    assert!(
        table.contains("with 16 over shm and 100 over tcp attached"),
        "{table}"
    );
}

#[test]
fn cache_benchmark_sends_the_same_requests_to_both_servers() {
    if !memcached_is_installed() {
        return;
    }
    let (table, report) = tiny("cache", "cache");
    let results = report["results"].as_array().unwrap();
    let cells: Vec<_> = results
        .iter()
        .map(|r| {
            (
                r["workload"].as_str().unwrap(),
                r["room_percent"].as_u64().unwrap(),
            )
        })
        .collect();
    let expected = [10, 30].map(|room| ["zipf", "scan", "shift"].map(|work| [(work, room); 2]));
    assert_eq!(cells, expected.concat().concat());
    for result in results {
        // The least memory of either server has room for all 2,000 keys.
        assert_eq!(
            (&result["hit_ratio"], &result["items"]),
            (&1.0.into(), &2000.into())
        );
        assert_eq!(result["wrong_values"], 0);
        assert!(result["server_rss_mb"].as_f64().unwrap() > 1.0);
    }
    assert!(table.contains("B/item"), "{table}");
}

#[test]
fn trace_file_is_replayed_on_every_cache() {
    if !memcached_is_installed() {
        return;
    }
    let folder = Folder::new();
    let [oracle, csv] = ["t.oracleGeneral.bin", "t.csv"].map(|name| folder.0.join(name));
    // 1,000 keys, read four times in a cycle: there is room for all of them, so the second half
    // only hits.
    let requests = (0..4000_u32).map(|at| (at / 100, at % 1000, 100 + at % 1000));
    let record = |(second, key, size): (u32, u32, u32)| {
        let mut bytes = second.to_le_bytes().to_vec();
        bytes.extend(u64::from(key).to_le_bytes());
        bytes.extend(size.to_le_bytes());
        bytes.extend((-1_i64).to_le_bytes());
        bytes
    };
    let bytes: Vec<u8> = requests.clone().flat_map(record).collect();
    fs::write(&oracle, bytes).unwrap();
    let line = |(second, key, size)| format!("{second},{key},{size},get,3600\n");
    let text: String = requests.map(line).collect();
    fs::write(&csv, format!("time,key,size,op,ttl\n{text}")).unwrap();
    let shape = format!(
        "cache --quick --trace {},{}",
        oracle.display(),
        csv.display()
    );
    let (table, report) = tiny("trace", &shape);
    let results = report["results"].as_array().unwrap();
    let caches: Vec<_> = results
        .iter()
        .map(|result| result["system"].as_str().unwrap())
        .collect();
    let models = ["lru", "s3-fifo", "sieve", "belady"];
    let expected = [
        &["memcached", "segments"][..],
        &models,
        &["segments"],
        &models,
    ]
    .concat();
    assert_eq!(caches, expected, "memcached has no time but the host's");
    for result in results {
        let ratios = (&result["hit_ratio"], &result["byte_hit_ratio"]);
        assert_eq!(ratios, (&1.0.into(), &1.0.into()), "{result}");
        assert_eq!(result["wrong_values"], 0);
    }
    let rows = table.lines().filter(|line| line.contains("100.00")).count();
    assert_eq!(rows, 4, "{table}");
}

#[test]
fn tcp_benchmark_runs_against_herdwick() {
    let shapes = [
        "--workload a --connections 4",
        "--get-share 0.9 --connections 2 --pipeline 8 --multiget 10",
        "--workload d --clients 2 --connections 4 --rate 2K",
    ];
    for (index, shape) in shapes.into_iter().enumerate() {
        let (table, report) = tiny(
            &format!("tcp{index}"),
            &format!("herd --fabric tcp {shape}"),
        );
        let result = &report["results"][0];
        assert_eq!(
            (&result["system"], &result["fabric"]),
            (&"herd".into(), &"tcp".into())
        );
        assert_eq!(
            (&result["errors"], &result["wrong_values"]),
            (&0.into(), &0.into())
        );
        assert!(
            result["ops_per_s"].as_f64().unwrap() > 0.0,
            "{shape}: {table}"
        );
        assert!(
            result["hit_ratio"].as_f64().unwrap() > 0.9,
            "{shape}: {table}"
        );
        assert!(
            result["latency_us"]["p99"].as_f64().unwrap() > 0.0,
            "{shape}: {table}"
        );
        assert!(
            result["cpu_ns_per_op"]["client"].as_f64().unwrap() > 0.0,
            "{shape}: {table}"
        );
    }
}

#[test]
fn shm_benchmark_runs_beside_tcp_and_echo() {
    let (table, report) = tiny("shm", "echo,herd --workload a --clients 2 --connections 2");
    let results = report["results"].as_array().unwrap();
    let of = |name| -> Vec<_> { results.iter().map(|r| r[name].as_str().unwrap()).collect() };
    assert_eq!(of("system"), ["echo", "herd", "herd"]);
    assert_eq!(of("fabric"), ["shm", "shm", "tcp"]);
    assert_eq!(of("word"), ["shm", "shm", "soft"]);
    results.iter().for_each(|result| is_sound(result, &table));
    assert!(
        table.contains("herd over shm : herd over tcp = "),
        "{table}"
    );
}

#[test]
fn farm_benchmark_counts_reads_and_their_bytes() {
    for (fabric, word) in [("shm", "shm"), ("roce", "soft")] {
        let arguments =
            format!("farm,farm-var --fabric {fabric} --get-share 0.9 --clients 2 --window 16");
        let (table, report) = tiny(&format!("farm-{fabric}"), &arguments);
        let results = report["results"].as_array().unwrap();
        let of = |name| -> Vec<_> { results.iter().map(|r| r[name].as_str().unwrap()).collect() };
        assert_eq!(of("system"), ["farm", "farm-var"]);
        assert_eq!(of("word"), [word; 2]);
        results.iter().for_each(|result| is_sound(result, &table));
        for result in results {
            let reads = result["reads_per_get"].as_f64().unwrap();
            let bytes = result["read_bytes_per_get"].as_f64().unwrap();
            // Versions show torn lines.
            assert!(result["checksum_ns_per_get"].is_null(), "{table}");
            // READs are of six slots of 64 bytes, or of one line.
            let mean = bytes / reads;
            assert!((64.0..=384.5).contains(&mean), "{mean}: {table}");
        }
        assert!(table.contains("bytes a GET"), "{table}");
    }
    // The rings of the longest window and values.
    let (table, report) = tiny("farm-window", "farm --window 128 --value-size 1024");
    is_sound(&report["results"][0], &table);
}

/// A GET that has just begun has posted READs, and is not counted yet: the means are near the truth only
/// where many GETs ended.
const GETS_FOR_A_MEAN: f64 = 10_000.0;

/// The paper has 2.6 READs for each GET at 75 % load: of entries, and of the item.
#[test]
fn pilaf_benchmark_counts_reads_and_their_bytes() {
    let arguments = "pilaf --fabric shm --workload c --keys 30K --dist uniform --window 8";
    for seconds in [0.2, 2.0, 20.0] {
        let (table, report) = run("pilaf-shm", arguments, seconds);
        let gets = report["results"][0]["ops_per_s"].as_f64().unwrap() * seconds;
        if gets < GETS_FOR_A_MEAN {
            continue;
        }
        let (reads, bytes) = reads_of_pilaf(&report, &table);
        assert!((2.5..2.7).contains(&reads), "{table}");
        let expected = 32.0 * (reads - 1.0) + 48.0;
        assert!((bytes / expected - 1.0).abs() < 0.01, "{table}");
        return;
    }
}

#[test]
fn pilaf_benchmark_runs_over_roce_with_puts() {
    let arguments = "pilaf --fabric roce --workload a --keys 2K --clients 2 --window 16";
    let (table, report) = tiny("pilaf-roce", arguments);
    assert_eq!(report["results"][0]["word"], "soft");
    reads_of_pilaf(&report, &table);
    // The longest value that Pilaf has.
    let (table, report) = tiny("pilaf-64k", "pilaf --keys 100 --value-size 65536");
    is_sound(&report["results"][0], &table);
    let refused = bench("pilaf --keys 100 --value-size 65537");
    let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        complaint.contains("Pilaf has values up to 65536 bytes"),
        "{complaint}"
    );
}

/// A GET READs an entry of 128 bytes and a shortcut, and more only beside PUTs.
#[test]
fn clover_benchmark_runs_with_and_without_puts() {
    for fabric in ["shm", "roce"] {
        let arguments = format!("clover --fabric {fabric} --keys 2K --clients 2 --window 8");
        let (table, report) = tiny("clover-gets", &format!("{arguments} --workload c"));
        let result = &report["results"][0];
        is_sound(result, &table);
        let bytes = result["read_bytes_per_get"].as_f64().unwrap();
        let reads = result["reads_per_get"].as_f64().unwrap();
        assert!((67.9..68.1).contains(&(bytes / reads)), "{table}");
        let arguments = format!("{arguments} --workload a --replicas 2");
        let (table, report) = tiny("clover-puts", &arguments);
        is_sound(&report["results"][0], &table);
        assert_eq!(report["manifest"]["knobs"]["replicas"], 2);
    }
    // The longest value that Clover has with keys of 16 bytes.
    let (table, report) = tiny("clover-32k", "clover --keys 100 --value-size 32728");
    is_sound(&report["results"][0], &table);
    for (wrong, cause) in [
        (
            "clover --keys 100 --value-size 32729",
            "up to 32744 together",
        ),
        ("clover --replicas 9", "--replicas is 1 to 8"),
        ("clover --replicas 0", "--replicas is 1 to 8"),
        ("pilaf --replicas 2", "--replicas"),
    ] {
        let refused = bench(wrong);
        let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(complaint.contains(cause), "{wrong}: {complaint}");
        assert_eq!(refused.status.code(), Some(2), "{wrong}: {complaint}");
    }
}

/// Returns READs and bytes a GET.
fn reads_of_pilaf(report: &Value, table: &str) -> (f64, f64) {
    let result = &report["results"][0];
    is_sound(result, table);
    assert!(table.contains("bytes a GET"), "{table}");
    let reads = result["reads_per_get"].as_f64().unwrap();
    let bytes = result["read_bytes_per_get"].as_f64().unwrap();
    let checksums = result["checksum_ns_per_get"].as_f64().unwrap();
    assert!(
        checksums > 1.0 && table.contains("; their checksums take "),
        "{table}"
    );
    // READs are of entries of 32 bytes, and of items of 48.
    assert!((31.9..48.1).contains(&(bytes / reads)), "{table}");
    (reads, bytes)
}

#[test]
fn roce_benchmark_runs_beside_echo_and_plain_datagrams() {
    let arguments = "echo,herd --fabric roce --bare --clients 2 --workers 1 --window 16";
    let (table, report) = tiny("roce", arguments);
    let results = report["results"].as_array().unwrap();
    let of = |name| -> Vec<_> { results.iter().map(|r| r[name].as_str().unwrap()).collect() };
    assert_eq!(of("system"), ["echo", "herd", "bare"]);
    assert_eq!(of("fabric"), ["roce"; 3]);
    assert_eq!(of("word"), ["soft"; 3]);
    results.iter().for_each(|result| is_sound(result, &table));
    assert!(
        table.contains("herd over roce : bare over roce = "),
        "{table}"
    );
}

#[test]
fn server_without_shm_is_measured_over_tcp_and_the_reason_is_reported() {
    let folder = Folder::new();
    let server = Server::run(&folder, 1, &["-p", "0", "--shm", "off"]);
    let (table, report) = tiny("left-out", &format!("herd --server {}", server.address));
    let results = report["results"].as_array().unwrap().iter();
    let fabrics: Vec<_> = results.map(|result| &result["fabric"]).collect();
    assert_eq!(fabrics, ["tcp"]);
    let reason = "left out: no shm to this server: the server offers no fabric";
    assert!(table.contains(reason), "{table}");
}

#[test]
fn a_server_on_a_unix_socket_is_measured() {
    let folder = Folder::new();
    let server = Server::start_at(&folder, 1);
    let (table, report) = tiny("unix.json", &format!("--server {}", server.address));
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 2, "{table}");
    results.iter().for_each(|result| is_sound(result, &table));
}

#[test]
fn shm_benchmark_runs_with_one_outstanding_and_as_open_loop() {
    for (index, shape) in ["--window 1", "--rate 5K --value-size 500"]
        .iter()
        .enumerate()
    {
        let (table, report) = tiny(&format!("line{index}"), &format!("--fabric shm {shape}"));
        let result = &report["results"][0];
        is_sound(result, &table);
        assert!(
            result["latency_us"]["p50"].as_f64().unwrap() > 0.0,
            "{shape}: {table}"
        );
    }
}

#[test]
fn hostile_benchmark_compares_a_hostile_client_with_a_busy_one() {
    let (table, report) = tiny("hostile", "hostile --window 16 --workers 2");
    let results = report["results"].as_array().unwrap();
    let beside: Vec<_> = results.iter().map(|result| &result["beside"]).collect();
    assert_eq!(beside, ["scribbler", "spinner"]);
    results.iter().for_each(|result| is_sound(result, &table));
    assert!(
        table.contains("beside a scribbler : hostile over shm beside a spinner = "),
        "{table}"
    );
}

#[test]
fn idle_connections_are_reported_separately() {
    let arguments = "herd --fabric tcp --connections 4 --workers 2 --idle-connections 1500";
    let (table, report) = tiny("crowd", arguments);
    let results = report["results"].as_array().unwrap();
    assert_eq!(results[0]["beside"], Value::Null);
    assert_eq!(results[1]["beside"], "crowd");
    for result in results {
        assert_eq!(result["hit_ratio"], 1.0);
        assert!(result["server_rss_mb"].as_f64().unwrap() < 128.0, "{table}");
    }
    assert!(
        table.contains("crowd: with 1500 idle connections"),
        "{table}"
    );
}

/// Runs a tiny benchmark until every line has operations: a thread that gets no CPU for as long as a run
/// has none in it.
fn busy(name: &str, arguments: &str) -> (String, Value) {
    let is_busy = |(_, report): &(String, Value)| {
        let mut results = report["results"].as_array().unwrap().iter();
        results.all(|result| result["ops_per_s"].as_f64().unwrap() > 0.0)
    };
    let mut tries = (0..20).map(|_| tiny(name, arguments));
    tries.find(is_busy).expect("operations in every line")
}

#[test]
fn verbs_are_measured_at_every_point_of_a_sweep() {
    let lists = "--verb write,read --transport rc,uc --payload 16,256 --signaled 4 --window 8";
    let (table, report) = busy("verbs", &format!("verbs {lists}"));
    let results = report["results"].as_array().unwrap();
    let point = |result: &Value| {
        let verb = &result["verb"];
        let name = |field: &str| verb[field].as_str().unwrap().to_owned();
        (
            name("verb"),
            name("transport"),
            verb["payload"].as_u64().unwrap(),
        )
    };
    let points: Vec<_> = results.iter().map(point).collect();
    let expected = [("write", "rc"), ("write", "uc"), ("read", "rc")];
    let expected = expected.map(|(verb, transport)| {
        [16, 256].map(|payload| (verb.to_owned(), transport.to_owned(), payload))
    });
    assert_eq!(points, expected.concat(), "Table 1 has no READ over UC");
    assert!(table.contains("left out: read uc"), "{table}");
    for result in results {
        assert_eq!(result["errors"], 0, "{table}");
        assert!(result["ops_per_s"].as_f64().unwrap() > 0.0, "{table}");
        assert!(
            result["latency_us"]["p50"].as_f64().unwrap() > 0.0,
            "{table}"
        );
        assert!(
            result["cpu_ns_per_op"]["server"].as_f64().is_some(),
            "{table}"
        );
        assert!(result["cpu_ns_per_op"]["client"].as_f64().unwrap() > 0.0);
        assert!(result["generator_ns_per_op"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn verbs_run_over_the_software_rnic() {
    let lists = "--verb send,write,read --transport uc,rc --fabric roce --window 8";
    let (table, report) = busy("verbs-soft", &format!("verbs {lists}"));
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 5, "{table}");
    for result in results {
        assert_eq!(
            (&result["word"], &result["errors"]),
            (&"soft".into(), &0.into())
        );
        assert!(result["ops_per_s"].as_f64().unwrap() > 0.0, "{table}");
    }
}

#[test]
fn designs_of_an_echo_are_measured_with_each_optimization() {
    let lists = "--echo write-write,write-send --level basic,inlined --seconds 0.1 --runs 1";
    let json: PathBuf = [env!("CARGO_TARGET_TMPDIR"), "designs"].iter().collect();
    let output = bench(&format!("verbs {lists} --json {}", json.display()));
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{complaint}");
    let report: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let results = report["results"].as_array().unwrap();
    let of = |result: &Value| {
        let verb = &result["verb"];
        (verb["verb"].clone(), verb["level"].clone())
    };
    let expected = ["write-write", "write-send"]
        .map(|design| ["basic", "inlined"].map(|level| (Value::from(design), Value::from(level))));
    assert_eq!(
        results.iter().map(of).collect::<Vec<_>>(),
        expected.concat()
    );
}

#[test]
fn lists_make_a_sweep_in_one_report() {
    let (table, report) = tiny("sweep", "herd --fabric shm --value-size 16,64 --window 1,4");
    let results = report["results"].as_array().unwrap();
    let point = |result: &Value| {
        let number = |name: &str| result[name].as_u64().unwrap();
        (number("value_bytes"), number("window"))
    };
    let points: Vec<_> = results.iter().map(point).collect();
    assert_eq!(points, [(16, 1), (16, 4), (64, 1), (64, 4)]);
    results.iter().for_each(|result| is_sound(result, &table));
    assert_eq!(table.matches("values of 64 B").count(), 2, "{table}");
}

/// Parses the columns of a `.hgrm` file: value, quantile, count.
fn percentiles(path: &Path) -> Vec<[f64; 3]> {
    let text = fs::read_to_string(path).unwrap();
    fs::remove_file(path).unwrap();
    let body = text
        .lines()
        .skip(1)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let columns = |line: &str| {
        let numbers: Vec<f64> = line
            .split_whitespace()
            .map(|word| word.parse().unwrap())
            .collect();
        [numbers[0], numbers[1], numbers[2]]
    };
    body.map(columns).collect()
}

#[test]
fn hdr_files_are_written_for_each_run_and_match_the_report() {
    let folder = Folder::new();
    let hdr = folder.0.join("all.hgrm");
    let shape = format!("--connections 2 --hdr {}", hdr.display());
    let (_, report) = tiny("hdr", &format!("herd {shape}"));
    let names = fs::read_to_string(&hdr).unwrap();
    let results = report["results"].as_array().unwrap();
    assert_eq!(names.lines().count(), results.len());
    for (name, result) in names.lines().zip(results) {
        let fabric = result["fabric"].as_str().unwrap();
        assert!(name.ends_with(&format!("all.hgrm.herd-{fabric}")), "{name}");
        let lines = percentiles(name.as_ref());
        let at = |quantile: f64| lines.iter().find(|line| line[1] >= quantile).unwrap()[0];
        let told = &result["latency_us"];
        assert_eq!(at(0.5), told["p50"].as_f64().unwrap(), "one run: the same");
        assert_eq!(at(1.0), told["max"].as_f64().unwrap());
        assert!(lines.last().unwrap()[2] > 0.0);
    }
    let (_, report) = tiny("hdr-one", &format!("herd --fabric tcp {shape}"));
    let max = report["results"][0]["latency_us"]["max"].as_f64().unwrap();
    assert_eq!(percentiles(&hdr).last().unwrap()[0], max);
}

#[test]
fn report_is_compared_with_an_earlier_one() {
    let folder = Folder::new();
    let before = folder.0.join("before.json");
    let shape = "store --keys 2K --seconds 0.05 --memory 64 --runs 2";
    let written = bench(&format!("{shape} --json {}", before.display()));
    assert!(written.status.success());
    let compared = bench(&format!("{shape} --against {}", before.display()));
    let text = String::from_utf8(compared.stdout).unwrap();
    let report: Value = serde_json::from_slice(&fs::read(&before).unwrap()).unwrap();
    let lines = text
        .lines()
        .filter(|line| line.starts_with("store") && line.contains("kops/s"));
    let rates = report["results"].as_array().unwrap();
    assert_eq!(lines.clone().count(), rates.len(), "{text}");
    for (line, result) in lines.zip(rates) {
        let rate = result["ops_per_s"].as_f64().unwrap() / 1000.0;
        let told: f64 = line.split_whitespace().nth(2).unwrap().parse().unwrap();
        assert!((told - rate).abs() < 0.01, "{line}: {rate}");
        assert!(line.contains(".."), "no range of two runs: {line}");
    }
    let other = bench(&format!(
        "{shape} --batch 8 --value-size 40 --against {}",
        before.display()
    ));
    let text = String::from_utf8(other.stdout).unwrap();
    assert!(text.contains("not in the baseline"), "{text}");
}

#[test]
fn every_figure_has_the_cost_of_the_generator_beside_it() {
    let (_, store) = tiny("cost-store", "store");
    let (_, herd) = tiny("cost", "echo,herd --fabric shm,tcp --connections 2");
    let results = [&store, &herd].map(|report| report["results"].as_array().unwrap().clone());
    for result in results.concat() {
        let ns = result["generator_ns_per_op"].as_f64().unwrap();
        let share = result["generator_share"].as_f64().unwrap();
        let rate = result["ops_per_s"].as_f64().unwrap();
        assert!(ns > 0.0, "{result}");
        assert!(
            (share - ns * rate / 1e9).abs() < 1e-3 + share * 1e-3,
            "{result}"
        );
    }
    let vectors = store["manifest"]["libc_vectors"].as_str().unwrap();
    assert!(["avx512", "avx2", "sse2", "unknown"].contains(&vectors));
}

/// Returns the processes that `parent` has started, with their command lines.
fn children(parent: u32) -> Vec<(Pid, String)> {
    let tasks = fs::read_dir(format!("/proc/{parent}/task")).unwrap();
    let of_task = |task: &Path| fs::read_to_string(task.join("children")).unwrap_or_default();
    let numbers: String = tasks.map(|task| of_task(&task.unwrap().path())).collect();
    let numbers = numbers.split_whitespace().map(|pid| pid.parse().unwrap());
    let command = |pid: i32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let children = numbers.map(|pid| (Pid::from_raw(pid).unwrap(), command(pid)));
    children.collect()
}

/// Returns whether a process has a handler for SIGHUP: before that, the signal ends it.
fn catches_hangup(pid: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()));
    let status = status.unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & 1 << (Signal::HUP.as_raw() - 1) != 0)
}

/// Kills a benchmark that has started a server and its guard, and waits for both to end. If its
/// terminal `hangs_up`, its process group gets SIGHUP before.
fn kill_with_its_server(hangs_up: bool, arguments: &str, is_server: impl Fn(&str) -> bool) {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_herdwick"))
        .arg("bench")
        .args(arguments.split_whitespace())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap();
    let clock = Clock::start();
    let ends = loop {
        let children = children(bench.id());
        let find = |is: &dyn Fn(&str) -> bool| {
            let found = children.iter().find(|(_, command)| is(command));
            found.map(|(pid, _)| *pid)
        };
        let guard = |command: &str| command.contains("bench-guard");
        if let (Some(server), Some(guard)) = (find(&is_server), find(&guard))
            && (!hangs_up || catches_hangup(server))
        {
            let ends = [server, guard].map(|pid| pidfd_open(pid, PidfdFlags::empty()));
            if let [Ok(server), Ok(guard)] = ends {
                break [server, guard];
            }
        }
        assert!(
            bench.try_wait().unwrap().is_none(),
            "the benchmark has ended"
        );
        clock.hurry("a server and its guard");
    };
    if hangs_up {
        // Without effect where the tests run under nohup(1), so it is killed as well.
        kill_process_group(Pid::from_child(&bench), Signal::HUP).unwrap();
    }
    bench.kill().unwrap();
    bench.wait().unwrap();
    for end in ends {
        let mut ended = [PollFd::new(&end, PollFlags::IN)];
        poll(&mut ended, Some(&A_MINUTE)).unwrap();
        assert!(!ended[0].revents().is_empty(), "it outlives the benchmark");
    }
}

const A_MINUTE: Timespec = Timespec {
    tv_sec: 60,
    tv_nsec: 0,
};

#[test]
fn killed_benchmark_leaves_no_server() {
    for hangs_up in [false, true] {
        let herd = "herd --fabric tcp --keys 1000 --seconds 600";
        kill_with_its_server(hangs_up, herd, |command| command.contains("serve\0"));
    }
}

#[test]
fn killed_benchmark_leaves_no_memcached() {
    if !memcached_is_installed() {
        return;
    }
    for hangs_up in [false, true] {
        kill_with_its_server(hangs_up, "cache --keys 2M", |command| {
            command.starts_with("memcached\0")
        });
    }
}

#[test]
fn errors_name_what_to_type() {
    for (arguments, hint) in [
        ("--dist gauss", "zipf:THETA"),
        ("--fabric carrier-pigeon", "shm, verbs, roce, tcp"),
        ("--keys many", "1000000, 1M or 16K"),
        ("store,herd", "`herdwick bench store`"),
        ("echo --window 3", "power of two"),
        ("echo --bare", "--fabric roce"),
        (
            "--fabric shm --value-size 8K --seconds 0.1 --keys 1K",
            "--fabric tcp",
        ),
        ("--pipeline 0", "--pipeline must be at least 1"),
        ("--server nowhere:http", "HOST:PORT"),
        ("--server nowhere.invalid:1", "name another with --server"),
        ("--fabric shm --window 300 --keys 1K", "power of two"),
        ("--json /nowhere/file", "--json"),
        ("--hdr /nowhere/file", "--hdr"),
        ("--against /nowhere/file", "--against"),
        ("cache --trace no-such", "one of zipf-900k"),
        ("cache --trace /dev/null", "too few requests"),
        ("cache --quick", "--trace"),
        ("--against /dev/null", "no report that --json has written"),
        ("--keys 1M --key-size 2", "raise --key-size"),
        (
            "--server 127.0.0.1:9 --workers 2",
            "--workers is for a server that the benchmark starts",
        ),
        ("--server 127.0.0.1:9 --memory 64", "leave one of them out"),
        (
            "store --window 8",
            "--window has no effect on store, only on",
        ),
        (
            "herd --batch 8",
            "--batch has no effect on herd, only on store",
        ),
        (
            "store --server 127.0.0.1:9",
            "--server has no effect on store",
        ),
        ("cache --memory 64", "--memory has no effect on cache"),
        ("idle --keys 2K", "--keys has no effect on idle"),
        (
            "herd --trace all",
            "--trace has no effect on herd, only on cache",
        ),
        ("cache --trace all --keys 2K", "those of the traces"),
        (
            "herd --payload 16",
            "--payload has no effect on herd, only on verbs",
        ),
        ("verbs --keys 2K", "--keys has no effect on verbs"),
        ("verbs --verb read --transport uc", "Table 1"),
        ("verbs --verb pull", "send, write, read"),
        ("verbs --echo pull", "send-send"),
        ("verbs --echo write-send --verb read", "cannot be used with"),
        ("verbs --echo write-send --payload 12", "multiple of 8"),
        ("verbs --level basic", "--echo"),
        ("verbs --window 5000", "--window is 1 to 1024"),
        ("verbs --payload 0", "--payload is 1 to"),
        ("verbs,echo", "`herdwick bench verbs`"),
        ("--fabric shm --pipeline 2", "--pipeline is for tcp"),
        ("--fabric tcp --window 2", "--window is for shm"),
    ] {
        let output = bench(arguments);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{arguments}");
        assert!(complaint.contains(hint), "{arguments}: {complaint}");
    }
}
