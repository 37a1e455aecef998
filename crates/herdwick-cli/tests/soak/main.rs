//! A soak: clients over every transport connect, work with full windows, leave in any order, are
//! killed, stopped, and outlived by their descriptors, all at once, and each checks every value. At
//! the end, the server answers over every transport, holds what it held before, has cut off no
//! client that kept to the rules, and has let none wait.
//!
//! | file | what it has |
//! |---|---|
//! | `stage` | what the clients of one server share; the times and choices of one client |
//! | `model` | what a client may find |
//! | `transports`, `stream`, `text`, `binary`, `udp` | every transport, as one trait |
//! | `calls` | clients that make one call after the other, over every transport |
//! | `windows` | sessions with full windows |
//! | `pipelines` | memcached's text, many commands at once |
//! | `transfers` | values of up to a megabyte, at every speed |
//! | `churn` | leases, one after the other |
//! | `children` | clients in separate processes: killed, stopped, outlived |
//! | `bereaved` | clients of a server that is killed |
//! | `bystander` | clients that only read, how long they wait, and whose fault that is |
//! | `holdings` | memory, descriptors and mappings of the server |
//!
//! It is ignored unless asked for (`--ignored soak_`), and lasts for `HERDWICK_SOAK_SECONDS` (12;
//! CI: 72), of which each part takes its share, and the time until the remains of dead clients are
//! gone. The clients' choices follow from
//! `HERDWICK_SOAK_SEED`; their timing depends on the scheduler.

#[path = "../common/mod.rs"]
mod common;

mod bereaved;
mod binary;
mod bystander;
mod calls;
mod children;
mod churn;
mod holdings;
mod model;
mod part;
mod pipelines;
mod stage;
mod stream;
mod text;
mod transfers;
mod transports;
mod udp;
mod windows;

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use herdwick_check::count;
use part::{Listen, Memory, Part};

/// Runs one part at a time: each takes all CPUs.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn seed() -> u64 {
    let seed = count("HERDWICK_SOAK_SEED", 14);
    println!("HERDWICK_SOAK_SEED={seed}");
    seed
}

/// Returns a number of sixths of the whole time.
fn share(sixths: u32) -> Duration {
    Duration::from_secs(count("HERDWICK_SOAK_SECONDS", 12)) * sixths / 6
}

#[test]
#[ignore = "a soak; CI runs it"]
fn soak_clients_of_every_transport_leave_nothing_behind() {
    let _alone = alone();
    let part = Part {
        listen: Listen::Tcp,
        memory: Memory::Mb(256),
        channels: 6,
        transfers_max: 32,
        length: share(4),
        seed: seed(),
    };
    part.run();
}

#[test]
#[ignore = "a soak; CI runs it"]
fn soak_over_tls_with_little_memory() {
    let _alone = alone();
    let part = Part {
        listen: Listen::Tls,
        memory: Memory::Least,
        channels: 3,
        transfers_max: 4,
        length: share(1),
        seed: seed(),
    };
    part.run();
}

#[test]
#[ignore = "a soak; CI runs it"]
fn soak_over_a_unix_socket() {
    let _alone = alone();
    let part = Part {
        listen: Listen::Unix,
        memory: Memory::Mb(128),
        channels: 4,
        transfers_max: 16,
        length: share(1),
        seed: seed(),
    };
    part.run();
}

#[test]
#[ignore = "a soak; CI runs it"]
fn every_call_ends_when_the_server_is_killed() {
    let _alone = alone();
    bereaved::kill_servers(seed());
}
