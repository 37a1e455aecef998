use herdwick_mica::{Clock, Execute, Reply, Request, Sink, Store};

use crate::prefixes::Prefixes;

/// One worker's part of the data, and who is told of what is done to it.
pub(crate) struct Partition {
    pub(crate) store: Store,
    /// Counts by the keys' prefixes, if `stats detail` is on ...
    prefixes: Option<Box<Prefixes>>,
    /// ... and when it was on.
    laid_by: Option<Box<Prefixes>>,
}

impl Partition {
    pub(crate) fn new(store: Store) -> Self {
        Self {
            store,
            prefixes: None,
            laid_by: None,
        }
    }

    /// Begins to count by prefix, or ends: what was counted stays.
    pub(crate) fn detail(&mut self, on: bool) {
        if on && self.prefixes.is_none() {
            self.prefixes = Some(self.laid_by.take().unwrap_or_default());
        } else if !on && self.prefixes.is_some() {
            self.laid_by = self.prefixes.take();
        }
    }

    /// What was counted by prefix.
    pub(crate) fn counted(&self) -> Option<&Prefixes> {
        self.prefixes.as_deref().or(self.laid_by.as_deref())
    }

    /// Makes all counters of events begin anew.
    pub(crate) fn reset(&mut self) {
        self.store.reset_counters();
        self.laid_by = None;
        if let Some(prefixes) = &mut self.prefixes {
            **prefixes = Prefixes::default();
        }
    }
}

impl Execute for Partition {
    #[inline]
    fn execute(&mut self, clock: Clock, batch: &[Request<'_>], sink: &mut impl Sink) {
        match &mut self.prefixes {
            None => self.store.execute(clock, batch, sink),
            Some(prefixes) => {
                let mut witness = Witness {
                    batch,
                    prefixes,
                    sink,
                };
                self.store.execute(clock, batch, &mut witness);
            }
        }
    }
}

/// Sees every reply on its way.
struct Witness<'a, S> {
    batch: &'a [Request<'a>],
    prefixes: &'a mut Prefixes,
    sink: &'a mut S,
}

impl<S: Sink> Sink for Witness<'_, S> {
    fn reply(&mut self, index: usize, reply: &Reply<'_>) {
        if let Some(request) = self.batch.get(index) {
            self.prefixes.count(request, reply.status);
        }
        self.sink.reply(index, reply);
    }

    fn has_room(&mut self, index: usize) -> bool {
        self.sink.has_room(index)
    }
}
