//! Points of a figure that could not be measured, and why.

use herdwick_bench::{BenchError, DriveError};

use crate::drawing::{Drawing, FigureError};

/// Series, labels and reason; points of one series that fail alike are reported once.
#[derive(Default)]
pub(crate) struct Reasons(Vec<(&'static str, Vec<String>, String)>);

impl Reasons {
    pub(crate) fn add(&mut self, series: &'static str, label: &str, reason: String) {
        let known = self.0.iter_mut();
        let mut known = known.filter(|(name, _, said)| *name == series && *said == reason);
        match known.next() {
            Some((_, labels, _)) => labels.push(label.to_owned()),
            None => self.0.push((series, vec![label.to_owned()], reason)),
        }
    }

    /// Returns a line for each reason.
    pub(crate) fn lines(self) -> impl Iterator<Item = String> {
        let all = self.0.into_iter();
        all.map(|(series, at, why)| format!("{series} at {}: {why}", at.join(", ")))
    }
}

/// Points that could not be measured.
#[derive(Default)]
pub(crate) struct Failures {
    reasons: Reasons,
    /// The first failure that is not for what the fabric or system lacks.
    first: Option<BenchError>,
}

impl Failures {
    pub(crate) fn add(&mut self, series: &'static str, label: &str, error: BenchError) {
        self.reasons.add(series, label, error.to_string());
        if self.first.is_none() && !cannot_here(&error) {
            self.first = Some(error);
        }
    }

    /// Adds the reasons to the drawing.
    ///
    /// # Errors
    /// The first failure, if nothing was measured.
    pub(crate) fn named(self, mut drawing: Drawing) -> Result<Drawing, FigureError> {
        let measured = drawing.manifest.is_some();
        if let Some(error) = self.first.filter(|_| !measured) {
            return Err(error.into());
        }
        drawing.missing.extend(self.reasons.lines());
        Ok(drawing)
    }
}

/// Whether this fabric or system cannot carry what a point needs.
pub(crate) fn cannot_here(error: &BenchError) -> bool {
    matches!(
        error,
        BenchError::Verb(_) | BenchError::Design(_) | BenchError::Drive(DriveError::TooLarge(_))
    )
}
