//! loom models of the ring: every interleaving of a producer and a consumer.

use herdwick_mem::sync::thread;

use super::*;
use crate::model::Memory;

const SHAPE: Shape = Shape {
    cells_log2: 1,
    long_log2: 1,
};

/// Takes the next message, if there is one, and checks that it is whole and in order.
fn take(consumer: &mut RingConsumer<Memory>, next: &mut u64) -> bool {
    let control = if let Some((control, payload)) = consumer.small() {
        assert_eq!(payload[6], *next);
        consumer.advance_small();
        control
    } else if let Some(control) = consumer.peek() {
        // The producer may have completed a message in between that lies in its cell: the next call takes it.
        if control.len() <= CELL_PAYLOAD {
            return false;
        }
        assert_eq!(consumer.long_line(0)[7], *next);
        consumer.advance(control);
        control
    } else {
        return false;
    };
    assert_eq!(control.imm(), Some(*next as u32));
    consumer.give_back();
    *next += 1;
    true
}

/// Sends `n`, long or short. Returns whether there was room.
fn put(producer: &mut RingProducer<Memory>, n: u64, long: bool) -> bool {
    let pushed = if long {
        let control = Control::new(LINE, Some(n as u32));
        producer.push_long(control, |_| [n; CELL_WORDS])
    } else {
        producer.push_small(Control::new(CELL_PAYLOAD, Some(n as u32)), &[n; 7])
    };
    pushed.is_ok()
}

fn explore(long: bool, stops_inside: bool) {
    loom::model(move || {
        let ring = Memory::new(SHAPE.bytes() / WORD);
        let taken = Memory::new(CELL_WORDS);
        let mut consumer = RingConsumer::new(ring.clone(), taken.clone(), SHAPE);
        let mut producer = RingProducer::new(ring.clone(), taken, SHAPE);
        let sender = thread::spawn(move || {
            // Three messages into two cells: the third waits for the end of the first lap, or is
            // lost.
            let sent = (0..3).filter(|n| put(&mut producer, *n, long)).count();
            if stops_inside && sent == 2 {
                // Killed between the payload and the control word of the next message, if the
                // consumer has published room for it.
                if producer.reserve(1, 0).is_ok() {
                    let word = producer.next.word;
                    producer.ring.copy_in(word, &[u64::MAX; 7]);
                }
            }
            sent as u64
        });
        let mut next = 0;
        for _ in 0..3 {
            if !take(&mut consumer, &mut next) {
                thread::yield_now();
            }
        }
        let sent = sender.join().unwrap();
        // Only the last of three can have been refused, so `next` counts without a gap.
        while take(&mut consumer, &mut next) {}
        assert_eq!(next, sent);
    });
}

#[test]
fn small_messages_arrive_whole_and_in_order() {
    explore(false, false);
}

#[test]
fn long_messages_arrive_whole_and_in_order() {
    explore(true, false);
}

#[test]
fn stopped_producer_leaves_no_partial_message() {
    explore(false, true);
}
