//! Tests of `serve -S`: where its users come from, that SIGHUP reads them again, and what is refused.

use std::{
    fs,
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    process::Command,
};

use crate::common::{Folder, Server};
use rustix::process::Signal;

/// Authenticates by PLAIN, and returns the status of the response.
fn plain(server: &Server, name: &str, password: &str) -> u8 {
    let message = format!("\0{name}\0{password}");
    let body = 5 + message.len() as u8;
    let mut packet = vec![0x80, 0x21, 0, 5, 0, 0, 0, 0, 0, 0, 0, body];
    packet.extend_from_slice(&[0; 12]);
    packet.extend_from_slice(b"PLAIN");
    packet.extend_from_slice(message.as_bytes());
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.write_all(&packet).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut said = Vec::new();
    stream.read_to_end(&mut said).unwrap();
    said[7]
}

const DONE: u8 = 0;
const REFUSED: u8 = 0x20;

#[test]
fn the_users_are_those_of_the_file_and_are_read_again_on_sighup() {
    let folder = Folder::new();
    let users = folder.0.join("users");
    fs::write(&users, "one:two:three\n").unwrap();
    // -Y comes before the environment.
    let flags = ["-p", "0", "-S", "-Y", users.to_str().unwrap()];
    let server = Server::run_with(&folder, 1, &flags, |command| {
        command.env("MEMCACHED_SASL_PWDB", "/nowhere/users");
    });
    assert_eq!(plain(&server, "one", "two:three"), DONE);
    assert_eq!(plain(&server, "one", "two"), REFUSED);
    fs::write(&users, "four:five\n").unwrap();
    server.signal(Signal::HUP);
    while plain(&server, "four", "five") != DONE {
        std::thread::yield_now();
    }
    assert_eq!(plain(&server, "one", "two:three"), REFUSED);
}

#[test]
fn the_users_are_those_of_the_file_in_the_environment() {
    let folder = Folder::new();
    let users = folder.0.join("users");
    fs::write(&users, "one:two:three\n").unwrap();
    let server = Server::run_with(&folder, 1, &["-p", "0", "-B", "binary", "-S"], |command| {
        command.env("MEMCACHED_SASL_PWDB", &users);
    });
    assert_eq!(plain(&server, "one", "two"), DONE);
    assert_eq!(plain(&server, "one", "three"), REFUSED);
}

/// A client of Herdwick's own speaks text; it names what to type instead.
#[test]
fn a_client_that_speaks_text_is_told_what_to_do() {
    let folder = Folder::new();
    let users = folder.0.join("users");
    fs::write(&users, "one:two\n").unwrap();
    let users = users.to_str().unwrap();
    let server = Server::run(&folder, 1, &["-p", "0", "-S", "-Y", users]);
    for more in [&[][..], &["--login", users]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_herdwick"));
        command
            .args(["get", "k", "--server", &server.address])
            .args(more);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{said}");
        assert!(said.contains("-Y FILE"), "{said}");
    }
}

#[test]
fn what_sasl_excludes_is_refused_with_what_to_do() {
    let folder = Folder::new();
    let users = folder.0.join("users");
    fs::write(&users, "one:two\n").unwrap();
    for (flags, instead) in [
        ("-S -B auto", "remove -B or -S"),
        ("-S -B ascii", "remove -B or -S"),
        ("-S -B binary -B ascii", "remove -B or -S"),
        ("-S -U 1", "remove -U"),
        ("-B binary", "-S"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_herdwick"));
        command.args(["serve", "-u", "root", "-p", "0", "-Y"]);
        command.arg(&users).args(flags.split(' '));
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{flags}: {said}");
        assert!(said.contains(instead), "{flags}: {said}");
    }
}
