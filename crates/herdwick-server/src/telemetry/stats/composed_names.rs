//! The composed names of `stats workers` and `stats hotkeys`: the server writes them, and programs read
//! them, by the same functions.

use herdwick_herd::ServerCounters;

/// The name of a counter of [`ServerCounters`]; that of an unknown one does not compile.
macro_rules! herd_counter {
    ($field:ident) => {{
        let _ = |counters: &ServerCounters| counters.$field;
        stringify!($field)
    }};
}

/// Requests executed for a transport; in `stats`, for all fabrics.
pub const REQUESTS: &str = herd_counter!(requests);
/// The batches in which they arrived.
pub const BATCHES: &str = herd_counter!(batches);

const WORKER: &str = "worker:";
const HOT_KEY: &str = "hotkey:";

/// A statistic of a hot key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HotKeyStatistic {
    /// The key, encoded as in a URI.
    Key,
    /// Requests counted.
    Requests,
    /// By how many requests the count may be too high.
    Excess,
    /// Seconds of the count.
    Seconds,
    /// Requests per second.
    Rate,
}

/// Returns the name of a statistic of worker `number` in `stats workers`.
#[must_use]
pub fn of_worker(number: usize, name: &str) -> String {
    format!("{WORKER}{number}:{name}")
}

/// Returns the number of the worker, and its statistic's name, of a name in `stats workers`.
#[must_use]
pub fn worker_of(name: &str) -> Option<(u32, &str)> {
    let (number, name) = name.strip_prefix(WORKER)?.split_once(':')?;
    Some((number.parse().ok()?, name))
}

/// Returns the name of a statistic of `transport`, [`REQUESTS`] or [`BATCHES`], as one of a worker.
#[must_use]
pub fn of_transport(transport: &str, name: &str) -> String {
    format!("{transport}:{name}")
}

/// Returns the transport and the statistic of a name made by [`of_transport`].
#[must_use]
pub fn transport_of(name: &str) -> Option<(&str, &str)> {
    name.split_once(':')
}

/// Returns the name of a statistic of the hot key of this rank, from 1 for the hottest, in
/// `stats hotkeys`.
#[must_use]
pub fn of_hot_key(rank: usize, statistic: HotKeyStatistic) -> String {
    let name = match statistic {
        HotKeyStatistic::Key => "key",
        HotKeyStatistic::Requests => "requests",
        HotKeyStatistic::Excess => "excess",
        HotKeyStatistic::Seconds => "seconds",
        HotKeyStatistic::Rate => "rate",
    };
    format!("{HOT_KEY}{rank}:{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn composed_names_are_taken_apart_again() {
        let requests = of_transport("tcp", REQUESTS);
        let name = of_worker(12, &requests);
        assert_eq!(name, "worker:12:tcp:requests");
        let (number, rest) = worker_of(&name).unwrap();
        assert_eq!((number, transport_of(rest)), (12, Some(("tcp", REQUESTS))));
        for other in ["worker:", "worker:x:items", "worker:1", "items"] {
            assert_eq!(worker_of(other), None, "{other}");
        }
        assert_eq!(of_hot_key(3, HotKeyStatistic::Rate), "hotkey:3:rate");
    }
}
