//! Invalidates all items of a server at its owner's order: `flush_all`, that no client and no flag refuses.

use std::{sync::Arc, time::Duration};

use crate::{context::Context, runtime::shutdown::Shutdown};

/// How often it is looked whether the server ends.
const LOOK: Duration = Duration::from_millis(100);
/// How long a client may still read an item in the secondary store of `--offload`: its lease, and as much again.
const LEASES: Duration = Duration::from_secs(1);

/// Invalidates all items of a server.
pub struct Invalidator {
    context: Arc<Context>,
    shutdown: Arc<Shutdown>,
    workers: usize,
}

impl Invalidator {
    pub(crate) fn new(context: &Arc<Context>, shutdown: &Arc<Shutdown>, workers: usize) -> Self {
        Self {
            context: Arc::clone(context),
            shutdown: Arc::clone(shutdown),
            workers,
        }
    }

    /// Invalidates what was stored before this is called, and returns when no client can read it: with
    /// `--offload` after a second. A flush that is pending is replaced. Returns false, and may have invalidated
    /// nothing, if the server ends meanwhile.
    #[must_use]
    pub fn invalidate_all(&self) -> bool {
        let invalidation = &self.context.tunables.invalidation;
        invalidation.order();
        self.shutdown.ring();
        while !invalidation.wait(self.workers, LOOK) {
            if self.shutdown.is_set() {
                return false;
            }
        }
        if self.context.offload.is_some() {
            // No worker is one too many: this waits for the time to pass.
            invalidation.wait(usize::MAX, LEASES);
        }
        true
    }
}
