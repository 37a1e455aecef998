//! Compares the provider with `docs/wire.md`: the client here takes every offset and bit from the
//! tables of that document, and from nowhere else.

use std::{
    collections::HashMap,
    ops::Range,
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::Arc,
};

use herdwick_conformance::document;
use herdwick_fabric::{
    Access, Armed, Device, Endpoint, Local, Payload, PdTicket, Port, QpId, RegionId, RegionSpec,
    Scope, SendOp, Sharing, Transport, Windows,
};
use herdwick_mem::{Access as Rights, Mapping, Span, Words};
use herdwick_shm::{MESSAGE_BYTES_MAX, PdSize};

use crate::party::{Party, host, is_readable, send, write};

const WIRE_MD: &str = include_str!("../../../../docs/wire.md");

/// A table of `docs/wire.md`.
struct Table {
    fields: HashMap<&'static str, Range<usize>>,
    bits: HashMap<&'static str, Range<u32>>,
    bytes: usize,
}

/// Returns the table between the two markers of `section`; its rows must leave no gap.
fn drawn(section: &str) -> Table {
    let mut table = Table {
        fields: HashMap::new(),
        bits: HashMap::new(),
        bytes: 0,
    };
    for cells in document::rows(WIRE_MD, section) {
        let number = |at: usize| cells[at].parse::<usize>().unwrap();
        let (offset, bytes) = (number(1), number(2));
        assert_eq!(offset, table.bytes, "{section}: {cells:?}");
        table.bytes += bytes;
        table.fields.insert(cells[0], offset..table.bytes);
        table.bits.extend(bits(cells[3]));
    }
    assert!(table.bytes > 0, "{section} is empty");
    table
}

/// Parses the bits in a meaning: `bit 3 NAME` or `bits 4-7 name`.
fn bits(meaning: &'static str) -> impl Iterator<Item = (&'static str, Range<u32>)> {
    let parts = meaning.split(['.', ',', ';', ':']);
    parts.filter_map(|part| {
        let mut words = part.trim().split(' ');
        words.next().filter(|word| word.starts_with("bit"))?;
        let (low, high) = {
            let range = words.next()?;
            range.split_once('-').unwrap_or((range, range))
        };
        let range = low.parse().ok()?..high.parse::<u32>().ok()? + 1;
        Some((words.next()?, range))
    })
}

impl Table {
    fn at(&self, name: &str) -> usize {
        self.fields[name].start
    }

    fn read(&self, bytes: &[u8], name: &str) -> u64 {
        let mut word = [0; 8];
        let field = &bytes[self.fields[name].clone()];
        word[..field.len()].copy_from_slice(field);
        u64::from_le_bytes(word)
    }

    fn put(&self, bytes: &mut [u8], name: &str, value: u64) {
        let field = &mut bytes[self.fields[name].clone()];
        let value = value.to_le_bytes();
        let (low, high) = value.split_at(field.len());
        field.copy_from_slice(low);
        assert!(high.iter().all(|byte| *byte == 0), "{name}");
    }

    fn pick(&self, word: u64, name: &str) -> u64 {
        let Range { start, end } = self.bits[name];
        word >> start & (u64::MAX >> (64 - (end - start)))
    }

    fn bit(&self, name: &str, value: u64) -> u64 {
        value << self.bits[name].start
    }
}

fn read(span: &Span, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    span.read_bytes(at, &mut bytes);
    bytes
}

/// A client written from the document.
struct Reader {
    up: Span,
    down: Span,
    board: Span,
    wakeup: UnixStream,
    event: OwnedFd,
    ticket: Vec<u8>,
}

const UC: (u64, usize) = (1, 3);
const UD: (u64, usize) = (2, 5);
const CELLS_LOG2: u64 = 3;
const LONG_LOG2: u64 = 5;

impl Reader {
    fn new(ticket: PdTicket) -> Self {
        let table = drawn("ticket");
        assert_eq!(table.bytes, ticket.blob.len());
        assert_eq!(ticket.blob[..8], *b"hwshm\0\0\x01");
        let len = |name| usize::try_from(table.read(&ticket.blob, name)).unwrap();
        let [up, down, board, wakeup, event] = ticket.fds.try_into().unwrap();
        let map = |fd, len, rights| Span::new(Arc::new(Mapping::shared(&fd, len, rights).unwrap()));
        Self {
            up: map(up, len("up_len"), Rights::ReadWrite),
            down: map(down, len("down_len"), Rights::Read),
            board: map(board, 4096, Rights::Read),
            wakeup: wakeup.into(),
            event,
            ticket: ticket.blob,
        }
    }

    fn ticket(&self, name: &str) -> u64 {
        drawn("ticket").read(&self.ticket, name)
    }

    /// Bytes that each part leaves unused in front.
    fn colour(&self) -> u64 {
        self.ticket("domain") % 64 * 64
    }

    fn ring(&self) -> usize {
        drawn("control_area").bytes + self.colour() as usize
    }

    /// Returns the host's region under `rkey`: its file, offset and entry.
    fn region(&self, rkey: u32, right: &str) -> (&Span, usize, Vec<u8>) {
        let (control, table) = (drawn("control_area"), drawn("region"));
        let entries = control.fields["regions"].len() / table.bytes;
        let at = control.at("regions") + rkey as usize % entries * table.bytes;
        let entry = read(&self.down, at, table.bytes);
        assert_eq!(table.read(&entry, "rkey"), u64::from(rkey));
        for name in ["READ", "WRITE", "ATOMIC"] {
            let granted = table.pick(table.read(&entry, "rights"), name);
            assert_eq!(granted, u64::from(name == right), "{name}");
        }
        let place = table.read(&entry, "place");
        let start = table.pick(place, "start") as usize;
        let down = table.pick(place, "DOWN") == 1;
        (if down { &self.down } else { &self.up }, start, entry)
    }

    /// Stores a word of one of this side's queue pair lines.
    fn say(&self, line: usize, name: &str, value: u64) {
        let at = line_at(line) + drawn("queue_pair").at(name);
        self.up.store_release(at / 8, value);
    }

    fn endpoint(&self, (transport, line): (u64, usize)) -> Endpoint {
        let table = drawn("endpoint");
        let mut blob = vec![0; table.bytes];
        blob[..3].copy_from_slice(b"hs\x01");
        for (name, value) in [
            ("side", 1),
            ("transport", transport),
            ("line", line as u64),
            ("cells_log2", CELLS_LOG2),
            ("long_log2", LONG_LOG2),
            ("domain", self.ticket("domain")),
            ("number", 0x1000 + line as u64),
            ("ring", self.ring() as u64 + transport % 2 * 8192),
        ] {
            table.put(&mut blob, name, value);
        }
        let state = drawn("queue_pair");
        let ready = state.bit("READY", 1) | state.bit("number", 0x1000 + line as u64);
        self.say(line, "state", ready);
        Endpoint::new(&blob).unwrap()
    }

    /// Returns the message in cell `n`, counted from the first ever, of the ring at `ring`; a long
    /// one is read from long line `long` on.
    fn message(&self, ring: usize, n: u64, long: u64) -> (u64, Vec<u8>) {
        let table = drawn("cell");
        let (cells, long_lines) = (1 << CELLS_LOG2, 1 << LONG_LOG2);
        let at = |line: u64| ring + line as usize * table.bytes;
        let cell = read(&self.down, at(n % cells), table.bytes);
        let control = table.read(&cell, "control");
        assert_eq!(table.pick(control, "lap"), (n / cells + 1) % 128);
        let len = table.pick(control, "len") as usize;
        let mut bytes = cell[table.fields["payload"].clone()].to_vec();
        if len > bytes.len() {
            let lines = (0..len.div_ceil(64) as u64).map(|n| at(cells + (long + n) % long_lines));
            bytes = lines.flat_map(|at| read(&self.down, at, 64)).collect();
        }
        bytes.truncate(len);
        (control, bytes)
    }
}

fn line_at(line: usize) -> usize {
    drawn("control_area").at("queue_pairs") + line * drawn("queue_pair").bytes
}

fn meet() -> (Party, Reader) {
    let mut host = host(PdSize::default());
    let ticket = host.domain();
    (host, Reader::new(ticket))
}

fn owned(host: &Party, region: RegionId) -> Span {
    host.port.region(region).unwrap().clone()
}

#[test]
fn regions_match_wire_md() {
    let (mut host, client) = meet();
    let uc = host.qp(Transport::Uc, 0);
    let spec = RegionSpec {
        len: 640,
        access: Access::WRITE,
        scope: Scope::Qp(uc),
    };
    let scoped = host.device.allocate_region(&mut host.port, host.pd, &spec);
    let atomic = Access {
        remote_atomic: true,
        ..Access::LOCAL
    };
    let cases = [
        (scoped.unwrap(), "WRITE", "up"),
        (host.region(128, atomic), "ATOMIC", "up"),
        (host.region(192, Access::READ), "READ", "down"),
    ];
    for (region, right, name) in cases {
        let rkey = host.remote(region).rkey.0;
        let (file, start, entry) = client.region(rkey, right);
        let span = owned(&host, region);
        span.store(2, rkey.into());
        assert_eq!(file.load(start / 8 + 2), u64::from(rkey));
        let table = drawn("region");
        assert_eq!(table.read(&entry, "length"), span.len() as u64);
        let split = client.ticket(&format!("{name}_split")) as usize;
        assert_eq!(start >= split, name == "down");
        let first = if name == "down" {
            split
        } else {
            drawn("control_area").bytes
        };
        assert!(start >= first + client.colour() as usize);
        let endpoint = drawn("endpoint");
        let number = endpoint.read(host.endpoint(uc).as_bytes(), "number");
        let scope = if right == "WRITE" { number } else { 0 };
        assert_eq!(table.read(&entry, "scope"), scope);
        host.device.free_region(&mut host.port, region).unwrap();
        let control = drawn("control_area").at("regions") + rkey as usize % 64 * table.bytes;
        assert_eq!(
            table.read(&read(&client.down, control, table.bytes), "rkey"),
            0
        );
    }
}

#[test]
fn host_endpoint_matches_its_control_area() {
    let (mut host, client) = meet();
    let (table, state) = (drawn("endpoint"), drawn("queue_pair"));
    for (transport, code) in [(Transport::Rc, 0), (Transport::Uc, 1), (Transport::Ud, 2)] {
        let qp = host.qp(transport, 0);
        let endpoint = host.endpoint(qp);
        let blob = endpoint.as_bytes();
        assert_eq!((blob.len(), &blob[..3]), (table.bytes, &b"hs\x01"[..]));
        let says = |name| table.read(blob, name);
        assert_eq!((says("side"), says("transport")), (0, code));
        assert_eq!(says("domain"), client.ticket("domain"));
        assert_eq!(
            (says("ring"), says("cells_log2"), says("long_log2")),
            (0, 0, 0)
        );
        let shown = || client.down.load(line_at(says("line") as usize) / 8);
        assert_eq!(state.pick(shown(), "number"), says("number"));
        assert_eq!(state.pick(shown(), "READY"), u64::from(code == 2));
        host.device.fail_qp(&mut host.port, qp).unwrap();
        assert_eq!(state.pick(shown(), "FAILED"), 1);
        assert_eq!(state.pick(shown(), "READY"), 0);
    }
}

fn datagrams(host: &mut Party, client: &Reader) -> (QpId, herdwick_fabric::AddressHandle) {
    let qp = host.qp(Transport::Ud, 0);
    let to = host.address(qp, &client.endpoint(UD));
    (qp, to)
}

#[test]
fn ring_matches_wire_md_beyond_lap_wrap() {
    let (mut host, client) = meet();
    let senders = [(); 2].map(|()| datagrams(&mut host, &client));
    let table = drawn("cell");
    let mut long = 0;
    for n in 0..(130 << CELLS_LOG2) {
        let len = [3, 56, 57, 64, 65, 1000][n as usize % 6];
        let payload: Vec<u8> = (0..len).map(|at| (at + n) as u8).collect();
        let (qp, to) = senders[n as usize / 5 % 2];
        let number = drawn("endpoint").read(host.endpoint(qp).as_bytes(), "number");
        let imm = (n % 2 == 0).then_some(n as u32 | 1 << 31);
        let batch = [send(Payload::Inline(&payload), imm, Some(to))];
        host.port.post_send(qp, &batch).unwrap();
        let (control, bytes) = client.message(client.ring(), n, long);
        assert_eq!(bytes, payload);
        assert_eq!(table.pick(control, "HAS_IMM"), u64::from(imm.is_some()));
        assert_eq!(table.pick(control, "imm"), u64::from(imm.unwrap_or(0)));
        assert_eq!(table.pick(control, "WRITTEN"), 0);
        let sender =
            drawn("control_area").at("senders") / 8 + table.pick(control, "sender") as usize;
        assert_eq!(client.down.load(sender), number);
        long += if len > 56 { len.div_ceil(64) } else { 0 };
        client.say(UD.1, "long_taken", long);
        client.say(UD.1, "cells_taken", n + 1);
    }
    assert_eq!(host.drops(), 0);
    let (qp, to) = senders[0];
    let full = [send(Payload::Words(&[1]), None, Some(to))];
    for _ in 0..=1 << CELLS_LOG2 {
        host.port.post_send(qp, &full).unwrap();
    }
    assert_eq!(host.drops(), 1);
}

#[test]
fn client_regions_match_wire_md() {
    let (mut host, client) = meet();
    let qp = host.qp(Transport::Uc, 0);
    host.connect(qp, &client.endpoint(UC));
    let (table, start) = (drawn("region"), client.ticket("up_split") + client.colour());
    let rkey = 0xabc_0000 | 9;
    let mut entry = vec![0; table.bytes];
    table.put(&mut entry, "rkey", rkey);
    table.put(&mut entry, "rights", table.bit("WRITE", 1));
    table.put(&mut entry, "serial", 1);
    table.put(&mut entry, "place", start);
    table.put(&mut entry, "length", 2 * MESSAGE_BYTES_MAX as u64);
    client.up.write_bytes(
        drawn("control_area").at("regions") + 9 * table.bytes,
        &entry,
    );
    let remote = herdwick_fabric::Remote {
        rkey: herdwick_fabric::Rkey(rkey as u32),
        addr: 64,
    };
    let mut batch = [write(Payload::Words(&[5, 6, 7]), remote)];
    if let SendOp::Write { imm, .. } = &mut batch[0].op {
        *imm = Some(8);
    }
    host.port.post_send(qp, &batch).unwrap();
    assert_eq!(host.drops(), 0);
    assert_eq!(client.up.read_words::<3>(start as usize / 8 + 8), [5, 6, 7]);
    let (control, _) = client.message(client.ring() + 8192, 0, 0);
    let cell = drawn("cell");
    let said = ["WRITTEN", "HAS_IMM", "imm", "len"].map(|name| cell.pick(control, name));
    assert_eq!(said, [1, 1, 8, 24]);
    // A message of the largest size needs every bit of the length.
    let (region, len) = (
        host.region(MESSAGE_BYTES_MAX, Access::LOCAL),
        MESSAGE_BYTES_MAX,
    );
    let offset = 0;
    let payload = Payload::Region(Local {
        region,
        offset,
        len,
    });
    let mut longest = [write(payload, remote)];
    if let SendOp::Write { imm, .. } = &mut longest[0].op {
        *imm = Some(9);
    }
    host.port.post_send(qp, &longest).unwrap();
    let (control, _) = client.message(client.ring() + 8192, 1, 0);
    let said = ["WRITTEN", "HAS_IMM", "imm", "len"].map(|name| cell.pick(control, name));
    assert_eq!(said, [1, 1, 9, MESSAGE_BYTES_MAX as u64]);
    // One that starts within a line is no region.
    table.put(&mut entry, "serial", 2);
    table.put(&mut entry, "place", start + 8);
    client.up.write_bytes(
        drawn("control_area").at("regions") + 9 * table.bytes,
        &entry,
    );
    let within = [write(Payload::Words(&[9]), remote)];
    host.port.post_send(qp, &within).unwrap();
    assert_eq!(host.drops(), 1);
}

#[test]
fn parked_words_and_wakeups_match_wire_md() {
    use std::io::Read;
    let (mut host, mut client) = meet();
    for _ in 0..2 {
        assert_eq!(host.port.arm(host.cq), Armed::Yes);
        assert_eq!(client.board.load(0) % 2, 1);
        assert!(!is_readable(host.port.wait_fd().unwrap()));
        rustix::io::write(&client.event, &1_u64.to_le_bytes()).unwrap();
        assert!(is_readable(host.port.wait_fd().unwrap()));
        host.port.disarm(host.cq);
        assert_eq!(client.board.load(0) % 2, 0);
    }
    // At the highest count a write fails and wakes nothing.
    let full = u64::MAX - 1 - 2;
    rustix::io::write(&client.event, &full.to_le_bytes()).unwrap();
    assert_eq!(host.port.arm(host.cq), Armed::Yes);
    is_readable(host.port.wait_fd().unwrap());
    host.port.disarm(host.cq);
    assert_eq!(host.port.arm(host.cq), Armed::Yes);
    let refused = rustix::io::write(&client.event, &1_u64.to_le_bytes());
    assert_eq!(refused, Err(rustix::io::Errno::AGAIN));
    assert!(!is_readable(host.port.wait_fd().unwrap()));
    host.port.disarm(host.cq);
    let (qp, to) = datagrams(&mut host, &client);
    let batch = [send(Payload::Words(&[1]), None, Some(to))];
    client.wakeup.set_nonblocking(true).unwrap();
    for (parked, rings) in [(0, 0), (1, 1), (1, 0), (2, 0), (3, 1)] {
        let at = drawn("control_area").at("parked") / 8;
        client.up.store_release(at, parked);
        host.port.post_send(qp, &batch).unwrap();
        let rung = client.wakeup.read(&mut [0; 8]).unwrap_or(0);
        assert_eq!(rung, rings, "parked word {parked}");
    }
}

#[test]
fn ticket_of_a_shared_region_is_as_documented() {
    let mut host = host(PdSize::default());
    drop(host.domain());
    for (sharing, access, number) in [
        (Sharing::ReadOnly, Access::READ, 0),
        (Sharing::TrustedPeers, Access::ALL, 1),
        (Sharing::TrustedPeers, Access::READ, 2),
    ] {
        let memory = host.device.allocate_shared(5000, sharing).unwrap();
        let Party {
            device, port, pd, ..
        } = &mut host;
        let region = device.register_shared(port, *pd, &memory, access, Scope::Pd);
        let region = region.unwrap();
        let ticket = device.export_region(port, region).unwrap();
        let table = drawn("region_ticket");
        assert_eq!((ticket.fds.len(), ticket.blob.len()), (1, table.bytes));
        let word = |name: &str| {
            let bytes = &ticket.blob[table.fields[name].clone()];
            u64::from_le_bytes(bytes.try_into().unwrap())
        };
        assert_eq!(word("magic"), u64::from_le_bytes(*b"hwreg\0\0\x01"));
        assert_eq!(word("rkey"), u64::from(host.remote(region).rkey.0));
        assert_eq!((word("bytes"), word("sharing")), (8192, number));
        if sharing == Sharing::ReadOnly {
            let windows = Windows::new(5, 12).unwrap();
            let memory = memory.with_windows(windows).unwrap();
            let Party {
                device, port, pd, ..
            } = &mut host;
            let region = device.register_shared(port, *pd, &memory, Access::READ, Scope::Pd);
            let ticket = device.export_region(port, region.unwrap()).unwrap();
            let last = &ticket.blob[table.fields["sharing"].clone()];
            assert_eq!(last, (12u64 << 8 | 5 << 32).to_le_bytes());
        }
    }
}
