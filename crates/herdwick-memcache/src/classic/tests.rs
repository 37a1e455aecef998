//! Tests of classic text decoding, among them that no cut of the stream changes the commands.

use super::*;
use crate::{Decoder, GET_LINE_BYTES_MAX, LINE_BYTES_MAX, Refused, meta::KeyRoom};
use proptest::prelude::*;

const VALUE_BYTES_MAX: usize = 100;

fn decode(input: &[u8]) -> Decoded<'_> {
    Decoder::new(VALUE_BYTES_MAX).decode(input, no_keys(), Admits::All)
}

fn command(input: &[u8]) -> Command<'_> {
    match decode(input) {
        Decoded::Command { command, .. } => command,
        other => panic!("{:?}: {other:?}", String::from_utf8_lossy(input)),
    }
}

fn requested(input: &[u8]) -> Asked<'_> {
    match decode(input) {
        Decoded::Request { asked, .. } => asked,
        other => panic!("{:?}: {other:?}", String::from_utf8_lossy(input)),
    }
}

fn is_refused(input: &[u8]) -> bool {
    matches!(decode(input), Decoded::Refused { .. })
}

fn refusal(input: &[u8]) -> (Refusal, bool) {
    match decode(input) {
        Decoded::Refused {
            refused: Refused::Line { refusal, noreply },
            ..
        } => (refusal, noreply),
        other => panic!("{:?}: {other:?}", String::from_utf8_lossy(input)),
    }
}

#[test]
fn decoded_command_reports_its_length() {
    let put = Put {
        mode: Mode::Set,
        compare: Some(7),
        flags: 4_294_967_295,
        exptime: 2_592_001,
        value: b"a\r\nb",
        ..Put::default()
    };
    let input = b"cas k 4294967295 -1 4 7 noreply\r\na\r\nb\r\nget";
    assert_eq!(
        decode(input),
        Decoded::Request {
            asked: asked(b"k", Op::Put(put), Shape::Stored, true),
            used: input.len() - 3,
            discard: 0
        }
    );
}

/// Only `set` removes the old value.
#[test]
fn oversized_block_is_reported_without_buffering() {
    let removal = Op::Delete(Delete::default());
    assert_eq!(
        decode(b"set k 0 0 101 noreply\r\n"),
        Decoded::Request {
            asked: asked(b"k", removal, Shape::TooLarge, true),
            used: 23,
            discard: 103
        }
    );
    for verb in ["add", "replace", "append", "prepend"] {
        let line = format!("{verb} k 0 0 101 noreply\r\n");
        assert_eq!(refusal(line.as_bytes()), (Refusal::TooLarge, true));
    }
    assert_eq!(refusal(b"cas k 0 0 101 1\r\n"), (Refusal::TooLarge, false));
}

/// Each command is the request that protocol.txt describes.
#[test]
fn commands_are_requests() {
    let put = |mode| {
        Op::Put(Put {
            mode,
            value: b"v",
            flags: 3,
            exptime: 4,
            ..Put::default()
        })
    };
    let arith = |decrement| {
        Op::Arith(Arith {
            decrement,
            delta: 5,
            ..Arith::default()
        })
    };
    let touch = Op::Get(Read {
        touch: Some(9),
        unaware: true,
        ..Read::default()
    });
    for (line, op, shape) in [
        ("set k 3 4 1\r\nv\r\n", put(Mode::Set), Shape::Stored),
        ("add k 3 4 1\r\nv\r\n", put(Mode::Add), Shape::Stored),
        (
            "replace k 3 4 1\r\nv\r\n",
            put(Mode::Replace),
            Shape::Stored,
        ),
        (
            "append k 3 4 1\r\nv\r\n",
            put(Mode::Append),
            Shape::Extended,
        ),
        (
            "prepend k 3 4 1\r\nv\r\n",
            put(Mode::Prepend),
            Shape::Extended,
        ),
        (
            "delete k\r\n",
            Op::Delete(Delete::default()),
            Shape::Deleted,
        ),
        ("incr k 5\r\n", arith(false), Shape::Number),
        ("decr k 5\r\n", arith(true), Shape::Number),
        ("touch k 9\r\n", touch, Shape::Touched),
    ] {
        assert_eq!(
            requested(line.as_bytes()),
            asked(b"k", op, shape, false),
            "{line:?}"
        );
    }
}

/// Of a command that is not admitted only the name decides: it is not decoded, whatever is behind
/// the name.
#[test]
fn command_that_is_not_admitted_is_not_decoded() {
    let reads = ["get", "gets", "gat", "gats", "mg", "me"];
    let mutations = [
        "set", "add", "replace", "append", "prepend", "cas", "delete", "incr", "decr", "touch",
        "ms", "md", "ma",
    ];
    let others = [
        "stats",
        "version",
        "quit",
        "mn",
        "flush_all",
        "verbosity",
        "bogus",
        "mx",
    ];
    let held = |name: &str, admits| {
        let valid = match name {
            "ms" => "k 1\r\nv\r\n",
            _ if mutations[..6].contains(&name) => "k 0 0 1 1\r\nv\r\n",
            "gat" | "gats" => "1 k\r\n",
            "mg" | "me" | "md" | "ma" => "k\r\n",
            _ => "k 1\r\n",
        };
        let held = ["\r\n", "HTTP/1.1\r\n", "! ! !\r\n", valid].map(|rest| {
            let line = format!("{name} {rest}");
            let mut decoder = Decoder::new(VALUE_BYTES_MAX);
            let keys = KeyRoom::new(1);
            let is_held = decoder.decode(line.as_bytes(), &keys, admits) == Decoded::Held;
            // It can be decoded later.
            let then = decoder.decode(line.as_bytes(), &keys, Admits::All);
            assert_eq!(then, decode(line.as_bytes()), "{line:?}");
            is_held
        });
        assert_eq!(held, [held[0]; 4], "{name}");
        held[0]
    };
    for name in reads {
        assert!(
            !held(name, Admits::Reads) && !held(name, Admits::Requests),
            "{name}"
        );
    }
    for name in mutations {
        assert!(
            held(name, Admits::Reads) && !held(name, Admits::Requests),
            "{name}"
        );
    }
    for name in others {
        assert!(
            held(name, Admits::Reads) && held(name, Admits::Requests),
            "{name}"
        );
    }
}

/// A line that is held is not searched for its end again: bytes before the end may change.
#[test]
fn end_of_a_held_line_is_found_once() {
    let (mut decoder, keys) = (Decoder::new(VALUE_BYTES_MAX), KeyRoom::default());
    let held = decoder.decode(b"delete key\r\nget a\r\n", &keys, Admits::Reads);
    assert_eq!(held, Decoded::Held);
    let other = b"delete k\ny\r\nget a\r\n";
    let Decoded::Request { used, .. } = decoder.decode(other, &keys, Admits::All) else {
        panic!("a request");
    };
    assert_eq!(used, 12);
    let mut decoder = Decoder::new(VALUE_BYTES_MAX);
    decoder.decode(b"delete key\r\nget a\r\n", &keys, Admits::Reads);
    decoder.check_again();
    let Decoded::Request { used, .. } = decoder.decode(other, &keys, Admits::All) else {
        panic!("a request");
    };
    assert_eq!(used, 9, "elsewhere in the stream");
}

#[test]
fn partial_block_reports_the_missing_bytes() {
    assert_eq!(
        decode(b"set k 0 0 100\r\nabc"),
        Decoded::NeedMore { at: 117 }
    );
    assert_eq!(decode(b"set k 0 0 100"), Decoded::NeedMore { at: 14 });
}

#[test]
fn get_iterates_over_its_keys() {
    const LINE: &[u8] = b"gats 5  a bb   ccc \r\n";
    let Decoded::Get { get, .. } = decode(LINE) else {
        panic!("no get");
    };
    let mut keys = Keys::new(get.keys.of(LINE));
    assert_eq!(keys.next(), Some(&b"a"[..]));
    let rest = get.keys.last(keys.rest().len()).of(LINE);
    assert_eq!(Keys::new(rest).collect::<Vec<_>>(), [&b"bb"[..], b"ccc"]);
    assert_eq!((get.with_cas, get.touch), (true, Some(5)));
    assert_eq!(get.keys.of(&LINE[..8]), b"", "of a shorter input");
}

#[test]
fn get_with_any_key_too_long_is_refused() {
    for position in 0..9 {
        for length in [250, 251, 500, 502] {
            let mut keys = vec![vec![b'k'; 120]; 9];
            keys[position] = vec![b'x'; length];
            let line = [&b"get "[..], &keys.join(&b' '), b"\r\n"].concat();
            assert_eq!(is_refused(&line), length > 250, "{length} at {position}");
        }
    }
}

#[test]
fn noreply_suppresses_refusals_except_of_too_few_words() {
    for (line, refusal_of_it) in [
        (&b"set k x 0 5 noreply\n"[..], (Refusal::Format, true)),
        (b"set k 0 0 -5 noreply\n", (Refusal::Format, false)),
        (b"set k 0 0 noreply\n", (Refusal::Format, false)),
        (b"set k 0 noreply\n", (Refusal::Format, false)),
        (b"incr k noreply\n", (Refusal::Delta, true)),
        (b"incr noreply\n", (Refusal::Format, false)),
        (b"verbosity noreply\n", (Refusal::Format, true)),
        (b"cache_memlimit noreply\n", (Refusal::Limit, true)),
        (b"flush_all x noreply\n", (Refusal::Exptime, true)),
    ] {
        assert_eq!(refusal(line), refusal_of_it, "{line:?}");
    }
    assert!(crate::is_noreply(b"bogus noreply"));
    assert!(!crate::is_noreply(b"noreply bogus"));
}

#[test]
fn too_few_words_are_an_error() {
    for line in [
        "\n",
        "\r\n",
        "a\r\n",
        "ab\n",
        "get\r\n",
        "gets \r\n",
        "gat\r\n",
        "gats 5\r\n",
        "gat x\r\n",
        "set a\r\n",
        "cas a 0 0\r\n",
        "incr a\r\n",
        "touch a\r\n",
        "delete\r\n",
        "verbosity\r\n",
        "mg\r\n",
        "ms a\r\n",
        "md\r\n",
        "ma\r\n",
        "me\r\n",
    ] {
        assert_eq!(
            refusal(line.as_bytes()),
            (Refusal::Format, false),
            "{line:?}"
        );
    }
}

/// A leading space hides a command, as in memcached, but not the operators' commands.
#[test]
fn command_with_leading_space_is_unknown() {
    let unknown = |line: &'static str| matches!(command(line.as_bytes()), Command::Unknown(_));
    assert!(unknown(" get a\r\n") && unknown("ab\r\n") && unknown("bget a\r\n"));
    assert!(matches!(command(b"  flush_all\r\n"), Command::FlushAll(_)));
}

#[test]
fn nul_byte_is_part_of_a_word() {
    assert_eq!(requested(b"delete a\0b\r\n").key, b"a\0b");
}

/// The block of a refused line is never executed, whatever is wrong with the line: its contents may
/// come from a client's user.
#[test]
fn block_of_a_refused_line_is_discarded() {
    let discarded = |line: &str| match decode(line.as_bytes()) {
        Decoded::Refused {
            refused: Refused::Line { refusal, noreply },
            used,
            discard,
        } => {
            assert_eq!(used, line.len());
            (refusal, noreply, discard)
        }
        other => panic!("{line:?}: {other:?}"),
    };
    let long = "k".repeat(251);
    for (line, noreply) in [
        (format!("set {long} 0 0 9\r\n"), false),
        (format!("append {long} 0 0 9 noreply\r\n"), true),
        ("set k x 0 9\r\n".into(), false),
        ("set k 18446744073709551616 0 9\r\n".into(), false),
        ("add k 0 x 9 noreply\r\n".into(), true),
        ("cas k 0 0 9\r\n".into(), false),
        ("cas k 0 0 9 \r\n".into(), false),
        ("cas k 0 0 9 noreply\r\n".into(), true),
        ("cas k 0 0 9 x\r\n".into(), false),
    ] {
        assert_eq!(discarded(&line), (Refusal::Format, noreply, 11), "{line}");
    }
    // The length of the block is unknown here, so nothing is dropped.
    assert_eq!(discarded("set k 0 0\r\n"), (Refusal::Format, false, 0));
    for bytes in ["-1", "x", "2147483646", "9x"] {
        let line = format!("set k 0 0 {bytes}\r\n");
        assert_eq!(discarded(&line), (Refusal::Format, false, 0), "{line}");
    }
}

#[test]
fn words_after_the_last_argument_are_ignored() {
    for more in ["", " more", " 1 2 3 4 5 6 7 8"] {
        for end in ["", " noreply"] {
            let line = format!("set k 0 0 1{more}{end}\r\nx\r\n");
            let put = Put {
                value: b"x",
                ..Put::default()
            };
            let expected = asked(b"k", Op::Put(put), Shape::Stored, !end.is_empty());
            assert_eq!(requested(line.as_bytes()), expected);
            for line in [
                "delete k",
                "touch k 1",
                "incr k 1",
                "verbosity 1",
                "flush_all 1",
            ] {
                let line = format!("{line}{more}{end}\r\n");
                assert!(!is_refused(line.as_bytes()), "{line}");
            }
        }
    }
}

#[test]
fn endless_lines_are_refused() {
    let junk = vec![b'a'; LINE_BYTES_MAX];
    assert_eq!(
        decode(&junk),
        Decoded::NeedMore {
            at: LINE_BYTES_MAX + 1
        }
    );
    assert_eq!(decode(&[&junk[..], b"a"].concat()), Decoded::Close);
    let mut get = b"gets ".to_vec();
    get.resize(GET_LINE_BYTES_MAX, b' ');
    assert!(matches!(decode(&get), Decoded::NeedMore { .. }));
    get.push(b' ');
    assert_eq!(decode(&get), Decoded::Close);
}

#[test]
fn http_requests_end_the_connection() {
    assert_eq!(decode(b"GET / HTTP/1.1\r\n"), Decoded::Close);
    assert_eq!(decode(b"POST /x HTTP/1.0\r\n"), Decoded::Close);
    assert_eq!(decode(b"gopher HTTP/1.1\r\n"), Decoded::Close);
    assert_eq!(decode(b"mx / HTTP/1.1\r\n"), Decoded::Close);
    assert!(matches!(command(b"HTTP/1.1\r\n"), Command::Unknown(_)));
    assert!(matches!(decode(b"get HTTP/1.1\r\n"), Decoded::Get { .. }));
}

/// Generates words of valid and broken commands.
fn word() -> impl Strategy<Value = Vec<u8>> {
    let fixed = [
        "get",
        "gets",
        "gat",
        "set",
        "cas",
        "append",
        "delete",
        "incr",
        "touch",
        "flush_all",
        "stats",
        "verbosity",
        "k",
        "0",
        "1",
        "5",
        "-1",
        "101",
        "noreply",
        "2147483646",
        "18446744073709551616",
    ];
    prop_oneof![
        8 => prop::sample::select(fixed.map(|w| w.as_bytes().to_vec()).to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..300),
    ]
}

proptest! {
    /// The decoded commands do not depend on how the stream is cut, and no command is complete with
    /// fewer bytes than `NeedMore` requested.
    #[test]
    fn commands_decode_alike_at_every_split(
        lines in prop::collection::vec((prop::collection::vec(word(), 0..7), any::<bool>()), 1..8),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let stream: Vec<u8> = lines
            .iter()
            .flat_map(|(words, crlf)| [&words.join(&b' ')[..], if *crlf { b"\r\n" } else { b"\n" }].concat())
            .collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        cuts.sort_unstable();
        cuts.push(stream.len());
        prop_assert_eq!(transcript(&stream, &[stream.len()]), transcript(&stream, &cuts));
    }
}

fn transcript(stream: &[u8], cuts: &[usize]) -> Vec<String> {
    let mut decoder = Decoder::new(VALUE_BYTES_MAX);
    let (mut said, mut at, mut wanted) = (Vec::new(), 0, 0);
    for &cut in cuts {
        while at < cut && cut - at >= wanted {
            let decoded = decoder.decode(&stream[at..cut], no_keys(), Admits::All);
            let (used, discard) = match decoded {
                Decoded::NeedMore { at: more } => {
                    assert!(more > cut - at);
                    wanted = more;
                    continue;
                }
                Decoded::Close => {
                    said.push("close".into());
                    return said;
                }
                Decoded::Announced { .. } | Decoded::Held => panic!("{decoded:?}"),
                Decoded::Get { used, .. } => (used, 0),
                Decoded::Request { used, discard, .. }
                | Decoded::Command { used, discard, .. }
                | Decoded::Refused { used, discard, .. } => (used, discard),
            };
            said.push(format!("{decoded:?}"));
            assert!(used > 0 && used <= cut - at);
            at += used + usize::try_from(discard).unwrap();
            wanted = 0;
        }
    }
    said
}

/// No key of these tests is in base64.
fn no_keys() -> &'static KeyRoom {
    Box::leak(Box::default())
}
