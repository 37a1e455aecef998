//! Cells that the tables have in common: names, numbers in few columns, the spread of runs.

use super::{Outcome, Subject};

/// Returns the short name of a line: `herd shm`, `crowd tcp`.
pub(super) fn name(subject: &Subject) -> String {
    if let Some(verb) = &subject.verb {
        return format!("{} {} {}", verb.verb, verb.transport, subject.fabric);
    }
    let system = subject.beside.as_ref().unwrap_or(&subject.system);
    match subject.fabric.as_str() {
        "none" => system.clone(),
        fabric => format!("{system} {fabric}"),
    }
}

/// Returns the largest deviation of a run from the median, in percent of the median.
pub(super) fn spread(result: &Outcome) -> String {
    let median = result.ops_per_s;
    let away = (result.ops_per_s_max - median).max(median - result.ops_per_s_min);
    match result.runs {
        0 | 1 => nothing(),
        _ if median > 0.0 => cut(away / median * 100.0, 3),
        _ => nothing(),
    }
}

pub(super) fn nothing() -> String {
    "-".to_owned()
}

/// Formats a number in at most five columns.
pub(super) fn short(value: f64) -> String {
    cut(value, 5)
}

/// Formats a number in `width` columns with at most two decimals, as thousands, millions or
/// billions if it does not fit otherwise.
pub(super) fn cut(value: f64, width: usize) -> String {
    let plain = (0..=2).rev().map(|digits| format!("{value:.digits$}"));
    let thousands = [("k", 1e3), ("M", 1e6)];
    let scaled = thousands.map(|(unit, size)| format!("{:.0}{unit}", value / size));
    let mut texts = plain.chain(scaled);
    let fits = texts.find(|text| text.len() <= width);
    fits.unwrap_or_else(|| format!("{:.0}G", value / 1e9))
}
