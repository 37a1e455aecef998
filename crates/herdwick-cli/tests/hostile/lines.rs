//! What a client may write into its request lines.

use herdwick_mem::Words;

use crate::{
    KEPT, Siege, WINDOW, WORKERS,
    common::{Chance, Clock, value},
    meanwhile,
    raw::{
        ADD, Ask, BAD_KEY, BAD_REQUEST, CONTROL_WORD, Channel, DONE, GET, HAS_ATTR, LINE_WORDS,
        NOT_FOUND, OVERFLOW, OVERFLOW_BYTES, Reply, SET, WRONG_PARTITION,
    },
};

/// Returns a control word that random bytes would hardly ever form: the right epoch, a plausible
/// sequence.
fn likely(chance: &mut Chance, epoch: u64) -> u64 {
    epoch << 48 | (chance.next() % 512) << 24 | chance.next() >> 40
}

#[test]
fn r01_random_words_in_client_memory_are_counted() {
    let mut siege = Siege::new();
    let channels = &siege.raw.channels;
    let epoch = channels[0].control(&siege.raw.get(b"k"), 0, 0) >> 48;
    let memory: Vec<_> = channels
        .iter()
        .map(|channel| (channel.up.clone(), channel.slot_word(0)))
        .collect();
    let mut chance = Chance::new(1);
    let scribble = || {
        let (up, lines) = &memory[chance.below(WORKERS)];
        let control = chance.below(WINDOW) * LINE_WORDS + CONTROL_WORD;
        let (word, value) = match chance.below(4) {
            0 => (chance.below(up.count()), chance.next()),
            1 => (lines + chance.below(WINDOW * LINE_WORDS), chance.next()),
            _ => (lines + control, likely(&mut chance, epoch)),
        };
        up.store_release(word, value);
    };
    meanwhile(scribble, || {
        for _ in 0..20 {
            siege.survives();
        }
        for name in ["stale_epoch", "out_of_window", "bad_opcode", "bad_reserved"] {
            siege.until_stat(name, 10);
        }
    });
    siege.survives();
}

#[test]
fn r02_lengths_beyond_the_line_are_refused() {
    let mut siege = Siege::new();
    let key = siege.raw.key_at(0, "k");
    let mut inline = siege.raw.set(&key, b"");
    for len in 49..64 {
        inline.body.resize(len, b'v');
        let sequence = siege.raw.channels[0].submit(&inline);
        let reply = siege.raw.channels[0].reply_to(sequence);
        assert_eq!(reply.status(), BAD_REQUEST, "{len}");
    }
    for len in [0, 1025, 65_535, u32::MAX] {
        let mut ask = siege.raw.ask(SET | OVERFLOW, &key, b"");
        ask.body = [len.to_le_bytes(), [0; 4]].concat();
        assert_eq!(siege.raw.call(&ask, &key).status(), BAD_REQUEST, "{len}");
    }
    assert_eq!(siege.stat("bad_body_length"), 15 + 4);
    assert_eq!(siege.get(&key), None);
    // Longer than what was written: the rest of the area does not match the checksum.
    let whole = siege.raw.set(&key, &[b'v'; 300]);
    let torn = Ask {
        body: vec![0; whole.body.len()],
        ..whole.clone()
    };
    let channel = &mut siege.raw.channels[0];
    let sequence = channel.submit_overflow(&torn, crc32c::crc32c(&whole.body));
    siege.until_stat("torn_overflow", 1);
    assert_eq!(siege.get(&key), None);
    let channel = &mut siege.raw.channels[0];
    let area = channel.overflow + sequence as usize % WINDOW * OVERFLOW_BYTES;
    channel.up.write_bytes(area, &whole.body);
    channel.retry(sequence, 1);
    assert_eq!(channel.reply_to(sequence).status(), DONE, "the whole value");
    assert_eq!(siege.get(&key), Some(vec![b'v'; 300]));
    siege.survives();
}

/// Writes the next request with the header of `pair[0]`, then both headers in turn until a reply
/// arrives.
fn flipped_until_answered(channel: &mut Channel, mut pair: [&Ask; 2]) -> Reply {
    let sequence = channel.submit(pair[0]);
    let at = channel.slot_word(sequence as usize) + CONTROL_WORD;
    let clock = Clock::start();
    loop {
        clock.hurry("a reply");
        for attempt in [0, 1] {
            for ask in pair {
                let control = channel.control(ask, sequence, attempt);
                channel.up.store_release(at, control);
            }
        }
        pair.reverse();
        channel.ring_wakeup();
        if let Some(reply) = channel.poll().filter(|reply| reply.sequence == sequence) {
            return reply;
        }
    }
}

/// Two headers for one line, each valid by itself: the request executed is one of them as a whole.
#[test]
fn r03_header_changed_during_the_read_is_read_once() {
    let mut siege = Siege::new();
    let key = siege.raw.key_at(0, "kkk");
    let short = siege.raw.set(&key, &[b'v'; 16]);
    let long = Ask {
        opcode: ADD,
        key_len: 40,
        body: [&short.body[..], &[b'w'; 48]].concat()[..48].to_vec(),
        ..short.clone()
    };
    let get = siege.raw.get(&key);
    let (mut done, mut refused) = (0, 0);
    let clock = Clock::start();
    while done < 200 || refused < 200 {
        clock.hurry("both headers to be met");
        let channel = &mut siege.raw.channels[0];
        let reply = flipped_until_answered(channel, [&short, &long]);
        match reply.status() {
            DONE => done += 1,
            BAD_KEY => refused += 1,
            _ => panic!("{reply:?}"),
        }
        if done > 0 {
            assert_eq!(channel.call(&get).value(), [b'v'; 16]);
        }
    }
    assert!(siege.stat("bad_keys") >= refused);
    siege.survives();
}

/// A line that was judged an addition must not be decoded as anything else: a cancellation is
/// handled before decoding.
#[test]
fn r03_operation_changed_after_validation_is_executed_as_validated() {
    const CANCEL: u64 = 11;
    let mut siege = Siege::new();
    let incr = siege.raw.add_one(b"key");
    let cancel = Ask {
        opcode: CANCEL,
        ..incr.clone()
    };
    let (mut added, mut canceled) = (0, 0);
    let clock = Clock::start();
    while added < 200 || canceled < 200 || added + canceled < 5000 {
        clock.hurry("both operations to be met");
        let channel = siege.raw.channel_of(b"key");
        let reply = flipped_until_answered(channel, [&incr, &cancel]);
        match reply.status() {
            DONE => {
                added += 1;
                assert_eq!(reply.number(), added);
            }
            NOT_FOUND => canceled += 1,
            _ => panic!("{reply:?}"),
        }
    }
    assert_eq!(siege.get(b"key"), Some(added.to_string().into_bytes()));
    assert!(siege.stat("canceled") >= canceled);
    siege.survives();
}

#[test]
fn r04_value_changed_after_publication_is_not_stored() {
    let mut siege = Siege::of(1);
    let key = siege.raw.key_at(0, "key");
    let ask = siege.raw.set(&key, &[b'v'; 700]);
    let channel = &siege.raw.channels[0];
    let word = (channel.overflow + 600) / 8;
    let up = channel.up.clone();
    let flicker = || {
        up.store(word, u64::from_le_bytes([b'V'; 8]));
        up.store(word, u64::from_le_bytes([b'v'; 8]));
    };
    meanwhile(flicker, || {
        let (mut torn, mut stored, clock) = (0, 0, Clock::start());
        while torn < 100 || stored < 100 {
            let channel = &mut siege.raw.channels[0];
            let sequence = channel.submit_overflow(&ask, crc32c::crc32c(&ask.body));
            // A torn body is not answered; a later attempt may be.
            for attempt in 1.. {
                clock.hurry("a whole one, and torn ones");
                match channel.poll() {
                    Some(reply) if reply.sequence == sequence => break,
                    _ => channel.retry(sequence, attempt),
                }
            }
            assert_eq!(siege.get(&key), Some(vec![b'v'; 700]));
            stored += 1;
            torn = siege.stat("torn_overflow");
        }
    });
    siege.survives();
}

#[test]
fn r05_zero_hash_is_refused_as_wrong() {
    let mut siege = Siege::new();
    let key = siege.raw.key_at(0, "key");
    for (ask, status) in [
        (siege.raw.set(&key, b"v"), BAD_KEY),
        (siege.raw.get(&key), NOT_FOUND),
    ] {
        let ask = Ask { hash: 0, ..ask };
        assert_eq!(siege.raw.channels[0].call(&ask).status(), status);
    }
    assert_eq!(siege.stat("bad_keys"), 1);
    assert_eq!(siege.get(&key), None);
    siege.survives();
}

#[test]
fn r06_body_without_control_word_is_not_executed() {
    let mut siege = Siege::new();
    let key = siege.raw.key_at(0, "key");
    let ask = siege.raw.set(&key, b"v");
    let channel = &mut siege.raw.channels[0];
    let line = channel.line(&ask, 0);
    let mut body = line;
    body[CONTROL_WORD] = 0;
    channel.write(0, &body);
    let requests = siege.stat("requests");
    assert_eq!(siege.stat("requests"), requests, "nothing is found");
    siege.survives();
    assert_eq!(siege.get(&key), None);
    assert_eq!(siege.raw.channels[0].poll(), None);
    // The slot waits for its control word for any length of time.
    assert_eq!(siege.raw.call(&ask, &key).status(), DONE);
    assert_eq!(siege.get(&key).as_deref(), Some(&b"v"[..]));
}

#[test]
fn r07_invalid_operations_are_refused() {
    const HAS_COMPARE: u64 = 1 << 5;
    const RESERVED: u64 = 1 << 6;
    let mut siege = Siege::new();
    let key = siege.raw.key_at(0, "four");
    let cases: &[(u64, u64, usize)] = &[
        // Opcode with its bits, key length, body length.
        (0, 4, 4),
        (12, 4, 4),
        (15, 4, 4),
        (GET | RESERVED, 4, 4),
        (GET, 4, 20),
        (GET | HAS_ATTR, 4, 12),
        (GET | HAS_COMPARE, 4, 12),
        (2, 4, 4),
        (SET, 0, 4),
        (SET, 251, 48),
        (SET, 40, 4),
        (8, 4, 8),
        (8 | HAS_ATTR, 4, 12),
        (9, 4, 4),
        (9, 4, 20),
        (10 | HAS_ATTR, 4, 20),
    ];
    for case @ (opcode, key_len, body_len) in cases {
        let ask = Ask {
            hash: siege.raw.get(&key).hash,
            opcode: *opcode,
            key_len: *key_len,
            body: vec![b'f'; *body_len],
        };
        let reply = siege.raw.channels[0].call(&ask);
        assert_eq!(reply.status(), BAD_REQUEST, "{case:?}");
    }
    assert_eq!(siege.stats("bad_"), cases.len() as u64);
    assert_eq!(
        (siege.stat("bad_opcode"), siege.stat("bad_reserved")),
        (3, 1)
    );
    siege.survives();
}

#[test]
fn r08_value_of_another_length_replaces_the_old_value() {
    let mut siege = Siege::new();
    for len in [32, 1, 700, 0, 40, 1000, 3] {
        let value = value("key", 1, len);
        let ask = siege.raw.set(b"key", &value);
        assert_eq!(siege.raw.call(&ask, b"key").status(), DONE);
        assert_eq!(siege.get(b"key"), Some(value));
    }
    assert_eq!(siege.stats("bad_"), 0);
    siege.survives();
}

#[test]
fn r09_repeated_request_has_no_second_effect() {
    let mut siege = Siege::new();
    let ask = siege.raw.add_one(b"key");
    let channel = siege.raw.channel_of(b"key");
    let sequence = channel.submit(&ask);
    assert_eq!(channel.reply_to(sequence).number(), 1);
    // The same bytes are not a new request, and another attempt gets the same answer.
    channel.write(0, &channel.line(&ask, sequence));
    for attempt in 1..=10 {
        channel.retry(sequence, attempt);
        let reply = channel.reply();
        assert_eq!((reply.sequence, reply.number()), (sequence, 1));
    }
    assert!(siege.stat("retries_remembered") >= 10);
    assert_eq!(siege.get(b"key").as_deref(), Some(&b"1"[..]));
    siege.survives();
}

#[test]
fn r10_sequences_outside_the_window_are_dropped() {
    let mut siege = Siege::new();
    let ask = siege.raw.add_one(b"key");
    assert_eq!(siege.raw.call(&ask, b"key").number(), 1);
    let window = WINDOW as u32;
    let outside = [
        2 * window,
        16 * window,
        (1 << 24) - window,
        (1 << 23) + window,
        // A slot that has had no request has no last request either.
        (1 << 24) - window + 3,
    ];
    for (count, sequence) in (1..).zip(outside) {
        let channel = siege.raw.channel_of(b"key");
        channel.write(sequence as usize, &channel.line(&ask, sequence));
        siege.until_stat("out_of_window", count);
    }
    let channel = siege.raw.channel_of(b"key");
    assert_eq!(channel.poll(), None, "nothing was answered");
    channel.write(0, &channel.line(&ask, window));
    assert_eq!(
        channel.reply_to(window).number(),
        2,
        "the slot's next one is"
    );
    assert_eq!(siege.stat("out_of_window"), outside.len() as u64);
    siege.survives();
}

#[test]
fn r11_requests_in_all_slots_in_any_order_execute_once() {
    const LAPS: u32 = 50;
    let mut siege = Siege::new();
    let ask = siege.raw.add_one(b"key");
    let window = WINDOW as u32;
    for lap in 0..LAPS {
        let channel = siege.raw.channel_of(b"key");
        let mut slots: Vec<u32> = (0..window).collect();
        slots.rotate_left(lap as usize % WINDOW);
        if lap % 2 == 0 {
            slots.reverse();
        }
        let mut numbers = Vec::new();
        for (written, slot) in slots.iter().enumerate() {
            let sequence = lap * window + slot;
            // The request that the worker expects next is written after the others were answered.
            if lap % 2 == 0 && written + 1 == WINDOW {
                numbers.extend((0..written).map(|_| channel.reply().number()));
            }
            channel.write(*slot as usize, &channel.line(&ask, sequence));
        }
        while numbers.len() < WINDOW {
            numbers.push(channel.reply().number());
        }
        numbers.sort_unstable();
        let first = u64::from(lap * window);
        assert!(
            numbers
                .into_iter()
                .eq(first + 1..=first + u64::from(window))
        );
    }
    assert!(siege.stat("out_of_order_requests") > 0);
    let number = siege.get(b"key").unwrap();
    assert_eq!(number, (LAPS * window).to_string().into_bytes());
    siege.survives();
}

#[test]
fn r14_keys_of_another_worker_are_refused() {
    let mut siege = Siege::new();
    let foreign = siege.raw.key_at(1, "key");
    for ask in [siege.raw.set(&foreign, b"v"), siege.raw.get(&foreign)] {
        let reply = siege.raw.channels[0].call(&ask);
        assert_eq!(reply.status(), WRONG_PARTITION);
    }
    assert_eq!(siege.stat("wrong_partition"), 2);
    assert_eq!(siege.get(&foreign), None);
    siege.survives();
}

/// Each hash is that of an honest key, or shares its bucket; the key is another one.
#[test]
fn r15_hashes_of_other_keys_find_and_change_nothing() {
    let mut siege = Siege::new();
    let mut chance = Chance::new(15);
    let mut lies = 0;
    for n in 0..20_000 {
        let kept = format!("kept:{}", n % KEPT);
        let tag = if n % 2 == 0 {
            chance.next() & 0xffff
        } else {
            0
        };
        let honest = siege.raw.get(kept.as_bytes()).hash;
        let ask = if n % 5 == 0 {
            siege.raw.set(b"key", b"v")
        } else {
            siege.raw.get(b"key")
        };
        let expected = if n % 5 == 0 { BAD_KEY } else { NOT_FOUND };
        lies += u64::from(n % 5 == 0);
        let hash = honest ^ tag;
        let reply = siege.raw.call(&Ask { hash, ..ask }, kept.as_bytes());
        assert_eq!(reply.status(), expected);
    }
    assert_eq!(siege.stat("bad_keys"), lies);
    siege.survives();
}

#[test]
fn r19_line_changed_during_execution_executes_once() {
    let mut siege = Siege::of(1);
    let ask = siege.raw.add_one(b"key");
    let mut round = 0;
    siege.until("it is met in execution, and cleared", |siege| {
        for _ in 0..1000 {
            round += 1;
            let channel = siege.raw.channel_of(b"key");
            assert_eq!(rewritten_until_answered(channel, &ask), round);
        }
        siege.stat("retries_remembered") > 0 && siege.stat("stale_epoch") > 0
    });
    assert_eq!(siege.get(b"key"), Some(round.to_string().into_bytes()));
    siege.survives();
}

/// Writes the next request, clears and rewrites it until its reply arrives, and returns the number
/// in the reply.
fn rewritten_until_answered(channel: &mut Channel, ask: &Ask) -> u64 {
    let sequence = channel.submit(ask);
    let at = channel.slot_word(sequence as usize) + CONTROL_WORD;
    let clock = Clock::start();
    loop {
        clock.hurry("a reply");
        for attempt in [0, 1, 2] {
            channel.up.store_release(at, 0);
            let control = channel.control(ask, sequence, attempt);
            channel.up.store_release(at, control);
        }
        channel.ring_wakeup();
        if let Some(reply) = channel.poll().filter(|reply| reply.sequence == sequence) {
            return reply.number();
        }
    }
}
