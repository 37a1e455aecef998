//! `docs/wire.md` draws the layouts; the constants are the layouts. This holds one to the other.

use std::fmt::Write;

use herdwick_herd::wire::{
    Field, IMM_FIELDS, LINE_FIELDS, OVERFLOW_FIELDS, OpCode, REPLY_FIELDS, ReplyStatus,
};

const WIRE_MD: &str = include_str!("../../../docs/wire.md");

/// What stands between the two markers of `section`.
fn drawn(section: &str) -> &str {
    let (begin, end) = (
        format!("<!-- {section} -->\n\n"),
        format!("\n<!-- end of {section} -->"),
    );
    let (_, rest) = WIRE_MD
        .split_once(&begin)
        .unwrap_or_else(|| panic!("docs/wire.md has no {begin}"));
    let (table, _) = rest
        .split_once(&end)
        .unwrap_or_else(|| panic!("docs/wire.md has no {end}"));
    table
}

fn assert_drawn(section: &str, expected: &str) {
    assert!(
        drawn(section) == expected,
        "docs/wire.md, {section}, should read:\n{expected}"
    );
}

fn table(fields: &[Field]) -> String {
    let mut out = String::from("| name | offset | bytes | meaning |\n|---|---:|---:|---|\n");
    for field in fields {
        let Field {
            name,
            offset,
            bytes,
            meaning,
        } = field;
        writeln!(out, "| {name} | {offset} | {bytes} | {meaning} |").unwrap();
    }
    out
}

/// One row a word, one cell a byte, as `xxd` would show it.
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
    let mut out = String::from("| name | code |\n|---|---:|\n");
    for (code, name) in all {
        let name = spaced(&format!("{name:?}"));
        writeln!(out, "| {name} | {code} |").unwrap();
    }
    out
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
fn the_request_line_is_drawn_as_it_is() {
    assert_drawn(
        "line",
        &(byte_map(&LINE_FIELDS) + "\n" + &table(&LINE_FIELDS)),
    );
}

#[test]
fn the_overflow_head_is_drawn_as_it_is() {
    assert_drawn("overflow", &table(&OVERFLOW_FIELDS));
}

#[test]
fn the_reply_is_drawn_as_it_is() {
    assert_drawn(
        "reply",
        &(byte_map(&REPLY_FIELDS) + "\n" + &table(&REPLY_FIELDS)),
    );
}

#[test]
fn the_immediate_is_drawn_as_it_is() {
    assert_drawn("imm", &table(&IMM_FIELDS));
}

#[test]
fn operations_and_statuses_have_their_codes() {
    let operations = OpCode::ALL.into_iter().map(|op| (op as u8, op));
    assert_drawn("operations", &codes(operations));
    let statuses = ReplyStatus::ALL
        .into_iter()
        .map(|status| (status as u8, status));
    assert_drawn("statuses", &codes(statuses));
}
