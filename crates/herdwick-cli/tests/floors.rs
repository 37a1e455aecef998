//! Tests of the layering of crates (ARCHITECTURE.md, "Floors"): a crate depends only on crates of
//! floors left of its own, and forbids unsafe code unless listed.

use std::{collections::BTreeMap, process::Command};

/// Floors, left to right; crates on one floor do not depend on each other.
const FLOORS: &[&[&str]] = &[
    &["herdwick-mem"],
    &["herdwick-fabric"],
    &["herdwick-conformance"],
    &[
        "herdwick-shm",
        "herdwick-roce",
        "herdwick-verbs",
        "herdwick-mica",
        "herdwick-memcache",
    ],
    &["herdwick-roce-udp"],
    // A tool for tests, right of the provider whose library it replaces.
    &["herdwick-verbs-fake"],
    &["herdwick-herd"],
    &["herdwick-providers"],
    &["herdwick-server", "herdwick"],
    &["herdwick-bench"],
    &["herdwick-cli"],
];

/// Crates that may contain unsafe code.
const MAY_BE_UNSAFE: &[&str] = &[
    "herdwick-mem",
    "herdwick-roce-udp",
    "herdwick-verbs",
    "herdwick-verbs-fake",
];

fn floor(name: &str) -> usize {
    let found = FLOORS.iter().position(|floor| floor.contains(&name));
    found.unwrap_or_else(|| panic!("{name} has no floor: add it to FLOORS and ARCHITECTURE.md"))
}

fn packages() -> Vec<serde_json::Value> {
    let cargo = env!("CARGO");
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo metadata runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("is JSON");
    metadata["packages"]
        .as_array()
        .expect("has packages")
        .clone()
}

#[test]
fn a_crate_uses_only_what_stands_left_of_it() {
    let mut edges = BTreeMap::new();
    for package in packages() {
        let name = package["name"].as_str().expect("has a name").to_owned();
        for dependency in package["dependencies"]
            .as_array()
            .expect("has dependencies")
        {
            let other = dependency["name"].as_str().expect("has a name");
            let ships = dependency["kind"].is_null();
            if ships && other.starts_with("herdwick") {
                edges.insert(
                    (name.clone(), other.to_owned()),
                    floor(other) < floor(&name),
                );
            }
        }
    }
    assert!(edges.len() > 10, "the graph was read");
    let wrong: Vec<_> = edges
        .iter()
        .filter(|(_, right)| !**right)
        .map(|(edge, _)| edge)
        .collect();
    assert!(wrong.is_empty(), "these reach up or sideways: {wrong:?}");
}

#[test]
fn crates_that_need_no_unsafe_forbid_it() {
    for package in packages() {
        let name = package["name"].as_str().expect("has a name");
        for target in package["targets"].as_array().expect("has targets") {
            let kinds = target["kind"].as_array().expect("has kinds");
            let built = ["lib", "rlib", "cdylib", "bin"];
            if !kinds.iter().any(|kind| built.iter().any(|is| kind == is)) {
                continue;
            }
            let root = target["src_path"].as_str().expect("has a root");
            let text = std::fs::read_to_string(root).expect("root is readable");
            let forbids = text.contains("#![forbid(unsafe_code)]");
            assert_eq!(forbids, !MAY_BE_UNSAFE.contains(&name), "{root}");
        }
    }
}
