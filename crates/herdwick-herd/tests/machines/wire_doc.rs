//! Compares the layouts drawn in `docs/wire.md` with the constants and the encoded frames.

use std::fmt::Write;

use herdwick_conformance::document::{self, code_table, field_table};
use herdwick_fabric::{Endpoint, Remote, Rkey};
use herdwick_herd::{
    Announce, ServerCounters,
    hello::{
        Accept, Claim, Go, Grant, HEADER_BYTES, PART_BYTES_MAX, PART_FDS_MAX, PARTS_MAX, Part,
        Parts, Refusal, StoreGrant, Token, WorkerGrant,
    },
    wire::{
        Field, IMM_FIELDS, LINE_FIELDS, OVERFLOW_FIELDS, OpCode, REPLY_FIELDS, REQUEST_BYTES_MAX,
        ReplyStatus,
    },
};

const WIRE_MD: &str = include_str!("../../../../docs/wire.md");

fn assert_drawn(section: &str, expected: &str) {
    document::assert_drawn(WIRE_MD, section, expected);
}

fn table(fields: &[Field]) -> String {
    let fields = fields.iter();
    field_table(fields.map(|field| (field.name, field.offset, field.bytes, field.meaning)))
}

/// One row a word, one cell a byte, in the order of `xxd`.
fn byte_map(fields: &[Field]) -> String {
    let first = fields[0].offset;
    let last = fields.last().unwrap();
    let mut out = String::from("```text\n");
    for word in (first..last.offset + last.bytes).step_by(8) {
        write!(out, "{word:>4} |").unwrap();
        let cells = fields
            .iter()
            .filter(|field| field.offset < word + 8 && field.offset + field.bytes > word);
        for field in cells {
            let bytes = (field.offset + field.bytes).min(word + 8) - field.offset.max(word);
            write!(out, "{:^1$}|", field.name, bytes * 10 - 1).unwrap();
        }
        out.push('\n');
    }
    out.push_str("```\n");
    out
}

fn codes<T: std::fmt::Debug>(all: impl Iterator<Item = (u8, T)>) -> String {
    code_table(
        "name",
        all.map(|(code, name)| (spaced(&format!("{name:?}")), code)),
    )
}

/// `NotFound` becomes `NOT_FOUND`.
fn spaced(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.extend(c.to_uppercase());
    }
    out
}

#[test]
fn request_line_matches_wire_md() {
    assert_drawn(
        "line",
        &(byte_map(&LINE_FIELDS) + "\n" + &table(&LINE_FIELDS)),
    );
}

#[test]
fn overflow_head_matches_wire_md() {
    assert_drawn("overflow", &table(&OVERFLOW_FIELDS));
}

#[test]
fn reply_matches_wire_md() {
    assert_drawn(
        "reply",
        &(byte_map(&REPLY_FIELDS) + "\n" + &table(&REPLY_FIELDS)),
    );
}

#[test]
fn slot_of_the_paper_matches_wire_md() {
    assert_drawn("slot", &table(&herdwick_herd::paper::SLOT_FIELDS));
}

#[test]
fn immediate_matches_wire_md() {
    assert_drawn("imm", &table(&IMM_FIELDS));
}

#[test]
fn operation_and_status_codes_match_wire_md() {
    let operations = OpCode::ALL.into_iter().map(|op| (op as u8, op));
    assert_drawn("operations", &codes(operations));
    let statuses = ReplyStatus::ALL
        .into_iter()
        .map(|status| (status as u8, status));
    assert_drawn("statuses", &codes(statuses));
}

/// Name, first byte and end of each row of `section`.
fn rows(section: &str) -> Vec<(&'static str, usize, usize)> {
    let rows = document::rows(WIRE_MD, section).into_iter();
    let fields = rows.map(|cells| {
        let at: usize = cells[1].parse().unwrap();
        (cells[0], at, at + cells[2].parse::<usize>().unwrap())
    });
    fields.collect()
}

/// Compares `bytes` with the rows of `section` and each with its number. Returns how many bytes the
/// rows cover.
fn assert_laid_out(section: &str, bytes: &[u8], numbers: &[(&str, u64)]) -> usize {
    let rows = rows(section);
    let mut end = 0;
    for ((name, from, to), (expected, number)) in rows.iter().zip(numbers) {
        assert_eq!((name, *from), (expected, end), "{section}");
        let found = bytes[*from..*to].iter().rev();
        let found = found.fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        assert_eq!(found, *number, "{section}, {name}");
        end = *to;
    }
    assert_eq!(rows.len(), numbers.len(), "{section}");
    end
}

#[test]
fn lease_frame_header_and_kinds_match_wire_md() {
    let claim = Claim {
        token: Token([0; 16]),
        window: 1,
        reply_bytes_max: 1,
        reads: false,
    };
    let grant = Grant {
        epoch: 1,
        window: 1,
        reply_bytes_max: 1,
        workers: Vec::new(),
    };
    let accept = Accept {
        workers: Vec::new(),
    };
    let parts = Parts(vec![Part::default()]);
    let frames = [
        ("CLAIM", claim.to_frame()),
        ("GRANT", grant.to_frame()),
        ("ACCEPT", accept.to_frame()),
        ("GO", Go.to_frame()),
        ("REFUSAL", Refusal::Full.to_frame()),
        ("PARTS", parts.to_frame()),
    ];
    let mut kinds = Vec::new();
    for (name, frame) in frames {
        kinds.push((name.to_owned(), frame[4]));
        let numbers = [
            ("magic", u64::from_le_bytes(*b"HWL\0\0\0\0\0")),
            ("version", 0),
            ("kind", frame[4].into()),
            ("reserved", 0),
            ("length", (frame.len() - HEADER_BYTES) as u64),
        ];
        assert_eq!(assert_laid_out("frame", &frame, &numbers), HEADER_BYTES);
    }
    assert_drawn("kinds", &code_table("name", kinds));
}

#[test]
fn refusal_codes_match_wire_md() {
    let named = [
        (Refusal::Token, "token"),
        (Refusal::Full, "full"),
        (Refusal::Malformed, "malformed"),
        (Refusal::Memory, "no memory"),
    ];
    let codes = named.map(|(refusal, name)| match refusal.to_frame()[HEADER_BYTES..] {
        [code] => format!("{code} {name}"),
        ref body => panic!("{body:?}"),
    });
    let text = WIRE_MD.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = format!("one byte of reason ({})", codes.join(", "));
    assert!(text.contains(&said), "docs/wire.md should say: {said}");
}

#[test]
fn what_is_dropped_has_the_names_of_its_counters() {
    let known = ServerCounters::default();
    for row in document::rows(WIRE_MD, "drops") {
        let name = row[0];
        assert!(known.iter().any(|(counter, _)| counter == name), "{name}");
    }
    let longest = format!("more than {} bytes", grouped(REQUEST_BYTES_MAX));
    assert!(
        document::section(WIRE_MD, "drops").contains(&longest),
        "{longest}"
    );
}

/// Returns a number below a million with a comma between thousands.
fn grouped(number: usize) -> String {
    format!("{},{:03}", number / 1000, number % 1000)
}

#[test]
fn claim_and_grant_match_wire_md() {
    let claim = Claim {
        token: Token([0; 16]),
        window: 0x0102_0304,
        reply_bytes_max: 0x0506_0708,
        reads: false,
    };
    let claim = &claim.to_frame()[HEADER_BYTES..];
    let numbers = [
        ("token", 0),
        ("window", 0x0102_0304),
        ("reply_bytes_max", 0x0506_0708),
    ];
    assert_eq!(assert_laid_out("claim", claim, &numbers), claim.len());

    let remote = |n: u32| Remote {
        rkey: Rkey(n),
        addr: u64::from(n) << 24,
    };
    let worker = WorkerGrant {
        ticket: vec![1; 3],
        fds: 4,
        lines: remote(5),
        overflow: remote(6),
        announce: Announce::Always,
        requests: Endpoint::new(&[7; 8]).unwrap(),
        replies: Endpoint::new(&[9; 10]).unwrap(),
        store: None,
    };
    let with_store = WorkerGrant {
        store: Some(StoreGrant {
            fds: 1,
            memory: remote(7),
            now: 0x1122_3344_5566_7788,
            ticket: vec![8; 5],
        }),
        ..worker.clone()
    };
    let grant = Grant {
        epoch: 0x0a0b,
        window: 0x100,
        reply_bytes_max: 0x0c0d_0e0f,
        workers: vec![worker],
    };
    let grant = &grant.to_frame()[HEADER_BYTES..];
    let head = [
        ("epoch", 0x0a0b),
        ("window", 0x100),
        ("reply_bytes_max", 0x0c0d_0e0f),
        ("workers", 1),
    ];
    let grant = &grant[assert_laid_out("grant", grant, &head)..];
    let worker = [
        ("fds", 4),
        ("lines_rkey", 5),
        ("lines_addr", 5 << 24),
        ("overflow_rkey", 6),
        ("overflow_addr", 6 << 24),
        ("announce", 2),
    ];
    let blobs = &grant[assert_laid_out("worker", grant, &worker)..];
    let blob = |len: u8, byte| [vec![len, 0], vec![byte; len.into()]].concat();
    assert_eq!(blobs, [blob(3, 1), blob(8, 7), blob(10, 9)].concat());
    let workers = grant.len();
    let grant = Grant {
        epoch: 1,
        window: 1,
        reply_bytes_max: 1,
        workers: vec![with_store],
    };
    let grant = grant.to_frame();
    let store = &grant[grant.len() - (1 + 4 + 8 + 8) - (2 + 5)..];
    assert_eq!(grant.len() - store.len(), HEADER_BYTES + 9 + workers);
    let numbers = [
        ("store_fds", 1),
        ("store_rkey", 7),
        ("store_addr", 7 << 24),
        ("now", 0x1122_3344_5566_7788),
    ];
    let end = assert_laid_out("store", store, &numbers);
    assert_eq!(store[end..], blob(5, 8));
}

#[test]
fn parts_match_wire_md() {
    let part = Part {
        blob: vec![7; PART_BYTES_MAX],
        fds: PART_FDS_MAX as u8,
    };
    let frame = Parts(vec![part.clone(); PARTS_MAX]).to_frame();
    let body = &frame[HEADER_BYTES..];
    assert_eq!(
        (body[0], PARTS_MAX, PART_FDS_MAX, PART_BYTES_MAX),
        (16, 16, 12, 2048)
    );
    let numbers = [
        ("fds", PART_FDS_MAX as u64),
        ("length", PART_BYTES_MAX as u64),
    ];
    let head = assert_laid_out("part", &body[1..], &numbers);
    assert_eq!(&body[1 + head..][..PART_BYTES_MAX], part.blob);
}
