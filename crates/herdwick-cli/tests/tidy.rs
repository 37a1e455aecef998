//! House rules that no lint knows: length of files and functions, heads, names, the map of folders.

mod shipped;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
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
        let before = shipped::shipped(&text).to_owned();
        (path, before)
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

/// The files of the repository that are written by hand and have one of these endings, by their paths
/// from its root. The changelog names what was renamed, and this test what it looks for.
fn hand_written(endings: &[&str]) -> Vec<(String, String)> {
    let out = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(root())
        .output()
        .expect("git runs");
    assert!(out.status.success(), "{out:?}");
    let names = String::from_utf8(out.stdout).expect("names are UTF-8");
    let files: Vec<(String, String)> = names
        .split('\0')
        .filter(|name| endings.iter().any(|ending| name.ends_with(ending)))
        .filter(|name| *name != "CHANGELOG.md" && !name.ends_with("tests/tidy.rs"))
        // A file that was removed is listed until the removal is staged.
        .filter_map(|name| {
            let text = fs::read_to_string(root().join(name)).ok()?;
            Some((name.to_owned(), text))
        })
        .collect();
    assert!(files.len() > 20, "the files were found");
    files
}

/// Names that stood for something which has a name of its own in the field; docs/glossary.md has those.
/// Of an identifier each part counts: `lane` is refused in `open_lane` and in `LaneState`.
const RETIRED: [&str; 37] = [
    "belfry", "bell", "berth", "crew", "crossing", "desk", "door", "errand", "facts", "freight",
    "furnish", "hub", "hungry", "knock", "lane", "lookout", "lot", "mailbox", "obituary", "office",
    "outlet", "parcel", "patience", "pulse", "rig", "roster", "seat", "speaker", "starved",
    "stray", "swallow", "tally", "teller", "train", "voice", "wish", "yard",
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

/// Returns the retired name in a line, in the singular or the plural, or as a verb.
fn retired(line: &str) -> Option<&'static str> {
    // Most lines contain none of them: only the others are split into words.
    let lower = line.to_lowercase();
    let may_have = |name: &&str| lower.contains(name.trim_end_matches('y'));
    if !RETIRED.iter().any(may_have) {
        return None;
    }
    let parts = parts(line);
    let is_form = |part: &str, name: &str| match name.strip_suffix('y') {
        _ if part == name => true,
        Some(stem) => part.strip_prefix(stem) == Some("ies"),
        None => part
            .strip_prefix(name)
            .is_some_and(|end| ["s", "ed", "ing"].contains(&end)),
    };
    RETIRED
        .into_iter()
        .find(|name| parts.iter().any(|part| is_form(part, name)))
}

#[test]
fn retired_names_are_not_used() {
    for (path, text) in hand_written(&[".rs", ".md", ".sh", ".py", ".toml", ".ci/run", "justfile"])
    {
        for (number, line) in text.lines().enumerate() {
            assert_eq!(retired(line), None, "{path}:{}: {line}", number + 1);
        }
    }
    assert_eq!(retired("fn OpenLanes()"), Some("lane"));
    assert_eq!(retired("tallies"), Some("tally"));
    assert_eq!(retired("an airplane"), None);
}

/// Words that comments and documents do not use: each hides the subject of its sentence.
const HIDDEN_SUBJECTS: [&str; 5] = ["nobody", "somebody", "told", "whoever", "whom"];

/// Returns the comment in a line of source, or the whole line of a document.
fn prose<'a>(path: &str, line: &'a str) -> &'a str {
    let mark = match path.rsplit('.').next() {
        Some("md") => return line,
        Some("rs") => "//",
        _ => "#",
    };
    line.find(mark).map_or("", |from| &line[from..])
}

fn hidden_subject(path: &str, line: &str) -> Option<&'static str> {
    let text = prose(path, line);
    // Most lines contain none of them: only the others are split into words.
    let lower = text.to_lowercase();
    if !HIDDEN_SUBJECTS.iter().any(|hidden| lower.contains(hidden)) {
        return None;
    }
    let words = parts(text);
    HIDDEN_SUBJECTS
        .into_iter()
        .find(|hidden| words.iter().any(|word| word == hidden))
}

#[test]
fn comments_and_documents_name_their_subjects() {
    for (path, text) in hand_written(&[".rs", ".md", ".sh", ".py", ".toml", ".ci/run", "justfile"])
    {
        for (number, line) in text.lines().enumerate() {
            let found = hidden_subject(&path, line);
            assert_eq!(found, None, "{path}:{}: {line}", number + 1);
        }
    }
    assert_eq!(hidden_subject("a.rs", "let nobody = 1;"), None);
    assert_eq!(
        hidden_subject("a.rs", "let user = 1; // Nobody."),
        Some("nobody")
    );
    assert_eq!(hidden_subject("a.md", "Whoever reads it"), Some("whoever"));
    assert_eq!(hidden_subject("a.sh", "# Is told."), Some("told"));
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

#[test]
fn declaration_of_a_test_module_hides_no_source() {
    let text = "mod a;\n#[cfg(test)]\nmod tests;\nfn f() {}\n#[cfg(test)]\nmod more {\n}\n";
    assert!(shipped::shipped(text).ends_with("fn f() {}"));
}

/// A test that is ignored because CI runs it is among those that CI's step `tests` names.
#[test]
fn ci_runs_the_tests_that_it_is_said_to_run() {
    let script = fs::read_to_string(root().join(".ci/run")).expect("is readable");
    let named = script.split("run_tests \"--ignored ").nth(1);
    let named = named.and_then(|rest| rest.split('"').next());
    let named = named.expect("a list").split_whitespace();
    let named: Vec<_> = named.filter(|word| *word != "\\").collect();
    let (mut found, mut missing) = (0, Vec::new());
    for (path, text) in all() {
        let lines: Vec<_> = text.lines().map(str::trim).collect();
        for (n, line) in lines.iter().enumerate() {
            if !(line.starts_with("#[ignore") && line.ends_with("CI runs it\"]")) {
                continue;
            }
            let function = lines[n..].iter().find_map(|line| line.strip_prefix("fn "));
            let name = function.and_then(|rest| rest.split('(').next());
            // With its module, as cargo names it.
            let module = path.file_stem().map(|stem| stem.to_string_lossy());
            let name = format!("{}::{}", module.expect("a file"), name.expect("a test"));
            found += 1;
            if !named.iter().any(|word| name.contains(word)) {
                missing.push(name);
            }
        }
    }
    assert!(found > 10, "the ignored tests were found: {found}");
    assert!(
        missing.is_empty(),
        "not in the list of .ci/run: {missing:?}"
    );
}
