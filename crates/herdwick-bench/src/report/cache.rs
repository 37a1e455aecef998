//! The table of the cache benchmark: this server's figures below memcached's, for each pattern and
//! size of memory.

use std::fmt;

use super::Outcome;

/// If this server uses more than this multiple of memcached's memory, the comparison is marked as
/// unequal.
const UNEQUAL: f64 = 1.03;

/// Writes two lines per cell, memcached's and this server's, and the difference of their hit ratios
/// in percentage points.
pub(super) fn cells(f: &mut impl fmt::Write, results: &[Outcome]) -> fmt::Result {
    writeln!(
        f,
        "work   room   {:<14.14} {:>9} {:>9} {:>9} {:>9}",
        "server", "RSS MiB", "items", "B/item", "hit %"
    )?;
    for pair in results.chunks(2) {
        for result in pair {
            cell(f, result)?;
        }
        if let [theirs, ours] = pair {
            let percent = |result: &Outcome| result.hit_ratio.unwrap_or_default() * 100.0;
            let gain = percent(ours) - percent(theirs);
            writeln!(f, "{:>68}", format!("{gain:+.2}"))?;
            if ours.server_rss_mb > theirs.server_rss_mb.map(|theirs| theirs * UNEQUAL) {
                writeln!(f, "unequal: the second holds more; take more --keys")?;
            }
        }
    }
    Ok(())
}

fn cell(f: &mut impl fmt::Write, result: &Outcome) -> fmt::Result {
    let subject = &result.subject;
    let resident = result.server_rss_mb.unwrap_or_default();
    let items = result.items.unwrap_or_default();
    writeln!(
        f,
        "{:<6} {:>3} %  {:<14.14} {:>9.1} {:>9} {:>9.1} {:>9.2}",
        subject.workload,
        subject.room_percent.unwrap_or_default(),
        subject.server.as_deref().unwrap_or("-"),
        resident,
        items,
        resident * f64::from(1 << 20) / items as f64,
        result.hit_ratio.unwrap_or_default() * 100.0
    )
}
