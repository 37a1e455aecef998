//! The families of the metrics page that several statistics share, and those that none supplies
//! alone.

use super::statistic::{Family, StatisticKind};

const fn family(name: &'static str, kind: StatisticKind, help: &'static str) -> Family {
    Family { name, kind, help }
}

pub(crate) static UP: Family = family(
    "memcached_up",
    StatisticKind::Gauge,
    "Whether the server answers.",
);
pub(crate) static VERSION: Family =
    family("memcached_version", StatisticKind::Gauge, "The version.");
pub(crate) static COMMANDS: Family = family(
    "memcached_commands_total",
    StatisticKind::Counter,
    "Requests by command and outcome.",
);
pub(crate) static CLASS_COMMANDS: Family = family(
    "memcached_slab_commands_total",
    StatisticKind::Counter,
    "Requests by command and outcome.",
);
pub(crate) static LRU_HITS: Family = family(
    "memcached_slab_lru_hits_total",
    StatisticKind::Counter,
    "Reads that found an item, by memcached's segment.",
);
pub(crate) static FABRIC_REQUESTS: Family = family(
    "herdwick_fabric_requests_total",
    StatisticKind::Counter,
    "Requests executed, by the way they came in and the worker that executed them.",
);
pub(crate) static FABRIC_BATCHES: Family = family(
    "herdwick_fabric_batches_total",
    StatisticKind::Counter,
    "Batches that these requests were executed in.",
);
pub(crate) static DROPS: Family = family(
    "herdwick_drops_total",
    StatisticKind::Counter,
    "What was refused, dropped or lost, or failed, by the way it came in and the reason.",
);
pub(crate) static EVENTS: Family = family(
    "herdwick_fabric_events_total",
    StatisticKind::Counter,
    "What else fabrics counted: requests and packets that came again or otherwise than plainly, by fabric.",
);
pub(crate) static CLOVER: Family = family(
    "herdwick_clover_total",
    StatisticKind::Counter,
    "What the engine clover has done, by what.",
);
pub(crate) static LEASES_BY_PATH: Family = family(
    "herdwick_leases_by_path_total",
    StatisticKind::Counter,
    "Leases granted since the start, by how their requests travel.",
);
pub(crate) static LEASE_FAILURES: Family = family(
    "herdwick_lease_failures_total",
    StatisticKind::Counter,
    "Claims refused and leases ended by force, by reason.",
);
pub(crate) static REQUEST_DURATION: Family = family(
    "herdwick_request_duration_seconds",
    StatisticKind::Histogram,
    "How long requests took in the server, by command and the way they came in.",
);
pub(crate) static HOT_KEYS: Family = family(
    "herdwick_hot_key_requests_per_second",
    StatisticKind::Gauge,
    "Requests for each of the keys asked for most, estimated over 10 to 20 seconds.",
);
