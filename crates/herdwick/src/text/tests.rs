//! Tests of the text protocol: lines against protocol.txt, replies against their meaning, and
//! arbitrary bytes from a server.

use proptest::prelude::*;

use super::*;
use crate::{Hit, Lost, Refusal, Ttl};

const WHEN: When = When {
    now: Duration::ZERO,
    unix: 1_700_000_000,
    due: Duration::from_secs(1),
};

fn key(name: &str) -> Key<'_> {
    Key::new(name.as_bytes()).unwrap()
}

fn submit(text: &mut Text, name: &str, op: &Op<'_>) -> u64 {
    text.submit(WHEN, key(name), op).expect("there is room").0
}

/// Takes the unsent bytes, as a socket would.
fn wire(text: &mut Text) -> String {
    let bytes = text.unsent().to_vec();
    text.sent(bytes.len());
    String::from_utf8(bytes).unwrap()
}

/// Feeds `bytes` and returns the answers as text.
fn feed(text: &mut Text, mut bytes: &[u8]) -> (Vec<(u64, String)>, Result<(), Cause>) {
    let mut answers = Vec::new();
    let mut outcome = Ok(());
    while !bytes.is_empty() && outcome.is_ok() {
        let room = text.room();
        let len = room.len().min(bytes.len());
        room[..len].copy_from_slice(&bytes[..len]);
        bytes = &bytes[len..];
        outcome = text.received(len, &mut |ticket, answer| {
            answers.push((ticket.0, show(answer)))
        });
    }
    (answers, outcome)
}

fn show(answer: Answer<'_>) -> String {
    let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
    match answer {
        Answer::Hit(Hit {
            value,
            flags,
            version,
        }) => format!("{} {flags} {version}", text(value)),
        Answer::Line { name, value } => format!("{}={}", text(name), text(value)),
        Answer::Refused(Refusal::Other(why)) => format!("no: {}", text(why)),
        other => format!("{other:?}"),
    }
}

fn named(answers: &[(u64, &str)]) -> Vec<(u64, String)> {
    answers
        .iter()
        .map(|&(ticket, answer)| (ticket, answer.to_owned()))
        .collect()
}

#[test]
fn requests_match_protocol_txt() {
    let put = Put::new("v\r\n").flags(7).ttl(Duration::from_secs(9));
    for (op, line) in [
        (Op::Get, "gets k\r\n"),
        (Op::Store(Mode::Set, put), "set k 7 9 3\r\nv\r\n\r\n"),
        (Op::Store(Mode::Add, put), "add k 7 9 3\r\nv\r\n\r\n"),
        (
            Op::Store(Mode::Replace, put),
            "replace k 7 9 3\r\nv\r\n\r\n",
        ),
        (
            Op::Store(Mode::Append, Put::new("")),
            "append k 0 0 0\r\n\r\n",
        ),
        (
            Op::Store(Mode::Prepend, Put::new("x")),
            "prepend k 0 0 1\r\nx\r\n",
        ),
        (
            Op::Cas(u64::MAX, put),
            "cas k 7 9 3 18446744073709551615\r\nv\r\n\r\n",
        ),
        (Op::Delete, "delete k\r\n"),
        (Op::Touch(Ttl::Seconds(0)), "touch k 2592001\r\n"),
        (Op::Touch(Ttl::Seconds(60 * 365 * 86_400)), "touch k 0\r\n"),
        (
            Op::Touch(Ttl::Seconds(31 * 86_400)),
            "touch k 1702678400\r\n",
        ),
        (Op::Incr(u64::MAX), "incr k 18446744073709551615\r\n"),
        (Op::Decr(10), "decr k 10\r\n"),
    ] {
        let mut text = Text::new(100);
        submit(&mut text, "k", &op);
        assert_eq!(wire(&mut text), line, "{op:?}");
    }
}

#[test]
fn queued_gets_are_sent_in_one_line() {
    let mut text = Text::new(100);
    for name in ["a", "b", "c", "b"] {
        submit(&mut text, name, &Op::Get);
    }
    submit(&mut text, "a", &Op::Delete);
    submit(&mut text, "z", &Op::Get);
    assert_eq!(wire(&mut text), "gets a b c b\r\ndelete a\r\ngets z\r\n");
    submit(&mut text, "y", &Op::Get);
    assert_eq!(
        wire(&mut text),
        "gets y\r\n",
        "what is sent is not reopened"
    );

    let reply = b"VALUE b 1 1 5\r\nB\r\nVALUE b 1 1 5\r\nB\r\nEND\r\nDELETED\r\nEND\r\nVALUE y 0 0 6\r\n\r\nEND\r\n";
    let expected = [
        (0, "Miss"),
        (1, "B 1 5"),
        (2, "Miss"),
        (3, "B 1 5"),
        (4, "Done"),
        (5, "Miss"),
        (6, " 0 6"),
    ];
    assert_eq!(feed(&mut text, reply), (named(&expected), Ok(())));
    assert_eq!(text.due(), None, "no request is in flight");
}

#[test]
fn line_of_gets_is_bounded() {
    let mut text = Text::new(100);
    for index in 0..200 {
        submit(&mut text, &format!("{index:0>250}"), &Op::Get);
    }
    let lines = wire(&mut text);
    assert_eq!(
        lines
            .lines()
            .map(|line| line.split(' ').count() - 1)
            .sum::<usize>(),
        200
    );
    assert!(lines.lines().all(|line| line.len() <= 5 + 64 * 251));
}

#[test]
fn replies_are_interpreted_by_their_request() {
    let put = Put::new("v");
    for (op, reply, answer) in [
        (Op::Store(Mode::Add, put), "NOT_STORED\r\n", "NotStored"),
        (Op::Cas(1, put), "EXISTS\r\n", "Exists"),
        (Op::Cas(1, put), "NOT_FOUND\r\n", "Miss"),
        (Op::Touch(Ttl::Never), "TOUCHED\r\n", "Done"),
        (Op::Incr(1), "42\r\n", "Number(42)"),
        (Op::Incr(1), "NOT_FOUND\r\n", "Miss"),
        (
            Op::Incr(1),
            "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
            "Refused(NotNumeric)",
        ),
        (
            Op::Store(Mode::Set, put),
            "SERVER_ERROR object too large for cache\r\n",
            "Refused(TooLarge)",
        ),
        (
            Op::Get,
            "SERVER_ERROR out of memory\r\n",
            "no: out of memory",
        ),
        (Op::Delete, "ERROR\r\n", "no: it does not know the command"),
    ] {
        let mut text = Text::new(100);
        submit(&mut text, "k", &op);
        wire(&mut text);
        let seen = feed(&mut text, reply.as_bytes());
        assert_eq!(seen, (named(&[(0, answer)]), Ok(())), "{op:?} {reply:?}");
    }
}

#[test]
fn stats_replies_are_collected_until_end() {
    let mut text = Text::new(100);
    let due = WHEN.due;
    text.command(due, Command::Stats(b"items")).unwrap();
    text.command(due, Command::Version).unwrap();
    text.command(due, Command::FlushAll).unwrap();
    assert_eq!(wire(&mut text), "stats items\r\nversion\r\nflush_all\r\n");
    let replies = b"STAT a 1\r\nSTAT b c d\r\nEND\r\nVERSION 1.6\r\nOK\r\n";
    let expected = [
        (0, "a=1"),
        (0, "b=c d"),
        (0, "Done"),
        (1, "version=1.6"),
        (1, "Done"),
        (2, "Done"),
    ];
    assert_eq!(feed(&mut text, replies), (named(&expected), Ok(())));
}

#[test]
fn unexpected_reply_ends_the_stream() {
    for (op, reply) in [
        (Op::Get, "STORED\r\n"),
        (Op::Get, "VALUE other 0 1 1\r\nv\r\n"),
        (Op::Get, "VALUE k 0 1\r\nv\r\n"),
        (Op::Delete, "STORED\r\n"),
        (Op::Incr(1), "TOUCHED\r\n"),
        (Op::Delete, "DELETED\r\nDELETED\r\n"),
        (Op::Store(Mode::Set, Put::new("v")), "ERROR\r\n"),
    ] {
        let mut text = Text::new(100);
        submit(&mut text, "k", &op);
        wire(&mut text);
        assert_eq!(
            feed(&mut text, reply.as_bytes()).1,
            Err(Cause::Unexpected),
            "{op:?} {reply:?}"
        );
    }
}

#[test]
fn only_completely_sent_mutations_may_have_executed() {
    let mut text = Text::new(100);
    for op in [Op::Get, Op::Incr(1), Op::Incr(1), Op::Delete] {
        submit(&mut text, "k", &op);
    }
    let up_to_last_byte_of_second_incr = "gets k\r\nincr k 1\r\nincr k 1\r".len();
    text.sent(up_to_last_byte_of_second_incr);
    let mut lost = Vec::new();
    text.lose(Cause::Closed, &mut |ticket, answer| match answer {
        Answer::Lost(Lost {
            cause: Cause::Closed,
            perhaps_done,
        }) => {
            lost.push((ticket.0, perhaps_done));
        }
        other => panic!("{other:?}"),
    });
    assert_eq!(lost, [(0, false), (1, true), (2, false), (3, false)]);
}

#[test]
fn queued_requests_are_bounded() {
    let mut text = Text::new(100);
    let taken = (0..)
        .take_while(|_| text.submit(WHEN, key("k"), &Op::Delete).is_some())
        .count();
    assert_eq!(taken, IN_FLIGHT_MAX);

    let mut text = Text::new(100);
    let value = vec![0; UNSENT_BYTES_MAX];
    submit(&mut text, "k", &Op::Store(Mode::Set, Put::new(&value)));
    assert_eq!(text.submit(WHEN, key("k"), &Op::Get), None);
    text.sent(text.unsent().len());
    assert!(text.submit(WHEN, key("k"), &Op::Get).is_some());
}

#[test]
fn receive_buffer_grows_only_with_received_bytes() {
    let mut text = Text::new(1 << 30);
    submit(&mut text, "k", &Op::Get);
    assert_eq!(
        feed(&mut text, b"VALUE k 0 1073741824 1\r\n"),
        (vec![], Ok(()))
    );
    assert!(text.room().len() < 1 << 20);
}

fn any_op() -> impl Strategy<Value = Op<'static>> {
    prop_oneof![
        Just(Op::Get),
        Just(Op::Get),
        Just(Op::Get),
        Just(Op::Store(Mode::Set, Put::new("v"))),
        Just(Op::Delete),
        Just(Op::Touch(Ttl::Never)),
        Just(Op::Incr(3)),
    ]
}

fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    let words = proptest::sample::select(vec![
        "VALUE k 0 1 1\r\nv\r\n",
        "VALUE k 0 99 1\r\n",
        "END\r\n",
        "STORED\r\n",
        "DELETED\r\n",
        "7\r\n",
        "TOUCHED\r\n",
        "NOT_FOUND\r\n",
        "ERROR\r\n",
        "SERVER_ERROR x\r\n",
        "STAT a b\r\n",
        "\r\n",
        "x",
    ]);
    let word = prop_oneof![
        8 => words.prop_map(|word| word.as_bytes().to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..20),
    ];
    proptest::collection::vec(word, 0..30).prop_map(|words| words.concat())
}

proptest! {
    /// Whatever a server sends: no panic, and each ticket is answered exactly once.
    #[test]
    fn every_request_is_answered_once_for_any_bytes(
        ops in proptest::collection::vec(any_op(), 0..20),
        bytes in any_bytes(),
        cuts in proptest::collection::vec(1usize..40, 1..20),
    ) {
        let mut text = Text::new(50);
        for op in &ops {
            submit(&mut text, "k", op);
        }
        wire(&mut text);
        let mut answered = Vec::new();
        let (mut rest, mut cuts) = (&bytes[..], cuts.iter().cycle());
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
            rest = later;
            let (answers, outcome) = feed(&mut text, now);
            answered.extend(answers.into_iter().map(|(ticket, _)| ticket));
            if outcome.is_err() {
                break;
            }
        }
        text.lose(Cause::Closed, &mut |ticket, _| answered.push(ticket.0));
        prop_assert_eq!(answered, (0..ops.len() as u64).collect::<Vec<_>>());
    }
}
