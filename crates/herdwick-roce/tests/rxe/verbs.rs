//! `tests/rxe/verbs.c` in the guest: every verb in both directions, at all lengths that matter,
//! with every byte compared at its destination.

use std::{
    io::Write,
    net::{Ipv6Addr, Shutdown, TcpStream},
};

use herdwick_fabric::{Status, Transport};

use crate::judge::{Done, Judge, Place, QKEY, There};

/// Offsets, in either memory, of data to send, of received data, and of a word for atomics and its
/// old value.
const FROM: usize = 0;
const INTO: usize = 0x40000;
const WORD: usize = 0x80000;
const OLD: usize = 0x80040;
/// Depth of the queues.
const DEPTH: usize = 64;
/// Status codes of libibverbs.
const SUCCESS: u32 = 0;
const REMOTE_ACCESS: u32 = 10;

/// A queue pair in the guest that executes commands, connected to one here.
pub(crate) struct Pair<'a> {
    judge: &'a mut Judge,
    stream: TcpStream,
    said: Vec<u8>,
    there: There,
    qp: Place,
    transport: Transport,
    seed: u64,
}

/// A completion of the guest's queue pair.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Completed {
    status: u32,
    len: usize,
    imm: u32,
    source: u32,
}

impl<'a> Pair<'a> {
    pub(crate) fn new(judge: &'a mut Judge, transport: Transport, mtu: usize) -> Self {
        let name = match transport {
            Transport::Rc => "rc",
            Transport::Uc => "uc",
            Transport::Ud => "ud",
        };
        let gid = judge.family.gid_index();
        let stream = judge.start(|port| format!("verbs 10.0.2.2 {port} {name} {mtu} {gid}"));
        judge.guest.listen(&stream);
        let qp = judge.queue_pair(transport, DEPTH, QKEY);
        let mut pair = Self {
            judge,
            stream,
            said: Vec::new(),
            there: There::default(),
            qp,
            transport,
            seed: 1,
        };
        pair.there = parse(&pair.hear());
        pair.judge.connect(qp, &pair.there, mtu);
        let ours = pair.judge.here(qp);
        let line = format!(
            "{:x} {:x} {:x} {:x} {QKEY:x} {}",
            ours.qpn, ours.psn, ours.rkey, ours.addr, ours.gid
        );
        assert_eq!(pair.ask(&line), "ready");
        pair
    }

    /// Ends the program and checks its exit status; shows its output.
    pub(crate) fn end(self) {
        self.stream.shutdown(Shutdown::Both).expect("it exists");
        self.judge.shell_ends();
    }

    /// Returns the next line that the program prints. The RNIC here keeps working meanwhile.
    fn hear(&mut self) -> String {
        loop {
            if let Some(end) = self.said.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.said.drain(..=end).collect();
                return String::from_utf8(line[..end].to_vec()).expect("text");
            }
            let turn = self.judge.turn();
            if let Some(line) = turn.shell {
                panic!("the program ended: {line}");
            }
            self.said.extend(turn.program.unwrap_or_default());
        }
    }

    fn ask(&mut self, order: &str) -> String {
        writeln!(self.stream, "{order}").expect("the program listens");
        self.hear()
    }

    fn tell(&mut self, order: &str) {
        assert_eq!(self.ask(order), "done", "{order}");
    }

    /// Waits for a completion in the guest.
    fn guest_completes(&mut self) -> Completed {
        let line = self.ask("poll");
        let numbers: Vec<u32> = line
            .split(' ')
            .map(|n| u32::from_str_radix(n, 16).unwrap_or_else(|_| panic!("{line}")))
            .collect();
        Completed {
            status: numbers[1],
            len: numbers[2] as usize,
            imm: numbers[3],
            source: numbers[4],
        }
    }

    /// Waits for a successful completion in the guest.
    fn guest_done(&mut self) -> Completed {
        let done = self.guest_completes();
        assert_eq!(done.status, SUCCESS, "{done:?}");
        done
    }

    /// Waits for a completion here.
    fn complete(&mut self) -> Done {
        self.judge.wait()
    }

    fn done(&mut self) -> Done {
        let done = self.complete();
        assert_eq!(done.status, Status::Success, "{done:?}");
        done
    }

    /// Returns fresh bytes, and the seed that makes them.
    fn fresh(&mut self, len: usize) -> (u64, Vec<u8>) {
        self.seed += 1;
        (self.seed, filling(self.seed, len))
    }

    /// Checks that the guest's memory holds `bytes` at `at`.
    fn guest_has(&mut self, at: usize, bytes: &[u8]) {
        let sum = self.ask(&format!("sum {at:x} {:x}", bytes.len()));
        assert_eq!(sum, format!("{:x}", fnv(bytes)), "{} bytes", bytes.len());
    }

    /// Checks that the memory here holds `bytes` at `at`, or that the completion carried them.
    fn we_have(&mut self, done: Option<&Done>, at: usize, bytes: &[u8]) {
        let found = match done {
            Some(done) => self.judge.received(done, at, bytes.len()),
            None => self.judge.bytes(at, bytes.len()),
        };
        assert!(found == bytes, "{} bytes differ", bytes.len());
    }

    /// The guest SENDs; checks the bytes, the immediate, and for datagrams the sender.
    pub(crate) fn guest_sends(&mut self, len: usize, imm: u32) {
        let (seed, bytes) = self.fresh(len);
        self.judge
            .post_recv(self.qp, INTO, len.next_multiple_of(8) + 40);
        self.tell(&format!("fill {seed:x} {FROM:x} {len:x}"));
        self.tell(&format!("send {FROM:x} {len:x} {imm:x}"));
        let done = self.done();
        assert!(done.is_receive);
        assert_eq!((done.len, done.imm.unwrap_or(0)), (len, imm));
        self.we_have(Some(&done), INTO, &bytes);
        if self.transport == Transport::Ud {
            assert_eq!(done.source, Some(self.there.qpn));
        }
        self.guest_done();
    }

    /// This side SENDs; the guest receives.
    pub(crate) fn we_send(&mut self, len: usize, imm: u32) {
        let (_, bytes) = self.fresh(len);
        // A datagram is preceded by 40 bytes, the GRH.
        let header = if self.transport == Transport::Ud {
            40
        } else {
            0
        };
        self.tell(&format!("recv {INTO:x} {:x}", len + 40));
        self.judge.fill_with(FROM, &bytes);
        self.judge.post_send_imm(self.qp, FROM, len, imm);
        assert!(!self.done().is_receive);
        let done = self.guest_done();
        assert_eq!((done.len, done.imm), (len + header, imm));
        self.guest_has(INTO + header, &bytes);
        if self.transport == Transport::Ud {
            assert_eq!(done.source, self.judge.here(self.qp).qpn);
        }
    }

    /// The guest WRITEs into the memory here, with an immediate unless `imm` is 0.
    pub(crate) fn guest_writes(&mut self, len: usize, imm: u32) {
        let (seed, bytes) = self.fresh(len);
        let ours = self.judge.here(self.qp);
        if imm != 0 {
            self.judge.post_recv(self.qp, 0, 0);
        }
        self.tell(&format!("fill {seed:x} {FROM:x} {len:x}"));
        self.tell(&format!(
            "write {FROM:x} {len:x} {:x} {:x} {imm:x}",
            ours.addr + INTO as u64,
            ours.rkey
        ));
        if imm != 0 {
            let done = self.done();
            assert_eq!(
                (done.is_receive, done.len, done.imm),
                (true, len, Some(imm))
            );
        }
        self.guest_done();
        if self.transport != Transport::Rc && imm == 0 {
            // No completion reports the arrival, so the memory is polled.
            self.judge.until(|judge| judge.bytes(INTO, len) == bytes);
        }
        self.we_have(None, INTO, &bytes);
    }

    /// This side WRITEs into the guest's memory.
    pub(crate) fn we_write(&mut self, len: usize, imm: u32) {
        let (_, bytes) = self.fresh(len);
        if imm != 0 {
            self.tell(&format!("recv {INTO:x} 0"));
        }
        self.judge.fill_with(FROM, &bytes);
        let to = self.there.addr + INTO as u64;
        self.judge
            .post_write(self.qp, FROM, len, (to, self.there.rkey), imm);
        self.done();
        if imm != 0 {
            let done = self.guest_done();
            assert_eq!((done.len, done.imm), (len, imm));
        } else if self.transport != Transport::Rc {
            let wanted = format!("{:x}", fnv(&bytes));
            while self.ask(&format!("sum {INTO:x} {len:x}")) != wanted {}
        }
        self.guest_has(INTO, &bytes);
    }

    /// The guest READs from the memory here.
    pub(crate) fn guest_reads(&mut self, len: usize) {
        let (_, bytes) = self.fresh(len);
        let ours = self.judge.here(self.qp);
        self.judge.fill_with(FROM, &bytes);
        self.tell(&format!(
            "read {INTO:x} {len:x} {:x} {:x}",
            ours.addr + FROM as u64,
            ours.rkey
        ));
        self.guest_done();
        self.guest_has(INTO, &bytes);
    }

    /// This side READs from the guest's memory.
    pub(crate) fn we_read(&mut self, len: usize) {
        let (seed, bytes) = self.fresh(len);
        self.tell(&format!("fill {seed:x} {FROM:x} {len:x}"));
        let from = self.there.addr + FROM as u64;
        self.judge
            .post_read(self.qp, INTO, len, (from, self.there.rkey));
        self.done();
        self.we_have(None, INTO, &bytes);
    }

    /// The guest executes atomics on a word here; checks the word and the old values.
    pub(crate) fn guest_counts(&mut self) {
        let ours = self.judge.here(self.qp);
        let (word, rkey) = (ours.addr + WORD as u64, ours.rkey);
        self.judge.fill_with(WORD, &7_u64.to_le_bytes());
        let steps = [
            (format!("add {OLD:x} {word:x} {rkey:x} 5"), 7_u64, 12_u64),
            (
                format!("add {OLD:x} {word:x} {rkey:x} ffffffffffffffff"),
                12,
                11,
            ),
            (
                format!("swap {OLD:x} {word:x} {rkey:x} b 123456789abcdef0"),
                11,
                0x1234_5678_9abc_def0,
            ),
            (
                format!("swap {OLD:x} {word:x} {rkey:x} b 5"),
                0x1234_5678_9abc_def0,
                0x1234_5678_9abc_def0,
            ),
        ];
        for (order, old, new) in steps {
            self.tell(&order);
            self.guest_done();
            self.guest_has(OLD, &old.to_le_bytes());
            self.we_have(None, WORD, &new.to_le_bytes());
        }
    }

    /// This side executes atomics on a word of the guest.
    pub(crate) fn we_count(&mut self) {
        // The guest's word starts with the bytes of a fill.
        let (seed, bytes) = self.fresh(8);
        let first = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        self.tell(&format!("fill {seed:x} {WORD:x} 8"));
        let at = (self.there.addr + WORD as u64, self.there.rkey);
        self.judge.post_add(self.qp, OLD, at, 5);
        self.done();
        self.we_have(None, OLD, &first.to_le_bytes());
        self.guest_has(WORD, &first.wrapping_add(5).to_le_bytes());
        self.judge.post_swap(self.qp, OLD, at, first, 1);
        self.done();
        self.we_have(None, OLD, &first.wrapping_add(5).to_le_bytes());
        self.judge
            .post_swap(self.qp, OLD, at, first.wrapping_add(5), 99);
        self.done();
        self.guest_has(WORD, &99_u64.to_le_bytes());
    }

    /// Posts many requests at once in both directions, so that replies and requests mix on the
    /// wire.
    pub(crate) fn crowd(&mut self, len: usize) {
        const EACH: usize = 8;
        let (seed, bytes) = self.fresh(len);
        let (ours, there) = (self.judge.here(self.qp), self.there.clone());
        self.tell(&format!("fill {seed:x} {FROM:x} {len:x}"));
        self.judge.fill_with(FROM, &bytes);
        self.judge.fill_with(WORD, &0_u64.to_le_bytes());
        for i in 0..EACH {
            let into = INTO + i * len.next_multiple_of(64);
            self.judge
                .post_read(self.qp, into, len, (there.addr + FROM as u64, there.rkey));
            let to = ours.addr + WORD as u64;
            self.tell(&format!(
                "write {FROM:x} {len:x} {:x} {:x} 0",
                ours.addr + (into + 0x20000) as u64,
                ours.rkey
            ));
            self.tell(&format!("add {OLD:x} {to:x} {:x} 1", ours.rkey));
        }
        for _ in 0..EACH {
            self.done();
            self.guest_done();
            self.guest_done();
        }
        for i in 0..EACH {
            let into = INTO + i * len.next_multiple_of(64);
            self.we_have(None, into, &bytes);
            self.we_have(None, into + 0x20000, &bytes);
        }
        self.we_have(None, WORD, &(EACH as u64).to_le_bytes());
    }

    /// The sender waits for a receiver that is not ready, in both directions.
    pub(crate) fn waits_for_receivers(&mut self) {
        let (seed, bytes) = self.fresh(100);
        self.tell(&format!("fill {seed:x} {FROM:x} 64"));
        self.tell(&format!("send {FROM:x} 64 0"));
        self.judge.idle();
        self.judge.post_recv(self.qp, INTO, 128);
        let done = self.done();
        self.we_have(Some(&done), INTO, &bytes);
        self.guest_done();

        self.judge.fill_with(FROM, &bytes);
        self.judge.post_send_imm(self.qp, FROM, bytes.len(), 0);
        self.judge.idle();
        self.tell(&format!("recv {INTO:x} 80"));
        self.done();
        self.guest_done();
        self.guest_has(INTO, &bytes);
    }

    /// A wrong rkey is refused at both ends, and the requester gets a NAK. Neither queue pair works
    /// afterwards.
    pub(crate) fn wrong_keys_are_refused(mut self) {
        let ours = self.judge.here(self.qp);
        self.tell(&format!(
            "write {FROM:x} 40 {:x} {:x} 0",
            ours.addr,
            ours.rkey ^ 0x100
        ));
        assert_eq!(self.guest_completes().status, REMOTE_ACCESS);
        self.end();
    }

    /// The same in the other direction.
    pub(crate) fn our_wrong_key_is_refused(mut self) {
        let at = (self.there.addr, self.there.rkey ^ 0x1_0000);
        self.judge.post_write(self.qp, FROM, 64, at, 0);
        assert_eq!(self.complete().status, Status::RemoteAccess);
        self.end();
    }
}

fn parse(line: &str) -> There {
    let parts: Vec<&str> = line.split(' ').collect();
    let number = |at: usize| u64::from_str_radix(parts[at], 16).expect("hex");
    let short = |at: usize| u32::try_from(number(at)).expect("32 bits");
    There {
        qpn: short(0),
        psn: short(1),
        rkey: short(2),
        addr: number(3),
        gid: parts[4].parse::<Ipv6Addr>().expect("a GID"),
    }
}

/// The bytes with which both ends fill memory: the upper byte of a linear congruential generator.
fn filling(seed: u64, len: usize) -> Vec<u8> {
    let mut state = u32::try_from(seed).expect("a small seed");
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// FNV-1a, as the guest computes it.
fn fnv(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
