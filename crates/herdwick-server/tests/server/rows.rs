//! Hostile and odd text, one row of the fault table each, against this server and, where both must
//! agree, a stock memcached.

use crate::common::{Memcached, Peer, in_slabs, normalised, oracle_is_old, ours, shown};
use herdwick_server::Server;

const FORMAT: &str = "CLIENT_ERROR bad command line format\r\n";
const CHUNK: &str = "CLIENT_ERROR bad data chunk\r\n";
const TOO_LARGE: &str = "SERVER_ERROR object too large for cache\r\n";
const EXPTIME: &str = "CLIENT_ERROR invalid exptime argument\r\n";

/// The servers that must return the expected bytes.
#[derive(Clone, Copy, PartialEq)]
enum Who {
    /// This server and any stock memcached.
    Both,
    /// This server and a stock memcached of the reference version.
    Newer,
    /// This server only; the row states the reason.
    Ours,
}

struct Bench {
    servers: Vec<Server>,
    oracle: Option<Memcached>,
}

impl Bench {
    fn new() -> Self {
        Self {
            servers: vec![ours(1), ours(3), in_slabs(2)],
            oracle: Memcached::start(),
        }
    }

    fn check(&self, who: Who, input: &[u8], expected: &str) {
        let mut peers: Vec<(&str, &dyn Peer)> = Vec::new();
        for server in &self.servers {
            peers.push(("ours", server));
        }
        let agrees = who == Who::Both || who == Who::Newer && !oracle_is_old();
        if let Some(oracle) = self.oracle.as_ref().filter(|_| agrees) {
            peers.push(("memcached", oracle));
        }
        for (name, peer) in peers {
            peer.say(&[b"flush_all\r\n"]);
            let said = normalised(&peer.say(&[input]));
            assert_eq!(
                shown(&said),
                shown(expected.as_bytes()),
                "{name}: {}",
                shown(input)
            );
        }
    }

    fn both(&self, input: impl AsRef<[u8]>, expected: impl AsRef<str>) {
        self.check(Who::Both, input.as_ref(), expected.as_ref());
    }

    fn newer(&self, input: impl AsRef<[u8]>, expected: impl AsRef<str>) {
        self.check(Who::Newer, input.as_ref(), expected.as_ref());
    }

    fn ours(&self, input: impl AsRef<[u8]>, expected: impl AsRef<str>) {
        self.check(Who::Ours, input.as_ref(), expected.as_ref());
    }
}

fn block(head: &str, len: usize) -> Vec<u8> {
    [head.as_bytes(), &vec![b'x'; len], b"\r\n"].concat()
}

#[test]
fn m01_unknown_command_is_an_error() {
    Bench::new().both("boguscommand x\r\nversion\r\n", "ERROR\r\nVERSION x\r\n");
}

#[test]
fn m02_http_requests_end_the_connection() {
    let bench = Bench::new();
    bench.both("GET / HTTP/1.0\r\nversion\r\n", "");
    bench.both("POST / HTTP/1.1\r\nversion\r\n", "");
}

#[test]
fn m03_empty_lines() {
    Bench::new().newer("\r\n".repeat(1000), FORMAT.repeat(1000));
}

#[test]
fn m04_long_keys() {
    let bench = Bench::new();
    let (fits, long) = ("k".repeat(250), "k".repeat(251));
    bench.both(format!("set {fits} 0 0 1\r\n1\r\n"), "STORED\r\n");
    bench.newer(format!("set {long} 0 0 1\r\n1\r\n"), FORMAT);
    // 1.6.45 adds a blank line (`differential/differences.rs`).
    bench.ours(format!("get a {long}\r\n"), FORMAT);
    bench.both(format!("touch {long} 0\r\n"), FORMAT);
    bench.both(format!("incr {long} 1\r\n"), FORMAT);
    bench.both(format!("delete {long}\r\n"), FORMAT);
}

#[test]
fn m05_control_characters_are_valid_in_keys() {
    let bench = Bench::new();
    bench.newer(
        "set a\0b 0 0 1\r\n1\r\nget a\0b\r\n",
        "STORED\r\nVALUE a\0b 0 1\r\n1\r\nEND\r\n",
    );
    bench.both(
        "set a\x01b 0 0 1\r\n1\r\nget a\x01b\r\n",
        "STORED\r\nVALUE a\x01b 0 1\r\n1\r\nEND\r\n",
    );
}

#[test]
fn m06_bare_line_feeds() {
    Bench::new().both(
        "set a 0 0 3\nabc\r\nset a 0 0 3\r\nabc\nxget a\n",
        format!("STORED\r\n{CHUNK}VALUE a 0 3\r\nabc\r\nEND\r\n"),
    );
}

#[test]
fn m07_invalid_lengths_are_refused() {
    let bench = Bench::new();
    for bytes in [
        "-1",
        "2147483646",
        "2147483647",
        "9223372036854775808",
        "abc",
    ] {
        bench.both(
            format!("set a 0 0 {bytes}\r\nversion\r\n"),
            format!("{FORMAT}VERSION x\r\n"),
        );
    }
}

#[test]
fn m08_length_beyond_32_bits_is_refused_not_truncated() {
    Bench::new().ours(
        "set a 0 0 4294967296\r\nversion\r\n",
        format!("{FORMAT}VERSION x\r\n"),
    );
}

#[test]
fn m09_set_too_large_removes_the_old_value() {
    let bench = Bench::new();
    let old = "set a 0 0 1\r\n1\r\n";
    let large = block("set a 0 0 1048577\r\n", 1_048_577);
    let input = [old.as_bytes(), &large, b"get a\r\n"].concat();
    bench.both(input, format!("STORED\r\n{TOO_LARGE}END\r\n"));
    let append = block("append a 0 0 1048577 noreply\r\n", 1_048_577);
    let input = [old.as_bytes(), &append, b"get a\r\n"].concat();
    bench.both(input, "STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\n");
}

#[test]
fn m11_blocks_of_wrong_length_are_refused() {
    let bench = Bench::new();
    bench.newer(
        "set a 0 0 3\r\nold\r\nset a 0 0 3\r\nabcd\r\nget a\r\n",
        format!("STORED\r\n{CHUNK}{FORMAT}VALUE a 0 3\r\nold\r\nEND\r\n"),
    );
    bench.both("set a 0 0 3\r\na\r\nget a\r\n", format!("{CHUNK}ERROR\r\n"));
}

#[test]
fn m12_large_block_without_crlf_is_refused() {
    let input = [&block("set a 0 0 600000\r\n", 600_001)[..], b"version\r\n"].concat();
    Bench::new().ours(input, format!("{CHUNK}{FORMAT}VERSION x\r\n"));
}

#[test]
fn m13_invalid_numbers_are_refused() {
    let bench = Bench::new();
    bench.newer("set a -1 0 1\r\n1\r\n", FORMAT);
    bench.newer("set a 0 foo 1\r\n1\r\n", FORMAT);
}

#[test]
fn m14_flags_beyond_32_bits_are_truncated() {
    let bench = Bench::new();
    bench.both(
        "set a 4294967299 0 1\r\n1\r\nget a\r\n",
        "STORED\r\nVALUE a 3 1\r\n1\r\nEND\r\n",
    );
    bench.both(
        "set a 4294967295 0 1\r\n1\r\nget a\r\n",
        "STORED\r\nVALUE a 4294967295 1\r\n1\r\nEND\r\n",
    );
}

#[test]
fn m15_past_exptime_is_stored_and_expired() {
    let bench = Bench::new();
    bench.both("set a 0 -1 1\r\n1\r\nget a\r\n", "STORED\r\nEND\r\n");
    bench.both("set a 0 2678400 1\r\n1\r\nget a\r\n", "STORED\r\nEND\r\n");
}

#[test]
fn m16_missing_and_extra_arguments() {
    let bench = Bench::new();
    for (line, answer) in [
        ("set a 0 0", FORMAT),
        ("incr a", FORMAT),
        ("incr a 1 2 3", "NOT_FOUND\r\n"),
        ("touch a", FORMAT),
        ("delete", FORMAT),
        ("verbosity", FORMAT),
        ("flush_all 1 2 3", "OK\r\n"),
        ("get", FORMAT),
        ("gat", FORMAT),
    ] {
        let input = format!("{line}\r\nversion\r\n");
        bench.newer(input, format!("{answer}VERSION x\r\n"));
    }
}

#[test]
fn m17_invalid_set_with_noreply() {
    let bench = Bench::new();
    bench.newer("set a 0 x 0 noreply\r\n\r\nversion\r\n", "VERSION x\r\n");
    // The length of its block is unknown.
    bench.newer(
        "set a 0 0 -5 noreply\r\nversion\r\n",
        format!("{FORMAT}VERSION x\r\n"),
    );
}

#[test]
fn m18_get_without_keys() {
    let bench = Bench::new();
    bench.newer("get\r\n", FORMAT);
    bench.newer("get     \r\n", FORMAT);
}

#[test]
fn m19_get_of_20000_keys() {
    let keys: String = (0..20_000).map(|n| format!(" key{n}")).collect();
    let bench = Bench::new();
    bench.both(format!("get{keys}\r\n"), "END\r\n");
    let stored = "set key0 0 0 1\r\n1\r\nset key19999 0 0 1\r\n2\r\n";
    bench.both(
        format!("{stored}get{keys}\r\n"),
        "STORED\r\nSTORED\r\nVALUE key0 0 1\r\n1\r\nVALUE key19999 0 1\r\n2\r\nEND\r\n",
    );
}

#[test]
fn m20_m21_endless_lines_end_the_connection() {
    let bench = Bench::new();
    bench.both("a".repeat(2049), "");
    bench.both("a".repeat(16_385), "");
    bench.ours(format!("get {}", "a ".repeat(1 << 20)), "");
}

#[test]
fn m22_m23_arithmetic() {
    let bench = Bench::new();
    let delta = "CLIENT_ERROR invalid numeric delta argument\r\n";
    let text = "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
    bench.both(
        "set a 0 0 1\r\nx\r\nincr a 1\r\n",
        format!("STORED\r\n{text}"),
    );
    bench.both(
        "incr a -1\r\nincr a 18446744073709551616\r\n",
        format!("{delta}{delta}"),
    );
    bench.both(
        "set a 0 0 1\r\n1\r\nincr a 18446744073709551615\r\ndecr a 7\r\n",
        "STORED\r\n0\r\n0\r\n",
    );
    bench.both("set a 0 0 2\r\n10\r\ndecr a 1\r\n", "STORED\r\n9\r\n");
    bench.ours(
        "set a 5 0 2\r\n10\r\ndecr a 1\r\nget a\r\n",
        "STORED\r\n9\r\nVALUE a 5 2\r\n9 \r\nEND\r\n",
    );
}

#[test]
fn m24_cas_with_invalid_unique() {
    // The oracle would execute the block as commands.
    Bench::new().ours(
        "cas a 0 0 1 x\r\n1\r\nversion\r\n",
        format!("{FORMAT}VERSION x\r\n"),
    );
}

#[test]
fn m25_repeated_or_unknown_meta_flags() {
    let bench = Bench::new();
    bench.both("mg a v v\r\n", "CLIENT_ERROR duplicate flag\r\n");
    bench.both("mg a _\r\nmn\r\n", "CLIENT_ERROR invalid flag\r\nMN\r\n");
    bench.newer("mg a !\r\nmn\r\n", format!("{FORMAT}MN\r\n"));
}

#[test]
fn m26_overlong_opaques_and_invalid_base64_keys() {
    let bench = Bench::new();
    // The limit of 32 bytes includes the flag's letter.
    let (fits, long) = ("o".repeat(31), "o".repeat(32));
    bench.both(
        format!("mg a O{fits} v\r\nmg a O{long} v\r\nmn\r\n"),
        format!("EN O{fits}\r\nCLIENT_ERROR opaque token too long\r\nMN\r\n"),
    );
    bench.both("mg \x01! b v\r\n", "CLIENT_ERROR error decoding key\r\n");
}

#[test]
fn m27_meta_set_with_invalid_mode_discards_its_block() {
    Bench::new().both(
        "ms a 3 Mx\r\nabc\r\nmg a v\r\n",
        "CLIENT_ERROR invalid mode for ms M token\r\nEN\r\n",
    );
}

#[test]
fn m28_invalid_lengths_of_a_meta_set() {
    let bench = Bench::new();
    for length in ["-1", "abc"] {
        bench.both(
            format!("ms a {length}\r\nmn\r\n"),
            format!("{FORMAT}MN\r\n"),
        );
    }
    let large = block("ms a 1048577\r\n", 1_048_577);
    let input = [&large[..], b"mg a v\r\n"].concat();
    bench.both(input, format!("{TOO_LARGE}EN\r\n"));
}

#[test]
fn m29_commands_without_their_arguments() {
    Bench::new().both(
        "lru mode\r\nlru temp_ttl\r\nslabs\r\nlru_crawler\r\nlru_crawler foo\r\n",
        "ERROR\r\n".repeat(5),
    );
}

/// There are no slabs to move: the reply is memcached's for that case.
#[test]
fn m30_slab_commands_with_arguments_out_of_range() {
    let bench = Bench::new();
    bench.both("slabs automove invalid\r\n", FORMAT);
    bench.newer(
        "slabs automove window 0\r\nslabs automove window x\r\nslabs automove ratio x\r\nslabs automove 3\r\n",
        format!("CLIENT_ERROR automove window too low or too high\r\n{FORMAT}ERROR\r\nERROR\r\n"),
    );
    bench.ours(
        "slabs reassign -5 70000\r\n",
        "CLIENT_ERROR slab reassignment disabled\r\n",
    );
}

#[test]
fn m31_shutdown_is_disabled_by_default() {
    Bench::new().newer(
        "shutdown\r\nversion\r\n",
        "SERVER_ERROR: shutdown not enabled\r\nVERSION x\r\n",
    );
}

#[test]
fn m32_invalid_exptimes() {
    Bench::new().both(
        "flush_all foo\r\ntouch a foo\r\ngat foo a\r\n",
        EXPTIME.repeat(3),
    );
}

/// M40: however a conversation is split, the replies are the same.
#[test]
fn m40_replies_are_the_same_at_every_split() {
    let input = b"set a 5 0 3\r\nabc\r\nget a b a\r\nset a 0 0 9 noreply\r\nabc\r\ndef\n\r\n\
        incr a 1\r\nset n 0 0 1\r\n7\r\nincr n 5\r\ngets\r\nbogus\r\ndelete n 0 noreply\r\nget n\r\nquit\r\n";
    for server in [1, 3].map(ours) {
        server.say(&[b"flush_all\r\n"]);
        let whole = server.say(&[input]);
        assert!(
            whole.ends_with(format!("12\r\n{FORMAT}ERROR\r\nEND\r\n").as_bytes()),
            "{}",
            shown(&whole)
        );
        for cut in 1..input.len() {
            server.say(&[b"flush_all\r\n"]);
            let (front, back) = input.split_at(cut);
            assert_eq!(
                shown(&server.say(&[front, back])),
                shown(&whole),
                "cut at {cut}"
            );
        }
    }
}
