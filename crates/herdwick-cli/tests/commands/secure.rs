//! Tests of the client commands against a server with TLS (`serve -Z`).

use std::{
    fs,
    path::PathBuf,
    process::{Command, Output},
};

use crate::common::{Folder, Server};

/// A server with TLS, its certificate, which is its own authority, and a file with both.
struct Secure {
    folder: Folder,
    server: Server,
    authority: PathBuf,
}

impl Secure {
    fn start(more: &[&str]) -> Self {
        let folder = Folder::new();
        let made = rcgen::generate_simple_self_signed(vec![NAME.into()]).unwrap();
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
        self.run(&[arguments, &self.trust()].concat())
    }

    /// Returns the options that accept this server's certificate.
    fn trust(&self) -> [&str; 5] {
        let authority = self.authority.to_str().unwrap();
        ["--tls", "--tls-ca", authority, "--tls-name", NAME]
    }
}

/// The name in the certificates.
const NAME: &str = "cache.example";

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
fn client_commands_use_tls_and_verify_the_certificate() {
    let secure = Secure::start(&["--shm", "off"]);
    out(&secure.run_trusting(&["set", "k", "v"]));
    assert_eq!(out(&secure.run_trusting(&["get", "k"])), "v");
    assert!(out(&secure.run_trusting(&["stats"])).contains("curr_items"));
    // Values of many TLS records, in both directions.
    let large = "large ".repeat(20_000);
    let file = secure.folder.0.join("value");
    fs::write(&file, &large).unwrap();
    let stored = Command::new(env!("CARGO_BIN_EXE_herdwick"))
        .args(["set", "large", "-", "--server", &secure.server.address])
        .args(secure.trust())
        .stdin(fs::File::open(&file).unwrap())
        .output();
    out(&stored.unwrap());
    assert_eq!(out(&secure.run_trusting(&["get", "large"])), large);
    // If no authority vouches for the certificate, or its name differs, nothing is sent.
    let authority = secure.authority.to_str().unwrap();
    let said = complaint(
        &secure.run(&["get", "k", "--tls", "--tls-ca", authority]),
        4,
    );
    assert!(said.contains("--tls-name"), "{said}");
    let other = rcgen::generate_simple_self_signed(vec![NAME.into()]).unwrap();
    let path = secure.folder.0.join("other.pem");
    fs::write(&path, other.cert.pem()).unwrap();
    let path = path.to_str().unwrap();
    let strange = ["get", "k", "--tls", "--tls-ca", path, "--tls-name", NAME];
    complaint(&secure.run(&strange), 4);
    assert_eq!(
        out(&secure.run(&["get", "k", "--tls", "--tls-insecure"])),
        "v"
    );
}

#[test]
fn missing_tls_settings_are_named() {
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
fn shm_is_discovered_over_tls() {
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
fn clients_present_their_certificates() {
    let mut files = Vec::new();
    let folder = Folder::new();
    for name in ["server", "client"] {
        let made = rcgen::generate_simple_self_signed(vec![NAME.into()]).unwrap();
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
    // With TLS 1.3 the server refuses a client after the client's part of the handshake.
    let said = complaint(&run(&[]), 4);
    assert!(
        said.contains("CertificateRequired") && said.contains("--tls-cert"),
        "{said}"
    );
    let said = complaint(&run(&["--tls-cert", &files[0]]), 4);
    assert!(said.contains("--tls-cert"), "{said}");
    // `top` does not exchange the hello.
    let mut top = Command::new(env!("CARGO_BIN_EXE_herdwick"));
    top.args(["top", "--json", "--tls", "--tls-insecure", "--server"]);
    let said = complaint(&top.arg(&server.address).output().unwrap(), 4);
    assert!(said.contains("--tls-cert"), "{said}");
}

/// `openssl req -x509` makes certificates of authorities.
#[test]
fn a_certificate_of_an_authority_is_no_servers() {
    let folder = Folder::new();
    let key = rcgen::KeyPair::generate().unwrap();
    let mut made = rcgen::CertificateParams::new(vec![NAME.into()]).unwrap();
    made.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let made = made.self_signed(&key).unwrap();
    let both = folder.0.join("both.pem");
    fs::write(&both, made.pem() + &key.serialize_pem()).unwrap();
    let chain = format!("ssl_chain_cert={}", both.display());
    let server = Server::run(&folder, 1, &["-p", "0", "-Z", "-o", &chain]);
    let authority = both.to_str().unwrap();
    let mut get = Command::new(env!("CARGO_BIN_EXE_herdwick"));
    get.args([
        "get",
        "k",
        "--tls",
        "--tls-ca",
        authority,
        "--tls-name",
        NAME,
    ]);
    let refused = get.args(["--server", &server.address]).output().unwrap();
    let said = complaint(&refused, 4);
    assert!(
        said.contains("basicConstraints=critical,CA:FALSE"),
        "{said}"
    );
}

#[test]
fn a_key_of_another_certificate_is_named() {
    let folder = Folder::new();
    let file = |name: &str, text: String| {
        let path = folder.0.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let one = rcgen::generate_simple_self_signed(vec![NAME.into()]).unwrap();
    let other = rcgen::generate_simple_self_signed(vec![NAME.into()]).unwrap();
    let certificate = file("certificate", one.cert.pem());
    let key = file("key", other.signing_key.serialize_pem());
    let named = format!("the key in {key} is not that of the first certificate in {certificate}; ");
    let chain = format!("ssl_chain_cert={certificate},ssl_key={key}");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_herdwick"));
        command.args(arguments).output().unwrap()
    };
    let said = complaint(&run(&["serve", "-p", "0", "-Z", "-o", &chain]), 2);
    assert!(
        said.contains(&named) && said.contains("-o ssl_key=FILE"),
        "{said}"
    );
    let shown = ["--tls-cert", &certificate, "--tls-key", &key];
    let get = [&["get", "k", "--tls", "--tls-insecure"], &shown[..]].concat();
    let said = complaint(&run(&get), 2);
    assert!(said.contains(&named), "{said}");
}

const TINY: [&str; 7] = ["bench", "--keys", "500", "--seconds", "0.1", "--runs", "1"];

/// Returns the lines of a benchmark's table, one for each transport or system.
fn measured(output: &Output) -> Vec<String> {
    let table = out(output);
    let lines = table.lines().filter(|line| line.contains(" b 95% "));
    lines.map(str::to_owned).collect()
}

#[test]
fn a_server_with_tls_is_measured_over_tcp_and_shared_memory() {
    let secure = Secure::start(&[]);
    let tcp = [&TINY[..], &["--fabric", "tcp", "--pipeline", "8"]].concat();
    assert_eq!(measured(&secure.run_trusting(&tcp)).len(), 1);
    // Several TLS records in each read.
    let large = [&tcp[..], &["--value-size", "20000", "--multiget", "4"]].concat();
    assert_eq!(measured(&secure.run_trusting(&large)).len(), 1);
    assert_eq!(measured(&secure.run_trusting(&TINY)).len(), 2);
    let crowd = [&tcp[..], &["--idle-connections", "3"]].concat();
    assert_eq!(measured(&secure.run_trusting(&crowd)).len(), 2);
    let hostile = [&TINY[..1], &["hostile"], &TINY[1..]].concat();
    out(&secure.run_trusting(&hostile));
    let said = complaint(&secure.run(&tcp), 3);
    assert!(said.contains("--tls"), "{said}");
    let roce = [&TINY[..], &["--fabric", "roce"]].concat();
    let said = complaint(&secure.run_trusting(&roce), 2);
    assert!(said.contains("only shm and tcp"), "{said}");
}

#[test]
fn a_server_with_users_is_measured_by_those_who_log_in() {
    let folder = Folder::new();
    let users = folder.0.join("users");
    fs::write(&users, "ann:secret\n").unwrap();
    let users = users.to_str().unwrap();
    let server = Server::run(&folder, 1, &["-p", "0", "-Y", users]);
    let run = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_herdwick"));
        command.args(TINY).args(more);
        let command = command.args(["--server", &server.address]);
        command.output().unwrap()
    };
    assert_eq!(measured(&run(&["--login", users])).len(), 2);
    for fabric in ["tcp", "shm"] {
        let said = complaint(&run(&["--fabric", fabric]), 4);
        assert!(said.contains("by --login"), "{said}");
    }
    let wrong = folder.0.join("wrong");
    fs::write(&wrong, "ann:guess\n").unwrap();
    let said = complaint(&run(&["--login", wrong.to_str().unwrap()]), 4);
    assert!(said.contains("`serve -Y`"), "{said}");
    // The server's file, copied whole, is no login.
    fs::write(&wrong, "ann:secret\nbob:secret\n").unwrap();
    let said = complaint(&run(&["--login", wrong.to_str().unwrap()]), 2);
    assert!(said.contains("it is not one line"), "{said}");
}
