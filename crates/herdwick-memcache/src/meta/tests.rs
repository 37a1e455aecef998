//! Tests of the meta commands' decoding: order of flags, blocks, and memcached's refusals.

use super::*;
use crate::{Decoder, Refused};

const VALUE_BYTES_MAX: usize = 100;

fn decode(input: &[u8]) -> Decoded<'_> {
    let keys = Box::leak(Box::new(KeyRoom::new(1)));
    Decoder::new(VALUE_BYTES_MAX).decode(input, keys, Admits::All)
}

fn meta(input: &[u8]) -> (&[u8], Op<'_>, MetaAnswer<'_>) {
    match decode(input) {
        Decoded::Request {
            asked:
                Asked {
                    key,
                    op,
                    answer: Answer::Meta(answer),
                },
            ..
        } => (key, op, answer),
        other => panic!("{:?}: {other:?}", String::from_utf8_lossy(input)),
    }
}

/// Returns the refusal of a line, and the bytes of the stream dropped with it.
fn refusal(input: &[u8]) -> (Refusal, u64) {
    match decode(input) {
        Decoded::Refused {
            refused:
                Refused::Line {
                    refusal,
                    noreply: false,
                },
            discard,
            ..
        } => (refusal, discard),
        other => panic!("{:?}: {other:?}", String::from_utf8_lossy(input)),
    }
}

fn letters(answer: &MetaAnswer<'_>) -> String {
    answer.echo().returns.into_iter().map(char::from).collect()
}

#[test]
fn meta_flags_keep_their_order_and_arguments() {
    let (key, op, answer) = meta(b"mg key t f s Oabc k T30 c h l N5 R7 q v u E9 C8\r\n");
    let get = Get {
        touch: Some(30),
        vivify: Some(5),
        recache: Some(7),
        touch_first: true,
        unaware: false,
        version: Some(9),
        quiet_access: true,
    };
    assert_eq!((key, op), (&b"key"[..], Op::Get(get)));
    assert_eq!(letters(&answer), "tfsOkchl");
    assert_eq!(answer.opaque(), b"Oabc");
    assert!(answer.echo().quiet);
    let (_, op, _) = meta(b"md k C1 E2 I T3 x F4\r\n");
    let delete = Delete {
        compare: Some(1),
        version: Some(2),
        invalidate: true,
        exptime: Some(3),
        drop_value: true,
        flags: 4,
    };
    assert_eq!(op, Op::Delete(delete));
    let (_, op, _) = meta(b"ma k MD D9 N3 J4 T5 C6 E7\r\n");
    let arith = Arith {
        decrement: true,
        delta: 9,
        vivify: Some(5),
        initial: 4,
        touch: Some(5),
        compare: Some(6),
        version: Some(7),
    };
    assert_eq!(op, Op::Arith(arith));
}

#[test]
fn t_returns_the_ttl_set_by_flags_before_it() {
    let shows = |line: &'static [u8]| {
        let (_, op, answer) = meta(line);
        let Op::Get(get) = op else { panic!("a read") };
        let (shows, shows_made) = answer.shown_times();
        (shows, shows_made, get.vivify)
    };
    assert_eq!(shows(b"mg k t T30 N20\n"), (None, 0, Some(20)));
    assert_eq!(shows(b"mg k T30 t N20\n"), (Some(30), 30, Some(20)));
    assert_eq!(shows(b"mg k N20 t T30\n"), (None, 20, Some(30)));
}

#[test]
fn meta_set_is_decoded_with_its_block() {
    let input = b"ms a2V5 2 MA T0 F5 I C7 b\r\nhi\r\nmn\r\n";
    let Decoded::Request { used, discard, .. } = decode(input) else {
        panic!("a complete command")
    };
    assert_eq!((used, discard), (input.len() - 4, 0));
    let input = b"ms a2V5 2 MA T0 F5 I C7 b S\r\nhi\r\n";
    assert_eq!(refusal(input), (Refusal::FlagInvalid, 4));
    let (key, op, answer) = meta(b"ms a2V5 2 MA T0 F5 I C7 b\r\nhi\r\n");
    let put = Put {
        mode: Mode::Append,
        value: b"hi",
        flags: 5,
        invalidate: true,
        compare: Some(7),
        ..Put::default()
    };
    assert_eq!((key, op), (&b"key"[..], Op::Put(put)));
    assert!(answer.echo().base64);
    assert_eq!(decode(b"ms k 2\r\nhi\r"), Decoded::NeedMore { at: 12 });
    let Decoded::Request { asked, discard, .. } = decode(b"ms k 101 T0\r\n") else {
        panic!("an oversized block")
    };
    assert_eq!(discard, 103);
    assert_eq!(asked.op, Op::Delete(Delete::default()));
    assert!(asked.answer.is_refusal());
}

#[test]
fn refusals_have_memcacheds_wording() {
    let long = "k".repeat(251);
    let many = "mg k b v u q O1 k s t c f h l T1 N1 R1 C1 D1 J1 E1\r\n";
    let long_set = many.replace("mg k b", "ms k 5");
    for (line, expected, discard) in [
        ("mg\r\n", Refusal::Format, 0),
        ("ms k\r\n", Refusal::Format, 0),
        ("me\r\n", Refusal::Format, 0),
        ("me k !\r\n", Refusal::Format, 0),
        ("mg k v v\r\n", Refusal::FlagDuplicate, 0),
        ("mg k !\r\n", Refusal::Format, 0),
        ("mg k v v \u{e9}\r\n", Refusal::Format, 0),
        ("ma k v v {\r\n", Refusal::Format, 0),
        ("mg k 7\r\n", Refusal::FlagInvalid, 0),
        ("mg k _\r\n", Refusal::FlagInvalid, 0),
        ("mg k Tx\r\n", Refusal::Token, 0),
        ("mg k T2147483648\r\n", Refusal::Token, 0),
        ("mg k b\r\n", Refusal::KeyEncoding, 0),
        ("mg k b Tx\r\n", Refusal::Token, 0),
        ("mg k Tx Fx\r\n", Refusal::Token, 0),
        ("mg k Fx\r\n", Refusal::Format, 0),
        ("md k v v\r\n", Refusal::FlagDuplicate, 0),
        ("md k S\r\n", Refusal::FlagInvalid, 0),
        ("md k Cx\r\n", Refusal::Token, 0),
        ("ma k Dx\r\n", Refusal::FlagInvalidOrDuplicate, 0),
        ("ma k Fx\r\n", Refusal::FlagInvalidOrDuplicate, 0),
        (
            &format!("ma {long}\r\n"),
            Refusal::FlagInvalidOrDuplicate,
            0,
        ),
        ("ma k MX\r\n", Refusal::ArithMode, 0),
        ("ma k M\r\n", Refusal::ArithMode, 0),
        ("mg k Dx\r\n", Refusal::DeltaValue, 0),
        ("mg k D\r\n", Refusal::DeltaValue, 0),
        ("mg k Jx\r\n", Refusal::InitialValue, 0),
        ("ms k 1 MX\r\n", Refusal::SetMode, 3),
        ("ms k 1 M\r\n", Refusal::SetMode, 3),
        ("ms k 1 !\r\n", Refusal::Format, 3),
        ("ms k x\r\n", Refusal::Format, 0),
        ("ms k -1\r\n", Refusal::Format, 0),
        ("ms k 1\r\nabc", Refusal::DataChunk, 0),
        (many, Refusal::FlagsTooLong, 0),
        (&many.replace("mg", "md"), Refusal::FlagsTooLong, 0),
        (
            &many.replace("mg", "ma"),
            Refusal::FlagInvalidOrDuplicate,
            0,
        ),
        (&long_set, Refusal::FlagsTooLong, 7),
        (&format!("mg {long}\r\n"), Refusal::Format, 0),
        (&format!("ms {long} 2\r\n"), Refusal::Format, 4),
        (&format!("ms {long} x\r\n"), Refusal::Format, 0),
        (&format!("mg k O{}\r\n", &long[..32]), Refusal::Opaque, 0),
        (&format!("ms k 2 O{}\r\n", &long[..32]), Refusal::Opaque, 4),
    ] {
        assert_eq!(refusal(line.as_bytes()), (expected, discard), "{line}");
    }
}

#[test]
fn mode_is_its_first_letter_and_flag_count_is_limited_as_in_memcached() {
    let (_, op, _) = meta(b"ms k 1 MEX\r\nx\r\n");
    assert!(matches!(
        op,
        Op::Put(Put {
            mode: Mode::Add,
            ..
        })
    ));
    let most = b"mg a2V5 b v u q O1 k s t c f h l T1 N1 R1 C1 D1 J1\r\n";
    assert_eq!(meta(most).0, b"key");
}

#[test]
fn replies_return_flags_in_request_order() {
    let (_, _, answer) = meta(b"mg a2V5 t k O1 c s f v h l b\r\n");
    let echo = answer.echo();
    let shown = Shown {
        key: b"key",
        value: Some(b"abc"),
        size: 3,
        client_flags: 9,
        unique: 12,
        left: Some(30),
        idle: 4,
        fetched: true,
        won: true,
        stale: true,
        win_sent: false,
    };
    let mut out = Vec::new();
    echo.hit(&mut out, &shown);
    echo.bare(&mut out, Status::Miss, b"key");
    echo.stored(&mut out, Status::Exists, &shown);
    echo.counted(
        &mut out,
        &Shown {
            value: None,
            left: None,
            ..shown
        },
    );
    let expected = "VA 3 t30 ka2V5 b O1 c12 s3 f9 h1 l4 X W\r\nabc\r\n\
        EN ka2V5 b O1\r\nEX ka2V5 b O1 c12 s3\r\nHD t-1 ka2V5 b O1 c12\r\n";
    assert_eq!(String::from_utf8_lossy(&out), expected);
}

#[test]
fn quiet_flag_suppresses_nominal_replies() {
    let (_, _, answer) = meta(b"mg k q\r\n");
    let quiet = answer.echo();
    let mut out = Vec::new();
    let shown = Shown::default();
    quiet.bare(&mut out, Status::Miss, b"k");
    quiet.bare(&mut out, Status::Done, b"k");
    quiet.stored(&mut out, Status::Done, &shown);
    quiet.counted(&mut out, &shown);
    assert_eq!(out, b"");
    quiet.bare(&mut out, Status::NotFound, b"k");
    quiet.stored(&mut out, Status::NotStored, &shown);
    quiet.hit(&mut out, &shown);
    assert_eq!(out, b"NF\r\nNS\r\nHD\r\n");
}

#[test]
fn line_of_one_letter_ends_before_a_space_of_the_next() {
    // The space stands where a meta command has the one before its key.
    let input = b"m\n \r\nmn\r\n";
    let keys = KeyRoom::new(1);
    let decoded = Decoder::new(100).decode(input, &keys, Admits::All);
    assert!(
        matches!(decoded, Decoded::Refused { used: 2, .. }),
        "{decoded:?}"
    );
}
