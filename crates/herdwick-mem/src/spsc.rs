//! Bounded queues with one producer and one consumer, both threads of one process.

use crate::sync::{Arc, AtomicUsize, CachePadded, Ordering};
use std::mem::MaybeUninit;

#[cfg(loom)]
use loom::cell::UnsafeCell;

#[cfg(not(loom))]
#[expect(clippy::disallowed_types, reason = "this crate is where cells live")]
struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
#[expect(clippy::disallowed_types, reason = "this crate is where cells live")]
impl<T> UnsafeCell<T> {
    fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }
    fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }
    fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

struct Shared<T> {
    /// Next position to read; written by the consumer.
    head: CachePadded<AtomicUsize>,
    /// Next position to write; written by the producer.
    tail: CachePadded<AtomicUsize>,
    cells: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

// SAFETY: a cell is touched by the producer only while its position is in [tail, head + capacity)
// and by the consumer only while it is in [head, tail); the release/acquire pairs on `head` and
// `tail` order the hand-over. T itself moves between threads, hence T: Send.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as for Send.
unsafe impl<T: Send> Sync for Shared<T> {}

/// The sending end.
pub struct Producer<T> {
    shared: Arc<Shared<T>>,
    tail: usize,
    /// The consumer's head as last loaded: saves an access to the shared line in most pushes.
    head_seen: usize,
}

/// The receiving end.
pub struct Consumer<T> {
    shared: Arc<Shared<T>>,
    head: usize,
    tail_seen: usize,
}

/// Makes a queue of at most `capacity` items, rounded up to a power of two.
#[must_use]
pub fn channel<T>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    // A mask then takes a position to its cell.
    let capacity = capacity.max(1).next_power_of_two();
    let shared = Arc::new(Shared {
        head: CachePadded(AtomicUsize::new(0)),
        tail: CachePadded(AtomicUsize::new(0)),
        cells: (0..capacity)
            .map(|_| UnsafeCell::new(MaybeUninit::uninit()))
            .collect(),
    });
    let producer = Producer {
        shared: Arc::clone(&shared),
        tail: 0,
        head_seen: 0,
    };
    (
        producer,
        Consumer {
            shared,
            head: 0,
            tail_seen: 0,
        },
    )
}

impl<T> Producer<T> {
    /// Appends `item`.
    ///
    /// # Errors
    /// Returns the item when the queue is full.
    pub fn push(&mut self, item: T) -> Result<(), T> {
        if !self.has_room() {
            return Err(item);
        }
        let cells = &self.shared.cells;
        cells[self.tail & (cells.len() - 1)].with_mut(|cell| {
            // SAFETY: `has_room` saw (acquire) that the consumer is past this position's last
            // use, and only this producer writes cells.
            unsafe { (*cell).write(item) };
        });
        // Positions count on for ever. They wrap at a multiple of the capacity, so the mask stays
        // right.
        self.tail = self.tail.wrapping_add(1);
        // Pairs with the acquire in `Consumer::pop`.
        self.shared.tail.store(self.tail, Ordering::Release);
        Ok(())
    }

    /// Returns whether a push would succeed now.
    pub fn has_room(&mut self) -> bool {
        let capacity = self.shared.cells.len();
        // The difference is right across the wrap as well.
        if self.tail.wrapping_sub(self.head_seen) < capacity {
            return true;
        }
        // Pairs with the release in `Consumer::pop`.
        // Only now: most pushes find room by the head that was seen last, and do not load the
        // consumer's line.
        self.head_seen = self.shared.head.load(Ordering::Acquire);
        self.tail.wrapping_sub(self.head_seen) < capacity
    }
}

impl<T> Consumer<T> {
    /// Removes and returns the oldest item.
    pub fn pop(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let cells = &self.shared.cells;
        let item = cells[self.head & (cells.len() - 1)].with(|cell| {
            // SAFETY: `is_empty` saw (acquire) the producer's release of this position, so the cell
            // is initialised; advancing `head` below returns the cell, so it is read once.
            unsafe { (*cell).assume_init_read() }
        });
        self.head = self.head.wrapping_add(1);
        // Pairs with the acquire in `Producer::has_room`.
        self.shared.head.store(self.head, Ordering::Release);
        Some(item)
    }

    /// Returns whether a pop would find nothing now.
    pub fn is_empty(&mut self) -> bool {
        // As in `has_room`: the producer's line is loaded only when all that was seen is taken.
        if self.head != self.tail_seen {
            return false;
        }
        // Pairs with the release in `Producer::push`.
        self.tail_seen = self.shared.tail.load(Ordering::Acquire);
        self.head == self.tail_seen
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // The last `Arc` has synchronised with both ends; acquire is for loom, which does not know.
        let (mut head, tail) = (
            self.head.load(Ordering::Acquire),
            self.tail.load(Ordering::Acquire),
        );
        while head != tail {
            self.cells[head & (self.cells.len() - 1)].with_mut(|cell| {
                // SAFETY: both ends are dropped, and the cells in [head, tail) hold items that were
                // not popped.
                unsafe { (*cell).assume_init_drop() };
            });
            head = head.wrapping_add(1);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn behaves_as_a_bounded_vecdeque(capacity in 1usize..9, steps in prop::collection::vec(any::<bool>(), 0..200)) {
            let (mut tx, mut rx) = channel::<Box<usize>>(capacity);
            let capacity = capacity.next_power_of_two();
            let mut model = VecDeque::new();
            for (n, push) in steps.into_iter().enumerate() {
                if push {
                    let expected = if model.len() < capacity { model.push_back(n); Ok(()) } else { Err(Box::new(n)) };
                    prop_assert_eq!(tx.push(Box::new(n)), expected);
                } else {
                    prop_assert_eq!(rx.pop().map(|b| *b), model.pop_front());
                }
            }
        }
    }

    #[test]
    fn items_cross_threads_in_order() {
        let (mut tx, mut rx) = channel(64);
        let sender = std::thread::spawn(move || {
            for n in 0..100_000u64 {
                let mut item = n;
                while let Err(back) = tx.push(item) {
                    item = back;
                    std::thread::yield_now();
                }
            }
        });
        let mut next = 0;
        while next < 100_000 {
            match rx.pop() {
                Some(n) => {
                    assert_eq!(n, next);
                    next += 1;
                }
                None => std::thread::yield_now(),
            }
        }
        sender.join().unwrap();
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;

    #[test]
    fn every_interleaving_keeps_fifo_order() {
        loom::model(|| {
            let (mut tx, mut rx) = channel(2);
            let sender = loom::thread::spawn(move || {
                let mut sent = 0;
                for n in 0..3u32 {
                    if tx.push(n).is_err() {
                        break;
                    }
                    sent += 1;
                }
                sent
            });
            let mut next = 0;
            for _ in 0..3 {
                if let Some(n) = rx.pop() {
                    assert_eq!(n, next);
                    next += 1;
                }
            }
            let sent = sender.join().unwrap();
            while let Some(n) = rx.pop() {
                assert_eq!(n, next);
                next += 1;
            }
            assert_eq!(next, sent);
        });
    }
}
