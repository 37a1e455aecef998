//! Tests of the layering of crates (ARCHITECTURE.md, "Layers"): a crate depends only on crates of
//! layers left of its own, and forbids unsafe code unless listed; no system names a provider, and
//! no provider a system.

mod shipped;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Layers, left to right; crates in one layer do not depend on each other.
const FLOORS: &[&[&str]] = &[
    &["herdwick-mem", "herdwick-request", "herdwick-check"],
    &["herdwick-layout"],
    &["herdwick-fabric"],
    &["herdwick-sim"],
    &["herdwick-conformance"],
    &[
        "herdwick-shm",
        "herdwick-roce",
        "herdwick-verbs",
        "herdwick-mica",
        "herdwick-slab",
        "herdwick-memcache",
    ],
    &["herdwick-roce-udp"],
    // A tool for tests, right of the provider whose library it replaces.
    &["herdwick-verbs-fake"],
    &["herdwick-herd", "herdwick-read"],
    &["herdwick-pilaf", "herdwick-farm", "herdwick-clover"],
    &["herdwick-hkvs"],
    &["herdwick-providers"],
    // A server is a client of its secondary store.
    &["herdwick"],
    &["herdwick-server"],
    &["herdwick-c", "herdwick-bench", "herdwick-sim-bench"],
    &["herdwick-figures"],
    &["herdwick-cli"],
];

/// Crates that may contain unsafe code.
const MAY_BE_UNSAFE: &[&str] = &[
    "herdwick-mem",
    "herdwick-roce-udp",
    "herdwick-verbs",
    "herdwick-verbs-fake",
    "herdwick-c",
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
fn crate_depends_only_on_lower_layers() {
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

/// What a client needs to know of the store, `herdwick-layout` has.
#[test]
fn clients_do_not_link_the_store() {
    let mut links: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in packages() {
        let name = package["name"].as_str().expect("has a name").to_owned();
        let dependencies = package["dependencies"].as_array();
        for dependency in dependencies.expect("has dependencies") {
            if dependency["kind"].is_null() {
                let other = dependency["name"].as_str().expect("has a name");
                links.entry(name.clone()).or_default().push(other.into());
            }
        }
    }
    for client in [
        "herdwick",
        "herdwick-c",
        "herdwick-herd",
        "herdwick-memcache",
    ] {
        let mut linked = vec![client.to_owned()];
        let mut next = 0;
        while let Some(name) = linked.get(next).cloned() {
            for other in links.get(&name).into_iter().flatten() {
                if !linked.contains(other) {
                    linked.push(other.clone());
                }
            }
            next += 1;
        }
        assert!(linked.len() > 2, "the graph was read");
        for store in ["herdwick-mica", "herdwick-slab"] {
            let links_it = linked.iter().any(|name| name == store);
            assert!(!links_it, "{client} links {linked:?}");
        }
    }
}

#[test]
fn crates_without_unsafe_forbid_it() {
    for package in packages() {
        let name = package["name"].as_str().expect("has a name");
        for target in package["targets"].as_array().expect("has targets") {
            let kinds = target["kind"].as_array().expect("has kinds");
            let built = ["lib", "rlib", "cdylib", "bin"];
            if !kinds.iter().any(|kind| built.iter().any(|is| kind == is)) {
                continue;
            }
            let root = target["src_path"].as_str().expect("has a root");
            let text = fs::read_to_string(root).expect("root is readable");
            let forbids = text.contains("#![forbid(unsafe_code)]");
            assert_eq!(forbids, !MAY_BE_UNSAFE.contains(&name), "{root}");
        }
    }
}

/// Returns the names of the providers, and their crates, from the list in `herdwick-providers`.
fn providers() -> (Vec<String>, Vec<String>) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../herdwick-providers/src/lib.rs");
    let text = fs::read_to_string(file).expect("is readable");
    let (_, list) = text.split_once("$make! {").expect("there is a list");
    let rows = list.lines().filter(|line| line.contains("::"));
    let row = |line: &str| {
        let (_, row) = line.split_once(": ")?;
        let (module, device) = row.split_once(", ")?;
        let (from, _) = device.split_once("::")?;
        Some((module.to_owned(), from.replace('_', "-")))
    };
    let rows: Vec<_> = rows.map_while(row).collect();
    assert!(rows.len() > 2, "the list was read");
    rows.into_iter().unzip()
}

/// Other names of providers, and of what one of them stands on.
const SYNONYMS: [&str; 6] = [
    "rocev2",
    "rdma",
    "ibverbs",
    "libibverbs",
    "infiniband",
    "memfd",
];

/// The crates that take providers from the table in `herdwick-providers` only.
const SYSTEMS: [&str; 11] = [
    "herdwick-read",
    "herdwick-farm",
    "herdwick-pilaf",
    "herdwick-clover",
    "herdwick-herd",
    "herdwick-server",
    "herdwick",
    "herdwick-c",
    "herdwick-bench",
    "herdwick-sim-bench",
    "herdwick-figures",
];

/// Lines of these crates that name a provider: the end of the file's path, and what they contain.
const MAY_NAME: &[(&str, &str)] = &[
    // The baseline of the software RNIC: the same packets, through the same sockets, without it.
    ("herdwick-bench/src/lines/bare.rs", "herdwick_roce"),
    ("herdwick-bench/src/config.rs", "pub const BARE"),
    // Writes random words into a lease's memory files.
    ("herdwick-bench/src/hostile/lease.rs", "shm::ShmDevice"),
    ("herdwick-bench/src/hostile/lease.rs", "<ShmDevice>"),
    ("herdwick-bench/src/hostile/lease.rs", "ShmDevice::client()"),
    ("herdwick-bench/src/hostile/lease.rs", "Fabric::Shm"),
    // A class of figures, in manifests.
    ("herdwick-bench/src/config.rs", "FigureClass::Shm"),
    ("herdwick-bench/src/report/mod.rs", "Shm,"),
    ("herdwick-bench/src/report/mod.rs", "Self::Shm => \"shm\""),
    // The option of the lease socket's directory.
    ("herdwick-server/src/settings/error.rs", "(--shm-dir)"),
    // The operations of RDMA, not the provider.
    ("herdwick-sim-bench/src/lib.rs", "verbs::Outcome"),
    ("herdwick-sim-bench/src/run.rs", "verbs::{Outcome"),
    ("herdwick-figures/src/sim.rs", "verbs::{Direction"),
    ("herdwick-figures/src/catalogue.rs", "Latency of verbs"),
    ("herdwick-figures/src/catalogue.rs", "throughput of verbs"),
    ("herdwick-figures/src/run.rs", "let verbs = ["),
    ("herdwick-figures/src/run.rs", "in verbs {"),
];

/// Returns the source files below `folder` without tests, each without its test modules.
fn sources(folder: &Path, into: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).expect("is readable") {
        let path = entry.expect("is an entry").path();
        let stem = path.file_stem().expect("has a name");
        if stem == "tests" || stem == "random_schedules" || stem == "schedules" {
            continue;
        }
        if path.is_dir() {
            sources(&path, into);
        } else {
            let text = fs::read_to_string(&path).expect("is readable");
            into.push((path, shipped::shipped(&text).to_owned()));
        }
    }
}

fn sources_of(name: &str) -> Vec<(PathBuf, String)> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    sources(&crates.join(name).join("src"), &mut files);
    assert!(!files.is_empty(), "the sources of {name} were found");
    files
}

/// Returns the words of the identifiers and strings in a line of code, in lower case: of
/// `roce_device` and `RoceDevice` two each, and that name as a whole.
fn words(line: &str) -> Vec<String> {
    let code = line.split("//").next().unwrap_or_default();
    let mut words = Vec::new();
    for name in code.split(|c: char| !c.is_alphanumeric()) {
        words.push(name.to_lowercase());
        let mut before = ' ';
        for letter in name.chars() {
            if before == ' ' || letter.is_uppercase() && before.is_lowercase() {
                words.push(String::new());
            }
            if let Some(word) = words.last_mut() {
                word.extend(letter.to_lowercase());
            }
            before = letter;
        }
    }
    words
}

#[test]
fn words_are_found_in_identifiers_strings_and_options() {
    let found = |line: &str| words(line).iter().any(|word| word == "roce");
    for line in [
        "RoceDevice",
        "use herdwick_roce_udp::x",
        "offer.roce",
        "\"roce\"",
        "ROCE_PORT",
        "Fabric::Roce",
        "\"RoCE\"",
        "\"do without (--roce off)\"",
    ] {
        assert!(found(line), "{line}");
    }
    for line in ["process", "// roce", "proceed"] {
        assert!(!found(line), "{line}");
    }
}

#[test]
fn list_of_providers_is_read() {
    let (names, crates) = providers();
    assert!(names.contains(&"roce".to_owned()), "{names:?}");
    assert!(
        crates.contains(&"herdwick-roce-udp".to_owned()),
        "{crates:?}"
    );
}

#[test]
fn no_system_names_a_provider() {
    let (mut named, mut used) = (Vec::new(), vec![false; MAY_NAME.len()]);
    let (providers, _) = providers();
    let names = |word: &String| providers.contains(word) || SYNONYMS.contains(&word.as_str());
    for (path, text) in SYSTEMS.iter().flat_map(|name| sources_of(name)) {
        for line in text.lines().filter(|line| words(line).iter().any(names)) {
            let excused =
                |&(file, part): &(&str, &str)| path.ends_with(file) && line.contains(part);
            match MAY_NAME.iter().position(excused) {
                Some(index) => used[index] = true,
                None => named.push(format!("{}: {}", path.display(), line.trim())),
            }
        }
    }
    assert!(named.is_empty(), "{named:#?}");
    let unused: Vec<_> = MAY_NAME
        .iter()
        .zip(used)
        .filter(|(_, used)| !used)
        .collect();
    assert!(unused.is_empty(), "no such lines: {unused:#?}");
}

/// Systems run on simulated RNICs as they are: none depends on the simulator, or mentions it.
#[test]
fn no_system_knows_the_simulator() {
    let measuring = ["herdwick-bench", "herdwick-sim-bench", "herdwick-figures"];
    let systems = SYSTEMS.iter().filter(|name| !measuring.contains(name));
    for package in packages() {
        let name = package["name"].as_str().expect("has a name");
        let dependencies = package["dependencies"].as_array();
        let ships = |dependency: &&serde_json::Value| {
            dependency["kind"].is_null() && dependency["name"] == "herdwick-sim"
        };
        let depends = dependencies
            .expect("has dependencies")
            .iter()
            .any(|d| ships(&d));
        assert!(!depends || !systems.clone().any(|s| *s == name), "{name}");
    }
    for (path, text) in systems.flat_map(|name| sources_of(name)) {
        let mut words = text.split(|c: char| !c.is_alphanumeric());
        let about = |word: &str| {
            let word = word.to_lowercase();
            ["sim", "simulator", "simulated", "simulation"].contains(&word.as_str())
        };
        let found = words.find(|word| about(word));
        assert_eq!(found, None, "{}", path.display());
    }
}

/// What systems are called, besides words that providers use in their plain meaning.
const SYSTEM_NAMES: [&str; 7] = [
    "herd",
    "pilaf",
    "clover",
    "hkvs",
    "mica",
    "memcached",
    "memcache",
];

/// In a provider's source the words "HERD paper" stand for the paper, of which Table 1 says what a
/// transport carries; nothing is named for a system, in comments neither.
#[test]
fn no_provider_names_a_system() {
    let (_, mut crates) = providers();
    // The engine below a provider.
    crates.push("herdwick-roce".to_owned());
    for (path, text) in crates.iter().flat_map(|name| sources_of(name)) {
        let text = text.replace("HERD paper", "paper").to_lowercase();
        let mut words = text.split(|c: char| !c.is_alphanumeric());
        let named = words.find(|word| SYSTEM_NAMES.contains(word));
        assert_eq!(named, None, "{}", path.display());
    }
}
