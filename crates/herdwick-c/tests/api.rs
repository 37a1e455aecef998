//! C programs, linked with the static library, against servers in this process: one calls every function, over
//! shared memory, RoCEv2 and TCP, and one provokes failures, under TLS too.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use herdwick_server::{ClientCertificates, Config, KeyFormat, ListenOptions, Server, Tls, spawn};

/// What a static library of Rust's needs.
const LIBRARIES: [&str; 6] = ["-lpthread", "-ldl", "-lm", "-lgcc_s", "-lrt", "-lutil"];

fn config() -> Config {
    Config {
        fabrics: ListenOptions {
            roce: Some(([127, 0, 0, 1], 0).into()),
            ..ListenOptions::default()
        },
        workers: Some(2),
        ..Config::local()
    }
}

fn server() -> Server {
    spawn(config()).unwrap()
}

/// A folder of this test's, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("herdwick-c-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A server with TLS, whose certificate is for its address and is its own authority: `authority.pem` there.
fn secure(folder: &Folder) -> Server {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (chain, key) = (folder.path("authority.pem"), folder.path("key.pem"));
    fs::write(&chain, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let tls = Tls {
        chain,
        key,
        key_format: KeyFormat::Pem,
        authorities: None,
        clients: ClientCertificates::Ignored,
        only_1_3: false,
        session_cache: false,
    };
    let config = Config {
        tls: Some(tls),
        ..config()
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

/// Compiles a program of this folder's. Warnings are errors.
fn compile(folder: &Folder, name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = folder.path(name);
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
        .arg(here.join(format!("tests/{name}.c")))
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
    let folder = Folder::new();
    let program = compile(&folder, "api");
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
}

/// A case of the program `failures`, which runs.
struct Case {
    name: String,
    child: Child,
    stdin: ChildStdin,
}

impl Case {
    fn start(folder: &Folder, arguments: &[&str]) -> Self {
        let authorities = folder.path("authority.pem");
        let mut command = Command::new(folder.path("failures"));
        command
            .args(arguments)
            .args(authorities.exists().then_some(authorities))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        Self {
            name: arguments.join(" "),
            stdin: child.stdin.take().unwrap(),
            child,
        }
    }

    /// Waits until the program says that it is ready.
    fn wait(&mut self) {
        let mut line = String::new();
        let stdout = self.child.stdout.as_mut().unwrap();
        // If the program has failed, its end says why.
        let _ = BufReader::new(stdout).read_line(&mut line);
    }

    /// Lets it go on.
    fn go_on(&mut self) {
        let _ = self.stdin.write_all(b"go\n");
    }

    fn end(self) {
        let Self { name, child, stdin } = self;
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{name}: {} {errors}",
            output.status
        );
    }
}

/// The transports, and whether the server has TLS. The last one has: the folder holds its certificate from then
/// on.
const WAYS: [(&str, bool); 4] = [
    ("shm", false),
    ("roce", false),
    ("tcp", false),
    ("tcp", true),
];

/// Runs cases against a server of each kind.
fn run_with_servers(cases: &[&str]) {
    let folder = Folder::new();
    compile(&folder, "failures");
    for (transport, is_secure) in WAYS {
        let server = match is_secure {
            true => secure(&folder),
            false => server(),
        };
        let address = server.address().to_string();
        for case in cases {
            Case::start(&folder, &[case, &address, transport]).end();
        }
    }
}

#[test]
fn event_loop_sees_what_is_submitted_while_it_waits() {
    run_with_servers(&["waits", "none"]);
}

#[test]
fn forked_child_leaves_its_parents_connections_alone() {
    run_with_servers(&["forks"]);
}

#[test]
fn end_of_a_server_is_a_status_and_no_signal() {
    let folder = Folder::new();
    compile(&folder, "failures");
    for (transport, is_secure) in WAYS {
        let server = match is_secure {
            true => secure(&folder),
            false => server(),
        };
        let address = server.address().to_string();
        let mut case = Case::start(&folder, &["ends", &address, transport]);
        case.wait();
        drop(server);
        case.go_on();
        case.end();
    }
}

#[test]
fn closed_socket_is_a_status_and_no_signal() {
    let folder = Folder::new();
    compile(&folder, "failures");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut case = Case::start(&folder, &["closes", &address, "tcp"]);
    drop(listener.accept().unwrap());
    case.wait();
    case.go_on();
    case.end();
    let path = folder.path("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let mut case = Case::start(&folder, &["closes", path.to_str().unwrap(), "tcp"]);
    drop(listener.accept().unwrap());
    case.wait();
    case.go_on();
    case.end();
}

#[test]
fn silence_and_want_of_descriptors_have_a_status() {
    let folder = Folder::new();
    compile(&folder, "failures");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    for case in ["silent", "descriptors"] {
        Case::start(&folder, &[case, &address, "tcp"]).end();
    }
}
