//! The guest: Debian's kernel under QEMU, with rdma_rxe and a shell, built by `tests/rxe/guest.sh`.

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

/// Ethernet MTU of the wire: room for a path MTU of 4096 with headers.
const WIRE_MTU: usize = 4200;
/// Timeout for the boot of the guest on a busy host.
const BOOT: Duration = Duration::from_secs(120);

/// Events at the host's end of the wire and of the connections.
#[derive(Debug)]
pub(crate) enum Event {
    /// A frame arrived.
    Frame(Vec<u8>),
    /// A line of output of the guest's shell.
    Shell(String),
    /// Output of a program in the guest on its control connection.
    Program(Vec<u8>),
}

/// A running guest.
pub(crate) struct Guest {
    pub(crate) link: Link,
    pub(crate) events: Receiver<Event>,
    tell: Sender<Event>,
    shell: TcpStream,
    begin: Instant,
    /// QEMU, which ends when this is dropped.
    _qemu: Child,
}

impl Guest {
    /// Starts a guest and waits for its shell.
    pub(crate) fn boot() -> Self {
        let begin = clock();
        let dir = directory();
        let wire = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let theirs = free_port();
        let judge = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let ours = wire.local_addr().expect("the socket is bound");
        let qemu = qemu(
            &dir,
            ours,
            theirs,
            judge.local_addr().expect("the socket is bound"),
        );
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

    /// Returns the time since the guest was started.
    pub(crate) fn now(&self) -> Duration {
        clock() - self.begin
    }

    /// Runs a command in the shell; its output arrives as events, the last one its [`status`].
    pub(crate) fn start(&mut self, command: &str) {
        let line = format!("{command} 2>&1; echo \"status $?\"\n");
        self.shell.write_all(line.as_bytes()).expect("a shell");
    }

    /// Turns what a program in the guest writes to `stream` into events.
    pub(crate) fn listen(&self, stream: &TcpStream) {
        let stream = stream.try_clone().expect("a second handle");
        let tell = self.tell.clone();
        thread::spawn(move || read_pieces(stream, &tell));
    }
}

/// Returns the exit status that a line of the shell reports, if it reports one.
pub(crate) fn status(line: &str) -> Option<i32> {
    line.strip_prefix("status ")?.parse().ok()
}

/// Returns the directory that `tests/rxe/guest.sh` builds the guest in.
fn directory() -> PathBuf {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/rxe");
    assert!(
        dir.join("initramfs.gz").exists(),
        "no guest in {}: run tests/rxe/guest.sh",
        dir.display()
    );
    dir
}

/// Returns a port that was free a moment ago: QEMU needs a fixed one.
fn free_port() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    socket.local_addr().expect("the socket is bound")
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
    // QEMU ends when its standard input is closed, that is when the test ends for whatever reason.
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

/// Waits for the guest's shell to connect.
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

#[expect(
    clippy::disallowed_methods,
    reason = "the only clock read of this test"
)]
fn clock() -> Instant {
    Instant::now()
}
