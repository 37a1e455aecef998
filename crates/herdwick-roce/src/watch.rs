//! Watched queue pairs: which of them were written since their last report.

use alloc::collections::VecDeque;

use herdwick_fabric::{Local, QpId, RegionId, WriteReport};

/// What a watched queue pair has to report.
pub(crate) struct Watch {
    range: Local,
    token: u64,
    /// WRITEs since the last report.
    writes: u32,
    /// Whether the queue pair is in the list of those written. What it has to report may have been
    /// dropped since.
    listed: bool,
}

/// Queue pairs with WRITEs to report, each listed once, the first written first.
pub(crate) struct WrittenQps(VecDeque<QpId>);

impl WrittenQps {
    pub(crate) fn new(limit: usize) -> Self {
        Self(VecDeque::with_capacity(limit))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Counts a WRITE of `len` bytes at `offset` of `region` that queue pair `qp` has executed, if it is
    /// watched, and this is one to report.
    #[inline]
    pub(crate) fn note(
        &mut self,
        (qp, watch): (QpId, &mut Option<Watch>),
        (region, offset, len): (RegionId, usize, usize),
    ) {
        let Some(watch) = watch else {
            return;
        };
        let Local {
            offset: start,
            len: size,
            ..
        } = watch.range;
        // The checks of the WRITE leave no sum beyond the region's end.
        if region == watch.range.region
            && offset < start.saturating_add(size)
            && start < offset + len
        {
            watch.writes = watch.writes.saturating_add(1);
            if !watch.listed {
                watch.listed = true;
                self.0.push_back(qp);
            }
        }
    }

    pub(crate) fn take_first(&mut self) -> Option<QpId> {
        self.0.pop_front()
    }

    pub(crate) fn forget(&mut self, qp: QpId) {
        self.0.retain(|other| *other != qp);
    }
}

impl Watch {
    /// Makes the watch of a queue pair that is watched by `before`, which ends.
    pub(crate) fn new(range: Local, token: u64, before: Option<&Self>) -> Self {
        Self {
            range,
            token,
            writes: 0,
            listed: before.is_some_and(|before| before.listed),
        }
    }

    /// Returns the report of a queue pair taken from the list.
    pub(crate) fn report(&mut self) -> Option<WriteReport> {
        self.listed = false;
        let writes = core::mem::take(&mut self.writes);
        let token = self.token;
        (writes > 0).then_some(WriteReport { token, writes })
    }
}
