//! The same bytes to a stock memcached and to us: the same bytes back.

mod common;

use common::{Memcached, Peer, normalised, ours, shown, unique};
use herdwick_server::Server;
use proptest::{prelude::*, test_runner::TestRunner};

/// One thing to send.
#[derive(Clone, Debug)]
enum Step {
    Bytes(Vec<u8>),
    /// A `cas` with the unique that this server shows for the key.
    Swap {
        key: String,
        value: Vec<u8>,
    },
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        10 => prop::sample::select(vec!["a", "b", "c", "n", "long-lived"]).prop_map(String::from),
        1 => Just("k".repeat(250)),
        1 => Just("t\tab".to_owned()),
    ]
}

/// No number near 2^63: behind a larger one a stock memcached looks for a minus sign, past its end.
fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        2 => Just(Vec::new()),
        4 => prop::sample::select(vec!["1", "10", "99", "0", "1000000000000", " 7", "5 ", "x1", "1x"])
            .prop_map(|number| number.as_bytes().to_vec()),
        2 => prop::collection::vec(any::<u8>(), 0..30),
        1 => (0usize..1_500).prop_map(|len| vec![b'v'; len]),
    ]
}

fn number() -> impl Strategy<Value = &'static str> {
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

fn exptime() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "0",
        "-1",
        "1000",
        "2592001",
        "2147483647",
        "4294967296",
        "x",
        "9223372036854775808",
    ])
}

fn noreply() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["", "", "", " noreply", " extra"])
}

fn end() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["\r\n", "\r\n", "\r\n", "\n", " \r\n"])
}

/// A storage command; sometimes its length or its block's end is wrong.
fn storage() -> impl Strategy<Value = Vec<u8>> {
    let verb = prop::sample::select(vec!["set", "set", "add", "replace", "append", "prepend"]);
    let wrong = prop::sample::select(vec![0i64, 0, 0, 0, 0, 0, 1, -1, 3]);
    let tail = prop::sample::select(vec!["\r\n", "\r\n", "\r\n", "\r\n", "\n", "", "zz\r\n"]);
    (
        verb,
        key(),
        number(),
        exptime(),
        value(),
        wrong,
        noreply(),
        end(),
        tail,
    )
        .prop_map(
            |(verb, key, flags, exptime, value, wrong, noreply, end, tail)| {
                // memcached cuts flags to 32 bits; we refuse them.
                let flags = if flags.len() > 10 { "7" } else { flags };
                let length = value.len() as i64 + wrong;
                let mut bytes =
                    format!("{verb} {key} {flags} {exptime} {length}{noreply}{end}").into_bytes();
                bytes.extend_from_slice(&value);
                bytes.extend_from_slice(tail.as_bytes());
                bytes
            },
        )
}

/// Commands that may follow each other. A stock memcached pads the result of `decr` in place only
/// if no reply in flight still shows the old one, so those that read and those that count are
/// sent apart.
fn commands(counting: bool) -> impl Strategy<Value = Vec<u8>> {
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
    let arith = (
        prop::sample::select(vec!["incr", "decr"]),
        key(),
        number(),
        noreply(),
        end(),
    )
        .prop_map(|(verb, key, delta, noreply, end)| format!("{verb} {key} {delta}{noreply}{end}"));
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
        "cas a 0 0 1\r\n",
        "cas a 0 0 1 x\r\n",
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
    let (reads, counts) = if counting { (0, 6) } else { (3, 0) };
    let reading = prop_oneof![
        2 => get.prop_map(String::into_bytes),
        1 => gat.prop_map(String::into_bytes),
    ];
    prop_oneof![
        6 => storage(),
        2 * reads => reading,
        counts => arith.prop_map(String::into_bytes),
        1 => touch.prop_map(String::into_bytes),
        2 => delete.prop_map(String::into_bytes),
        2 => other.prop_map(|line| line.as_bytes().to_vec()),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = |counting| {
        prop::collection::vec(commands(counting), 1..8)
            .prop_map(|commands| Step::Bytes(commands.concat()))
    };
    prop_oneof![
        8 => bytes(false),
        4 => bytes(true),
        1 => (prop::sample::select(vec!["a", "b", "n"]), value())
            .prop_map(|(key, value)| Step::Swap { key: key.to_owned(), value }),
    ]
}

fn play(peer: &dyn Peer, steps: &[Step], bytewise: bool) -> Vec<Vec<u8>> {
    peer.say(&[b"flush_all\r\n"]);
    steps
        .iter()
        .map(|step| {
            let mut bytes = match step {
                Step::Bytes(bytes) => bytes.clone(),
                Step::Swap { key, value } => {
                    let unique = unique(peer, key);
                    let line = format!("cas {key} 0 0 {} {unique}\r\n", value.len());
                    [line.as_bytes(), value, b"\r\n"].concat()
                }
            };
            // A block that lacks some bytes finds them here: a stock memcached that sees the end
            // of the stream inside a block keeps the replies before it to itself.
            bytes.extend_from_slice(b"\r\n\r\n\r\n\r\nquit\r\n");
            let pieces: Vec<&[u8]> = if bytewise {
                bytes.chunks(1).collect()
            } else {
                vec![&bytes]
            };
            normalised(&peer.say(&pieces))
        })
        .collect()
}

fn compare(cases: u32, steps: std::ops::Range<usize>, bytewise: bool) {
    let Some(oracle) = Memcached::start() else {
        return;
    };
    let servers: Vec<Server> = [1, 3].map(ours).into();
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let strategy = prop::collection::vec(step(), steps);
    TestRunner::new(config)
        .run(&strategy, |steps| {
            let expected = play(&oracle, &steps, bytewise);
            for server in &servers {
                let said = play(server, &steps, bytewise);
                for (step, (said, expected)) in steps.iter().zip(said.iter().zip(&expected)) {
                    prop_assert_eq!(
                        shown(said),
                        shown(expected),
                        "{} workers: {:?}",
                        server.workers(),
                        step
                    );
                }
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn the_same_bytes_come_back() {
    compare(400, 1..12, false);
}

#[test]
fn the_same_bytes_come_back_when_each_byte_is_sent_alone() {
    compare(60, 1..4, true);
}
