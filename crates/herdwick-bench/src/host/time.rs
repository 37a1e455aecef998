//! Clocks: elapsed time, CPU time of a thread or of another process, and resident memory.

use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

/// The clock of one measurement: nanoseconds since it was created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts the clock.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the benchmark's one clock")]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// Returns the nanoseconds since the start.
    #[inline]
    #[must_use]
    pub(crate) fn ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

/// Returns the CPU time that this thread has used, in nanoseconds.
#[expect(
    clippy::disallowed_methods,
    reason = "a benchmark is a shell: it reads the clocks"
)]
#[must_use]
pub(crate) fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Reads the CPU time and resident memory of another process, or the CPU time of some threads of this
/// one.
#[derive(Clone, Debug)]
pub(crate) struct ProcessCpu {
    pid: u32,
    /// Empty: all threads.
    threads: Vec<i32>,
}

impl ProcessCpu {
    /// Creates a reader for process `pid`.
    #[must_use]
    pub(crate) fn new(pid: u32) -> Self {
        let threads = Vec::new();
        Self { pid, threads }
    }

    /// Creates a reader for these threads of this process.
    #[must_use]
    pub(crate) fn of_threads(threads: Vec<i32>) -> Self {
        Self {
            pid: std::process::id(),
            threads,
        }
    }

    /// Returns the CPU time of all its threads, in nanoseconds, or `None` if it cannot be read. The
    /// resolution is a nanosecond if the kernel provides `schedstat`, else a clock tick (10 ms).
    #[must_use]
    pub(crate) fn ns(&self) -> Option<u64> {
        match self.threads[..] {
            [] => self.scheduled_ns().or_else(|| self.charged_ns()),
            _ => self.threads.iter().map(|id| self.thread_ns(*id)).sum(),
        }
    }

    /// Returns its resident memory, in MiB, rounded to a tenth.
    #[must_use]
    pub(crate) fn resident_mb(&self) -> Option<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
        Some((kib / 102.4).round() / 10.0)
    }

    fn scheduled_ns(&self) -> Option<u64> {
        let mut ns = 0;
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.pid)).ok()? {
            // A thread that ended since the directory was read is skipped.
            let Ok(times) = std::fs::read_to_string(thread.ok()?.path().join("schedstat")) else {
                continue;
            };
            ns += scheduled_ns(&times)?;
        }
        // Without scheduler statistics the kernel shows zeros.
        (ns > 0).then_some(ns)
    }

    fn thread_ns(&self, id: i32) -> Option<u64> {
        let path = format!("/proc/{}/task/{id}/schedstat", self.pid);
        scheduled_ns(&std::fs::read_to_string(path).ok()?)
    }

    fn charged_ns(&self) -> Option<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok()?;
        let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
        Some(cpu_ticks(&stat)? * tick_ns)
    }
}

/// Returns the first number of a `schedstat` file: nanoseconds on a CPU
/// (Documentation/scheduler/sched-stats.rst).
fn scheduled_ns(times: &str) -> Option<u64> {
    times.split_ascii_whitespace().next()?.parse().ok()
}

/// Returns utime + stime of a `/proc/PID/stat` line, in clock ticks (proc(5): fields 14 and 15).
/// Field 2, the name, is in parentheses and may itself contain any character, so fields are counted
/// from the last closing parenthesis.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    // Field 3 is the first behind the name.
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_ticks_are_parsed_after_any_process_name() {
        let stat = "42 (a) b (c)) R 1 42 42 0 -1 4194304 100 0 0 0 7 5 0 0 20 0 1 0 999 0 0";
        assert_eq!(cpu_ticks(stat), Some(12));
        assert_eq!(cpu_ticks("42 (x) R 1 2"), None);
        assert_eq!(cpu_ticks(""), None);
    }

    #[test]
    fn schedstat_first_field_is_time_on_cpu() {
        assert_eq!(scheduled_ns("1316700 0 12\n"), Some(1_316_700));
        assert_eq!(scheduled_ns(""), None);
    }

    #[test]
    fn every_clock_advances_during_work() {
        let (watch, own) = (Stopwatch::start(), ProcessCpu::new(std::process::id()));
        let before = (thread_cpu_ns(), own.ns().unwrap());
        while own.ns().unwrap() == before.1 {
            std::hint::spin_loop();
        }
        assert!(thread_cpu_ns() > before.0);
        assert!(watch.ns() > 0);
        assert_eq!(ProcessCpu::new(u32::MAX).ns(), None);
    }
}
