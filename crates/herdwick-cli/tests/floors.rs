//! Tests of the layering of crates (ARCHITECTURE.md, "Layers"): a crate depends only on crates of
//! layers left of its own, and forbids unsafe code unless listed; no system names a provider, and
//! no provider a system.

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
        "herdwick-memcache",
    ],
    &["herdwick-roce-udp"],
    // A tool for tests, right of the provider whose library it replaces.
    &["herdwick-verbs-fake"],
    &["herdwick-herd", "herdwick-read"],
    &["herdwick-pilaf", "herdwick-farm", "herdwick-clover"],
    &["herdwick-providers"],
    &["herdwick-server", "herdwick"],
    &["herdwick-bench", "herdwick-sim-bench"],
    &["herdwick-figures"],
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
    for client in ["herdwick", "herdwick-herd", "herdwick-memcache"] {
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
        let store = "herdwick-mica".to_owned();
        assert!(!linked.contains(&store), "{client} links {linked:?}");
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

/// What providers are called.
const PROVIDERS: [&str; 3] = ["shm", "roce", "verbs"];

/// The crates that take providers from the table in `herdwick-providers` only.
const SYSTEMS: [&str; 8] = [
    "herdwick-read",
    "herdwick-farm",
    "herdwick-pilaf",
    "herdwick-clover",
    "herdwick-herd",
    "herdwick-server",
    "herdwick",
    "herdwick-bench",
];

/// Files of these crates that name providers.
const MAY_NAME: &[&str] = &[
    // The names of figures, and the two fabrics that the files below are about.
    "herdwick-bench/src/config.rs",
    "herdwick-bench/src/report/mod.rs",
    // The echo runs over shared memory unless another fabric is asked for.
    "herdwick-bench/src/compare.rs",
    "herdwick-bench/src/idle.rs",
    // The baseline of the software RNIC: the same packets, through the same sockets, without it.
    "herdwick-bench/src/lines/bare.rs",
    // Writes random words into a lease's memory files.
    "herdwick-bench/src/hostile/lease.rs",
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
            let end = text.find("#[cfg(test)]\nmod").unwrap_or(text.len());
            into.push((path, text[..end].to_owned()));
        }
    }
}

fn sources_of(name: &str) -> Vec<(PathBuf, String)> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    sources(&crates.join(name).join("src"), &mut files);
    assert!(files.len() > 5, "the sources of {name} were found");
    files
}

/// Returns the words of the identifiers and strings in a line of code: `RoceDevice` and
/// `roce_device` have two each. Options that a message advises, such as `--roce off`, are the
/// operator's words and left out.
fn words(line: &str) -> Vec<String> {
    let code = line.split("//").next().unwrap_or_default();
    let advised = |word: &&str| !word.starts_with("--");
    let mut words = vec![String::new()];
    let tokens: Vec<_> = code
        .split(|c: char| c.is_whitespace() || "(\"'`".contains(c))
        .filter(advised)
        .collect();
    let mut before = ' ';
    for letter in tokens.join(" ").chars() {
        let starts = letter.is_uppercase() && before.is_lowercase();
        if starts || !letter.is_alphanumeric() {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| letter.is_alphanumeric()) {
            word.extend(letter.to_lowercase());
        }
        before = letter;
    }
    words
}

#[test]
fn words_are_found_in_identifiers_and_not_in_advice() {
    let found = |line: &str| words(line).iter().any(|word| word == "roce");
    for line in [
        "RoceDevice",
        "use herdwick_roce_udp::x",
        "offer.roce",
        "\"roce\"",
        "ROCE_PORT",
        "Fabric::Roce",
    ] {
        assert!(found(line), "{line}");
    }
    for line in ["process", "// roce", "do without (--roce off)", "`--roce`"] {
        assert!(!found(line), "{line}");
    }
}

#[test]
fn no_system_names_a_provider() {
    let mut named = Vec::new();
    for (path, text) in SYSTEMS.iter().flat_map(|name| sources_of(name)) {
        let names = |line: &&str| {
            words(line)
                .iter()
                .any(|word| PROVIDERS.contains(&word.as_str()))
        };
        if let Some(line) = text.lines().find(names) {
            let excepted = MAY_NAME.iter().any(|file| path.ends_with(file));
            if !excepted {
                named.push(format!("{}: {}", path.display(), line.trim()));
            }
        }
    }
    assert!(named.is_empty(), "{named:#?}");
}

/// Systems run on simulated RNICs as they are: none depends on the simulator, or mentions it.
#[test]
fn no_system_knows_the_simulator() {
    let systems = SYSTEMS.iter().filter(|name| **name != "herdwick-bench");
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

/// In a provider's source the word stands for the paper, of which Table 1 says what a transport
/// carries; nothing is named for the system.
#[test]
fn no_provider_names_a_system() {
    for name in [
        "herdwick-shm",
        "herdwick-roce",
        "herdwick-roce-udp",
        "herdwick-verbs",
    ] {
        for (path, text) in sources_of(name) {
            let text = text.replace("HERD paper", "paper");
            let named = text.split(|c: char| !c.is_alphanumeric());
            let named = named.filter(|word| word.eq_ignore_ascii_case("herd"));
            assert_eq!(named.count(), 0, "{} names HERD", path.display());
        }
    }
}
