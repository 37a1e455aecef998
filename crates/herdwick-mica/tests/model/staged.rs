//! Property tests of staged puts among other requests: completed or aborted at any point.

use herdwick_request::{Mode, Op, Put, Reply, Second, Staged, Status};
use proptest::{
    collection::vec,
    prelude::{Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest},
    test_runner::{Config, TestCaseError},
};

use super::{
    FULL_OF_RUNS, LIMITED, LIMITED_WITH_RUNS, PROBE, Pair, Plan, ROOMY, Step, StepOp, TIGHT, key,
    put, request, steps,
};
use crate::common::Answer;

/// Maximum number of concurrent staged puts.
const UPLOADS: usize = 6;
/// Steps that no limit takes on a store of 2 MiB.
const STEPS_MAX: usize = 64;

#[derive(Clone, Debug)]
enum Act {
    Work(Vec<Step>),
    Begin(usize, u16, StepOp),
    More(usize, usize),
    Finish(usize),
    Abort(usize),
    Restart,
    /// Some flushes, one after the other.
    Flushes,
    /// Leaves so many bytes unused; then all steps towards that limit, or none.
    Limit(usize, bool),
}

/// A staged put, and the part of its value that has arrived.
struct Upload {
    id: Staged,
    key: Vec<u8>,
    value: Vec<u8>,
    put: Put<'static>,
    came: usize,
}

#[derive(Default)]
struct Uploads {
    all: [Option<Upload>; UPLOADS],
    finished: usize,
    refused: usize,
    /// An aborted put: its handle has no effect any more.
    ghost: Option<Staged>,
}

fn acts(plan: Plan, count: usize) -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        4 => steps(plan, 60).prop_map(Act::Work),
        4 => (0..UPLOADS, 0..plan.keys, put(plan.mortal, plan.value_bytes))
            .prop_map(|(slot, key, put)| Act::Begin(slot, key, put)),
        6 => (0..UPLOADS, any::<u8>()).prop_map(|(slot, n)| Act::More(slot, usize::from(n) * 4)),
        6 => (0..UPLOADS).prop_map(Act::Finish),
        1 => (0..UPLOADS).prop_map(Act::Abort),
        1 => any::<bool>().prop_map(|_| Act::Restart),
    ];
    vec(act, count / 2..count)
}

impl Uploads {
    fn act(&mut self, pair: &mut Pair, act: &Act) -> Result<(), TestCaseError> {
        match act {
            Act::Work(steps) => pair.work(steps)?,
            Act::Begin(slot, n, StepOp::Put(value, put)) => {
                if let Some(old) = self.all[*slot].take() {
                    pair.store.abort(old.id);
                }
                let key = key(*n);
                let now = Second(pair.second);
                self.all[*slot] = Some(Upload {
                    id: pair.store.stage(now, &key, value.len()),
                    key,
                    value: value.clone(),
                    put: *put,
                    came: 0,
                });
            }
            Act::Begin(..) => {}
            Act::More(slot, count) => {
                if let Some(ghost) = self.ghost {
                    pair.store.append(ghost, b"late");
                    pair.store.abort(ghost);
                }
                if let Some(upload) = &mut self.all[*slot] {
                    upload.more(pair, *count);
                }
            }
            Act::Finish(slot) => {
                if let Some(mut upload) = self.all[*slot].take() {
                    upload.more(pair, usize::MAX);
                    self.finish(pair, &upload)?;
                }
            }
            Act::Abort(slot) => {
                if let Some(upload) = self.all[*slot].take() {
                    pair.store.abort(upload.id);
                    self.ghost = Some(upload.id);
                }
            }
            Act::Restart if pair.file.is_some() => {
                *self = Self::default();
                pair.restart()?;
            }
            Act::Restart => {}
            Act::Flushes => {
                let now = Second(pair.second);
                for _ in 0..20 {
                    pair.store.flush(now, now);
                }
                pair.model.flush(now, now);
            }
            Act::Limit(unused, whole) => {
                pair.store.leave_unused(*unused);
                for turn in 0.. {
                    if !*whole || !pair.store.adjust() {
                        break;
                    }
                    prop_assert!(turn < STEPS_MAX, "the store never rests");
                }
            }
        }
        Ok(())
    }

    fn finish(&mut self, pair: &mut Pair, upload: &Upload) -> Result<(), TestCaseError> {
        let put = Put {
            staged: Some(upload.id),
            ..upload.put
        };
        let key = &upload.key[..];
        let evictions = pair.store.counters().evictions;
        let answers = pair.run(&[request(key, PROBE), request(key, Op::Put(put))]);
        pair.model.tick(Second(pair.second));
        pair.settle(key, &answers[0])?;
        if answers[1].status == Status::OutOfMemory {
            self.refused += 1;
            if put.mode == Mode::Set && put.compare.is_none() && pair.model.holds(key) {
                pair.model.lose(key);
            }
            return Ok(());
        }
        self.finished += 1;
        let whole = Put {
            value: &upload.value,
            ..upload.put
        };
        pair.compare(key, &Op::Put(whole), &answers[1], evictions)?;
        // The reservation has ended: a second put that names it is refused.
        let again = pair.run(&[request(key, Op::Put(put))]);
        prop_assert_eq!(&again[0], &Answer::from(&Reply::bare(Status::BadKey)));
        Ok(())
    }
}

impl Upload {
    fn more(&mut self, pair: &mut Pair, count: usize) {
        let end = self.came.saturating_add(count).min(self.value.len());
        let bytes = &self.value[self.came..end];
        if count.is_multiple_of(3) {
            pair.store.append(self.id, bytes);
        } else {
            let room = pair.store.room(self.id);
            let count = room.len().min(bytes.len());
            room[..count].copy_from_slice(&bytes[..count]);
            pair.store.fill(self.id, bytes.len());
        }
        self.came = end;
    }
}

fn all(pair: &mut Pair, acts: &[Act]) -> Result<Uploads, TestCaseError> {
    let mut uploads = Uploads::default();
    for act in acts {
        uploads.act(pair, act)?;
    }
    pair.audit()?;
    Ok(uploads)
}

/// A store that is small for its keys, with values of half a segment.
const LAPPING: Plan = Plan {
    memory_bytes: 168 << 10,
    item_bytes_max: 2 << 10,
    value_bytes: 1900,
    ..TIGHT
};

/// More items than fit, for a store that evicts nothing.
const BRIMMING: Plan = Plan {
    memory_bytes: 184 << 10,
    ..LAPPING
};

/// More and larger uploads at a time: most are of the largest value, and most stay.
fn longer(plan: &Plan, (n, act): (usize, &Act)) -> Option<(usize, Act)> {
    match act {
        Act::Begin(slot, key, StepOp::Put(_, put)) if n % 4 > 0 => {
            let value = super::pattern(plan.item_bytes_max - 64, n as u8);
            Some((n, Act::Begin(*slot, *key, StepOp::Put(value, *put))))
        }
        Act::Finish(_) | Act::Abort(_) if n % 3 > 0 => None,
        act => Some((n, act.clone())),
    }
}

fn evict_nothing(plan: &Plan, acts: &[Act]) -> Result<(), TestCaseError> {
    let mut pair = Pair::new(plan);
    pair.store.evict_nothing();
    pair.reserved = UPLOADS * plan.item_bytes_max;
    let uploads = all(&mut pair, acts)?;
    prop_assert_eq!((pair.lost, pair.store.counters().evictions), (0, 0));
    prop_assert!(uploads.finished > 0 || acts.len() < 250);
    Ok(())
}

fn move_limit(
    plan: &Plan,
    acts: &[Act],
    limits: &[(usize, bool)],
    every: usize,
) -> Result<(), TestCaseError> {
    let mut pair = Pair::new(plan);
    let mut uploads = Uploads::default();
    let mut limits = limits.iter().cycle();
    let longer = |act| longer(plan, act);
    for (n, act) in acts.iter().enumerate().filter_map(longer) {
        if n.is_multiple_of(every)
            && let Some(&(next, whole)) = limits.next()
        {
            uploads.act(&mut pair, &Act::Limit(next, whole))?;
        }
        uploads.act(&mut pair, &act)?;
        pair.store.adjust();
    }
    pair.audit()?;
    prop_assert_eq!(pair.lost, pair.store.counters().evictions);
    Ok(())
}

proptest! {
    #![proptest_config(Config { cases: 24, ..Config::default() })]

    #[test]
    fn staged_puts_have_the_results_of_plain_puts(
        acts in acts(LAPPING, 400),
        lasts in any::<bool>(),
    ) {
        let mut pair = Pair::of(&LAPPING, lasts);
        all(&mut pair, &acts)?;
        prop_assert_eq!(pair.lost, pair.evictions + pair.store.counters().evictions);
    }

    #[test]
    fn staged_puts_match_the_model_with_expiry_and_flushes(
        acts in acts(Plan { mortal: true, ..LAPPING }, 400),
    ) {
        let mut pair = Pair::new(&Plan { mortal: true, ..LAPPING });
        all(&mut pair, &acts)?;
    }

    /// What was flushed stays so, after a kill, too.
    #[test]
    fn flushes_between_staged_puts_restore_no_item(
        rounds in vec(acts(Plan { mortal: true, ..LAPPING }, 60), 2..6),
        lasts in any::<bool>(),
    ) {
        let mut pair = Pair::of(&Plan { mortal: true, ..LAPPING }, lasts);
        let mut uploads = Uploads::default();
        for acts in &rounds {
            for act in acts {
                uploads.act(&mut pair, act)?;
            }
            uploads.act(&mut pair, &Act::Flushes)?;
        }
        pair.audit()?;
    }

    /// Limits below what the uploads hold, too.
    #[test]
    fn staged_puts_match_the_model_under_a_limit_that_moves(
        acts in acts(LIMITED, 200),
        limits in vec((0..LIMITED.memory_bytes * 3 / 2, any::<bool>()), 20),
        every in 1usize..12,
    ) {
        move_limit(&LIMITED, &acts, &limits, every)?;
    }

    #[test]
    fn staged_runs_of_segments_match_the_model_under_a_limit_that_moves(
        acts in acts(LIMITED_WITH_RUNS, 200),
        limits in vec((0..LIMITED.memory_bytes * 3 / 2, any::<bool>()), 20),
        every in 1usize..12,
    ) {
        move_limit(&LIMITED_WITH_RUNS, &acts, &limits, every)?;
    }

    #[test]
    fn staged_puts_evict_nothing_if_there_is_room(acts in acts(ROOMY, 300)) {
        let mut pair = Pair::of(&ROOMY, true);
        let uploads = all(&mut pair, &acts)?;
        prop_assert_eq!((pair.lost, pair.evictions + pair.store.counters().evictions), (0, 0));
        prop_assert_eq!(uploads.refused, 0);
    }

    #[test]
    fn lossless_store_keeps_all_items_during_staged_puts(acts in acts(BRIMMING, 400)) {
        evict_nothing(&BRIMMING, &acts)?;
    }

    #[test]
    fn lossless_store_keeps_all_items_during_staged_runs_of_segments(
        acts in acts(FULL_OF_RUNS, 400),
    ) {
        evict_nothing(&FULL_OF_RUNS, &acts)?;
    }
}

/// The maximum number of reservations survives cleaning under them.
#[test]
fn reservations_survive_cleaning_and_are_bounded() {
    let mut pair = Pair::new(&LAPPING);
    let value = super::pattern(1900, 7);
    let most = pair.store.staged_max();
    assert!((20..=30).contains(&most), "{most}");
    let mut ids = Vec::new();
    for n in 0..most as u16 {
        let id = pair.store.stage(Second(1), &key(n), value.len());
        pair.store.append(id, &value[..100]);
        ids.push(id);
    }
    for n in 0..2000 {
        let value = super::pattern(usize::from(n % 1900), 1);
        let put = Op::Put(Put {
            value: &value,
            ..Put::default()
        });
        assert_eq!(
            pair.run(&[request(&key(100 + n), put)])[0].status,
            Status::Done
        );
        let beyond = pair.store.stage(Second(1), &key(99), 1900);
        pair.store.abort(beyond);
    }
    for (n, &id) in ids.iter().enumerate() {
        pair.store.append(id, &value[100..]);
        let put = Op::Put(Put {
            staged: Some(id),
            ..Put::default()
        });
        let key = key(n as u16);
        let answers = pair.run(&[request(&key, put), request(&key, PROBE)]);
        assert_eq!(answers[0].status, Status::Done);
        assert_eq!(answers[1].value.as_deref(), Some(&value[..]));
    }
}

/// Flushes empty the store, but not of reservations.
#[test]
fn reservation_survives_flushes() {
    let mut pair = Pair::new(&LAPPING);
    let value = super::pattern(1900, 7);
    let id = pair.store.stage(Second(1), b"key", value.len());
    pair.store.append(id, &value[..1000]);
    for _ in 0..1_000 {
        pair.store.flush(Second(1), Second(1));
    }
    pair.store.append(id, &value[1000..]);
    let put = Op::Put(Put {
        staged: Some(id),
        ..Put::default()
    });
    let answers = pair.run(&[request(b"key", put), request(b"key", PROBE)]);
    assert_eq!(answers[1].value.as_deref(), Some(&value[..]));
}
