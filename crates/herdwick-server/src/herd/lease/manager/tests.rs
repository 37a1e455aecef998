//! Tests of the lease manager on real sockets, with fake workers that grant a pipe each and record
//! what they hold.

use std::{
    io::Write,
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::{
        Mutex,
        mpsc::{self, Sender},
    },
    thread::JoinHandle,
};

use herdwick_fabric::{Endpoint, Remote, Rkey};
use herdwick_herd::{
    Announce, RequestPath,
    hello::{self, Claim, Grant, HEADER_BYTES, Header, Token, WorkerAccept},
};
use herdwick_request::HashKey;
use mio::Waker;

use super::{
    new_sockets::UNCLAIMED_MAX,
    unread_grants::{UNREAD_HELD_MAX, UNREAD_MAX},
    *,
};
use crate::{
    herd::lease::{
        LeaseKind, LeaseListener,
        commands::{CommandReceiver, command_channel},
    },
    net::{stream::Stream, unix::UnixSocket},
};

const WORKERS: usize = 2;

pub(super) const LOCAL: LeaseKind = LeaseKind {
    fabric: Fabric::ALL[0],
    path: RequestPath::UcWrite,
    member: None,
};

struct Fixture {
    path: PathBuf,
    tokens: Arc<LeaseTokens>,
    counters: Arc<LeaseCounters>,
    /// Leases that the workers hold memory for: (worker, lease).
    held: Arc<Mutex<Vec<(usize, LeaseId)>>>,
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
    manager: Option<JoinHandle<()>>,
    workers: Vec<JoinHandle<()>>,
    _socket: LeaseListener,
}

impl Fixture {
    fn new(leases_max: usize) -> Self {
        Self::with_bytes(leases_max, 1 << 30)
    }

    fn with_bytes(leases_max: usize, bytes_max: usize) -> Self {
        Self::drawing(leases_max, bytes_max, |bytes| Ok(getrandom::fill(bytes)?))
    }

    fn drawing(
        leases_max: usize,
        bytes_max: usize,
        random: fn(&mut [u8]) -> io::Result<()>,
    ) -> Self {
        let mut socket = LeaseListener::bind(&std::env::temp_dir(), None).unwrap();
        let poll = Poll::new().unwrap();
        let waker = Arc::new(Waker::new(poll.registry(), WAKER).unwrap());
        let (tokens, held) = (
            Arc::new(LeaseTokens::new(HashKey([1, 2]), Arc::default())),
            Arc::default(),
        );
        let (to_manager, answers) = mpsc::channel();
        let (mut links, mut workers) = (Vec::new(), Vec::new());
        for worker in 0..WORKERS {
            let (commands, mut taken) = command_channel();
            links.push(WorkerLink {
                commands,
                wake: Box::new(|| ()),
            });
            let (to_manager, waker, held) =
                (to_manager.clone(), Arc::clone(&waker), Arc::clone(&held));
            workers.push(std::thread::spawn(move || {
                work(worker, &mut taken, &to_manager, &waker, &held)
            }));
        }
        let config = LeaseConfig {
            leases_max,
            reply_bytes_max: vec![4096; 2],
            bytes_max,
            lease_bytes: |_, window, workers| window.line_bytes() * workers,
            is_local: |fabric| fabric == LOCAL.fabric,
            readers: OneSidedReads::Off,
        };
        let (_sender, arrivals) = mpsc::channel();
        let channels = LeaseChannels {
            listener: socket.take_listener(),
            arrivals,
            tokens: Arc::clone(&tokens),
            links: vec![links],
            answers,
            random,
        };
        let manager = LeaseManager::new(poll, config, channels).unwrap();
        let (counters, stop) = (manager.counters(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let manager = std::thread::spawn(move || manager.run(ServerClock::start(), &stopped));
        let path = socket.path().to_owned();
        Self {
            path,
            tokens,
            counters,
            held,
            stop,
            waker,
            manager: Some(manager),
            workers,
            _socket: socket,
        }
    }

    fn token(&self) -> Token {
        self.tokens.issue(LOCAL, Duration::ZERO)
    }

    /// The token of a client that knows the server by its registration, admitted at this order of the fence.
    fn member_token(&self, order: u64) -> Token {
        let member = Some(order);
        let kind = LeaseKind { member, ..LOCAL };
        self.tokens.issue(kind, Duration::ZERO)
    }

    fn dial(&self) -> UnixStream {
        UnixStream::connect(&self.path).unwrap()
    }

    /// Returns a client that has read its grant: socket and grant.
    fn granted(&self) -> (UnixStream, Grant) {
        self.granted_by(self.token())
    }

    fn granted_by(&self, token: Token) -> (UnixStream, Grant) {
        let mut stream = self.dial();
        stream.write_all(&claim(token).to_frame()).unwrap();
        let (kind, body) = frame(&mut stream);
        assert_eq!(kind, hello::Kind::Grant);
        (stream, Grant::parse(&body).unwrap())
    }

    fn live(&self) -> UnixStream {
        let (mut stream, grant) = self.granted();
        stream
            .write_all(&accept(grant.workers.len()).to_frame())
            .unwrap();
        assert_eq!(frame(&mut stream).0, hello::Kind::Go);
        stream
    }

    /// Waits until the workers hold memory for `leases` leases.
    fn until_held(&self, leases: usize) {
        while self.held.lock().unwrap().len() != leases * WORKERS {
            std::thread::yield_now();
        }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake().unwrap();
        self.manager.take().unwrap().join().unwrap();
        for worker in self.workers.drain(..) {
            worker.join().unwrap();
        }
    }
}

fn work(
    worker: usize,
    commands: &mut CommandReceiver,
    answers: &Sender<(usize, LeaseAnswer)>,
    waker: &Waker,
    held: &Mutex<Vec<(usize, LeaseId)>>,
) {
    while let Some(command) = commands.wait() {
        let answer = match command {
            LeaseCommand::Grant(id, _) => {
                held.lock().unwrap().push((worker, id));
                let (read, write) = rustix::pipe::pipe().unwrap();
                LeaseAnswer::Granted(id, Some(Box::new((worker_grant(), vec![read, write]))))
            }
            LeaseCommand::Connect(id, peer) => {
                let sense = peer.requests.as_bytes() == [7; 8];
                LeaseAnswer::Connected(id, sense.then_some(()).ok_or(Refusal::Malformed))
            }
            LeaseCommand::ConnectParts(id, _) => panic!("{id:?}: HERD grants no parts"),
            LeaseCommand::Revoke(id) => {
                held.lock().unwrap().retain(|entry| *entry != (worker, id));
                LeaseAnswer::Revoked(id)
            }
        };
        if answers.send((worker, answer)).is_err() || waker.wake().is_err() {
            return;
        }
    }
}

pub(super) fn worker_grant() -> WorkerGrant {
    let (remote, endpoint) = (
        Remote {
            rkey: Rkey(1),
            addr: 2,
        },
        Endpoint::new(&[3; 8]).unwrap(),
    );
    WorkerGrant {
        ticket: vec![4; 5],
        fds: 2,
        lines: remote,
        overflow: remote,
        announce: Announce::Never,
        requests: endpoint,
        replies: endpoint,
        store: None,
    }
}

fn claim(token: Token) -> Claim {
    Claim {
        token,
        window: 16,
        reply_bytes_max: 1 << 20,
        reads: false,
    }
}

pub(super) fn accept(workers: usize) -> Accept {
    let endpoint = Endpoint::new(&[7; 8]).unwrap();
    Accept {
        workers: vec![
            WorkerAccept {
                requests: endpoint,
                replies: endpoint
            };
            workers
        ],
    }
}

fn frame(stream: &mut UnixStream) -> (hello::Kind, Vec<u8>) {
    let mut head = [0; HEADER_BYTES];
    stream.read_exact(&mut head).unwrap();
    let header = Header::parse(&head).unwrap();
    let mut body = vec![0; header.body_bytes];
    stream.read_exact(&mut body).unwrap();
    (header.kind, body)
}

/// Reads until the server closes the socket; whether it did so without a reset.
fn ended(stream: &mut UnixStream) -> bool {
    io::copy(stream, &mut io::sink()).is_ok()
}

#[test]
fn lease_lasts_until_its_socket_closes() {
    let fixture = Fixture::new(8);
    let stream = fixture.live();
    assert_eq!(fixture.counters.live.load(Ordering::Relaxed), 1);
    fixture.until_held(1);
    drop(stream);
    fixture.until_held(0);
    assert_eq!(fixture.counters.live.load(Ordering::Relaxed), 0);
    while fixture.counters.releasing.load(Ordering::Relaxed) > 0 {
        std::thread::yield_now();
    }
}

/// The order is not carried out before the workers have revoked the leases.
#[test]
fn fence_ends_the_leases_of_its_members_alone() {
    let fixture = Fixture::new(8);
    let plain = fixture.live();
    let (mut member, _) = fixture.granted_by(fixture.member_token(0));
    let unused = fixture.member_token(0);
    fixture.until_held(2);
    fixture.tokens.fence.order();
    fixture.waker.wake().unwrap();
    assert!(ended(&mut member));
    while !fixture.tokens.fence.wait(1, Duration::from_secs(1)) {}
    assert_eq!(fixture.held.lock().unwrap().len(), WORKERS);
    assert_eq!(fixture.counters.live.load(Ordering::Relaxed), 1);
    let mut late = fixture.dial();
    late.write_all(&claim(unused).to_frame()).unwrap();
    assert_eq!(frame(&mut late).0, hello::Kind::Refusal);
    let (_after, _) = fixture.granted_by(fixture.member_token(1));
    fixture.until_held(2);
    drop(plain);
    fixture.until_held(1);
}

#[test]
fn lease_does_not_time_out_while_the_manager_is_blocked() {
    let config = LeaseConfig {
        leases_max: 1,
        reply_bytes_max: vec![4096; 2],
        bytes_max: 0,
        lease_bytes: |_, _, _| 0,
        is_local: |_| true,
        readers: OneSidedReads::Off,
    };
    let channels = LeaseChannels {
        listener: None,
        arrivals: mpsc::channel().1,
        tokens: Arc::new(LeaseTokens::new(HashKey([1, 2]), Arc::default())),
        links: Vec::new(),
        answers: mpsc::channel().1,
        random: |_| Ok(()),
    };
    let mut manager = LeaseManager::new(Poll::new().unwrap(), config, channels).unwrap();
    let (here, _there) = mio::net::UnixStream::pair().unwrap();
    manager
        .admit(Stream::Unix(UnixSocket::new(here)), None, Duration::ZERO)
        .unwrap();
    let timeout = manager
        .clients
        .values()
        .next()
        .unwrap()
        .shake
        .poll_timeout();
    // The sleep was to last one heartbeat, and lasted ten.
    assert_eq!(manager.timeout(Duration::ZERO), Some(HEARTBEAT));
    let (now, late) = (10 * HEARTBEAT, 9 * HEARTBEAT);
    manager.extend_deadlines(HEARTBEAT / 2);
    manager.extend_deadlines(late);
    manager.handle_timeouts(now);
    assert_eq!(manager.clients.len(), 1);
    manager.handle_timeouts(late + timeout);
    assert!(manager.clients.is_empty());
}

#[test]
fn claims_are_clamped_and_epochs_differ() {
    let fixture = Fixture::new(8);
    let (mut stream, first) = fixture.granted();
    assert_eq!(
        (first.window, first.reply_bytes_max, first.workers.len()),
        (16, 4096, WORKERS)
    );
    let greedy = Claim {
        token: fixture.token(),
        window: u32::MAX,
        reply_bytes_max: 0,
        reads: false,
    };
    let mut other = fixture.dial();
    other.write_all(&greedy.to_frame()).unwrap();
    let second = Grant::parse(&frame(&mut other).1).unwrap();
    // The limit for replies inside a completion is the same for every client.
    assert_eq!((second.window, second.reply_bytes_max), (256, 56));
    assert_ne!(first.epoch, second.epoch);
    // An endpoint that the workers cannot parse.
    let endpoint = Endpoint::new(&[9]).unwrap();
    let pair = WorkerAccept {
        requests: endpoint,
        replies: endpoint,
    };
    stream
        .write_all(
            &Accept {
                workers: vec![pair; WORKERS],
            }
            .to_frame(),
        )
        .unwrap();
    assert_eq!(frame(&mut stream).0, hello::Kind::Refusal);
    drop((stream, other));
    fixture.until_held(0);
}

#[test]
fn wrong_or_replayed_tokens_are_refused() {
    let fixture = Fixture::new(8);
    let token = fixture.token();
    for (token, opens) in [(Token([9; 16]), false), (token, true), (token, false)] {
        let mut stream = fixture.dial();
        stream.write_all(&claim(token).to_frame()).unwrap();
        let (kind, body) = frame(&mut stream);
        assert_eq!(kind == hello::Kind::Grant, opens);
        if !opens {
            assert_eq!(Refusal::parse(&body), Refusal::Token);
            assert!(ended(&mut stream));
        }
    }
    fixture.until_held(0);
    assert_eq!(fixture.counters.refused_token.load(Ordering::Relaxed), 2);
}

#[test]
fn handshake_cut_at_any_byte_leaves_no_state() {
    let fixture = Fixture::new(8);
    let bystander = fixture.live();
    let first = claim(fixture.token()).to_frame().len();
    for cut in 0..first {
        let mut stream = fixture.dial();
        stream
            .write_all(&claim(fixture.token()).to_frame()[..cut])
            .unwrap();
    }
    let second = accept(WORKERS).to_frame();
    for cut in 0..second.len() {
        let (mut stream, _) = fixture.granted();
        stream.write_all(&second[..cut]).unwrap();
    }
    fixture.until_held(1);
    drop((fixture.live(), bystander));
    fixture.until_held(0);
}

#[test]
fn malformed_frames_end_only_their_socket() {
    let fixture = Fixture::new(8);
    let bystander = fixture.live();
    let huge = [b"HWL\x00\x01\x00\xff\xff".as_slice(), &[0; 100]].concat();
    for bytes in [
        b"GET / HTTP/1.0\r\n\r\n".as_slice(),
        &[0xff; 3000],
        &accept(2).to_frame(),
        &huge,
    ] {
        let mut stream = fixture.dial();
        stream.write_all(bytes).unwrap();
        assert!(ended(&mut stream));
    }
    let (mut stream, _) = fixture.granted();
    stream.write_all(&accept(WORKERS + 1).to_frame()).unwrap();
    assert_eq!(frame(&mut stream).0, hello::Kind::Refusal);
    fixture.until_held(1);
    drop(bystander);
}

#[test]
fn lease_beyond_the_limit_is_refused_until_another_ends() {
    let fixture = Fixture::new(1);
    let first = fixture.live();
    let mut second = fixture.dial();
    second
        .write_all(&claim(fixture.token()).to_frame())
        .unwrap();
    let (kind, body) = frame(&mut second);
    assert_eq!(
        (kind, Refusal::parse(&body)),
        (hello::Kind::Refusal, Refusal::Full)
    );
    drop(first);
    fixture.until_held(0);
    // The workers have revoked; the lease manager may process their answers only after the next
    // claim.
    loop {
        let mut third = fixture.dial();
        third.write_all(&claim(fixture.token()).to_frame()).unwrap();
        if frame(&mut third).0 == hello::Kind::Grant {
            break;
        }
    }
}

/// The numbers are those of docs/wire.md, "The lease".
#[test]
fn any_window_and_any_reply_length_of_a_claim_is_granted_as_documented() {
    let fixture = Fixture::new(8);
    for (window, granted) in [
        (0, 1),
        (1, 1),
        (3, 4),
        (256, 256),
        (257, 256),
        (u32::MAX, 256),
    ] {
        for (reply_bytes_max, reply) in [(0, 56), (56, 56), (57, 57), (5000, 4096)] {
            let mut stream = fixture.dial();
            let claim = Claim {
                window,
                reply_bytes_max,
                ..claim(fixture.token())
            };
            stream.write_all(&claim.to_frame()).unwrap();
            let grant = Grant::parse(&frame(&mut stream).1).unwrap();
            let found = (grant.window, grant.reply_bytes_max);
            assert_eq!(found, (granted, reply), "{window} {reply_bytes_max}");
            drop(stream);
            fixture.until_held(0);
        }
    }
    let page = include_str!("../../../../../../docs/wire.md");
    for part in [
        "0 counts as 1, above 256 as 256, what is no power of two as the next one",
        "less than 56 counts as 56, more than the server's limit as that",
        "the largest reply it sends, 56 to 4096 bytes",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert_eq!(crate::herd::fabrics::REPLY_BYTES_MAX, 4096);
}

#[test]
fn windows_shrink_before_clients_are_refused() {
    // 128 bytes a slot: one line at each of two workers. An eighth is kept for other holders.
    let fixture = Fixture::with_bytes(100, 32 * 128 * 8 / 7 + 1);
    let mut held = Vec::new();
    for window in [16, 8, 4, 2, 1, 1] {
        let mut stream = fixture.dial();
        let claim = Claim {
            window: 32,
            ..claim(fixture.token())
        };
        stream.write_all(&claim.to_frame()).unwrap();
        assert_eq!(Grant::parse(&frame(&mut stream).1).unwrap().window, window);
        held.push(stream);
    }
    assert_eq!(fixture.counters.bytes.load(Ordering::Relaxed), 32 * 128);
    let mut stream = fixture.dial();
    stream
        .write_all(&claim(fixture.token()).to_frame())
        .unwrap();
    let (kind, body) = frame(&mut stream);
    let full = (hello::Kind::Refusal, Refusal::Full);
    assert_eq!((kind, Refusal::parse(&body)), full);
    drop(held);
    while fixture.counters.bytes.load(Ordering::Relaxed) > 0 {
        std::thread::yield_now();
    }
}

/// Returns whether a claim is granted on `stream`.
fn is_granted(stream: &mut UnixStream, token: Token) -> bool {
    stream.write_all(&claim(token).to_frame()).unwrap();
    frame(stream).0 == hello::Kind::Grant
}

#[test]
fn oldest_silent_socket_is_closed_first() {
    let fixture = Fixture::new(8);
    let mut silent: Vec<_> = (0..UNCLAIMED_MAX).map(|_| fixture.dial()).collect();
    for _ in 0..3 {
        // A new connection finds a slot although all were taken.
        let mut stream = fixture.dial();
        assert!(is_granted(&mut stream, fixture.token()));
        assert!(ended(&mut silent.remove(0)));
        silent.push(fixture.dial());
    }
    // The others were not closed, and may still claim.
    assert!(is_granted(&mut silent[1], fixture.token()));
    let refused = fixture.counters.unclaimed_refused.load(Ordering::Relaxed);
    assert!((3..=6).contains(&refused), "{refused}");
}

#[test]
fn socket_with_unread_claim_is_served_before_it_is_closed() {
    let fixture = Fixture::new(UNCLAIMED_MAX * 2);
    let mut streams: Vec<_> = (0..UNCLAIMED_MAX + 8).map(|_| fixture.dial()).collect();
    for stream in &mut streams {
        // Some are closed already.
        let _ = stream.write_all(&claim(fixture.token()).to_frame());
    }
    let mut head = [0; HEADER_BYTES];
    let granted = streams
        .iter_mut()
        .filter_map(|stream| stream.read_exact(&mut head).ok());
    assert!(granted.count() >= UNCLAIMED_MAX);
}

#[test]
fn epochs_are_random_and_differ() {
    let fixture = Fixture::new(200);
    let epochs: Vec<u16> = (0..60).map(|_| fixture.granted().1.epoch).collect();
    assert!(epochs.iter().all(|epoch| *epoch != 0));
    assert!(epochs.windows(2).all(|pair| pair[0] != pair[1]));
    let counted = epochs
        .windows(2)
        .filter(|pair| pair[1] == pair[0].wrapping_add(1));
    assert!(counted.count() < 5, "{epochs:?}");
}

#[test]
fn lease_is_refused_without_random_bytes() {
    let fixture = Fixture::drawing(8, 1 << 30, |_| Err(ErrorKind::Unsupported.into()));
    let mut stream = fixture.dial();
    stream
        .write_all(&claim(fixture.token()).to_frame())
        .unwrap();
    let (kind, body) = frame(&mut stream);
    let refused = (hello::Kind::Refusal, Refusal::Memory);
    assert_eq!((kind, Refusal::parse(&body)), refused);
    assert_eq!(fixture.counters.bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn one_user_cannot_take_the_last_share() {
    let fixture = Fixture::with_bytes(100, 64 * 128);
    let mut held = Vec::new();
    loop {
        let mut stream = fixture.dial();
        if !is_granted(&mut stream, fixture.token()) {
            break;
        }
        held.push(stream);
    }
    let (bytes, kept) = (fixture.counters.bytes.load(Ordering::Relaxed), 64 * 128 / 8);
    assert_eq!(bytes, 64 * 128 - kept);
    drop(held);
    fixture.until_held(0);
    // The workers have revoked before the lease manager processes their answers.
    while fixture.counters.bytes.load(Ordering::Relaxed) > 0 {
        std::thread::yield_now();
    }
    drop(fixture.live());
}

#[test]
fn holder_with_unread_grants_of_ended_leases_is_refused() {
    let fixture = Fixture::new(2 * UNREAD_MAX);
    let mut unread: Vec<_> = (0..UNREAD_MAX).map(|_| fixture.dial()).collect();
    for (n, stream) in (1..).zip(&mut unread) {
        stream
            .write_all(&claim(fixture.token()).to_frame())
            .unwrap();
        fixture.until_held(n);
        // The grant has arrived when there is something to peek at.
        let peeked = rustix::net::recv(&*stream, &mut [0; 1], rustix::net::RecvFlags::PEEK);
        assert_eq!(peeked.map(|(_, bytes)| bytes), Ok(1));
    }
    for (n, stream) in unread.iter_mut().enumerate() {
        // An accept without reading the grant does not count as reading it, however the lease ends.
        match n % 2 {
            0 => stream.shutdown(std::net::Shutdown::Write).unwrap(),
            _ => stream.write_all(&accept(WORKERS + 1).to_frame()).unwrap(),
        }
    }
    fixture.until_held(0);
    assert!(is_full(&fixture));
    // One is read, one is closed.
    assert!(ended(&mut unread[0]));
    drop(fixture.live());
    assert_eq!(fixture.counters.grants_unsent.load(Ordering::Relaxed), 0);
}

/// Returns whether a claim is refused because its holder has too much.
fn is_full(fixture: &Fixture) -> bool {
    let mut stream = fixture.dial();
    stream
        .write_all(&claim(fixture.token()).to_frame())
        .unwrap();
    let (kind, body) = frame(&mut stream);
    kind == hello::Kind::Refusal && Refusal::parse(&body) == Refusal::Full
}

#[test]
fn holder_with_unread_grants_of_held_leases_is_refused() {
    let fixture = Fixture::new(4 * UNREAD_HELD_MAX);
    let mut unread = Vec::new();
    for n in 1..=UNREAD_HELD_MAX {
        let mut stream = fixture.dial();
        stream
            .write_all(&claim(fixture.token()).to_frame())
            .unwrap();
        fixture.until_held(n);
        let peeked = rustix::net::recv(&stream, &mut [0; 1], rustix::net::RecvFlags::PEEK);
        assert_eq!(peeked.map(|(_, bytes)| bytes), Ok(1));
        // Some accept although they have not read.
        if n % 2 == 0 {
            stream.write_all(&accept(WORKERS).to_frame()).unwrap();
        }
        unread.push(stream);
    }
    assert!(is_full(&fixture));
    // One is read, which makes room for one more that reads.
    assert_eq!(frame(&mut unread[0]).0, hello::Kind::Grant);
    drop(fixture.live());
    assert_eq!(fixture.counters.grants_unsent.load(Ordering::Relaxed), 0);
}

#[test]
fn unread_refusal_is_not_counted_as_unread_grant() {
    let fixture = Fixture::new(4 * UNREAD_MAX);
    let mut silent = Vec::new();
    for _ in 0..=UNREAD_MAX {
        let mut stream = fixture.live();
        // More heartbeats at once than are taken: the answer is a refusal and the end of the
        // lease. The socket stays open.
        stream.write_all(&[0; hello::BEATS_MAX + 1]).unwrap();
        silent.push(stream);
    }
    fixture.until_held(0);
    drop(fixture.live());
}

#[test]
fn descriptors_end_their_lease_socket_and_the_manager_continues() {
    let fixture = Fixture::new(8);
    let bystander = fixture.live();
    let (end, _) = UnixStream::pair().unwrap();
    for mut stream in [fixture.dial(), fixture.granted().0, fixture.live()] {
        let fds = [rustix::fd::AsFd::as_fd(&end)];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
        assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
        let byte = [io::IoSlice::new(&[0])];
        let flags = rustix::net::SendFlags::empty();
        rustix::net::sendmsg(&stream, &byte, &mut control, flags).unwrap();
        // The end, or a reset: the byte we sent was never read.
        while matches!(stream.read(&mut [0; 64]), Ok(1..)) {}
    }
    fixture.until_held(1);
    drop(bystander);
}
