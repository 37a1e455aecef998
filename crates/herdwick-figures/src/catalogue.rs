//! The figures of the paper (Kalia, Kaminsky, Andersen: "Using RDMA Efficiently for Key-Value Services",
//! SIGCOMM'14): axes, series, and the points that its text gives.

use herdwick_bench::{Direction, FarmValues, Verb, VerbTransport};

use crate::figure::{Figure, Load, Measure, PaperPoint, SeriesSpec, Sweep};

/// Payloads of the figures of verbs.
const PAYLOADS: Sweep = Sweep::Bytes(&[8, 16, 32, 64, 128, 256, 512, 1024]);
/// Verbs in flight where throughput is measured.
const WINDOW: usize = 32;

const SOFTWARE: &str = "A software RNIC pays for each packet, not for PIO, DMA or its cache of queue \
pairs, so transports and inlining differ less.";
const POSTER: &str = "Over shared memory the CPU that posts does the work of both RNICs: a WRITE is a few \
stores, a READ a few loads that miss the cache, and neither costs the other side anything.";

const fn verb(
    name: &'static str,
    (verb, transport, direction): (Verb, VerbTransport, Direction),
    inline: Option<bool>,
    window: usize,
) -> SeriesSpec {
    SeriesSpec {
        name,
        load: Load::Verb {
            verb,
            transport,
            direction,
            inline,
            all_to_all: false,
            window,
        },
    }
}

const fn all_to_all(
    name: &'static str,
    (verb, transport, direction): (Verb, VerbTransport, Direction),
) -> SeriesSpec {
    SeriesSpec {
        name,
        load: Load::Verb {
            verb,
            transport,
            direction,
            inline: None,
            all_to_all: true,
            window: WINDOW,
        },
    }
}

const fn farm(name: &'static str, values: FarmValues, window: usize) -> SeriesSpec {
    SeriesSpec {
        name,
        load: Load::Farm {
            values,
            window,
            put_percent: 5,
        },
    }
}

const fn herd(name: &'static str, window: usize, put_percent: u8) -> SeriesSpec {
    SeriesSpec {
        name,
        load: Load::Herd {
            window,
            put_percent,
        },
    }
}

const fn said(series: &'static str, x: f64, y: f64, section: &'static str) -> PaperPoint {
    PaperPoint {
        series,
        x,
        y,
        section,
    }
}

use Direction::{Inbound, Outbound};
use Verb::{Read, Send, Write};
use VerbTransport::{Rc, Uc, Ud};

const OTHERS: &str = "The emulations Pilaf-em-OPT, FaRM-em and FaRM-em-VAR, and Pilaf, are not among the \
systems that this program measures; their points are the paper's. FaRM-KV and FaRM-KV-VAR are whole stores \
that answer from a table.";
/// Requests in flight where whole systems are compared.
const SYSTEM_WINDOW: usize = 128;

/// The systems of Figures 9 and 10.
const SYSTEMS: &[SeriesSpec] = &[
    herd("HERD", SYSTEM_WINDOW, 5),
    farm("FaRM-KV", FarmValues::Inline, SYSTEM_WINDOW),
    farm("FaRM-KV-VAR", FarmValues::OutOfTable, SYSTEM_WINDOW),
];

/// All figures, in the order of the paper.
pub static FIGURES: &[Figure] = &[
    Figure {
        name: "table 1",
        title: "Operations supported by each connection type",
        x: "",
        sweep: Sweep::Fixed,
        measure: Measure::Mops,
        series: &[],
        paper: &[],
        found: "UC does not support READs, and UD supports neither READs nor WRITEs.",
        why: "A cell is the rate at which the verb ran here.",
        missing: None,
    },
    Figure {
        name: "2",
        title: "Latency of verbs and ECHO operations",
        x: "payload (bytes)",
        sweep: PAYLOADS,
        measure: Measure::LatencyUs,
        series: &[
            verb("WR-INLINE", (Write, Rc, Inbound), Some(true), 1),
            verb("WRITE", (Write, Rc, Inbound), Some(false), 1),
            verb("READ", (Read, Rc, Inbound), None, 1),
            SeriesSpec {
                name: "ECHO",
                load: Load::Echo { window: 1 },
            },
        ],
        paper: &[],
        found: "An unsignaled WRITE takes about half of a READ: an ECHO of two takes as long as one READ, \
                and inlining makes small WRITEs much faster.",
        why: "Over shared memory the CPU that posts does the work of both RNICs, and an unsignaled WRITE is a few \
stores. ECHO is HERD's own, a WRITE and a SEND with the payload as its value.",
        missing: None,
    },
    Figure {
        name: "3",
        title: "Inbound throughput of verbs",
        x: "payload (bytes)",
        sweep: PAYLOADS,
        measure: Measure::Mops,
        series: &[
            verb("WRITE-UC", (Write, Uc, Inbound), None, WINDOW),
            verb("READ-RC", (Read, Rc, Inbound), None, WINDOW),
            verb("WRITE-RC", (Write, Rc, Inbound), None, WINDOW),
        ],
        paper: &[
            said("WRITE-UC", 32.0, 35.0, "3.2.2"),
            said("READ-RC", 32.0, 26.0, "3.2.2"),
        ],
        found: "WRITEs reach 35 Mops up to 128 bytes, 34 % more than READs; UC and RC are nearly identical.",
        why: POSTER,
        missing: None,
    },
    Figure {
        name: "4",
        title: "Outbound throughput of verbs",
        x: "payload (bytes)",
        sweep: PAYLOADS,
        measure: Measure::Mops,
        series: &[
            verb("WR-UC-INLINE", (Write, Uc, Outbound), Some(true), WINDOW),
            verb("SEND-UD", (Send, Ud, Outbound), None, WINDOW),
            verb("WRITE-UC", (Write, Uc, Outbound), Some(false), WINDOW),
            verb("READ-RC", (Read, Rc, Outbound), None, WINDOW),
        ],
        paper: &[said("READ-RC", 32.0, 22.0, "3.2.2")],
        found: "Small inlined WRITEs and SENDs are much faster than READs; above 28 bytes PIO limits them.",
        why: SOFTWARE,
        missing: None,
    },
    Figure {
        name: "5",
        title: "Throughput of ECHOs with 32-byte messages",
        x: "optimizations, added one at a time",
        sweep: Sweep::Levels,
        measure: Measure::Mops,
        series: &[],
        paper: &[
            said("SEND/SEND", 3.0, 21.0, "3.2.2"),
            said("WR/WR", 3.0, 26.0, "3.2.2"),
            said("WR/SEND", 3.0, 26.0, "3.2.2"),
        ],
        found: "With all optimizations WRITE/SEND is as fast as WRITE/WRITE, and SEND/SEND reaches four \
                fifths of that.",
        why: SOFTWARE,
        missing: Some(
            "ECHO in these designs is not among the systems that this program measures; the points are the \
             paper's. `herdwick bench echo` measures HERD's own, a WRITE and a SEND with all optimizations.",
        ),
    },
    Figure {
        name: "6",
        title: "Comparison of UD and UC for all-to-all communication with 32-byte payloads",
        x: "client processes = server processes",
        sweep: Sweep::Threads(&[1, 2, 4, 8, 16]),
        measure: Measure::Mops,
        series: &[
            all_to_all("In-WRITE-UC", (Write, Uc, Inbound)),
            all_to_all("Out-WRITE-UC", (Write, Uc, Outbound)),
            all_to_all("Out-SEND-UD", (Send, Ud, Outbound)),
        ],
        paper: &[],
        found: "Outbound WRITEs fall to 21 % at 256 queue pairs, which no longer fit the RNIC's cache; \
                inbound WRITEs and SENDs over UD scale well.",
        why: "Here nothing has a small cache of queue pairs; but more threads than CPUs share them.",
        missing: None,
    },
    Figure {
        name: "7",
        title: "Effect of prefetching on throughput",
        x: "CPU cores",
        sweep: Sweep::Fixed,
        measure: Measure::Mops,
        series: &[],
        paper: &[],
        found: "With prefetching, 5 cores deliver the peak throughput even with 8 random accesses a request.",
        why: "",
        missing: Some(
            "ECHO with N random memory accesses a request, with and without prefetching, is not among the \
             systems that this program measures.",
        ),
    },
    Figure {
        name: "8",
        title: "Layout of the request region at the server",
        x: "",
        sweep: Sweep::Fixed,
        measure: Measure::Mops,
        series: &[],
        paper: &[],
        found: "N_S x N_C x W slots of 1 KB: about 6 MB for 16 servers, 200 clients and W = 2.",
        why: "Here a request has a line of 64 bytes, and what does not fit it an overflow area, so that a \
              pass over idle clients reads few cache lines.",
        missing: None,
    },
    Figure {
        name: "9",
        title: "End-to-end throughput comparison for 48-byte key-value items",
        x: "PUT (percent)",
        sweep: Sweep::PutPercent(&[5, 50, 100]),
        measure: Measure::Mops,
        series: SYSTEMS,
        paper: &[
            said("HERD", 5.0, 26.0, "5.3"),
            said("HERD", 50.0, 26.0, "5.3"),
            said("Pilaf-em-OPT", 5.0, 9.9, "5.3"),
            said("FaRM-em", 5.0, 17.2, "5.3"),
            said("FaRM-em-VAR", 5.0, 11.4, "5.3"),
        ],
        found: "HERD delivers 26 Mops whatever the mix, over twice what the READ-based systems deliver.",
        why: "The server's CPU limits HERD here, not an RNIC; a READ over shared memory costs the server nothing.",
        missing: Some(OTHERS),
    },
    Figure {
        name: "10",
        title: "End-to-end throughput comparison with different value sizes",
        x: "value (bytes)",
        sweep: Sweep::Bytes(&[4, 8, 16, 32, 64, 128, 256, 512, 1000]),
        measure: Measure::Mops,
        series: SYSTEMS,
        paper: &[said("HERD", 32.0, 26.0, "5.3")],
        found: "HERD delivers over 26 Mops for items up to 60 bytes; large values are equal for all systems.",
        why: "The server's CPU limits HERD here, not an RNIC; values beyond a line and a reply cell cost \
              more.",
        missing: Some(OTHERS),
    },
    Figure {
        name: "11",
        title: "End-to-end latency with 48-byte items and read-intensive workload",
        x: "throughput (Mops)",
        sweep: Sweep::Clients(&[1, 2, 3, 4]),
        measure: Measure::LatencyOverMops,
        series: &[
            herd("HERD", 4, 5),
            farm("FaRM-KV", FarmValues::Inline, 4),
            farm("FaRM-KV-VAR", FarmValues::OutOfTable, 4),
        ],
        paper: &[said("HERD", 26.0, 5.0, "5.4")],
        found: "HERD delivers 26 Mops with about 5 us of mean latency.",
        why: "Clients that share CPUs wait for each other: latency here is that of the scheduler.",
        missing: Some(OTHERS),
    },
    Figure {
        name: "12",
        title: "Throughput with variable number of client processes and different window sizes",
        x: "client processes",
        sweep: Sweep::Clients(&[1, 2, 4, 8, 16]),
        measure: Measure::Mops,
        series: &[herd("WS=4", 4, 5), herd("WS=16", 16, 5)],
        paper: &[],
        found: "HERD delivers its maximum for up to 260 clients; a larger window slows the decline.",
        why: "There is no RNIC whose cache is short; more clients than CPUs share them.",
        missing: None,
    },
    Figure {
        name: "13",
        title: "Throughput as a function of server CPU cores",
        x: "server cores",
        sweep: Sweep::Workers(&[1, 2]),
        measure: Measure::Mops,
        series: &[herd("HERD", SYSTEM_WINDOW, 50)],
        paper: &[said("HERD", 1.0, 6.3, "5.7")],
        found: "One core delivers 6.3 Mops, and 5 cores over 95 % of the maximum.",
        why: "Clients take CPUs of the same host.",
        missing: Some(
            "The PUTs of FaRM-em and Pilaf-em-OPT are not among the systems that this program measures.",
        ),
    },
    Figure {
        name: "14",
        title: "Per-core load under skewed and uniform workloads",
        x: "partition, the busiest first",
        sweep: Sweep::Partitions(6),
        measure: Measure::Relative,
        series: &[
            SeriesSpec {
                name: "Zipf (.99)",
                load: Load::Partitions { zipf: true },
            },
            SeriesSpec {
                name: "Uniform",
                load: Load::Partitions { zipf: false },
            },
        ],
        paper: &[],
        found: "Of 6 cores the busiest has 50 % more load than the idlest, though the most popular key is \
                10^5 times more popular than the average.",
        why: "The share of requests for each partition's keys, drawn from 8 million keys; it depends on \
              which partition the most popular keys are in.",
        missing: None,
    },
];

/// Returns the figure of this name: `3`, `fig3`, `table1`.
#[must_use]
pub fn find(name: &str) -> Option<&'static Figure> {
    let plain = |text: &str| {
        let letters = text.chars().filter(|letter| letter.is_alphanumeric());
        letters.collect::<String>().to_lowercase()
    };
    let wanted = plain(name);
    let wanted = wanted
        .strip_prefix("figure")
        .or_else(|| wanted.strip_prefix("fig"))
        .unwrap_or(&wanted);
    FIGURES.iter().find(|figure| plain(figure.name) == wanted)
}
