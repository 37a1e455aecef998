//! Memory, descriptors and mappings of a server: while clients connect and leave, and when all have
//! left.

use std::{fs, path::Path, time::Duration};

use herdwick::Client;
use herdwick_herd::hello::LEASE_DEADLINE;

use crate::{
    common::{Clock, Holdings, Server, TIMEOUT},
    stage::{Stage, rest},
};

/// Memory for buffers beside `-m` while all clients are connected.
const PEAK_MB: u64 = 96;
/// Memory that may remain beside the earlier amount: freed, but kept by the allocator.
const LEFT_KIB: u64 = 16 << 10;
/// Mappings that the allocator may keep: an arena for each thread, and a guard after it.
const LEFT_MAPS: usize = 24;

/// The state of a server before clients connect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before {
    holdings: Holdings,
    /// Resident memory before the first client, and before the clients of this part.
    first_kib: u64,
    resident_kib: u64,
    mappings: usize,
    limit_mb: u64,
}

impl Before {
    pub(crate) fn of(server: &Server, limit_mb: u64) -> Self {
        Self {
            holdings: server.holdings(),
            first_kib: resident_kib(server.pid()),
            resident_kib: resident_kib(server.pid()),
            mappings: mappings(server.pid()),
            limit_mb,
        }
    }

    /// Monitors the server while the soak lasts: that it is alive, and how much memory it takes.
    pub(crate) fn watch(&self, stage: &Stage, server: &Server) {
        let (mut peak, pid, limit_kib) = (0, server.pid(), self.peak_kib());
        let workers = threads(pid);
        while stage.lasts() {
            let now = resident_kib(pid);
            peak = now.max(peak);
            assert!(now > 0, "the server is dead");
            assert_eq!(threads(pid), workers, "a thread of the server is dead");
            assert!(
                now <= limit_kib,
                "the server uses {} MiB with -m {}; {} MiB above that are allowed",
                now >> 10,
                self.limit_mb,
                PEAK_MB
            );
            rest(Duration::from_millis(50));
        }
        stage.count("peak MiB", peak >> 10);
    }

    /// Returns the same state, measured again after buffers have been in use.
    pub(crate) fn warm(&self, server: &Server) -> Self {
        Self {
            resident_kib: resident_kib(server.pid()),
            mappings: mappings(server.pid()),
            ..*self
        }
    }

    /// Resident memory allowed while clients are connected.
    pub(crate) fn peak_kib(&self) -> u64 {
        self.first_kib.max(self.limit_mb << 10) + (PEAK_MB << 10)
    }

    /// Resident memory allowed after they have left.
    pub(crate) fn left_kib(&self) -> u64 {
        self.resident_kib + LEFT_KIB
    }

    /// Waits until the server holds what it held before, apart from the resident memory allowed.
    pub(crate) fn until_left(
        &self,
        stage: &Stage,
        server: &Server,
        client: &mut Client,
        allowed_kib: u64,
    ) {
        let clock = Clock::start();
        let bound = LEASE_DEADLINE + TIMEOUT;
        loop {
            let leases = server.stat(client, "leases");
            let (now, resident) = (server.holdings(), resident_kib(server.pid()));
            let maps = mappings(server.pid());
            let held = now.within(self.holdings);
            let fits = resident <= allowed_kib;
            let lean = maps <= self.mappings + LEFT_MAPS;
            if leases == 0 && held && fits && lean {
                println!(
                    "back after {:.1?}: {} KiB resident of {} before, {maps} mappings of {}, \
                     {now:?}; peak {} MiB",
                    clock.now(),
                    resident,
                    self.resident_kib,
                    self.mappings,
                    stage.counted("peak MiB"),
                );
                return;
            }
            assert!(
                clock.now() < bound,
                "{}everybody has left, but {leases} leases, {resident} KiB, {maps} mappings and \
                 {now:?} are held, for {self:?} before",
                largest(server.pid())
            );
            rest(Duration::from_millis(10));
        }
    }
}

/// Resident memory of every kind.
fn resident_kib(pid: u32) -> u64 {
    let Ok(status) = fs::read_to_string(proc(pid).join("status")) else {
        return 0;
    };
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.map(|line| line.trim_end_matches("kB").trim().parse().unwrap());
    kib.unwrap_or(0)
}

/// Lists the mappings with the most resident memory, for a failure message.
fn largest(pid: u32) -> String {
    let text = fs::read_to_string(proc(pid).join("smaps")).unwrap();
    let (mut head, mut sizes) = (String::new(), Vec::new());
    for line in text.lines() {
        if let Some(kib) = line.strip_prefix("Rss:") {
            let kib: u64 = kib.trim_end_matches("kB").trim().parse().unwrap();
            sizes.push((kib, head.clone()));
        } else if line
            .split(' ')
            .next()
            .is_some_and(|word| word.contains('-'))
        {
            line.clone_into(&mut head);
        }
    }
    sizes.sort_unstable();
    let lines = sizes.iter().rev().take(16);
    lines
        .map(|(kib, head)| format!("{kib} KiB resident: {head}\n"))
        .collect()
}

fn mappings(pid: u32) -> usize {
    let maps = fs::read_to_string(proc(pid).join("maps")).unwrap();
    maps.lines().count()
}

/// Number of worker threads; the server has others temporarily.
fn threads(pid: u32) -> usize {
    let Ok(tasks) = fs::read_dir(proc(pid).join("task")) else {
        return 0;
    };
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm"));
    let names = tasks.filter_map(|task| name(task.ok()?).ok());
    names.filter(|name| name.starts_with("worker")).count()
}

fn proc(pid: u32) -> std::path::PathBuf {
    Path::new("/proc").join(pid.to_string())
}
