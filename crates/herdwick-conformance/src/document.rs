//! Layouts as documents draw them: tests compare the tables of a page with the code.
//!
//! A section stands between `<!-- NAME -->` and `<!-- end of NAME -->`.

use std::fmt::Write as _;

/// A field of a layout: name, offset of its first byte, bytes, meaning.
pub type DrawnField<'a> = (&'a str, usize, usize, &'a str);

/// Returns the text of a section of `page`.
///
/// # Panics
/// The page has no such section.
#[must_use]
pub fn section<'a>(page: &'a str, name: &str) -> &'a str {
    let (begin, end) = (
        format!("<!-- {name} -->\n\n"),
        format!("\n<!-- end of {name} -->"),
    );
    let (_, rest) = page
        .split_once(&begin)
        .unwrap_or_else(|| panic!("the page has no {begin}"));
    let (drawn, _) = rest
        .split_once(&end)
        .unwrap_or_else(|| panic!("the page has no {end}"));
    drawn
}

/// Compares a section of `page` with what it should read.
///
/// # Panics
/// It reads otherwise.
#[track_caller]
pub fn assert_drawn(page: &str, name: &str, expected: &str) {
    let drawn = section(page, name);
    assert!(
        drawn == expected,
        "the section {name} should read:\n{expected}"
    );
}

/// Returns the rows of a section's table, without those of its head: the cells of each.
#[must_use]
pub fn rows<'a>(page: &'a str, name: &str) -> Vec<Vec<&'a str>> {
    let rows = section(page, name)
        .lines()
        .filter(|row| row.starts_with('|'))
        .skip(2);
    let cells = |row: &'a str| {
        let cells = row.trim_matches('|').split('|').map(str::trim);
        cells.collect()
    };
    rows.map(cells).collect()
}

/// Draws a table of fields.
#[must_use]
pub fn field_table<'a>(fields: impl IntoIterator<Item = DrawnField<'a>>) -> String {
    let mut out = String::from("| name | offset | bytes | meaning |\n|---|---:|---:|---|\n");
    for (name, offset, bytes, meaning) in fields {
        // A string takes every write.
        let _ = writeln!(out, "| {name} | {offset} | {bytes} | {meaning} |");
    }
    out
}

/// Draws a table of names and their codes; `head` is above the names.
#[must_use]
pub fn code_table(head: &str, codes: impl IntoIterator<Item = (String, u8)>) -> String {
    let mut out = format!("| {head} | code |\n|---|---:|\n");
    for (name, code) in codes {
        // A string takes every write.
        let _ = writeln!(out, "| {name} | {code} |");
    }
    out
}
