//! The bugs that `tests/sim/planted.sh` plants: each patch still fits the sources, and a document names it:
//! docs/sim.md, docs/store.md for the store's, and docs/farm.md and docs/pilaf.md for what their tests find.

use std::{
    fs,
    path::{Path, PathBuf},
};

use herdwick_sim_bench::{FaultRun, System};

use crate::apt;

/// Seeds among which one finds a bug.
const SEEDS: u64 = 400;

/// Returns the top of the repository.
fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Folders of the patches for runs under faults, and of those for the store's model test.
const FAULTS: &str = "crates/herdwick-sim-bench/tests/planted";
const STORE: &str = "crates/herdwick-mica/tests/planted";
/// The crates with patches that one of their tests finds, each with its document.
const TESTED: [(&str, &str); 2] = [
    ("crates/herdwick-farm", "docs/farm.md"),
    ("crates/herdwick-pilaf", "docs/pilaf.md"),
];

fn tested(folder: &str) -> Vec<(String, String)> {
    patches(&format!("{folder}/tests/planted"))
}

/// Returns the names and the texts of all patches in a folder.
fn patches(folder: &str) -> Vec<(String, String)> {
    let folder = top().join(folder);
    let paths = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    let patches = paths.filter(|path| path.extension().is_some_and(|end| end == "patch"));
    let stem = |path: &Path| path.file_stem().unwrap().to_str().unwrap().to_owned();
    let mut patches: Vec<_> = patches.map(|path| (stem(&path), read(&path))).collect();
    patches.sort();
    patches
}

/// A part of a patch: lines that a file has to hold one after the other, and what takes their place.
struct Hunk<'a> {
    file: &'a str,
    old: Vec<&'a str>,
    new: Vec<&'a str>,
}

fn hunks(patch: &str) -> Vec<Hunk<'_>> {
    let mut hunks: Vec<Hunk<'_>> = Vec::new();
    let mut file = None;
    for line in patch.lines() {
        if let Some(name) = line.strip_prefix("+++ b/") {
            file = Some(name);
        } else if line.starts_with("@@ ") {
            hunks.push(Hunk {
                file: file.expect("a hunk is of a file"),
                old: Vec::new(),
                new: Vec::new(),
            });
        } else if let Some(hunk) = hunks.last_mut()
            && !line.starts_with("--- ")
        {
            match line.split_at_checked(1) {
                Some(("-", text)) => hunk.old.push(text),
                Some(("+", text)) => hunk.new.push(text),
                Some((" ", text)) => {
                    hunk.old.push(text);
                    hunk.new.push(text);
                }
                // The next file's head.
                _ => file = None,
            }
        }
    }
    hunks
}

/// How often a hunk fits its file.
fn fits(hunk: &Hunk<'_>, source: &str) -> usize {
    let lines: Vec<_> = source.lines().collect();
    let places = lines.windows(hunk.old.len());
    places.filter(|place| **place == hunk.old[..]).count()
}

#[test]
fn each_patch_fits_the_sources_at_one_place() {
    let (faults, store) = (patches(FAULTS), patches(STORE));
    assert!(faults.len() >= 3 && store.len() >= 4);
    let tested = TESTED.map(|(folder, _)| tested(folder)).concat();
    assert!(tested.len() >= 15);
    for (name, patch) in faults.iter().chain(&store).chain(&tested) {
        let hunks = hunks(patch);
        assert!(!hunks.is_empty(), "{name} changes nothing");
        for hunk in hunks {
            assert_ne!(hunk.old, hunk.new, "{name}");
            let source = read(&top().join(hunk.file));
            let (count, old) = (fits(&hunk, &source), hunk.old.join("\n"));
            assert_eq!(count, 1, "{name}, in {}:\n{old}", hunk.file);
        }
    }
}

#[test]
fn hunks_that_differ_by_a_line_do_not_fit() {
    let patch = "+++ b/x\n@@ -1,2 +1,2 @@\n one\n-two\n+three\n";
    let hunks = hunks(patch);
    assert_eq!(fits(&hunks[0], "zero\none\ntwo\n"), 1);
    assert_eq!(fits(&hunks[0], "one\n\ntwo\n"), 0);
    assert_eq!(fits(&hunks[0], "one\nthree\n"), 0);
}

fn system(patch: &str) -> Option<System> {
    let name = patch.lines().find_map(|line| line.strip_prefix("System: "));
    named(name?)
}

fn named(name: &str) -> Option<System> {
    System::ALL.into_iter().find(|system| system.name() == name)
}

#[test]
fn each_patch_names_a_system_and_is_in_the_document() {
    let document = read(&top().join("docs/sim.md"));
    for (name, patch) in patches(FAULTS) {
        assert!(system(&patch).is_some(), "{name}");
        assert!(document.contains(&format!("| {name} |")), "{name}");
    }
}

#[test]
fn each_patch_of_the_store_names_its_tests_and_is_in_the_document() {
    let document = read(&top().join("docs/store.md"));
    let tests = read(&top().join("crates/herdwick-mica/tests/model/main.rs"));
    for (name, patch) in patches(STORE) {
        let named = patch.lines().find_map(|line| line.strip_prefix("Model: "));
        let mut named = named.expect(&name).split(' ');
        assert!(
            named.all(|test| tests.contains(&format!("fn {test}"))),
            "{name}"
        );
        assert!(document.contains(&format!("| {name} |")), "{name}");
    }
}

/// Whether a source in a folder, or below it, has a function of this name.
fn declares(folder: &Path, function: &str) -> bool {
    let mut entries = fs::read_dir(folder).unwrap();
    entries.any(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            return declares(&path, function);
        }
        let is_source = path.extension().is_some_and(|end| end == "rs");
        is_source && read(&path).contains(&format!("fn {function}("))
    })
}

#[test]
fn each_patch_that_a_test_finds_names_it_and_is_in_the_document() {
    for (folder, document) in TESTED {
        let document = read(&top().join(document));
        for (name, patch) in tested(folder) {
            let test = patch.lines().find_map(|line| line.strip_prefix("Test: --"));
            let (_, function) = test.and_then(|test| test.rsplit_once("::")).expect(&name);
            assert!(declares(&top().join(folder), function), "{name}");
            assert!(document.contains(&format!("| {name} |")), "{name}");
        }
    }
}

/// Runs seeds of the system that `HERDWICK_PLANTED` names until one fails.
#[test]
#[ignore = "only sources with a bug pass; tests/sim/planted.sh runs it"]
#[expect(clippy::disallowed_methods, reason = "a test has no arguments")]
fn bug_is_found() {
    let name = std::env::var("HERDWICK_PLANTED").expect("the name of a system");
    let system = named(&name).expect("there is such a system");
    for seed in 1..=SEEDS {
        let run = FaultRun {
            system,
            seed,
            operations: 4000,
            ..FaultRun::default()
        };
        if let Some(violation) = run.on(&apt()).unwrap().violation {
            let first = violation.lines().next().unwrap_or_default();
            println!("seed {seed}: {first}");
            return;
        }
    }
    panic!("{SEEDS} seeds found nothing");
}
