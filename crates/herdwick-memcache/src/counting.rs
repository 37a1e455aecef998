//! Counts how often the bytes of a command are read while it is decoded; in tests only.

use std::{
    cell::{Cell, RefCell},
    ops::Range,
};

thread_local! {
    static LINES: Cell<usize> = const { Cell::new(0) };
    static SCANS: RefCell<Vec<Range<usize>>> = const { RefCell::new(Vec::new()) };
}

/// Counts a line that is decoded.
pub(crate) fn line() {
    LINES.with(|lines| lines.set(lines.get() + 1));
}

/// Counts a search of `text` that ended at `found`, or at its end.
pub(crate) fn scan(text: &[u8], found: Option<usize>) {
    let start = text.as_ptr() as usize;
    let len = found.unwrap_or(text.len());
    SCANS.with(|scans| scans.borrow_mut().push(start..start + len));
}

#[cfg(test)]
mod tests;
