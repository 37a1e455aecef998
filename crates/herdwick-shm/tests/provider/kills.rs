//! Clients that are killed at any instant: they leave no memory and no descriptor, and stop neither
//! the host nor another client. Hosts that are killed: their clients find their RC queue pairs failed.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    process::Child,
    time::Duration,
};

use herdwick_check::Rng;
use herdwick_fabric::{
    Access, AddressHandle, Armed, Completion, Device, Endpoint, Local, Payload, PdId, Port,
    PostError, QpId, QpState, Remote, Rkey, SendOp, SendWr, Status, Transport,
};
use herdwick_mem::{Span, Words};
use herdwick_shm::PdSize;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    party::{Party, client as join, host, is_readable, send, write},
    process::{other_end, receive_ticket, send_ticket, start},
};

const WINDOW: usize = 32;
const ROUNDS: u64 = 60;

fn put(stream: &mut UnixStream, bytes: &[u8]) -> std::io::Result<()> {
    stream.write_all(&(bytes.len() as u64).to_le_bytes())?;
    stream.write_all(bytes)
}

fn take(stream: &mut UnixStream) -> std::io::Result<Vec<u8>> {
    let mut len = [0; 8];
    stream.read_exact(&mut len)?;
    let mut bytes = vec![0; usize::try_from(u64::from_le_bytes(len)).unwrap().min(256)];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// A client as in HERD: keeps a window of lines full, sleeps when nothing arrives.
struct Client {
    party: Party,
    uc: QpId,
    ud: QpId,
    buffers: herdwick_fabric::RegionId,
    at: Remote,
    sent: u64,
    got: u64,
}

impl Client {
    fn new(mut party: Party) -> Self {
        let (uc, ud) = (party.qp(Transport::Uc, 0), party.qp(Transport::Ud, WINDOW));
        let buffers = party.region(WINDOW * 4096, Access::LOCAL);
        party.recvs(ud, buffers, WINDOW);
        let at = Remote {
            rkey: Rkey(0),
            addr: 0,
        };
        Self {
            party,
            uc,
            ud,
            buffers,
            at,
            sent: 0,
            got: 0,
        }
    }

    /// Fills the window and takes replies. Returns whether there was anything to do.
    fn step(&mut self) -> bool {
        let mut moved = false;
        while self.sent - self.got < WINDOW as u64 {
            let slot = self.sent % WINDOW as u64;
            let line = [self.sent, 2, 3, 4, 5, 6, 7, self.sent / WINDOW as u64 + 1];
            let batch = [write(Payload::Words(&line), self.at.offset(slot * 64))];
            self.party.port.post_send(self.uc, &batch).unwrap();
            self.sent += 1;
            moved = true;
        }
        for reply in self.party.poll() {
            let words = *reply.inline.unwrap().words();
            assert_eq!(
                words[0], self.got,
                "replies arrive in order and exactly once"
            );
            self.got += 1;
            self.party.recvs(self.ud, self.buffers, 1);
            moved = true;
        }
        moved
    }
}

/// The host's objects for one client.
struct Server {
    pd: PdId,
    uc: QpId,
    ud: QpId,
    lines: Span,
    at: Remote,
    to: Option<AddressHandle>,
    served: u64,
}

impl Server {
    fn new(host: &mut Party, ud: QpId) -> Self {
        let uc = host.qp(Transport::Uc, 0);
        let lines = host.region(WINDOW * 64, Access::WRITE);
        Self {
            pd: host.pd,
            uc,
            ud,
            lines: host.port.region(lines).unwrap().clone(),
            at: host.remote(lines),
            to: None,
            served: 0,
        }
    }

    fn meet(&mut self, host: &mut Party, uc: &Endpoint, ud: &Endpoint) {
        host.connect(self.uc, uc);
        self.to = Some(host.address(self.ud, ud));
    }

    fn step(&mut self, host: &mut Party) -> bool {
        let before = self.served;
        for _ in 0..WINDOW {
            let slot = usize::try_from(self.served % WINDOW as u64).unwrap();
            let round = self.served / WINDOW as u64 + 1;
            if self.lines.load_acquire(slot * 8 + 7) != round {
                break;
            }
            let line: [u64; 8] = self.lines.read_words(slot * 8);
            let batch = [send(Payload::Words(&line[..6]), Some(1), self.to)];
            host.port.post_send(self.ud, &batch).unwrap();
            self.served += 1;
        }
        self.served > before
    }
}

/// The other process: a client until it is killed.
#[test]
#[ignore = "the other process of the tests here"]
fn client() {
    let Some(mut stream) = other_end() else {
        return;
    };
    let mut client = Client::new(join(receive_ticket(&stream)));
    let (uc, ud) = (
        client.party.endpoint(client.uc),
        client.party.endpoint(client.ud),
    );
    put(&mut stream, uc.as_bytes()).unwrap();
    put(&mut stream, ud.as_bytes()).unwrap();
    let peer = Endpoint::new(&take(&mut stream).unwrap()).unwrap();
    client.party.connect(client.uc, &peer);
    let remote = take(&mut stream).unwrap();
    let word = |n: usize| u64::from_le_bytes(remote[n * 8..n * 8 + 8].try_into().unwrap());
    client.at = Remote {
        rkey: Rkey(u32::try_from(word(0)).unwrap()),
        addr: word(1),
    };
    put(&mut stream, &[1]).unwrap();
    loop {
        if client.step() {
            continue;
        }
        if client.party.port.arm(client.party.cq) == Armed::Yes && !client.step() {
            // The stream is closed with the host, if that ends first.
            let wakeup = client.party.port.wait_fd().unwrap();
            let mut fds = [
                PollFd::from_borrowed_fd(wakeup, PollFlags::IN),
                PollFd::new(&stream, PollFlags::IN),
            ];
            poll(&mut fds, None).unwrap();
            if !fds[1].revents().is_empty() {
                return;
            }
        }
        client.party.port.disarm(client.party.cq);
    }
}

/// Number of open files and of shared mappings of this process.
fn holdings() -> (usize, usize) {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    (fds, maps.matches("memfd:herdwick").count())
}

/// A client in this process, which must not be affected by what happens to the others.
struct Steady {
    client: Client,
    server: Server,
}

impl Steady {
    fn new(host: &mut Party) -> Self {
        let mut client = Client::new(join(host.domain()));
        let ud = host.qp(Transport::Ud, 0);
        let mut server = Server::new(host, ud);
        let ends = (
            client.party.endpoint(client.uc),
            client.party.endpoint(client.ud),
        );
        server.meet(host, &ends.0, &ends.1);
        let ours = host.endpoint(server.uc);
        client.party.connect(client.uc, &ours);
        client.at = server.at;
        Self { client, server }
    }

    fn step(&mut self, host: &mut Party) {
        let before = self.client.got;
        self.client.step();
        self.server.step(host);
        self.client.step();
        assert!(self.client.got > before);
    }
}

/// Lets a client reach a random point, kills it there, and serves on.
fn victim(host: &mut Party, steady: &mut Steady, seed: u64, spare: &mut Vec<Child>) {
    let ticket = host.domain();
    let mut server = Server::new(host, steady.server.ud);
    let (mut child, mut stream) = start("kills::client");
    let mut chance = Rng::new(seed);
    let mut below = |limit: u64| chance.below(limit);
    let phase = below(8);
    if phase > 0 {
        send_ticket(&stream, &ticket).unwrap();
    }
    drop(ticket);
    if phase > 1 {
        let ends = [(); 2].map(|()| Endpoint::new(&take(&mut stream).unwrap()).unwrap());
        server.meet(host, &ends[0], &ends[1]);
        put(&mut stream, host.endpoint(server.uc).as_bytes()).unwrap();
        let remote = [u64::from(server.at.rkey.0), server.at.addr];
        put(&mut stream, &remote.map(u64::to_le_bytes).concat()).unwrap();
    }
    if phase > 2 {
        take(&mut stream).unwrap();
        let until = below(20_000);
        while server.served < until {
            serve(host, steady, &mut server);
        }
    }
    child.kill().unwrap();
    if seed.is_multiple_of(10) {
        spare.push(child);
    } else {
        child.wait().unwrap();
    }
    afterwards(host, steady, &mut server);
}

fn serve(host: &mut Party, steady: &mut Steady, server: &mut Server) {
    steady.step(host);
    if !server.step(host) {
        let armed = host.port.arm(host.cq) == Armed::Yes;
        if armed && !server.step(host) {
            let mut fds = [PollFd::from_borrowed_fd(
                host.port.wait_fd().unwrap(),
                PollFlags::IN,
            )];
            let limit = Timespec {
                tv_sec: 20,
                tv_nsec: 0,
            };
            assert_ne!(
                poll(&mut fds, Some(&limit)).unwrap(),
                0,
                "the client was not woken"
            );
        }
        host.port.disarm(host.cq);
    }
}

/// Checks that a dead client's memory and wakeup descriptors have no effect any more.
fn afterwards(host: &mut Party, steady: &mut Steady, server: &mut Server) {
    for _ in 0..50 {
        server.step(host);
        steady.step(host);
        if let Some(to) = server.to {
            let batch = [send(Payload::Words(&[1]), None, Some(to)); 8];
            host.port.post_send(server.ud, &batch).unwrap();
        }
    }
    host.port.disarm(host.cq);
    // Its last wakeup was taken, and its closed end does not keep waking the port.
    assert!(!is_readable(host.port.wait_fd().unwrap()));
    host.device.destroy_pd(&mut host.port, server.pd).unwrap();
}

/// Runs in a process of its own, where no other test opens files.
#[test]
#[ignore = "run by the test below"]
fn host_of_victims() {
    let Some(mut stream) = other_end() else {
        return;
    };
    let mut host = host(PdSize::default());
    let mut steady = Steady::new(&mut host);
    let baseline = holdings();
    let mut zombies = Vec::new();
    for seed in 1..=ROUNDS {
        victim(&mut host, &mut steady, seed, &mut zombies);
        assert_eq!(holdings(), baseline, "after victim {seed}");
    }
    assert_eq!(steady.client.party.drops(), 0);
    for mut zombie in zombies {
        zombie.wait().unwrap();
    }
    put(&mut stream, &[1]).unwrap();
}

#[test]
fn killed_clients_leave_nothing_and_delay_no_other() {
    let (mut child, mut stream) = start("kills::host_of_victims");
    assert_eq!(take(&mut stream).unwrap(), [1]);
    assert!(child.wait().unwrap().success());
}

/// The other process: a host with one client and a region to READ, which takes no part from then on.
#[test]
#[ignore = "the other process of the tests here"]
fn host_of_readers() {
    let Some(mut stream) = other_end() else {
        return;
    };
    let mut host = host(PdSize::default());
    let ticket = host.domain();
    send_ticket(&stream, &ticket).unwrap();
    drop(ticket);
    let table = host.region(4096, Access::READ);
    host.port.region(table).unwrap().store(0, WORD_READ);
    let remote = host.remote(table);
    let qps = [(); 2].map(|()| host.qp(Transport::Rc, 1));
    for qp in qps {
        let peer = Endpoint::new(&take(&mut stream).unwrap()).unwrap();
        host.connect(qp, &peer);
        put(&mut stream, host.endpoint(qp).as_bytes()).unwrap();
    }
    let remote = [u64::from(remote.rkey.0), remote.addr];
    put(&mut stream, &remote.map(u64::to_le_bytes).concat()).unwrap();
    // Until it is killed, or the client is gone.
    let _ = stream.read(&mut [0]);
}

/// A word of the table that the client READs.
const WORD_READ: u64 = 0x7461_626c_6531;
/// Far more passes than a client takes to find that its host is gone.
const PASSES: usize = 100_000;

/// A client of a host in another process, with two RC queue pairs: one READs, one waits for SENDs.
struct ReadingClient {
    party: Party,
    reads: QpId,
    waits: QpId,
    into: herdwick_fabric::RegionId,
    from: Remote,
    host: Child,
    _stream: UnixStream,
}

impl ReadingClient {
    fn start() -> Self {
        let (child, mut stream) = start("kills::host_of_readers");
        let mut party = join(receive_ticket(&stream));
        let [reads, waits] = [(); 2].map(|()| party.qp(Transport::Rc, 1));
        for qp in [reads, waits] {
            put(&mut stream, party.endpoint(qp).as_bytes()).unwrap();
            let peer = Endpoint::new(&take(&mut stream).unwrap()).unwrap();
            party.connect(qp, &peer);
        }
        let into = party.region(4096, Access::LOCAL);
        party.recvs(waits, into, 1);
        let remote = take(&mut stream).unwrap();
        let word = |n: usize| u64::from_le_bytes(remote[n * 8..n * 8 + 8].try_into().unwrap());
        let from = Remote {
            rkey: Rkey(u32::try_from(word(0)).unwrap()),
            addr: word(1),
        };
        Self {
            party,
            reads,
            waits,
            into,
            from,
            host: child,
            _stream: stream,
        }
    }

    fn post_read(&mut self) -> Result<(), PostError> {
        let into = Local {
            region: self.into,
            offset: 0,
            len: 8,
        };
        let read = SendWr {
            wr_id: 7,
            op: SendOp::Read {
                into,
                from: self.from,
            },
            signaled: true,
            solicited: false,
            fence: false,
        };
        self.party.port.post_send(self.reads, &[read])
    }

    fn pass(&mut self) -> Vec<Completion> {
        self.party.port.progress(Duration::ZERO);
        self.party.poll()
    }

    /// READs until one is complete; returns how it ended.
    fn read(&mut self) -> Status {
        self.post_read().unwrap();
        let mut done = Vec::new();
        while done.is_empty() {
            done = self.pass();
        }
        assert_eq!((done.len(), done[0].wr_id), (1, 7));
        done[0].status
    }

    fn kill_host(&mut self) {
        self.host.kill().unwrap();
        self.host.wait().unwrap();
    }

    fn state(&self, qp: QpId) -> QpState {
        self.party.device.qp_state(&self.party.port, qp).unwrap()
    }
}

#[test]
fn reads_of_a_killed_host_end_with_an_error() {
    let mut client = ReadingClient::start();
    for _ in 0..5_000 {
        assert_eq!(client.read(), Status::Success);
    }
    let span = client.party.port.region(client.into).unwrap();
    assert_eq!(span.load(0), WORD_READ);
    client.kill_host();
    // Which READ finds it depends on the passes before; one on its way says why.
    let mut posted = (0..PASSES).map(|_| client.post_read().map(|()| client.pass()));
    let ended = posted.find(|done| !matches!(done, Ok(done) if done.iter().all(is_success)));
    let failed = |done: Vec<Completion>| done.into_iter().find(|done| done.wr_id == 7);
    match ended.expect("the host is gone") {
        Ok(done) => assert_eq!(failed(done).unwrap().status, Status::RetryExceeded),
        Err(error) => assert!(matches!(error, PostError::State(QpState::Error)), "{error}"),
    }
    assert_eq!(client.state(client.reads), QpState::Error);
    // The RECV of the queue pair that only waits is flushed with the READ, or behind it.
    assert_eq!(client.state(client.waits), QpState::Error);
}

fn is_success(done: &Completion) -> bool {
    done.status == Status::Success
}

#[test]
fn client_that_sleeps_is_woken_when_its_host_is_killed() {
    let mut client = ReadingClient::start();
    assert_eq!(client.read(), Status::Success);
    assert_eq!(client.party.port.arm(client.party.cq), Armed::Yes);
    client.kill_host();
    assert!(is_readable(client.party.port.wait_fd().unwrap()));
    client.party.port.disarm(client.party.cq);
    assert!(!is_readable(client.party.port.wait_fd().unwrap()));
    let flushed: Vec<_> = client.party.poll().iter().map(|done| done.status).collect();
    assert_eq!(flushed, [Status::Flushed]);
    assert_eq!(client.state(client.reads), QpState::Error);
}
