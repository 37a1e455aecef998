//! The machine: a window of lookups, their READs, and what becomes of them.

use std::{collections::VecDeque, time::Duration};

use arrayvec::ArrayVec;
use herdwick_fabric::{
    Access, Completion, CqId, CqSpec, Device, Local, PdId, Port, PostError, QpId, QpSpec, RegionId,
    RegionSpec, Scope, SendOp, SendWr, Status, Transport,
};
use herdwick_mem::{Span, WORD};

use crate::{
    Doubt, Fetched, Judge, Outcome, READS_PER_STEP, ReadCounters, ReaderError, ReaderOptions, Step,
    Verdict, pace::Pace,
};

/// Most READs in one post.
const POSTLIST: usize = 32;
/// Completions taken by one call of [`Port::poll`].
const POLLED: usize = 32;

/// One queue pair of READs, and the lookups in flight over it.
///
/// The owner connects [`Reader::qp`], then calls [`Reader::post`] and [`Reader::poll`] in turns, and
/// drives the port. When the queue pair fails, every lookup ends as [`Outcome::Failed`], and the owner
/// makes another reader ([`Reader::destroy`]).
#[derive(Debug)]
pub struct Reader<L> {
    qp: QpId,
    cq: CqId,
    region: RegionId,
    inbox: Span,
    options: ReaderOptions,
    /// Longest READ of the fabric.
    read_bytes_max: usize,
    slots: Vec<Slot<L>>,
    free: Vec<u32>,
    /// Slots whose step waits to be posted, in order.
    due: VecDeque<u32>,
    pace: Pace,
    copy: Vec<u8>,
    failed: Option<Status>,
    /// Whether a step has completed since [`Reader::has_fallen_silent`] looked last.
    heard: bool,
    /// Since when none has, while lookups are in flight.
    silent_since: Option<Duration>,
    counters: ReadCounters,
}

#[derive(Debug)]
struct Slot<L> {
    lookup: Option<L>,
    step: Step,
    steps: u32,
    retries: u32,
    /// Whether the READs of `step` are on the way.
    posted: bool,
}

/// Why a lookup cannot begin. It is handed back.
#[derive(Debug, PartialEq, Eq)]
pub enum Begin<L> {
    /// As many lookups are in flight as [`ReaderOptions::lookups`] allows.
    Full(L),
    /// The queue pair has failed with this status.
    Failed(L, Status),
    /// The first step is too long ([`Doubt::Length`]).
    TooLong(L),
}

impl<L> Reader<L> {
    /// Makes the queue pair, its completion queue and the buffers on `port`, in `pd`.
    ///
    /// # Errors
    /// [`ReaderError`].
    pub fn create<D: Device>(
        device: &D,
        port: &mut D::Port,
        pd: PdId,
        options: &ReaderOptions,
    ) -> Result<Self, ReaderError> {
        options.check()?;
        let has = device.capabilities();
        if !has.read || !has.rc {
            return Err(ReaderError::NoRead(has.name));
        }
        let depth = options.depth();
        let stride = options.step_bytes.next_multiple_of(WORD);
        let cq = device.create_cq(port, &CqSpec { depth })?;
        let qp = device.create_qp(
            port,
            &QpSpec {
                pd,
                transport: Transport::Rc,
                send_cq: cq,
                recv_cq: cq,
                send_depth: depth,
                recv_depth: 0,
            },
        )?;
        let spec = RegionSpec {
            len: options.lookups * stride,
            access: Access::LOCAL,
            scope: Scope::Pd,
        };
        let region = device.allocate_region(port, pd, &spec)?;
        let inbox = port.region(region).cloned();
        let inbox = inbox.ok_or(herdwick_fabric::ControlError::Unknown("region"))?;
        // `check` has bounded it.
        let lookups = u32::try_from(options.lookups).unwrap_or(u32::MAX);
        Ok(Self {
            qp,
            cq,
            region,
            inbox,
            options: ReaderOptions {
                step_bytes: stride,
                ..*options
            },
            read_bytes_max: has.read_bytes_max,
            slots: (0..lookups).map(|_| Slot::free()).collect(),
            // Taken from the end: the buffer that was used last is still in the cache.
            free: (0..lookups).rev().collect(),
            due: VecDeque::with_capacity(options.lookups),
            pace: Pace::new(options, has.rd_atomic_max),
            copy: vec![0; stride],
            failed: None,
            heard: false,
            silent_since: None,
            counters: ReadCounters::default(),
        })
    }

    /// Frees the objects on the port. Lookups in flight are dropped.
    ///
    /// # Errors
    /// [`ReaderError::Control`]; nothing else is left then that could be freed.
    pub fn destroy<D: Device>(self, device: &D, port: &mut D::Port) -> Result<(), ReaderError> {
        device.destroy_qp(port, self.qp)?;
        device.destroy_cq(port, self.cq)?;
        device.free_region(port, self.region)?;
        Ok(())
    }

    /// The queue pair, to be connected to one of the peer's.
    #[must_use]
    pub fn qp(&self) -> QpId {
        self.qp
    }

    /// The completion queue, to be armed before sleeping.
    #[must_use]
    pub fn cq(&self) -> CqId {
        self.cq
    }

    /// Returns the number of lookups that have begun and not ended.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns whether another lookup may begin.
    #[inline]
    #[must_use]
    pub fn has_room(&self) -> bool {
        !self.free.is_empty() && self.failed.is_none()
    }

    /// Returns the status with which the queue pair failed.
    #[must_use]
    pub fn failed(&self) -> Option<Status> {
        self.failed
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> &ReadCounters {
        &self.counters
    }

    /// Gives the queue pair up, unless it has failed already: the next [`Reader::poll`] ends every
    /// lookup as [`Outcome::Failed`] with `status`.
    #[cold]
    pub fn give_up(&mut self, status: Status) {
        self.failed = self.failed.or(Some(status));
    }

    /// Returns whether no step has completed for longer than `deadline` though lookups are in flight; then
    /// the queue pair is given up. A fabric that retries by itself fails it earlier. To be called after
    /// [`Reader::poll`].
    #[inline]
    pub fn has_fallen_silent(&mut self, deadline: Duration, now: Duration) -> bool {
        if std::mem::take(&mut self.heard) || self.in_flight() == 0 {
            self.silent_since = None;
            return false;
        }
        let since = *self.silent_since.get_or_insert(now);
        let silent = now.saturating_sub(since) > deadline;
        if silent {
            self.give_up(Status::RetryExceeded);
        }
        silent
    }

    /// Begins a lookup; [`Reader::post`] posts its READs.
    ///
    /// # Errors
    /// [`Begin`], with the lookup.
    #[inline]
    pub fn begin(&mut self, lookup: L, first: Step) -> Result<(), Begin<L>> {
        if let Some(status) = self.failed {
            return Err(Begin::Failed(lookup, status));
        }
        if !self.fits(&first) {
            self.counters.count_doubt(Doubt::Length);
            return Err(Begin::TooLong(lookup));
        }
        let Some(index) = self.free.pop() else {
            return Err(Begin::Full(lookup));
        };
        self.slots[index as usize] = Slot {
            lookup: Some(lookup),
            step: first,
            steps: 1,
            retries: 0,
            posted: false,
        };
        self.due.push_back(index);
        Ok(())
    }

    fn fits(&self, step: &Step) -> bool {
        let longest = step.fetches().iter().map(|fetch| fetch.len).max();
        step.room() <= self.options.step_bytes && longest.unwrap_or(0) <= self.read_bytes_max
    }

    /// Posts the READs that are due, as many as the limits allow, up to 32 with each doorbell.
    /// Returns whether there were any.
    pub fn post<P: Port>(&mut self, port: &mut P) -> bool {
        let mut any = false;
        while self.failed.is_none() {
            let mut batch = ArrayVec::<SendWr<'static>, POSTLIST>::new();
            let steps = self.gather(&mut batch);
            if batch.is_empty() {
                break;
            }
            match port.post_send(self.qp, &batch) {
                Ok(()) => self.posted(steps, &batch),
                Err(error) => {
                    self.not_posted(steps, error);
                    break;
                }
            }
            any = true;
        }
        any
    }

    /// Lays the READs of the first steps that are due in `batch`. Returns the number of steps.
    #[inline]
    fn gather(&mut self, batch: &mut ArrayVec<SendWr<'static>, POSTLIST>) -> usize {
        let mut steps = 0;
        while let Some(index) = self.due.get(steps).copied() {
            let step = &self.slots[index as usize].step;
            // Room for the longest step, so that none is divided over two postlists.
            let room = batch.remaining_capacity() >= READS_PER_STEP;
            // In order: a step that has to wait is not overtaken by smaller ones.
            if !room || !self.pace.admit(step) {
                break;
            }
            let mut offset = index as usize * self.options.step_bytes;
            let last = step.fetches().len() - 1;
            for (n, fetch) in step.fetches().iter().enumerate() {
                let into = Local {
                    region: self.region,
                    offset,
                    len: fetch.len,
                };
                let from = fetch.from;
                batch.push(SendWr {
                    wr_id: u64::from(index),
                    op: SendOp::Read { into, from },
                    // READs complete in order: the last one stands for the step.
                    signaled: n == last,
                    solicited: false,
                    fence: false,
                });
                offset += fetch.room();
            }
            steps += 1;
        }
        steps
    }

    fn posted(&mut self, steps: usize, batch: &[SendWr<'_>]) {
        for index in self.due.drain(..steps) {
            self.slots[index as usize].posted = true;
        }
        self.counters.reads += batch.len() as u64;
        for wr in batch {
            if let SendOp::Read { into, .. } = wr.op {
                self.counters.read_bytes += into.len as u64;
            }
        }
    }

    #[cold]
    fn not_posted(&mut self, steps: usize, error: PostError) {
        // `gather` has admitted them.
        for index in self.due.iter().take(steps) {
            self.pace.release(&self.slots[*index as usize].step);
        }
        match error {
            PostError::Full => self.counters.posts_held += 1,
            // The queue pair has failed or is gone; `poll` ends the lookups.
            _ => self.failed = Some(Status::Flushed),
        }
    }

    /// Takes completions, has `judge` judge the steps that are complete, and hands every lookup that
    /// ended to `sink`. Returns how many ended.
    pub fn poll<P: Port, J: Judge<Lookup = L>>(
        &mut self,
        port: &mut P,
        judge: &mut J,
        sink: &mut impl FnMut(L, Outcome<'_>),
    ) -> usize {
        let before = self.in_flight();
        let mut done = [Completion::BLANK; POLLED];
        loop {
            let count = port.poll(self.cq, &mut done);
            for completion in &done[..count] {
                match completion.status {
                    Status::Success => self.complete(completion.wr_id, judge, sink),
                    // Those behind the first one are flushed.
                    status => self.failed = self.failed.or(Some(status)),
                }
            }
            if count < POLLED {
                break;
            }
        }
        if let Some(status) = self.failed {
            self.end_all(status, sink);
        }
        before - self.in_flight()
    }

    #[inline]
    fn complete<J: Judge<Lookup = L>>(
        &mut self,
        wr_id: u64,
        judge: &mut J,
        sink: &mut impl FnMut(L, Outcome<'_>),
    ) {
        let index = usize::try_from(wr_id).unwrap_or(usize::MAX);
        // Only a slot with READs on the way: a completion that comes late must not end another
        // lookup.
        let slot = self.slots.get_mut(index).filter(|slot| slot.posted);
        let Some((slot, mut lookup)) = slot.and_then(|slot| {
            let lookup = slot.lookup.take()?;
            Some((slot, lookup))
        }) else {
            self.counters.unexpected += 1;
            return;
        };
        slot.posted = false;
        self.heard = true;
        self.pace.release(&slot.step);
        // A copy: what the judge checks are the bytes that the caller gets.
        let bytes = &mut self.copy[..slot.step.room()];
        self.inbox
            .read_bytes(index * self.options.step_bytes, bytes);
        let verdict = judge.judge(&mut lookup, &Fetched::new(&slot.step, bytes));
        let doubt = match verdict {
            Verdict::Found(range) => {
                self.free.push(index as u32);
                let found = self.copy.get(range);
                // A judge that took the range from the peer without a check is not to panic.
                let Some(found) = found else {
                    self.counters.count_doubt(Doubt::Judge);
                    return sink(lookup, Outcome::Unsure(Doubt::Judge));
                };
                self.counters.found += 1;
                return sink(lookup, Outcome::Found(found));
            }
            Verdict::Missing => {
                self.counters.missing += 1;
                self.free.push(index as u32);
                return sink(lookup, Outcome::Missing);
            }
            verdict => self.advance(index, verdict),
        };
        match doubt {
            None => {
                self.slots[index].lookup = Some(lookup);
                self.due.push_back(index as u32);
            }
            Some(doubt) => {
                self.counters.count_doubt(doubt);
                self.free.push(index as u32);
                sink(lookup, Outcome::Unsure(doubt));
            }
        }
    }

    /// Moves a lookup to its next step, or returns why there is none.
    #[inline]
    fn advance(&mut self, index: usize, verdict: Verdict) -> Option<Doubt> {
        let slot = &mut self.slots[index];
        match verdict {
            Verdict::Follow(step) => {
                slot.step = step;
                slot.steps += 1;
                // A peer's pointers may form a cycle.
                if slot.steps > self.options.steps {
                    return Some(Doubt::Steps);
                }
            }
            Verdict::Torn => {
                self.counters.torn += 1;
                slot.retries += 1;
            }
            Verdict::Stale(step) => {
                self.counters.stale += 1;
                slot.retries += 1;
                slot.step = step;
            }
            Verdict::Found(_) | Verdict::Missing | Verdict::Unsure => return Some(Doubt::Judge),
        }
        if slot.retries > self.options.retries {
            return Some(Doubt::Retries);
        }
        let step = slot.step;
        (!self.fits(&step)).then_some(Doubt::Length)
    }

    /// Ends every lookup, after the queue pair has failed.
    #[cold]
    fn end_all(&mut self, status: Status, sink: &mut impl FnMut(L, Outcome<'_>)) {
        if self.free.len() == self.slots.len() {
            return;
        }
        // The pace stays as it is: nothing is posted any more.
        self.due.clear();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            slot.posted = false;
            if let Some(lookup) = slot.lookup.take() {
                self.counters.failed += 1;
                self.free.push(index as u32);
                sink(lookup, Outcome::Failed(status));
            }
        }
    }
}

impl<L> Slot<L> {
    fn free() -> Self {
        let nowhere = crate::Fetch {
            from: herdwick_fabric::Remote {
                rkey: herdwick_fabric::Rkey(0),
                addr: 0,
            },
            len: 0,
        };
        Self {
            lookup: None,
            step: Step::one(nowhere),
            steps: 0,
            retries: 0,
            posted: false,
        }
    }
}
