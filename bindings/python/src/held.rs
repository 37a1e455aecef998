//! The client below a Python object, behind a lock that a forked child does not find taken.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use herdwick_mem::ForkMark;

use crate::config::Servers;

/// The client below, of one process.
#[derive(Debug)]
pub(crate) struct Held {
    process: ForkMark,
    /// `None` until the first call, and after `close`.
    servers: Mutex<Option<Servers>>,
    /// That of a forked child, where a thread that does not exist may hold the lock.
    child: OnceLock<Box<Held>>,
}

impl Default for Held {
    fn default() -> Self {
        Self {
            process: ForkMark::here(),
            servers: Mutex::default(),
            child: OnceLock::new(),
        }
    }
}

impl Held {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<Servers>> {
        let mut held = self;
        while !held.process.is_here() {
            held = held.child.get_or_init(Box::default);
        }
        // A call that panicked has left a client behind that is as good as after an error.
        held.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
