//! A C program that calls every function, linked with the static library, against servers in this process:
//! over shared memory, RoCEv2 and TCP.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use herdwick_server::{Config, ListenOptions, Server, spawn};

/// What a static library of Rust's needs.
const LIBRARIES: [&str; 6] = ["-lpthread", "-ldl", "-lm", "-lgcc_s", "-lrt", "-lutil"];

fn server() -> Server {
    let config = Config {
        fabrics: ListenOptions {
            roce: Some(([127, 0, 0, 1], 0).into()),
            ..ListenOptions::default()
        },
        workers: Some(2),
        ..Config::local()
    };
    spawn(config).unwrap()
}

/// The folder that cargo builds in: this test's, where the library of its crate is, too.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let library = test.with_file_name("libherdwick_c.a");
    assert!(library.is_file(), "no {}", library.display());
    library
}

/// Compiles the program. Warnings are errors.
fn compile() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = library().with_file_name(format!("herdwick-api-{}", std::process::id()));
    let compiled = Command::new("cc")
        .args([
            "-std=c11",
            "-D_GNU_SOURCE",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pedantic",
            "-O1",
        ])
        .arg("-I")
        .arg(here.join("include"))
        .arg(here.join("tests/api.c"))
        .arg(library())
        .args(LIBRARIES)
        .arg("-o")
        .arg(&program)
        .status();
    // The linker that cargo uses is this one.
    assert!(compiled.unwrap().success(), "it does not compile");
    program
}

#[test]
fn every_function_does_as_the_header_declares() {
    let program = compile();
    let servers = [server(), server(), server()];
    let [first, second, third] = servers
        .each_ref()
        .map(|server| server.address().to_string());
    for transport in ["shm", "roce", "tcp"] {
        let run = Command::new(&program)
            .args([&*first, transport, &*second, &*third])
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success(), "{transport}: {} {errors}", run.status);
        assert_eq!(String::from_utf8_lossy(&run.stdout).trim(), transport);
    }
    std::fs::remove_file(program).unwrap();
}
