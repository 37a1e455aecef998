//! Random meta commands, valid and broken. Cases that only newer versions support, or where this
//! server deliberately differs, are in `newer` and `differences`.

use proptest::prelude::*;

use crate::{
    classic::{behind_block, delta, either, end, exptime, key, length, number, tail, value},
    common::oracle_is_old,
};

/// A key, and the flag for its encoding.
fn spelled() -> impl Strategy<Value = (String, &'static str)> {
    prop_oneof![
        8 => key().prop_map(|key| (key, "")),
        1 => Just(("AAEC".to_owned(), " b")),
        1 => Just(("!".to_owned(), " b")),
        1 => Just(("k".repeat(251), "")),
    ]
}

/// Numbers that the oracle does not truncate: see `differences`.
fn short_number() -> impl Strategy<Value = &'static str> {
    number().prop_map(|number| if number.len() > 10 { "7" } else { number })
}

/// Flags in any order, sometimes duplicate or unknown.
fn flags(valid: Vec<BoxedStrategy<String>>) -> impl Strategy<Value = String> {
    few_flags(valid, 25)
}

/// The same, with at most `most` meaningless flags.
fn few_flags(valid: Vec<BoxedStrategy<String>>, most: usize) -> impl Strategy<Value = String> {
    let broken = prop_oneof![
        30 => Just(String::new()),
        1 => either(&[" _"], &[" 9"]).prop_map(String::from),
        1 => Just(" k k".to_owned()),
        1 => (most * 3 / 5..most).prop_map(|count| " P".repeat(count)),
    ];
    let some = prop::collection::vec(prop::option::weighted(0.3, Just(())), valid.len());
    (some, valid)
        .prop_map(|(some, valid)| {
            let chosen = some.iter().zip(valid).filter(|(some, _)| some.is_some());
            chosen.map(|(_, flag)| flag).collect::<Vec<_>>()
        })
        .prop_shuffle()
        .prop_flat_map(move |flags| {
            let flags: String = flags.iter().map(|flag| format!(" {flag}")).collect();
            broken
                .clone()
                .prop_map(move |broken| format!("{flags}{broken}"))
        })
}

fn bare(letters: &str) -> Vec<BoxedStrategy<String>> {
    letters
        .chars()
        .map(|letter| Just(letter.to_string()).boxed())
        .collect()
}

fn with(
    letter: char,
    argument: impl Strategy<Value = &'static str> + 'static,
) -> BoxedStrategy<String> {
    argument
        .prop_map(move |argument| format!("{letter}{argument}"))
        .boxed()
}

/// Returns these flags if the oracle supports them.
fn newer<const N: usize>(flags: [BoxedStrategy<String>; N]) -> Vec<BoxedStrategy<String>> {
    let flags = flags.into_iter();
    flags.filter(|_| !oracle_is_old()).collect()
}

/// A CAS unique to assign. Only `ms` assigns 0, which means none to the commands that compare.
fn given() -> impl Strategy<Value = &'static str> {
    unique().prop_map(|unique| if unique == "0" { "2" } else { unique })
}

/// A CAS unique to compare with.
fn unique() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["0", "1", "77", "18446744073709551615", "x", "-1", ""])
}

fn opaque() -> BoxedStrategy<String> {
    prop::sample::select(vec!["O", "O1", "Oabc", "O0123456789012345678901234567890"])
        .prop_map(String::from)
        .boxed()
}

fn long_opaque() -> BoxedStrategy<String> {
    prop_oneof![4 => opaque(), 1 => Just("O".repeat(33))].boxed()
}

/// `mg` and `me`.
pub(crate) fn reads() -> impl Strategy<Value = Vec<u8>> {
    let mut valid = bare("vkcfhlstqu");
    valid.extend([
        with('T', exptime()),
        with('N', exptime()),
        with('R', exptime()),
        with('C', Just("999999999")),
        opaque(),
    ]);
    valid.extend(newer([with('E', given())]));
    let get = (spelled(), flags(valid), end())
        .prop_map(|((key, b), flags, end)| format!("mg {key}{b}{flags}{end}"));
    // `me` of 1.6.45 recognises a first flag `b` only if another flag follows.
    let debug = (spelled(), end()).prop_map(|((key, b), end)| {
        let b = if oracle_is_old() { b } else { "" };
        format!("me {key}{b}{end}")
    });
    prop_oneof![8 => get, 1 => debug, 1 => Just("mn\r\n".to_owned()), 1 => Just("mg\r\n".to_owned())]
        .prop_map(String::into_bytes)
}

/// `ma`. An old oracle ignores `q` when it creates a number.
pub(crate) fn counts() -> impl Strategy<Value = Vec<u8>> {
    let valid = |q: &str| {
        let mut valid = bare(&format!("vkct{q}"));
        valid.extend([
            with('D', delta()),
            with('J', delta()),
            with('M', either(&["I", "D", "+", "-", "X", ""], &["ID", "DI"])),
            with('C', prop::sample::select(vec!["0", "999999999", "x"])),
        ]);
        valid.extend(newer([with('E', given())]));
        valid
    };
    // The oracle sets the time only if no long opaque precedes it.
    let mut making = valid(if oracle_is_old() { "" } else { "q" });
    making.extend([with('N', exptime()), with('T', exptime()), opaque()]);
    let mut counting = valid("q");
    counting.push(long_opaque());
    (
        spelled(),
        prop_oneof![flags(counting), flags(making)],
        end(),
    )
        .prop_map(|((key, b), flags, end)| format!("ma {key}{b}{flags}{end}").into_bytes())
}

/// `ms` and `md`.
pub(crate) fn mutations() -> impl Strategy<Value = Vec<u8>> {
    let mut storing = bare("kcqI");
    storing.extend([
        with('T', exptime()),
        with('F', short_number()),
        with('C', prop::sample::select(vec!["0", "999999999", "x"])),
        with(
            'M',
            either(&["E", "A", "P", "R", "S", "e", ""], &["SS", "EX"]),
        ),
        long_opaque(),
    ]);
    storing.extend(newer([
        Just("s".to_owned()).boxed(),
        with('N', exptime()),
        with('E', unique()),
    ]));
    let tails = prop::sample::select(vec!["\r\n", "\r\n", "\r\n", "\r\n", "\n", "zz\r\n"]);
    let wrong = prop::sample::select(vec![0i64, 0, 0, 0, 0, 0, 1, -1]);
    // After a key that is too long, or too many flags, an old oracle executes the block as
    // commands.
    let spelled_short = spelled().prop_map(|(mut key, b)| {
        if oracle_is_old() {
            key.truncate(250);
        }
        (key, b)
    });
    let storing = few_flags(storing, if oracle_is_old() { 5 } else { 25 });
    let put = (spelled_short, value(), wrong, storing, end(), tails).prop_map(
        |((key, b), value, wrong, flags, end, ends)| {
            let length = length(value.len(), wrong);
            let line = format!("ms {key} {length}{b}{flags}{end}");
            let tail = tail(&value, ends).as_bytes();
            [line.as_bytes(), &value, tail, behind_block()].concat()
        },
    );
    let mut deleting = bare("kqI");
    deleting.extend([
        with('T', exptime()),
        with('C', prop::sample::select(vec!["0", "999999999", "x"])),
        long_opaque(),
    ]);
    deleting.extend(newer([
        Just("x".to_owned()).boxed(),
        with('F', number()),
        with('E', given()),
    ]));
    let delete = (spelled(), flags(deleting), end())
        .prop_map(|((key, b), flags, end)| format!("md {key}{b}{flags}{end}").into_bytes());
    let broken = prop::sample::select(vec![
        "ms\r\n",
        "ms a\r\n",
        "ms a x\r\n",
        "ms a -1\r\n",
        "md\r\n",
        "ma\r\n",
        "me\r\n",
        "mx a\r\n",
        "m\r\n",
        "mgg a\r\n",
        "mn x\r\n",
    ]);
    prop_oneof![
        5 => put,
        3 => delete,
        1 => broken.prop_map(|line| line.as_bytes().to_vec()),
    ]
}
