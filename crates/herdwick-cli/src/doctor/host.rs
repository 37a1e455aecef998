//! Checks of the host: kernel, huge pages, CPUs, and limits.

use std::fs;

use herdwick_mem::Arena;
use herdwick_providers::{Check, Checks};
use rustix::{
    process::{Resource, Rlimit, getrlimit},
    thread::sched_getaffinity,
};

/// Default limit of workers of `herdwick serve`.
const WORKERS_DEFAULT_MAX: usize = 4;
/// Descriptors of a server with 1,024 connections and 64 leases on 4 workers: a lease needs a
/// socket, and at most 8 descriptors per worker.
const DESCRIPTORS_WANTED: u64 = 1024 + 64 * (1 + 4 * 8);

pub(super) fn checks() -> Checks {
    Checks::from([
        (
            "kernel",
            kernel(fs::read_to_string("/proc/sys/kernel/osrelease").ok()),
        ),
        ("huge_pages", huge_pages(&try_huge_pages())),
        ("cpus", cpus(allowed_cpus())),
        ("descriptors", descriptors(getrlimit(Resource::Nofile))),
        ("locked_memory", locked_memory(getrlimit(Resource::Memlock))),
    ])
}

fn kernel(release: Option<String>) -> Check {
    match release.as_deref().map(str::trim) {
        Some(release) => Check::works(format!("Linux {release}")).fact("release", release),
        None => Check::would_work_if("/proc cannot be read", "mount -t proc proc /proc"),
    }
}

/// The setting of transparent huge pages, and the result of a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HugePages {
    /// The selected setting; `None` if the kernel has no huge pages.
    setting: Option<String>,
    asked: usize,
    /// `None` if smaps does not contain it.
    came: Option<usize>,
}

/// Touches memory that requests huge pages, and reads in smaps how much of it has them: no system
/// call returns that.
fn try_huge_pages() -> HugePages {
    // Eight huge pages of 2 MiB, so that whole ones fit at any alignment.
    const ASKED: usize = 16 << 20;
    let setting = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok();
    let setting = setting.and_then(|text| bracketed(&text).map(str::to_owned));
    let came = touched(ASKED).and_then(|arena| huge_bytes_under(&arena));
    HugePages {
        setting,
        asked: ASKED,
        came,
    }
}

fn touched(bytes: usize) -> Option<Arena<u8>> {
    let mut arena = Arena::zeroed(bytes).ok()?;
    // The kernel gives a page at the first write to it.
    arena.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    Some(arena)
}

fn huge_bytes_under(arena: &Arena<u8>) -> Option<usize> {
    let smaps = fs::read_to_string("/proc/self/smaps").ok()?;
    let start = arena.as_ptr().addr();
    // The kernel may merge this mapping with an adjacent one.
    huge_bytes(&smaps, start..start + arena.len()).map(|bytes| bytes.min(arena.len()))
}

fn huge_pages(seen: &HugePages) -> Check {
    const ADVISE: &str = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled";
    const WITHOUT: &str = "the store works, but large ones miss the TLB more";
    let (asked, came) = (seen.asked >> 20, seen.came.unwrap_or(0) >> 20);
    let check = match (seen.setting.as_deref(), seen.came) {
        (None, _) => Check::cannot(format!("the kernel has none to give: {WITHOUT}")),
        (Some("never"), _) => Check::would_work_if(format!("switched off: {WITHOUT}"), ADVISE),
        (Some(setting), None) => Check::would_work_if(
            format!("set to {setting}, but smaps does not tell"),
            "mount -t proc proc /proc",
        ),
        (Some(setting), Some(bytes)) if bytes * 2 >= seen.asked => Check::works(format!(
            "set to {setting}; {came} of {asked} MiB asked for came"
        )),
        (Some(setting), Some(_)) => Check::would_work_if(
            format!("set to {setting}, but only {came} of {asked} MiB asked for came: {WITHOUT}"),
            "echo 1 | sudo tee /proc/sys/vm/compact_memory",
        ),
    };
    check
        .fact("setting", seen.setting.clone())
        .fact("asked_bytes", seen.asked)
        .fact("came_bytes", seen.came)
}

/// Returns the selected word of a list such as `always [madvise] never`.
fn bracketed(text: &str) -> Option<&str> {
    text.split_once('[')?
        .1
        .split_once(']')
        .map(|(word, _)| word)
}

/// Returns the sum of `AnonHugePages` of the mappings that overlap `range`, in bytes.
fn huge_bytes(smaps: &str, range: std::ops::Range<usize>) -> Option<usize> {
    let mut inside = false;
    let mut sum = None;
    for line in smaps.lines() {
        if let Some(mapping) = addresses(line) {
            inside = mapping.start < range.end && range.start < mapping.end;
        } else if inside && let Some(size) = line.strip_prefix("AnonHugePages:") {
            let kilobytes: usize = size.trim().strip_suffix(" kB")?.parse().ok()?;
            sum = Some(sum.unwrap_or(0) + kilobytes * 1024);
        }
    }
    sum
}

/// Parses the range of a mapping's first line: `7f00-7f10 rw-p ...`.
fn addresses(line: &str) -> Option<std::ops::Range<usize>> {
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    let number = |digits| usize::from_str_radix(digits, 16).ok();
    Some(number(start)?..number(end)?)
}

fn allowed_cpus() -> Option<usize> {
    sched_getaffinity(None).ok().map(|set| set.count() as usize)
}

fn cpus(allowed: Option<usize>) -> Check {
    let Some(allowed) = allowed else {
        return Check::cannot("the kernel does not say which CPUs this process may use");
    };
    let workers = allowed.clamp(1, WORKERS_DEFAULT_MAX);
    let share = if allowed > workers {
        "clients have the rest"
    } else {
        "they share their CPUs with clients"
    };
    Check::works(format!(
        "{allowed} allowed; `herdwick serve` starts {workers} workers: {share}"
    ))
    .fact("allowed", allowed)
    .fact("workers", workers)
}

fn descriptors(limit: Rlimit) -> Check {
    let soft = limit.current.unwrap_or(u64::MAX);
    let reason = format!("{} may be open", amount(limit.current));
    let check = if soft >= DESCRIPTORS_WANTED {
        Check::works(reason)
    } else {
        let why = "1,024 connections and 64 leases need more";
        Check::would_work_if(
            format!("only {reason}: {why}"),
            format!("ulimit -n {DESCRIPTORS_WANTED}"),
        )
    };
    limits(check, limit)
}

/// Reports the limit of locked memory. Shared memory locks none; RDMA adapters lock what they
/// register.
fn locked_memory(limit: Rlimit) -> Check {
    let reason = format!(
        "{} bytes may be locked; shm locks none",
        amount(limit.current)
    );
    limits(Check::works(reason), limit)
}

fn limits(check: Check, limit: Rlimit) -> Check {
    check
        .fact("soft", limit.current)
        .fact("hard", limit.maximum)
}

fn amount(limit: Option<u64>) -> String {
    limit.map_or_else(|| "any number of".into(), |limit| limit.to_string())
}

#[cfg(test)]
mod tests {
    use herdwick_providers::Status;

    use super::*;

    const SMAPS: &str = "\
1000-3000 rw-p 00000000 00:00 0
Size:                  8 kB
AnonHugePages:      2048 kB
3000-5000 rw-p 00000000 00:00 0          [heap]
AnonHugePages:      4096 kB
7000-8000 rw-p 00000000 00:00 0
AnonHugePages:      8192 kB
";

    fn pages(setting: &str, came: Option<usize>) -> Check {
        huge_pages(&HugePages {
            setting: Some(setting.into()),
            asked: 16 << 20,
            came,
        })
    }

    #[test]
    fn smaps_fields_are_summed_over_the_address_range() {
        assert_eq!(huge_bytes(SMAPS, 0x2000..0x4000), Some(6 << 20));
        assert_eq!(huge_bytes(SMAPS, 0x7800..0x7900), Some(8 << 20));
        assert_eq!(huge_bytes(SMAPS, 0x5000..0x7000), None);
        assert_eq!(bracketed("always [madvise] never\n"), Some("madvise"));
    }

    #[test]
    fn every_check_result_has_its_message() {
        let limit = |current| Rlimit {
            current,
            maximum: None,
        };
        for (check, status, word) in [
            (
                pages("madvise", Some(16 << 20)),
                Status::Works,
                "16 of 16 MiB",
            ),
            (
                pages("madvise", Some(2 << 20)),
                Status::WouldWorkIf,
                "only 2 of 16 MiB",
            ),
            (pages("never", Some(0)), Status::WouldWorkIf, "switched off"),
            (
                cpus(Some(2)),
                Status::Works,
                "2 allowed; `herdwick serve` starts 2",
            ),
            (
                cpus(Some(64)),
                Status::Works,
                "starts 4 workers: clients have the rest",
            ),
            (cpus(None), Status::Cannot, "does not say"),
            (
                descriptors(limit(Some(1024))),
                Status::WouldWorkIf,
                "only 1024",
            ),
            (descriptors(limit(None)), Status::Works, "any number"),
            (
                locked_memory(limit(Some(8 << 20))),
                Status::Works,
                "8388608 bytes",
            ),
        ] {
            assert_eq!(check.status, status, "{check:?}");
            assert!(check.reason.contains(word), "{check:?}");
            assert_eq!(
                check.advice.is_some(),
                status == Status::WouldWorkIf,
                "{check:?}"
            );
        }
    }

    /// Reads a line of /proc, an independent source of the same value.
    fn proc_field(file: &str, name: &str) -> String {
        let text = fs::read_to_string(file).unwrap();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap();
        line.trim_start_matches(':').trim().to_owned()
    }

    #[test]
    fn limits_match_proc() {
        let limits = |name| {
            let fields = proc_field("/proc/self/limits", name);
            fields
                .split_whitespace()
                .take(2)
                .map(|text| text.parse().ok())
                .collect::<Vec<_>>()
        };
        for (name, resource) in [
            ("Max open files", Resource::Nofile),
            ("Max locked memory", Resource::Memlock),
        ] {
            let limit = getrlimit(resource);
            assert_eq!(limits(name), [limit.current, limit.maximum], "{name}");
        }
    }

    #[test]
    fn cpus_match_proc() {
        let list = proc_field("/proc/self/status", "Cpus_allowed_list");
        let number = |text: &str| text.parse::<usize>().unwrap();
        let spans = list
            .split(',')
            .map(|span| span.split_once('-').unwrap_or((span, span)));
        let count = spans
            .map(|(first, last)| number(last) - number(first) + 1)
            .sum();
        assert_eq!(allowed_cpus(), Some(count));
    }

    #[test]
    fn huge_pages_match_smaps_rollup() {
        let arena = touched(16 << 20).unwrap();
        let came = huge_bytes_under(&arena).unwrap();
        let rollup = proc_field("/proc/self/smaps_rollup", "AnonHugePages");
        let rollup: usize = rollup.strip_suffix(" kB").unwrap().parse().unwrap();
        assert!(
            came <= rollup * 1024,
            "{came} bytes in the range, {rollup} kB in the process"
        );
        if try_huge_pages().setting.as_deref() == Some("never") {
            assert_eq!(came, 0);
        }
    }
}
