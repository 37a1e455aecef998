//! `herdwick serve` with flags and files that cannot be used, and its messages.

use std::os::unix::net::UnixListener;

use super::*;

/// Returns the memcached to compare with: the one in PATH, or `HERDWICK_MEMCACHED`.
fn oracle() -> std::ffi::OsString {
    std::env::var_os("HERDWICK_MEMCACHED").unwrap_or_else(|| "memcached".into())
}

/// memcached refuses the same values; a value without an effect here is no exception.
#[test]
fn values_that_memcached_refuses_are_refused() {
    for (arguments, reason) in [
        ("-R 0", "give at least 1"),
        ("-R -1", "give at least 1"),
        ("-R x", "not a number"),
        ("-n 0", "give at least 1 byte, such as"),
        ("-n -1", "give at least 1 byte, such as"),
        ("-f 1", "give a factor above 1, such as"),
        ("-f 0.5", "give a factor above 1, such as"),
        ("-f x", "give a factor above 1, such as"),
        ("-o hashpower=99", "hashpower takes a number from 12 to 32"),
        ("-o hashpower=11", "hashpower takes a number from 12 to 32"),
        ("-o hashpower", "hashpower takes a number from 12 to 32"),
        ("-o hash_algorithm=md5", "takes jenkins, murmur3, xxh3"),
        ("-o slab_automove=3", "takes a number from 0 to 2"),
        (
            "-o slab_automove_ratio=2",
            "takes a number above 0, up to 1",
        ),
        ("-o hot_lru_pct=80", "takes a number from 1 to 79"),
        ("-o warm_max_factor=0", "takes a number above 0"),
        ("-o tail_repair_time=9", "takes a number from 10 to"),
        ("-o slab_chunk_max=1025", "takes a number from 1 to 1024"),
        ("-o lru_crawler_sleep=1000001", "from 0 to 1000000"),
        ("-o read_buf_mem_limit=x", "takes a number from 0 to"),
    ] {
        let output = output(&format!("-p 0 {arguments}"));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(reason), "{arguments}: {said}");
        assert_eq!(output.status.code(), Some(2), "{arguments}");
    }
    let memcached = |arguments: &str| {
        let mut command = Command::new(oracle());
        command.args(["-u", "root", "-p", "0", "-U", "0"]);
        command.args(arguments.split(' ')).output()
    };
    for arguments in [
        "-R 0",
        "-n 0",
        "-f 1",
        "-f 0.5",
        "-o hashpower=99",
        "-o hashpower=11",
        "-o hashpower",
        "-o hash_algorithm=md5",
        "-o slab_automove=3",
        "-o slab_automove_ratio=2",
        "-o hot_lru_pct=80",
        "-o warm_max_factor=0",
        "-o tail_repair_time=9",
        "-o slab_chunk_max=1025",
        "-o lru_crawler_sleep=1000001",
        "-o read_buf_mem_limit=x",
    ] {
        match memcached(arguments) {
            Ok(output) => assert!(!output.status.success(), "{arguments}"),
            Err(_) => println!("skipped: there is no memcached here"),
        }
    }
}

#[test]
fn a_file_that_is_no_socket_is_not_replaced_by_one() {
    let path = Path::new("no-socket");
    fs::write(&path.0, "precious").unwrap();
    let said = complaint(&format!("-s {path}"));
    let expected = format!(
        "herdwick: cannot listen on {path}: there is a file, which is not a socket; remove it, or give \
         another path (-s)\n"
    );
    assert_eq!(said, expected);
    assert_eq!(fs::read(&path.0).unwrap(), b"precious");
}

#[test]
fn numbers_below_zero_are_values_and_no_flags() {
    for (arguments, reason) in [
        ("-m -5", "not a size"),
        ("-t -1", "not a number from 0 on"),
        ("-c -1", "not a number from 0 on"),
    ] {
        let said = complaint(&format!("-p 0 {arguments}"));
        assert!(said.contains(reason), "{arguments}: {said}");
    }
}

#[test]
fn addresses_that_cannot_be_used_are_named_with_ones_that_can() {
    let said = complaint("-l ::1:11211");
    assert!(said.contains("or [::1]:11211 for IPv6"), "{said}");
    let said = complaint(&format!("-s /tmp/{}", "long".repeat(40)));
    assert!(said.contains("give a shorter path (-s)"), "{said}");
    let path = Path::new("beside-tcp");
    let mut server = Serve::saying(&format!("-s {path} -l 127.0.0.1"));
    let said = server.complaint();
    assert_eq!(said, "herdwick: ignored -l: with -s there is no TCP\n");
}

#[test]
fn a_unix_socket_in_use_is_found_by_its_path() {
    let path = Path::new("socket-in-use");
    let _listener = UnixListener::bind(&path.0).unwrap();
    let said = complaint(&format!("-s {path}"));
    assert!(
        said.contains("give another path (-s)") && said.contains(&format!("ss -lxp src {path}")),
        "{said}"
    );
}

/// The memory file is left as it was: the capture is checked before.
#[test]
fn a_capture_that_cannot_be_written_ends_the_start() {
    let items = Path::new("capture-items");
    let flags = "-p 0 --roce 127.0.0.1:0 --roce-pcap /nowhere/capture";
    let said = complaint(&format!("{flags} -e {items}"));
    assert!(
        said.contains("cannot write packets to /nowhere/capture: ")
            && said.contains("give another file (--roce-pcap)"),
        "{said}"
    );
    assert!(!items.0.exists());
}

/// A pipe can be read once: `-Y <(decrypt users)`.
#[test]
fn users_and_keys_may_come_from_a_pipe() {
    let mut command = command("-p 0 -Y /dev/stdin --shm off");
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"ann:secret\n").unwrap();
    drop(writer);
    let server = Serve::of(command.stdin(reader).stderr(Stdio::inherit()));
    let login = "set login 0 0 10\r\nann secret\r\nversion\r\n";
    let said = server.ask(login);
    assert!(said.starts_with("STORED\r\nVERSION"), "{said}");

    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let chain = Path::new("pipe-chain");
    fs::write(&chain.0, made.cert.pem()).unwrap();
    let mut command = self::command(&format!(
        "-p 0 -Z -o ssl_chain_cert={chain},ssl_key=/dev/stdin --shm off"
    ));
    let (reader, mut writer) = std::io::pipe().unwrap();
    let key = made.signing_key.serialize_pem();
    writer.write_all(key.as_bytes()).unwrap();
    drop(writer);
    let server = Serve::of(command.stdin(reader).stderr(Stdio::inherit()));
    let said = ask_in_tls(&server.addresses()[0], made.cert.der().clone());
    assert!(said.is_some());
}

/// The queues between the threads are made for the `-c` of the start.
#[test]
fn connections_beyond_the_limit_of_the_start_are_served_when_it_is_raised() {
    const MANY: usize = 300;
    let path = Path::new("raised");
    let flags = |limit: usize| format!("port = 0\nthreads = 1\nconn-limit = {limit}\n");
    fs::write(&path.0, flags(2)).unwrap();
    let server = Serve::start(&format!("--config {path} --shm off"));
    fs::write(&path.0, flags(MANY + 10)).unwrap();
    kill_process(server.pid(), Signal::HUP).unwrap();
    let raised = format!("STAT maxconns {}\r\n", MANY + 10);
    while !server.ask("stats settings\r\n").contains(&raised) {}
    // All arrive at once.
    kill_process(server.pid(), Signal::STOP).unwrap();
    let address = server.addresses().remove(0);
    let connect = |_| {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(b"version\r\n").unwrap();
        stream
    };
    let streams: Vec<TcpStream> = (0..MANY).map(connect).collect();
    kill_process(server.pid(), Signal::CONT).unwrap();
    for stream in streams {
        let mut said = String::new();
        BufReader::new(stream).read_line(&mut said).unwrap();
        assert!(said.starts_with("VERSION"), "{said:?}");
    }
}
