//! Random binary packets, valid and broken. Cases where this server deliberately differs from the
//! oracle are in `differences`.

use herdwick_memcache::binary::opcode;
use proptest::prelude::*;

use crate::classic::{key, value};

/// Encodes a request as protocol-binary.txt defines it.
pub(crate) fn packet(opcode: u8, extras: &[u8], key: &[u8], value: &[u8], unique: u64) -> Vec<u8> {
    let body = (extras.len() + key.len() + value.len()) as u32;
    let mut bytes = vec![0x80, opcode];
    bytes.extend_from_slice(&(key.len() as u16).to_be_bytes());
    bytes.extend_from_slice(&[extras.len() as u8, 0, 0, 0]);
    bytes.extend_from_slice(&body.to_be_bytes());
    bytes.extend_from_slice(b"opaq");
    bytes.extend_from_slice(&unique.to_be_bytes());
    [&bytes, extras, key, value].concat()
}

/// Encodes the end of a conversation.
pub(crate) fn quit() -> Vec<u8> {
    packet(opcode::QUIT, b"", b"", b"", 0)
}

/// Returns the responses without what may differ: CAS uniques and the version.
pub(crate) fn normalised(mut replies: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some((header, rest)) = replies.split_first_chunk::<24>() {
        let mut header = *header;
        let body = u32::from_be_bytes([header[8], header[9], header[10], header[11]]) as usize;
        let (body, rest) = rest.split_at(body.min(rest.len()));
        if header[16..].iter().any(|&byte| byte != 0) {
            header[16..].fill(1);
        }
        if header[1] == opcode::VERSION && header[7] == 0 {
            header[8..12].fill(0);
            out.extend_from_slice(&header);
        } else {
            out.extend_from_slice(&header);
            out.extend_from_slice(body);
        }
        replies = rest;
    }
    out.extend_from_slice(replies);
    out
}

fn keys() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        10 => key().prop_map(String::into_bytes),
        1 => Just(b"\x00 \r\n\xff".to_vec()),
    ]
}

fn unique() -> impl Strategy<Value = u64> {
    prop_oneof![6 => Just(0), 1 => Just(999_999_999)]
}

fn exptime() -> impl Strategy<Value = u32> {
    let times = [2_592_000, 2_592_001, i32::MAX as u32, 1 << 31, u32::MAX - 1];
    prop::sample::select([&[0, 1000], &times[..]].concat())
}

/// The exptime of an item to create; the last value creates none.
fn beginning() -> impl Strategy<Value = u32> {
    prop_oneof![4 => exptime(), 1 => Just(u32::MAX)]
}

fn with_key(opcodes: &'static [u8]) -> impl Strategy<Value = Vec<u8>> {
    (prop::sample::select(opcodes), keys(), unique())
        .prop_map(|(opcode, key, unique)| packet(opcode, b"", &key, b"", unique))
}

fn touching(opcodes: &'static [u8]) -> impl Strategy<Value = Vec<u8>> {
    (prop::sample::select(opcodes), exptime(), keys())
        .prop_map(|(opcode, exptime, key)| packet(opcode, &exptime.to_be_bytes(), &key, b"", 0))
}

/// Packets whose responses reference an item.
pub(crate) fn reads() -> impl Strategy<Value = Vec<u8>> {
    use opcode::*;
    prop_oneof![
        3 => with_key(&[GET, GETQ, GETK, GETKQ]),
        1 => touching(&[GAT, GATQ, GATK, GATKQ, TOUCH]),
        1 => Just(packet(NOOP, b"", b"", b"", 0)),
    ]
}

/// Arithmetic packets.
pub(crate) fn counts() -> impl Strategy<Value = Vec<u8>> {
    use opcode::*;
    let opcode = prop::sample::select(vec![INCREMENT, INCREMENTQ, DECREMENT, DECREMENTQ]);
    let number = || prop::sample::select(vec![0u64, 1, 9, 100, 1 << 40]);
    (opcode, number(), number(), beginning(), keys(), unique()).prop_map(
        |(opcode, delta, initial, exptime, key, unique)| {
            let (delta, initial) = (delta.to_be_bytes(), initial.to_be_bytes());
            let extras = [&delta[..], &initial, &exptime.to_be_bytes()].concat();
            packet(opcode, &extras, &key, b"", unique)
        },
    )
}

/// Packets that store, delete, or query the server.
pub(crate) fn mutations() -> impl Strategy<Value = Vec<u8>> {
    use opcode::*;
    let opcode = prop::sample::select(vec![SET, SETQ, ADD, ADDQ, REPLACE, REPLACEQ]);
    let set = (opcode, any::<u32>(), exptime(), keys(), value(), unique()).prop_map(
        |(opcode, flags, exptime, key, value, unique)| {
            let extras = [flags.to_be_bytes(), exptime.to_be_bytes()].concat();
            packet(opcode, &extras, &key, &value, unique)
        },
    );
    let opcode = prop::sample::select(vec![APPEND, APPENDQ, PREPEND, PREPENDQ]);
    let join = (opcode, keys(), value(), unique())
        .prop_map(|(opcode, key, value, unique)| packet(opcode, b"", &key, &value, unique));
    let other = prop_oneof![
        Just(packet(VERSION, b"", b"", b"", 0)),
        Just(packet(FLUSH, b"", b"", b"", 0)),
        Just(packet(FLUSHQ, &[0; 4], b"", b"", 0)),
        Just(packet(STAT, b"", b"reset", b"", 0)),
        Just(packet(STAT, b"", b"nothing", b"", 0)),
        Just(packet(SASL_LIST, b"", b"", b"", 0)),
        Just(packet(SASL_AUTH, b"", b"PLAIN", b"\0user\0pass", 0)),
        Just(packet(SASL_STEP, b"", b"PLAIN", b"", 0)),
        prop::sample::select(vec![0x1b, 0x1f, 0x25, 0x7f, 0xff])
            .prop_map(|opcode| packet(opcode, b"", b"", b"value", 0)),
    ];
    prop_oneof![
        5 => set,
        2 => join,
        2 => with_key(&[DELETE, DELETEQ]),
        1 => other,
    ]
}

/// Excludes statistics, which differ; unknown opcodes with a key, of which the oracle reads too
/// much; and values where the oracle expects none, after which it loses earlier replies.
fn needs_no_care(packet: &[u8]) -> bool {
    use opcode::*;
    let value = packet[11] > packet[3] + packet[4];
    match plain(packet[1]) {
        STAT | 0x1b | 0x1f | SASL_LIST..=SASL_STEP => false,
        GAT | TOUCH => !value,
        _ => true,
    }
}

/// Malformed packets, which end the conversation.
pub(crate) fn fatal() -> impl Strategy<Value = Vec<u8>> {
    use opcode::*;
    let shapeless =
        (0u8..0x25, 0usize..30, 0usize..3, 0usize..3).prop_map(|(opcode, extras, key, value)| {
            packet(
                opcode,
                &[0; 30][..extras],
                &b"abc"[..key],
                &b"xyz"[..value],
                0,
            )
        });
    prop_oneof![
        4 => shapeless.prop_filter("needs care", |packet| needs_no_care(packet)),
        1 => Just(packet(GET, b"", &[b'k'; 251], b"", 0)),
        1 => Just({
            let mut short = packet(GET, b"", b"key", b"", 0);
            short[11] = 2;
            short
        }),
        1 => Just(packet(QUITQ, b"", b"", b"", 0)),
    ]
}

/// Encodes a packet of this opcode with its extras, for one key and CAS unique.
pub(crate) fn comparing(opcode: u8, key: &[u8], unique: u64) -> Vec<u8> {
    use opcode::*;
    let (extras, value): (&[u8], &[u8]) = match plain(opcode) {
        SET | ADD | REPLACE => (&[0; 8], b"5"),
        APPEND | PREPEND => (b"", b"5"),
        INCREMENT | DECREMENT => (&[0; 20], b""),
        GET | DELETE => (b"", b""),
        _ => return packet(NOOP, b"", b"", b"", unique),
    };
    packet(opcode, extras, key, value, unique)
}
