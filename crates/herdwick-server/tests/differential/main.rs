//! Differential tests: the same bytes sent to a stock memcached and to this server return the same
//! bytes.
//!
//! The reference is 1.6.45, which `HERDWICK_MEMCACHED` names. With an older memcached, such as
//! Debian's 1.6.18, the random tests are restricted to what both versions support, and all refusals
//! compare equal; `newer` states the replies in which 1.6.45 differs from it.

#[path = "../common/mod.rs"]
mod common;

mod binary;
mod classic;
mod differences;
mod meta;
mod newer;

use binary::packet;
use common::{Memcached, Peer, in_slabs, normalised, oracle_is_old, ours, shown, unique};
use herdwick_memcache::binary::opcode;
use herdwick_server::Server;
use proptest::{prelude::*, test_runner::TestRunner};

/// One input.
#[derive(Clone, Debug)]
enum Step {
    Bytes(Vec<u8>),
    /// Binary packets.
    Packets(Vec<u8>),
    /// A `cas` with the unique that each server shows for the key.
    Swap {
        key: String,
        value: Vec<u8>,
    },
    /// An `ms` that compares with that unique, or an older one.
    MetaSwap {
        key: String,
        flags: &'static str,
        older: u64,
    },
    /// A packet that compares with that unique, or an older one.
    PacketSwap {
        key: String,
        opcode: u8,
        older: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = |commands: BoxedStrategy<Vec<u8>>| {
        prop::collection::vec(commands, 1..8)
            .prop_map(|commands| Step::Bytes(commands.concat()))
            .boxed()
    };
    // A stock memcached pads the result of `decr` in place only if no reply in flight still shows
    // the old one, so reads and arithmetic are sent apart.
    let reading = prop_oneof![
        3 => classic::mutations(),
        2 => classic::reads(),
        2 => meta::mutations(),
        2 => meta::reads(),
    ];
    let counting = prop_oneof![
        2 => classic::mutations(),
        2 => classic::counts(),
        1 => meta::mutations(),
        2 => meta::counts(),
    ];
    let packets = |packets: BoxedStrategy<Vec<u8>>| {
        prop::collection::vec(packets, 1..8)
            .prop_map(|packets| Step::Packets(packets.concat()))
            .boxed()
    };
    let reading_packets = prop_oneof![2 => binary::mutations(), 2 => binary::reads()];
    let counting_packets = prop_oneof![1 => binary::mutations(), 2 => binary::counts()];
    let plain_key = || prop::sample::select(vec!["a", "b", "n"]).prop_map(String::from);
    prop_oneof![
        8 => bytes(reading.boxed()),
        4 => bytes(counting.boxed()),
        4 => packets(reading_packets.boxed()),
        2 => packets(counting_packets.boxed()),
        1 => packets(binary::fatal().boxed()),
        1 => (plain_key(), 0u8..0x1b, 0u64..2)
            .prop_map(|(key, opcode, older)| Step::PacketSwap { key, opcode, older }),
        1 => (plain_key(), classic::value()).prop_map(|(key, value)| Step::Swap { key, value }),
        1 => (
            plain_key(),
            prop::sample::select(vec!["", " I", " I k c", " MR", " ME", " MA", " MP I", " q"]),
            0u64..2,
        )
            .prop_map(|(key, flags, older)| Step::MetaSwap { key, flags, older }),
    ]
}

fn play(peer: &dyn Peer, steps: &[Step], bytewise: bool) -> Vec<Vec<u8>> {
    peer.say(&[b"flush_all\r\n"]);
    steps
        .iter()
        .map(|step| {
            let (bytes, is_text) = said_in(peer, step);
            let pieces: Vec<&[u8]> = if bytewise {
                bytes.chunks(1).collect()
            } else {
                vec![&bytes]
            };
            let replies = peer.say(&pieces);
            if is_text && oracle_is_old() {
                folded(&normalised(&replies))
            } else if is_text {
                normalised(&replies)
            } else {
                binary::normalised(&replies)
            }
        })
        .collect()
}

/// Replaces every refusal by the same one: an older memcached words them differently.
fn folded(replies: &[u8]) -> Vec<u8> {
    let lines = replies.split(|&byte| byte == b'\n').map(|line| {
        let refused = line.starts_with(b"CLIENT_ERROR ") || line == b"ERROR\r";
        if refused { b"refused\r" } else { line }
    });
    lines.collect::<Vec<_>>().join(&b'\n')
}

/// Returns the bytes of a step with the end of its conversation, and whether they are text.
fn said_in(peer: &dyn Peer, step: &Step) -> (Vec<u8>, bool) {
    // The padding completes a truncated block: a stock memcached that reads the end of the stream
    // inside a block drops the replies before it.
    let text = |bytes: &[u8]| ([bytes, b"\r\n\r\n\r\n\r\nquit\r\n"].concat(), true);
    let packets = |bytes: &[u8]| ([bytes, &binary::quit()].concat(), false);
    match step {
        Step::Bytes(bytes) => text(bytes),
        Step::Packets(bytes) => packets(bytes),
        Step::Swap { key, value } => {
            let unique = unique(peer, key);
            let line = format!("cas {key} 0 0 {} {unique}\r\n", value.len());
            text(&[line.as_bytes(), value, b"\r\n"].concat())
        }
        Step::MetaSwap { key, flags, older } => {
            let unique = unique(peer, key).saturating_sub(*older);
            let line = format!("ms {key} 3 C{unique}{flags}\r\nabc\r\nmg {key} v s t c h\r\n");
            text(line.as_bytes())
        }
        Step::PacketSwap { key, opcode, older } => {
            let unique = unique(peer, key).saturating_sub(*older);
            packets(&binary::comparing(*opcode, key.as_bytes(), unique))
        }
    }
}

fn compare(cases: u32, steps: std::ops::Range<usize>, bytewise: bool) {
    let Some(oracle) = Memcached::start() else {
        return;
    };
    let servers: Vec<Server> = vec![ours(1), ours(3), in_slabs(2)];
    for server in &servers {
        // Two stores, so that the older unique of a comparison is never 0, which means no
        // comparison.
        server.say(&[&b"set a 0 0 0\r\n\r\nset b 0 0 0\r\n\r\nset n 0 0 0\r\n\r\n".repeat(2)]);
    }
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

/// Returns the number of conversations to try: `HERDWICK_CONVERSATIONS`, or `usual`.
fn cases(usual: u32) -> u32 {
    let asked = std::env::var_os("HERDWICK_CONVERSATIONS");
    let asked = asked.and_then(|count| count.into_string().ok());
    asked.map_or(usual, |count| count.parse().expect("a number"))
}

#[test]
fn replies_are_identical_to_memcacheds() {
    compare(cases(1500), 1..12, false);
}

#[test]
fn replies_are_identical_when_bytes_are_sent_one_by_one() {
    compare(cases(60), 1..4, true);
}

#[test]
fn item_set_by_a_packet_has_the_same_ttl() {
    let Some(oracle) = Memcached::start() else {
        return;
    };
    let own = ours(1);
    let left = |peer: &dyn Peer, exptime: u32| -> u64 {
        let extras = [[0; 4], exptime.to_be_bytes()].concat();
        let set = packet(opcode::SET, &extras, b"a", b"1", 0);
        peer.say(&[&set, &binary::quit()]);
        let said = peer.say(&[b"mg a t\r\nquit\r\n"]);
        let said = String::from_utf8_lossy(&said).into_owned();
        let digits = said.trim_start_matches("HD t").trim_end();
        digits.parse().expect("seconds")
    };
    for exptime in [1000, i32::MAX as u32, 1 << 31, 4_000_000_000, u32::MAX] {
        let (own, other) = (left(&own, exptime), left(&oracle, exptime));
        assert!(own.abs_diff(other) <= 2, "{exptime}: {own}, {other}");
    }
}

/// A delay counts from the previous second; a time before the server's start flushes nothing.
#[test]
fn delayed_flushes_take_effect_at_the_same_second() {
    let Some(oracle) = Memcached::start() else {
        return;
    };
    let own = ours(3);
    let when = |delay: u32| packet(opcode::FLUSH, &delay.to_be_bytes(), b"", b"", 0);
    for (text, delay) in [("1", 1), ("2592001", 2_592_001), ("100", 100)] {
        let line = format!("set a 0 0 1\r\n1\r\nflush_all {text}\r\nget a\r\nquit\r\n");
        let [said, expected] =
            [&own as &dyn Peer, &oracle].map(|peer| peer.say(&[line.as_bytes()]));
        assert_eq!(shown(&said), shown(&expected), "{line}");
        let [said, expected] = [&own as &dyn Peer, &oracle].map(|peer| {
            peer.say(&[b"set a 0 0 1\r\n1\r\nquit\r\n"]);
            peer.say(&[&when(delay), &binary::quit()]);
            peer.say(&[b"get a\r\nquit\r\n"])
        });
        assert_eq!(shown(&said), shown(&expected), "{delay}");
    }
}
