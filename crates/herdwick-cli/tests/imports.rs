//! Imports between the files of a crate: files that import each other, directly or through others,
//! form a circular import. A circle has at most three files, and the head of each says why it is in it.
//!
//! The test reads the sources. It follows re-exports to the file that defines a name, and leaves out
//! tests, comments and calls of methods.

mod shipped;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Most files of a circle.
const CIRCLE_FILES_MAX: usize = 3;
/// Begins the sentence, in the head of each file of a circle, that names the others and the reason.
const EXPLAINED: &str = "Circular import with ";

/// The server's rooms, from the bottom up. A file belongs to the longest of these paths that it is at
/// or below, and imports from rooms below its own, or from its own. A folder may have a part in
/// another room: what telemetry counts with is below the context, and the threads that listen and
/// write are above the runtime that they share with workers.
const SERVER_ROOMS: [&[&str]; 11] = [
    &["settings", "file_lock"],
    &["net"],
    &[
        "telemetry/hot",
        "telemetry/leases",
        "telemetry/offload",
        "telemetry/prefixes",
        "telemetry/stats/families",
        "telemetry/stats/statistic",
        "telemetry/uri",
        "telemetry/watch",
    ],
    &["context"],
    &["telemetry"],
    &["runtime"],
    &["threads"],
    &["herd"],
    &["clover"],
    &["memcached", "telemetry/stats/describe"],
    &["preflight", "memory", "server"],
];

/// The path of a module below its crate: `["runtime", "worker"]`.
type Module = Vec<String>;

/// One imported path, and the name that it has here.
#[derive(Clone)]
struct Import {
    path: Vec<String>,
    name: String,
    /// `pub use`: it is imported for others.
    again: bool,
}

/// A source file.
struct Source {
    file: PathBuf,
    /// The comment at its beginning.
    head: String,
    /// Its code, without comments, tests and imports.
    code: String,
    imports: Vec<Import>,
}

/// The files of a crate by their modules.
type Files = BTreeMap<Module, Source>;

fn files_of(folder: &Path, module: &[String], into: &mut Files) {
    for entry in fs::read_dir(folder).expect("is readable") {
        let path = entry.expect("is an entry").path();
        let stem = path.file_stem().expect("has a name");
        let stem = stem.to_string_lossy().into_owned();
        if ["tests", "models", "schedules", "random_schedules", "bin"].contains(&stem.as_str()) {
            continue;
        }
        let mut own = module.to_vec();
        if !["lib", "main", "mod"].contains(&stem.as_str()) {
            own.push(stem);
        }
        if path.is_dir() {
            files_of(&path, &own, into);
        } else {
            into.insert(own, source(path));
        }
    }
}

fn source(file: PathBuf) -> Source {
    let text = fs::read_to_string(&file).expect("is readable");
    let head = text.lines().take_while(|line| line.starts_with("//!"));
    let head: Vec<&str> = head.map(|line| line[3..].trim()).collect();
    let lines = shipped::shipped(&text).lines();
    let code = lines.map(|line| line.split("//").next().unwrap_or_default());
    let (imports, code) = imports(&code.collect::<Vec<_>>().join("\n"));
    Source {
        head: head.join(" "),
        file,
        code,
        imports,
    }
}

/// Separates the `use` declarations from the rest of the code.
fn imports(text: &str) -> (Vec<Import>, String) {
    let (mut imports, mut code) = (Vec::new(), String::new());
    let mut rest = text;
    while let Some((before, after)) = next_use(rest) {
        let line = before.rfind('\n').map_or(0, |end| end + 1);
        let again = before[line..].trim_start().starts_with("pub");
        let (tree, behind) = after.split_once(';').expect("a declaration ends");
        flatten(&[], tree, again, &mut imports);
        code.push_str(before);
        rest = behind;
    }
    code.push_str(rest);
    (imports, code)
}

/// Splits at the first `use` that begins a declaration.
fn next_use(text: &str) -> Option<(&str, &str)> {
    let declares = |at: &usize| {
        let line = text[..*at].rfind('\n').map_or(0, |end| end + 1);
        let before = text[line..*at].trim();
        before.is_empty() || before == "pub" || before.starts_with("pub(") && before.ends_with(')')
    };
    let mut found = text.match_indices("use ").map(|(at, _)| at);
    let at = found.find(declares)?;
    Some((&text[..at], &text[at + "use ".len()..]))
}

/// Adds each path of a tree of imports, such as `a::{b, c::d as e}`.
fn flatten(before: &[String], tree: &str, again: bool, into: &mut Vec<Import>) {
    let tree = tree.trim();
    let (stem, branches) = tree.split_once('{').unwrap_or((tree, ""));
    let (stem, alias) = stem.split_once(" as ").unwrap_or((stem, ""));
    let mut path = before.to_vec();
    let segments = stem.split("::").map(str::trim);
    path.extend(segments.filter(|s| !s.is_empty()).map(str::to_owned));
    if tree.contains('{') {
        let branches = branches.rsplit_once('}').expect("is closed").0;
        for branch in branches_of(branches) {
            flatten(&path, branch, again, into);
        }
        return;
    }
    if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
        path.pop();
    }
    let last = path.last().cloned().unwrap_or_default();
    let name = Some(alias.trim()).filter(|alias| !alias.is_empty());
    let name = name.map_or(last, str::to_owned);
    into.push(Import { path, name, again });
}

/// Splits at the commas outside braces.
fn branches_of(text: &str) -> Vec<&str> {
    let (mut depth, mut from, mut branches) = (0, 0, Vec::new());
    for (at, letter) in text.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                branches.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    branches.push(&text[from..]);
    branches.retain(|branch| !branch.trim().is_empty());
    branches
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// Returns every path in `code` that begins with the name `first` and has another segment.
fn paths_from(code: &str, first: &str) -> Vec<Vec<String>> {
    let starts = code.match_indices(first).filter(|(at, _)| {
        let before = &code[..*at];
        // A path in a macro is imported where the macro is used.
        !before.ends_with('$')
            && !before.ends_with(|letter| is_word(letter) || letter == ':' || letter == '.')
            && code[at + first.len()..].starts_with("::")
    });
    let path = |(at, _): (usize, &str)| {
        let end = code[at..].find(|letter| !is_word(letter) && letter != ':');
        let path = &code[at..end.map_or(code.len(), |end| at + end)];
        let segments = path.split("::").filter(|segment| !segment.is_empty());
        segments.map(str::to_owned).collect()
    };
    starts.map(path).collect()
}

/// Returns whether `code` has the word `name`.
fn mentions(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(at, _)| {
        let after = code[at + name.len()..].chars().next();
        !code[..at].ends_with(is_word) && !after.is_some_and(is_word)
    })
}

/// Returns whether `code` defines `name`.
fn defines(code: &str, name: &str) -> bool {
    let items = [
        "struct",
        "enum",
        "trait",
        "type",
        "fn",
        "const",
        "static",
        "mod",
        "macro_rules!",
        "union",
    ];
    let defined = |item: &&str| mentions(code, &format!("{item} {name}"));
    items.iter().any(defined)
}

/// What a path leads to.
enum Target {
    /// A file that defines the name.
    File(Module),
    /// A module, not a name in it.
    Module(Module),
}

/// Resolves `path`, written in `from`, to a module of this crate; `None`: another crate's.
fn resolve(files: &Files, from: &[String], path: &[String], depth: usize) -> Option<Target> {
    let mut absolute = from.to_vec();
    let mut rest = path;
    let (first, others) = path.split_first()?;
    match first.as_str() {
        "crate" => (absolute, rest) = (Vec::new(), others),
        "self" => rest = others,
        "super" => {
            while rest.first().is_some_and(|segment| segment == "super") {
                absolute.pop();
                rest = &rest[1..];
            }
        }
        // A module that this file declares.
        child => {
            absolute.push(child.to_owned());
            if !files.contains_key(&absolute) {
                return None;
            }
            rest = others;
        }
    }
    while let Some((segment, others)) = rest.split_first() {
        absolute.push(segment.clone());
        if !files.contains_key(&absolute) {
            absolute.pop();
            return Some(defined(files, &absolute, segment, others, depth));
        }
        rest = others;
    }
    Some(Target::Module(absolute))
}

/// Finds the file that defines `name`, which is used as one of `module`; `rest` follows the name.
fn defined(files: &Files, module: &[String], name: &str, rest: &[String], depth: usize) -> Target {
    let here = Target::File(module.to_vec());
    let Some(source) = files.get(module).filter(|_| depth < 8) else {
        return here;
    };
    let mut passed = source.imports.iter();
    if let Some(import) = passed.find(|import| import.name == name) {
        let path: Vec<String> = import.path.iter().chain(rest).cloned().collect();
        return resolve(files, module, &path, depth + 1).unwrap_or(here);
    }
    if !defines(&source.code, name) {
        for import in source.imports.iter().filter(|import| import.name == "*") {
            let path = &import.path[..import.path.len() - 1];
            if let Some(Target::Module(other)) = resolve(files, module, path, depth + 1)
                && files
                    .get(&other)
                    .is_some_and(|other| defines(&other.code, name))
            {
                return Target::File(other);
            }
        }
    }
    here
}

/// Returns the modules that `module` imports from.
fn imported(files: &Files, module: &[String]) -> BTreeSet<Module> {
    let source = &files[module];
    let mut found = BTreeSet::new();
    let mut add = |path: &[String]| match resolve(files, module, path, 0) {
        Some(Target::File(other)) => found.extend((other != module).then_some(other)),
        Some(Target::Module(_)) | None => {}
    };
    for import in &source.imports {
        if import.again && !mentions(&source.code, &import.name) {
            continue;
        }
        if import.name == "*" {
            let path = &import.path[..import.path.len() - 1];
            let own: Vec<String> = path.iter().cloned().chain(["*".to_owned()]).collect();
            add(&own);
            continue;
        }
        add(&import.path);
        for path in paths_from(&source.code, &import.name) {
            let path: Vec<String> = import.path.iter().chain(&path[1..]).cloned().collect();
            add(&path);
        }
    }
    let children = files
        .keys()
        .filter(|other| other.split_last().is_some_and(|(_, up)| up == module));
    let children = children.filter_map(|other| other.last().map(String::as_str));
    for first in ["crate", "super", "self"].into_iter().chain(children) {
        for path in paths_from(&source.code, first) {
            add(&path);
        }
    }
    found
}

type Graph = BTreeMap<Module, BTreeSet<Module>>;

/// Returns every module that `from` reaches.
fn reached<'a>(graph: &'a Graph, from: &'a Module) -> BTreeSet<&'a Module> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        for other in &graph[module] {
            if seen.insert(other) {
                next.push(other);
            }
        }
    }
    seen
}

/// Returns the circles: modules that reach each other.
fn circles(graph: &Graph) -> BTreeSet<Vec<&Module>> {
    let reached: BTreeMap<_, _> = graph
        .keys()
        .map(|module| (module, reached(graph, module)))
        .collect();
    let circle = |module: &&Module| {
        let others = reached[*module].iter().copied();
        let others: Vec<&Module> = others
            .filter(|other| reached[*other].contains(*module))
            .collect();
        (others.len() > 1).then_some(others)
    };
    graph.keys().filter_map(|module| circle(&module)).collect()
}

fn graph(files: &Files) -> Graph {
    let edges = |module: &Module| (module.clone(), imported(files, module));
    files.keys().map(edges).collect()
}

fn crates() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let entries = fs::read_dir(folder).expect("is readable");
    let paths = entries.map(|entry| entry.expect("is an entry").path().join("src"));
    paths.filter(|path| path.is_dir()).collect()
}

/// Returns the name by which a head mentions a file.
fn name(files: &Files, module: &Module) -> String {
    let own = module.last().cloned();
    own.unwrap_or_else(|| {
        files[module]
            .file
            .file_stem()
            .map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
    })
}

/// Returns the circles of a crate that are too large or not explained, a line for each file.
fn unexplained(files: &Files, graph: &Graph) -> Vec<String> {
    let mut lines = Vec::new();
    for circle in circles(graph) {
        let explained = |module: &&Module| {
            let mut others = circle.iter().filter(|other| other != &module);
            let head = files[*module].head.split_once(EXPLAINED);
            head.is_some_and(|(_, reason)| {
                others.all(|other| reason.contains(&format!("`{}`", name(files, other))))
            })
        };
        if circle.len() <= CIRCLE_FILES_MAX && circle.iter().all(explained) {
            continue;
        }
        for module in &circle {
            let inside = graph[*module].iter().filter(|other| circle.contains(other));
            let to: Vec<String> = inside.map(|other| name(files, other)).collect();
            lines.push(format!(
                "{} imports {}",
                files[*module].file.display(),
                to.join(", ")
            ));
        }
    }
    lines
}

#[test]
fn import_circles_are_small_and_explained() {
    let (mut edges, mut wrong) = (0, Vec::new());
    for path in crates() {
        let mut files = Files::new();
        files_of(&path, &[], &mut files);
        let graph = graph(&files);
        edges += graph.values().map(BTreeSet::len).sum::<usize>();
        wrong.extend(unexplained(&files, &graph));
    }
    assert!(edges > 500, "the imports were read: {edges}");
    assert!(
        wrong.is_empty(),
        "circles of imports:\n{}",
        wrong.join("\n")
    );
}

/// Returns the room of a module of the server; what starts and ends it is above all rooms.
fn server_room(module: &Module) -> usize {
    let mut path = module.clone();
    while !path.is_empty() {
        let name = path.join("/");
        let room = SERVER_ROOMS.iter().position(|at| at.contains(&&*name));
        if let Some(room) = room {
            return room;
        }
        path.pop();
    }
    SERVER_ROOMS.len()
}

#[test]
fn server_rooms_import_downwards() {
    let source = crates()
        .into_iter()
        .find(|path| path.ends_with("herdwick-server/src"));
    let mut files = Files::new();
    files_of(&source.expect("is there"), &[], &mut files);
    let graph = graph(&files);
    for room in SERVER_ROOMS.into_iter().flatten() {
        let module: Module = room.split('/').map(str::to_owned).collect();
        assert!(files.contains_key(&module), "there is no {room}");
    }
    let homeless = files
        .keys()
        .filter(|module| !module.is_empty() && server_room(module) == SERVER_ROOMS.len());
    let homeless: Vec<_> = homeless.map(|module| module.join("/")).collect();
    assert!(
        homeless.is_empty(),
        "in no room of SERVER_ROOMS: {homeless:?}"
    );
    let edges = graph
        .iter()
        .flat_map(|(module, to)| to.iter().map(move |to| (module, to)));
    let upward = edges.filter(|(module, to)| server_room(module) < server_room(to));
    let upward: Vec<_> = upward
        .map(|(module, to)| format!("{} imports {}", module.join("/"), to.join("/")))
        .collect();
    assert!(
        upward.is_empty(),
        "imports that run up:\n{}",
        upward.join("\n")
    );
}

#[test]
fn circles_are_found_through_re_exports() {
    let mut files = Files::new();
    for (module, text) in [
        ("", "pub use a::One;\n"),
        (
            "a",
            "use crate::b;\npub struct One;\nfn f() { b::two(); }\n",
        ),
        ("b", "use crate::{One, c::Three};\npub fn two() {}\n"),
        ("c", "pub struct Three;\n"),
    ] {
        let module: Vec<String> = module
            .split("::")
            .filter(|s| !s.is_empty())
            .map(str::to_owned)
            .collect();
        let (imports, code) = imports(text);
        let (file, head) = (PathBuf::from(module.join("/")), String::new());
        files.insert(
            module,
            Source {
                file,
                head,
                code,
                imports,
            },
        );
    }
    let graph = graph(&files);
    let found: Vec<Vec<String>> = circles(&graph)
        .into_iter()
        .map(|circle| circle.into_iter().map(|module| module.join("::")).collect())
        .collect();
    assert_eq!(found, [["a", "b"]]);
    assert_eq!(unexplained(&files, &graph).len(), 2);
}
