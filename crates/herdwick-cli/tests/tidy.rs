//! House rules that no lint knows: length of files and functions, heads, names, the map of folders.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Most lines of a source file, its test module not counted.
const FILE_LINES_MAX: usize = 500;
/// Most lines of a function.
const FUNCTION_LINES_MAX: usize = 70;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder)
        .expect("is readable")
        .map(|entry| entry.expect("is an entry"))
    {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, into);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            into.push(path);
        }
    }
}

/// Returns the source files of every crate, except tests and examples, each without its test
/// module.
fn shipped() -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    sources(&root().join("crates"), &mut files);
    files.retain(|path| path.components().any(|part| part.as_os_str() == "src"));
    let text = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("is readable");
        let end = text
            .find("\n#[cfg(test)]\nmod")
            .or_else(|| text.find("\n#[cfg(all(test"))
            .unwrap_or(text.len());
        (path, text[..end].to_owned())
    };
    let tests = |path: &PathBuf| {
        path.file_stem()
            .is_some_and(|stem| stem == "tests" || stem == "models" || stem == "random_schedules")
            || path.iter().any(|part| part == "schedules")
    };
    files
        .into_iter()
        .filter(|path| !tests(path))
        .map(text)
        .collect()
}

#[test]
fn files_are_short() {
    let files = shipped();
    assert!(files.len() > 20, "the sources were found");
    for (path, text) in files {
        let lines = text.lines().count();
        assert!(
            lines <= FILE_LINES_MAX,
            "{}: {lines} lines, at most {FILE_LINES_MAX}",
            path.display()
        );
    }
}

#[test]
fn functions_are_short() {
    for (path, text) in shipped() {
        let lines: Vec<&str> = text.lines().collect();
        for (start, line) in lines.iter().enumerate() {
            let body = line.trim_start();
            let indent = line.len() - body.len();
            let opens = body.split("fn ").next().is_some_and(|before| {
                before
                    .split_whitespace()
                    .all(|word| word.starts_with("pub") || word == "const" || word == "unsafe")
            });
            let signature = lines[start..]
                .iter()
                .find(|line| line.ends_with(['{', ';', '}']));
            let declared = signature.is_some_and(|line| line.ends_with(';'));
            if !opens || !body.contains("fn ") || declared {
                continue;
            }
            let close = format!("{}}}", " ".repeat(indent));
            let length = lines[start..]
                .iter()
                .position(|line| *line == close)
                .unwrap_or(0)
                + 1;
            assert!(
                length <= FUNCTION_LINES_MAX,
                "{}:{}: {length} lines, at most {FUNCTION_LINES_MAX}",
                path.display(),
                start + 1
            );
        }
    }
}

/// Rows of the table of faults that a memcached port must survive; tests are named after them.
const ROWS: std::ops::RangeInclusive<u32> = 1..=48;

#[test]
fn fault_table_rows_have_tests() {
    let mut files = Vec::new();
    sources(&root().join("crates/herdwick-server/tests"), &mut files);
    let texts = files
        .iter()
        .map(|path| fs::read_to_string(path).expect("is readable"));
    let text: String = texts.collect();
    let named: Vec<&str> = text
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("fn "))
        .collect();
    for row in ROWS {
        let name = format!("m{row:02}_");
        assert!(named.iter().any(|test| test.contains(&name)), "no {name}");
    }
}

/// Every source file: crates with their tests and examples, and the fuzz targets.
fn all() -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    sources(&root().join("crates"), &mut files);
    sources(&root().join("fuzz"), &mut files);
    let text = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("is readable");
        (path, text)
    };
    files.into_iter().map(text).collect()
}

#[test]
fn every_file_begins_with_a_head_comment() {
    for (path, text) in all() {
        let first = text.lines().find(|line| !line.starts_with("#!["));
        assert!(
            first.is_some_and(|line| line.starts_with("//!")),
            "{}: no `//!` comment at its beginning",
            path.display()
        );
    }
}

/// Names that stood for something which has a name of its own in the field; docs/glossary.md has those.
/// Of an identifier each part counts: `lane` is refused in `open_lane` and in `LaneState`.
const RETIRED: [&str; 29] = [
    "belfry",
    "bell",
    "berth",
    "crew",
    "crossings",
    "desk",
    "errand",
    "facts",
    "freight",
    "knock",
    "lane",
    "lookout",
    "lot",
    "mailbox",
    "obituary",
    "office",
    "outlet",
    "parcel",
    "patience",
    "rig",
    "seat",
    "speaker",
    "tally",
    "teller",
    "train",
    "voice",
    "wish",
    "yard",
    "strays",
];

/// The parts of the identifiers and words of `line`, in lower case.
fn parts(line: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut last = ' ';
    for char in line.chars() {
        let begins = char.is_uppercase() && last.is_lowercase();
        if begins || !char.is_alphabetic() {
            parts.push(String::new());
        }
        if char.is_alphabetic() {
            parts
                .last_mut()
                .expect("there is one")
                .extend(char.to_lowercase());
        }
        last = char;
    }
    parts
}

/// What `cargo test` ignores for the time that it takes, CI runs by the beginning of its name.
#[test]
fn ci_runs_the_tests_that_are_ignored_for_their_time() {
    let commands = fs::read_to_string(root().join(".ci/run")).unwrap();
    let (_, rest) = commands.split_once("run_tests \"--ignored").unwrap();
    let filters: Vec<_> = rest.split('"').next().unwrap().split_whitespace().collect();
    let mut found = 0;
    for (path, text) in all() {
        for test in text.split("; CI runs it\"]\n").skip(1) {
            let name = test.split("fn ").nth(1).unwrap().split('(').next().unwrap();
            found += 1;
            assert!(
                filters.iter().any(|filter| name.starts_with(filter)),
                "{} has {name}, which .ci/run does not run",
                path.display()
            );
        }
    }
    assert!(found > 10, "{found} ignored tests");
}

#[test]
fn retired_names_are_not_used() {
    for (path, text) in all() {
        if path.ends_with("tests/tidy.rs") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let parts = parts(line);
            let found = RETIRED.iter().find(|name| {
                let plural = match name.strip_suffix('y') {
                    Some(stem) => format!("{stem}ies"),
                    None => format!("{name}s"),
                };
                parts.iter().any(|part| part == *name || *part == plural)
            });
            assert_eq!(found, None, "{}:{}: {line}", path.display(), number + 1);
        }
    }
}

/// Idioms that help texts and messages do not use: they name the subject, and what it does.
const IDIOMS: [&str; 9] = [
    " whom",
    "nobody",
    "somebody",
    " says ",
    " said ",
    " told ",
    "stand above",
    "stands above",
    " speaks ",
];

/// Returns the idiom in a line that a user reads: a message, or in `herdwick-cli` a help text.
fn idiom(path: &Path, line: &str) -> Option<&'static str> {
    let line = line.trim();
    let is_help = path.to_string_lossy().contains("herdwick-cli/src") && line.starts_with("///");
    let text = match (line.find('"'), line.rfind('"')) {
        _ if is_help => line,
        _ if line.starts_with("//") => "",
        // A message of several lines.
        _ if line.ends_with('\\') => line,
        (Some(from), Some(to)) => &line[from..to],
        _ => "",
    };
    IDIOMS.into_iter().find(|idiom| text.contains(idiom))
}

#[test]
fn messages_and_help_texts_are_plain() {
    for (path, text) in shipped() {
        for (number, line) in text.lines().enumerate() {
            let found = idiom(&path, line);
            assert_eq!(found, None, "{}:{}: {line}", path.display(), number + 1);
        }
    }
    let (cli, mem) = (Path::new("herdwick-cli/src"), Path::new("herdwick-mem/src"));
    assert!(idiom(cli, "    /// The host that nobody uses.").is_some());
    assert!(idiom(mem, "    /// The host that nobody uses.").is_none());
    assert!(idiom(mem, "    #[error(\"its words stand above\")]").is_some());
}

#[test]
fn architecture_lists_every_folder() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("is readable");
    let mut mapped: Vec<PathBuf> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `herdwick")?.split_once("` |"))
        .filter(|(folder, _)| folder.contains("/src/"))
        .map(|(folder, _)| PathBuf::from(format!("herdwick{folder}")))
        .collect();
    mapped.sort();
    let crates = root().join("crates");
    let mut files = Vec::new();
    sources(&crates, &mut files);
    let mut folders: Vec<PathBuf> = files
        .iter()
        .filter_map(|file| file.strip_prefix(&crates).ok()?.parent())
        .filter(|folder| folder.iter().nth(1).is_some_and(|part| part == "src"))
        .filter(|folder| folder.iter().count() > 2)
        .map(Path::to_path_buf)
        .collect();
    folders.sort();
    folders.dedup();
    assert_eq!(mapped, folders);
}

/// Lines of a crate's README.md.
const README_LINES: std::ops::RangeInclusive<usize> = 6..=12;

/// Returns the targets of the links of a Markdown page.
fn links(page: &str) -> Vec<&str> {
    let after = page.split("](").skip(1);
    after.filter_map(|rest| rest.split(')').next()).collect()
}

#[test]
fn every_crate_has_a_readme() {
    let crates = fs::read_dir(root().join("crates")).expect("is readable");
    let folders: Vec<PathBuf> = crates
        .map(|entry| entry.expect("is an entry").path())
        .collect();
    assert!(folders.len() > 20, "the crates were found");
    for folder in folders {
        let name = folder.file_name().expect("has a name").to_string_lossy();
        let page = fs::read_to_string(folder.join("README.md"));
        let page = page.unwrap_or_else(|error| panic!("{name}/README.md: {error}"));
        assert!(page.starts_with(&format!("# {name}\n")), "{name}: title");
        let lines = page.lines().count();
        assert!(README_LINES.contains(&lines), "{name}: {lines} lines");
        assert!(page.contains("- Front page: ["), "{name}: no front page");
        assert!(page.contains("- Example: "), "{name}: no example");
        for link in links(&page) {
            assert!(folder.join(link).exists(), "{name}/README.md: {link}");
        }
    }
}
