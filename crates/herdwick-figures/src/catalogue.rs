//! The figures of the paper (Kalia, Kaminsky, Andersen: "Using RDMA Efficiently for Key-Value Services",
//! SIGCOMM'14): axes, series, and the points that its text gives.

use herdwick_bench::{
    Design, Direction, EmulatedSystem, FarmValues, Level, System, Verb, VerbTransport,
};

use crate::figure::{Figure, Load, Measure, PaperPoint, SeriesSpec, Sweep};

/// Payloads of the figures of verbs.
const PAYLOADS: Sweep = Sweep::Bytes(&[8, 16, 32, 64, 128, 256, 512, 1024]);
/// Payloads that show the lines of 64 bytes in which a CPU stores to an RNIC.
const FINE_PAYLOADS: Sweep =
    Sweep::Bytes(&[8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256]);
/// Verbs in flight where throughput is measured.
const WINDOW: usize = 32;

const OUTBOUND: &str = "Nothing here has PIO or DMA. Over shared memory the CPU that posts stores the \
payload of a WRITE or a SEND, and loads that of a READ, inlined or not; a software RNIC pays for each packet.";
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

const fn other(name: &'static str, system: System, put_percent: u8) -> SeriesSpec {
    SeriesSpec {
        name,
        load: Load::Other {
            system,
            window: SYSTEM_WINDOW,
            put_percent,
        },
    }
}

const fn echo(
    name: &'static str,
    design: Design,
    (window, accesses, prefetch): (usize, usize, bool),
) -> SeriesSpec {
    SeriesSpec {
        name,
        load: Load::Echo {
            design,
            level: None,
            window,
            accesses,
            prefetch,
        },
    }
}

/// ECHO with the optimizations up to one, in the designs of the x axis.
const fn optimized(name: &'static str, level: Level) -> SeriesSpec {
    SeriesSpec {
        name,
        load: Load::Echo {
            // The x axis gives the design in its place.
            design: Design::SendSend,
            level: Some(level),
            window: WINDOW,
            accesses: 0,
            prefetch: false,
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

const fn paper_herd(name: &'static str, window: usize) -> SeriesSpec {
    SeriesSpec {
        name,
        load: Load::Other {
            system: System::HerdPaper,
            window,
            put_percent: 5,
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

/// Requests in flight where whole systems are compared.
const SYSTEM_WINDOW: usize = 128;

const PILAF_EM_OPT: System = System::Emulated(EmulatedSystem::PilafOpt);
const FARM_EM: System = System::Emulated(EmulatedSystem::Farm);
const FARM_EM_VAR: System = System::Emulated(EmulatedSystem::FarmVar);

/// HERD with the request format and the pipeline of the paper.
const PAPER_HERD: &str = "HERD (paper's format)";

/// The systems of Figures 9 to 11, and the real ones that the paper emulates.
const SYSTEMS: &[SeriesSpec] = &[
    other("Pilaf-em-OPT", PILAF_EM_OPT, 5),
    other("FaRM-em", FARM_EM, 5),
    other("FaRM-em-VAR", FARM_EM_VAR, 5),
    herd("HERD", SYSTEM_WINDOW, 5),
    other(PAPER_HERD, System::HerdPaper, 5),
    other("Pilaf", System::Pilaf, 5),
    other("FaRM-KV", System::Farm(FarmValues::Inline), 5),
    other("FaRM-KV-VAR", System::Farm(FarmValues::OutOfTable), 5),
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
        why: "A cell is the rate at which the verb ran here. A SEND needs a CPU at its receiver, which posts \
              RECVs; a WRITE or a READ over shared memory does not.",
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
            echo("ECHO", Design::WriteWrite, (1, 0, false)),
        ],
        paper: &[],
        found: "An unsignaled WRITE takes about half of a READ: an ECHO of two takes as long as one READ, \
                and inlining makes small WRITEs much faster.",
        why: "Over shared memory the CPU that posts does the work of both RNICs: a WRITE is a few stores and a \
READ a few loads, neither of which waits for another CPU; an ECHO does, twice.",
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
            said("WRITE-UC", 8.0, 35.0, "3.2.1"),
            said("WRITE-UC", 16.0, 35.0, "3.2.1"),
            said("WRITE-UC", 32.0, 35.0, "3.2.1"),
            said("WRITE-UC", 64.0, 35.0, "3.2.1"),
            said("WRITE-UC", 128.0, 35.0, "3.2.1"),
            said("READ-RC", 32.0, 26.0, "3.2.1"),
        ],
        found: "WRITEs reach 35 Mops up to 128 bytes, 34 % more than READs; UC and RC are nearly identical.",
        why: POSTER,
        missing: None,
    },
    Figure {
        name: "4",
        title: "Outbound throughput of verbs",
        x: "payload (bytes)",
        sweep: FINE_PAYLOADS,
        measure: Measure::Mops,
        series: &[
            verb("WR-UC-INLINE", (Write, Uc, Outbound), Some(true), WINDOW),
            verb("SEND-UD", (Send, Ud, Outbound), None, WINDOW),
            verb("WRITE-UC", (Write, Uc, Outbound), Some(false), WINDOW),
            verb("READ-RC", (Read, Rc, Outbound), None, WINDOW),
        ],
        paper: &[
            said("WR-UC-INLINE", 8.0, 35.0, "3.2.2"),
            said("READ-RC", 32.0, 22.0, "3.2.2"),
        ],
        found: "Small inlined WRITEs and SENDs are much faster than READs; above 28 bytes PIO limits them.",
        why: OUTBOUND,
        missing: None,
    },
    Figure {
        name: "5",
        title: "Throughput of ECHOs with 32-byte messages",
        x: "requests / replies",
        sweep: Sweep::Designs(&[
            (Design::SendSend, "SEND/SEND"),
            (Design::WriteWrite, "WR/WR"),
            (Design::WriteSend, "WR/SEND"),
            (Design::SendSendUd, "SEND/SEND (UD)"),
        ]),
        measure: Measure::Mops,
        series: &[
            optimized("basic", Level::Basic),
            optimized("+unsignaled", Level::Unsignaled),
            optimized("+unreliable", Level::Unreliable),
            optimized("+inlined", Level::Inlined),
        ],
        paper: &[
            said("+inlined", 0.0, 21.0, "3.2.2"),
            said("+inlined", 1.0, 26.0, "3.2.2"),
            said("+inlined", 2.0, 26.0, "3.2.2"),
        ],
        found: "With all optimizations WRITE/SEND is as fast as WRITE/WRITE, and SEND/SEND reaches four \
                fifths of that.",
        why: "Completions, transports and inlining cost an RNIC more than they cost software, so the \
              optimizations differ less here; what a RECV costs shows on every fabric.",
        missing: None,
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
        paper: &[said("Out-WRITE-UC", 16.0, 7.35, "3.3")],
        found: "Outbound WRITEs fall to 21 % at 256 queue pairs, which no longer fit the RNIC's cache; \
                inbound WRITEs and SENDs over UD scale well.",
        why: "Here nothing has a small cache of queue pairs; but more threads than CPUs share them.",
        missing: None,
    },
    Figure {
        name: "7",
        title: "Effect of prefetching on throughput",
        x: "CPU cores",
        sweep: Sweep::Cores(&[1]),
        measure: Measure::Mops,
        series: &[
            echo("N = 2, no prefetch", Design::WriteSend, (WINDOW, 2, false)),
            echo("N = 2, prefetch", Design::WriteSend, (WINDOW, 2, true)),
            echo("N = 8, no prefetch", Design::WriteSend, (WINDOW, 8, false)),
            echo("N = 8, prefetch", Design::WriteSend, (WINDOW, 8, true)),
        ],
        paper: &[said("N = 8, prefetch", 5.0, 26.0, "4.1")],
        found: "With prefetching, 5 cores deliver the peak throughput even with 8 random accesses a request.",
        why: "One core serves here, and the client needs another; what prefetching gains on it is the \
              paper's finding, how many cores fill an RNIC is not.",
        missing: Some("This ECHO has a server of one core: the points for 2 to 5 cores."),
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
        sweep: Sweep::PutPercent(&[0, 5, 50, 100]),
        measure: Measure::Mops,
        series: SYSTEMS,
        paper: &[
            said(PAPER_HERD, 5.0, 26.0, "5.3"),
            said(PAPER_HERD, 50.0, 26.0, "5.3"),
            said(PAPER_HERD, 100.0, 26.0, "5.3"),
            said("Pilaf-em-OPT", 0.0, 9.9, "5.3"),
            said("FaRM-em", 0.0, 17.2, "5.3"),
            said("FaRM-em-VAR", 0.0, 11.4, "5.3"),
        ],
        found: "HERD delivers 26 Mops whatever the mix, over twice what the READ-based systems deliver.",
        why: "The server's CPU limits HERD here, not an RNIC; a READ over shared memory costs the server nothing.",
        missing: None,
    },
    Figure {
        name: "10",
        title: "End-to-end throughput comparison with different value sizes",
        x: "value (bytes)",
        sweep: Sweep::Bytes(&[4, 8, 16, 32, 64, 128, 256, 512, 1000]),
        measure: Measure::Mops,
        series: SYSTEMS,
        paper: &[
            said(PAPER_HERD, 4.0, 26.0, "5.3"),
            said(PAPER_HERD, 8.0, 26.0, "5.3"),
            said(PAPER_HERD, 16.0, 26.0, "5.3"),
            said(PAPER_HERD, 32.0, 26.0, "5.3"),
        ],
        found: "HERD delivers over 26 Mops for items up to 60 bytes; large values are equal for all systems.",
        why: "The server's CPU limits HERD here, not an RNIC; a READ over shared memory costs the server nothing \
              at all, so the systems that READ are ahead as long as their READs are short.",
        missing: None,
    },
    Figure {
        name: "11",
        title: "End-to-end latency with 48-byte items and read-intensive workload",
        x: "throughput (Mops)",
        sweep: Sweep::Windows(&[1, 2, 4, 8, 16, 32, 64, 128]),
        measure: Measure::LatencyOverMops,
        series: SYSTEMS,
        paper: &[said(PAPER_HERD, 26.0, 5.0, "5.4")],
        found: "HERD delivers 26 Mops with about 5 us of mean latency.",
        why: "The load grows by the window of one client, since more clients than CPUs would wait for each \
              other. A READ over shared memory waits for no other CPU.",
        missing: None,
    },
    Figure {
        name: "12",
        title: "Throughput with variable number of client processes and different window sizes",
        x: "client processes",
        sweep: Sweep::Clients(&[1, 2, 4, 8, 16]),
        measure: Measure::Mops,
        series: &[
            herd("WS=4", 4, 5),
            herd("WS=16", 16, 5),
            paper_herd("WS=4 (paper's format)", 4),
            paper_herd("WS=16 (paper's format)", 16),
        ],
        paper: &[said("WS=4 (paper's format)", 260.0, 26.0, "5.6")],
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
        series: &[
            herd("HERD", SYSTEM_WINDOW, 50),
            other(PAPER_HERD, System::HerdPaper, 50),
            other("Pilaf-em-OPT (PUT)", PILAF_EM_OPT, 100),
            other("FaRM-em (PUT)", FARM_EM, 100),
        ],
        paper: &[
            said(PAPER_HERD, 1.0, 6.3, "5.7"),
            said(PAPER_HERD, 5.0, 24.7, "5.5"),
            said(PAPER_HERD, 6.0, 25.9, "5.7"),
        ],
        found: "One core delivers 6.3 Mops, and 5 cores over 95 % of the maximum.",
        why: "Clients take CPUs of the same host.",
        missing: Some(
            "The emulated systems, and HERD with the paper's format, have a server of one core.",
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
    // `figure` first, since it begins with `fig` as well.
    let wanted = wanted
        .strip_prefix("figure")
        .or_else(|| wanted.strip_prefix("fig"))
        .unwrap_or(&wanted);
    FIGURES.iter().find(|figure| plain(figure.name) == wanted)
}
