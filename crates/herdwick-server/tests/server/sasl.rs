//! Authentication by SASL (`-S`) in the binary protocol: what may precede it, PLAIN and
//! SCRAM-SHA-256, and the same conversations beside a memcached with Cyrus SASL.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use crate::authority::Authority;
use crate::common::{Memcached, Peer, connect, oracle, shown, tcp, with};
use herdwick_check::Rng;
use herdwick_memcache::{
    binary::opcode::{self, GET, GETQ, NOOP, SASL_AUTH, SASL_LIST, SASL_STEP, SET, SETQ, VERSION},
    meta::base64,
};
use herdwick_server::{AuthError, Config, Protocol, SaslUsers, Server, StartError, Udp, spawn};
use ring::{digest, hmac, pbkdf2};

/// A folder for one test, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("herdwick-sasl-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn config(users: SaslUsers) -> Config {
    Config {
        sasl: Some(users),
        protocol: Protocol::Binary,
        workers: Some(2),
        ..Config::local()
    }
}

const USERS: &str = "one:two\nthree:four:five\r\nunset:\n";

fn server(folder: &Folder) -> Server {
    let path = folder.write("users", USERS);
    with(config(SaslUsers::AuthFile(path)))
}

fn packet(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let body = extras.len() + key.len() + value.len();
    let mut bytes = vec![0x80, opcode];
    bytes.extend_from_slice(&(key.len() as u16).to_be_bytes());
    bytes.extend_from_slice(&[extras.len() as u8, 0, 0, 0]);
    bytes.extend_from_slice(&(body as u32).to_be_bytes());
    bytes.extend_from_slice(&[0; 12]);
    [&bytes, extras, key, value].concat()
}

fn bare(opcode: u8) -> Vec<u8> {
    packet(opcode, b"", b"", b"")
}

fn auth(mechanism: &str, message: &[u8]) -> Vec<u8> {
    packet(SASL_AUTH, b"", mechanism.as_bytes(), message)
}

fn step(message: &[u8]) -> Vec<u8> {
    packet(SASL_STEP, b"", b"-", message)
}

fn plain(name: &str, password: &str) -> Vec<u8> {
    auth("PLAIN", format!("\0{name}\0{password}").as_bytes())
}

/// A response: opcode, status, and the value behind extras and key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Response(u8, u16, String);

fn response(opcode: u8, status: u16, text: &str) -> Response {
    Response(opcode, status, text.to_owned())
}

fn refused(opcode: u8) -> Response {
    response(opcode, 0x20, "Auth failure.")
}

fn authenticated() -> Response {
    response(SASL_AUTH, 0, "Authenticated")
}

fn parse(mut said: &[u8]) -> Vec<Response> {
    let mut all = Vec::new();
    while let Some((header, rest)) = said.split_at_checked(24) {
        assert_eq!(header[0], 0x81, "{}", shown(said));
        let body = u32::from_be_bytes(header[8..12].try_into().unwrap()) as usize;
        let status = u16::from_be_bytes([header[6], header[7]]);
        let names = usize::from(header[3]) + usize::from(header[4]);
        let text = String::from_utf8_lossy(&rest[names..body]).into_owned();
        // Versions and lists of mechanisms differ between servers.
        let text = match header[1] {
            VERSION if status == 0 => "version".to_owned(),
            SASL_LIST if status == 0 => {
                let mut words: Vec<&str> = text.split(' ').collect();
                words.sort_unstable();
                words.join(" ")
            }
            _ => text,
        };
        all.push(Response(header[1], status, text));
        said = &rest[body..];
    }
    assert!(said.is_empty(), "{}", shown(said));
    all
}

fn ask(peer: &impl Peer, packets: &[Vec<u8>]) -> Vec<Response> {
    parse(&peer.say(&[&packets.concat()]))
}

/// A name that no line of the file can have is refused before it is prepared, which takes time by its
/// length: U+FDFA becomes 18 characters.
#[test]
fn scram_refuses_names_longer_than_a_line() {
    let folder = Folder::new();
    let server = server(&folder);
    for (count, status) in [(85, 0x21), (86, 0x20), (1300, 0x20)] {
        let message = format!("n,,n={},r=abcdefgh", "\u{fdfa}".repeat(count));
        let said = ask(&server, &[auth("SCRAM-SHA-256", message.as_bytes())]);
        assert_eq!(said.iter().map(|said| said.1).collect::<Vec<_>>(), [status]);
    }
}

/// Every packet but those of SASL and `version` is refused, whatever its value is, and the connection
/// closed: a quiet one too, and one of which only the header has come.
#[test]
fn nothing_is_served_before_authentication() {
    let folder = Folder::new();
    let server = server(&folder);
    let allowed = [VERSION, SASL_LIST, SASL_AUTH, SASL_STEP];
    for opcode in (0..=u8::MAX).filter(|opcode| !allowed.contains(opcode)) {
        let mut stream = connect(&server);
        // The header of a `set` of 8 MB.
        let mut input = packet(opcode, &[0; 8], b"key", b"")[..24].to_vec();
        input[8..12].copy_from_slice(&(8u32 << 20).to_be_bytes());
        stream.write_all(&input).unwrap();
        let mut said = Vec::new();
        // This side has not shut down, so the end is the server's doing.
        stream.read_to_end(&mut said).unwrap();
        assert_eq!(parse(&said), [refused(opcode)]);
    }
    let said = ask(&server, &[bare(VERSION), bare(SASL_LIST), bare(VERSION)]);
    let list = response(SASL_LIST, 0, "PLAIN SCRAM-SHA-256");
    let version = response(VERSION, 0, "version");
    assert_eq!(said, [version.clone(), list, version.clone()]);
    let set = packet(SETQ, &[0; 8], b"key", b"value");
    let said = ask(&server, &[bare(VERSION), set, bare(VERSION)]);
    assert_eq!(said, [version, refused(SETQ)]);
    let said = ask(
        &server,
        &[
            plain("one", "two"),
            packet(GETQ, b"", b"key", b""),
            bare(NOOP),
        ],
    );
    assert_eq!(said, [authenticated(), response(NOOP, 0, "")], "not set");
    for text in [
        "get key\r\n",
        "set key 0 0 7\r\none two\r\n",
        "hello herdwick/0\r\n",
    ] {
        assert_eq!(shown(&server.say(&[text.as_bytes()])), "", "{text}");
    }
}

#[test]
fn plain_admits_the_right_password_and_no_other() {
    let folder = Folder::new();
    let server = server(&folder);
    for (name, password) in [("one", "two"), ("three", "four:five"), ("unset", "")] {
        let said = ask(&server, &[plain(name, password), bare(NOOP)]);
        assert_eq!(said, [authenticated(), response(NOOP, 0, "")], "{name}");
    }
    for (name, password) in [
        ("one", "tw"),
        ("one", "twoo"),
        ("one", ""),
        ("three", "four"),
        ("none", "two"),
        ("", ""),
        ("", "two"),
    ] {
        let said = ask(&server, &[plain(name, password), bare(NOOP)]);
        assert_eq!(said, [refused(SASL_AUTH), refused(NOOP)], "{name}");
    }
    for message in [
        &b"one\0two"[..],
        b"one",
        b"\0one",
        b"\0one\0two\0",
        b"three\0one\0two",
    ] {
        let said = ask(&server, &[auth("PLAIN", message)]);
        assert_eq!(said, [refused(SASL_AUTH)], "{}", shown(message));
    }
    // A failure is not the end: the connection may try again.
    let said = ask(
        &server,
        &[plain("one", "x"), plain("one", "two"), bare(NOOP)],
    );
    let expected = [refused(SASL_AUTH), authenticated(), response(NOOP, 0, "")];
    assert_eq!(said, expected);
}

/// A packet that is too large is dropped from the stream, and the next one is served.
#[test]
fn what_is_too_large_is_refused_and_not_kept() {
    let folder = Folder::new();
    let server = server(&folder);
    for len in [4096, 4097, 1 << 20] {
        let large = auth("PLAIN", &vec![b'x'; len]);
        let said = ask(&server, &[large, plain("one", "two")]);
        assert_eq!(said, [refused(SASL_AUTH), authenticated()], "{len}");
    }
    let invalid = response(SASL_AUTH, 4, "Invalid arguments");
    for len in [33, 40, 250] {
        let long = auth(&"X".repeat(len), b"\0one\0two");
        let said = ask(&server, &[long, plain("one", "two")]);
        assert_eq!(said, [invalid.clone(), authenticated()], "{len}");
    }
    let long = auth(&"X".repeat(251), b"\0one\0two");
    assert_eq!(ask(&server, &[long, plain("one", "two")]), [invalid]);
}

/// Attempts beyond what one turn handles are answered in later ones, in order.
#[test]
fn many_attempts_at_once_are_all_answered_and_counted() {
    let folder = Folder::new();
    let server = server(&folder);
    let mut input = vec![plain("one", "three"); 1000];
    input.push(plain("one", "two"));
    input.push(bare(opcode::STAT));
    let said = server.say(&[&input.concat()]);
    let tries = (24 + "Auth failure.".len()) * 1000;
    assert_eq!(parse(&said[..tries]), vec![refused(SASL_AUTH); 1000]);
    let stats = String::from_utf8_lossy(&said[tries..]).into_owned();
    assert!(stats.contains("auth_cmds1001"), "{stats}");
    assert!(stats.contains("auth_errors1000"), "{stats}");
    let said = server.say(&[
        &plain("one", "two"),
        &packet(opcode::STAT, b"", b"settings", b""),
    ]);
    let settings = String::from_utf8_lossy(&said).into_owned();
    assert!(settings.contains("auth_enabled_saslyes"), "{settings}");
    assert!(settings.contains("auth_enabled_asciino"), "{settings}");
    assert!(settings.contains("binding_protocolbinary"), "{settings}");
}

/// However the bytes are cut, and with whatever follows in the same segment.
#[test]
fn a_command_behind_the_authentication_is_served() {
    let folder = Folder::new();
    let server = server(&folder);
    let input = [
        plain("one", "two"),
        packet(SET, &[0; 8], b"key", b"value"),
        packet(GET, b"", b"key", b""),
    ];
    let expected = [
        authenticated(),
        response(SET, 0, ""),
        response(GET, 0, "value"),
    ];
    assert_eq!(ask(&server, &input), expected);
    let bytes: Vec<u8> = input.concat();
    let mut stream = connect(&server);
    for byte in &bytes {
        stream.write_all(&[*byte]).unwrap();
    }
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut said = Vec::new();
    stream.read_to_end(&mut said).unwrap();
    assert_eq!(parse(&said), expected);
}

/// As in memcached, each packet of SASL ends what was authenticated before.
#[test]
fn a_second_exchange_replaces_the_first() {
    let folder = Folder::new();
    let server = server(&folder);
    let again = [plain("one", "two"), plain("three", "four:five"), bare(NOOP)];
    let done = response(NOOP, 0, "");
    assert_eq!(
        ask(&server, &again),
        [authenticated(), authenticated(), done]
    );
    let failed = [plain("one", "two"), plain("one", "three"), bare(NOOP)];
    let expected = [authenticated(), refused(SASL_AUTH), refused(NOOP)];
    assert_eq!(ask(&server, &failed), expected);
    let stepped = [plain("one", "two"), step(b"\0one\0two"), bare(NOOP)];
    let expected = [authenticated(), refused(SASL_STEP), refused(NOOP)];
    assert_eq!(ask(&server, &stepped), expected);
    let listed = [plain("one", "two"), bare(SASL_LIST), bare(NOOP)];
    assert_eq!(ask(&server, &listed)[2], refused(NOOP));
}

/// Reloaded users are for new exchanges; who is authenticated stays so.
#[test]
fn users_are_read_again_and_sessions_last() {
    let folder = Folder::new();
    let server = server(&folder);
    let mut session = Client::new(&server);
    assert_eq!(session.round_trip(&plain("one", "two")), authenticated());
    let mut exchange = Client::new(&server);
    let pending = exchange.challenge("one", "two", "nonce");
    folder.write("users", "six:seven");
    server.reload_users().unwrap();
    assert_eq!(session.round_trip(&bare(NOOP)), response(NOOP, 0, ""));
    let said = ask(&server, &[plain("one", "two"), plain("six", "seven")]);
    assert_eq!(said, [refused(SASL_AUTH), authenticated()]);
    assert!(exchange.prove(&pending), "it began before");
    assert!(Client::new(&server).scram("six", "seven"));
    assert!(!Client::new(&server).scram("one", "two"));
    folder.write("users", "no colon");
    assert!(matches!(
        server.reload_users(),
        Err(AuthError::Line { line: 1, .. })
    ));
    assert_eq!(ask(&server, &[plain("six", "seven")]), [authenticated()]);
}

/// A client of SCRAM-SHA-256.
struct Client<S>(S);

impl Client<TcpStream> {
    fn new(server: &Server) -> Self {
        Self(connect(server))
    }
}

/// What a client has after the server's challenge.
struct Pending {
    final_message: String,
    verifier: String,
}

impl<S: Read + Write> Client<S> {
    fn round_trip(&mut self, packet: &[u8]) -> Response {
        self.0.write_all(packet).unwrap();
        let mut header = [0; 24];
        self.0.read_exact(&mut header).unwrap();
        let body = u32::from_be_bytes(header[8..12].try_into().unwrap()) as usize;
        let mut said = header.to_vec();
        said.resize(24 + body, 0);
        self.0.read_exact(&mut said[24..]).unwrap();
        parse(&said).remove(0)
    }

    /// Sends the first message, and computes the second.
    fn challenge(&mut self, name: &str, password: &str, nonce: &str) -> Pending {
        let first = format!("n={name},r={nonce}");
        let message = auth("SCRAM-SHA-256", format!("n,,{first}").as_bytes());
        let Response(_, status, challenge) = self.round_trip(&message);
        assert_eq!(status, 0x21, "{challenge}");
        let field = |name: &str| {
            let mut fields = challenge.split(',');
            fields.find_map(|field| field.strip_prefix(name)).unwrap()
        };
        assert!(field("r=").starts_with(nonce) && field("r=").len() > nonce.len());
        let mut room = [0; base64::DECODED_BYTES_MAX];
        let salt = base64::decode(field("s=").as_bytes(), &mut room).unwrap();
        let iterations = field("i=").parse().unwrap();
        let mut salted = [0; 32];
        let algorithm = pbkdf2::PBKDF2_HMAC_SHA256;
        pbkdf2::derive(
            algorithm,
            iterations,
            salt,
            password.as_bytes(),
            &mut salted,
        );
        let mac = |key: &[u8], text: &str| {
            let key = hmac::Key::new(hmac::HMAC_SHA256, key);
            hmac::sign(&key, text.as_bytes())
        };
        let without_proof = format!("c=biws,r={}", field("r="));
        let spoken = format!("{first},{challenge},{without_proof}");
        let client = mac(&salted, "Client Key");
        let stored = digest::digest(&digest::SHA256, client.as_ref());
        let signature = mac(stored.as_ref(), &spoken);
        let pairs = client.as_ref().iter().zip(signature.as_ref());
        let proof: Vec<u8> = pairs.map(|(a, b)| a ^ b).collect();
        let server = mac(&salted, "Server Key");
        Pending {
            final_message: format!("{without_proof},p={}", encoded(&proof)),
            verifier: format!("v={}", encoded(mac(server.as_ref(), &spoken).as_ref())),
        }
    }

    /// Sends the second message and, if the server proves itself, the empty third; returns whether
    /// that has authenticated the client.
    fn prove(&mut self, pending: &Pending) -> bool {
        let said = self.round_trip(&step(pending.final_message.as_bytes()));
        if said == refused(SASL_STEP) {
            return false;
        }
        assert_eq!(said, response(SASL_STEP, 0x21, &pending.verifier));
        let said = self.round_trip(&step(b""));
        assert_eq!(said, response(SASL_STEP, 0, "Authenticated"));
        self.round_trip(&bare(NOOP)) == response(NOOP, 0, "")
    }

    fn scram(&mut self, name: &str, password: &str) -> bool {
        let pending = self.challenge(name, password, "nonce");
        self.prove(&pending)
    }
}

fn encoded(bytes: &[u8]) -> String {
    let mut text = Vec::new();
    base64::encode(bytes, &mut text);
    String::from_utf8(text).unwrap()
}

#[test]
fn scram_admits_the_right_password_and_no_other() {
    let folder = Folder::new();
    let server = server(&folder);
    for (name, password, right) in [
        ("one", "two", true),
        ("three", "four:five", true),
        ("one", "too", false),
        ("one", "", false),
        ("none", "two", false),
    ] {
        assert_eq!(Client::new(&server).scram(name, password), right, "{name}");
    }
    // The proof of one exchange is worth nothing in another, and without the last step the client
    // is not authenticated.
    let (mut first, mut second) = (Client::new(&server), Client::new(&server));
    let pending = first.challenge("one", "two", "nonce");
    second.challenge("one", "two", "nonce");
    assert!(!second.prove(&pending));
    let said = first.round_trip(&step(pending.final_message.as_bytes()));
    assert_eq!(said.1, 0x21);
    assert_eq!(first.round_trip(&bare(NOOP)), refused(NOOP));
    let mut late = Client::new(&server);
    let pending = late.challenge("one", "two", "nonce");
    late.round_trip(&step(pending.final_message.as_bytes()));
    assert_eq!(late.round_trip(&step(b"more")), refused(SASL_STEP));
    assert_eq!(
        late.round_trip(&step(b"")),
        refused(SASL_STEP),
        "it is over"
    );
}

/// No oracle: an unknown user is challenged like a known one, with the same salt each time.
#[test]
fn a_challenge_does_not_tell_whether_the_user_exists() {
    let folder = Folder::new();
    let server = server(&folder);
    let challenge = |name: &str| {
        let message = format!("n,,n={name},r=nonce");
        let said = ask(&server, &[auth("SCRAM-SHA-256", message.as_bytes())]);
        let [Response(SASL_AUTH, 0x21, text)] = &said[..] else {
            panic!("{said:?}");
        };
        let (nonce, rest) = text.split_once(',').unwrap();
        (nonce.to_owned(), rest.to_owned())
    };
    let known = [challenge("one"), challenge("one")];
    let unknown = [challenge("none"), challenge("none")];
    for pair in [&known, &unknown] {
        assert_ne!(pair[0].0, pair[1].0, "nonces");
        assert_eq!(pair[0].1, pair[1].1, "salt and iterations");
    }
    assert_ne!(known[0].1, unknown[0].1);
    assert_eq!(known[0].1.len(), unknown[0].1.len());
    server.reload_users().unwrap();
    assert_eq!(challenge("one").1, known[0].1);
    assert_eq!(challenge("none").1, unknown[0].1);
    for message in [
        "",
        "n,,n=one",
        "p=tls-unique,,n=one,r=x",
        "n,a=two,n=one,r=x",
    ] {
        let said = ask(&server, &[auth("SCRAM-SHA-256", message.as_bytes())]);
        let status = if message.is_empty() { 0x21 } else { 0x20 };
        assert_eq!(said[0].1, status, "{message}");
    }
}

/// The file of memcached's own users, whose names have a realm and whose passwords end at a colon.
#[test]
fn the_file_that_memcached_sasl_pwdb_names_is_read() {
    let folder = Folder::new();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let host = host.trim();
    let lines = format!("one@{host}:two:more\nno colon\nthree@elsewhere:four\nfive:six\n");
    let server = with(config(SaslUsers::Pwdb(folder.write("pwdb", &lines))));
    let full = format!("one@{host}");
    for (name, password, right) in [
        ("one", "two", true),
        ("one", "two:more", true),
        (&full, "two", true),
        ("three@elsewhere", "four", true),
        ("five", "six", true),
        ("three", "four", false),
        ("one", "more", false),
    ] {
        let said = ask(&server, &[plain(name, password)]);
        let expected = if right {
            authenticated()
        } else {
            refused(SASL_AUTH)
        };
        assert_eq!(said, [expected], "{name} {password}");
    }
    assert!(Client::new(&server).scram("one", "two"));
    assert!(Client::new(&server).scram(&full, "two"));
    assert!(!Client::new(&server).scram("three", "four"));
}

/// Of several lines for a name the first counts, by either mechanism. In the file of memcached's own
/// users, a name without a realm is first of all one of the host's realm.
#[test]
fn the_first_line_of_a_name_counts_for_every_mechanism() {
    let folder = Folder::new();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let full = format!("one@{}", host.trim());
    let lines = format!("one:short\n{full}:first\nsix:seven\n{full}:second\nsix:eight\n");
    let pwdb = SaslUsers::Pwdb(folder.write("pwdb", &lines));
    let file = SaslUsers::AuthFile(folder.write("users", &lines));
    for (users, short) in [(pwdb, "first"), (file, "short")] {
        let server = with(config(users));
        for (name, right) in [("one", short), (&full, "first"), ("six", "seven")] {
            for password in ["short", "first", "second", "seven", "eight"] {
                let said = ask(&server, &[plain(name, password)]);
                let expected = password == right;
                assert_eq!(said == [authenticated()], expected, "{name} {password}");
                let proven = Client::new(&server).scram(name, password);
                assert_eq!(proven, expected, "{name} {password} by SCRAM");
            }
        }
    }
}

/// RFC 4616 and RFC 5802: names and passwords are compared once SASLprep has prepared them, so
/// lines whose names differ in their bytes only are lines for one name.
#[test]
fn names_that_saslprep_makes_the_same_are_one_user() {
    let folder = Folder::new();
    let spellings = ["n\u{e9}", "ne\u{301}"];
    let lines = "n\u{e9}:new\nne\u{301}:old\ntwo:p\u{e9}\n:none\n";
    let pwdb = SaslUsers::Pwdb(folder.write("pwdb", lines));
    let file = SaslUsers::AuthFile(folder.write("users", lines));
    for users in [pwdb, file] {
        let server = with(config(users));
        let by_plain = |name, password| ask(&server, &[plain(name, password)]) == [authenticated()];
        for name in spellings {
            for password in ["new", "old"] {
                let right = password == "new";
                assert_eq!(by_plain(name, password), right, "{name} {password}");
                let proven = Client::new(&server).scram(name, password);
                assert_eq!(proven, right, "{name} {password} by SCRAM");
            }
        }
        assert!(by_plain("two", "p\u{e9}") && by_plain("two", "pe\u{301}"));
        assert!(!by_plain("two", "pe"));
        // A soft hyphen is prepared to nothing, which is no name.
        assert!(!by_plain("\u{ad}", "none"));
        let nothing = auth("SCRAM-SHA-256", "n,,n=\u{ad},r=nonce".as_bytes());
        assert_eq!(ask(&server, &[nothing]), [refused(SASL_AUTH)]);
    }
}

/// Both mechanisms over TLS, with the packets cut at any byte into records.
#[test]
fn both_mechanisms_work_over_tls() {
    let folder = Folder::new();
    let authority = Authority::new();
    let server = with(Config {
        tls: Some(authority.tls()),
        ..config(SaslUsers::AuthFile(folder.write("users", USERS)))
    });
    let session = || Client(authority.client(None).connect(tcp(&server)));
    for (password, right) in [("two", true), ("too", false)] {
        assert_eq!(session().scram("one", password), right);
        let mut plainly = session();
        let packet = plain("one", password);
        for byte in &packet[..packet.len() - 1] {
            plainly.0.write_all(&[*byte]).unwrap();
        }
        let said = plainly.round_trip(&packet[packet.len() - 1..]);
        assert_eq!(said == authenticated(), right, "{said:?}");
        let expected = if right {
            response(NOOP, 0, "")
        } else {
            refused(NOOP)
        };
        assert_eq!(plainly.round_trip(&bare(NOOP)), expected);
    }
}

/// The users of one reading of the file: one of two, with one of two passwords.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Reading(usize, usize);

impl Reading {
    fn line(self) -> String {
        format!("{}:{}\n", self.name(), self.password())
    }

    fn name(self) -> &'static str {
        ["one", "two"][self.0]
    }

    fn password(self) -> &'static str {
        ["first", "second"][self.1]
    }
}

/// The users are read again at any point of exchanges, of which several are under way: SCRAM is
/// judged by the users at its challenge, PLAIN by those of its moment.
#[test]
fn users_read_again_at_any_point_judge_no_exchange_that_has_begun() {
    let folder = Folder::new();
    let mut users = Reading(0, 0);
    let path = folder.write("users", &users.line());
    let server = with(config(SaslUsers::AuthFile(path)));
    let mut chance = Rng::new(1);
    let mut roll = |sides: usize| chance.index(sides);
    let mut exchanges: Vec<(Client<TcpStream>, Pending, bool)> = Vec::new();
    let (mut proven, mut failed) = (0, 0);
    for _ in 0..400 {
        let claimed = Reading(roll(2), roll(2));
        let (name, password) = (claimed.name(), claimed.password());
        match roll(5) {
            0 => {
                users = claimed;
                folder.write("users", &users.line());
                server.reload_users().unwrap();
            }
            1 => {
                let said = ask(&server, &[plain(name, password)]);
                assert_eq!(said == [authenticated()], claimed == users);
            }
            2 | 3 => {
                let mut client = Client::new(&server);
                let pending = client.challenge(name, password, "nonce");
                exchanges.push((client, pending, claimed == users));
            }
            _ if exchanges.is_empty() => {}
            _ => {
                let at = roll(exchanges.len());
                let (mut client, pending, right) = exchanges.swap_remove(at);
                assert_eq!(client.prove(&pending), right);
                (proven, failed) = (proven + u32::from(right), failed + u32::from(!right));
            }
        }
    }
    assert!(proven > 5 && failed > 5, "{proven} {failed}");
}

#[test]
fn what_cannot_authenticate_anyone_does_not_start() {
    let folder = Folder::new();
    let users = SaslUsers::AuthFile(folder.write("users", USERS));
    let refused = |change: fn(&mut Config)| {
        let mut config = config(users.clone());
        change(&mut config);
        spawn(config).err().expect("does not start")
    };
    for protocol in [
        refused(|config| config.protocol = Protocol::Any),
        refused(|config| config.protocol = Protocol::Text),
    ] {
        assert!(matches!(protocol, StartError::TextWithSasl), "{protocol}");
        assert!(protocol.is_usage());
    }
    let udp = refused(|config| {
        config.udp = Some(Udp {
            port: 0,
            trusted: Vec::new(),
        })
    });
    assert!(matches!(udp, StartError::UdpWithUsers), "{udp}");
    let missing = refused(|config| config.sasl = Some(SaslUsers::Pwdb("/nowhere".into())));
    assert!(
        missing.to_string().contains("MEMCACHED_SASL_PWDB"),
        "{missing}"
    );
    for (text, many) in [("", 0), ("nothing\n", 0), (&"a:b\n".repeat(1025), 1025)] {
        let users = SaslUsers::Pwdb(folder.write("users", text));
        let Err(StartError::Auth(AuthError::Count { count, .. })) = spawn(config(users)) else {
            panic!("{many}");
        };
        assert_eq!(count, many);
    }
}

/// Returns a memcached with Cyrus SASL whose database has the user `one`, or `None` where that
/// cannot be had.
fn cyrus(folder: &Folder) -> Option<Memcached> {
    let built = Command::new(oracle()).args(["-S", "-V"]).output();
    if !built.is_ok_and(|output| output.status.success()) {
        println!("skipped: no memcached that was built with SASL on the PATH");
        return None;
    }
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let database = folder.0.join("sasldb");
    folder.write(
        "memcached.conf",
        &format!(
            "mech_list: plain scram-sha-256\nsasldb_path: {}\n",
            database.display()
        ),
    );
    let child = Command::new("saslpasswd2")
        .args(["-p", "-c", "-a", "memcached", "-u", host.trim(), "-f"])
        .arg(&database)
        .arg("one")
        .stdin(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        println!("skipped: no saslpasswd2 (apt-get install sasl2-bin libsasl2-modules)");
        return None;
    };
    child.stdin.take().unwrap().write_all(b"two\n").unwrap();
    assert!(child.wait().unwrap().success());
    Memcached::start_with(|command| {
        command.arg("-S").env("SASL_CONF_PATH", &folder.0);
        command.env_remove("MEMCACHED_SASL_PWDB");
    })
}

/// The same packets to a memcached with Cyrus SASL get the same responses.
#[test]
fn a_memcached_with_cyrus_answers_the_same() {
    let folder = Folder::new();
    let Some(theirs) = cyrus(&folder) else {
        return;
    };
    let ours = server(&folder);
    let version = bare(VERSION);
    let right = plain("one", "two");
    let scram = auth("SCRAM-SHA-256", b"n,,n=one,r=abcdefgh");
    let mut cut = bare(GET);
    cut[3] = 9;
    let long = auth("PLAIN", format!("\0one\0{}", "x".repeat(10_000)).as_bytes());
    let noop = bare(NOOP);
    for input in [
        vec![version.clone(), bare(SASL_LIST), version.clone()],
        vec![packet(SASL_LIST, b"", b"k", b""), version.clone()],
        vec![packet(GET, b"", b"k", b""), version.clone()],
        vec![packet(GETQ, b"", b"k", b""), version.clone()],
        vec![packet(SETQ, &[0; 8], b"k", b"v"), version.clone()],
        vec![bare(opcode::QUIT), version.clone()],
        vec![bare(opcode::QUITQ), version.clone()],
        vec![packet(GET, b"", &[b'k'; 260], b""), version.clone()],
        vec![bare(0x55), version.clone()],
        vec![cut, version.clone()],
        vec![packet(VERSION, b"", b"k", b""), version.clone()],
        vec![right.clone(), noop.clone()],
        vec![plain("one", "x"), version.clone(), noop.clone()],
        vec![plain("none", "x"), version.clone()],
        vec![plain("one", "x"), right.clone(), noop.clone()],
        vec![auth("PLAIN", b"one\0one\0two"), noop.clone()],
        vec![auth("PLAIN", b"two\0one\0two"), noop.clone()],
        vec![right.clone(), plain("one", "x"), noop.clone()],
        vec![right.clone(), bare(SASL_LIST), noop.clone()],
        vec![right.clone(), step(b"\0one\0two"), noop.clone()],
        vec![step(b"\0one\0two"), right.clone(), noop.clone()],
        vec![plain("one", "x"), step(b"\0one\0two"), version.clone()],
        vec![auth("PLAIN", b""), step(b"\0one\0two"), noop.clone()],
        vec![auth("plain", b"\0one\0two"), noop.clone()],
        vec![auth("", b"\0one\0two"), version.clone()],
        vec![
            packet(SASL_AUTH, b"1234", b"PLAIN", b"\0one\0two"),
            version.clone(),
        ],
        vec![auth("NONE", b"\0one\0two"), version.clone()],
        vec![
            auth(&"X".repeat(33), b"\0one\0two"),
            right.clone(),
            noop.clone(),
        ],
        vec![auth(&"X".repeat(251), b"\0one\0two"), version.clone()],
        vec![auth("PLAIN", b"one two"), version.clone()],
        vec![auth("PLAIN", b"\0one\0two\0"), version.clone()],
        vec![auth("PLAIN", b"\0\0two"), version.clone()],
        vec![long, version.clone()],
        vec![
            auth("SCRAM-SHA-256", b"n,,m=x,n=one,r=abcdefgh"),
            version.clone(),
        ],
        vec![auth("SCRAM-SHA-256", b"none"), version.clone()],
        vec![scram.clone(), right.clone(), noop.clone()],
        vec![
            scram.clone(),
            step(b"c=biws,r=x,p=AAAA"),
            step(b""),
            noop.clone(),
        ],
        vec![auth("SCRAM-SHA-256", b""), step(b"n,,n=one,r=abcdefgh")],
        vec![right, packet(GETQ, b"", b"none", b""), noop],
    ] {
        let challenges = |mut said: Vec<Response>| {
            for Response(_, status, text) in &mut said {
                // The challenge's nonce and salt are the server's own.
                if *status == 0x21 && text.starts_with("r=abcdefgh") {
                    *text = text.split(',').map(|field| &field[..2]).collect();
                }
            }
            said
        };
        let (said, expected) = (
            challenges(ask(&ours, &input)),
            challenges(ask(&theirs, &input)),
        );
        assert_eq!(said, expected, "{}", shown(&input.concat()));
    }
}

/// The client above, which judges this server's SCRAM, is judged by Cyrus.
#[test]
fn cyrus_admits_the_client_of_these_tests() {
    let folder = Folder::new();
    let Some(theirs) = cyrus(&folder) else {
        return;
    };
    let client = || Client(std::os::unix::net::UnixStream::connect(theirs.address()).unwrap());
    assert!(client().scram("one", "two"));
    assert!(!client().scram("one", "three"));
}
