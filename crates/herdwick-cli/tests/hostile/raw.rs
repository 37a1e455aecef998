//! A lease taken by hand. Its files are mapped and written here, at the offsets drawn in
//! `docs/wire.md`, without the client library: the test decides what is written.

use std::{
    fs::File,
    io::{BufRead, BufReader, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    net::{Shutdown, TcpStream},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
};

use herdwick_herd::{
    handshake::{ClientEvent, ClientHandshake},
    hello::{
        Accept, BootId, Claim, Grant, HEADER_BYTES, HEARTBEAT, Header, Hello, Kind, Offer,
        TICKET_FDS_MAX, Token, WORKERS_MAX, WorkerAccept, WorkerGrant,
    },
};
use herdwick_mem::{Access, Mapping, Span, Words};
use herdwick_providers::Fabric;
use rustix::{
    cmsg_space,
    fs::fstat,
    io::retry_on_intr,
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg},
};

use crate::common::{Clock, TIMEOUT};

pub(crate) const LINE_BYTES: usize = 64;
pub(crate) const LINE_WORDS: usize = 8;
pub(crate) const CONTROL_WORD: usize = 7;
const BODY_BYTES: usize = 48;
pub(crate) const OVERFLOW_BYTES: usize = 1024;

pub(crate) const GET: u64 = 1;
pub(crate) const SET: u64 = 3;
pub(crate) const ADD: u64 = 4;
pub(crate) const INCR: u64 = 9;
pub(crate) const HAS_ATTR: u64 = 1 << 4;
pub(crate) const OVERFLOW: u64 = 1 << 7;

pub(crate) const DONE: u8 = 1;
pub(crate) const NOT_FOUND: u8 = 2;
pub(crate) const BAD_KEY: u8 = 8;
pub(crate) const WRONG_PARTITION: u8 = 9;
pub(crate) const BAD_REQUEST: u8 = 10;

const CONTROL_BYTES: usize = 8192;
/// First of the region entries in a control area, and words of an entry.
pub(crate) const REGIONS_WORD: usize = 320 / 8;
pub(crate) const REGION_WORDS: usize = 4;
pub(crate) const REGIONS: usize = 64;
/// First of the queue pair lines in a control area.
const QUEUE_PAIRS_WORD: usize = 2368 / 8;
const READY: u64 = 1 << 32;

/// The client's lines in the control area, and the transports of the two queue pairs.
const REQUESTS: u8 = 0;
const REPLIES: u8 = 1;
const UC: u8 = 1;
const UD: u8 = 2;

/// Cells and long lines of a reply ring, as powers of two; 0: none.
#[derive(Clone, Copy)]
pub(crate) struct Shape(pub(crate) u8, pub(crate) u8);

/// Room for the heads of a full window of the largest replies, and a few large ones; it fits the
/// domain of any window.
pub(crate) const ROOMY: Shape = Shape(8, 8);

/// The server's reply to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) sequence: u32,
    pub(crate) worker: usize,
    pub(crate) bytes: Vec<u8>,
}

impl Reply {
    pub(crate) fn status(&self) -> u8 {
        self.bytes[0]
    }

    /// The version; after INCR the new number.
    pub(crate) fn number(&self) -> u64 {
        u64::from_le_bytes(self.bytes[8..16].try_into().unwrap())
    }

    pub(crate) fn value(&self) -> &[u8] {
        self.bytes.get(16..).unwrap_or_default()
    }
}

/// The memory that one worker shares with the client.
pub(crate) struct Channel {
    pub(crate) up: Span,
    pub(crate) down: Span,
    pub(crate) board: Span,
    /// `up`, `down`, the board, the socket that wakes the client and the eventfd that wakes the
    /// host.
    pub(crate) fds: Vec<OwnedFd>,
    pub(crate) wakeup: UnixStream,
    /// Where slot 0's line lies in `up`, in words, and its overflow area, in bytes.
    lines: usize,
    pub(crate) overflow: usize,
    pub(crate) window: usize,
    epoch: u16,
    domain: u64,
    shape: Shape,
    /// Where the client's ring lies in `down`.
    ring: usize,
    cells_taken: u64,
    long_taken: u64,
    /// Sequence of the next request.
    pub(crate) next: u32,
}

/// A request: its line's first word, opcode and key length, and the body.
#[derive(Clone)]
pub(crate) struct Ask {
    pub(crate) hash: u64,
    pub(crate) opcode: u64,
    pub(crate) key_len: u64,
    pub(crate) body: Vec<u8>,
}

impl Channel {
    fn new(grant: &WorkerGrant, fds: Vec<OwnedFd>, terms: &Grant, shape: Shape) -> Self {
        let ticket = |n: usize| u64::from_le_bytes(grant.ticket[n * 8..][..8].try_into().unwrap());
        let map = |n: usize, access| {
            let len = fstat(&fds[n]).unwrap().st_size as usize;
            Span::new(Arc::new(Mapping::shared(&fds[n], len, access).unwrap()))
        };
        let (up, down) = (map(0, Access::ReadWrite), map(1, Access::Read));
        let start = |rkey: u32, addr: u64| {
            let entry = REGIONS_WORD + rkey as usize % REGIONS * REGION_WORDS;
            (down.load(entry + 1) & !(1 << 63)) as usize + addr as usize
        };
        let lines = start(grant.lines.rkey.0, grant.lines.addr) / 8;
        let overflow = start(grant.overflow.rkey.0, grant.overflow.addr);
        let domain = ticket(1);
        let channel = Self {
            lines,
            overflow,
            board: map(2, Access::Read),
            wakeup: UnixStream::from(fds[3].try_clone().unwrap()),
            window: terms.window.into(),
            epoch: terms.epoch,
            domain,
            shape,
            ring: CONTROL_BYTES + (domain % 64) as usize * LINE_BYTES,
            cells_taken: 0,
            long_taken: 0,
            next: 0,
            up,
            down,
            fds,
        };
        channel.wakeup.set_nonblocking(true).unwrap();
        for line in [REQUESTS, REPLIES] {
            channel
                .up
                .store_release(queue_pair(line), READY | (u64::from(line) + 1));
        }
        channel
    }

    /// The three files of the domain.
    pub(crate) fn files(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.fds[..3].iter().map(AsFd::as_fd)
    }

    pub(crate) fn accept(&self) -> WorkerAccept {
        let endpoint = |line: u8, transport: u8, shape: Shape, ring: u64| {
            let mut blob = *b"hs\x01\x01____\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
            blob[4..8].copy_from_slice(&[transport, line, shape.0, shape.1]);
            blob[8..16].copy_from_slice(&self.domain.to_le_bytes());
            blob[16] = line + 1;
            blob[24..].copy_from_slice(&ring.to_le_bytes());
            herdwick_fabric::Endpoint::new(&blob).unwrap()
        };
        let ring = if self.shape.0 == 0 {
            0
        } else {
            self.ring as u64
        };
        WorkerAccept {
            requests: endpoint(REQUESTS, UC, Shape(0, 0), 0),
            replies: endpoint(REPLIES, UD, self.shape, ring),
        }
    }

    /// Builds a control word.
    pub(crate) fn control(&self, ask: &Ask, sequence: u32, attempt: u64) -> u64 {
        ask.opcode
            | ask.key_len << 8
            | (ask.body.len().min(63) as u64) << 16
            | (attempt % 4) << 22
            | u64::from(sequence & 0xff_ffff) << 24
            | u64::from(self.epoch) << 48
    }

    /// Builds a line with the body of `ask`, as far as it fits.
    pub(crate) fn line(&self, ask: &Ask, sequence: u32) -> [u64; LINE_WORDS] {
        let mut line = [0; LINE_WORDS];
        line[0] = ask.hash;
        for (word, bytes) in line[1..CONTROL_WORD].iter_mut().zip(ask.body.chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(padded);
        }
        line[CONTROL_WORD] = self.control(ask, sequence, 0);
        line
    }

    /// First word of a slot's line.
    pub(crate) fn slot_word(&self, slot: usize) -> usize {
        self.lines + slot % self.window * LINE_WORDS
    }

    /// Writes a slot's line, the control word last, and wakes the worker if it sleeps.
    pub(crate) fn write(&self, slot: usize, line: &[u64; LINE_WORDS]) {
        let at = self.slot_word(slot);
        for (n, word) in line.iter().enumerate() {
            self.up.store_release(at + n, *word);
        }
        self.ring_wakeup();
    }

    /// Writes the next request and returns its sequence.
    pub(crate) fn submit(&mut self, ask: &Ask) -> u32 {
        let sequence = self.next;
        self.next += 1;
        self.write(sequence as usize, &self.line(ask, sequence));
        sequence
    }

    /// Writes the next request with its body in the overflow area and `crc` as its checksum.
    pub(crate) fn submit_overflow(&mut self, ask: &Ask, crc: u32) -> u32 {
        let slot = self.next as usize % self.window;
        let area = self.overflow + slot * OVERFLOW_BYTES;
        let len = ask.body.len().min(OVERFLOW_BYTES);
        self.up.write_bytes(area, &ask.body[..len]);
        self.submit(&Ask {
            opcode: ask.opcode | OVERFLOW,
            body: [(ask.body.len() as u32).to_le_bytes(), crc.to_le_bytes()].concat(),
            ..*ask
        })
    }

    /// Wakes the worker if it sleeps or is about to.
    pub(crate) fn ring_wakeup(&self) {
        fence(Ordering::SeqCst);
        if self.board.load(0) & 1 == 1 {
            rustix::io::write(&self.fds[4], &1_u64.to_le_bytes()).unwrap();
        }
    }

    /// Words of the client's control area that publish its ring position: cells, then long lines.
    pub(crate) fn heads(&self) -> [usize; 2] {
        [queue_pair(REPLIES) + 1, queue_pair(REPLIES) + 2]
    }

    /// Takes the next reply from the ring.
    pub(crate) fn poll(&mut self) -> Option<Reply> {
        let cells = 1 << self.shape.0;
        let at = self.ring + (self.cells_taken % cells) as usize * LINE_BYTES;
        let control = self.down.load_acquire(at / 8 + CONTROL_WORD);
        if control >> 57 != (self.cells_taken / cells + 1) % 128 {
            return None;
        }
        let len = (control >> 32) as usize & 0x1_ffff;
        let bytes = if len <= 56 {
            let mut bytes = vec![0; len];
            self.down.read_bytes(at, &mut bytes);
            bytes
        } else {
            self.take_long(len)
        };
        self.cells_taken += 1;
        let [cells, long] = self.heads();
        self.up.store_release(long, self.long_taken);
        self.up.store_release(cells, self.cells_taken);
        Some(Reply {
            sequence: control as u32 & 0xff_ffff,
            worker: (control >> 24) as usize & 0xff,
            bytes,
        })
    }

    fn take_long(&mut self, len: usize) -> Vec<u8> {
        let start = self.ring + (LINE_BYTES << self.shape.0);
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let line = (self.long_taken % (1 << self.shape.1)) as usize;
            let mut part = [0; LINE_BYTES];
            self.down.read_bytes(start + line * LINE_BYTES, &mut part);
            bytes.extend_from_slice(&part);
            self.long_taken += 1;
        }
        bytes.truncate(len);
        bytes
    }

    /// Waits for the next reply.
    pub(crate) fn reply(&mut self) -> Reply {
        let clock = Clock::start();
        loop {
            if let Some(reply) = self.poll() {
                return reply;
            }
            assert!(clock.now() < TIMEOUT, "no reply");
            self.ring_wakeup();
            std::thread::yield_now();
        }
    }

    /// Waits for the reply to `sequence`; drops others, such as second answers to retries.
    pub(crate) fn reply_to(&mut self, sequence: u32) -> Reply {
        loop {
            let reply = self.reply();
            if reply.sequence == sequence & 0xff_ffff {
                return reply;
            }
        }
    }

    pub(crate) fn call(&mut self, ask: &Ask) -> Reply {
        let sequence = if ask.body.len() <= BODY_BYTES {
            self.submit(ask)
        } else {
            self.submit_overflow(ask, crc32c::crc32c(&ask.body))
        };
        self.reply_to(sequence)
    }

    /// Writes the control word of a request again, as another attempt.
    pub(crate) fn retry(&self, sequence: u32, attempt: u64) {
        let at = self.slot_word(sequence as usize) + CONTROL_WORD;
        let control = self.up.load(at) & !(3 << 22);
        self.up.store_release(at, control | (attempt % 4) << 22);
        self.ring_wakeup();
    }
}

fn queue_pair(line: u8) -> usize {
    QUEUE_PAIRS_WORD + usize::from(line) * LINE_WORDS
}

/// A lease, and the connection that offered it.
pub(crate) struct Raw {
    pub(crate) offer: Offer,
    pub(crate) channels: Vec<Channel>,
    pub(crate) lease: Lease,
    _tcp: TcpStream,
}

/// Keeps a lease alive until it is dropped.
pub(crate) struct Lease(UnixStream);

impl Lease {
    fn keep(socket: UnixStream) -> Self {
        let mut beating = socket.try_clone().unwrap();
        beating.set_read_timeout(Some(HEARTBEAT)).unwrap();
        // The server sends nothing more, so the read ends with a timeout, for the next heartbeat,
        // or with the lease.
        std::thread::spawn(move || {
            while beating.read(&mut [0]).is_err() && beating.write_all(&[0]).is_ok() {}
        });
        Self(socket)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

impl Raw {
    /// Takes a lease as an ordinary client would.
    pub(crate) fn take(address: &str, window: usize) -> Self {
        Self::shaped(address, window, ROOMY)
    }

    /// Takes a lease with reply rings of another shape.
    pub(crate) fn shaped(address: &str, window: usize, shape: Shape) -> Self {
        let mut step = Step::hello(address);
        let channels = step.channels(window, shape);
        let workers = channels.iter().map(Channel::accept).collect();
        let mut shake = step.shake.take().unwrap();
        step.say(&shake.accept(&Accept { workers }));
        let event = step.event(&mut shake);
        assert!(matches!(event, ClientEvent::Go), "{event:?}");
        Self {
            offer: step.offer,
            channels,
            lease: Lease::keep(step.socket),
            _tcp: step.tcp,
        }
    }

    /// Returns the lease's socket, for sending anything on it. The lease lasts as long as the
    /// socket.
    pub(crate) fn into_socket(self) -> UnixStream {
        let socket = self.lease.0.try_clone().unwrap();
        std::mem::forget(self.lease);
        socket
    }

    /// The ACCEPT frame of the lease.
    pub(crate) fn accept(&self) -> Vec<u8> {
        let workers = self.channels.iter().map(Channel::accept).collect();
        Accept { workers }.to_frame()
    }

    /// The worker that owns `key`.
    pub(crate) fn worker_of(&self, key: &[u8]) -> usize {
        let hash = self.offer.hash_key.hash(key);
        hash.partition(self.channels.len())
    }

    pub(crate) fn channel_of(&mut self, key: &[u8]) -> &mut Channel {
        let worker = self.worker_of(key);
        &mut self.channels[worker]
    }

    pub(crate) fn ask(&self, opcode: u64, key: &[u8], value: &[u8]) -> Ask {
        Ask {
            hash: self.offer.hash_key.hash(key).0,
            opcode,
            key_len: key.len() as u64,
            body: [key, value].concat(),
        }
    }

    pub(crate) fn get(&self, key: &[u8]) -> Ask {
        self.ask(GET, key, b"")
    }

    pub(crate) fn set(&self, key: &[u8], value: &[u8]) -> Ask {
        self.ask(SET, key, value)
    }

    /// Builds a request that adds one, and stores one if there is no item.
    pub(crate) fn add_one(&self, key: &[u8]) -> Ask {
        let one = 1u64.to_le_bytes();
        let mut ask = self.ask(INCR | HAS_ATTR, key, &[one, one].concat());
        ask.body.splice(0..0, [0; 8]);
        ask
    }

    pub(crate) fn call(&mut self, ask: &Ask, key: &[u8]) -> Reply {
        self.channel_of(key).call(ask)
    }

    /// Returns a key with `prefix` that `worker` owns.
    pub(crate) fn key_at(&self, worker: usize, prefix: &str) -> Vec<u8> {
        (0..)
            .map(|n| format!("{prefix}{n}").into_bytes())
            .find(|key| self.worker_of(key) == worker)
            .unwrap()
    }
}

/// A lease handshake, one message at a time.
pub(crate) struct Step {
    pub(crate) tcp: TcpStream,
    pub(crate) offer: Offer,
    pub(crate) path: PathBuf,
    pub(crate) token: Token,
    pub(crate) socket: UnixStream,
    /// Set by a grant.
    shake: Option<ClientHandshake>,
}

impl Step {
    /// Exchanges the hello, and connects to the lease socket.
    pub(crate) fn hello(address: &str) -> Self {
        let mut tcp = TcpStream::connect(address).unwrap();
        tcp.set_read_timeout(Some(TIMEOUT)).unwrap();
        tcp.write_all(hello_line().as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(&tcp).read_line(&mut line).unwrap();
        let offer = Offer::parse(line.trim_end().as_bytes(), &Fabric::all_words()).unwrap();
        let shm = offer.fabric("shm").unwrap();
        let path = shm.socket.clone().unwrap();
        let socket = UnixStream::connect(&path).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self {
            tcp,
            token: shm.token,
            offer,
            path,
            socket,
            shake: None,
        }
    }

    pub(crate) fn say(&mut self, frame: &[u8]) {
        self.socket.write_all(frame).unwrap();
    }

    fn claim_of(&self, window: usize) -> Claim {
        Claim {
            token: self.token,
            window: window as u32,
            reply_bytes_max: 4096,
            reads: false,
        }
    }

    pub(crate) fn claim_frame(&self, window: usize) -> Vec<u8> {
        self.claim_of(window).to_frame()
    }

    /// Claims a lease. Returns the grant and its descriptors.
    pub(crate) fn claim(&mut self, window: usize) -> (Grant, Vec<OwnedFd>) {
        let (mut shake, frame) = ClientHandshake::new(&self.claim_of(window));
        self.say(&frame);
        let event = self.event(&mut shake);
        let ClientEvent::Granted(grant, tickets) = event else {
            panic!("{event:?}");
        };
        self.shake = Some(shake);
        let fds = tickets.into_iter().flat_map(|worker| worker.domain.fds);
        (grant, fds.collect())
    }

    /// Receives the next message of the server, as an ordinary client does.
    fn event(&mut self, shake: &mut ClientHandshake) -> ClientEvent {
        let (head, body, fds) = self.frame();
        let event = shake.handle_input(&head, fds).unwrap();
        event.unwrap_or_else(|| shake.handle_input(&body, Vec::new()).unwrap().unwrap())
    }

    /// Claims a lease, and maps the granted memory.
    pub(crate) fn channels(&mut self, window: usize, shape: Shape) -> Vec<Channel> {
        let (terms, fds) = self.claim(window);
        let mut fds = fds.into_iter();
        let channel = |grant: &WorkerGrant| {
            let fds = fds.by_ref().take(grant.fds.into()).collect();
            Channel::new(grant, fds, &terms, shape)
        };
        terms.workers.iter().map(channel).collect()
    }

    /// Receives the next frame, and the descriptors that accompany it.
    pub(crate) fn hear(&mut self) -> (Kind, Vec<u8>, Vec<OwnedFd>) {
        let (head, body, fds) = self.frame();
        (Header::parse(&head).unwrap().kind, body, fds)
    }

    /// Receives the header and body of the next frame, and the descriptors that accompany it.
    fn frame(&mut self) -> ([u8; HEADER_BYTES], Vec<u8>, Vec<OwnedFd>) {
        let mut head = [0; HEADER_BYTES];
        let mut space =
            [MaybeUninit::uninit(); cmsg_space!(ScmRights(WORKERS_MAX * TICKET_FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut head)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let message = retry_on_intr(|| {
            recvmsg(self.socket.as_fd(), &mut into, &mut control, flags)
                .map(|message| message.bytes)
        });
        let read = message.unwrap();
        let mut fds = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                fds.extend(rights);
            }
        }
        self.socket.read_exact(&mut head[read..]).unwrap();
        let header = Header::parse(&head).unwrap();
        let mut body = vec![0; header.body_bytes];
        self.socket.read_exact(&mut body).unwrap();
        (head, body, fds)
    }
}

/// The hello of a client on this host, with its line end.
pub(crate) fn hello_line() -> String {
    let mut boot = String::new();
    let mut file = File::open("/proc/sys/kernel/random/boot_id").unwrap();
    file.read_to_string(&mut boot).unwrap();
    let boot = BootId::parse(&boot);
    let hello = Hello {
        fabrics: vec!["shm".to_owned()],
        boot,
        ..Hello::default()
    };
    hello.to_line()
}
