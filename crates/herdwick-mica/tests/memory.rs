//! The memory limit holds, measured as resident memory, in a process of its own.

mod common;

use common::{Answer, HASH_KEY};
use herdwick_mica::{Store, StoreConfig};
use herdwick_request::{Clock, Execute, Op, Put, Reply, Request, Second, Status};

const MEMORY_BYTES: usize = 24 << 20;
/// Bytes that the process may take besides the store: stacks, the allocator, pages that the loader
/// touches.
const SLACK: usize = 2 << 20;

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux has statm");
    let pages = statm.split(' ').nth(1).and_then(|field| field.parse().ok());
    let pages: usize = pages.expect("its second field is a number of pages");
    pages * 4096
}

fn fill(store: &mut Store, sizes: &[usize]) {
    let clock = Clock {
        epoch_unix: 0,
        second: Second(1),
    };
    let value = vec![1u8; 100_000];
    let mut stored = 0;
    for n in 0u64.. {
        let key = n.to_le_bytes();
        let len = sizes[n as usize % sizes.len()];
        let put = Put {
            value: &value[..len],
            ..Put::default()
        };
        let request = Request {
            hash: HASH_KEY.hash(&key),
            key: &key,
            op: Op::Put(put),
        };
        store.execute(clock, &[request], &mut |_, reply: &Reply<'_>| {
            assert_eq!(Answer::from(reply).status, Status::Done);
        });
        stored += 40 + len;
        if stored > 3 * MEMORY_BYTES {
            return;
        }
    }
}

/// A lower limit leaves some segments among others that it does not.
#[test]
fn store_stays_within_its_memory_and_frees_it() {
    let before = resident();
    let config = StoreConfig {
        memory_bytes: MEMORY_BYTES,
        item_bytes_max: 1 << 20,
        hash_key: HASH_KEY,
    };
    let mut store = Store::new(&config).unwrap();
    for sizes in [&[8, 32][..], &[100_000, 3], &[1000]] {
        fill(&mut store, sizes);
        let grown = resident() - before;
        assert!(
            grown <= MEMORY_BYTES + SLACK,
            "{grown} bytes for {MEMORY_BYTES}"
        );
        assert!(store.counters().evictions > 0);
        assert!(store.counters().bytes <= MEMORY_BYTES as u64);
    }
    // Under a limit the memory beyond it goes back to the system; above it, it fills again.
    for (unused, sizes) in [(12 << 20, &[1000][..]), (16 << 20, &[8, 32]), (0, &[1000])] {
        store.leave_unused(unused);
        while store.adjust() {}
        assert!(store.counters().bytes > 0, "what is younger stays");
        for _ in 0..3 {
            let grown = resident() - before;
            let limit = MEMORY_BYTES - unused;
            assert!(grown <= limit + SLACK, "{grown} bytes for {limit}");
            fill(&mut store, sizes);
            while store.adjust() {}
        }
    }
    assert!(store.counters().bytes > MEMORY_BYTES as u64 / 2);
    drop(store);
    assert!(resident() - before <= SLACK);
}
