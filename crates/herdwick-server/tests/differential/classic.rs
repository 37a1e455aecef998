//! Classic text: valid and broken commands.

use proptest::prelude::*;

pub(crate) fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        10 => prop::sample::select(vec!["a", "b", "c", "n", "long-lived"]).prop_map(String::from),
        1 => Just("k".repeat(250)),
        1 => Just("t\tab".to_owned()),
    ]
}

/// No number near 2^63: behind a larger one a stock memcached looks for a minus sign, past its end.
/// Nothing but white space either: behind that it looks for a number.
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
    prop::sample::select(vec![
        "0",
        "1",
        "5",
        "-0",
        "-1",
        "+3",
        "100",
        "2592000",
        "4294967295",
        "1000000",
        "18446744073709551616",
        "9223372036854775808",
        "x",
        "1x",
        "0x1",
        "1\t",
        "",
        "noreply",
    ])
}

/// What to count by, or from: see [`value`].
pub(crate) fn delta() -> impl Strategy<Value = &'static str> {
    number().prop_map(|delta| if delta.starts_with('9') { "9" } else { delta })
}

pub(crate) fn exptime() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "0",
        "-1",
        "1000",
        "2592001",
        "2147483647",
        "2147483648",
        "-9223372036854775808",
        "4294967296",
        "x",
        "9223372036854775808",
    ])
}

/// Client flags that are taken: what is refused for them is among the differences.
fn flags() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "0",
        "1",
        "5",
        "-0",
        "+3",
        "100",
        "4294967295",
        "1\t",
        "",
    ])
}

/// The same of times.
fn taken_exptime() -> impl Strategy<Value = &'static str> {
    exptime().prop_map(|text| match text {
        "x" | "9223372036854775808" => "0",
        other => other,
    })
}

fn noreply() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["", "", "", " noreply", " extra"])
}

pub(crate) fn end() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["\r\n", "\r\n", "\r\n", "\n", " \r\n"])
}

/// The end of a block with this value. Behind an empty one no lone newline, which a length that is
/// wrong would make the value: see [`value`].
pub(crate) fn tail(value: &[u8], tail: &'static str) -> &'static str {
    if value.is_empty() && tail == "\n" {
        "\r\n"
    } else {
        tail
    }
}

/// A storage command; sometimes its length or its block's end is wrong.
fn storage() -> impl Strategy<Value = Vec<u8>> {
    let verb = prop::sample::select(vec!["set", "set", "add", "replace", "append", "prepend"]);
    let wrong = prop::sample::select(vec![0i64, 0, 0, 0, 0, 0, 1, -1, 3]);
    let tails = prop::sample::select(vec!["\r\n", "\r\n", "\r\n", "\r\n", "\n", "", "zz\r\n"]);
    (
        verb,
        key(),
        flags(),
        taken_exptime(),
        value(),
        wrong,
        prop::sample::select(vec!["", "", "", " noreply"]),
        end(),
        tails,
    )
        .prop_map(
            |(verb, key, flags, exptime, value, wrong, noreply, end, ends)| {
                let length = value.len() as i64 + wrong;
                let mut bytes =
                    format!("{verb} {key} {flags} {exptime} {length}{noreply}{end}").into_bytes();
                bytes.extend_from_slice(&value);
                bytes.extend_from_slice(tail(&value, ends).as_bytes());
                bytes
            },
        )
}

/// `get` and its kin.
pub(crate) fn reads() -> impl Strategy<Value = Vec<u8>> {
    let keys = || prop::collection::vec(key(), 0..6).prop_map(|keys| keys.join(" "));
    let get = (
        prop::sample::select(vec!["get", "gets", "bget"]),
        keys(),
        end(),
    )
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

/// What stores, touches, deletes, or is broken.
pub(crate) fn mutations() -> impl Strategy<Value = Vec<u8>> {
    let touch = (key(), exptime(), noreply(), end())
        .prop_map(|(key, exptime, noreply, end)| format!("touch {key} {exptime}{noreply}{end}"));
    let delete = (
        key(),
        prop::sample::select(vec![
            "",
            " 0",
            " 1",
            " noreply",
            " 0 noreply",
            " 0 0",
            " noreply 0",
        ]),
        end(),
    )
        .prop_map(|(key, arguments, end)| format!("delete {key}{arguments}{end}"));
    let other = prop::sample::select(vec![
        "flush_all\r\n",
        "flush_all noreply\r\n",
        "flush_all -5\r\n",
        "flush_all x\r\n",
        "flush_all 1 2 3\r\n",
        "version\r\n",
        "version x\r\n",
        "verbosity 1\r\n",
        "verbosity\r\n",
        "verbosity x\r\n",
        "verbosity 1 2 3\r\n",
        "\r\n",
        "\n",
        " \r\n",
        "x\r\n",
        "gett a\r\n",
        "shutdown\r\n",
        "stats reset\r\n",
        "stats nothing\r\n",
        "cas nothing 0 0 1 7\r\n1\r\n",
        "cas a 0 0 1 0\r\n1\r\n",
        "get a\0b\r\n",
        "set a\0b 0 0 1\r\n1\r\n",
        "incr\r\n",
        "touch a\r\n",
        "delete\r\n",
        "SET a 0 0 1\r\n",
        "boguscommand x\r\n",
        "gat 10\r\n",
        "cache_memlimit 1\r\n",
        "cache_memlimit x\r\n",
        "cache_memlimit\r\n",
    ]);
    prop_oneof![
        6 => storage(),
        1 => touch.prop_map(String::into_bytes),
        2 => delete.prop_map(String::into_bytes),
        2 => other.prop_map(|line| line.as_bytes().to_vec()),
    ]
}
