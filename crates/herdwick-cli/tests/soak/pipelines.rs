//! memcached's text protocol with many commands at once, by clients that leave in the middle of
//! them.

use crate::{
    model::{Expected, Own},
    stage::Visit,
    text::{self, Lines},
    transports::Kind,
};

const KEYS: usize = 16;
/// Most bytes of values that a batch stores and requests: all bytes in flight both ways fit into a
/// socket's buffers, because nothing is read before everything is sent.
const BATCH_BYTES_MAX: usize = 48 << 10;

/// The command that the next line answers.
enum Asked {
    Set,
    Delete,
    Get(usize, Expected),
}

/// Connects, sends batches, and leaves.
pub(crate) fn visit(visit: &mut Visit<'_>) {
    let kind = visit.kind(Kind::is_text);
    let mut lines = Lines::new(visit.stage.places.stream(kind));
    let mut own = Own::new(visit, kind, KEYS);
    let batches = visit.between(1, 40);
    for _ in 0..batches {
        if !visit.stage.lasts() {
            break;
        }
        let (bytes, asked) = batch(visit, &mut own);
        let begin = visit.stage.clock.now();
        lines.send(&bytes);
        for asked in asked {
            answer(visit, &mut lines, &own, asked, begin);
        }
        visit.rest(5);
    }
    leave(visit, &mut lines, &mut own);
    visit
        .stage
        .count(&format!("batches over {kind:?}"), batches);
}

fn batch(visit: &mut Visit<'_>, own: &mut Own) -> (Vec<u8>, Vec<Asked>) {
    let (mut bytes, mut asked, mut moved) = (Vec::new(), Vec::new(), 0);
    for _ in 0..visit.between(1, 100) {
        let index = visit.chance.below(KEYS);
        let key = own.key(index);
        match visit.chance.below(8) {
            0..3 => {
                let len = visit.length(8000);
                moved += len;
                bytes.extend(text::set(&key, &own.store(index, len), 0));
                asked.push(Asked::Set);
            }
            3 => {
                own.delete(index);
                bytes.extend(format!("delete {key}\r\n").into_bytes());
                asked.push(Asked::Delete);
            }
            _ => {
                let expected = own.expected(index);
                if let Expected::Stored { len, .. } = expected {
                    moved += len;
                }
                bytes.extend(format!("get {key}\r\n").into_bytes());
                asked.push(Asked::Get(index, expected));
            }
        }
        if moved > BATCH_BYTES_MAX {
            break;
        }
    }
    (bytes, asked)
}

fn answer(
    visit: &Visit<'_>,
    lines: &mut Lines,
    own: &Own,
    asked: Asked,
    begin: std::time::Duration,
) {
    match asked {
        Asked::Set => assert_eq!(lines.line(), "STORED"),
        Asked::Delete => {
            let line = lines.line();
            assert!(line == "DELETED" || line == "NOT_FOUND", "{line}");
        }
        Asked::Get(index, expected) => {
            let found = lines.values(&[own.key(index)]).remove(0);
            let times = [begin, visit.stage.clock.now()];
            own.check(visit.stage, index, (expected, found.as_deref()), times);
        }
    }
}

/// Leaves in order, with unread answers, or in the middle of a command.
fn leave(visit: &mut Visit<'_>, lines: &mut Lines, own: &mut Own) {
    let how = visit.chance.below(3);
    visit.in_doubt = how > 0;
    match how {
        0 => lines.send(b"quit\r\n"),
        1 => {
            let (bytes, _) = batch(visit, own);
            lines.send(&bytes);
        }
        _ => {
            let value = own.store(0, 20_000);
            let bytes = text::set(&own.key(0), &value, 0);
            let part = visit.chance.below(bytes.len());
            lines.send(&bytes[..part]);
        }
    }
}
