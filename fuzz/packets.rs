//! What must hold of every run of packets at a RoCE port. The fuzz target asks it of what it makes
//! up, and `cargo test` of the corpus.

#[path = "../crates/herdwick-roce/tests/common/mod.rs"]
mod common;

use common::{
    packet::Way,
    siege::Siege,
    stage::{FRIEND, STRANGER, VICTIM},
};

/// Bits of the first byte: from the friend or a stranger, with an ICRC that is right, to a queue
/// pair that is alive, in sequence, with a key that is alive.
const FROM_FRIEND: u8 = 1;
const SEALED: u8 = 1 << 1;
const LIVE_QP: u8 = 1 << 2;
const IN_SEQUENCE: u8 = 1 << 3;
const LIVE_KEY: u8 = 1 << 4;

/// An input is a run of packets, each behind three bytes: flags, which queue pair (3 bits) and
/// key, length.
pub(crate) fn check(input: &[u8]) {
    let mut siege = Siege::new();
    let mut rest = input;
    let mut forged = false;
    while let [flags, which, len, tail @ ..] = rest {
        let (packet, tail) = tail.split_at(usize::from(*len).min(tail.len()));
        hand(&mut siege, *flags, *which, packet);
        forged |= flags & FROM_FRIEND != 0;
        rest = tail;
    }
    assert!(siege.keeps(), "no byte changes that no key opens");
    if !forged {
        siege.survives();
    }
}

fn hand(siege: &mut Siege, flags: u8, which: u8, packet: &[u8]) {
    let from = if flags & FROM_FRIEND == 0 {
        STRANGER
    } else {
        FRIEND
    };
    let victim = &siege.stage.victim;
    let (qpn, psn) = match which & 7 {
        0..3 => (victim.qpn(victim.rc), siege.stage.next_rc),
        3..6 => (victim.qpn(victim.uc), siege.stage.next_uc),
        _ => (victim.qpn(victim.ud), 0),
    };
    let regions = [
        victim.open,
        siege.write,
        siege.read,
        siege.local,
        siege.scoped,
        siege.elsewhere,
    ];
    let (addr, rkey) = siege.key(regions[usize::from(which >> 3) % regions.len()]);
    let mut bytes = packet.to_vec();
    let mut put = |flag: u8, at: usize, what: &[u8]| {
        let room = bytes.get_mut(at..at + what.len());
        if let Some(room) = room.filter(|_| flags & flag != 0) {
            room.copy_from_slice(what);
        }
    };
    put(LIVE_QP, 5, &qpn.to_be_bytes()[1..]);
    put(IN_SEQUENCE, 9, &psn.to_be_bytes()[1..]);
    put(LIVE_KEY, 12, &addr.to_be_bytes());
    put(LIVE_KEY, 20, &rkey.to_be_bytes());
    if flags & SEALED != 0 {
        bytes = Way::new(from, VICTIM).seal(&bytes);
    }
    for (to, answer) in siege.stage.hand(from, &bytes) {
        assert!(
            to == FRIEND && from == FRIEND,
            "{bytes:02x?}: {answer:02x?}"
        );
    }
    siege.drain();
}
