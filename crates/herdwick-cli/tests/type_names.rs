//! Names of types: within a crate a name stands for one type.
//!
//! The test reads the sources and leaves out tests and associated types.

mod shipped;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Names that a file shares with others of its crate, and why. The others write such a type after its
/// module: `sys::Qp`.
const EXEMPT: [(&str, &[&str], &str); 3] = [
    (
        "herdwick-verbs/src/sys.rs",
        &["Ah", "Context", "Cq", "Gid", "Mr", "Pd", "Qp"],
        "the structs of libibverbs, by the names of its header",
    ),
    (
        "herdwick-memcache/src/binary/reply.rs",
        &["Echo", "Status"],
        PROTOCOL,
    ),
    (
        "herdwick-memcache/src/meta/reply.rs",
        &["Echo", "Status"],
        PROTOCOL,
    ),
];
const PROTOCOL: &str = "each protocol has such a type, and the module names the protocol";

/// Where a name is declared: files and line numbers.
type Declared = BTreeMap<String, Vec<(PathBuf, usize)>>;

/// Returns the name that `line` declares, of a struct, an enum, a trait, a union or a type.
fn declared(line: &str) -> Option<&str> {
    let code = line.trim_start();
    let code = match code.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.strip_prefix(' ')?,
        None => code,
    };
    let code = code.strip_prefix("unsafe ").unwrap_or(code);
    let (item, rest) = code.split_once(' ')?;
    // An indented `type` is an associated one: its trait says its name.
    let associated = item == "type" && line.starts_with(' ');
    if !["struct", "enum", "trait", "union", "type"].contains(&item) || associated {
        return None;
    }
    let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
    // A macro's variable has no name yet.
    Some(&rest[..end.unwrap_or(rest.len())]).filter(|name| !name.is_empty())
}

/// Adds the declarations of `text`, without its test module.
fn add(text: &str, file: &Path, into: &mut Declared) {
    let code = shipped::shipped(text);
    for (number, line) in code.lines().enumerate() {
        if let Some(name) = declared(line) {
            let places = into.entry(name.to_owned()).or_default();
            places.push((file.to_path_buf(), number + 1));
        }
    }
}

/// Adds the declarations of every file in `folder`, except tests.
fn read(folder: &Path, into: &mut Declared) {
    for entry in fs::read_dir(folder).expect("is readable") {
        let path = entry.expect("is an entry").path();
        let stem = path.file_stem().expect("has a name").to_string_lossy();
        if ["tests", "models", "schedules", "random_schedules"].contains(&&*stem) {
            continue;
        }
        if path.is_dir() {
            read(&path, into);
        } else {
            let text = fs::read_to_string(&path).expect("is readable");
            add(&text, &path, into);
        }
    }
}

/// Removes the exempt declarations of a crate, and returns those that share their name with no other.
fn exempt(all: &mut Declared) -> Vec<String> {
    let shared = |name: &str, all: &Declared| all.get(name).is_some_and(|it| it.len() > 1);
    let entries = EXEMPT
        .iter()
        .flat_map(|(file, names, _)| names.iter().map(move |it| (file, it)));
    let here = |(file, name): &(&&str, &&str)| {
        let places = all.get(**name).into_iter().flatten();
        places.into_iter().any(|(path, _)| path.ends_with(file))
    };
    let entries: Vec<_> = entries.filter(here).collect();
    let needless = entries.iter().filter(|(_, name)| !shared(name, all));
    let needless = needless
        .map(|(file, name)| format!("{file}: {name}"))
        .collect();
    for (file, name) in entries {
        if let Some(places) = all.get_mut(*name) {
            places.retain(|(path, _)| !path.ends_with(file));
        }
    }
    needless
}

/// Returns a line for each name that is declared more than once.
fn doubled(all: &Declared) -> Vec<String> {
    let doubled = all.iter().filter(|(_, places)| places.len() > 1);
    let line = |(name, places): (&String, &Vec<(PathBuf, usize)>)| {
        let places = places
            .iter()
            .map(|(file, line)| format!("{}:{line}", file.display()));
        format!("{name}: {}", places.collect::<Vec<_>>().join(", "))
    };
    doubled.map(line).collect()
}

#[test]
fn a_name_stands_for_one_type_of_a_crate() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (file, _, _) in EXEMPT {
        assert!(crates.join(file).is_file(), "{file} is exempt but missing");
    }
    let (mut names, mut wrong, mut needless) = (0, Vec::new(), Vec::new());
    for entry in fs::read_dir(&crates).expect("is readable") {
        let folder = entry.expect("is an entry").path().join("src");
        if !folder.is_dir() {
            continue;
        }
        let mut all = Declared::new();
        read(&folder, &mut all);
        names += all.len();
        needless.extend(exempt(&mut all));
        wrong.extend(doubled(&all));
    }
    assert!(names > 500, "the sources were read: {names} names");
    assert!(needless.is_empty(), "they share no name: {needless:?}");
    assert!(
        wrong.is_empty(),
        "types that share a name:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn doubled_names_are_found() {
    let text = "pub struct One;\nfn f() {\n    enum One {}\n}\nimpl A for B {\n    type Two = u8;\n}\n\
                pub(crate) type Two<T> = Vec<T>;\n#[cfg(test)]\nmod tests {\n    struct Two;\n}\n";
    let mut all = Declared::new();
    add(text, Path::new("a.rs"), &mut all);
    assert_eq!(doubled(&all), ["One: a.rs:1, a.rs:3"]);
}
