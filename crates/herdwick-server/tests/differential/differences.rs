//! What may differ from the oracle, a memcached 1.6.18, and why: twelve things, of which the ninth and
//! the eleventh are in `udp.rs`, and the tenth, a `cache_memlimit` that cannot be kept, in `operators.rs`. Each test fails
//! when its difference disappears: then it is to be taken off the list, and the random tests are to
//! look there too.

use herdwick_memcache::binary::opcode;

use crate::{
    binary::{self, packet},
    common::{Memcached, Peer, normalised, ours, shown},
};

/// A conversation, what this server says, and what the oracle says, as both are normalised.
fn differs(input: &str, ours_says: &str, oracle_says: &str) {
    let conversation = format!("flush_all\r\n{input}quit\r\n");
    for workers in [1, 3] {
        let said = normalised(&ours(workers).say(&[conversation.as_bytes()]));
        assert_eq!(shown(&said), shown(format!("OK\r\n{ours_says}").as_bytes()));
    }
    if let Some(oracle) = Memcached::start() {
        let said = normalised(&oracle.say(&[conversation.as_bytes()]));
        assert_eq!(
            shown(&said),
            shown(format!("OK\r\n{oracle_says}").as_bytes())
        );
    }
    assert_ne!(ours_says, oracle_says);
}

/// The responses to packets: opcode, status and body of each.
fn responses(peer: &dyn Peer, packets: &[Vec<u8>]) -> Vec<(u8, u8, usize)> {
    let mut input = packets.concat();
    input.extend(binary::quit());
    let said = peer.say(&[&input]);
    let mut rest = &said[..];
    let mut seen = Vec::new();
    while let Some(header) = rest.first_chunk::<24>() {
        let body = u32::from_be_bytes([header[8], header[9], header[10], header[11]]) as usize;
        seen.push((header[1], header[7], body));
        rest = &rest[24 + body..];
    }
    seen
}

/// 1. The version, and CAS uniques: each store counts its own. (The random tests blank both.)
#[test]
fn version_and_uniques_are_this_servers_own() {
    let input = b"version\r\nset a 0 0 1\r\n1\r\nset a 0 0 1\r\n1\r\ngets a\r\nquit\r\n";
    let own = ours(1).say(&[input]);
    let text = String::from_utf8_lossy(&own);
    assert!(text.starts_with("VERSION 1.6.45-herdwick."), "{text}");
    if let Some(oracle) = Memcached::start() {
        oracle.say(&[b"set b 0 0 1\r\n1\r\nquit\r\n"]);
        assert_ne!(own, oracle.say(&[input]));
    }
}

/// 2. Client flags and lengths beyond their range are refused; the oracle cuts them to 32 bits.
#[test]
fn numbers_out_of_range_are_refused_not_cut() {
    const FORMAT: &str = "CLIENT_ERROR bad command line format\r\n";
    differs(
        "set a 4294967297 0 1\r\n1\r\nget a\r\n",
        &format!("{FORMAT}END\r\n"),
        "STORED\r\nVALUE a 1 1\r\n1\r\nEND\r\n",
    );
    differs(
        "set a 0 0 4294967297\r\n1\r\nms a 4294967297\r\n1\r\n",
        &format!("{FORMAT}ERROR\r\n{FORMAT}ERROR\r\n"),
        "STORED\r\nHD\r\n",
    );
    differs(
        "ms a 1 F4294967297\r\n1\r\nmg a f\r\n",
        &format!("{FORMAT}EN\r\n"),
        "HD\r\nHD f1\r\n",
    );
}

/// 3. What 1.6.45 has, and the oracle has not: `E` everywhere, `C` on `mg`, `s` and `N` on `ms`, `x`
///    on `md`; `q` hides the number that `ma` makes; `me` shows the time left, not its opposite.
#[test]
fn what_is_newer_is_as_in_1_6_45() {
    differs(
        "ms a 1 E77\r\n1\r\n",
        "HD\r\n",
        "CLIENT_ERROR invalid flag\r\n",
    );
    differs(
        "ms a 2 s\r\nhi\r\nms a 1 MA s\r\n!\r\n",
        "HD s2\r\nHD s3\r\n",
        "HD\r\nHD\r\n",
    );
    differs("ms a 2 MA N0\r\nhi\r\n", "HD\r\n", "NS\r\n");
    differs(
        "set a 7 0 1\r\n1\r\nmd a x\r\nget a\r\n",
        "STORED\r\nHD\r\nVALUE a 0 0\r\n\r\nEND\r\n",
        "STORED\r\nCLIENT_ERROR invalid or duplicate flag\r\nVALUE a 7 1\r\n1\r\nEND\r\n",
    );
    differs("ma n N0 q\r\nmn\r\n", "MN\r\n", "HD\r\nMN\r\n");
    let server = ours(1);
    server.say(&[b"ms a 1 E77\r\n1\r\n"]);
    let said = server.say(&[b"mg a v C77\r\nmg a v C78\r\nmg a c\r\nquit\r\n"]);
    assert_eq!(shown(&said), "HD\\r\\nVA 1\\r\\n1\\r\\nHD c77\\r\\n");
    seconds("set a 0 1000 1\r\n1\r\nme a\r\n", "ME a exp=");
}

/// 4. A flush takes what was stored before it, for good. The oracle's asks for the second that an item
///    was stored in: a time before its start calls back what an earlier flush took, and a delayed
///    one takes what is stored in its second as well.
#[test]
fn what_was_flushed_stays_flushed() {
    differs(
        "set a 0 0 1\r\n1\r\nflush_all\r\nflush_all 2592001\r\nget a\r\n",
        "STORED\r\nOK\r\nOK\r\nEND\r\n",
        "STORED\r\nOK\r\nOK\r\nVALUE a 0 1\r\n1\r\nEND\r\n",
    );
}

/// 5. `k` shows the key as the reader spelled it: the store keeps no note of how its maker did. The
///    oracle does, and loses it in `append`, and in `mg` with `N`, whose raw bytes then break the
///    line.
#[test]
fn a_key_is_shown_as_it_was_asked_for() {
    let line = "mg AAoC b N0 k\r\n";
    differs(line, "HD kAAoC b W\r\n", "HD k\0\n\u{2} W\r\n");
}

/// 6. A deadline that has passed shows as no time left; the oracle's difference wraps around.
#[test]
fn time_left_is_never_negative() {
    seconds("set a 0 0 1\r\n1\r\nmg a T-1 t\r\n", "HD t");
}

/// What is shown behind `prefix` is between 0 and 1000 here, and is not there.
fn seconds(input: &str, prefix: &str) {
    let shows = |peer: &dyn Peer| -> i64 {
        let said = peer.say(&[input.as_bytes(), b"quit\r\n"]);
        let said = String::from_utf8_lossy(&said).into_owned();
        let (_, rest) = said.split_once(prefix).expect(prefix);
        let digits = rest.split(['\r', ' ']).next().unwrap_or_default();
        digits.parse().expect(prefix)
    };
    let own = shows(&ours(1));
    assert!((0..=1000).contains(&own), "{input}: {own}");
    if let Some(oracle) = Memcached::start() {
        let other = shows(&oracle);
        assert!(!(0..=1000).contains(&other), "{input}: {other}");
    }
}

/// 7. Numbers are looked for inside a value; the oracle reads on behind a value of white space, in
///    what an item before it has left there.
#[test]
fn no_number_is_found_behind_a_value() {
    let left = "7".repeat(18);
    differs(
        &format!("set a 0 0 18\r\n{left}\r\ndelete a\r\nset n 0 0 1\r\n\n\r\nincr n 1\r\n"),
        "STORED\r\nDELETED\r\nSTORED\r\n\
         CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
        "STORED\r\nDELETED\r\nSTORED\r\n777777777777778\r\n",
    );
}

/// 8. A conversation that makes no sense ends behind its last good reply, and what is unknown takes its
///    own bytes only; the oracle drops replies that it has not sent yet, and takes key and extras
///    of an unknown packet twice.
#[test]
fn a_broken_packet_costs_no_reply_before_it() {
    let junk = [packet(opcode::NOOP, b"", b"", b"", 0), vec![b'x'; 24]];
    let unknown = [
        packet(0x50, b"", &[b'k'; 24], b"", 0),
        packet(opcode::NOOP, b"", b"", b"", 0),
    ];
    let noop = (opcode::NOOP, 0, 0);
    let error = (0x50, 0x81, "Unknown command".len());
    let quit = (opcode::QUIT, 0, 0);
    let server = ours(1);
    assert_eq!(responses(&server, &junk), [noop]);
    assert_eq!(responses(&server, &unknown), [error, noop, quit]);
    if let Some(oracle) = Memcached::start() {
        assert_eq!(responses(&oracle, &unknown), [error, quit]);
    }
}

/// 12. The block behind a refused storage command is data, as in 1.6.45, if its length can be read; the
///     oracle runs it, so that whoever controls a value and can spoil the line before it gives
///     commands. Words behind the last are no reason to refuse.
#[test]
fn the_block_of_a_refused_command_is_not_run() {
    const FORMAT: &str = "CLIENT_ERROR bad command line format\r\n";
    let long = "k".repeat(251);
    for refused in [
        format!("set {long} 0 0 9\r\n"),
        "set a x 0 9\r\n".into(),
        "add a 0 x 9\r\n".into(),
        "cas a 0 0 9 x\r\n".into(),
        format!("ms {long} 9\r\n"),
    ] {
        let input = format!("set b 0 0 1\r\n1\r\n{refused}flush_all\r\nget b\r\n");
        differs(
            &input,
            &format!("STORED\r\n{FORMAT}VALUE b 0 1\r\n1\r\nEND\r\n"),
            &format!("STORED\r\n{FORMAT}OK\r\nEND\r\n"),
        );
    }
    differs("cas a 0 0 9\r\nflush_all\r\n", FORMAT, "ERROR\r\nOK\r\n");
    differs(
        "set a 0 0 9 more words\r\nflush_all\r\n",
        "STORED\r\n",
        "ERROR\r\nOK\r\n",
    );
    let many = format!("ms a 9{}\r\nflush_all\r\n", " P".repeat(20));
    let flags = "CLIENT_ERROR options flags too long\r\n";
    differs(&many, flags, &format!("{flags}OK\r\n"));
}
