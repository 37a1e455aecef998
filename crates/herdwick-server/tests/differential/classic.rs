//! Random classic text commands, valid and broken.

use proptest::prelude::*;

use crate::common::oracle_is_old;

/// Selects from `all`, which every memcached treats alike, and, with an oracle of the reference
/// version, also from `newer`.
pub(crate) fn either(
    all: &[&'static str],
    newer: &[&'static str],
) -> impl Strategy<Value = &'static str> {
    let mut words = all.to_vec();
    if !oracle_is_old() {
        words.extend(newer);
    }
    prop::sample::select(words)
}

pub(crate) fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        10 => prop::sample::select(vec!["a", "b", "c", "n", "long-lived"]).prop_map(String::from),
        1 => Just("k".repeat(250)),
        1 => Just("t\tab".to_owned()),
    ]
}

/// Values without a number near 2^63, after which a stock memcached reads past the end in search of
/// a minus sign; and without pure white space, after which it searches for a number.
pub(crate) fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        2 => Just(Vec::new()),
        4 => prop::sample::select(vec!["1", "10", "99", "0", "1000000000000", " 7", "5 ", "x1", "1x", "5\0", "-0"])
            .prop_map(|number| number.as_bytes().to_vec()),
        2 => prop::collection::vec(any::<u8>(), 0..30).prop_map(|mut value| {
            if value.iter().all(|&byte| byte.is_ascii_whitespace() || byte == 0x0b) {
                value.clear();
            }
            value
        }),
        1 => (0usize..1_500).prop_map(|len| vec![b'v'; len]),
    ]
}

pub(crate) fn number() -> impl Strategy<Value = &'static str> {
    either(
        &[
            "0",
            "1",
            "5",
            "-1",
            "100",
            "2592000",
            "4294967295",
            "1000000",
            "18446744073709551616",
            "x",
            "1x",
            "0x1",
            "noreply",
        ],
        &["-0", "+3", "1\t", "", "-", "007", "9223372036854775808"],
    )
}

/// An amount for arithmetic, or an initial value: see [`value`].
pub(crate) fn delta() -> impl Strategy<Value = &'static str> {
    number().prop_map(|delta| if delta.starts_with('9') { "9" } else { delta })
}

pub(crate) fn exptime() -> impl Strategy<Value = &'static str> {
    either(
        &["0", "-1", "1000", "2592001", "2147483647", "x"],
        &[
            "-",
            "+5000",
            "2147483648",
            "-9223372036854775808",
            "4294967296",
            "9223372036854775808",
        ],
    )
}

/// Client flags of a storage command, which are parsed by other rules than the numbers of other
/// commands.
fn flags() -> impl Strategy<Value = &'static str> {
    either(
        &["0", "1", "5", "-0", "+3", "100", "4294967295", "1\t"],
        &["", "-1", "x", "4294967297", "18446744073709551616"],
    )
}

/// The same for its times.
fn stored_exptime() -> impl Strategy<Value = &'static str> {
    either(
        &[
            "0",
            "-1",
            "1000",
            "2592001",
            "2147483647",
            "2147483648",
            "-9223372036854775808",
            "4294967296",
        ],
        &["x", "9223372036854775808"],
    )
}

fn noreply() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["", "", "", " noreply", " extra"])
}

pub(crate) fn end() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["\r\n", "\r\n", "\r\n", "\n", " \r\n"])
}

/// The end of a block with this value. An empty one has no lone newline, which a wrong length would
/// turn into the value: see [`value`].
pub(crate) fn tail(value: &[u8], tail: &'static str) -> &'static str {
    if value.is_empty() && tail == "\n" {
        "\r\n"
    } else {
        tail
    }
}

/// The announced length of a block of `len` bytes. With `noreply`, an old memcached suppresses its
/// reply to a negative one.
pub(crate) fn length(len: usize, wrong: i64) -> i64 {
    let said = len as i64 + wrong;
    if oracle_is_old() { said.max(0) } else { said }
}

/// Bytes that follow a block longer than announced. An old memcached does not honour `noreply` in
/// the rest of a command.
pub(crate) fn behind_block() -> &'static [u8] {
    if oracle_is_old() {
        b"nothing-known\r\n"
    } else {
        b""
    }
}

/// A storage command; sometimes its length or the end of its block is wrong.
fn storage() -> impl Strategy<Value = Vec<u8>> {
    let verb = prop::sample::select(vec!["set", "set", "add", "replace", "append", "prepend"]);
    let wrong = prop::sample::select(vec![0i64, 0, 0, 0, 0, 0, 1, -1, 3]);
    let tails = prop::sample::select(vec!["\r\n", "\r\n", "\r\n", "\r\n", "\n", "", "zz\r\n"]);
    (
        verb,
        key(),
        flags(),
        stored_exptime(),
        value(),
        wrong,
        either(&["", "", "", " noreply"], &[" extra", " extra noreply"]),
        end(),
        tails,
    )
        .prop_map(
            |(verb, key, flags, exptime, value, wrong, noreply, end, ends)| {
                let length = length(value.len(), wrong);
                let mut bytes =
                    format!("{verb} {key} {flags} {exptime} {length}{noreply}{end}").into_bytes();
                bytes.extend_from_slice(&value);
                bytes.extend_from_slice(tail(&value, ends).as_bytes());
                bytes.extend_from_slice(behind_block());
                bytes
            },
        )
}

/// `get` and its variants.
pub(crate) fn reads() -> impl Strategy<Value = Vec<u8>> {
    let least = usize::from(oracle_is_old());
    let keys = move || prop::collection::vec(key(), least..6).prop_map(|keys| keys.join(" "));
    let get = (either(&["get", "gets"], &["bget", " get"]), keys(), end())
        .prop_map(|(verb, keys, end)| format!("{verb} {keys}{end}"));
    let gat = (
        prop::sample::select(vec!["gat", "gats"]),
        exptime(),
        keys(),
        end(),
    )
        .prop_map(|(verb, exptime, keys, end)| format!("{verb} {exptime} {keys}{end}"));
    prop_oneof![2 => get, 1 => gat].prop_map(String::into_bytes)
}

/// `incr` and `decr`.
pub(crate) fn counts() -> impl Strategy<Value = Vec<u8>> {
    (
        prop::sample::select(vec!["incr", "decr"]),
        key(),
        delta(),
        noreply(),
        end(),
    )
        .prop_map(|(verb, key, delta, noreply, end)| {
            format!("{verb} {key} {delta}{noreply}{end}").into_bytes()
        })
}

/// Commands that store, touch, delete, or are broken.
pub(crate) fn mutations() -> impl Strategy<Value = Vec<u8>> {
    let touch = (key(), exptime(), noreply(), end())
        .prop_map(|(key, exptime, noreply, end)| format!("touch {key} {exptime}{noreply}{end}"));
    let delete = (
        key(),
        either(
            &["", " 0", " noreply", " 0 noreply"],
            &[" 1", " 0 0", " noreply 0"],
        ),
        end(),
    )
        .prop_map(|(key, arguments, end)| format!("delete {key}{arguments}{end}"));
    let other = either(
        &[
            "flush_all\r\n",
            "flush_all noreply\r\n",
            "flush_all -5\r\n",
            "flush_all x\r\n",
            "version\r\n",
            "version x\r\n",
            "verbosity 1\r\n",
            "verbosity\r\n",
            "verbosity x\r\n",
            "\r\n",
            "\n",
            " \r\n",
            "x\r\n",
            "gett a\r\n",
            "stats reset\r\n",
            "stats nothing\r\n",
            "cas nothing 0 0 1 7\r\n1\r\n",
            "cas a 0 0 1 0\r\n1\r\n",
            "incr\r\n",
            "touch a\r\n",
            "delete\r\n",
            "SET a 0 0 1\r\n",
            "boguscommand x\r\n",
            "cache_memlimit 1\r\n",
            "cache_memlimit x\r\n",
            "cache_memlimit\r\n",
        ],
        &[
            "flush_all 0 2 3\r\n",
            " flush_all\r\n",
            "verbosity 1 2 3\r\n",
            "verbosity noreply\r\n",
            "shutdown\r\n",
            "shutdown noreply\r\n",
            "cas a 0 0 1 \r\n1\r\n",
            "cas a 0 0 1 x\r\n1\r\n",
            "get a\0b\r\n",
            "set a\0b 0 0 1\r\n1\r\n",
            "set\r\n",
            "set a\r\n",
            "set a 0 0\r\n",
            "get\r\n",
            "gat 10\r\n",
            "gat x\r\n",
            "boguscommand noreply\r\n",
            "cache_memlimit 1 2\r\n",
            "cache_memlimit 1000000001\r\n",
            "cache_memlimit noreply\r\n",
            "stats extstore\r\n",
            "mn x\r\n",
        ],
    );
    prop_oneof![
        6 => storage(),
        1 => touch.prop_map(String::into_bytes),
        2 => delete.prop_map(String::into_bytes),
        2 => other.prop_map(|line| line.as_bytes().to_vec()),
    ]
}
