//! The soak of one server: it is started, filled, visited, and judged.

use std::{
    collections::HashSet,
    fs,
    io::{BufRead, BufReader},
    net::UdpSocket,
    process::{Command, Stdio},
    sync::{Arc, atomic::Ordering::Relaxed, mpsc},
    thread,
    time::Duration,
};

use herdwick::Client;
use rustix::process::Signal;

use crate::{
    bystander::{self, Waits},
    calls, children, churn,
    common::{Folder, Server, socket},
    holdings::Before,
    model::Counter,
    pipelines,
    stage::{Names, Stage, Visit},
    text::{Lines, set},
    transfers,
    transports::{Kind, Places},
    windows,
};

/// Workers of each server.
const WORKERS: usize = 2;
/// Size of the values that fill the log beforehand, and number of small ones that touch the whole
/// index: the store allocates its memory as it is used.
const FILL_BYTES: usize = 60_000;
const FILL_ITEMS: usize = 100_000;
/// glibc returns what is larger at once. By default it learns to keep such buffers, tens of megabytes of free ones
/// between others, as many as the host's load makes of it: what the server holds does not show then. With 128 KiB
/// replies to slow readers take so long that bystanders wait.
const RETURN_LARGE: (&str, &str) = ("MALLOC_MMAP_THRESHOLD_", "1048576");
/// Least number of clients of a part that must have been over every transport: one activity over one
/// of them is one in thirty at the least.
const COVERS_MIN: u64 = 600;
/// The counter of clients, whatever they did.
const CLIENTS: &str = "clients";
/// The divisor of a part's time that is spent before memory is measured.
const WARM_UP: u32 = 6;
const WARM_UP_MIN: Duration = Duration::from_secs(4);
/// A host that keeps a thread from its CPU for longer may make clients stall: half of what the server
/// allows.
const PAUSED: Duration = Duration::from_millis(500);
/// Longest time of a client's activity after the end of the soak: a transfer, a process stopped for
/// long.
const BOUND: Duration = Duration::from_secs(60);

/// Counters that nothing here may increment.
const NEVER: &[&str] = &[
    "closed_half_sent",
    "closed_not_memcached",
    "closed_binary",
    "refused_lines",
    "refused_blocks",
    "bad_keys",
    "rejected_connections",
    "store_too_large",
    "store_no_memory",
    "forward_batches_lost",
    "recvs_short",
    "replies_failed",
    "wrong_partition",
    "bad_opcode",
    "bad_reserved",
    "bad_key_length",
    "bad_body_length",
    "bad_attributes",
    "bad_truncated",
    "bad_value",
    "malformed_datagrams",
    "drop_no_recv",
    "drop_ring_full",
    "drop_remote_access",
    "drop_malformed",
    "drop_ring_counter",
    "roce_bad_icrc",
    "roce_bad_pad",
    "roce_bad_length",
    "roce_bad_qkey",
    "roce_no_right",
    "roce_out_of_range",
    "roce_truncated",
    "roce_capture_failed",
    "lease_malformed",
    "lease_refused_token",
    "lease_fabric_lost",
    "lease_unclaimed_refused",
];

/// The sockets of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listen {
    /// TCP, UDP and RoCE.
    Tcp,
    /// TCP with and without TLS, and RoCE.
    Tls,
    /// A unix socket.
    Unix,
}

/// A server's `-m`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Memory {
    Mb(u64),
    /// As little as the server accepts. Items are evicted.
    Least,
}

/// A server and the clients that visit it.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) listen: Listen,
    pub(crate) memory: Memory,
    /// Threads that make one client after the other.
    pub(crate) channels: usize,
    /// Most simultaneous transfers of one client.
    pub(crate) transfers_max: u64,
    pub(crate) length: Duration,
    pub(crate) seed: u64,
}

/// The activity of a client.
type Doing = fn(&mut Visit<'_>);

const CHANNEL: &[(&str, Doing)] = &[
    ("calls", calls::visit),
    ("windows", windows::visit),
    ("pipelines", pipelines::visit),
    ("churn", churn::visit),
    ("calls", calls::visit),
    ("windows", windows::visit),
    ("transfers", transfers::visit),
];
/// Threads whose clients are processes.
const PROCESSES: &[(&str, Doing)] = &[
    ("killed", children::killed),
    ("stopped", children::stopped),
    ("outlived", children::outlived),
];

/// The running server, and what is needed to judge it.
struct Run {
    server: Arc<Server>,
    stage: Arc<Stage>,
    waits: Arc<Waits>,
    /// Sends the names of threads that have ended.
    ends: mpsc::Sender<String>,
    ended: mpsc::Receiver<String>,
    running: Vec<String>,
    /// Evictions before the start.
    evicted: u64,
}

impl Part {
    pub(crate) fn run(self) {
        let folder = Folder::new();
        let (server, places, limit_mb) = self.start(&folder);
        let server = Arc::new(server);
        let mut control = Client::connect_with(&places.main, Kind::Plain.options(32)).unwrap();
        fill(&places, limit_mb);
        let first = Before::of(&server, limit_mb);
        // The allocator keeps the buffers of the largest transfers, so those run before the
        // measurement.
        let warm_up = (self.length / WARM_UP).max(WARM_UP_MIN);
        let run = self.visit(
            &server,
            &mut control,
            &places,
            (first, self.seed ^ 1, warm_up),
        );
        first.until_left(&run.stage, &server, &mut control, first.peak_kib());
        drop(run);
        let before = first.warm(&server);
        let length = self.length.saturating_sub(warm_up);
        let run = self.visit(&server, &mut control, &places, (before, self.seed, length));
        run.judge(before, &mut control);
        self.covers(&run.stage);
        drop((run, control));
        let server = Arc::into_inner(server).expect("all clients have disconnected");
        server.stop();
        assert!(folder.leases().is_empty());
    }

    /// Lets clients connect and leave for a while, on an emptied server.
    fn visit(
        &self,
        server: &Arc<Server>,
        control: &mut Client,
        places: &Places,
        (before, seed, length): (Before, u64, Duration),
    ) -> Run {
        control.flush_all().unwrap();
        control.set(Counter::KEY, "0").unwrap();
        let (kinds, strict) = (self.listen.kinds(), matches!(self.memory, Memory::Mb(_)));
        let evicted = evictions(server, control);
        let stage = Stage::new(places.clone(), kinds, seed, length, strict);
        let mut run = Run::new(Arc::clone(server), stage, evicted);
        run.start(before, self.channels);
        let fault = run.wait();
        println!("{self:?}, {length:.1?} of it: {:#?}", run.stage.counters());
        if let Some(fault) = fault {
            let now = control.stats("").map(|stats| nonzero(&stats));
            server.signal(Signal::KILL);
            panic!("seed {seed}, {:?}: {fault}; {now:?}", self.listen);
        }
        run
    }

    fn start(&self, folder: &Folder) -> (Server, Places, u64) {
        let (path, port) = (socket(folder).display().to_string(), free_udp_port());
        let certificate = folder.0.join("certificate.pem");
        let tls = format!("ssl_chain_cert={}", certificate.display());
        let roce = ["-p", "0", "--roce", "127.0.0.1:0"];
        let more: Vec<&str> = match self.listen {
            Listen::Tcp => vec!["-U", &port],
            Listen::Tls => vec!["-Z", "-o", &tls, "-l", "notls:127.0.0.1,127.0.0.2"],
            Listen::Unix => vec!["-s", &path],
        };
        let mut flags: Vec<&str> = more;
        if self.listen != Listen::Unix {
            flags.extend(roce);
        }
        let trusted = rcgen::generate_simple_self_signed(["localhost".into()]).unwrap();
        let text = trusted.cert.pem() + &trusted.signing_key.serialize_pem();
        fs::write(&certificate, text).unwrap();
        let limit_mb = match self.memory {
            Memory::Mb(limit) => limit,
            Memory::Least => least(&flags),
        };
        let limit = limit_mb.to_string();
        flags.extend(["-m", &limit]);
        let server = Server::run_with(folder, WORKERS, &flags, |command| {
            command.env(RETURN_LARGE.0, RETURN_LARGE.1);
        });
        let (main, second) = match server.address.split_once(", ") {
            Some((main, second)) => (main, Some(second)),
            None => (&*server.address, None),
        };
        let mut places = Places::at(main);
        places.boards = memory_files(server.pid());
        places.transfers_max = self.transfers_max;
        places.tls = second.map(|address| (address.to_owned(), trusted.cert.der().clone()));
        let udp = format!("127.0.0.1:{port}").parse().unwrap();
        places.udp = (self.listen == Listen::Tcp).then_some(udp);
        (server, places, limit_mb)
    }

    /// Checks that every kind of client has run, if there was time.
    fn covers(&self, stage: &Stage) {
        let leases = stage.counted("leases over");
        let silent = stage.places.silent.load(Relaxed);
        println!("{leases} leases one after the other, {silent} too late to be used");
        assert!(silent <= 1 + leases / 100, "fabrics that carry nothing");
        // A short part, and one on a busy host, has few clients, and their activities are random.
        if stage.counted(CLIENTS) < COVERS_MIN {
            return;
        }
        let kinds = self.listen.kinds().into_iter();
        let calls = kinds.map(|kind| format!("calls over {kind:?}"));
        let others = [
            "windows over",
            "leases over",
            "batches over",
            "uploads",
            "killed over",
        ];
        for what in calls.chain(others.map(str::to_owned)) {
            assert!(stage.counted(&what) > 0, "the counter is 0: {what}");
        }
    }
}

impl Listen {
    fn kinds(self) -> Vec<Kind> {
        let mut kinds = vec![
            Kind::Shm,
            Kind::Plain,
            Kind::Classic,
            Kind::Meta,
            Kind::Binary,
        ];
        match self {
            Self::Tcp => kinds.extend([Kind::Roce, Kind::Udp]),
            Self::Tls => kinds.extend([Kind::Roce, Kind::Tls]),
            Self::Unix => {}
        }
        kinds
    }
}

impl Run {
    fn new(server: Arc<Server>, stage: Stage, evicted: u64) -> Self {
        let (ends, ended) = mpsc::channel();
        Self {
            server,
            stage: Arc::new(stage),
            waits: Arc::default(),
            ends,
            ended,
            running: Vec::new(),
            evicted,
        }
    }

    /// Runs `work` on a thread until the soak is over; a panic fails the soak.
    fn spawn(&mut self, name: String, work: impl FnOnce(&Stage, &Server, &Waits) + Send + 'static) {
        let (stage, server) = (Arc::clone(&self.stage), Arc::clone(&self.server));
        let (waits, ends) = (Arc::clone(&self.waits), self.ends.clone());
        self.running.push(name.clone());
        let thread = thread::Builder::new().name(name.clone());
        let spawned = thread.spawn(move || {
            stage.guard(&name, || work(&stage, &server, &waits));
            drop((stage, server, waits));
            ends.send(name)
        });
        spawned.unwrap();
    }

    fn start(&mut self, before: Before, channels: usize) {
        self.spawn("watch".into(), move |stage, server, _| {
            before.watch(stage, server)
        });
        for cpu in bystander::cpus() {
            let work = move |stage: &Stage, _: &Server, waits: &Waits| {
                bystander::alarm(stage, waits, cpu);
            };
            self.spawn(format!("alarm {cpu}"), work);
        }
        let (connecting, connected) = mpsc::channel();
        for kind in [Kind::Shm, Kind::Classic, Kind::Roce] {
            if self.stage.kinds.contains(&kind) {
                let (name, connecting) = (format!("bystander over {kind:?}"), connecting.clone());
                self.spawn(name, move |stage, server, waits| {
                    bystander::read(stage, waits, kind, server.pid(), connecting);
                });
            }
        }
        drop(connecting);
        // The others may take all leases. Nothing is ever sent: each has connected, or failed.
        let _ = connected.recv();
        for channel in 0..channels {
            self.spawn(format!("channel {channel}"), move |stage, _, _| {
                // The largest transfers run first: see `WARM_UP`.
                let choose = |visit: &mut Visit<'_>| match visit.number {
                    0 if channel.is_multiple_of(2) => CHANNEL.len() - 1,
                    _ => visit.chance.below(CHANNEL.len()),
                };
                work(stage, channel, choose, CHANNEL);
            });
        }
        for (place, (name, _)) in PROCESSES.iter().enumerate() {
            self.spawn(format!("channel {name}"), move |stage, _, _| {
                work(stage, channels + place, |_| place, PROCESSES);
            });
        }
    }

    /// Waits until all threads have ended. Returns why the soak has failed, if it has.
    fn wait(&mut self) -> Option<String> {
        while !self.running.is_empty() {
            let bound = self.stage.left() + BOUND;
            let Ok(name) = self.ended.recv_timeout(bound) else {
                self.stage
                    .fail(format!("these do not end: {:?}", self.running));
                break;
            };
            self.running.retain(|running| *running != name);
        }
        self.stage.fault()
    }

    /// Checks that the server answers over every transport, and holds what it held before.
    fn judge(&self, before: Before, control: &mut Client) {
        let (stage, server) = (&*self.stage, &*self.server);
        let missing = stage.missing().len() as u64;
        let evicted = evictions(server, control) - self.evicted;
        println!("{missing} values were missing, {evicted} were evicted");
        // Two clients may have expected two versions of the same value.
        assert!(missing <= 2 * evicted, "{:?}", stage.missing());
        if stage.strict {
            let total = control.get(Counter::KEY).unwrap().expect("it exists");
            let total: u64 = String::from_utf8(total).unwrap().parse().unwrap();
            assert_eq!(
                total,
                stage.counter.total(),
                "every addition is counted once"
            );
        }
        for kind in &stage.kinds {
            calls::is_served(&stage.places, *kind);
        }
        before.until_left(stage, server, control, before.left_kib());
        self.judge_counters(control);
        let blamed = self.waits.report();
        assert!(blamed.is_empty(), "a bystander waited: {blamed:#?}");
    }

    /// Checks that no client that kept to the rules was cut off, and none of its requests was
    /// dropped.
    fn judge_counters(&self, control: &mut Client) {
        let stats = control.stats("").unwrap();
        let count = |name: &str| -> u64 {
            let found = stats.iter().find(|(found, _)| found == name);
            found.map_or(0, |(_, count)| count.parse().unwrap())
        };
        let wrong: Vec<_> = NEVER.iter().map(|name| (name, count(name))).collect();
        let wrong: Vec<_> = wrong.iter().filter(|(_, count)| *count > 0).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        // A process stopped with unread answers stalls, and may be cut off where memory is short.
        let (cut, stopped) = (count("closed_stalled"), self.stage.counted("stopped"));
        // So may a client that the host paused.
        let late = self.waits.latest();
        assert!(
            cut <= stopped || late > PAUSED,
            "{cut} were cut for stalling, and {stopped} stopped; a thread was {late:?} late"
        );
        let silent = self.stage.counted("stopped long") + self.stage.counted("outlived");
        let ended = count("lease_heartbeat_timeouts");
        assert!(
            ended <= silent,
            "{ended} leases were silent, {silent} clients"
        );
        println!(
            "{} leases granted, {ended} fell silent; {} requests over fabrics, {} over TCP",
            count("leases_granted"),
            count("requests"),
            count("tcp_requests")
        );
    }
}

/// Runs one client after the other.
fn work(
    stage: &Stage,
    channel: usize,
    choose: impl Fn(&mut Visit<'_>) -> usize,
    doings: &[(&str, Doing)],
) {
    let (mut number, mut names) = (0, Names::default());
    while stage.lasts() {
        let mut visit = Visit::new(stage, channel, number, names.take(stage));
        let (name, doing) = doings[choose(&mut visit)];
        let what = format!("visit {number} of channel {channel}, {name}");
        stage.guard(&what, || doing(&mut visit));
        names.give_back(&visit);
        stage.count(CLIENTS, 1);
        number += 1;
        visit.rest(20);
    }
}

/// Returns the failure counters that are not zero.
fn nonzero(stats: &[(String, String)]) -> Vec<String> {
    let counters = stats.iter().skip_while(|(name, _)| name != "evictions");
    let counted = counters.filter(|(_, value)| value != "0");
    counted
        .map(|(name, value)| format!("{name} {value}"))
        .collect()
}

fn evictions(server: &Server, control: &mut Client) -> u64 {
    server.stat(control, "evictions") + server.stat(control, "index_evictions")
}

/// Stores more than there is room for, so that the store allocates all the memory that it ever
/// takes.
fn fill(places: &Places, limit_mb: u64) {
    let mut lines = Lines::new(places.stream(Kind::Classic));
    let mut send = |count: usize, len: usize| {
        let value = vec![b'f'; len];
        for first in (0..count).step_by(64) {
            let sets =
                (first..count.min(first + 64)).map(|n| set(&format!("fill:{len}:{n}"), &value, 0));
            lines.send(&sets.collect::<Vec<_>>().concat());
            (first..count.min(first + 64)).for_each(|_| assert_eq!(lines.line(), "STORED"));
        }
    };
    send(FILL_ITEMS, 8);
    send(((limit_mb as usize) << 20) / FILL_BYTES, FILL_BYTES);
    // Once the stream has ended, the server has closed its descriptor.
    lines.send(b"quit\r\n");
    lines.end();
}

/// Returns a UDP port that was free a moment ago: `-U 0` disables UDP.
fn free_udp_port() -> String {
    let socket = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
    socket.local_addr().unwrap().port().to_string()
}

/// The inodes of the memory files that a process has mapped.
fn memory_files(pid: u32) -> HashSet<u64> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let lines = maps.lines().filter(|line| line.contains("memfd:herdwick"));
    lines
        .map(|line| line.split_whitespace().nth(4).unwrap().parse().unwrap())
        .collect()
}

/// Returns the least `-m` with which a server with these flags starts all its workers.
fn least(flags: &[&str]) -> u64 {
    let all = format!("({WORKERS} workers,");
    let starts = |memory: &u64| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_herdwick"))
            .args(["serve", "-m", &memory.to_string()])
            .args(["-t", &WORKERS.to_string()])
            .args(flags)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut ready).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(ready.contains("ready on"), "{ready}");
        ready.contains(&all)
    };
    (1..=64).find(starts).expect("64 MiB are enough")
}
