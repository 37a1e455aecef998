//! Tests of `herdwick top --json` as a script runs it.

use std::{
    process::{Command, Output},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use crate::common::{Folder, Server};
use serde_json::Value;

fn top(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_herdwick"));
    command.arg("top").args(arguments).output().unwrap()
}

/// Bytes of each value stored between the samples.
const BYTES: usize = 1000;

#[test]
fn json_object_has_the_rates_between_two_samples() {
    let folder = Folder::new();
    let server = Server::start(&folder, 1);
    let enough = AtomicBool::new(false);
    let output = thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = server.client();
            assert_eq!(client.session().unwrap().transport(), "shm");
            let value = vec![b'v'; BYTES];
            while !enough.load(Relaxed) {
                client.set("k", &value[..]).unwrap();
                client.get("k").unwrap();
            }
        });
        let output = top(&["--json", "--interval", "500ms", "--server", &server.address]);
        enough.store(true, Relaxed);
        output
    });
    assert!(output.status.success(), "{output:?}");
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    let number = |name: &str| {
        object[name]
            .as_f64()
            .unwrap_or_else(|| panic!("{name}: {object}"))
    };
    assert!(
        number("sets_per_s") > 0.0 && number("gets_per_s") > 0.0,
        "{object}"
    );
    assert_eq!(number("hit_ratio"), 1.0);
    assert_eq!(number("items"), 1.0);
    // Traffic over shared memory is included: each value, and its key.
    assert!(
        number("read_bytes_per_s") >= number("sets_per_s") * BYTES as f64,
        "{object}"
    );
    assert!(
        number("written_bytes_per_s") >= number("gets_per_s") * BYTES as f64,
        "{object}"
    );
    assert!(
        object["fabrics"]["shm"]["requests_per_s"].as_f64() > Some(0.0),
        "{object}"
    );
    assert_eq!(object["workers"][0]["worker"], 0);
}

#[test]
fn top_without_terminal_or_server_fails_with_a_hint() {
    let complaint = top(&[]);
    assert_eq!(complaint.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&complaint.stderr).contains("--json"));
    let gone = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().to_string()
    };
    assert_eq!(top(&["--json", "--server", &gone]).status.code(), Some(3));
}

#[test]
fn hit_ratio_without_gets_is_null() {
    let folder = Folder::new();
    let server = Server::start(&folder, 1);
    let output = top(&["--json", "--interval", "0.1", "--server", &server.address]);
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(object["hit_ratio"].is_null(), "{object}");
}

/// Collects the numbers of an object, at any depth.
fn numbers(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::Number(number) => into.push(number.to_string()),
        Value::Array(values) => values.iter().for_each(|value| numbers(value, into)),
        Value::Object(values) => values.values().for_each(|value| numbers(value, into)),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

#[test]
fn numbers_have_three_decimals_at_most_and_counts_none() {
    let folder = Folder::new();
    let server = Server::start(&folder, 1);
    server.client().set("k", "v").unwrap();
    let output = top(&["--json", "--interval", "0.3", "--server", &server.address]);
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    for count in ["items", "bytes", "limit_bytes", "connections", "uptime_s"] {
        assert!(object[count].is_u64(), "{count}: {object}");
    }
    let mut all = Vec::new();
    numbers(&object, &mut all);
    let long = all.iter().find(|number| {
        let decimals = number
            .split_once('.')
            .map_or(0, |(_, decimals)| decimals.len());
        decimals > 3 || number.ends_with(".0")
    });
    assert_eq!(long, None, "{object}");
}
