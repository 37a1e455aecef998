//! The pipeline of requests of section 4.1.1: a request is in stage `i` while its `i`-th memory access
//! waits for its prefetch.

/// Passes without a request after which a no-op moves the pipeline on: a client whose window is full sends
/// nothing before it is answered.
pub const NO_OP_AFTER: u32 = 100;

/// Requests, of which each new one moves those before it on by a stage.
#[derive(Clone, Debug)]
pub struct Pipeline<T> {
    /// A ring: the oldest request is at `next`, where the newest goes.
    requests: Vec<Option<T>>,
    next: usize,
    held: usize,
    empty_polls: u32,
}

impl<T> Pipeline<T> {
    /// Makes a pipeline with `stages` stages; the paper's has two. Without stages each request ends at
    /// once.
    #[must_use]
    pub fn new(stages: usize) -> Self {
        Self {
            requests: std::iter::repeat_with(|| None).take(stages).collect(),
            next: 0,
            held: 0,
            empty_polls: 0,
        }
    }

    /// Moves every request on, the oldest first, and takes in `new`, or a no-op: `advance` does the
    /// access of a request's stage, 1 for the first, and prefetches what the next stage needs. Returns
    /// the request that was in the last stage. What the first stage of `new` needs has to be prefetched
    /// before.
    #[inline]
    pub fn push(&mut self, new: Option<T>, mut advance: impl FnMut(usize, &mut T)) -> Option<T> {
        self.empty_polls = 0;
        let stages = self.requests.len();
        if stages == 0 {
            return new;
        }
        for stage in (1..=stages).rev() {
            // The newest request is one place behind `next`, and each stage more is one place
            // farther behind.
            let place = (self.next + stages - stage) % stages;
            if let Some(request) = &mut self.requests[place] {
                advance(stage, request);
            }
        }
        self.held += usize::from(new.is_some());
        let done = std::mem::replace(&mut self.requests[self.next], new);
        self.held -= usize::from(done.is_some());
        self.next = (self.next + 1) % stages;
        done
    }

    /// Takes note of a pass that found no request. Returns whether a no-op has to be pushed: after
    /// [`NO_OP_AFTER`] of them, if requests wait.
    #[inline]
    pub fn polled_nothing(&mut self) -> bool {
        self.empty_polls = self.empty_polls.saturating_add(1);
        self.empty_polls >= NO_OP_AFTER && self.held > 0
    }

    /// Returns the number of requests in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each request passes every stage once, in order, and leaves in the order in which it came.
    #[test]
    fn requests_pass_all_stages_in_order() {
        for stages in 0..5 {
            let mut pipeline = Pipeline::new(stages);
            let mut done = Vec::new();
            for number in 0..20 {
                // Every third push is a no-op.
                let new = (number % 3 != 2).then(|| (number, Vec::new()));
                let held = pipeline.len();
                let came = usize::from(new.is_some());
                let ended = pipeline.push(new, |stage, (_, seen): &mut (i32, Vec<usize>)| {
                    seen.push(stage);
                });
                assert_eq!(pipeline.len() + usize::from(ended.is_some()), held + came);
                done.extend(ended);
            }
            for (_, seen) in &done {
                assert_eq!(*seen, (1..=stages).collect::<Vec<_>>());
            }
            let numbers: Vec<_> = done.iter().map(|(number, _)| *number).collect();
            let came = (0..20 - stages as i32).filter(|number| number % 3 != 2);
            assert_eq!(numbers, came.collect::<Vec<_>>());
        }
    }

    #[test]
    fn no_op_is_due_after_a_hundred_empty_polls_while_requests_wait() {
        let mut pipeline = Pipeline::new(2);
        assert!(
            !(0..1000).any(|_| pipeline.polled_nothing()),
            "nothing waits"
        );
        assert!(pipeline.push(Some('a'), |_, _| ()).is_none());
        let due =
            |pipeline: &mut Pipeline<char>| (1..=NO_OP_AFTER).find(|_| pipeline.polled_nothing());
        assert_eq!(due(&mut pipeline), Some(NO_OP_AFTER));
        assert!(pipeline.push(None, |_, _| ()).is_none());
        assert_eq!(due(&mut pipeline), Some(NO_OP_AFTER));
        assert_eq!(pipeline.push(None, |_, _| ()), Some('a'));
        assert!(pipeline.is_empty());
    }
}
