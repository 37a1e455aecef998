//! Compares the layouts drawn in `docs/pilaf.md` with encoded entries and heads.

use herdwick_pilaf::{
    layout::{Entry, KEY_BYTES_MAX, State, VALUE_BYTES_MAX},
    message::{CREDITS, Op, PART_BYTES, Reply, ReplyStatus, Request},
};

const PAGE: &str = include_str!("../../../../docs/pilaf.md");

/// Returns the word and the mask that the row of a field draws, in the section of this title.
fn drawn(section: &str, field: &str, column: usize) -> (usize, u64) {
    let (_, text) = PAGE
        .split_once(&format!("## {section}\n"))
        .expect("a section");
    let text = text.split("\n## ").next().unwrap_or_default();
    let rows = text
        .lines()
        .map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
    let mut rows = rows.filter(|row| row.get(column).is_some_and(|cell| cell.starts_with(field)));
    let row = rows.next().unwrap_or_else(|| panic!("no row of {field}"));
    let (first, last) = row[2].split_once('-').expect("a range of bits");
    let (first, last): (u32, u32) = (first.parse().unwrap(), last.parse().unwrap());
    (
        row[1].parse().unwrap(),
        (u64::MAX >> (63 - last + first)) << first,
    )
}

/// The bits of the first words in which two differ.
fn difference<const N: usize>(a: [u64; N], b: [u64; N], words: usize) -> Vec<(usize, u64)> {
    let pairs = a.into_iter().zip(b).take(words).map(|(a, b)| a ^ b);
    pairs.enumerate().filter(|(_, bits)| *bits > 0).collect()
}

#[test]
fn entries_are_as_drawn() {
    let none = Entry::vacant(State::Empty, 0);
    let all = [
        (
            "start of the extent",
            Entry {
                offset: ((1 << 40) - 1) * 8,
                ..none
            },
        ),
        (
            "version",
            Entry {
                version: (1 << 20) - 1,
                ..none
            },
        ),
        ("which of the three", Entry { place: 3, ..none }),
        (
            "tag",
            Entry {
                tag: u32::MAX,
                ..none
            },
        ),
        (
            "bytes of the key",
            Entry {
                key_len: (1 << 15) - 1,
                ..none
            },
        ),
        (
            "bytes of the value",
            Entry {
                value_len: (1 << 17) - 1,
                ..none
            },
        ),
        (
            "CRC-64/XZ of the extent",
            Entry {
                extent_crc: u64::MAX,
                ..none
            },
        ),
    ];
    for (field, entry) in all {
        let changed = difference(entry.words(), none.words(), 3);
        assert_eq!(changed, [drawn("The table", field, 3)], "{field}");
        assert_ne!(entry.words()[3], none.words()[3], "the CRC covers {field}");
    }
    let moved = Entry {
        state: State::Moved,
        ..none
    };
    let (word, mask) = drawn("The table", "state", 3);
    let expected = [(word, 2 << mask.trailing_zeros())];
    assert_eq!(difference(moved.words(), none.words(), 3), expected);
    for limit in [KEY_BYTES_MAX, VALUE_BYTES_MAX] {
        assert!(PAGE.contains(&limit.to_string()), "{limit}");
    }
}

#[test]
fn messages_are_as_drawn() {
    let none = Request {
        op: Op::Get,
        key_len: 0,
        value_len: 0,
        token: 0,
        generation: 0,
        part: 0,
    };
    let all = [
        (
            "bytes of the key",
            Request {
                key_len: 0xffff,
                ..none
            },
        ),
        (
            "bytes of the value",
            Request {
                value_len: u32::MAX as usize,
                ..none
            },
        ),
        (
            "token",
            Request {
                token: u64::MAX,
                ..none
            },
        ),
        (
            "generation",
            Request {
                generation: u32::MAX,
                ..none
            },
        ),
        (
            "part",
            Request {
                part: u32::MAX,
                ..none
            },
        ),
    ];
    for (field, request) in all {
        let changed = difference(request.words(), none.words(), 4);
        assert_eq!(changed, [drawn("Messages", field, 3)], "{field}");
    }
    let none = Reply {
        status: ReplyStatus::Done,
        value_len: 0,
        token: 0,
        generation: 0,
        part: 0,
    };
    let all = [
        (
            "bytes of the value",
            Reply {
                value_len: u32::MAX as usize,
                ..none
            },
        ),
        (
            "the request's token",
            Reply {
                token: u64::MAX,
                ..none
            },
        ),
        (
            "generation",
            Reply {
                generation: u32::MAX,
                ..none
            },
        ),
        (
            "part",
            Reply {
                part: u32::MAX,
                ..none
            },
        ),
    ];
    for (field, reply) in all {
        let changed = difference(reply.words(), none.words(), 4);
        assert_eq!(changed, [drawn("Messages", field, 4)], "{field}");
    }
    assert!(PAGE.contains("4,064 bytes") && PART_BYTES == 4064);
    assert!(PAGE.contains(&format!("at most {CREDITS} messages")));
    let operations = "1 GET, 2 PUT, 3 DELETE, 4 adopted";
    let numbers = [Op::Get, Op::Put, Op::Delete, Op::Adopted].map(|op| op as u8);
    assert!(PAGE.contains(operations) && numbers == [1, 2, 3, 4]);
}
