//! The memory limit: the sum of everything that the server holds stays below it, and leases leave
//! nothing behind.

use std::{collections::BTreeMap, fs, path::Path};

use crate::common::{self, Clock, Folder, Server};
use herdwick::{Client, Fabric, Fallback, LeaseRefusal, Options, Session};

const LIMIT_MB: u64 = 64;
const WORKERS: usize = 3;
/// Number of clients with full windows of 32 that a server of three workers has memory for besides
/// the first client, and number of clients with any window.
const FULL: usize = 8;
const ALL: usize = 10;
/// MiB of lease memory that stay unused: the last eighth is reserved, and the rest before it is too
/// little for another of these clients.
const KEPT_MB: u64 = 2;
/// MiB for code, stacks, and what a connection needs besides its items.
const AROUND_MB: u64 = 6;

/// Returns the bytes of memory files that a process has mapped, each file counted once.
fn memory_files(proc: &Path) -> u64 {
    let maps = fs::read_to_string(proc.join("maps")).unwrap();
    let mut ends = BTreeMap::new();
    for line in maps.lines().filter(|line| line.contains("memfd:herdwick")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [range, _, offset, _, inode, ..] = words[..] else {
            panic!("{line}")
        };
        let hex = |text| u64::from_str_radix(text, 16).unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let reach = hex(offset) + hex(end) - hex(start);
        let known: &mut u64 = ends.entry(inode.to_owned()).or_default();
        *known = reach.max(*known);
    }
    ends.values().sum()
}

/// Returns a line of /proc/PID/status, in bytes.
fn status(proc: &Path, name: &str) -> u64 {
    let text = fs::read_to_string(proc.join("status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.unwrap().trim_end_matches("kB").trim();
    kib.parse::<u64>().unwrap() * 1024
}

/// Stores more than a server with this limit can hold.
fn fill(client: &mut Client, limit_mb: u64) {
    let value = vec![b'v'; 64 << 10];
    for n in 0..limit_mb * 32 {
        client.set(format!("{n}"), &value[..]).unwrap();
    }
}

#[test]
fn memory_of_items_and_leases_stays_within_m() {
    let folder = Folder::new();
    let limit = LIMIT_MB.to_string();
    let server = Server::run(&folder, WORKERS, &["-p", "0", "-m", &limit]);
    let proc = Path::new("/proc").join(server.pid().to_string());
    let mut client = server.client();
    let boards = memory_files(&proc) - server.stat(&mut client, "lease_bytes");
    let options = Options {
        window: 32,
        ..common::patient()
    };
    let (mut sessions, mut windows) = (Vec::new(), Vec::new());
    let refused = loop {
        let mut session = Session::dial(&server.address.parse().unwrap(), &options).unwrap();
        match session.fallback() {
            None => windows.push(session.direct().unwrap().window()),
            Some(reason) => break reason.clone(),
        }
        sessions.push(session);
    };
    assert_eq!(refused, Fallback::Refused(LeaseRefusal::Full));
    let full = windows.iter().filter(|slots| **slots == 32).count();
    assert!(full >= FULL && windows.len() >= ALL, "{windows:?}");
    fill(&mut client, LIMIT_MB);
    let leases = server.stat(&mut client, "lease_bytes");
    assert_eq!(memory_files(&proc), leases + boards);
    let held = status(&proc, "RssAnon:") + leases + boards;
    assert!(held <= (LIMIT_MB + AROUND_MB) << 20, "{held} bytes");
    assert!(
        held >= (LIMIT_MB - 2 - KEPT_MB) << 20,
        "{held} bytes: the store is full"
    );
}

/// With `-k`, too, memory is taken as it is used. The room that the index may grow to is mapped beside the
/// items that it takes the place of: locked from the start, it took an eighth of `-m` more.
#[test]
fn locked_memory_stays_within_m() {
    const LIMIT_MB: u64 = 256;
    let locked = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    if !rustix::process::geteuid().is_root() && locked.is_some_and(|bytes| bytes < 1 << 30) {
        println!("skipped: the limit of locked memory is {locked:?}");
        return;
    }
    let folder = Folder::new();
    let server = Server::run(&folder, 1, &["-p", "0", "-m", &LIMIT_MB.to_string(), "-k"]);
    let proc = Path::new("/proc").join(server.pid().to_string());
    let held = status(&proc, "VmRSS:");
    assert!(held < 64 << 20, "{held} bytes without an item");
    fill(&mut server.client(), LIMIT_MB);
    let held = status(&proc, "VmRSS:");
    let most = (LIMIT_MB + LIMIT_MB / 10) << 20;
    assert!((most / 10 * 8..=most).contains(&held), "{held} bytes");
    assert!(status(&proc, "VmLck:") >= held / 10 * 9);
}

/// Number of leases over RoCEv2, one after another, and the KiB that they may leave behind in
/// total: less than a page each.
const LEASES: usize = 40;
const ROUNDS: usize = 3;
const LEFT_KB: u64 = 100;

#[test]
fn repeated_roce_leases_leak_no_memory() {
    let folder = Folder::new();
    let roce = ["--shm", "off", "--roce", "127.0.0.1:0"];
    let server = Server::run(&folder, 1, &[&["-p", "0", "-m", "64"][..], &roce].concat());
    let text = Options {
        fabric: false,
        ..common::patient()
    };
    let mut client = Client::connect_with(&server.address, text).unwrap();
    let options = Options {
        only: Some(Fabric::Roce),
        ..common::patient()
    };
    let mut lease = || {
        let session = Session::dial(&server.address.parse().unwrap(), &options).unwrap();
        assert_eq!(session.transport(), "roce");
        drop(session);
        // The server notices the end of the lease asynchronously.
        let clock = Clock::start();
        while server.stat(&mut client, "leases") > 0 {
            clock.hurry("the lease ends");
        }
    };
    // The first leases allocate what the server keeps: GSO batches, tables, and memory of the
    // allocator.
    (0..4).for_each(|_| lease());
    // What the allocator touches for the first time counts once; a leak, each time.
    let left = [(); ROUNDS].map(|()| {
        let before = server.private_kib();
        (0..LEASES).for_each(|_| lease());
        server.private_kib().saturating_sub(before)
    });
    let least = left.iter().min().unwrap();
    assert!(*least < LEFT_KB, "{left:?} KiB, each after {LEASES} leases");
}
