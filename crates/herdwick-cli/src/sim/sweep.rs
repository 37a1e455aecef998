//! `herdwick sim` with lists as options: a table of what every combination yields.

use std::io::{IsTerminal, Write, stderr};

use super::{
    args::SimArgs,
    measure::{Measured, measure, us},
    point::{COLUMNS, Column, Point},
};

/// Runs all points; returns a row for each.
pub(super) fn table(args: &SimArgs, points: &[Point<'_>]) -> Result<String, String> {
    let mut hashes = String::new();
    let varies = |column: &Column| {
        let mut others = points.iter().map(column.1);
        let first = others.next();
        others.any(|other| Some(other) != first)
    };
    let columns: Vec<_> = COLUMNS.iter().filter(|column| varies(column)).collect();
    let mut rows = vec![columns.iter().map(|(name, _)| (*name).to_owned()).collect()];
    Vec::extend(&mut rows[0], RESULTS.map(str::to_owned));
    for (number, point) in points.iter().enumerate() {
        progress(number, points.len());
        let measured = measure(args, point)?;
        hashes.push_str(&format!("{:016x}\n", measured.outcome.trace));
        let mut row: Vec<String> = columns.iter().map(|(_, value)| value(point)).collect();
        row.extend(results(&measured));
        rows.push(row);
    }
    progress_ends();
    if args.hash {
        return Ok(hashes);
    }
    let first = points.first().map_or_else(String::new, |point| {
        let constant = COLUMNS.iter().filter(|column| !varies(column));
        let constant = constant.map(|(name, value)| format!("{name} {}", value(point)));
        constant.collect::<Vec<_>>().join(", ")
    });
    Ok(format!(
        "sim, seed {}: {first}\n{}",
        args.seed,
        aligned(&rows)
    ))
}

const RESULTS: [&str; 6] = ["M/s", "mean us", "p99 us", "cores %", "steady %", "failed"];

fn results(Measured { outcome, report }: &Measured) -> [String; RESULTS.len()] {
    let none = || "-".to_owned();
    let rate = format!("{:.2}", outcome.mops);
    let Some(report) = report else {
        return [rate, none(), none(), none(), none(), none()];
    };
    let busiest = report.busy.iter().copied().fold(0.0, f64::max);
    [
        rate,
        format!("{:.2}", us(outcome.mean_ns())),
        format!("{:.2}", us(outcome.percentile_ns(99))),
        format!("{:.0}", 100.0 * busiest),
        format!("{:+.1}", report.drift_percent() + 0.0),
        report.failed.to_string(),
    ]
}

/// Shows how many of the runs are over.
pub(super) fn progress(over: usize, all: usize) {
    if stderr().is_terminal() {
        // Errors are ignored: the progress line is dispensable.
        let _ = write!(stderr(), "\r\x1b[K{over} of {all} runs");
    }
}

pub(super) fn progress_ends() {
    if stderr().is_terminal() {
        let _ = write!(stderr(), "\r\x1b[K");
    }
}

/// Lays rows out in columns, flush right but for the first.
pub(super) fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max();
    let widths: Vec<_> = (0..columns)
        .map(|column| width(column).unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (index, (cell, width)) in row.iter().zip(&widths).enumerate() {
            match index {
                0 => line.push_str(&format!("{cell:<width$}")),
                _ => line.push_str(&format!("  {cell:>width$}")),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
