//! `herdwick serve` starts wherever memcached starts, and logs what differs from the flags.

use std::io::{Read, Write};

use super::*;

/// Ends the server by `signal`; returns all it wrote to standard error.
fn log_until(mut server: Serve, signal: Signal) -> String {
    kill_process(server.pid(), signal).unwrap();
    let mut log = String::new();
    let complaints = server.complaints.as_mut().unwrap();
    complaints.read_to_string(&mut log).unwrap();
    assert!(server.child.wait().unwrap().success());
    log
}

fn setting(server: &Serve, name: &str) -> usize {
    let settings = server.ask("stats settings\r\n");
    let line = format!("STAT {name} ");
    let value = settings.lines().find_map(|said| said.strip_prefix(&line));
    value.unwrap().trim().parse().unwrap()
}

/// Stores a value of this many bytes; returns the answer.
fn store(server: &Serve, bytes: usize) -> String {
    let value = "v".repeat(bytes);
    server.ask(&format!("set k 0 0 {bytes}\r\n{value}\r\n"))
}

#[test]
fn small_memory_reduces_the_workers() {
    for (arguments, item) in [
        ("-m 8", 1 << 20),
        ("-m 16 -t 4", 1 << 20),
        ("-m 64 -t 4 -I 8m", 8 << 20),
        ("-m 1024 -t 4 -I 128m", 128 << 20),
        ("-m 64 -t 64", 1 << 20),
    ] {
        let server = Serve::saying(&format!("-p 0 {arguments}"));
        let workers = setting(&server, "num_threads");
        assert_eq!(setting(&server, "item_size_max"), item, "{arguments}");
        let shown = format!("({workers} worker");
        assert!(server.ready.contains(&shown), "{}", server.ready);
        // An item is more than its value; 128 MiB would take long on a slow host.
        assert_eq!(
            store(&server, item.min(8 << 20) - 200),
            "STORED\r\n",
            "{arguments}"
        );
        let log = log_until(server, Signal::TERM);
        let told = log.contains(&format!(": {workers} started; give more memory (-m)"));
        assert!(
            told || arguments == "-m 8" && workers == 1,
            "{arguments}: {log}"
        );
    }
}

#[test]
fn items_larger_than_memory_allows_are_refused() {
    let server = Serve::saying("-p 0 -m 1 -t 2");
    let most = setting(&server, "item_size_max");
    assert!((100 << 10..1 << 20).contains(&most), "{most}");
    assert_eq!(store(&server, most - 200), "STORED\r\n");
    let refused = store(&server, most + 1);
    assert!(
        refused.starts_with("SERVER_ERROR object too large for cache"),
        "{refused}"
    );
    let log = log_until(server, Signal::TERM);
    for told in [
        format!("those of more than {most} bytes are refused"),
        "no fabrics (shared memory, RDMA, RoCEv2)".into(),
        "1 started".into(),
    ] {
        assert!(log.contains(&told), "{told}: {log}");
    }
}

/// Stores twice the memory: a key that is read all the time stays, and whatever is left is whole.
#[test]
fn server_serves_more_than_memory_holds() {
    let server = Serve::start("-p 0 -m 16 -t 1");
    let value = |n: usize| {
        char::from(b'a' + n as u8 % 26)
            .to_string()
            .repeat(400 << 10)
    };
    assert_eq!(server.ask("set hot 0 0 3\r\nhot\r\n"), "STORED\r\n");
    for n in 0..80 {
        let (value, len) = (value(n), 400 << 10);
        let said = server.ask(&format!("set k{n} 0 0 {len}\r\n{value}\r\nget hot\r\n"));
        assert_eq!(said, "STORED\r\nVALUE hot 0 3\r\nhot\r\nEND\r\n", "{n}");
    }
    let left = (0..80).filter(|&n| {
        let said = server.ask(&format!("get k{n}\r\n"));
        let whole = format!("VALUE k{n} 0 {}\r\n{}\r\nEND\r\n", 400 << 10, value(n));
        assert!(
            said == "END\r\n" || said == whole,
            "k{n}: {} bytes",
            said.len()
        );
        said == whole
    });
    let left = left.count();
    assert!((8..80).contains(&left), "{left}");
    let evicted = format!("STAT evictions {}\r\n", 80 - left);
    assert!(server.ask("stats\r\n").contains(&evicted), "{left}");
}

#[test]
fn more_than_32_workers_disable_leases() {
    let server = Serve::saying("-p 0 -m 256 -t 33 --verbs off");
    assert_eq!(setting(&server, "num_threads"), 33);
    let log = log_until(server, Signal::TERM);
    assert!(
        log.contains("at most 32 workers, and there are 33"),
        "{log}"
    );
    let asked_for = complaint("-p 0 -m 256 -t 33 --shm-mode 0700");
    assert!(asked_for.contains("at most 32"), "{asked_for}");
}

#[test]
fn memory_limit_above_host_memory_is_warned_of() {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
    let total = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"));
    let total = total.unwrap().trim().trim_end_matches(" kB");
    let more = total.parse::<usize>().unwrap() / 1024 + 1024;
    let server = Serve::saying(&format!("-p 0 -t 1 -m {more}"));
    let log = log_until(server, Signal::TERM);
    assert!(
        log.contains(&format!("-m {more} is more than the ")),
        "{log}"
    );
    let log = log_until(Serve::saying("-p 0 -t 1 -m 64"), Signal::TERM);
    assert!(!log.contains("is more than"), "{log}");
}

#[test]
fn bound_ports_are_written_to_memcached_port_filename() {
    let path = Path::new("ports");
    let mut command = command("-p -1 -U -1 -t 1 -l 127.0.0.1,::1");
    let server = Serve::of(
        command
            .env("MEMCACHED_PORT_FILENAME", &path.0)
            .stderr(Stdio::null()),
    );
    let written = fs::read_to_string(&path.0).unwrap();
    let ports = |kind: &str| -> Vec<usize> {
        let lines = written.lines().filter_map(|line| line.strip_prefix(kind));
        lines.map(|port| port.trim().parse().unwrap()).collect()
    };
    let of_tcp: Vec<usize> = [ports("TCP INET:"), ports("TCP INET6:")].concat();
    let addresses = server.addresses();
    let listened = addresses
        .iter()
        .map(|address| address.rsplit_once(':').unwrap().1);
    let listened: Vec<usize> = listened.map(|port| port.parse().unwrap()).collect();
    assert_eq!(of_tcp, listened, "{written}");
    assert_eq!(
        ports("UDP INET:"),
        [setting(&server, "udpport")],
        "{written}"
    );
    assert_eq!(ports("UDP INET6:").len(), 1, "{written}");
    drop(server);
    // A file that cannot be written does not prevent the start.
    let mut command = super::command("-p -1 -t 1");
    let command = command.env("MEMCACHED_PORT_FILENAME", "/nowhere/ports");
    let log = log_until(Serve::of(command.stderr(Stdio::piped())), Signal::TERM);
    assert!(
        log.contains("cannot write the ports to /nowhere/ports"),
        "{log}"
    );
}

/// On SIGUSR1 memcached ends gracefully and keeps the file that `-e` names.
#[test]
fn sigusr1_ends_the_server_and_keeps_the_items() {
    let path = Path::new("memory");
    let arguments = format!("-p 0 -t 1 -m 64 -e {path}");
    let server = Serve::saying(&arguments);
    assert_eq!(server.ask("set kept 0 0 1\r\nv\r\n"), "STORED\r\n");
    log_until(server, Signal::USR1);
    let again = Serve::start(&arguments);
    assert!(again.ask("get kept\r\n").starts_with("VALUE kept"));
}

/// Returns the first bytes of an answer, or none if the server closes the connection.
fn first_bytes(address: &str, question: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(question).unwrap();
    let mut answer = [0; 8];
    let length = stream.read(&mut answer).unwrap_or(0);
    answer[..length].to_vec()
}

#[test]
fn b_flag_restricts_the_protocol() {
    /// A version request of the binary protocol: magic, opcode, no key, no value.
    const VERSION: [u8; 24] = {
        let mut packet = [0; 24];
        packet[0] = 0x80;
        packet[1] = 0x0b;
        packet
    };
    for (protocol, text, binary) in [
        ("auto", true, true),
        ("ascii", true, false),
        ("binary", false, true),
    ] {
        let server = Serve::start(&format!("-p 0 -t 1 -B {protocol}"));
        let address = &server.addresses()[0];
        let said = first_bytes(address, b"version\r\n");
        assert_eq!(said.starts_with(b"VERSION"), text, "{protocol}");
        let said = first_bytes(address, &VERSION);
        assert_eq!(said.starts_with(&[0x81]), binary, "{protocol}");
    }
    let refused = complaint("-p 0 -B binary -Y /nowhere/users");
    assert!(refused.contains("-B binary"), "{refused}");
}

/// As in memcached, UDP stays available beside TLS; the log warns that it is not encrypted.
#[test]
fn udp_with_tls_is_served_and_warned_of() {
    let path = Path::new("udp-tls");
    let key = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    fs::write(&path.0, key.cert.pem() + &key.signing_key.serialize_pem()).unwrap();
    let server = Serve::saying(&format!("-p 0 -t 1 -U -1 -Z -o ssl_chain_cert={path}"));
    let log = log_until(server, Signal::TERM);
    assert!(log.contains("datagrams are not encrypted"), "{log}");
}

/// Notifications as for systemd (`Type=notify`).
#[test]
fn systemd_is_notified_of_ready_and_stopping() {
    let path = Path::new("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&path.0).unwrap();
    // Bounds failures only; the test never waits for it to pass.
    let bound = std::time::Duration::from_secs(60);
    manager.set_read_timeout(Some(bound)).unwrap();
    let mut command = command("-p 0 -t 1");
    let server = Serve::of(command.env("NOTIFY_SOCKET", &path.0).stderr(Stdio::piped()));
    let hear = || {
        let mut message = [0; 64];
        let length = manager.recv(&mut message).unwrap();
        String::from_utf8_lossy(&message[..length])
            .trim()
            .to_owned()
    };
    assert_eq!(hear(), "READY=1");
    log_until(server, Signal::TERM);
    assert_eq!(hear(), "STOPPING=1");
    let unit = include_str!("../../../../../packaging/herdwick.service");
    assert!(unit.lines().any(|line| line == "Type=notify"));
}

/// The health check of the image, with a running server and without one.
#[test]
fn image_health_check_follows_the_server() {
    let image = include_str!("../../../../../packaging/Dockerfile");
    let check = image.lines().find(|line| line.starts_with("HEALTHCHECK"));
    let (_, words) = check.unwrap().split_once("CMD ").unwrap();
    let words: Vec<String> = serde_json::from_str(words).unwrap();
    assert_eq!(words[0], "herdwick");
    let healthy = |address: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_herdwick"));
        let command = command.args(&words[1..]).args(["--server", address]);
        command.output().unwrap().status.success()
    };
    let server = Serve::start("-p 0 -t 1");
    let address = server.addresses().remove(0);
    // The check has a deadline of its own, which a busy host may exceed.
    assert!((0..10).any(|_| healthy(&address)));
    drop(server);
    assert!(!healthy(&address));
}

#[test]
fn a_start_that_fails_leaves_no_socket_and_a_file_is_given_to_one_flag() {
    let (socket, other) = (Path::new("same"), Path::new("same-other"));
    let directory = env!("CARGO_TARGET_TMPDIR");
    let said = complaint(&format!("-s {socket} -e {directory}"));
    assert!(said.contains("no regular file"), "{said}");
    assert!(!socket.0.exists() && !lock_of(&socket).exists());
    fs::write(&other.0, "user:password\n").unwrap();
    // One file by two names.
    let longer = format!("{directory}/./{}", other.0.file_name().unwrap().display());
    for flags in [
        format!("-e {other} -P {longer}"),
        format!("-e {longer} --roce-pcap {other} --roce 127.0.0.1:0"),
        format!("-s {other} -e {other}"),
        format!("-e {other} -Y {longer}"),
        format!("-P {other} -Z -o ssl_chain_cert={longer}"),
    ] {
        let output = output(&format!("-p 0 {flags}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("is given twice, by "), "{flags}: {said}");
        assert_eq!(output.status.code(), Some(2), "{flags}");
        assert_eq!(fs::read_to_string(&other.0).unwrap(), "user:password\n");
    }
}

fn lock_of(socket: &Path) -> PathBuf {
    format!("{socket}.lock").into()
}

#[test]
fn a_unix_socket_in_use_is_said_to_be_so_even_if_its_backlog_is_full() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let path = Path::new("full");
    let address = SocketAddrUnix::new(&path.0).unwrap();
    let socket = || {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
    };
    let listener = socket();
    rustix::net::bind(&listener, &address).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let waiting = [(); 8].map(|()| socket());
    let full = waiting
        .iter()
        .any(|one| rustix::net::connect(one, &address).is_err());
    assert!(full);
    let said = complaint(&format!("-s {path} --shm off"));
    assert!(
        said.contains("is in use by another process; give another path (-s)"),
        "{said}"
    );
    assert!(path.0.exists());
}
