//! Makes a run that fails smaller: fewer faults, fewer clients, fewer requests.

use herdwick_sim::Profile;

use super::run::{FaultReport, FaultRun};
use crate::run::RunError;

/// Runs that are tried, at most.
const TRIES_MAX: usize = 120;

/// A run that fails, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shrunk {
    /// The run.
    pub run: FaultRun,
    /// What is wrong in it.
    pub violation: String,
    /// Runs that were tried.
    pub tries: usize,
}

/// Makes `run`, whose failure is in `report`, smaller while it still fails, in whatever way.
///
/// # Errors
/// [`RunError`].
pub fn shrink(run: &FaultRun, report: &FaultReport, profile: &Profile) -> Result<Shrunk, RunError> {
    let violation = report.violation.clone().unwrap_or_default();
    let mut search = Search {
        profile,
        best: Shrunk {
            run: run.clone(),
            violation,
            tries: 0,
        },
        happened: report.happened.clone(),
        begun: report.begun,
    };
    search.drop_requests()?;
    // From here on the run lists its faults, so that some of them can be left out.
    search.keep_faults(search.happened.clone())?;
    search.drop_faults()?;
    search.drop_clients()?;
    search.drop_requests()?;
    search.drop_faults()?;
    Ok(search.best)
}

struct Search<'a> {
    profile: &'a Profile,
    best: Shrunk,
    /// Faults and requests of the best run.
    happened: Vec<u64>,
    begun: u64,
}

impl Search<'_> {
    /// Keeps a run if it fails. Returns whether it does.
    fn attempt(&mut self, run: &FaultRun) -> Result<bool, RunError> {
        if self.best.tries >= TRIES_MAX {
            return Ok(false);
        }
        self.best.tries += 1;
        let report = run.on(self.profile)?;
        let Some(violation) = report.violation else {
            return Ok(false);
        };
        self.best.run = run.clone();
        self.best.violation = violation;
        self.happened = report.happened;
        self.begun = report.begun;
        Ok(true)
    }

    fn keep_faults(&mut self, faults: Vec<u64>) -> Result<bool, RunError> {
        let run = FaultRun {
            only: Some(faults),
            ..self.best.run.clone()
        };
        self.attempt(&run)
    }

    /// Ends the run where it failed.
    fn drop_requests(&mut self) -> Result<bool, RunError> {
        let run = FaultRun {
            operations: self.begun.min(self.best.run.operations),
            ..self.best.run.clone()
        };
        self.attempt(&run)
    }

    /// Leaves out half of the faults, then a quarter, and so on.
    fn drop_faults(&mut self) -> Result<(), RunError> {
        let mut part = self.happened.len().div_ceil(2);
        while part > 0 {
            let mut from = 0;
            while from < self.happened.len() {
                let mut rest = self.happened.clone();
                rest.drain(from..(from + part).min(rest.len()));
                // If they are left out, those behind them are now at `from`.
                if !self.keep_faults(rest)? {
                    from += part;
                }
            }
            // `div_ceil` of 1 is 1 again.
            part = if part == 1 { 0 } else { part.div_ceil(2) };
        }
        Ok(())
    }

    fn drop_clients(&mut self) -> Result<(), RunError> {
        let mut part = self.best.run.clients / 2;
        while part > 0 {
            let clients = self.best.run.clients.saturating_sub(part).max(1);
            let run = FaultRun {
                clients,
                ..self.best.run.clone()
            };
            if clients == self.best.run.clients || !self.attempt(&run)? {
                part /= 2;
            }
        }
        Ok(())
    }
}
