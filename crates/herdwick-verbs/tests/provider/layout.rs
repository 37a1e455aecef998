//! Compares the hand-written ABI with the system's header, using the system's C compiler.

use std::{fmt::Write as _, path::Path, process::Command};

use herdwick_verbs::sys::{CONSTANTS, LAYOUTS};

/// Returns a C program that prints the layouts and constants of the header, and the output that
/// this crate expects.
fn program() -> (String, String) {
    let mut code = "#include <stdio.h>\n#include <stddef.h>\n#include <infiniband/verbs.h>\nint main(void) {\n".to_owned();
    let mut expected = String::new();
    for (name, size, fields) in LAYOUTS {
        if *size > 0 {
            writeln!(code, "printf(\"{name} %zu\\n\", sizeof({name}));").unwrap();
            writeln!(expected, "{name} {size}").unwrap();
        }
        for (field, at) in *fields {
            writeln!(
                code,
                "printf(\"{name}.{field} %zu\\n\", offsetof({name}, {field}));"
            )
            .unwrap();
            writeln!(expected, "{name}.{field} {at}").unwrap();
        }
    }
    for (name, value) in CONSTANTS {
        writeln!(code, "printf(\"{name} %d\\n\", (int){name});").unwrap();
        writeln!(expected, "{name} {value}").unwrap();
    }
    code.push_str("return 0;\n}\n");
    (code, expected)
}

#[test]
fn abi_matches_the_system_header() {
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        println!("skipped: no infiniband/verbs.h; `apt-get install libibverbs-dev`");
        return;
    }
    let here = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, binary) = (here.join("layout.c"), here.join("layout"));
    let (code, expected) = program();
    std::fs::write(&source, code).unwrap();
    let compiled = Command::new("cc")
        .arg("-o")
        .args([&binary, &source])
        .status();
    let Ok(compiled) = compiled else {
        println!("skipped: no C compiler; `apt-get install gcc`");
        return;
    };
    assert!(compiled.success(), "the header knows every name");
    let printed = Command::new(&binary).output().unwrap().stdout;
    assert_eq!(String::from_utf8(printed).unwrap(), expected);
}
