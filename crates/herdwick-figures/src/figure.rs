//! What a figure consists of.

use herdwick_bench::{Design, Direction, Level, System, Verb, VerbTransport};

/// A figure of the paper.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// `2` to `14`, or `table 1`.
    pub name: &'static str,
    /// Its caption.
    pub title: &'static str,
    /// The label of the x axis.
    pub x: &'static str,
    /// The values of the x axis.
    pub sweep: Sweep,
    /// What the y axis shows.
    pub measure: Measure,
    /// Its series, by the paper's names.
    pub series: &'static [SeriesSpec],
    /// Points of the paper that its text gives as numbers.
    pub paper: &'static [PaperPoint],
    /// What the paper found.
    pub found: &'static str,
    /// Why another fabric finds something else.
    pub why: &'static str,
    /// What of the figure this program cannot measure.
    pub missing: Option<&'static str>,
}

/// A series: its name in the paper, and what to measure.
#[derive(Debug)]
pub struct SeriesSpec {
    /// As in the paper's legend.
    pub name: &'static str,
    /// What to measure at each value of the x axis.
    pub load: Load,
}

/// A point of the paper: series, x and y.
#[derive(Debug)]
pub struct PaperPoint {
    /// The series.
    pub series: &'static str,
    /// The value of the x axis.
    pub x: f64,
    /// The value of the y axis.
    pub y: f64,
    /// The section that states it.
    pub section: &'static str,
}

/// The values of the x axis.
#[derive(Clone, Copy, Debug)]
pub enum Sweep {
    /// Bytes of a payload or value.
    Bytes(&'static [usize]),
    /// Designs of an ECHO, and their names.
    Designs(&'static [(Design, &'static str)]),
    /// Threads at both sides.
    Threads(&'static [usize]),
    /// CPU cores of the server.
    Cores(&'static [usize]),
    /// Client threads.
    Clients(&'static [usize]),
    /// Requests in flight of one client: a growing load.
    Windows(&'static [usize]),
    /// Workers of the server.
    Workers(&'static [usize]),
    /// Percent of PUTs.
    PutPercent(&'static [u8]),
    /// Partitions, of so many.
    Partitions(usize),
    /// Nothing is swept: the figure is drawn from constants, or is a table.
    Fixed,
}

/// What a value of the x axis sets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SweepPoint {
    /// Bytes of a payload or value, 32 where they are not swept.
    pub(crate) bytes: usize,
    pub(crate) threads: Option<usize>,
    pub(crate) clients: Option<usize>,
    pub(crate) window: Option<usize>,
    pub(crate) workers: Option<usize>,
    pub(crate) put_percent: Option<u8>,
}

impl Sweep {
    /// Returns what the value at `index` sets.
    pub(crate) fn at(self, index: usize) -> SweepPoint {
        let mut point = SweepPoint {
            bytes: 32,
            threads: None,
            clients: None,
            window: None,
            workers: None,
            put_percent: None,
        };
        match self {
            Self::Bytes(values) => point.bytes = values[index],
            Self::Threads(values) => point.threads = Some(values[index]),
            Self::Clients(values) => point.clients = Some(values[index]),
            Self::Windows(values) => point.window = Some(values[index]),
            Self::Workers(values) => point.workers = Some(values[index]),
            Self::PutPercent(values) => point.put_percent = Some(values[index]),
            Self::Designs(_) | Self::Cores(_) | Self::Partitions(_) | Self::Fixed => (),
        }
        point
    }
}

/// What the y axis shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Millions of operations a second.
    Mops,
    /// Median latency, with the 5th and the 95th percentile. On a host that is shared, one preemption
    /// is longer than a thousand verbs, and would decide a mean.
    LatencyUs,
    /// Mean latency over the throughput reached, with the median and the 5th and the 95th percentile.
    LatencyOverMops,
    /// Load relative to the mean of all.
    Relative,
}

/// What a series measures at a value of the x axis.
#[derive(Clone, Copy, Debug)]
pub enum Load {
    /// A verb.
    Verb {
        /// The verb.
        verb: Verb,
        /// Its transport.
        transport: VerbTransport,
        /// Who posts.
        direction: Direction,
        /// Whether the payload is inlined; `None`: where it fits.
        inline: Option<bool>,
        /// Whether all post to all.
        all_to_all: bool,
        /// Verbs outstanding; one of them is signaled.
        window: usize,
    },
    /// ECHO in a design of Fig 5.
    Echo {
        /// How requests and replies travel, unless the x axis gives it.
        design: Design,
        /// The last of the optimizations, which are added one at a time; `None`: all that the fabric has.
        level: Option<Level>,
        /// Messages in flight.
        window: usize,
        /// Random memory accesses of the server for a request.
        accesses: usize,
        /// Whether they are prefetched.
        prefetch: bool,
    },
    /// A whole server.
    Herd {
        /// Requests in flight of each client.
        window: usize,
        /// Percent of PUTs, unless the x axis gives it.
        put_percent: u8,
    },
    /// Another system, in this process.
    Other {
        /// The system.
        system: System,
        /// Requests in flight of each client.
        window: usize,
        /// Percent of PUTs, unless the x axis gives it.
        put_percent: u8,
    },
    /// The share of requests of each partition: Zipf .99, or uniform.
    Partitions {
        /// Whether keys are drawn from a Zipf distribution.
        zipf: bool,
    },
}

impl Figure {
    /// Returns the labels of the x axis: the values of the sweep, and between them those that the paper alone
    /// has points at.
    #[must_use]
    pub fn labels(&self) -> Vec<String> {
        let mut labels = self.sweep.labels();
        // Their points of the paper are at a throughput or at the index of a design, which are no
        // labels.
        if self.measure == Measure::LatencyOverMops || matches!(self.sweep, Sweep::Designs(_)) {
            return labels;
        }
        for x in self.paper.iter().map(|point| point.x) {
            let number = |label: &String| label.parse().unwrap_or(f64::NAN);
            let at = labels.iter().take_while(|label| number(label) < x).count();
            if labels.get(at).map(number) != Some(x) {
                labels.insert(at, x.to_string());
            }
        }
        labels
    }

    /// Returns whether its values stand apart, so that no line may join them.
    #[must_use]
    pub fn has_bars(&self) -> bool {
        matches!(self.sweep, Sweep::Designs(_) | Sweep::PutPercent(_))
    }

    /// Returns whether it is measured on a fabric, for as long as is asked; if not, it is drawn from constants
    /// or counted.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        !matches!(self.sweep, Sweep::Partitions(_)) && self.name != "8"
    }
}

impl Measure {
    /// Whether values far apart matter alike, so that the axis is logarithmic.
    #[must_use]
    pub fn is_logarithmic(self) -> bool {
        self == Self::LatencyOverMops
    }

    /// The label of the y axis.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Mops => "throughput (Mops)",
            Self::LatencyUs => "latency, median (us)",
            Self::LatencyOverMops => "latency, mean (us); dash: median",
            Self::Relative => "load (mean of all = 1)",
        }
    }
}

impl Sweep {
    /// Returns the labels of the x axis, one for each value.
    #[must_use]
    pub fn labels(&self) -> Vec<String> {
        let numbers = |values: &[usize]| values.iter().map(ToString::to_string).collect();
        match self {
            Self::Bytes(values)
            | Self::Threads(values)
            | Self::Cores(values)
            | Self::Clients(values)
            | Self::Windows(values)
            | Self::Workers(values) => numbers(values),
            Self::PutPercent(values) => values.iter().map(ToString::to_string).collect(),
            Self::Partitions(count) => (1..=*count).map(|n| n.to_string()).collect(),
            Self::Designs(designs) => designs.iter().map(|(_, name)| (*name).to_owned()).collect(),
            Self::Fixed => Vec::new(),
        }
    }
}
