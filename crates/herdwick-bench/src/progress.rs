//! How far a measurement is: the step, its operations and its time, for a status line.

use std::{fmt, sync::mpsc, thread};

use crate::{BenchError, host::pin};

/// Progress of a measurement, for a status line that is overwritten in place.
#[derive(Clone, Debug)]
pub struct Progress {
    /// The current step.
    pub what: String,
    /// Operations answered so far.
    pub operations: u64,
    /// Seconds since the step began.
    pub seconds: f64,
    /// Operations that the step takes in total, if known.
    pub of: Option<u64>,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No time may have passed at the first report.
        let kilo = self.operations as f64 / self.seconds.max(1e-9) / 1000.0;
        write!(f, "{}: {:.1} s, {kilo:.0} kops/s", self.what, self.seconds)?;
        match self.of {
            Some(of) if of > 0 => write!(f, ", {} %", self.operations * 100 / of),
            _ => Ok(()),
        }
    }
}

/// Runs `measure` on a separate thread, which it may pin, and passes to `watch` what it reports.
///
/// # Errors
/// That of `measure`; [`BenchError::Panicked`].
pub(crate) fn on_own_thread<T: Send>(
    watch: &mut dyn FnMut(&Progress),
    measure: impl FnOnce(&mut dyn FnMut(&Progress)) -> Result<T, BenchError> + Send,
) -> Result<T, BenchError> {
    thread::scope(|scope| {
        let (sender, progress) = mpsc::sync_channel(1);
        let measuring = scope.spawn(move || {
            // Never waits for `watch`: what does not fit is skipped.
            measure(&mut |progress| drop(sender.try_send(progress.clone())))
        });
        // Ends when `measure` drops the sender.
        progress.iter().for_each(|progress| watch(&progress));
        measuring.join().unwrap_or(Err(BenchError::Panicked))
    })
}

/// Runs `measure` on a separate thread, on `cpus`.
///
/// # Errors
/// [`BenchError::Panicked`].
pub(crate) fn on_cpus<T: Send>(
    cpus: &[usize],
    measure: impl FnOnce() -> T + Send,
) -> Result<T, BenchError> {
    let pinned = move || {
        pin(cpus);
        measure()
    };
    let measured = thread::scope(|scope| scope.spawn(pinned).join());
    measured.map_err(|_| BenchError::Panicked)
}
