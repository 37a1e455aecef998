//! Tests of `herdwick serve` as an operator runs it, with memcached's flags.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::PathBuf,
    process::{Child, ChildStderr, Command, Output, Stdio},
    sync::Arc,
};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, pki_types::CertificateDer,
};

mod mistakes;
mod starts;

/// A server that is killed on drop.
struct Serve {
    child: Child,
    ready: String,
    complaints: Option<BufReader<ChildStderr>>,
}

impl Serve {
    fn start(arguments: &str) -> Self {
        Self::of(command(arguments).stderr(Stdio::null()))
    }

    /// Starts a server with its standard error piped.
    fn saying(arguments: &str) -> Self {
        Self::of(command(arguments).stderr(Stdio::piped()))
    }

    fn of(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut ready).unwrap();
        let complaints = child.stderr.take().map(BufReader::new);
        Self {
            child,
            ready,
            complaints,
        }
    }

    /// Returns the next line of its standard error.
    fn complaint(&mut self) -> String {
        let mut line = String::new();
        let complaints = self.complaints.as_mut().expect("standard error is read");
        complaints.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "the server has ended");
        line
    }

    /// Returns the addresses in its ready line.
    fn addresses(&self) -> Vec<String> {
        let (_, rest) = self.ready.split_once(" ready on ").unwrap();
        let (list, _) = rest.split_once(" (").unwrap();
        list.split(", ").map(str::to_owned).collect()
    }

    fn ask(&self, question: &str) -> String {
        ask(&self.addresses()[0], question)
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends `question` to `address`, and returns the answer until the server closes the connection.
fn ask(address: &str, question: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(question.as_bytes()).unwrap();
    stream.write_all(b"quit\r\n").unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    said
}

fn command(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_herdwick"));
    // `-u root` suppresses the warning to root; for other users -u has no effect.
    command.args(["serve", "-u", "root"]);
    command.args(arguments.split_whitespace());
    command
}

fn output(arguments: &str) -> Output {
    command(arguments).output().unwrap()
}

/// Asserts that the server does not start; returns the reason.
fn complaint(arguments: &str) -> String {
    let output = output(arguments);
    assert!(!output.status.success(), "{arguments}");
    String::from_utf8(output.stderr).unwrap()
}

/// A unique path in the directory for test files, removed on drop.
struct Path(PathBuf);

impl Path {
    fn new(name: &str) -> Self {
        let name = format!("serve-{}-{name}", std::process::id());
        Self([env!("CARGO_TARGET_TMPDIR"), &name].iter().collect())
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.display().fmt(f)
    }
}

#[test]
fn help_and_version_have_the_format_that_tools_expect() {
    for flag in ["-h", "--help"] {
        let help = String::from_utf8(output(flag).stdout).unwrap();
        assert!(help.starts_with("memcached 1.6."), "{help}");
        for flag in [
            "-p", "-s", "-a", "-l", "-m", "-c", "-t", "-I", "-R", "-b", "-d", "-u", "-P",
        ] {
            assert!(help.contains(&format!("{flag}, --")), "{flag}");
        }
    }
    let version = String::from_utf8(output("-V").stdout).unwrap();
    let banner = concat!(
        "memcached 1.6.45 (herdwick ",
        env!("CARGO_PKG_VERSION"),
        ")"
    );
    assert_eq!(version, format!("{banner}\n"));
    for flag in ["-i", "--license"] {
        let license = output(flag);
        assert!(license.status.success());
        let license = String::from_utf8(license.stdout).unwrap();
        assert!(
            license.starts_with(banner) && license.contains("Apache License"),
            "{license}"
        );
    }
}

#[test]
fn unsupported_flags_are_refused_with_an_alternative() {
    for (arguments, instead) in [
        ("-S", "-Y FILE"),
        ("-S", "MEMCACHED_SASL_PWDB"),
        ("-S -Y /nowhere/users", "-Y"),
        ("-Z", "-o ssl_chain_cert=FILE"),
        ("-Z -o ssl_chain_cert=/nowhere", "ssl_chain_cert"),
        ("-e /nowhere/file", "(-e)"),
        ("-U 70000", "65535"),
        ("-l btls:127.0.0.1", "leave btls: out"),
        ("-o ext_path=/x:1G", "-m"),
        ("-o ssl_ciphers=ALL", "leave it out"),
        ("-o ssl_min_version=tlsv1.0", "tlsv1.3"),
        ("-o nothing", "--help"),
        ("-o drop_privileges", "SystemCallFilter="),
        ("-o relaxed_privileges", "leave it out"),
        ("-o sock_cookie_id=7", "leave it out"),
        (
            "-Z -o ssl_chain_cert=/x -s /nowhere/socket",
            "leave one of them out",
        ),
        ("--roce off --roce-keyed", "--roce ADDR"),
        ("-o idle_timeout", "idle_timeout=SECONDS"),
        ("-a 999", "0700"),
        ("-I 2g", "1k and 1024m"),
        ("-u no-such-user-here", "give another"),
        ("-c 4000000000", "-c"),
        ("-c 0", "-c"),
        ("-t 1000", "-t"),
        ("-m 0", "give at least -m 1"),
        ("-m 1000k", "whole number of megabytes"),
        ("-B telnet", "auto, ascii or binary"),
        ("-p -2", "-1 for a free one"),
        ("-l 192.0.2.1", "`ip addr`"),
        ("-s /nowhere/socket", "(-s)"),
        ("--shm maybe", "auto or off"),
        ("--pin first", "0-3,8"),
        ("--pin 1023", "taskset"),
        ("-t 2 --pin 0", "fewer workers (-t)"),
        ("--shm-dir /nowhere", "--shm off"),
        ("-Y /nowhere/users", "-Y"),
        ("-P /nowhere/pid", "-P"),
        ("-l no.such.host.invalid", "-l"),
        ("--config /nowhere/file", "--config"),
    ] {
        let said = complaint(&format!("-p 0 {arguments}"));
        assert!(said.contains(instead), "{arguments}: {said}");
    }
}

/// Returns the CPUs that the first worker of a server may use, and those of its first thread.
fn cpus(server: &Serve) -> (String, String) {
    let list = |task: PathBuf| {
        let status = fs::read_to_string(task.join("status")).unwrap();
        let mut lines = status.lines();
        let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        list.unwrap().trim().to_owned()
    };
    let process = PathBuf::from(format!("/proc/{}", server.child.id()));
    // A thread sets its own name, possibly after the server is ready.
    loop {
        let tasks = fs::read_dir(process.join("task")).unwrap();
        let mut tasks = tasks.map(|task| task.unwrap().path());
        let named = |task: &PathBuf| {
            fs::read_to_string(task.join("comm")).is_ok_and(|name| name == "worker-0\n")
        };
        if let Some(worker) = tasks.find(named) {
            return (list(worker), list(process));
        }
        std::thread::yield_now();
    }
}

/// Two servers that both pin to the first CPUs would leave the others idle.
#[test]
fn workers_are_pinned_only_with_pin() {
    let (worker, process) = cpus(&Serve::start("-p 0 -t 1"));
    assert_eq!(worker, process);
    let last: String = {
        let end = process.rfind([',', '-']).map_or(0, |at| at + 1);
        process[end..].to_owned()
    };
    let (worker, unpinned) = cpus(&Serve::start(&format!("-p 0 -t 1 --pin {last}")));
    assert_eq!((worker, unpinned), (last, process.clone()));
    let first = process.split([',', '-']).next().unwrap();
    let (worker, _) = cpus(&Serve::start("-p 0 -t 1 --pin auto"));
    assert_eq!(worker, first);
}

/// A command line as in a unit file, with every option that tunes slabs.
#[test]
fn memcached_flags_take_effect() {
    let server = Serve::start(
        "-p 0 -U 0 -m 100 -c 77 -t 3 -R 20 -b -1 -I 512k -F -X -A -vv -f 1.5 -n 64 -L -B ascii -C \
         -o no_modern,lru_crawler_tocrawl=9,hashpower=20,idle_timeout=9",
    );
    let said = server.ask("stats settings\r\nflush_all\r\n");
    for (name, value) in [
        ("maxbytes", "104857600"),
        ("maxconns", "77"),
        ("num_threads", "3"),
        ("reqs_per_event", "20"),
        ("tcp_backlog", "-1"),
        ("item_size_max", "524288"),
        ("flush_enabled", "no"),
        ("dump_enabled", "no"),
        ("shutdown_command", "yes"),
        ("verbosity", "2"),
        ("idle_timeout", "9"),
        ("maxconns_fast", "no"),
        ("lru_crawler", "no"),
        ("lru_crawler_tocrawl", "9"),
        ("inter", "127.0.0.1"),
    ] {
        assert!(
            said.contains(&format!("STAT {name} {value}\r\n")),
            "{name} {said}"
        );
    }
    assert!(said.ends_with("CLIENT_ERROR flush_all not allowed\r\n"));
}

#[test]
fn server_listens_on_several_addresses_and_ipv6() {
    let server = Serve::start("-p 0 -l 127.0.0.1;127.0.0.2, -l [::1] -o idle_timeout=5,");
    let addresses = server.addresses();
    assert_eq!(addresses.len(), 3);
    for address in &addresses {
        assert!(
            ask(address, "version\r\n").starts_with("VERSION 1.6."),
            "{address}"
        );
    }
    assert!(addresses[2].starts_with("[::1]:"));
    let settings = ask(&addresses[2], "stats settings\r\n");
    assert!(
        settings.contains("STAT inter 127.0.0.1,127.0.0.2,::1\r\n"),
        "{settings}"
    );
}

#[test]
fn unix_socket_has_the_mode_of_a() {
    let path = Path::new("socket");
    let _server = Serve::start(&format!("-s {path} -a 0750"));
    assert_eq!(
        fs::metadata(&path.0).unwrap().permissions().mode() & 0o777,
        0o750
    );
    let mut stream = UnixStream::connect(&path.0).unwrap();
    stream.write_all(b"version\r\nquit\r\n").unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    assert!(said.starts_with("VERSION"));
}

/// The command line follows the file: it overrides it, and its lists are added.
#[test]
fn config_file_sets_flags_and_command_line_overrides() {
    let path = Path::new("flags");
    let text = "port = 0\nmemory-limit = 100\nlisten = [\"127.0.0.2\"]\nextended = [\"idle_timeout=7\"]\nenable-shutdown = true\n";
    fs::write(&path.0, text).unwrap();
    let server = Serve::start(&format!("--config {path} -m 120"));
    let said = server.ask("stats settings\r\n");
    for line in [
        "maxbytes 125829120",
        "idle_timeout 7",
        "shutdown_command yes",
        "inter 127.0.0.2",
    ] {
        assert!(said.contains(&format!("STAT {line}\r\n")), "{line}: {said}");
    }
}

/// The error is one line that names the file, the line in it, the flag, and what is wrong.
#[test]
fn config_file_errors_name_the_line() {
    let path = Path::new("wrong-flags");
    for (wrong, expected) in [
        ("port = \"abc\"", "1: port: 'abc' is not a port: "),
        (
            "# flags\n\nport = 1.5",
            "3: port: a number with a fraction is no value for a flag: ",
        ),
        ("port = 1\nx =", "2: not TOML: "),
        ("port = 1\nport = 2", "2: port: given twice"),
        (
            "p = 3",
            "1: p: flags have their long names here; write port",
        ),
        ("[port]\nx = 1", "1: port: a table is no value for a flag: "),
        (
            "port = 0x10",
            "1: port: a number that is not decimal is no value for a flag: ",
        ),
        (
            "port = 0\nno-such-flag = 1",
            "2: no-such-flag: no such flag; ",
        ),
        (
            "conn-limt = 1",
            "1: conn-limt: no such flag; is it conn-limit?",
        ),
        ("daemon = \"yes\"", "1: daemon: 'yes' is not true or false"),
        ("threads = \"two\"", "1: threads: 'two' is not a number"),
        (
            "memory-limit = \"1q\"",
            "1: memory-limit: '1q' is not a size: ",
        ),
        (
            "log-format = \"xml\"",
            "1: log-format: 'xml' is not one of text, json",
        ),
        (
            "port = 0\nlisten = [\"127.0.0.1\",\n\"btls:127.0.0.1\"]",
            "2: listen: 'btls:127.0.0.1': ",
        ),
        (
            "port = 0\nlisten = 1",
            "2: listen: '1' is not an address: give one such as 127.0.0.1",
        ),
        (
            "config = \"x\"",
            "1: config: a file of flags names no other",
        ),
        (
            "port = 0\nhelp = true",
            "2: help: no such flag; `herdwick serve --help` lists them",
        ),
        ("version = true", "1: version: no such flag; "),
        (
            "verbose = -1",
            "1: verbose: '-1' is not true, false or a count up to 255",
        ),
        (
            "verbose = \"x\"",
            "1: verbose: 'x' is not true, false or a count up to 255",
        ),
        (
            "listen = \"127.0.0.1;::1,x:y\"",
            "1: listen: '127.0.0.1;::1,x:y': give ADDR",
        ),
        (
            "extended = [\"idle_timeout=x\"]",
            "1: extended: 'idle_timeout=x': give ",
        ),
    ] {
        fs::write(&path.0, wrong).unwrap();
        let output = output(&format!("--config {path}"));
        let said = String::from_utf8(output.stderr).unwrap();
        let start = format!("herdwick: {path}:{expected}");
        assert!(said.starts_with(&start), "{wrong}: {said}");
        assert_eq!((said.lines().count(), output.status.code()), (1, Some(2)));
    }
    // A missing flag has no line in the file; the one that requires it has.
    fs::write(&path.0, "port = 0\nmetrics-hot-keys = true").unwrap();
    let said = complaint(&format!("--config {path}"));
    let start = format!("herdwick: {path}:2: metrics-hot-keys: the following required ");
    assert!(
        said.starts_with(&start) && said.contains("--metrics"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
}

/// What only the start finds wrong is named by the line of the flag, too, unless the command line
/// gave the value.
#[test]
fn values_that_a_start_refuses_are_named_by_their_line() {
    let path = Path::new("refused-flags");
    for (text, expected) in [
        ("port = 0\nthreads = 0", "2: 0 workers: "),
        ("\nport = 0\nmemory-limit = 0", "3: -m 0 is too little "),
        (
            "port = 0\nlisten = \"a b\"",
            "2: cannot make sense of the address ",
        ),
        (
            "port = 0\nauth-file = \"/nowhere/users\"",
            "2: cannot read the users ",
        ),
        (
            "port = 0\nenable-ssl = true",
            "2: -Z: name the server's certificate ",
        ),
        (
            "port = 0\nenable-ssl = true\n\nextended = [\"ssl_chain_cert=/nowhere/chain\"]",
            "4: cannot read certificates in ",
        ),
        (
            "port = 0\nmemory-file = \"/nowhere/items\"",
            "2: cannot keep items in ",
        ),
        (
            "port = 0\nroce-keyed = true",
            "2: roce-keyed: the following required ",
        ),
    ] {
        fs::write(&path.0, text).unwrap();
        let said = complaint(&format!("--config {path}"));
        let start = format!("herdwick: {path}:{expected}");
        assert!(said.starts_with(&start), "{text}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    fs::write(&path.0, "port = 0\nthreads = 2").unwrap();
    let said = complaint(&format!("--config {path} -t 0"));
    assert!(said.starts_with("herdwick: 0 workers: "), "{said}");
}

/// The log level follows the file, and what clients set, while the server runs.
#[test]
fn log_level_follows_the_reloaded_config_file() {
    let path = Path::new("verbose");
    fs::write(&path.0, "port = 0\nthreads = 1\n").unwrap();
    let mut server = Serve::saying(&format!("--config {path}"));
    fs::write(&path.0, "port = 0\nthreads = 1\nverbose = true\n").unwrap();
    kill_process(server.pid(), Signal::HUP).unwrap();
    assert_eq!(server.complaint(), "herdwick: flags read again\n");
    fs::write(&path.0, "port = 0\nthreads = 1\n").unwrap();
    kill_process(server.pid(), Signal::HUP).unwrap();
    // A quiet log shows nothing, so wait until the setting has changed back.
    while !server.ask("stats settings\r\n").contains("verbosity 0") {}
    kill_process(server.pid(), Signal::TERM).unwrap();
    let mut rest = String::new();
    let complaints = server.complaints.as_mut().unwrap();
    complaints.read_to_string(&mut rest).unwrap();
    assert!(!rest.contains("draining"), "{rest}");
}

#[test]
fn shutdown_command_ends_the_process_with_enable_shutdown() {
    let mut server = Serve::start("-p 0 -A");
    let mode = "CLIENT_ERROR invalid shutdown mode\r\n";
    assert_eq!(server.ask("shutdown now\r\n"), mode);
    assert_eq!(server.ask("shutdown graceful\r\nversion\r\n"), "");
    assert!(server.child.wait().unwrap().success());
}

/// -d returns when the server answers, -P names its process, and SIGTERM ends it and removes the
/// file.
#[test]
fn daemon_starts_writes_its_pid_file_and_ends_on_sigterm() {
    let path = Path::new("pid");
    let started = output(&format!("-p 0 -d -P {path}"));
    assert!(started.status.success());
    let ready = String::from_utf8(started.stdout).unwrap();
    let address = ready.split_whitespace().nth(4).unwrap();
    assert!(ask(address, "version\r\n").starts_with("VERSION"));
    let pid: i32 = fs::read_to_string(&path.0).unwrap().trim().parse().unwrap();
    // The leader of a session of its own, without a controlling terminal (proc(5)).
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let fields: Vec<i32> = fields
        .split(' ')
        .skip(2)
        .take(3)
        .map(|field| field.parse().unwrap())
        .collect();
    let leader = vec![pid, pid, 0];
    let pid = Pid::from_raw(pid).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    while path.0.exists() && test_kill_process(pid).is_ok() {
        std::thread::yield_now();
    }
    assert!(!path.0.exists());
    assert_eq!(fields, leader, "group, session and terminal: {stat}");
    let refused = output("-p 0 -d -m 0");
    assert_eq!(refused.status.code(), Some(2), "as without -d");
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(why.contains("give at least -m"), "{why}");
}

/// `--slow-log` counts microseconds: `stats settings` shows the threshold in them.
#[test]
fn slow_log_takes_microseconds() {
    for (options, setting, slow) in [
        ("--slow-log 0", "0", Some("2")),
        ("--slow-log 3600000000", "3600000000", Some("0")),
        ("--latency", "off", None),
    ] {
        let server = Serve::start(&format!("-p 0 -t 2 {options}"));
        let settings = server.ask("stats settings\r\n");
        let expected = format!("STAT slow_log_us {setting}\r\n");
        assert!(settings.contains(&expected), "{options}: {settings}");
        let is_measured = format!(
            "STAT latency {}\r\n",
            if slow.is_none() { "yes" } else { "no" }
        );
        assert!(settings.contains(&is_measured), "{options}: {settings}");
        server.ask("set a 0 0 1\r\n1\r\nget a\r\n");
        let stats = server.ask("stats\r\n");
        let count = stats
            .lines()
            .find_map(|line| line.strip_prefix("STAT slow_requests "));
        assert_eq!(count, slow, "{options}");
    }
}

/// Each accepted option without effect is named, once, with the reason.
#[test]
fn options_without_effect_are_reported() {
    let mut server = Serve::saying(
        "-p 0 -f 1.5 -o read_buf_mem_limit=8,modern,no_lru_maintainer -o modern,no_drop_privileges \
         -o udp_trusted=10.0.0.0/8,resp_obj_mem_limit=8 --shm off --shm-mode 0700 --roce off \
         --roce-pcap unused --request-path ud-send --verbs off --metrics 0 --metrics-hot-keys -X",
    );
    kill_process(server.pid(), Signal::TERM).unwrap();
    let mut said = String::new();
    let complaints = server.complaints.as_mut().unwrap();
    complaints.read_to_string(&mut said).unwrap();
    for name in [
        "-f:",
        "-o read_buf_mem_limit:",
        "-o modern:",
        "-o no_lru_maintainer:",
        "-o no_drop_privileges:",
        "-o resp_obj_mem_limit:",
        "-o udp_trusted:",
        "--shm-dir and --shm-mode:",
        "--roce-pcap:",
        "--request-path:",
        "--metrics-hot-keys:",
    ] {
        let about = format!("herdwick: ignored {name} ");
        assert_eq!(said.matches(&about).count(), 1, "{name} {said}");
    }
    assert_eq!(said.matches("ignored").count(), 11, "{said}");
}

#[test]
fn start_as_root_without_u_is_warned_of() {
    if !rustix::process::getuid().is_root() {
        println!("skipped: this is not root");
        return;
    }
    for (user, told) in [("", true), ("-u root", false)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_herdwick"));
        command.args(["serve", "-p", "0", "-t", "1"]);
        command.args(user.split_whitespace());
        let mut server = Serve::of(command.stderr(Stdio::piped()));
        kill_process(server.pid(), Signal::TERM).unwrap();
        let mut said = String::new();
        let complaints = server.complaints.as_mut().unwrap();
        complaints.read_to_string(&mut said).unwrap();
        assert_eq!(said.contains("name another user (-u)"), told, "{said}");
    }
}

/// The number in the file is that of the server that has the port.
#[test]
fn failed_start_keeps_the_pid_file_of_the_running_server() {
    let path = Path::new("pid-kept");
    let first = Serve::start(&format!("-p 0 -P {path}"));
    let number = format!("{}\n", first.child.id());
    assert_eq!(fs::read_to_string(&path.0).unwrap(), number);
    let said = complaint(&format!("-l {} -P {path}", first.addresses()[0]));
    assert!(said.contains("is in use"), "{said}");
    assert_eq!(fs::read_to_string(&path.0).unwrap(), number);
    // A server on another port is warned that it replaces the file, and the earlier server does not
    // remove the new file.
    let mut second = Serve::saying(&format!("-p 0 -P {path}"));
    let complaint = second.complaint();
    assert!(
        complaint.contains(&format!("process {}", first.child.id())),
        "{complaint}"
    );
    let number = format!("{}\n", second.child.id());
    end(first);
    assert_eq!(fs::read_to_string(&path.0).unwrap(), number);
    end(second);
    assert!(!path.0.exists());
}

/// Ends it by SIGTERM, and waits for it.
fn end(mut server: Serve) {
    kill_process(server.pid(), Signal::TERM).unwrap();
    assert!(server.child.wait().unwrap().success());
}

/// The unit file and the flags of the package, as far as they can be tested here: what they name
/// exists, and a warm restart has a directory to keep items in.
#[test]
fn packaged_unit_supports_warm_restart() {
    let unit = include_str!("../../../../packaging/herdwick.service");
    let value = |name: &str| {
        unit.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    };
    assert_eq!(value("StateDirectory"), Some("herdwick"));
    assert_eq!(value("RuntimeDirectoryPreserve"), Some("restart"));
    let flags = include_str!("../../../../packaging/herdwick.toml");
    let path = Path::new("packaged");
    let items = Path::new("packaged-items");
    let places = ["/run/herdwick/items", "/var/lib/herdwick/items"];
    for place in places {
        let line = format!("# memory-file = \"{place}\"\n");
        assert!(flags.contains(&line), "{place}");
        let kept = flags.replace(&line, &format!("memory-file = \"{items}\"\n"));
        let kept = kept.replace("\"/run/herdwick\"", "\"/tmp\"");
        let kept = kept.replace("port = 11211", "port = 0");
        let kept = kept.replace("127.0.0.1:9150", "127.0.0.1:0");
        fs::write(&path.0, kept).unwrap();
        let server = Serve::start(&format!("--config {path}"));
        let said = server.ask("get kept\r\nset kept 0 0 1\r\nx\r\n");
        assert_eq!(said.contains("VALUE kept"), place == places[1], "{said}");
        end(server);
    }
}

/// Each line is a JSON object, from the first event to the error that ends the start of a second
/// server.
#[test]
fn log_format_json_writes_json_lines() {
    let mut command = command("-p 0 -t 1 --metrics 0 --log-format json");
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap();
    let mut server = Serve {
        complaints: child.stderr.take().map(BufReader::new),
        child,
        ready: String::new(),
    };
    let event = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
    let ready = event(&server.complaint());
    let address = ready["addresses"].as_str().unwrap();
    assert!(ask(address, "version\r\n").starts_with("VERSION "));
    assert_eq!(
        (&ready["level"], &ready["workers"]),
        (&"INFO".into(), &1.into())
    );
    let time = ready["timestamp"].as_str().unwrap();
    let judge = Command::new("date")
        .args(["-u", "-d", time, "+%FT%T"])
        .output();
    let judged = String::from_utf8(judge.unwrap().stdout).unwrap();
    assert!(
        time.starts_with(judged.trim()) && time.ends_with('Z'),
        "{time} {judged}"
    );
    let metrics = event(&server.complaint());
    let page = ask(
        metrics["address"].as_str().unwrap(),
        "GET /metrics HTTP/1.0\r\n\r\n",
    );
    assert!(page.contains("memcached_up 1"), "{page}");
    let refused = event(&complaint(&format!("-l {address} -t 1 --log-format json")));
    assert_eq!(refused["level"], "ERROR");
    assert!(
        refused["message"].as_str().unwrap().contains(address),
        "{refused}"
    );
}

#[test]
fn sighup_reloads_users() {
    let path = Path::new("users");
    fs::write(&path.0, "one:two").unwrap();
    let mut server = Serve::saying(&format!("-p 0 -v -Y {path}"));
    let old = "set x 0 0 7\r\none two\r\n";
    let new = "set x 0 0 10\r\nthree four\r\n";
    assert_eq!(server.ask(old), "STORED\r\n");
    fs::write(&path.0, "three:four").unwrap();
    kill_process(server.pid(), Signal::HUP).unwrap();
    while server.complaint() != "herdwick: users read again\n" {}
    assert_eq!(server.ask(new), "STORED\r\n");
    assert!(server.ask(old).starts_with("CLIENT_ERROR"));
}

/// A server whose log is on a full disk serves on, and so does one that cannot report that it is ready.
#[test]
fn server_whose_log_cannot_be_written_serves_on() {
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    let path = Path::new("full-log");
    for format in ["text", "json"] {
        fs::write(&path.0, "port = 0\nthreads = 1\n").unwrap();
        let arguments = format!("--config {path} -f 2 -s {path}.sock --log-format {format}");
        let mut server = command(&arguments);
        let mut child = server.stdout(full()).stderr(full()).spawn().unwrap();
        let socket = format!("{path}.sock");
        let settings = || {
            let mut stream = UnixStream::connect(&socket).ok()?;
            stream.write_all(b"stats settings\r\nquit\r\n").ok()?;
            let mut said = String::new();
            stream.read_to_string(&mut said).ok()?;
            Some(said)
        };
        while settings().is_none() {
            assert_eq!(child.try_wait().unwrap(), None, "{format}");
        }
        // It logs each reload.
        fs::write(&path.0, "port = 0\nthreads = 1\nverbose = true\n").unwrap();
        while !settings().is_some_and(|said| said.contains("verbosity 1")) {
            assert_eq!(child.try_wait().unwrap(), None, "{format}");
            kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
        }
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        assert!(child.wait().unwrap().success(), "{format}");
    }
}

/// SIGHUP applies what may change, and names what needs a restart.
#[test]
fn sighup_reloads_the_config_file() {
    let path = Path::new("flags-again");
    let write = |text: &str| fs::write(&path.0, text).unwrap();
    write("port = 0\nconn-limit = 100\nextended = [\"idle_timeout=50\"]\n");
    let mut server = Serve::saying(&format!("--config {path} -t 1"));
    let settings = |server: &Serve| server.ask("stats settings\r\n");
    assert!(settings(&server).contains("STAT maxconns 100\r\n"));
    write(
        "port = 0\nconn-limit = 50\nmemory-limit = 100\nenable-shutdown = true\n\
         extended = [\"idle_timeout=60,request_timeout=5\", \"no_maxconns_fast\"]\n",
    );
    kill_process(server.pid(), Signal::HUP).unwrap();
    let said: Vec<String> = (0..3).map(|_| server.complaint()).collect();
    assert!(
        said.iter()
            .all(|line| line.ends_with("a new value takes a restart\n"))
    );
    for name in ["--memory-limit:", "--enable-shutdown:", "--extended:"] {
        assert!(
            said.iter().any(|line| line.contains(name)),
            "{name} {said:?}"
        );
    }
    let now = settings(&server);
    for line in [
        "maxconns 50",
        "idle_timeout 60",
        "request_timeout 5",
        "maxbytes 67108864",
        "shutdown_command no",
        "maxconns_fast yes",
    ] {
        assert!(now.contains(&format!("STAT {line}\r\n")), "{line} {now}");
    }
    write("port = \n");
    kill_process(server.pid(), Signal::HUP).unwrap();
    while !server.complaint().contains("the flags stay as they were") {}
    assert!(settings(&server).contains("STAT maxconns 50\r\n"));
}

/// What needs a restart is what differs from the flags of the start, at every SIGHUP; only what the
/// server has is read again.
#[test]
fn sighup_compares_the_config_file_with_the_flags_of_the_start() {
    let path = Path::new("flags-of-the-start");
    let started = "port = 0\nthreads = 1\n";
    fs::write(&path.0, started).unwrap();
    let mut server = Serve::saying(&format!("--config {path}"));
    let mut reload = |more: &str| {
        fs::write(&path.0, format!("{started}verbose = 2\n{more}")).unwrap();
        kill_process(server.pid(), Signal::HUP).unwrap();
        let mut said = Vec::new();
        while said.last().is_none_or(|last| last != "flags read again\n") {
            let line = server.complaint();
            said.push(line.trim_start_matches("herdwick: ").to_owned());
        }
        assert!(server.ask("stats settings\r\n").contains("verbosity 2"));
        said
    };
    let restart = |name: &str| format!("{name}: a new value takes a restart\n");
    let done = "flags read again\n".to_owned();
    for _ in 0..2 {
        let said = reload("memory-limit = 100\nextended = \"no_lru_crawler\"\n");
        let expected = [
            restart("--memory-limit"),
            restart("--extended"),
            done.clone(),
        ];
        assert_eq!(said, expected);
    }
    // The defaults, by name.
    let said = reload("extended = \"maxconns_fast,lru_crawler,modern,idle_timeout=5,\"\n");
    assert_eq!(said, std::slice::from_ref(&done));
    assert_eq!(reload(""), [done]);
}

/// SIGTERM ends a server whose standard error is a full pipe without a reader.
#[test]
fn server_whose_log_is_not_read_ends_on_sigterm() {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let bytes = rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
    rustix::io::write(&writer, &vec![b'x'; bytes]).unwrap();
    let mut server = Serve::of(command("-p 0 -t 1 -v").stderr(Stdio::from(writer)));
    kill_process(server.pid(), Signal::HUP).unwrap();
    kill_process(server.pid(), Signal::TERM).unwrap();
    assert!(server.child.wait().unwrap().success());
    drop(reader);
}

/// If memcached starts with this hard limit of descriptors, the server starts too, with fewer
/// connections and a warning.
#[test]
fn low_descriptor_limit_reduces_connections() {
    let command = |limit: usize| {
        let mut command = Command::new("sh");
        let herdwick = env!("CARGO_BIN_EXE_herdwick");
        command.args([
            "-c",
            &format!("ulimit -n {limit} && exec {herdwick} serve -p 0 -t 1"),
        ]);
        command
    };
    let mut server = Serve::of(command(1024).stderr(Stdio::piped()));
    assert!(server.complaint().contains("LimitNOFILE="));
    assert!(
        server
            .ask("stats settings\r\n")
            .contains("STAT maxconns 896\r\n")
    );
    let output = command(1023).output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("lower -c"), "{said}");
}

/// A TLS port, one without TLS, and certificates that change while the server runs.
#[test]
fn sighup_reloads_certificates() {
    let path = Path::new("tls");
    let renew = || {
        let made = rcgen::generate_simple_self_signed(["localhost".into()]).unwrap();
        let text = made.cert.pem() + &made.signing_key.serialize_pem();
        fs::write(&path.0, text).unwrap();
        made.cert.der().clone()
    };
    let old = renew();
    let server = Serve::start(&format!(
        "-p 0 -Z -o ssl_chain_cert={path},ssl_wbuf_size=16 -l 127.0.0.1,notls:127.0.0.2"
    ));
    let addresses = server.addresses();
    assert_eq!(
        ask_in_tls(&addresses[0], old.clone()).as_deref(),
        Some("MN\r\n")
    );
    let settings = ask(&addresses[1], "stats settings\r\n");
    assert!(settings.contains("STAT ssl_enabled yes\r\n"), "{settings}");
    let new = renew();
    assert_eq!(ask_in_tls(&addresses[0], new.clone()), None);
    kill_process(server.pid(), Signal::HUP).unwrap();
    while ask_in_tls(&addresses[0], new.clone()).is_none() {
        std::thread::yield_now();
    }
    assert_eq!(ask_in_tls(&addresses[0], old), None);
}

/// A signature takes as long as accepting hundreds of plain connections. So another thread does the
/// handshakes, and a plain connection waits for none of them.
#[test]
fn accept_thread_does_not_run_tls_handshakes() {
    let path = Path::new("tls-apart");
    let made = rcgen::generate_simple_self_signed(["localhost".into()]).unwrap();
    let text = made.cert.pem() + &made.signing_key.serialize_pem();
    fs::write(&path.0, text).unwrap();
    let server = Serve::start(&format!(
        "-p 0 -t 1 -Z -o ssl_chain_cert={path} -l 127.0.0.1,notls:127.0.0.2"
    ));
    let addresses = server.addresses();
    // These connections stop in the middle of the handshake.
    let mut half_done = Vec::new();
    for _ in 0..50 {
        let mut stream = TcpStream::connect(&addresses[0]).unwrap();
        stream.write_all(b"\x16\x03\x01\x02").unwrap();
        half_done.push(stream);
    }
    for _ in 0..herdwick_check::length(40, 200) {
        let said = ask_in_tls(&addresses[0], made.cert.der().clone());
        assert_eq!(said.as_deref(), Some("MN\r\n"));
        assert_eq!(ask(&addresses[1], "mn\r\n"), "MN\r\n");
    }
    let spent = |thread: &str| -> u64 {
        let tasks = fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap();
        let mut tasks = tasks.map(|task| task.unwrap().path());
        let named =
            |task: &PathBuf| fs::read_to_string(task.join("comm")).unwrap().trim() == thread;
        let task = tasks.find(named).unwrap();
        let spent = fs::read_to_string(task.join("schedstat")).unwrap();
        spent.split(' ').next().unwrap().parse().unwrap()
    };
    let (accepting, shaking) = (spent("accept"), spent("tls"));
    assert!(
        accepting < shaking,
        "{accepting} ns accepting, {shaking} ns in handshakes"
    );
}

/// Sends `mn` to `address` over TLS and returns the answer, or `None` if the certificate is not
/// signed by `trusted`.
fn ask_in_tls(address: &str, trusted: CertificateDer<'static>) -> Option<String> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted).unwrap();
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = "localhost".try_into().unwrap();
    let session = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(session, TcpStream::connect(address).unwrap());
    stream.write_all(b"mn\r\nquit\r\n").ok()?;
    let mut said = String::new();
    stream.read_to_string(&mut said).ok()?;
    Some(said)
}

/// The output of Debian's memcached-tool about this server, if it is installed.
#[test]
fn memcached_tool_displays_this_server() {
    let server = Serve::start("-p 0");
    server.ask("set a:b 0 0 3\r\nabc\r\nget a:b\r\n");
    let tool = [
        "/usr/share/memcached/scripts/memcached-tool",
        "memcached-tool",
    ];
    let run = |mode: &str| {
        let mut outputs = tool.iter().filter_map(|tool| {
            Command::new(tool)
                .args([&server.addresses()[0], mode])
                .output()
                .ok()
        });
        outputs
            .next()
            .map(|output| String::from_utf8(output.stdout).unwrap())
    };
    let Some(display) = run("display") else {
        eprintln!("skipped: there is no memcached-tool here (apt-get install memcached)");
        return;
    };
    let row = display.lines().nth(1).unwrap_or_default();
    let fields: Vec<&str> = row.split_whitespace().collect();
    assert_eq!((fields[0], fields[4]), ("1", "1"), "{display}");
    for (mode, name, value) in [
        ("stats", "get_hits", "1"),
        ("settings", "maxconns", "1024"),
        ("sizes", "sizes_status", "disabled"),
    ] {
        let said = run(mode).unwrap();
        let found = said
            .lines()
            .any(|line| line.split_whitespace().eq([name, value]));
        assert!(found, "{mode}: {said}");
    }
}

/// Without an explicit directory, shared memory is used only where it is available.
#[test]
fn server_without_tmpdir_starts_without_shm() {
    for place in ["/proc", "/no/such/directory"] {
        let mut command = command("-p 0 --verbs off");
        let command = command.env("TMPDIR", place).stderr(Stdio::piped());
        let mut serve = Serve::of(command);
        let said = serve.complaint();
        let named = format!("left out: cannot make a lease socket below {place}: ");
        assert!(
            said.contains(&named) && said.contains("--shm-dir"),
            "{said}"
        );
        assert!(serve.ask("set k 0 0 1\r\nv\r\n").starts_with("STORED"));
        let address = serve.addresses().remove(0);
        let mut get = Command::new(env!("CARGO_BIN_EXE_herdwick"));
        let get = get.args(["get", "k", "-v", "--server", &address]).output();
        let why = String::from_utf8(get.unwrap().stderr).unwrap();
        assert!(
            why.contains("over tcp") && why.contains("cannot share memory"),
            "{why}"
        );
        let mut doctor = Command::new(env!("CARGO_BIN_EXE_herdwick"));
        let doctor = doctor.arg("doctor").env("TMPDIR", place).output();
        let found = String::from_utf8(doctor.unwrap().stdout).unwrap();
        let named = format!("no lease socket can be made in {place}");
        // Permissions allow root to write to /proc, but creating a file there fails.
        assert!(found.contains(&named) || place == "/proc", "{found}");
        kill_process(serve.pid(), Signal::TERM).unwrap();
        let mut rest = String::new();
        let complaints = serve.complaints.as_mut().unwrap();
        complaints.read_to_string(&mut rest).unwrap();
        assert!(
            !rest.contains("lease socket"),
            "reported more than once: {rest}"
        );
    }
}
