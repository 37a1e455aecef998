//! The table of the trace benchmark: hit ratios by objects and by bytes, resident memory, and the longest requests.

use std::fmt;

use super::Outcome;

/// The caches in the order of their columns: name in the report, and heading.
const CACHES: [(&str, &str); 6] = [
    ("segments", "segm"),
    ("memcached", "memcd"),
    ("lru", "lru"),
    ("s3-fifo", "s3fifo"),
    ("sieve", "sieve"),
    ("belady", "belady"),
];

const LEGEND: &str = "\
obj, byte: % of reads, and of their bytes, that hit, in the second half of the trace; room: memory, in \
% of what a cache without end would hold at most; MiB: the same, or what memcached held with -m of as \
much, if that is more; segm: this store; memcd: \
memcached (not where items expire: it has no time but the host's); lru to belady: models, charged this store's bytes an item, the last of which knows the \
future; RSS h/m: resident memory of this store and of memcached in MiB; below it the time that 99.99 % of this \
store's requests did not exceed, in us, and that of the longest, in ms, the host's pauses included";

/// Writes two lines for each trace and size of memory.
pub(super) fn cells(f: &mut impl fmt::Write, results: &[Outcome]) -> fmt::Result {
    write!(f, "{:<11} {:>5} {:>5} {:<4}", "trace", "room", "MiB", "hit")?;
    for (_, heading) in CACHES {
        write!(f, " {heading:>6}")?;
    }
    writeln!(f, " {:>7}", "RSS h/m")?;
    let same = |a: &Outcome, b: &Outcome| {
        let of = |outcome: &Outcome| {
            (
                outcome.subject.workload.clone(),
                outcome.subject.room_percent,
            )
        };
        of(a) == of(b)
    };
    for cell in results.chunk_by(same) {
        line(f, cell, "obj", |outcome| outcome.hit_ratio)?;
        line(f, cell, "byte", |outcome| outcome.byte_hit_ratio)?;
    }
    writeln!(f, "{LEGEND}")
}

fn line(
    f: &mut impl fmt::Write,
    cell: &[Outcome],
    kind: &str,
    ratio: fn(&Outcome) -> Option<f64>,
) -> fmt::Result {
    let of = |name: &str| cell.iter().find(|outcome| outcome.subject.system == name);
    // memcached runs first, and the caches after it get the memory that it took; so the last one
    // has the final size.
    let subject = &cell[cell.len() - 1].subject;
    // The base name, if the trace is a file.
    let name = subject.workload.rsplit('/').next().unwrap_or_default();
    write!(
        f,
        "{name:<11.11} {:>3} % {:>5.0} {kind:<4}",
        subject.room_percent.unwrap_or_default(),
        subject.room_mb.unwrap_or_default()
    )?;
    for (name, _) in CACHES {
        match of(name).and_then(ratio) {
            Some(ratio) => write!(f, " {:>6.2}", ratio * 100.0)?,
            None => write!(f, " {:>6}", "-")?,
        }
    }
    if kind == "byte" {
        let times = of("segments").and_then(|outcome| outcome.latency_us);
        return match times {
            Some(of) => writeln!(
                f,
                " {:>7}",
                format!("{:.0}/{:.1}", of.p9999, of.max / 1000.0)
            ),
            None => f.write_char('\n'),
        };
    }
    let resident = |name| {
        let mb = of(name).and_then(|outcome| outcome.server_rss_mb);
        mb.map_or_else(|| "-".to_owned(), |mb| format!("{mb:.0}"))
    };
    writeln!(
        f,
        " {:>7}",
        format!("{}/{}", resident("segments"), resident("memcached"))
    )
}
