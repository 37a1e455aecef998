//! Compares the layouts drawn in `docs/farm.md` with the constants.

use std::fmt::Write;

use herdwick_farm::{CONTROL_FIELDS, LINE_FIELDS, Operation, POINTER_FIELDS, ReplyCode};
use herdwick_layout::wire::Field;

const FARM_MD: &str = include_str!("../../../docs/farm.md");

fn assert_drawn(section: &str, expected: &str) {
    let (begin, end) = (
        format!("<!-- {section} -->\n\n"),
        format!("\n<!-- end of {section} -->"),
    );
    let after = FARM_MD.split_once(&begin);
    let (_, rest) = after.unwrap_or_else(|| panic!("docs/farm.md has no {begin}"));
    let drawn = rest.split_once(&end).map(|(drawn, _)| drawn);
    assert!(
        drawn == Some(expected),
        "docs/farm.md, {section}, should read:\n{expected}"
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

fn codes(what: &str, codes: &[(String, u8)]) -> String {
    let mut out = format!("| {what} | code |\n|---|---:|\n");
    for (name, code) in codes {
        writeln!(out, "| {name} | {code} |").unwrap();
    }
    out
}

#[test]
fn layouts_are_drawn_as_they_are() {
    assert_drawn("line", &table(&LINE_FIELDS));
    assert_drawn("pointer", &table(&POINTER_FIELDS));
    assert_drawn("control", &table(&CONTROL_FIELDS));
    let operations = Operation::ALL.map(|operation| (format!("{operation:?}"), operation as u8));
    assert_drawn("operations", &codes("operation", &operations));
    let statuses = ReplyCode::ALL.map(|code| (format!("{code:?}"), code as u8));
    assert_drawn("statuses", &codes("status", &statuses));
}
