//! CPU affinity of threads: what is allowed, and a thread that is pinned to one.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::settings::error::{StartError, refused};

/// Returns the CPUs that this process may use.
pub(crate) fn allowed_cpus() -> Vec<usize> {
    // Fails only on a host with more CPUs than the set can hold. Then the default is one worker,
    // and `-t` sets more.
    let Ok(set) = sched_getaffinity(None) else {
        return vec![0];
    };
    (0..CpuSet::MAX_CPU)
        .filter(|&cpu| set.is_set(cpu))
        .collect()
}

/// Calls `start` with the affinity set to `cpu`, if one is given; threads started by it inherit
/// that.
pub(crate) fn on_cpu(
    cpu: Option<usize>,
    start: impl FnOnce() -> Result<(), StartError>,
) -> Result<(), StartError> {
    let Some(cpu) = cpu else {
        return start();
    };
    let failed = |errno: rustix::io::Errno| refused("to pin a worker (--pin)")(errno.into());
    let before = sched_getaffinity(None).map_err(failed)?;
    let mut set = CpuSet::new();
    set.set(cpu);
    // Set on this thread before the start, rather than by the new thread, so that a failure is
    // reported here.
    sched_setaffinity(None, &set).map_err(failed)?;
    let started = start();
    sched_setaffinity(None, &before).map_err(failed)?;
    started
}
