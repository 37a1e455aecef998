//! The division of memory where Clover is the engine: between the data node, the metadata server's
//! tables, leases, and the partition of memcached's port, which stores nothing.

use herdwick_clover::{
    NodeEnd, Server, ServerEnd,
    layout::{CLASSES, Geometry, UNIT, VERSIONS_MAX},
    message::{CALL_BYTES_MAX, CALLS_MAX},
};
use herdwick_herd::wire::Window;
use herdwick_providers::AnyDevice;

use crate::herd::lease::LeaseKind;

/// Bytes of the partition of memcached's port.
pub(crate) const STORE_BYTES: usize = 4 << 20;

/// Returns the bytes of memory that a client holds: its domains at data node and metadata server, and
/// the buffers of its calls.
pub(crate) fn lease_bytes(kind: LeaseKind, _: Window, _: usize) -> usize {
    let rooms = [
        NodeEnd::<AnyDevice>::pd_room(),
        ServerEnd::<AnyDevice>::pd_room(),
    ];
    let domains = rooms.iter().map(|room| kind.fabric.pd_bytes(room));
    domains.sum::<usize>() + CALLS_MAX * CALL_BYTES_MAX
}

/// Returns the dimensions that fit `bytes` together with the metadata server's tables: the same number
/// of bytes for each size class, and a key for each entry. `None`: too few bytes.
pub(crate) fn geometry(bytes: usize) -> Option<Geometry> {
    let fits = |share: usize| {
        let dimensions = dimensions(share)?;
        let memory = dimensions
            .bytes()
            .ok()?
            .checked_add(Server::memory(&dimensions))?;
        (memory <= bytes).then_some(dimensions)
    };
    // The largest share of a class that fits, by binary search.
    let (mut least, mut most) = (0, bytes / CLASSES + 1);
    while most - least > 1 {
        let middle = least + (most - least) / 2;
        match fits(middle) {
            Some(_) => least = middle,
            None => most = middle,
        }
    }
    // A share of 0 fits nothing: then there is none.
    fits(least)
}

/// Returns the dimensions with `share` bytes for each class; `None`: they hold no entry of the largest.
fn dimensions(share: usize) -> Option<Geometry> {
    let mut entries = [0; CLASSES];
    for (class, count) in entries.iter_mut().enumerate() {
        *count = u32::try_from(share / (UNIT << class)).ok()?;
    }
    let dimensions = Geometry {
        slots: entries
            .iter()
            .try_fold(0, |sum: u32, count| sum.checked_add(*count))?,
        entries,
        versions: VERSIONS_MAX,
    };
    let whole = entries.iter().all(|count| *count > 0);
    dimensions
        .check()
        .ok()
        .filter(|()| whole)
        .map(|()| dimensions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_use_what_they_are_given_and_no_more() {
        for bytes in [8 << 20, 48 << 20, 1 << 30, 9 << 30] {
            let made = geometry(bytes).unwrap();
            let memory = made.bytes().unwrap() + Server::memory(&made);
            assert!(memory <= bytes, "{memory} of {bytes}");
            // The hash table doubles at some size, and what is above may not fit.
            assert!(memory > bytes / 2, "{memory} of {bytes}");
            assert!(made.entries.is_sorted_by(|a, b| a > b));
        }
        assert_eq!(geometry(100 << 10), None);
        assert_eq!(geometry(0), None);
    }
}
