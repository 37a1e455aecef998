//! Tests of the client commands against a server with TLS (`serve -Z`).

mod common;

use std::{
    fs,
    path::PathBuf,
    process::{Command, Output},
};

use common::{Folder, Server};

/// A server with TLS, its certificate, which is its own authority, and a file with both.
struct Secure {
    folder: Folder,
    server: Server,
    authority: PathBuf,
}

impl Secure {
    fn start(more: &[&str]) -> Self {
        let folder = Folder::new();
        let made = rcgen::generate_simple_self_signed(vec!["cache.example".into()]).unwrap();
        let (both, authority) = (folder.0.join("both.pem"), folder.0.join("authority.pem"));
        fs::write(&both, made.cert.pem() + &made.signing_key.serialize_pem()).unwrap();
        fs::write(&authority, made.cert.pem()).unwrap();
        let chain = format!("ssl_chain_cert={}", both.display());
        let flags = [&["-p", "0", "-Z", "-o", &chain][..], more].concat();
        let server = Server::run(&folder, 1, &flags);
        Self {
            folder,
            server,
            authority,
        }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_herdwick"));
        let command = command
            .args(arguments)
            .args(["--server", &self.server.address]);
        command.output().unwrap()
    }

    /// Does the same as [`Self::run`], with the options that accept this server's certificate.
    fn run_trusting(&self, arguments: &[&str]) -> Output {
        let authority = self.authority.to_str().unwrap();
        let trust = [
            "--tls",
            "--tls-ca",
            authority,
            "--tls-name",
            "cache.example",
        ];
        self.run(&[arguments, &trust].concat())
    }
}

/// Asserts success; returns standard output.
fn out(output: &Output) -> String {
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Asserts failure with this code; returns standard error.
fn complaint(output: &Output, code: i32) -> String {
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{complaint}");
    complaint
}

#[test]
fn commands_speak_tls_and_check_the_certificate() {
    let secure = Secure::start(&["--shm", "off"]);
    out(&secure.run_trusting(&["set", "k", "v"]));
    assert_eq!(out(&secure.run_trusting(&["get", "k"])), "v");
    assert!(out(&secure.run_trusting(&["stats"])).contains("curr_items"));
    // Values of many TLS records, in both directions.
    let large = "large ".repeat(20_000);
    let file = secure.folder.0.join("value");
    fs::write(&file, &large).unwrap();
    let authority = secure.authority.to_str().unwrap();
    let trust = [
        "--tls",
        "--tls-ca",
        authority,
        "--tls-name",
        "cache.example",
    ];
    let stored = Command::new(env!("CARGO_BIN_EXE_herdwick"))
        .args(["set", "large", "-", "--server", &secure.server.address])
        .args(trust)
        .stdin(fs::File::open(&file).unwrap())
        .output();
    out(&stored.unwrap());
    assert_eq!(out(&secure.run_trusting(&["get", "large"])), large);
    // If no authority vouches for the certificate, or its name differs, nothing is sent.
    let said = complaint(
        &secure.run(&["get", "k", "--tls", "--tls-ca", authority]),
        4,
    );
    assert!(said.contains("--tls-name"), "{said}");
    let other = rcgen::generate_simple_self_signed(vec!["cache.example".into()]).unwrap();
    let path = secure.folder.0.join("other.pem");
    fs::write(&path, other.cert.pem()).unwrap();
    let path = path.to_str().unwrap();
    let strange = [
        "get",
        "k",
        "--tls",
        "--tls-ca",
        path,
        "--tls-name",
        "cache.example",
    ];
    complaint(&secure.run(&strange), 4);
    assert_eq!(
        out(&secure.run(&["get", "k", "--tls", "--tls-insecure"])),
        "v"
    );
}

#[test]
fn what_is_missing_for_tls_is_named() {
    let secure = Secure::start(&["--shm", "off"]);
    let said = complaint(&secure.run(&["get", "k"]), 3);
    assert!(said.contains("--tls"), "{said}");
    let said = complaint(
        &secure.run(&["get", "k", "--tls", "--tls-ca", "/nowhere/ca"]),
        2,
    );
    assert!(said.contains("/nowhere/ca"), "{said}");
    complaint(&secure.run(&["get", "k", "--tls-insecure"]), 2);
    let folder = Folder::new();
    let plain = Server::start(&folder, 1);
    let mut command = Command::new(env!("CARGO_BIN_EXE_herdwick"));
    let get = [
        "get",
        "k",
        "--tls",
        "--tls-insecure",
        "--server",
        &plain.address,
    ];
    let said = complaint(&command.args(get).output().unwrap(), 4);
    assert!(said.contains("Leave --tls out"), "{said}");
}

/// A client on this host discovers shared memory over the encrypted connection.
#[test]
fn shared_memory_is_found_through_tls() {
    let secure = Secure::start(&[]);
    let output = secure.run_trusting(&["set", "k", "v", "-v"]);
    assert_eq!(out(&output), "");
    let transport = String::from_utf8_lossy(&output.stderr);
    assert!(transport.contains("over shm"), "{transport}");
    // Too large for shared memory, so it is sent over the connection.
    let large = "l".repeat(50_000);
    out(&secure.run_trusting(&["set", "large", &large]));
    assert_eq!(out(&secure.run_trusting(&["get", "large"])), large);
}

#[test]
fn clients_show_their_certificates() {
    let mut files = Vec::new();
    let folder = Folder::new();
    for name in ["server", "client"] {
        let made = rcgen::generate_simple_self_signed(vec!["cache.example".into()]).unwrap();
        let path = folder.0.join(name);
        fs::write(&path, made.cert.pem() + &made.signing_key.serialize_pem()).unwrap();
        files.push(path.to_str().unwrap().to_owned());
    }
    let options = format!(
        "ssl_chain_cert={},ssl_verify_mode=2,ssl_ca_cert={}",
        files[0], files[1]
    );
    let server = Server::run(
        &folder,
        1,
        &["-p", "0", "--shm", "off", "-Z", "-o", &options],
    );
    let run = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_herdwick"));
        command.args(["set", "k", "v", "--tls", "--tls-insecure"]);
        let command = command.args(more).args(["--server", &server.address]);
        command.output().unwrap()
    };
    out(&run(&["--tls-cert", &files[1]]));
    assert!(!run(&[]).status.success());
}
