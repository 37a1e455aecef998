//! Compares the layouts drawn in `docs/clover.md` with encoded words.

use herdwick_clover::{
    Grant, Invitation, NodeGrant, Right,
    layout::{
        CRC_WORD, ENTRY_BYTES_MAX, Geometry, HEAD_BYTES, HEAD_WORD, HEADER_BYTES, Head,
        KEY_BYTES_MAX, LINK_WORD, Link, MEMBER_WORD, Membership, Next, Place, STORE_WORD,
        VERSIONS_MAX,
    },
    message::{BATCH, CALLS_MAX, Call, CallOp, CallStatus, NUMBERS_MAX, Reply},
};
use herdwick_conformance::document::{assert_drawn, code_table, rows};
use herdwick_fabric::{Endpoint, PdTicket, Remote, Rkey};
use herdwick_request::HashKey;

const PAGE: &str = include_str!("../../../../docs/clover.md");

/// Returns the word and the mask that the row of a field draws.
fn drawn(section: &str, field: &str) -> (usize, u64) {
    let rows = rows(PAGE, section);
    let row = rows.iter().find(|row| row[2].starts_with(field));
    let row = row.unwrap_or_else(|| panic!("no row of {field} in {section}"));
    let (first, last) = row[1].split_once('-').unwrap_or((row[1], row[1]));
    let (first, last): (u32, u32) = (first.parse().unwrap(), last.parse().unwrap());
    let mask = (u64::MAX >> (63 - last + first)) << first;
    (row[0].parse().unwrap(), mask)
}

#[track_caller]
fn assert_field<const N: usize>(section: &str, field: &str, all: [u64; N], none: [u64; N]) {
    let words = all.into_iter().zip(none).map(|(a, b)| a ^ b);
    let changed: Vec<_> = words.enumerate().filter(|(_, bits)| *bits > 0).collect();
    assert_eq!(changed, [drawn(section, field)], "{field}");
}

#[test]
fn entries_are_as_drawn() {
    let place = Place {
        target: u32::MAX - 1,
        version: 0,
        tombstone: false,
    };
    let none = Link {
        own: 0,
        next: None,
        committed: true,
    };
    let link = |section, field, link: Link, from: Link| {
        assert_field(section, field, [link.word()], [from.word()]);
    };
    let next = |place| Link {
        next: Some(Next::Entry(place)),
        ..none
    };
    // The last unit is not an entry: the marker of a closed chain.
    let closed = Link {
        next: Some(Next::Closed),
        ..none
    };
    link("link", "successor", closed, none);
    assert!(PAGE.contains("4,294,967,295") && closed.word() == u64::from(u32::MAX));
    let version = Place {
        version: VERSIONS_MAX - 1,
        ..place
    };
    link(
        "link",
        "version of the successor",
        next(version),
        next(place),
    );
    link(
        "link",
        "version of this entry",
        Link {
            own: VERSIONS_MAX - 1,
            ..none
        },
        none,
    );
    link(
        "link",
        "uncommitted",
        Link {
            committed: false,
            ..none
        },
        none,
    );
    link(
        "link",
        "tombstone",
        next(Place {
            tombstone: true,
            ..place
        }),
        next(place),
    );
    let none = Head {
        key_len: 0,
        value_len: 0,
        version: 0,
        tombstone: false,
    };
    let heads = [
        (
            "bytes of the value",
            Head {
                value_len: (1 << 20) - 1,
                ..none
            },
        ),
        (
            "bytes of the key",
            Head {
                key_len: 255,
                ..none
            },
        ),
        (
            "version",
            Head {
                version: VERSIONS_MAX - 1,
                ..none
            },
        ),
        (
            "tombstone",
            Head {
                tombstone: true,
                ..none
            },
        ),
    ];
    for (field, head) in heads {
        assert_field("head", field, [head.word()], [none.word()]);
    }
    let words = rows(PAGE, "entry");
    let drawn: Vec<_> = words.iter().map(|row| (row[0], row[1])).collect();
    let expected = [
        ("0", "link"),
        ("8", "CRC"),
        ("16", "head"),
        ("24", "key"),
        ("behind the key", "value"),
    ];
    assert_eq!(drawn, expected);
    assert_eq!(
        (LINK_WORD * 8, CRC_WORD * 8, HEAD_WORD * 8, HEAD_BYTES),
        (0, 8, 16, 24)
    );
    for (text, number) in [
        ("1 to 250 bytes", KEY_BYTES_MAX == 250),
        ("64 bytes to 32 KiB", ENTRY_BYTES_MAX == 32 << 10),
        ("16,384", VERSIONS_MAX == 16_384),
    ] {
        assert!(PAGE.contains(text) && number, "{text}");
    }
}

#[test]
fn the_header_is_as_drawn() {
    let none = Geometry {
        slots: 0,
        entries: [0; 10],
        versions: 0,
    };
    let all = Geometry {
        slots: u32::MAX,
        ..none
    };
    let field = |field, all: Geometry| {
        assert_field(
            "header",
            field,
            all.words().map(|word| word & 0xffff_ffff_ffff),
            none.words().map(|word| word & 0xffff_ffff_ffff),
        )
    };
    field("shortcuts", all);
    field(
        "versions",
        Geometry {
            versions: u16::MAX,
            ..none
        },
    );
    let mut entries = [0; 10];
    entries[0] = u32::MAX;
    field(
        "entries of the class of 64 bytes",
        Geometry { entries, ..none },
    );
    let none = Membership::default();
    let words = |membership: Membership| membership.words();
    let member = |field, all: Membership| {
        let header = |[store, member]: [u64; 2]| {
            let mut words = [0; STORE_WORD + 2];
            (words[STORE_WORD], words[MEMBER_WORD]) = (store, member);
            words
        };
        assert_field("header", field, header(words(all)), header(words(none)));
    };
    member(
        "number of the store",
        Membership {
            store: u64::MAX,
            ..none
        },
    );
    member(
        "generation",
        Membership {
            generation: u16::MAX,
            ..none
        },
    );
    member(
        "index",
        Membership {
            index: u8::MAX,
            ..none
        },
    );
    member(
        "members",
        Membership {
            members: u8::MAX,
            ..none
        },
    );
    let last = 3 + 9;
    assert!(
        rows(PAGE, "header")
            .iter()
            .any(|row| row[0] == format!("4-{last}"))
    );
    assert!(PAGE.contains("shortcuts begin at byte 128") && HEADER_BYTES == 128);
}

#[test]
fn messages_are_as_drawn() {
    let none = Call {
        op: CallOp::Find,
        len: 0,
        class: 0,
        token: 0,
        published: 0,
        entry: 0,
    };
    let calls = [
        (
            "bytes of the body",
            Call {
                len: 0xffff,
                ..none
            },
        ),
        (
            "size class",
            Call {
                class: u32::MAX as usize,
                ..none
            },
        ),
        (
            "token",
            Call {
                token: u64::MAX,
                ..none
            },
        ),
        (
            "epoch that",
            Call {
                published: u64::MAX,
                ..none
            },
        ),
        (
            "entry",
            Call {
                entry: u64::MAX,
                ..none
            },
        ),
    ];
    for (field, call) in calls {
        assert_field("call", field, call.words(), none.words());
    }
    let none = Reply {
        status: CallStatus::Done,
        token: 0,
        epoch: 0,
        flush: 0,
        words: Default::default(),
    };
    let words = |reply: &Reply| -> [u64; 4] { reply.message()[..4].try_into().unwrap() };
    let replies = [
        (
            "token",
            Reply {
                token: u64::MAX,
                ..none.clone()
            },
        ),
        (
            "server's epoch",
            Reply {
                epoch: u64::MAX,
                ..none.clone()
            },
        ),
        (
            "epoch of the last flush",
            Reply {
                flush: u64::MAX,
                ..none.clone()
            },
        ),
    ];
    for (field, reply) in replies {
        assert_field("reply", field, words(&reply), words(&none));
    }
    let operations = CallOp::ALL.map(|op| (format!("{op:?}"), op as u8));
    assert_drawn(PAGE, "calls", &code_table("call", operations));
    let statuses = CallStatus::ALL.map(|status| (format!("{status:?}"), status as u8));
    assert_drawn(PAGE, "statuses", &code_table("status", statuses));
    for (text, holds) in [
        ("16 entries", BATCH == 16),
        ("16 calls", CALLS_MAX == 16),
        ("up to 32 slots", NUMBERS_MAX == 32),
    ] {
        assert!(PAGE.contains(text) && holds, "{text} {NUMBERS_MAX}");
    }
}

/// Returns the bytes at which the fields of a part begin.
fn offsets(section: &str) -> Vec<usize> {
    let rows = rows(PAGE, section);
    rows.iter().map(|row| row[0].parse().unwrap()).collect()
}

#[test]
fn the_parts_of_a_session_are_as_drawn() {
    let end = |byte| Endpoint::new(&[byte; 5]).unwrap();
    let ticket = |byte| PdTicket {
        fds: Vec::new(),
        blob: vec![byte; 3],
    };
    let geometry = Geometry {
        slots: 7,
        entries: [3; 10],
        versions: 2,
    };
    let membership = Membership::of([0x1122, 0x33]);
    let node = NodeGrant {
        writes: end(1),
        reads: end(2),
        memory: Remote {
            rkey: Rkey(0x0102_0304),
            addr: 0x0506_0708,
        },
        ticket: ticket(3),
        geometry,
        right: Right::Write,
        membership,
    };
    let server = Grant {
        calls: end(4),
        hash_key: HashKey([0x0a0b, 0x0c0d]),
        right: Right::Read,
    };
    let invitation = Invitation {
        server: (ticket(5), server),
        nodes: vec![(ticket(6), node)],
    };
    let parts = invitation.into_parts();
    let blob = |byte, len: u8| [vec![len, 0], vec![byte; len.into()]].concat();
    let word = |word: u64| word.to_le_bytes().to_vec();

    let (drawn, part) = (offsets("server part"), &parts[0].blob);
    let fields = [
        vec![0],
        [word(0x0a0b), word(0x0c0d)].concat(),
        [blob(5, 3), blob(4, 5)].concat(),
    ];
    assert_fields(&drawn, part, &fields);

    let (drawn, part) = (offsets("node part"), &parts[1].blob);
    let header = geometry.words().into_iter().chain(membership.words());
    let header: Vec<_> = header.flat_map(u64::to_le_bytes).collect();
    let fields = [
        vec![1],
        vec![0],
        0x0102_0304_u32.to_le_bytes().to_vec(),
        word(0x0506_0708),
        header,
        [blob(6, 3), blob(3, 3), blob(1, 5), blob(2, 5)].concat(),
    ];
    assert_fields(&drawn, part, &fields);
}

/// Asserts that a part is these fields, each where it is drawn.
#[track_caller]
fn assert_fields(drawn: &[usize], part: &[u8], fields: &[Vec<u8>]) {
    let mut at = 0;
    for (field, drawn) in fields.iter().zip(drawn) {
        assert_eq!((at, &part[at..at + field.len()]), (*drawn, &field[..]));
        at += field.len();
    }
    assert_eq!((fields.len(), part.len()), (drawn.len(), at));
}
