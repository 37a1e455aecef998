//! How often commands are decoded, and their keys scanned.

use std::ops::Range;

use super::{LINES, SCANS};
use crate::{Admits, Decoded, Decoder, Keys, meta::KeyRoom};

fn lines() -> usize {
    LINES.replace(0)
}

/// Returns how often each byte of `part` was scanned, at most.
fn scans_of(part: &[u8]) -> usize {
    let start = part.as_ptr() as usize;
    let scans = SCANS.take();
    let of = |byte| scans.iter().filter(|scan| scan.contains(&byte)).count();
    (start..start + part.len()).map(of).max().unwrap_or(0)
}

/// Keys of all, and commands that have them.
const COMMANDS: [(&str, &str); 14] = [
    ("some:key", "set some:key 1 2 20\r\n"),
    ("some:key", "cas some:key 1 2 20 7 noreply\r\n"),
    ("some:key", "append some:key 1 2 20000\r\n"),
    ("some:key", "ms some:key 20 T9 Oopaque k\r\n"),
    ("c29tZTprZXk=", "ms c29tZTprZXk= 20 b T9 Oopaque k\r\n"),
    ("c29tZTprZXk=", "ms c29tZTprZXk= 20000 T9 b\r\n"),
    ("some:key", "mg some:key v k\r\n"),
    ("some:key", "mg some:key\r\n"),
    ("c29tZTprZXk=", "mg c29tZTprZXk= v b k\r\n"),
    ("c29tZTprZXk=", "md c29tZTprZXk= b\r\n"),
    ("c29tZTprZXk=", "ma c29tZTprZXk= b D7\r\n"),
    ("some:key", "get some:key\r\n"),
    ("some:key", "delete some:key noreply\r\n"),
    ("some:key", "incr some:key 7\r\n"),
];

/// The command with its block, if it has one.
fn whole(command: &str) -> Vec<u8> {
    let is_put = ["set", "cas", "app", "ms "]
        .iter()
        .any(|name| command.starts_with(name));
    let len = match () {
        () if !is_put => return command.into(),
        () if command.contains(" 20000") => 20_000,
        () => 20,
    };
    [command.as_bytes(), &vec![b'v'; len], b"\r\n"].concat()
}

/// Decodes `input`, of which `step` bytes more arrive each time that the decoder can go on; returns what
/// the command was.
fn arriving(input: &[u8], step: usize, announces: bool, keys: &KeyRoom) -> String {
    let mut decoder = Decoder::new(1 << 20);
    if announces {
        decoder = decoder.announcing(16 << 10);
    }
    let mut need = 1;
    for end in (step..).step_by(step).map(|end| end.min(input.len())) {
        if end < need {
            continue;
        }
        match decoder.decode(&input[..end], keys, Admits::All) {
            Decoded::NeedMore { at } => need = at,
            decoded => return format!("{decoded:?}"),
        }
    }
    unreachable!("the input is a whole command")
}

/// However a command arrives, its line is decoded once: also if its data block follows in pieces. The
/// result is that of the whole command.
#[test]
fn no_command_is_decoded_twice() {
    for (_, command) in COMMANDS {
        let input = whole(command);
        let expected = arriving(&input, input.len(), false, &KeyRoom::new(2));
        lines();
        for step in [1, 7, command.len(), command.len() + 3, 9000] {
            let decoded = arriving(&input, step, false, &KeyRoom::new(2));
            assert_eq!(decoded, expected, "{command:?} by {step}");
            assert_eq!(lines(), 1, "{command:?} by {step}");
            arriving(&input, step, true, &KeyRoom::new(2));
            assert_eq!(lines(), 1, "{command:?} by {step}, announced");
        }
    }
}

/// A command that is announced, but not admitted behind others, is decoded once, too.
#[test]
fn no_announced_command_is_decoded_twice() {
    let input = whole("ms c29tZTprZXk= 20000 T9 b\r\n");
    let mut decoder = Decoder::new(1 << 20).announcing(16 << 10);
    let keys = KeyRoom::new(2);
    lines();
    for admits in [Admits::Requests, Admits::Reads, Admits::Requests] {
        assert_eq!(decoder.decode(&input[..9000], &keys, admits), Decoded::Held);
    }
    let announced = decoder.decode(&input[..9000], &keys, Admits::All);
    let Decoded::Announced { asked, .. } = announced else {
        panic!("{announced:?}");
    };
    assert_eq!((asked.key, lines()), (&b"some:key"[..], 1));
}

/// One scan finds the line's end, one the key's or decodes it from base64. The keys of a `get` are
/// split when they are executed.
#[test]
fn no_key_is_scanned_more_than_twice() {
    for (key, command) in COMMANDS {
        let input = whole(command);
        let keys = KeyRoom::new(2);
        let mut decoder = Decoder::new(1 << 20);
        let at = command.find(key).unwrap();
        scans_of(&[]);
        if let Decoded::Get { get, .. } = decoder.decode(&input, &keys, Admits::All) {
            assert_eq!(Keys::new(get.keys.of(&input)).count(), 1);
        }
        let scans = scans_of(&input[at..at + key.len()]);
        assert!((1..=2).contains(&scans), "{command:?}: {scans}");
    }
}

/// Of a `get` longer than a key may be, one key in 250 bytes is looked at once more, for the space before it.
#[test]
fn keys_of_a_long_get_are_scanned_twice_on_the_whole() {
    let names: Vec<_> = (0..100).map(|n| format!("key:{n:016}")).collect();
    let input = format!("get {}\r\n", names.join(" ")).into_bytes();
    let keys = KeyRoom::default();
    let mut decoder = Decoder::new(1 << 20);
    scans_of(&[]);
    let Decoded::Get { get, .. } = decoder.decode(&input, &keys, Admits::All) else {
        panic!("a get");
    };
    assert_eq!(Keys::new(get.keys.of(&input)).count(), names.len());
    let start = input.as_ptr() as usize;
    let scanned: usize = SCANS.with_borrow(|scans| {
        let of = |scan: &Range<usize>| scan.end.min(start + input.len()) - scan.start;
        scans.iter().map(of).sum()
    });
    assert!(scanned >= 2 * names.len() * 20);
    assert!(
        scanned <= 2 * input.len() + names.len() * 20 / 10,
        "{scanned}"
    );
    assert!(scans_of(&input) <= 3);
}
