//! Points of a plan on several fabrics, measured by turns: what the verbs alone and the designs of an ECHO
//! have in common.

use std::fmt::Display;

use crate::{
    BenchError, Config, Fabric,
    compare::{manifest, rtt},
    host::Placement,
    report::{BeforeAfter, Manifest, Outcome, Report, Run, SCHEMA, Subject},
    workload::KeySpace,
};

/// A combination of parameters on a fabric that can measure it.
struct Place<P> {
    fabric: Fabric,
    point: P,
    /// The parameters that tell it from the plan's other points.
    name: String,
}

/// The points of a plan.
pub(crate) struct Points<P> {
    measured: Vec<Place<P>>,
    left_out: Vec<String>,
}

impl<P> Points<P> {
    pub(crate) fn new() -> Self {
        Self {
            measured: Vec::new(),
            left_out: Vec::new(),
        }
    }

    /// Adds a point, unless `obstacle` keeps the fabric from measuring it.
    pub(crate) fn add(
        &mut self,
        fabric: Fabric,
        (point, name): (P, String),
        obstacle: Option<impl Display>,
    ) {
        match obstacle {
            None => self.measured.push(Place {
                fabric,
                point,
                name,
            }),
            Some(why) => self.left_out.push(format!("{name} over {fabric}: {why}")),
        }
    }

    /// Returns the text about the points that a fabric cannot measure, if there are any.
    pub(crate) fn left_out(&self) -> Option<String> {
        let mut texts = self.left_out.clone();
        // Points that differ in what a fabric's obstacle does not depend on have the same text.
        texts.dedup();
        (!texts.is_empty()).then(|| texts.join("; "))
    }

    /// Whether there is no point that a fabric can measure.
    pub(crate) fn is_empty(&self) -> bool {
        self.measured.is_empty()
    }
}

/// What all runs have in common.
pub(crate) struct Study<'a> {
    pub(crate) config: &'a Config,
    pub(crate) space: KeySpace,
    pub(crate) placement: &'a Placement,
}

impl Study<'_> {
    /// Measures the points, and reports the outcome of each. `run` gets the text that its progress has.
    pub(crate) fn report<P: Copy, T>(
        &self,
        points: &Points<P>,
        fabrics: &[Fabric],
        run: impl FnMut(Fabric, P, String) -> Result<(Run, T), BenchError>,
        outcome: impl Fn(Fabric, &P, Vec<(Run, T)>) -> Outcome,
    ) -> Result<Report, BenchError> {
        let before = rtt(self.placement);
        let runs = self.runs(&points.measured, run)?;
        let outcomes = points.measured.iter().zip(runs);
        let outcomes = outcomes.map(|(place, runs)| outcome(place.fabric, &place.point, runs));
        let lines = BeforeAfter::lines(before, rtt(self.placement));
        let mut manifest = Manifest {
            left_out: points.left_out(),
            ..manifest(self.config, self.placement, fabrics, lines)
        };
        manifest.knobs.workload = WORKLOAD.to_owned();
        Ok(Report {
            schema: SCHEMA,
            manifest,
            results: outcomes.collect(),
        })
    }

    /// Runs all points in turn, again for each run, so that drift of the machine affects all alike.
    fn runs<P: Copy, T>(
        &self,
        points: &[Place<P>],
        mut run: impl FnMut(Fabric, P, String) -> Result<(Run, T), BenchError>,
    ) -> Result<Vec<Vec<(Run, T)>>, BenchError> {
        let mut runs: Vec<_> = points.iter().map(|_| Vec::new()).collect();
        let count = self.config.runs;
        for turn in 1..=count {
            for (place, runs) in points.iter().zip(&mut runs) {
                let Place {
                    fabric,
                    point,
                    name,
                } = place;
                let name = format!("{name} over {fabric}, {turn}/{count}");
                let before = rtt(self.placement);
                let (mut measured, extra) = run(*fabric, *point, name)?;
                measured.line_rtt_ns = BeforeAfter::lines(before, rtt(self.placement));
                runs.push((measured, extra));
            }
        }
        Ok(runs)
    }
}

/// How reports name the workload of a point: there are no reads and updates of keys.
const WORKLOAD: &str = "verb";

/// Returns what every point's subject says of its fabric and its workload.
pub(crate) fn subject(fabric: Fabric) -> Subject {
    Subject {
        fabric: fabric.name().to_owned(),
        word: fabric.word().name().to_owned(),
        workload: WORKLOAD.to_owned(),
        ..Subject::default()
    }
}
