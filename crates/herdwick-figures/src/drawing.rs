//! A figure as measured, and why there may be none.

use std::path::PathBuf;

use herdwick_bench::{BenchError, Fabric, Manifest};
use serde::Serialize;

/// Width of every SVG.
pub(crate) const WIDTH: u32 = 900;

/// What drawing returns.
pub(crate) type Drawn<T> = Result<T, Box<dyn std::error::Error>>;

/// On what and for how long a figure is measured.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The fabric.
    pub fabric: Fabric,
    /// Seconds for all points together.
    pub seconds: f64,
    /// The program that serves, where a server is needed.
    pub program: PathBuf,
}

/// A figure, measured.
#[derive(Clone, Debug, Serialize)]
pub struct Drawing {
    /// The figure's name.
    pub name: &'static str,
    /// Its caption.
    pub title: &'static str,
    /// The fabric; empty if none has a part in it.
    pub fabric: String,
    /// The class of its figures: shm, soft, sim or hardware; empty without a fabric.
    pub word: String,
    /// The labels of the axes.
    pub axes: [&'static str; 2],
    /// Whether the y axis is logarithmic.
    pub logarithmic: bool,
    /// Whether values are bars, one beside the other at each label, and not points of lines.
    pub bars: bool,
    /// The labels of the x axis' values, if points stand at them; else x is a number.
    pub labels: Vec<String>,
    /// Series measured here.
    pub series: Vec<Line>,
    /// Series of the paper's points.
    pub paper: Vec<Line>,
    /// Rows of a table, the first its head.
    pub rows: Vec<Vec<String>>,
    /// What the paper found.
    pub found: &'static str,
    /// What was found here.
    pub here: String,
    /// Why they differ.
    pub why: &'static str,
    /// What is missing, and why.
    pub missing: Vec<String>,
    /// Requests that failed or had a wrong value, of all points.
    pub failed: u64,
    /// The machine and the options of the last point.
    pub manifest: Option<Manifest>,
    /// What it was run with, if it is simulated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulated: Option<Simulated>,
}

/// What a simulated figure was run with.
#[derive(Clone, Debug, Serialize)]
pub struct Simulated {
    /// The commit that it is built from.
    pub commit: &'static str,
    /// The profile of the RNIC and its host.
    pub profile: String,
    /// Of the network and the load.
    pub seed: u64,
    /// Virtual time that is measured for each point, after a millisecond that is not, in nanoseconds.
    pub measured_ns: u64,
    /// And for each point of FaRM-KV and Pilaf.
    pub stores_measured_ns: u64,
}

/// A series.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// Its points.
    pub points: Vec<PlotPoint>,
}

/// A point with its spread. A mean latency may lie above its 95th percentile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PlotPoint {
    /// The place on the x axis: the index of a label, or a number.
    pub x: f64,
    /// The value.
    pub y: f64,
    /// The 5th percentile of a latency, the slowest run of a rate, or the value.
    pub low: f64,
    /// The 95th percentile of a latency, the fastest run of a rate, or the value.
    pub high: f64,
    /// The median, where the value is a mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub median: Option<f64>,
}

/// Why a figure could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum FigureError {
    /// A benchmark failed.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// The time of its report was over.
    #[error(
        "the report's {minutes} minutes left no time for it: run herdwick figure {figure}, or give more (--minutes)"
    )]
    Late {
        /// The figure, as `herdwick figure` has it.
        figure: String,
        /// Minutes of the report.
        minutes: f64,
    },
}
