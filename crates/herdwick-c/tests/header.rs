//! `include/herdwick.h` declares what the sources export, with the same types, and nothing else; the manual
//! page and the C program that tests the library name each function.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The header without comments, on one line.
fn header() -> String {
    let text = read("include/herdwick.h");
    let mut code = String::new();
    for part in text.split("/*") {
        let after = part.split_once("*/").map_or(part, |(_, after)| after);
        code.push_str(after);
    }
    let lines = code.lines().filter(|line| !line.starts_with('#'));
    lines.collect::<Vec<_>>().join(" ")
}

/// All of a C type's letters that count.
fn tight(text: &str) -> String {
    let words: Vec<_> = text.split_whitespace().collect();
    words.join(" ").replace(" *", "*").replace("* ", "*")
}

/// A Rust type as C writes it.
fn c_type(rust: &str) -> String {
    let rust = rust.trim();
    for (pointer, is_const) in [("*const ", true), ("*mut ", false)] {
        let Some(inner) = rust.strip_prefix(pointer) else {
            continue;
        };
        let base = c_type(inner);
        return match (is_const, inner.starts_with('*')) {
            (true, true) => format!("{base}const*"),
            (true, false) => format!("const {base}*"),
            (false, _) => format!("{base}*"),
        };
    }
    let known = [
        ("c_char", "char"),
        ("std::ffi::c_char", "char"),
        ("c_void", "void"),
        ("c_int", "int"),
        ("usize", "size_t"),
        ("i32", "int32_t"),
        ("u32", "uint32_t"),
        ("u64", "uint64_t"),
        ("Status", "herdwick_status"),
        ("ClientHandle", "herdwick_client"),
        ("OptionsHandle", "herdwick_options"),
        ("SessionHandle", "herdwick_session"),
        ("CKey", "herdwick_key"),
        ("CItem", "herdwick_item"),
        ("CRequest", "herdwick_request"),
        ("CAnswer", "herdwick_answer"),
        ("OnStat", "herdwick_on_stat"),
        ("OnAnswer", "herdwick_on_answer"),
    ];
    let found = known.iter().find(|(name, _)| *name == rust);
    found
        .unwrap_or_else(|| panic!("{rust} has no C type"))
        .1
        .to_owned()
}

/// The functions of the header, as `RETURNS NAME(TYPE NAME, ...)`.
fn declared() -> Vec<String> {
    let code = header();
    let statements = code.split(';').map(str::trim);
    let mut functions: Vec<_> = statements
        .filter(|statement| statement.contains('(') && !statement.contains("typedef"))
        .map(|statement| tight(statement.rsplit('}').next().unwrap_or_default()))
        .map(|statement| statement.replace("(void)", "()"))
        .collect();
    functions.sort();
    functions
}

fn sources() -> String {
    let files = [
        "bytes", "calls", "client", "handle", "options", "servers", "session", "status",
    ];
    let in_folder = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).unwrap();
    assert_eq!(in_folder.count(), files.len() + 1, "all files but lib.rs");
    let texts = files.map(|file| read(&format!("src/{file}.rs")));
    texts.concat()
}

/// The functions that the sources export, in the same form.
fn exported() -> Vec<String> {
    let text = sources();
    let mut functions = Vec::new();
    let mut macros = BTreeMap::new();
    for part in text.split("#[unsafe(no_mangle)]").skip(1) {
        let (_, rest) = part.split_once("fn ").unwrap();
        let (signature, _) = rest.split_once('{').unwrap();
        let (name, rest) = signature.split_once('(').unwrap();
        let (arguments, returns) = rest.rsplit_once(')').unwrap();
        let returns = returns.trim().strip_prefix("->").map(c_type);
        let returns = returns.unwrap_or_else(|| "void".to_owned());
        let arguments = arguments.split(',').map(str::trim);
        let arguments = arguments.filter(|argument| !argument.is_empty());
        let arguments = arguments.map(|argument| {
            let (name, rust) = argument.split_once(": ").unwrap();
            tight(&format!(
                "{} {}",
                c_type(rust),
                name.trim_start_matches('$')
            ))
        });
        let tail = format!("({})", arguments.collect::<Vec<_>>().join(", "));
        if name == "$name" {
            macros.insert(macros.len(), (returns, tail));
        } else {
            functions.push(tight(&format!("{returns} {name}{tail}")));
        }
    }
    // The macros that declare functions, in their order.
    for (number, name) in ["store", "extend", "count"].iter().enumerate() {
        let (returns, tail) = &macros[&number];
        for call in text.split(&format!("\n{name}!(")).skip(1) {
            let (name, _) = call.split_once(',').unwrap();
            functions.push(tight(&format!("{returns} {name}{tail}")));
        }
    }
    functions.sort();
    functions
}

#[test]
fn header_declares_what_is_exported() {
    let functions = declared();
    assert!(functions.len() > 40, "the header was read: {functions:#?}");
    assert_eq!(functions, exported());
}

/// The fields of a struct or the values of an enum of the header.
fn members(kind: &str, name: &str) -> Vec<String> {
    let code = header();
    let (_, rest) = code
        .split_once(&format!("typedef {kind} {name} {{"))
        .unwrap();
    let (body, _) = rest.split_once('}').unwrap();
    let parts = body.split([';', ',']).map(tight);
    parts.filter(|part| !part.is_empty()).collect()
}

/// The lines of a struct or an enum of the sources, without comments.
fn body(kind: &str, name: &str) -> Vec<String> {
    let text = sources();
    let (_, rest) = text.split_once(&format!("{kind} {name} {{")).unwrap();
    let (body, _) = rest.split_once("\n}").unwrap();
    let lines = body.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("//"));
    lines
        .map(|line| line.trim_end_matches(',').to_owned())
        .collect()
}

#[test]
fn structs_have_the_same_fields() {
    for (c, rust) in [
        ("herdwick_key", "CKey"),
        ("herdwick_item", "CItem"),
        ("herdwick_request", "CRequest"),
        ("herdwick_answer", "CAnswer"),
    ] {
        let fields = body("struct", rust).into_iter().map(|field| {
            let (name, rust) = field.split_once(": ").unwrap();
            tight(&format!("{} {name}", c_type(rust)))
        });
        assert_eq!(members("struct", c), fields.collect::<Vec<_>>(), "{c}");
    }
}

#[test]
fn enums_have_the_same_values() {
    for (c, rust) in [
        ("herdwick_status", "Status"),
        ("herdwick_operation", "Operation"),
    ] {
        let values = body("enum", rust).into_iter().map(|line| {
            let (name, value) = line.split_once(" = ").unwrap();
            let mut upper = String::new();
            for letter in name.chars() {
                if letter.is_uppercase() {
                    upper.push('_');
                }
                upper.extend(letter.to_uppercase());
            }
            format!("HERDWICK{upper} = {value}")
        });
        assert_eq!(members("enum", c), values.collect::<Vec<_>>(), "{c}");
    }
}

#[test]
fn every_function_is_tested_and_has_a_manual_page() {
    let (program, manual) = (read("tests/api.c"), read("herdwick.3"));
    // Whole words: some names begin others.
    let words = manual.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    let named: BTreeSet<_> = words.collect();
    for function in declared() {
        let name = function.split('(').next().unwrap();
        let name = name.rsplit([' ', '*']).next().unwrap();
        assert!(program.contains(&format!("{name}(")), "tests/api.c: {name}");
        assert!(named.contains(name), "herdwick.3: {name}");
    }
    for value in members("enum", "herdwick_status") {
        let name = value.split(' ').next().unwrap();
        assert!(named.contains(name), "herdwick.3: {name}");
    }
}
