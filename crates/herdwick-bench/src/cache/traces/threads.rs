//! Threads: each measures one trace at a time, on a CPU of its own. What is measured by the memory of
//! the whole process runs alone.

use std::{
    collections::BTreeSet,
    sync::{
        PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread::{self, ScopedJoinHandle},
};

use crate::{
    BenchError, Progress,
    host::{Placement, pin},
    report::Outcome,
};

/// Returns the placement of the threads: server and clients share all CPUs.
pub(super) fn placement(apart: &Placement) -> Placement {
    let cpus: BTreeSet<usize> = apart.server.iter().chain(&apart.clients).copied().collect();
    let cpus: Vec<usize> = cpus.into_iter().collect();
    Placement {
        server: cpus.clone(),
        clients: cpus,
    }
}

/// Waits until no thread measures its memory. The guard keeps others from beginning to.
pub(super) fn beside(quiet: &RwLock<()>) -> RwLockReadGuard<'_, ()> {
    quiet.read().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until the other threads do nothing, and stops them while the guard is held.
pub(super) fn alone(quiet: &RwLock<()>) -> RwLockWriteGuard<'_, ()> {
    // The lock guards no data that a panic could have left broken.
    quiet.write().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `trace` for each of the names, with a CPU to which the calling thread is pinned. Returns the
/// results in the order of the names.
///
/// # Errors
/// The first error by that order; no other trace is begun after one. [`BenchError::Panicked`].
pub(super) fn measure(
    names: &[&str],
    cpus: &[usize],
    watch: &mut dyn FnMut(&Progress),
    trace: impl Fn(&str, usize, &mut dyn FnMut(&Progress)) -> Result<Vec<Outcome>, BenchError> + Sync,
) -> Result<Vec<Outcome>, BenchError> {
    let next = AtomicUsize::new(0);
    let threads = thread::scope(|scope| {
        let (sender, progress) = mpsc::sync_channel::<Progress>(1);
        let start = |&cpu| {
            let (sender, next, trace) = (sender.clone(), &next, &trace);
            scope.spawn(move || {
                pin(&[cpu]);
                // Never waits for `watch`: what does not fit is skipped.
                let mut watch = |progress: &Progress| drop(sender.try_send(progress.clone()));
                take_each(names, next, |name| trace(name, cpu, &mut watch))
            })
        };
        let threads: Vec<_> = cpus.iter().map(start).collect();
        // The loop below ends with the last sender.
        drop(sender);
        progress.iter().for_each(|progress| watch(&progress));
        let joined: Result<Vec<_>, _> = threads.into_iter().map(ScopedJoinHandle::join).collect();
        joined.map_err(|_| BenchError::Panicked)
    })?;
    let mut done = threads.into_iter().flatten().collect::<Vec<_>>();
    // The threads took the traces in no order.
    done.sort_by_key(|(at, _)| *at);
    let results: Result<Vec<_>, _> = done.into_iter().map(|(_, result)| result).collect();
    Ok(results?.concat())
}

type Done = Vec<(usize, Result<Vec<Outcome>, BenchError>)>;

/// Measures the next trace that no thread has taken, until there is none, or one fails.
fn take_each(
    names: &[&str],
    next: &AtomicUsize,
    mut trace: impl FnMut(&str) -> Result<Vec<Outcome>, BenchError>,
) -> Done {
    let mut done = Done::new();
    // Relaxed: the number alone is shared.
    while let Some(at) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|at| *at < names.len()) {
        let result = trace(names[at]);
        if result.is_err() {
            next.store(names.len(), Ordering::Relaxed);
        }
        done.push((at, result));
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::traces::file::TraceError;

    fn outcome(name: &str) -> Outcome {
        let mut outcome = Outcome::of(Default::default(), &[Default::default()]);
        name.clone_into(&mut outcome.subject.workload);
        outcome
    }

    /// The first trace ends last.
    #[test]
    fn results_are_in_the_order_of_the_names() {
        let names = ["a", "b", "c", "d"];
        let (sender, others) = mpsc::channel();
        let others = std::sync::Mutex::new(others);
        let results = measure(&names, &[0, 1], &mut |_| (), |name, _, _| {
            match name {
                "a" => others.lock().unwrap().iter().take(3).for_each(drop),
                _ => sender.send(()).unwrap(),
            }
            Ok(vec![outcome(name); 2])
        });
        let seen: Vec<String> = results
            .unwrap()
            .into_iter()
            .map(|outcome| outcome.subject.workload)
            .collect();
        assert_eq!(seen, ["a", "a", "b", "b", "c", "c", "d", "d"]);
    }

    #[test]
    fn no_trace_is_begun_after_one_that_failed() {
        let begun = AtomicUsize::new(0);
        let result = measure(&["a", "b", "c"], &[0], &mut |_| (), |name, _, _| {
            begun.fetch_add(1, Ordering::Relaxed);
            match name {
                "b" => Err(TraceError::Empty(name.to_owned()).into()),
                _ => Ok(vec![outcome(name)]),
            }
        });
        let error = result.unwrap_err().to_string();
        assert_eq!(error, TraceError::Empty("b".to_owned()).to_string());
        assert_eq!(begun.into_inner(), 2);
    }
}
