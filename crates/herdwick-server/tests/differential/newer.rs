//! Replies in which 1.6.45 differs from Debian's 1.6.18. This server replies as 1.6.45 does; the
//! oracle must reply as stated for its version.

use crate::{
    common::{Memcached, Peer, oracle_is_old, ours, shown},
    differences::compare,
};

const FORMAT: &str = "CLIENT_ERROR bad command line format\r\n";
const EXPTIME: &str = "CLIENT_ERROR invalid exptime argument\r\n";
const DELTA: &str = "CLIENT_ERROR invalid numeric delta argument\r\n";
const TOKEN: &str = "CLIENT_ERROR bad token in command line format\r\n";

/// A conversation with the replies of 1.6.45 and of 1.6.18.
fn newer(input: &str, newer_says: &str, older_says: &str) {
    assert_ne!(newer_says, older_says);
    compare(
        input,
        newer_says,
        |old| if old { older_says } else { newer_says },
    );
}

/// A conversation with the replies of this server and 1.6.45; skipped with an old oracle.
fn since(input: &str, newer_says: &str) {
    for workers in [1, 3] {
        let said = ours(workers).say(&[input.as_bytes(), b"quit\r\n"]);
        assert_eq!(shown(&said), shown(newer_says.as_bytes()), "{input:?}");
    }
    if let Some(oracle) = Memcached::start().filter(|_| !oracle_is_old()) {
        let said = oracle.say(&[input.as_bytes(), b"quit\r\n"]);
        assert_eq!(shown(&said), shown(newer_says.as_bytes()), "{input:?}");
    }
}

#[test]
fn meta_flags_of_newer_versions() {
    newer(
        "ms a 1 E77\r\n1\r\n",
        "HD\r\n",
        "CLIENT_ERROR invalid flag\r\n",
    );
    newer(
        "ms a 2 s\r\nhi\r\nms a 1 MA s\r\n!\r\n",
        "HD s2\r\nHD s3\r\n",
        "HD\r\nHD\r\n",
    );
    newer("ms a 2 MA N0\r\nhi\r\n", "HD\r\n", "NS\r\n");
    newer(
        "set a 7 0 1\r\n1\r\nmd a x\r\nget a\r\n",
        "STORED\r\nHD\r\nVALUE a 0 0\r\n\r\nEND\r\n",
        "STORED\r\nCLIENT_ERROR invalid or duplicate flag\r\nVALUE a 7 1\r\n1\r\nEND\r\n",
    );
    newer("ma n N0 q\r\nmn\r\n", "MN\r\n", "HD\r\nMN\r\n");
    since(
        "ms a 1 E77\r\n1\r\nmg a v C77\r\nmg a v C78\r\nmg a c\r\n",
        "HD\r\nHD\r\nVA 1\r\n1\r\nHD c77\r\n",
    );
}

/// A command with too few words, or a line of fewer than four bytes, is an error.
#[test]
fn commands_with_too_few_words_are_refused() {
    let refused = format!("{FORMAT}END\r\n");
    for line in [
        "\r\n",
        "\n",
        "x\r\n",
        "get",
        "gets",
        "set a",
        "set a 0 0",
        "cas a 0 0 1",
        "incr a",
        "decr",
        "touch a",
        "delete",
        "verbosity",
        "mg",
        "md",
        "ma",
    ] {
        let line = if line.ends_with('\n') {
            line.to_owned()
        } else {
            format!("{line}\r\n")
        };
        let older = match line.as_str() {
            "cas a 0 0 1\r\n" => continue,
            _ => "ERROR\r\nEND\r\n",
        };
        newer(&format!("{line}get a\r\n"), &refused, older);
    }
    newer("gat 10\r\n", FORMAT, "END\r\n");
    newer("bget a\r\n", "ERROR\r\n", "END\r\n");
    newer(" get a\r\n", "ERROR\r\n", "END\r\n");
    newer(
        "boguscommand noreply\r\nget a\r\n",
        "END\r\n",
        "ERROR\r\nEND\r\n",
    );
    newer(
        "shutdown\r\n",
        "SERVER_ERROR: shutdown not enabled\r\n",
        "ERROR: shutdown not enabled\r\n",
    );
}

/// A `cas` with a space in place of its unique gets one reply, and its block is discarded.
#[test]
fn cas_without_unique_gets_one_reply() {
    since(
        "cas k 0 0 6 \r\nfoobar\r\ncas k 0 0 6 noreply\r\nfoobar\r\nget k\r\n",
        &format!("{FORMAT}END\r\n"),
    );
}

/// Words after the last argument are ignored.
#[test]
fn words_after_the_last_argument_are_ignored_by_the_server() {
    newer(
        "set a 0 0 9 more words\r\nflush_all\r\n",
        "STORED\r\n",
        "ERROR\r\nOK\r\n",
    );
    newer(
        "set a 0 0 1\r\n1\r\ndelete a 10\r\n",
        "STORED\r\nDELETED\r\n",
        "STORED\r\nCLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n",
    );
    newer("touch a 1 2 3\r\n", "NOT_FOUND\r\n", "ERROR\r\n");
    newer("incr a 1 2 3\r\n", "NOT_FOUND\r\n", "ERROR\r\n");
    newer("verbosity 1 2 3\r\n", "OK\r\n", "ERROR\r\n");
    newer("flush_all 0 2 3\r\n", "OK\r\n", "ERROR\r\n");
}

/// Numbers are digits only, except for the flags and the exptime of a storage command, which are
/// still parsed as by strtoul/strtol and truncated to 32 bits.
#[test]
fn numbers_with_other_characters_are_refused() {
    let set = "set n 0 0 1\r\n5\r\n";
    for (line, newer_says, older_says) in [
        ("incr n +3", DELTA, "8\r\n"),
        ("incr n 1\t", DELTA, "6\r\n"),
        ("decr n -0", DELTA, "5\r\n"),
        ("touch n 2147483648", EXPTIME, "TOUCHED\r\n"),
        ("touch n 4294967296", EXPTIME, "TOUCHED\r\n"),
        ("touch n -", "TOUCHED\r\n", EXPTIME),
        ("gat 4294967296 n", EXPTIME, "VALUE n 0 1\r\n5\r\nEND\r\n"),
        ("mg n T4294967296", TOKEN, "HD\r\n"),
        (
            "ma n D+3",
            "CLIENT_ERROR invalid or duplicate flag\r\n",
            "HD\r\n",
        ),
    ] {
        newer(
            &format!("{set}{line}\r\n"),
            &format!("STORED\r\n{newer_says}"),
            &format!("STORED\r\n{older_says}"),
        );
    }
    let cut = "STORED\r\nVALUE a 1 1\r\n1\r\nEND\r\n";
    compare(
        "set a 4294967297 4294967296 1\r\n1\r\nget a\r\n",
        cut,
        |_| cut,
    );
    newer(
        "set a 0 0 4294967297\r\n1\r\nms a 4294967297\r\n1\r\nget a\r\n",
        &format!("{FORMAT}{FORMAT}{FORMAT}{FORMAT}END\r\n"),
        "STORED\r\nHD\r\nVALUE a 0 1\r\n1\r\nEND\r\n",
    );
    newer(
        "ms a 1 F4294967297\r\n1\r\nmg a f\r\n",
        &format!("{FORMAT}EN\r\n"),
        "HD\r\nHD f1\r\n",
    );
}

/// Flushed items stay flushed: a later flush with a time before the server's start restores
/// nothing.
#[test]
fn flushed_items_stay_flushed() {
    newer(
        "set a 0 0 1\r\n1\r\nflush_all\r\nflush_all 2592001\r\nget a\r\n",
        "STORED\r\nOK\r\nOK\r\nEND\r\n",
        "STORED\r\nOK\r\nOK\r\nVALUE a 0 1\r\n1\r\nEND\r\n",
    );
}

/// A key may contain a NUL.
#[test]
fn nul_does_not_end_a_line() {
    newer(
        "set a\0b 0 0 1\r\n1\r\nget a\0b a\r\n",
        "STORED\r\nVALUE a\0b 0 1\r\n1\r\nEND\r\n",
        "ERROR\r\nERROR\r\nEND\r\n",
    );
}

/// `md` reports what is wrong with its flags, and a mode is its first letter.
#[test]
fn meta_flag_errors_match_memcacheds() {
    const ANY: &str = "CLIENT_ERROR invalid or duplicate flag\r\n";
    newer("md a k k\r\n", "CLIENT_ERROR duplicate flag\r\n", ANY);
    newer("md a S\r\n", "CLIENT_ERROR invalid flag\r\n", ANY);
    newer("md a Tx\r\n", TOKEN, ANY);
    newer("mg a !\r\n", FORMAT, "CLIENT_ERROR invalid flag\r\n");
    newer("ma a !\r\n", FORMAT, ANY);
    newer("ma n N0 J5 MDX v\r\n", "VA 1\r\n5\r\n", ANY);
    newer(
        "ms a 1 MSX\r\n1\r\n",
        "HD\r\n",
        "CLIENT_ERROR incorrect length for M token\r\n",
    );
    let flags = " k v q s t c f h l O1 T1 N1 R1 D1 J1 E1 C1 u x";
    newer(
        &format!("md a{flags}\r\n"),
        "CLIENT_ERROR options flags are too long\r\n",
        "CLIENT_ERROR options flags too long\r\n",
    );
}

/// The block after a refused storage command is discarded as data, if its length is readable. An
/// old memcached executes it, so a client that controls a value and can corrupt the line before it
/// can inject commands.
#[test]
fn block_of_a_refused_command_is_not_executed() {
    let long = "k".repeat(251);
    for refused in [
        format!("set {long} 0 0 9\r\n"),
        "set a x 0 9\r\n".into(),
        "add a 0 x 9\r\n".into(),
        "cas a 0 0 9 x\r\n".into(),
        format!("ms {long} 9\r\n"),
    ] {
        newer(
            &format!("set b 0 0 1\r\n1\r\n{refused}flush_all\r\nget b\r\n"),
            &format!("STORED\r\n{FORMAT}VALUE b 0 1\r\n1\r\nEND\r\n"),
            &format!("STORED\r\n{FORMAT}OK\r\nEND\r\n"),
        );
    }
    newer("cas a 0 0 9\r\nflush_all\r\n", FORMAT, "ERROR\r\nOK\r\n");
    newer(
        &format!("ms a 9{}\r\nflush_all\r\n", " P".repeat(20)),
        "CLIENT_ERROR options flags are too long\r\n",
        "CLIENT_ERROR options flags too long\r\nOK\r\n",
    );
}
