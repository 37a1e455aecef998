//! Tests of the binary protocol: packets as protocol-binary.txt draws them.

use super::*;
use crate::{Decoder, meta::KeyRoom};

const VALUE_BYTES_MAX: usize = 100;

/// Encodes a request as protocol-binary.txt draws it.
fn request(opcode: u8, extras: &[u8], key: &[u8], value: &[u8], unique: u64) -> Vec<u8> {
    let body = (extras.len() + key.len() + value.len()) as u32;
    let mut bytes = vec![REQUEST, opcode];
    bytes.extend_from_slice(&(key.len() as u16).to_be_bytes());
    bytes.extend_from_slice(&[extras.len() as u8, 0, 0, 0]);
    bytes.extend_from_slice(&body.to_be_bytes());
    bytes.extend_from_slice(b"abcd");
    bytes.extend_from_slice(&unique.to_be_bytes());
    [&bytes, extras, key, value].concat()
}

fn decode(input: &[u8]) -> Decoded<'_> {
    // No packet has a key in base64.
    let keys = Box::leak(Box::default());
    Decoder::new(VALUE_BYTES_MAX).decode(input, keys, Admits::All)
}

fn requested(input: &[u8]) -> (&[u8], Op<'_>, PacketAnswer) {
    match decode(input) {
        Decoded::Request {
            asked:
                Asked {
                    key,
                    op,
                    answer: Answer::Binary(answer),
                },
            used,
            discard,
        } => {
            assert_eq!((used, discard), (input.len(), 0));
            (key, op, answer)
        }
        other => panic!("{input:?}: {other:?}"),
    }
}

/// Returns what a packet is refused for, whether the connection is closed, and its length and the
/// bytes dropped behind it.
fn refused(input: &[u8]) -> (Status, bool, usize, u64) {
    match decode(input) {
        Decoded::Refused {
            refused: Refused::Packet { status, closes, .. },
            used,
            discard,
        } => (status, closes, used, discard),
        other => panic!("{input:?}: {other:?}"),
    }
}

fn packet(input: &[u8]) -> (Packet<'_>, usize, u64) {
    match decode(input) {
        Decoded::Command {
            command: Command::Packet(packet),
            used,
            discard,
        } => (packet, used, discard),
        other => panic!("{input:?}: {other:?}"),
    }
}

#[test]
fn set_is_decoded_only_when_complete() {
    let extras = [0, 0, 0, 9, 0xff, 0xff, 0xff, 0xff];
    let input = request(opcode::SETQ, &extras, b"key", b"value", 7);
    for cut in 1..input.len() {
        let Decoded::NeedMore { at } = decode(&input[..cut]) else {
            panic!("cut at {cut}")
        };
        assert!(cut < at && at <= input.len(), "cut at {cut}, requests {at}");
    }
    let put = |mode| {
        Op::Put(Put {
            mode,
            value: b"value",
            flags: 9,
            exptime: u32::MAX,
            compare: Some(7),
            ..Put::default()
        })
    };
    let (key, op, answer) = requested(&input);
    assert_eq!((key, op), (&b"key"[..], put(Mode::Set)));
    assert_eq!(answer.kind, PacketKind::Put);
    // With a CAS unique, `add` is a set.
    let input = request(opcode::ADD, &extras, b"key", b"value", 7);
    assert_eq!(requested(&input).1, put(Mode::Set));
}

#[test]
fn oversized_value_is_discarded_without_buffering() {
    let input = request(opcode::ADD, &[0; 8], b"key", &[b'x'; 101], 0);
    let expected = (Status::TooLarge, false, 24 + 8 + 3, 101);
    assert_eq!(refused(&input[..40]), expected);
    let input = request(opcode::SET, &[0; 8], b"key", &[b'x'; 101], 0);
    let Decoded::Request {
        asked,
        used,
        discard,
    } = decode(&input[..40])
    else {
        panic!("the removal of the old value");
    };
    assert_eq!((used, discard), (24 + 8 + 3, 101));
    assert_eq!(asked.op, Op::Delete(Delete::default()));
    assert!(asked.answer.is_refusal());
}

/// Of a packet that is not admitted only the opcode decides.
#[test]
fn packet_that_is_not_admitted_is_not_decoded() {
    for code in 0..=0xff {
        let get = matches!(opcode::plain(code), opcode::GET | opcode::GAT);
        let other = !get
            && !matches!(
                opcode::plain(code),
                opcode::SET..=opcode::DECREMENT | opcode::APPEND | opcode::PREPEND | opcode::TOUCH
            );
        for extras in [0, 4, 8, 20] {
            let input = request(code, &vec![0; extras], b"key", b"", 0);
            let held = |admits| {
                let keys = KeyRoom::default();
                Decoder::new(VALUE_BYTES_MAX).decode(&input, &keys, admits) == Decoded::Held
            };
            let seen = [Admits::Reads, Admits::Requests, Admits::All].map(held);
            assert_eq!(seen, [!get, other, false], "{code:#x}");
        }
    }
}

#[test]
fn a_sasl_message_is_read_whole_and_an_endless_one_is_discarded() {
    let input = request(opcode::SASL_AUTH, b"", b"PLAIN", b"\0u\0p", 0);
    let whole = Decoded::NeedMore { at: input.len() };
    assert_eq!(decode(&input[..input.len() - 1]), whole);
    let (auth, used, discard) = packet(&input);
    let message = Some(&b"\0u\0p"[..]);
    assert_eq!(
        (auth.key, auth.verb),
        (&b"PLAIN"[..], Verb::Sasl { message })
    );
    assert_eq!((used, discard), (input.len(), 0));
    let list = request(opcode::SASL_LIST, b"", b"", b"", 0);
    assert_eq!(packet(&list).0.verb, Verb::SaslList);
    for (len, discarded) in [
        (SASL_BYTES_MAX, 0),
        (SASL_BYTES_MAX + 1, SASL_BYTES_MAX + 1),
    ] {
        let input = request(opcode::SASL_STEP, b"", b"PLAIN", &vec![b'x'; len], 0);
        let (step, used, discard) = packet(&input);
        let message = (discarded == 0).then(|| &input[29..]);
        assert_eq!(step.verb, Verb::Sasl { message });
        assert_eq!((used, discard), (29 + len - discarded, discarded as u64));
    }
}

/// A server may answer a packet of which only the header is there.
#[test]
fn a_header_tells_what_is_asked() {
    let input = request(opcode::SETQ, &[0; 8], b"key", b"value", 0);
    assert_eq!(peek(&input[..23]), None);
    assert_eq!(peek(&input[..24]), Some(requested(&input).2.echo));
    assert_eq!(peek(b"get abcdefghijklmnopqrstuvwxyz\r\n"), None);
}

#[test]
fn increment_decodes_delta_initial_and_exptime() {
    let mut extras = [0; 20];
    extras[7] = 5;
    extras[15] = 10;
    let arith = |vivify, decrement| {
        Op::Arith(Arith {
            decrement,
            delta: 5,
            initial: 10,
            vivify,
            ..Arith::default()
        })
    };
    let input = request(opcode::INCREMENT, &extras, b"n", b"", 0);
    assert_eq!(requested(&input).1, arith(Some(0), false));
    extras[16..].fill(0xff);
    let input = request(opcode::DECREMENTQ, &extras, b"n", b"", 0);
    assert_eq!(requested(&input).1, arith(None, true));
}

#[test]
fn invalid_packets_are_refused_or_end_the_connection() {
    let fatal = (Status::Invalid, true);
    let long = [b'k'; 251];
    for (input, flaw, discard) in [
        (request(opcode::GET, b"", b"", b"", 0), fatal, 0),
        (request(opcode::GET, b"", b"k", b"v", 0), fatal, 0),
        (request(opcode::GET, b"", &long, b"", 0), fatal, 0),
        (request(opcode::SET, b"1234", b"k", b"v", 0), fatal, 0),
        (request(opcode::APPEND, b"1234", b"k", b"v", 0), fatal, 0),
        (request(opcode::INCREMENT, b"", b"k", b"", 0), fatal, 0),
        (request(opcode::TOUCH, b"", b"k", b"", 0), fatal, 0),
        (request(opcode::NOOP, b"", b"k", b"", 0), fatal, 0),
        (request(opcode::FLUSH, b"12", b"", b"", 0), fatal, 0),
        (request(opcode::SASL_LIST, b"", b"k", b"", 0), fatal, 0),
        (request(opcode::SASL_AUTH, b"x", b"k", b"", 0), fatal, 0),
        (request(opcode::SASL_STEP, b"", b"", b"v", 0), fatal, 0),
        (
            request(0x50, b"ab", b"key", b"value", 0),
            (Status::UnknownCommand, false),
            5,
        ),
    ] {
        let (status, closes, _, discarded) = refused(&input);
        assert_eq!(((status, closes), discarded), (flaw, discard), "{input:?}");
    }
    let mut short = request(opcode::GET, b"", b"key", b"", 0);
    short[11] = 2;
    assert_eq!(refused(&short), (Status::UnknownCommand, true, 24, 0));
    let (mut decoder, keys) = (Decoder::new(VALUE_BYTES_MAX), KeyRoom::default());
    let noop = request(opcode::NOOP, b"", b"", b"", 0);
    let decoded = decoder.decode(&noop, &keys, Admits::All);
    assert!(matches!(decoded, Decoded::Command { .. }));
    assert_eq!(
        decoder.decode(b"get a\r\n", &keys, Admits::All),
        Decoded::Close,
        "not in between"
    );
}

#[test]
fn responses_match_the_protocol_document() {
    let echo = requested(&request(opcode::GETK, b"", b"key", b"", 0))
        .2
        .echo;
    let mut out = Vec::new();
    echo.item(&mut out, b"key", 7, 3, b"value");
    let expected = b"\x81\x0c\x00\x03\x04\x00\x00\x00\x00\x00\x00\x0cabcd\
        \x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x07keyvalue";
    assert_eq!(out, expected);
    out.clear();
    echo.miss(&mut out, b"key");
    let expected = b"\x81\x0c\x00\x03\x00\x00\x00\x01\x00\x00\x00\x03abcd\
        \x00\x00\x00\x00\x00\x00\x00\x00key";
    assert_eq!(out, expected);
    out.clear();
    let echo = packet(&request(opcode::STAT, b"", b"", b"", 0)).0.echo;
    echo.stat(&mut out, "pid", 42);
    let expected = b"\x81\x10\x00\x03\x00\x00\x00\x00\x00\x00\x00\x05abcd\
        \x00\x00\x00\x00\x00\x00\x00\x00pid42";
    assert_eq!(out, expected);
    out.clear();
    let quiet = requested(&request(opcode::GETQ, b"", b"key", b"", 0))
        .2
        .echo;
    quiet.miss(&mut out, b"key");
    quiet.done(&mut out, &Body::default());
    assert_eq!(out, b"");
    quiet.error(&mut out, Status::NotFound);
    assert_eq!(&out[24..], b"Not found");
}
