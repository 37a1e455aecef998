//! A client that writes its lease's memory by hand, against the protocol, at a whole server: the
//! server survives, an honest client finds every value intact and never waits, and `stats` counts
//! what was refused.
//!
//! | row | what the client does | test |
//! |---|---|---|
//! | R01 | random words everywhere, at full speed | `lines::r01_random_words_in_client_memory_are_counted` |
//! | R02 | lengths beyond what there is | `lines::r02_lengths_beyond_the_line_are_refused` |
//! | R03 | a header flipped while it is read | `lines::r03_header_changed_during_the_read_is_read_once` and `lines::r03_operation_changed_after_validation_is_executed_as_validated` |
//! | R04 | a value changed after its publication | `lines::r04_value_changed_after_publication_is_not_stored` |
//! | R05 | a hash of zero | `lines::r05_zero_hash_is_refused_as_wrong` |
//! | R06 | a body without its control word | `lines::r06_body_without_control_word_is_not_executed` |
//! | R07 | operations that make no sense | `lines::r07_invalid_operations_are_refused` |
//! | R08 | a value of another length | `lines::r08_value_of_another_length_replaces_the_old_value` |
//! | R09 | the same request again | `lines::r09_repeated_request_has_no_second_effect` |
//! | R10 | sequences skipped and rewound | `lines::r10_sequences_outside_the_window_are_dropped` |
//! | R11 | all slots at once, out of turn, and too many | `lines::r11_requests_in_all_slots_in_any_order_execute_once` |
//! | R12 | writes beyond its own memory | `memory::r12_overwriting_all_writable_memory_affects_no_other_client` |
//! | R13 | reads beyond its own memory | `memory::r13_readable_memory_contains_no_values_of_others` |
//! | R14 | keys of another worker | `lines::r14_keys_of_another_worker_are_refused` |
//! | R15 | hashes that lie, as many as it likes | `lines::r15_hashes_of_other_keys_find_and_change_nothing` |
//! | R16 | replies without a place to go | `memory::r16_replies_without_a_ring_are_dropped` |
//! | R17 | replies never taken | `memory::r17_replies_that_are_never_polled_are_dropped` |
//! | R18 | reply memory scribbled on | `memory::r18_corrupt_ring_counters_are_counted_and_reply_cells_are_read_only` |
//! | R19 | a line cleared or rewritten in mid-execution | `lines::r19_line_changed_during_execution_executes_once` |
//! | R20 | lines of an old lease | `leases::r20_lines_of_an_old_lease_are_refused` |
//! | R21 | leases taken and left without end | `leases::r21_clients_that_connect_and_die_leave_nothing` |
//! | R22 | files truncated, sealed, punched, exchanged | `memory::r22_memory_files_resist_truncation_sealing_and_hole_punching` |
//! | R23 | another user, and names made beforehand | `leases::r23_another_user_cannot_open_the_lease_socket` and `leases::r23_existing_paths_are_not_used_for_the_lease_socket` |
//!
//! [`hello`] has what a client may try on its way to a lease, [`kernel`] what a client may leave in
//! the kernel, [`network`] what a client may do with a lease over a network, [`flood`] what its
//! packets cost another.

#[path = "../common/mod.rs"]
mod common;
mod flood;
mod hello;
mod kernel;
mod leases;
mod lines;
mod memory;
mod network;
mod raw;

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use common::{Clock, Folder, Server, Steady, TIMEOUT, is_whole, value};
use raw::Raw;

const WORKERS: usize = 2;
const WINDOW: usize = 64;
/// Values that the honest client has stored, and only it may change.
const KEPT: usize = 200;

/// A server, an honest client with values that must survive, and a hostile client.
struct Siege {
    raw: Raw,
    steady: Steady,
    server: Server,
    _folder: Folder,
}

impl Siege {
    fn new() -> Self {
        Self::of(WINDOW)
    }

    /// Makes a siege with `window` slots for the hostile client at each worker.
    fn of(window: usize) -> Self {
        let folder = Folder::new();
        let transports = ["-m", "512", "-p", "0", "--roce", "127.0.0.1:0"];
        let server = Server::run(&folder, WORKERS, &transports);
        let mut steady = Steady::new(&server);
        for n in 0..KEPT {
            let key = format!("kept:{n}");
            steady.client.set(&key, &value(&key, 7, n * 4)).unwrap();
        }
        Self {
            raw: Raw::take(&server.address, window),
            steady,
            server,
            _folder: folder,
        }
    }

    /// Reads a number from `stats`.
    fn stat(&mut self, name: &str) -> u64 {
        self.server.stat(&mut self.steady.client, name)
    }

    /// Returns the sum of all counters with names that begin with `prefix`.
    fn stats(&mut self, prefix: &str) -> u64 {
        let stats = self.steady.client.stats("").unwrap();
        let named = stats.iter().filter(|(name, _)| name.starts_with(prefix));
        named.map(|(_, count)| count.parse::<u64>().unwrap()).sum()
    }

    /// Waits until `holds`, which must happen.
    fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        let clock = Clock::start();
        while !holds(self) {
            assert!(clock.now() < TIMEOUT, "{what}");
        }
    }

    /// Waits until a number of `stats` is at least `least`.
    fn until_stat(&mut self, name: &str, least: u64) {
        self.until(name, |siege| siege.stat(name) >= least);
    }

    /// Reads a value as the honest client.
    fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        self.steady.client.get(key).unwrap()
    }

    /// Checks that the honest client is served, each call within its second, and finds its values.
    fn survives(&mut self) {
        for _ in 0..10 {
            self.steady.check();
        }
        for n in 0..KEPT {
            let key = format!("kept:{n}");
            let found = self
                .get(key.as_bytes())
                .expect("the key was stored and is kept");
            assert!(
                is_whole(&key, &found) && found == value(&key, 7, n * 4),
                "{key}"
            );
        }
    }
}

/// Runs `busy` once, and then repeatedly on another thread, until `work` returns or fails.
fn meanwhile(mut busy: impl FnMut() + Send, work: impl FnOnce()) {
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    // Run it once here: the scheduler decides whether the thread runs in time.
    busy();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(&over);
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                busy();
            }
        });
        work();
    });
}

/// Checks that each row of the table names existing tests.
#[test]
fn every_row_of_the_table_names_existing_tests() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile");
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let table = read("main.rs");
    let mut rows = Vec::new();
    for line in table
        .lines()
        .filter_map(|line| line.strip_prefix("//! | R"))
    {
        let number = &line[..2];
        rows.push(number.parse::<usize>().unwrap());
        let mut tests = 0;
        for name in line.split('`').skip(1).step_by(2) {
            let (module, function) = name.split_once("::").unwrap();
            let test = format!("#[test]\nfn {function}() {{");
            assert!(function.starts_with(&format!("r{number}_")), "{name}");
            assert!(read(&format!("{module}.rs")).contains(&test), "{name}");
            tests += 1;
        }
        assert!(tests > 0, "R{number}");
    }
    assert!(rows.into_iter().eq(1..=23));
}
