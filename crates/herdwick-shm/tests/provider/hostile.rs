//! A hostile client that writes the shared memory by hand: every word it can write, with any value,
//! at any instant. The host must neither panic nor stall, and another client's domain must not be
//! affected.

use std::{
    io::Write,
    net::{TcpListener, TcpStream},
    os::fd::AsFd,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use herdwick_check::Rng;
use herdwick_fabric::{
    Access, AddressHandle, Device, Local, Payload, Port, PostError, QpId, QpState, RegionId,
    Remote, SendOp, SendWr, Status, Transport,
};
use herdwick_mem::{Access as Rights, Mapping, Span, Words};
use herdwick_shm::PdSize;
use rustix::{
    fs::fstat,
    io::Errno,
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
};

use crate::party::{Party, client, connect, host, is_readable, send, write};

/// A bound for failures; no passing test waits for it.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Small, so that random words often hit something in use.
const SMALL: PdSize = PdSize {
    host_inbound: 1 << 20,
    host_readable: 4096,
    client_inbound: 1 << 20,
    client_regions: 8192,
};

/// Random numbers that are often interesting.
struct Chance(Rng);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0.bits()
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0.index(limit)
    }

    /// Returns a small or huge number, one near a power of two, a likely control word, or any word.
    fn word(&mut self) -> u64 {
        let any = self.next();
        match any % 6 {
            0 => any >> 58,
            1 => u64::MAX - (any >> 58),
            2 => (1 << (any >> 58)) + (any >> 8) % 3,
            3 => {
                ((1 << 57) * (1 + (any >> 8) % 3))
                    | ((any & 0xe_00ff_0000_0000) ^ ((any >> 60) << 48))
            }
            4 => (any >> 8) % (1 << 20),
            _ => any,
        }
    }
}

/// Where the host's area of `up` starts, and the distance of its rings for 16 RECVs.
const CONTROL_BYTES: usize = 8192;
const RINGS: usize = 4;
const RING_BYTES: usize = (32 + 2048) * 64;
/// Cells of a ring, and the lines by which a domain's colour may shift it.
const CELLS: usize = 32 + 64;

/// A second mapping of all of `up`.
struct Scribbler {
    up: Span,
    chance: Chance,
}

impl Scribbler {
    fn scribble(&mut self, words: usize) {
        if self.chance.below(8) == 0 {
            self.flood();
        }
        for _ in 0..words {
            // The control area and the control words of the first cells are few and matter most.
            let ring = self.chance.below(RINGS) * RING_BYTES / 8;
            let index = match self.chance.below(4) {
                0 => self.chance.below(CONTROL_BYTES / 8),
                1 => self.chance.below(self.up.count()),
                _ => CONTROL_BYTES / 8 + ring + self.chance.below(CELLS) * 8 + 7,
            };
            let word = self.chance.word();
            self.up.store(index, word);
        }
    }
}

impl Scribbler {
    /// Fills all cells of one ring with forged messages.
    fn flood(&mut self) {
        let ring = CONTROL_BYTES / 8 + self.chance.below(RINGS) * RING_BYTES / 8;
        for cell in 0..CELLS {
            let word = (1 << 57) | ((self.chance.next() % 100) << 32);
            self.up.store(ring + cell * 8 + 7, word);
        }
    }
}

/// The host's objects for one client that was honest until now.
struct Dealings {
    qps: Vec<QpId>,
    to: AddressHandle,
    /// The client's region, and a local one.
    remote: Remote,
    buffers: RegionId,
    lines: Span,
}

fn deal(host: &mut Party, seed: u64) -> (Dealings, Scribbler) {
    let ticket = host.domain();
    let len = usize::try_from(fstat(&ticket.fds[0]).unwrap().st_size).unwrap();
    let up = Mapping::shared(&ticket.fds[0], len, Rights::ReadWrite).unwrap();
    let mut client = client(ticket);
    let mut qps = Vec::new();
    for transport in [Transport::Rc, Transport::Uc, Transport::Uc] {
        let (ours, theirs) = (host.qp(transport, 16), client.qp(transport, 16));
        connect(host, ours, &mut client, theirs);
        qps.push(ours);
    }
    let (h_ud, g_ud) = (host.qp(Transport::Ud, 16), client.qp(Transport::Ud, 16));
    qps.push(h_ud);
    let theirs = client.region(8192, Access::ALL);
    let buffers = host.region(16 * 4096, Access::LOCAL);
    let lines = host.region(4096, Access::WRITE);
    for qp in &qps {
        host.recvs(*qp, buffers, 16);
    }
    let dealings = Dealings {
        qps,
        to: host.address(h_ud, &client.endpoint(g_ud)),
        remote: client.remote(theirs),
        buffers,
        lines: host.port.region(lines).unwrap().clone(),
    };
    // Leak the library's end of the domain, so that everything it published remains to be forged.
    std::mem::forget(client);
    let scribbler = Scribbler {
        up: Span::new(std::sync::Arc::new(up)),
        chance: Chance(Rng::new(seed)),
    };
    (dealings, scribbler)
}

impl Dealings {
    /// Posts to every queue pair, polls, and reposts most RECVs.
    fn step(&self, host: &mut Party, chance: &mut Chance) {
        let long = [chance.next(); 40];
        let local = Local {
            region: self.buffers,
            offset: 0,
            len: 8,
        };
        let at = self.remote.offset(chance.next() % 8300);
        let ops = [
            write(Payload::Words(&long[..8]), at).op,
            send(Payload::Words(&long[..chance.below(40)]), Some(1), None).op,
            SendOp::Read {
                into: Local { len: 64, ..local },
                from: at,
            },
            SendOp::FetchAdd {
                into: local,
                at: self.remote,
                add: 1,
            },
        ];
        for (n, qp) in self.qps.iter().enumerate() {
            let batch: Vec<SendWr<'_>> = if n == 3 {
                vec![
                    send(
                        Payload::Words(&long[..chance.below(40)]),
                        None,
                        Some(self.to)
                    );
                    3
                ]
            } else {
                let ops = &ops[..if n == 0 { 4 } else { 2 }];
                ops.iter()
                    .map(|op| SendWr {
                        op: *op,
                        ..write(Payload::Words(&[]), at)
                    })
                    .collect()
            };
            match host.port.post_send(*qp, &batch) {
                Ok(()) | Err(PostError::Full | PostError::State(QpState::Error)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        for done in host.poll() {
            let failed = host.device.qp_state(&host.port, done.qp).unwrap() == QpState::Error;
            if self.qps.contains(&done.qp)
                && done.wr_id < 16
                && !failed
                && done.status == Status::Success
                && chance.below(4) > 0
            {
                let _ = host.port.post_recv(done.qp, &[self.recv(done.wr_id)]);
            }
        }
        let _ = host.port.arm(host.cq);
        host.port.disarm(host.cq);
        let _: [u64; 8] = self.lines.read_words(8 * chance.below(60));
    }

    fn recv(&self, wr_id: u64) -> herdwick_fabric::RecvWr {
        let into = Local {
            region: self.buffers,
            offset: 0,
            len: 4096,
        };
        herdwick_fabric::RecvWr { wr_id, into }
    }
}

/// Another client of the same host port; its every exchange is checked.
struct Honest {
    client: Party,
    host_pd: herdwick_fabric::PdId,
    uc: QpId,
    h_ud: QpId,
    to: AddressHandle,
    at: Remote,
    lines: Span,
    g_ud: QpId,
    buffers: RegionId,
    /// Memory of this domain that is not written after its first fill.
    kept: Span,
    round: u64,
}

impl Honest {
    fn new(host: &mut Party) -> Self {
        let mut client = client(host.domain());
        let (h_uc, uc) = (host.qp(Transport::Uc, 0), client.qp(Transport::Uc, 0));
        connect(host, h_uc, &mut client, uc);
        let (h_ud, g_ud) = (host.qp(Transport::Ud, 0), client.qp(Transport::Ud, 1));
        let (lines, kept) = (
            host.region(4096, Access::WRITE),
            host.region(65536, Access::ALL),
        );
        let kept = host.port.region(kept).unwrap().clone();
        (0..kept.count()).for_each(|n| kept.store(n, n as u64 ^ 0xa5a5));
        Self {
            host_pd: host.pd,
            uc,
            h_ud,
            to: host.address(h_ud, &client.endpoint(g_ud)),
            at: host.remote(lines),
            lines: host.port.region(lines).unwrap().clone(),
            g_ud,
            buffers: client.region(4096, Access::LOCAL),
            kept,
            round: 0,
            client,
        }
    }

    fn exchange(&mut self, host: &mut Party) {
        self.round += 1;
        let line = [self.round; 8];
        self.client.recvs(self.g_ud, self.buffers, 1);
        let batch = [write(Payload::Words(&line), self.at)];
        self.client.port.post_send(self.uc, &batch).unwrap();
        assert_eq!(self.lines.load_acquire(7), self.round);
        let got: [u64; 8] = self.lines.read_words(0);
        let batch = [send(Payload::Words(&got[..7]), None, Some(self.to))];
        host.port.post_send(self.h_ud, &batch).unwrap();
        let done = self.client.poll();
        assert_eq!(done.len(), 1);
        assert_eq!(done[0].inline.unwrap().words(), &[self.round; 7]);
    }

    fn check_kept(&self) {
        assert!((0..self.kept.count()).all(|n| self.kept.load(n) == n as u64 ^ 0xa5a5));
        assert_eq!(self.client.drops(), 0);
    }
}

#[test]
fn forged_memory_affects_only_its_domain() {
    let mut host = host(SMALL);
    let mut honest = Honest::new(&mut host);
    let mut chance = Chance(Rng::new(1));
    for episode in 1..=150 {
        let (dealings, mut scribbler) = deal(&mut host, episode);
        for _ in 0..60 {
            scribbler.scribble(chance.below(400));
            dealings.step(&mut host, &mut chance);
            honest.exchange(&mut host);
        }
        let pd = host.pd;
        assert_ne!(pd, honest.host_pd);
        host.device.destroy_pd(&mut host.port, pd).unwrap();
    }
    honest.check_kept();
    let counted = host.port.drops();
    for (name, count) in counted {
        // Every kind of forgery occurred, and none kept memory from being given back.
        assert_eq!(count > 0, name != "memory_unreleased", "{name}");
    }
}

#[test]
fn memory_forged_concurrently_affects_only_its_domain() {
    let mut host = host(SMALL);
    let mut honest = Honest::new(&mut host);
    let mut chance = Chance(Rng::new(7));
    for episode in 1..=30 {
        let (dealings, mut scribbler) = deal(&mut host, episode);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    scribbler.scribble(1000);
                }
            });
            for _ in 0..100 {
                dealings.step(&mut host, &mut chance);
                honest.exchange(&mut host);
            }
            done.store(true, Ordering::Relaxed);
        });
        let pd = host.pd;
        host.device.destroy_pd(&mut host.port, pd).unwrap();
    }
    honest.check_kept();
}

#[test]
fn unread_wakeup_socket_blocks_no_sender() {
    let mut host = host(SMALL);
    let ticket = host.domain();
    let [wakeup, event] = [3, 4].map(|n| ticket.fds[n].try_clone().unwrap());
    let mut client = client(ticket);
    let (h_ud, g_ud) = (host.qp(Transport::Ud, 0), client.qp(Transport::Ud, 16));
    let to = host.address(h_ud, &client.endpoint(g_ud));
    for fd in [&wakeup, &event] {
        rustix::io::ioctl_fionbio(fd, false).unwrap();
    }
    // Each arming requires one more wakeup; the client never drains any.
    for _ in 0..5_000 {
        let _ = client.port.arm(client.cq);
        client.poll();
        let batch = [send(Payload::Words(&[1]), None, Some(to))];
        host.port.post_send(h_ud, &batch).unwrap();
        client.poll();
    }
    // The host waits for the client's eventfd and does not read it: neither full nor empty does it
    // block.
    rustix::io::write(&event, &(u64::MAX - 1).to_le_bytes()).unwrap();
    host.port.disarm(host.cq);
    rustix::io::read(&event, &mut [0; 8]).unwrap();
    host.port.disarm(host.cq);
    rustix::io::write(&event, &1_u64.to_le_bytes()).unwrap();
    assert!(is_readable(host.port.wait_fd().unwrap()));
}

/// A connection with so much unsent data that closing it takes as long as its linger time.
fn lingering() -> (TcpStream, TcpListener) {
    let far = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(far.local_addr().unwrap()).unwrap();
    rustix::net::sockopt::set_socket_linger(&near, Some(TIMEOUT)).unwrap();
    near.set_nonblocking(true).unwrap();
    while (&near).write(&[0; 1 << 16]).is_ok() {}
    (near, far)
}

#[test]
fn descriptors_sent_over_the_wakeup_socket_do_not_block_the_host() {
    let mut host = host(SMALL);
    let ticket = host.domain();
    let wakeup = ticket.fds[3].try_clone().unwrap();
    let (near, far) = lingering();
    for fd in [wakeup.as_fd(), near.as_fd(), near.as_fd()] {
        let fds = [fd];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = sendmsg(&wakeup, &[std::io::IoSlice::new(&[1])], &mut control, flags);
        assert_eq!(sent, Err(Errno::PIPE), "nothing can be put there");
    }
    // This is the last descriptor: a thread that closes one now waits.
    let closing = std::thread::spawn(move || drop(near));
    let pd = host.pd;
    host.port.disarm(host.cq);
    host.device.destroy_pd(&mut host.port, pd).unwrap();
    assert!(
        !closing.is_finished(),
        "the host was not faster than {TIMEOUT:?}"
    );
    drop(far);
    closing.join().unwrap();
}
