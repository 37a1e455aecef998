//! The composed names of `stats workers`, `stats hotkeys` and `stats latency`: the server writes them, and programs read
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
const LATENCY: &str = "latency:";

/// A statistic of how long the requests of a command took over a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatencyStatistic {
    /// Requests whose time was measured.
    Count,
    /// The mean.
    Mean,
    /// What half of the requests did not exceed.
    P50,
    /// What 99 % of the requests did not exceed.
    P99,
    /// What 99.9 % of the requests did not exceed.
    P999,
    /// The longest time.
    Max,
}

impl LatencyStatistic {
    /// All, in the order of `stats latency`.
    pub const ALL: [Self; 6] = [
        Self::Count,
        Self::Mean,
        Self::P50,
        Self::P99,
        Self::P999,
        Self::Max,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Mean => "mean",
            Self::P50 => "p50",
            Self::P99 => "p99",
            Self::P999 => "p999",
            Self::Max => "max",
        }
    }
}

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

/// Returns the name of a statistic of `command` over `transport` in `stats latency`.
#[must_use]
pub fn of_latency(transport: &str, command: &str, statistic: LatencyStatistic) -> String {
    format!("{LATENCY}{transport}:{command}:{}", statistic.name())
}

/// Returns the transport, the command and the statistic of a name in `stats latency`.
#[must_use]
pub fn latency_of(name: &str) -> Option<(&str, &str, LatencyStatistic)> {
    let (transport, rest) = name.strip_prefix(LATENCY)?.split_once(':')?;
    let (command, what) = rest.split_once(':')?;
    let mut all = LatencyStatistic::ALL.into_iter();
    let statistic = all.find(|statistic| statistic.name() == what)?;
    Some((transport, command, statistic))
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
        let name = of_latency("shm", "get", LatencyStatistic::P999);
        assert_eq!(name, "latency:shm:get:p999");
        let expected = ("shm", "get", LatencyStatistic::P999);
        assert_eq!(latency_of(&name), Some(expected));
        for other in ["latency:", "latency:shm:get", "latency:shm:get:p1", "items"] {
            assert_eq!(latency_of(other), None, "{other}");
        }
    }
}
