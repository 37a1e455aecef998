//! Points of a figure that could not be measured, and why.

use herdwick_bench::{BenchError, DriveError};

use crate::drawing::{Drawing, FigureError};

/// Points that could not be measured.
#[derive(Default)]
pub(crate) struct Failures {
    /// Series, labels and reason; points of one series that fail alike are reported once.
    reasons: Vec<(&'static str, Vec<String>, String)>,
    /// The first failure that is not for what the fabric or system lacks.
    first: Option<BenchError>,
}

impl Failures {
    pub(crate) fn add(&mut self, series: &'static str, label: &str, error: BenchError) {
        let reason = error.to_string();
        let known = self.reasons.iter_mut();
        let mut known = known.filter(|(name, _, said)| *name == series && *said == reason);
        match known.next() {
            Some((_, labels, _)) => labels.push(label.to_owned()),
            None => self.reasons.push((series, vec![label.to_owned()], reason)),
        }
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
        let said = self.reasons.into_iter();
        let said = said.map(|(series, at, why)| format!("{series} at {}: {why}", at.join(", ")));
        drawing.missing.extend(said);
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
