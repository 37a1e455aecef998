//! Tests of the client subcommands as a shell runs them, against a stock memcached.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use crate::common::memcached_is_installed;

/// A process that is killed on drop.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A memcached on a unix socket.
struct Memcached {
    _process: Killed,
    path: PathBuf,
}

impl Memcached {
    /// Starts a memcached; `None`, with a message, if none is installed.
    fn start() -> Option<Self> {
        // Tests of one process run at once: each needs a path of its own.
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let name = format!("herdwick-cli-{}-{number}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut command = Command::new("memcached");
        if !memcached_is_installed() {
            return None;
        }
        let child = command.args(["-u", "root", "-s"]).arg(&path).spawn();
        let child = child.unwrap();
        let server = Self {
            _process: Killed(child),
            path,
        };
        while herdwick::Client::connect(&server.address()).is_err() {
            thread::yield_now();
        }
        Some(server)
    }

    fn address(&self) -> String {
        self.path.display().to_string()
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Runs `herdwick` with `input`; returns exit code, standard output, standard error.
fn herdwick(args: &[&str], input: &[u8]) -> (i32, Vec<u8>, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_herdwick"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The write fails if the command has closed its standard input without reading it.
    let _ = child.stdin.take().unwrap().write_all(input);
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().unwrap();
    (
        status.code().unwrap(),
        stdout,
        String::from_utf8(stderr).unwrap(),
    )
}

#[test]
fn set_and_get_work_with_memcached() {
    if let Some(server) = Memcached::start() {
        values_go_in_and_come_out(
            &server.address(),
            "over tcp (the server is a memcached, not a herdwick)",
        );
    }
}

#[test]
fn set_and_get_work_with_herdwick() {
    let none = "over tcp (the server offers no fabric: it runs on another host, or as \
                `herdwick serve --shm off`, or cannot share memory (`herdwick doctor` shows the \
                reason on its host); it has no RDMA device; it runs without `--roce`)";
    for (shm, transport) in [("auto", "over shm"), ("off", none)] {
        let (_server, address) = serve(&["--shm", shm]);
        values_go_in_and_come_out(&address, transport);
    }
}

/// Starts a `herdwick serve`; returns it and its address.
fn serve(args: &[&str]) -> (Killed, String) {
    let mut serve = Command::new(env!("CARGO_BIN_EXE_herdwick"));
    serve
        .args(["serve", "-p", "0", "--verbs", "off"])
        .args(args);
    let mut server = Killed(serve.stdout(Stdio::piped()).spawn().unwrap());
    let mut ready = String::new();
    let stdout = server.0.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut ready).unwrap();
    let address = ready.split_whitespace().nth(4).unwrap().to_owned();
    (server, address)
}

#[test]
fn failed_fabric_is_reported_when_another_is_used() {
    let folder = std::env::temp_dir().join(format!("herdwick-cli-way-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let (_server, address) = serve(&[
        "--shm-dir",
        &folder.display().to_string(),
        "--roce",
        "127.0.0.1:0",
    ]);
    let lease = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap();
    std::fs::remove_dir_all(lease.path()).unwrap();
    let (_, _, told) = herdwick(&["get", "key", "-v", "--server", &address], b"");
    std::fs::remove_dir(&folder).unwrap();
    let transport = "herdwick: over roce (the server's lease socket, ";
    assert!(told.contains(transport), "{told}");
}

fn values_go_in_and_come_out(address: &str, transport: &str) {
    let at = ["--server", address];
    let run = |args: &[&str], input: &[u8]| {
        let (code, out, err) = herdwick(&[args, &at].concat(), input);
        (code, String::from_utf8_lossy(&out).into_owned(), err)
    };
    let quiet = |code, out: &str| (code, out.to_owned(), String::new());

    assert_eq!(
        run(&["get", "a"], b""),
        (1, String::new(), "herdwick: a: not there\n".into())
    );
    assert_eq!(
        run(&["set", "a", "one", "--flags", "3", "--ttl", "1000"], b""),
        quiet(0, "")
    );
    assert_eq!(run(&["get", "a"], b""), quiet(0, "one"));
    let told = (0, "one".into(), format!("herdwick: {transport}\n"));
    assert_eq!(run(&["get", "a", "-v"], b""), told);
    assert_eq!(run(&["set", "b", "-"], b"from\r\nstdin\n"), quiet(0, ""));
    assert_eq!(run(&["get", "b"], b""), quiet(0, "from\r\nstdin\n"));
    let both = run(&["get", "a", "none", "b"], b"");
    assert_eq!(
        both,
        (
            1,
            "a\tone\nb\tfrom\r\nstdin\n\n".into(),
            "herdwick: none: not there\n".into()
        )
    );
    assert_eq!(run(&["delete", "a"], b""), quiet(0, ""));
    let missing = (1, String::new(), "herdwick: a: not there\n".into());
    assert_eq!(run(&["delete", "a"], b""), missing);
    assert_eq!(run(&["stats", "detail", "dump"], b"").0, 0);
    let (code, out, _) = run(&["stats"], b"");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut stats = Command::new(env!("CARGO_BIN_EXE_herdwick"));
    stats.args(["stats", "--server", address]).stdout(writer);
    let closed = stats.output().unwrap();
    assert!(
        closed.status.success() && closed.stderr.is_empty(),
        "{closed:?}"
    );
    let items = out
        .lines()
        .find(|line| line.starts_with("curr_items"))
        .unwrap();
    assert_eq!((code, items.split_whitespace().nth(1)), (0, Some("1")));
    let (code, _, err) = run(&["set", "a b", "x"], b"");
    assert_eq!((code, err.contains("no spaces")), (2, true), "{err}");
}

#[test]
fn several_servers_share_the_keys() {
    let mut servers: Vec<_> = (0..3).map(|_| serve(&["-t", "1"])).collect();
    let addresses: Vec<String> = servers.iter().map(|(_, at)| at.clone()).collect();
    let list = addresses.join(",");
    let run = |args: &[&str], input: &[u8]| {
        let (code, out, err) = herdwick(&[args, &["--server", &list]].concat(), input);
        (code, String::from_utf8(out).unwrap(), err)
    };
    let keys: Vec<String> = (0..12).map(|n| format!("key-{n}")).collect();
    let (code, located, _) = run(&["locate", "-"], keys.join("\n").as_bytes());
    assert_eq!(code, 0);
    let home = |key: &str| {
        let found = located
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('\t'));
        found.unwrap().to_owned()
    };
    for key in &keys {
        assert_eq!(run(&["set", key, key], b"").0, 0);
        let one = herdwick(&["get", key, "--server", &home(key)], b"");
        assert_eq!(
            (one.0, one.1),
            (0, key.clone().into_bytes()),
            "at the one located"
        );
    }
    let mut get = vec!["get"];
    get.extend(keys.iter().map(String::as_str));
    let line = |key: &String| format!("{key}\t{key}\n");
    let all: String = keys.iter().map(line).collect();
    assert_eq!(run(&get, b""), (0, all, String::new()));
    let (code, out, _) = run(&["stats"], b"");
    let named = addresses.iter().all(|at| out.contains(&format!("{at}:\n")));
    assert!(code == 0 && named, "{out}");
    let gone = home(&keys[0]);
    servers.retain(|(_, address)| *address != gone);
    let left = keys.iter().filter(|key| home(key) != gone);
    let (code, out, err) = run(&get, b"");
    assert_eq!((code, out), (3, left.map(line).collect()));
    assert!(
        err.starts_with(&format!("herdwick: cannot reach {gone}: ")),
        "{err}"
    );
    assert_eq!(err.lines().count(), 1, "no key is missing: {err}");
    let twice = herdwick(&["get", "k", "--server", "a,a"], b"");
    assert!(
        twice.0 == 2 && twice.2.contains("a,a: two servers"),
        "{twice:?}"
    );
}

#[test]
fn unreachable_server_is_named_with_what_to_try() {
    let (code, _, err) = herdwick(&["get", "k", "--server", "nowhere.invalid"], b"");
    assert!(
        err.contains("does not resolve") && err.contains("name another"),
        "{err}"
    );
    assert_eq!(code, 3);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let (code, _, err) = herdwick(&["get", "k", "--server", &address], b"");
    let start = format!(
        "herdwick: cannot reach {address}: Connection refused (os error 111); start one with"
    );
    assert!(err.starts_with(&start), "{err}");
    assert_eq!(code, 3);
}

#[test]
fn what_is_no_address_is_named_with_what_is_one() {
    for wrong in ["::1", "localhost:99999", "http://localhost:11211", ""] {
        let (code, _, err) = herdwick(&["get", "k", "--server", wrong], b"");
        let start = format!("herdwick: {wrong}: an address is HOST:PORT, [IPV6]:PORT, or ");
        assert!(err.starts_with(&start), "{err}");
        assert_eq!(code, 2);
    }
}

/// A listener that accepts connections and never answers.
#[test]
fn a_server_that_does_not_answer_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let named = |arguments: &[&str]| {
        let (code, _, err) = herdwick(&[arguments, &["--server", &address]].concat(), b"");
        assert!(
            err.starts_with(&format!("herdwick: {address}: no answer within "))
                && err.contains("stopped or overloaded"),
            "{err}"
        );
        assert_eq!(code, 3);
    };
    thread::scope(|scope| {
        for arguments in [&["get", "k"][..], &["stats"], &["top", "--json"]] {
            scope.spawn(move || named(arguments));
        }
    });
}

#[test]
fn statistics_that_do_not_exist_are_named() {
    let (_server, address) = serve(&["--shm", "off"]);
    let memcached = Memcached::start();
    let addresses = memcached.iter().map(Memcached::address).chain([address]);
    for address in addresses {
        let (code, out, err) = herdwick(&["stats", "bogus", "--server", &address], b"");
        assert!(
            err.contains("no statistics called \"bogus\"; `herdwick stats` alone"),
            "{err}"
        );
        assert_eq!((code, &out[..]), (2, &b""[..]));
    }
}

#[test]
fn doctor_prints_json() {
    let (code, out, err) = herdwick(&["doctor", "--json"], b"");
    let report: serde_json::Value = serde_json::from_slice(&out).unwrap();
    let fabrics = report["fabrics"].as_object().unwrap();
    assert!(
        ["shm", "roce", "verbs"]
            .iter()
            .all(|name| fabrics.contains_key(*name))
    );
    let mut needed = fabrics
        .values()
        .filter(|fabric| fabric["optional"] == false);
    let all_work = needed.all(|fabric| fabric["status"] == "works");
    assert_eq!(code == 0, all_work, "{err}");
    assert!(report["host"]["cpus"]["allowed"].as_u64() >= Some(1));
}
