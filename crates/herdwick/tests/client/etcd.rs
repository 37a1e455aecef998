//! A cluster in a real etcd, which is killed, wiped, compacted and slowed while a client loads three servers:
//! no call fails, and nothing stale is read. Needs the program `etcd`; tests/peers/etcd.sh runs it.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use herdwick::{
    Cluster, ClusterOptions, Discovery, Error, Options,
    etcd::{EtcdCluster, EtcdMember, Event, Registration},
};
use herdwick_check::{Rng, Stopwatch};
use herdwick_server::{Config, Server};

/// A deadline that no test waits for.
const LONG: Duration = Duration::from_secs(60);
const KEYS: usize = 500;
/// Rounds of the load that each fault lasts for, and that follow it.
const ROUNDS: u64 = 2_000;

/// An etcd of one member, on ports that stay.
struct Etcd {
    folder: PathBuf,
    ports: [u16; 2],
    process: Child,
}

impl Etcd {
    fn start(test: &str) -> Self {
        let name = format!("herdwick-etcd-{test}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let ports = [(); 2].map(|()| free_port());
        let process = Self::spawn(&folder, ports);
        Self {
            folder,
            ports,
            process,
        }
    }

    fn spawn(folder: &PathBuf, ports: [u16; 2]) -> Child {
        let [client, peer] = ports.map(|port| format!("http://127.0.0.1:{port}"));
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(folder);
        for (name, value) in [
            ("--listen-client-urls", &client),
            ("--advertise-client-urls", &client),
            ("--listen-peer-urls", &peer),
            ("--initial-advertise-peer-urls", &peer),
            ("--initial-cluster", &format!("default={peer}")),
            ("--log-level", &"panic".to_owned()),
        ] {
            command.args([name, value]);
        }
        // It logs every election.
        command.stderr(Stdio::null());
        command.spawn().expect("etcd is installed")
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn start_again(&mut self) {
        self.process = Self::spawn(&self.folder, self.ports);
    }

    fn signal(&self, signal: i32) {
        let id = self.process.id().cast_signed();
        // SAFETY: a signal to a child that was not waited for.
        assert_eq!(unsafe { libc::kill(id, signal) }, 0);
    }

    /// A client, once it sees so many servers.
    fn client(&self, servers: usize) -> Cluster {
        client(self.ports[0], servers)
    }
}

/// A client of the etcd at this port, once it sees so many servers.
fn client(etcd: u16, servers: usize) -> Cluster {
    loop {
        let options = ClusterOptions {
            client: Options {
                deadline: LONG,
                ..Options::default()
            },
            ..ClusterOptions::default()
        };
        if let Ok(mut cluster) = Cluster::discover(Discovery::Etcd(cluster(etcd)), options)
            && cluster.servers().count() == servers
        {
            return cluster;
        }
        // Not all of a CPU is for this.
        thread::park_timeout(Duration::from_millis(10));
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn free_port() -> u16 {
    let probe = TcpListener::bind("127.0.0.1:0").unwrap();
    probe.local_addr().unwrap().port()
}

/// What a server reaches etcd by, which can be cut.
struct Way {
    port: u16,
    state: Arc<Mutex<WayState>>,
}

#[derive(Default)]
struct WayState {
    is_cut: bool,
    connections: Vec<TcpStream>,
}

impl Way {
    fn to(etcd: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let way = Self {
            port: listener.local_addr().unwrap().port(),
            state: Arc::default(),
        };
        let state = Arc::clone(&way.state);
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let mut state = state.lock().unwrap();
                if !state.is_cut
                    && let Ok(far) = TcpStream::connect(("127.0.0.1", etcd))
                {
                    let clone = |stream: &TcpStream| stream.try_clone().unwrap();
                    state.connections.extend([clone(&near), clone(&far)]);
                    let (back, forth) = ((clone(&far), clone(&near)), (near, far));
                    for (mut from, mut to) in [back, forth] {
                        thread::spawn(move || {
                            // Both directions end together.
                            let _ = std::io::copy(&mut from, &mut to);
                            let _ = to.shutdown(Shutdown::Both);
                        });
                    }
                }
            }
        });
        way
    }

    fn cut(&self, is_cut: bool) {
        let mut state = self.state.lock().unwrap();
        state.is_cut = is_cut;
        for connection in state.connections.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

/// A server that has registered.
struct Member {
    server: Server,
    registration: Registration,
    way: Way,
    /// Whether etcd has failed it.
    has_failed: Arc<AtomicBool>,
}

impl Member {
    fn start(etcd: &Etcd, lease: u64) -> Self {
        let mut config = Config::local();
        config.workers = Some(1);
        config.memory_bytes = 64 << 20;
        let server = herdwick_server::spawn(config).unwrap();
        let way = Way::to(etcd.ports[0]);
        let (invalidator, gate) = (server.invalidator(), server.invalidator());
        let has_failed = Arc::<AtomicBool>::default();
        let failed = Arc::clone(&has_failed);
        let member = EtcdMember {
            address: server.address().to_string(),
            lease,
            has_items: false,
            admit: Box::new(move |members| gate.admit(members)),
            invalidate: Box::new(move || invalidator.invalidate_all()),
            report: Box::new(move |event| {
                failed.fetch_or(matches!(event, Event::Failed(_)), SeqCst);
            }),
        };
        let registration = Registration::start(cluster(way.port), member).unwrap();
        Self {
            server,
            registration,
            way,
            has_failed,
        }
    }

    /// Waits until etcd has failed it.
    fn waits_until_etcd_fails(&self) {
        while !self.has_failed.load(SeqCst) {
            thread::park_timeout(Duration::from_millis(10));
        }
    }

    fn end(self) {
        self.registration.end();
        self.server.shutdown();
    }
}

fn cluster(etcd: u16) -> EtcdCluster {
    EtcdCluster::new([format!("127.0.0.1:{etcd}")], "load").unwrap()
}

/// What the client that loads the servers and the test tell each other.
#[derive(Default)]
struct Load {
    rounds: AtomicU64,
    /// How many servers its ring has.
    servers: AtomicU64,
    /// Servers leave and join: keys may miss, and calls may fail.
    servers_move: AtomicBool,
    /// Keys that missed otherwise.
    missed: AtomicU64,
    is_over: AtomicBool,
}

impl Load {
    /// Writes a key and reads another, again and again: each is what was written last.
    fn run(&self, mut cluster: Cluster) {
        let mut rng = Rng::new(1);
        // What was acknowledged last, and what was tried after that.
        let mut written = vec![(0u64, 0u64); KEYS];
        let mut version = 0;
        while !self.is_over.load(SeqCst) {
            let [put, get] = [(); 2].map(|()| rng.index(KEYS));
            version += 1;
            written[put].1 = version;
            match cluster.set(format!("key:{put}"), version.to_string().as_bytes()) {
                Ok(()) => written[put].0 = version,
                Err(error) => self.may_fail(&error),
            }
            match cluster.get(format!("key:{get}")) {
                Ok(value) => self.judge(get, value.as_deref(), written[get]),
                Err(error) => self.may_fail(&error),
            }
            let servers = cluster.servers().count() as u64;
            self.servers.store(servers, SeqCst);
            self.rounds.fetch_add(1, SeqCst);
        }
    }

    /// Sets the keys of the server at `address` to what the load never writes, as a client that does not hear that it has
    /// left, and is back.
    fn disturb(&self, mut late: Cluster, address: &str) {
        let keys = (0..KEYS).map(|key| format!("key:{key}"));
        let is_there = |key: &String| late.server_of(key).unwrap().address().to_string() == address;
        let keys: Vec<_> = keys.filter(is_there).collect();
        while !self.is_over.load(SeqCst) {
            for key in &keys {
                // Refused, once the server is back.
                let _ = late.set(key, "0");
            }
            thread::yield_now();
        }
    }

    fn may_fail(&self, error: &Error) {
        assert!(self.servers_move.load(SeqCst), "{error}");
    }

    fn judge(&self, key: usize, value: Option<&[u8]>, (written, tried): (u64, u64)) {
        let value = value.map(|digits| str::from_utf8(digits).unwrap().parse().unwrap());
        let may_miss = written == 0 || self.servers_move.load(SeqCst);
        match value {
            None => drop(self.missed.fetch_add(u64::from(!may_miss), SeqCst)),
            Some(found) => assert!(
                (written..=tried).contains(&found),
                "key {key} is stale: {found} of {written}"
            ),
        }
    }

    /// Waits until its ring has so many servers.
    fn uses(&self, servers: u64, client: &thread::ScopedJoinHandle<'_, ()>) {
        while self.servers.load(SeqCst) != servers {
            assert!(!client.is_finished(), "the load has ended");
            thread::yield_now();
        }
    }

    /// Waits until the load has gone on.
    fn goes_on(&self, client: &thread::ScopedJoinHandle<'_, ()>) {
        let start = self.rounds.load(SeqCst);
        while self.rounds.load(SeqCst) < start + ROUNDS {
            assert!(!client.is_finished(), "the load has ended");
            thread::yield_now();
        }
    }
}

#[test]
#[ignore = "needs etcd: tests/peers/etcd.sh"]
fn etcd_that_is_stopped_killed_or_wiped_costs_no_call_and_no_item() {
    let mut etcd = Etcd::start("fails");
    let members: Vec<_> = [300; 3].map(|lease| Member::start(&etcd, lease)).into();
    let cluster = etcd.client(3);
    let load = Load::default();
    thread::scope(|scope| {
        let client = scope.spawn(|| load.run(cluster));
        load.goes_on(&client);
        etcd.signal(libc::SIGSTOP);
        members.iter().for_each(Member::waits_until_etcd_fails);
        load.goes_on(&client);
        etcd.signal(libc::SIGCONT);
        etcd.client(3);
        load.goes_on(&client);
        compact(&etcd);
        etcd.kill();
        load.goes_on(&client);
        etcd.start_again();
        etcd.client(3);
        load.goes_on(&client);
        assert_eq!(load.missed.load(SeqCst), 0);
        let start = Stopwatch::start();
        wipe(&mut etcd, &members, || load.goes_on(&client));
        let (missed, took) = (load.missed.load(SeqCst), start.now());
        // After that clients give the servers up that are not back.
        assert!(
            missed == 0 || took > Duration::from_secs(6),
            "{missed} missed"
        );
        load.is_over.store(true, SeqCst);
    });
}

/// Wipes etcd; one server alone is registered in it again at first.
fn wipe(etcd: &mut Etcd, members: &[Member], goes_on: impl Fn()) {
    members[1..].iter().for_each(|member| member.way.cut(true));
    etcd.kill();
    std::fs::remove_dir_all(&etcd.folder).unwrap();
    etcd.start_again();
    etcd.client(1);
    goes_on();
    members[1..].iter().for_each(|member| member.way.cut(false));
    etcd.client(3);
    goes_on();
}

#[test]
#[ignore = "needs etcd: tests/peers/etcd.sh"]
fn a_server_that_was_cut_off_serves_nothing_of_before() {
    let etcd = Etcd::start("cut");
    let mut members: Vec<_> = [300, 300, 10].map(|it| Member::start(&etcd, it)).into();
    let cluster = etcd.client(3);
    let way = Way::to(etcd.ports[0]);
    let late = client(way.port, 3);
    way.cut(true);
    let address = members[2].server.address().to_string();
    let load = Load::default();
    load.servers_move.store(true, SeqCst);
    thread::scope(|scope| {
        let client = scope.spawn(|| load.run(cluster));
        load.goes_on(&client);
        members[2].way.cut(true);
        load.uses(2, &client);
        scope.spawn(|| load.disturb(late, &address));
        load.goes_on(&client);
        members[2].way.cut(false);
        etcd.client(3);
        load.goes_on(&client);
        members.remove(1).end();
        etcd.client(2);
        load.goes_on(&client);
        load.is_over.store(true, SeqCst);
    });
}

/// Compacts etcd: a watch from before that revision is refused.
fn compact(etcd: &Etcd) {
    let mut stream = TcpStream::connect(("127.0.0.1", etcd.ports[0])).unwrap();
    let body = r#"{"revision":"3"}"#;
    let len = body.len();
    let request = format!("POST /v3/kv/compaction HTTP/1.0\r\nContent-Length: {len}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(" 200 "), "{answer}");
}
