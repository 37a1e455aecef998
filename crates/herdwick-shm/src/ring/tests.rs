//! Property tests of the ring against a queue, and of both ends against arbitrary memory.

use std::collections::VecDeque;

use herdwick_mem::Span;
use proptest::prelude::*;

use super::*;

const SHAPE: Shape = Shape {
    cells_log2: 3,
    long_log2: 3,
};

fn ring() -> (RingProducer<Span>, RingConsumer<Span>, Span) {
    let memory = Span::anonymous(SHAPE.bytes() + LINE).unwrap();
    let ring = memory.slice(0..SHAPE.bytes()).unwrap();
    let taken = memory.slice(SHAPE.bytes()..SHAPE.bytes() + LINE).unwrap();
    let producer = RingProducer::new(ring.clone(), taken.clone(), SHAPE);
    (producer, RingConsumer::new(ring, taken, SHAPE), memory)
}

fn line(seed: u64, n: usize) -> [u64; 8] {
    std::array::from_fn(|i| seed ^ (n * 8 + i) as u64)
}

proptest! {
    #[test]
    fn messages_are_received_as_sent(steps in prop::collection::vec((any::<bool>(), 0usize..500, any::<u64>()), 0..200)) {
        let (mut producer, mut consumer, _) = ring();
        let mut model = VecDeque::new();
        for (push, len, seed) in steps {
            if push {
                let imm = (seed % 3 != 0).then_some(seed as u32);
                let control = Control::new(len, imm).stamped(Control::stamp(seed as usize % 32));
                let pushed = if len <= CELL_PAYLOAD {
                    producer.push_small(control, &line(seed, 0)[..7])
                } else {
                    producer.push_long(control, |n| line(seed, n))
                };
                if pushed.is_ok() {
                    model.push_back((len, imm, seed));
                } else {
                    // Three quarters of the cells and lines must always be usable.
                    let lines: usize = model.iter().map(|(len, ..)| if *len > 56 { len.div_ceil(64) } else { 0 }).sum();
                    prop_assert!(model.len() >= 6 || lines + len.div_ceil(64) > 6);
                }
            } else if let Some(control) = consumer.peek() {
                let (len, imm, seed) = model.pop_front().unwrap();
                prop_assert_eq!((control.len(), control.imm(), control.sender()), (len, imm, seed as usize % 32));
                let small = consumer.small();
                prop_assert_eq!(small.map(|(control, _)| control), (len <= CELL_PAYLOAD).then_some(control));
                if let Some((_, payload)) = small {
                    prop_assert_eq!(&payload[..], &line(seed, 0)[..7]);
                } else {
                    for n in 0..len.div_ceil(LINE) {
                        prop_assert_eq!(consumer.long_line(n), line(seed, n));
                    }
                }
                consumer.advance(control);
                consumer.give_back();
            } else {
                prop_assert!(model.is_empty());
            }
        }
    }

    #[test]
    fn consumer_tolerates_any_memory_content(words in prop::collection::vec(any::<u64>(), 128)) {
        let (_, mut consumer, memory) = ring();
        memory.copy_in(0, &words);
        for _ in 0..64 {
            if let Some(control) = consumer.peek() {
                let _ = (consumer.small(), consumer.long_line(control.len() / 64));
                consumer.advance(control);
                consumer.give_back();
            }
        }
    }
}

#[test]
fn producer_ignores_impossible_counters() {
    let (mut producer, _, memory) = ring();
    let taken = SHAPE.bytes() / WORD + CELLS_TAKEN;
    for _ in 0..8 {
        producer.push_small(Control::new(0, None), &[]).unwrap();
    }
    for lie in [9, u64::MAX, 1 << 63] {
        memory.store(taken, lie);
        assert_eq!(producer.push_small(Control::new(0, None), &[]), Err(Full));
        assert!(std::mem::take(&mut producer.liar));
    }
    memory.store(taken, 4);
    producer.push_small(Control::new(0, None), &[]).unwrap();
    memory.store(taken, 3);
    producer.reserve(4, 0).unwrap_err();
    assert!(producer.liar);
}
