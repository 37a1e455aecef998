//! What the owner of a server in a cluster orders: `flush_all`, that no client and no flag refuses, and which clients
//! may use the server, by the registration of it that they have seen last.

use std::{sync::Arc, time::Duration};

use crate::{context::Context, runtime::shutdown::Shutdown};

/// How often it is looked whether the server ends.
const LOOK: Duration = Duration::from_millis(100);
/// How long a client may still read an item in the secondary store of `--offload`: its lease, and as much again.
const LEASES: Duration = Duration::from_secs(1);

/// Invalidates all items of a server, and ends the sessions of clients that know it by a registration of before.
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

    /// From now on refuses clients that know the server by another registration than one of `members`, the leases of
    /// its key in etcd. Clients that know none are not concerned. If others were admitted until now, their sessions
    /// have ended when this returns, and what they have stored is stored; the result is then `Some(true)`, else
    /// `Some(false)`. `None`: the server ends meanwhile.
    #[must_use]
    pub fn admit(&self, members: &[u64]) -> Option<bool> {
        let fence = &self.context.fence;
        let are_others = fence.admit(members);
        // A worker that has closed connections sends off what they have requested of other workers in the same pass:
        // when it carries out the second order, that is on its way.
        for _ in 0..if are_others { 2 } else { 0 } {
            fence.order();
            self.shutdown.ring();
            while !fence.wait(self.workers, LOOK) {
                if self.shutdown.is_set() {
                    return None;
                }
            }
        }
        Some(are_others)
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
