//! The guest: Debian's kernel under QEMU, with rdma_rxe on our wire and a shell for us. What it is
//! made of, `tests/rxe/guest.sh` builds.

use std::{
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver, Sender},
    thread,
    time::{Duration, Instant},
};

use crate::link::{GUEST_MAC, Link, OUR_MAC};

/// The longest Ethernet payload on the wire: a path MTU of 4096, and headers.
const WIRE_MTU: usize = 4200;
/// How long a guest may take to start where CPUs are busy.
const BOOT: Duration = Duration::from_secs(120);

/// What happens at our end of the wire and of the connections.
#[derive(Debug)]
pub(crate) enum Event {
    /// A frame came.
    Frame(Vec<u8>),
    /// The guest's shell says something.
    Shell(String),
    /// A program in the guest says something to who leads it.
    Program(Vec<u8>),
}

/// A running guest.
pub(crate) struct Guest {
    pub(crate) link: Link,
    pub(crate) events: Receiver<Event>,
    tell: Sender<Event>,
    shell: TcpStream,
    begin: Instant,
    /// QEMU, as long as this is.
    _qemu: Child,
}

impl Guest {
    /// Starts one and waits for its shell.
    pub(crate) fn boot() -> Self {
        let begin = clock();
        let dir = directory();
        let wire = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let theirs = free_port();
        let judge = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let ours = wire.local_addr().expect("it is bound");
        let qemu = qemu(&dir, ours, theirs, judge.local_addr().expect("it is bound"));
        let shell = await_shell(&judge, begin, &dir);
        let (tell, events) = mpsc::channel();
        let frames = wire.try_clone().expect("a second handle");
        let told = tell.clone();
        thread::spawn(move || read_frames(&frames, &told));
        let lines = shell.try_clone().expect("a second handle");
        let told = tell.clone();
        thread::spawn(move || read_lines(lines, &told));
        let mut link = Link::new(wire, theirs);
        link.record(&dir.join("traffic.pcap"));
        Self {
            link,
            events,
            tell,
            shell,
            begin,
            _qemu: qemu,
        }
    }

    /// Time since it was started.
    pub(crate) fn now(&self) -> Duration {
        clock() - self.begin
    }

    /// Has the shell run a command; its output arrives as events, the last of them [`status`].
    pub(crate) fn start(&mut self, command: &str) {
        let line = format!("{command} 2>&1; echo \"status $?\"\n");
        self.shell.write_all(line.as_bytes()).expect("a shell");
    }

    /// What a program in the guest writes to `stream` arrives as events.
    pub(crate) fn listen(&self, stream: &TcpStream) {
        let stream = stream.try_clone().expect("a second handle");
        let tell = self.tell.clone();
        thread::spawn(move || read_pieces(stream, &tell));
    }
}

/// The exit status that a line of the shell reports, if it is such a line.
pub(crate) fn status(line: &str) -> Option<i32> {
    line.strip_prefix("status ")?.parse().ok()
}

/// Where `tests/rxe/guest.sh` puts the guest.
fn directory() -> PathBuf {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/rxe");
    assert!(
        dir.join("initramfs.gz").exists(),
        "no guest in {}: run tests/rxe/guest.sh",
        dir.display()
    );
    dir
}

/// A port that was free a moment ago: QEMU wants to be told one.
fn free_port() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    socket.local_addr().expect("it is bound")
}

fn qemu(dir: &Path, ours: SocketAddr, theirs: SocketAddr, judge: SocketAddr) -> Child {
    let mac = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
    let append = format!(
        "console=ttyS0 quiet panic=-1 mtu={WIRE_MTU} judge={} neighbour={}",
        judge.port(),
        mac(OUR_MAC)
    );
    let nic = format!(
        "virtio-net-pci,netdev=wire,mac={},host_mtu={WIRE_MTU}",
        mac(GUEST_MAC)
    );
    // It ends when its standard input does, which is when we do, however that comes about.
    Command::new("sh")
        .args(["-c", "qemu-system-x86_64 \"$@\" & cat; kill $!", "guest"])
        .args(["-accel", "tcg", "-cpu", "max", "-smp", "1", "-m", "384"])
        .args(["-nodefaults", "-no-reboot", "-display", "none", "-serial"])
        .arg(format!("file:{}", dir.join("serial.log").display()))
        .arg("-kernel")
        .arg(dir.join("kernel/vmlinuz"))
        .arg("-initrd")
        .arg(dir.join("initramfs.gz"))
        .args(["-append", &append, "-netdev"])
        .arg(format!("socket,id=wire,udp={ours},localaddr={theirs}"))
        .args(["-device", &nic, "-netdev", "user,id=host"])
        .args(["-device", "virtio-net-pci,netdev=host"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("a shell")
}

/// Waits for the guest to dial us.
fn await_shell(judge: &TcpListener, begin: Instant, dir: &Path) -> TcpStream {
    judge.set_nonblocking(true).expect("a listener's option");
    loop {
        match judge.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).expect("a socket's option");
                stream.set_nodelay(true).expect("a socket's option");
                return stream;
            }
            Err(why) if why.kind() == ErrorKind::WouldBlock => {}
            Err(why) => panic!("accept: {why}"),
        }
        if clock() - begin > BOOT {
            let said = std::fs::read_to_string(dir.join("serial.log")).unwrap_or_default();
            panic!("the guest did not start; it says:\n{said}");
        }
        thread::park_timeout(Duration::from_millis(20));
    }
}

fn read_frames(wire: &UdpSocket, tell: &Sender<Event>) {
    let mut room = [0; 65536];
    while let Ok(len) = wire.recv(&mut room) {
        if tell.send(Event::Frame(room[..len].to_vec())).is_err() {
            return;
        }
    }
}

fn read_lines(stream: TcpStream, tell: &Sender<Event>) {
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else {
            return;
        };
        if tell.send(Event::Shell(line)).is_err() {
            return;
        }
    }
}

fn read_pieces(mut stream: TcpStream, tell: &Sender<Event>) {
    let mut room = [0; 4096];
    while let Ok(len @ 1..) = stream.read(&mut room) {
        if tell.send(Event::Program(room[..len].to_vec())).is_err() {
            return;
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a test's one look at the clock")]
fn clock() -> Instant {
    Instant::now()
}
