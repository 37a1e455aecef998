//! Clients over every transport that make one call after the other, and check each answer.

use crate::{
    model::Own,
    stage::Visit,
    transports::{Kind, Places, Transport},
};

/// Keys of its own for each client.
const KEYS: usize = 12;
/// Longest value that is shared with clients over UDP.
const SHARED_BYTES_MAX: usize = 16 << 10;

/// Connects, makes calls, and leaves; half of the clients delete their items first.
pub(crate) fn visit(visit: &mut Visit<'_>) {
    let kind = visit.kind(|_| true);
    let Some(mut transport) = visit.stage.places.connect(kind) else {
        visit.stage.count("refused a lease", 1);
        return;
    };
    let mut own = Own::new(visit, kind, KEYS);
    let calls = visit.between(5, 300);
    for call in 0..calls {
        if !visit.stage.lasts() {
            break;
        }
        step(visit, kind, &mut *transport, &mut own);
        if call % 32 == 31 {
            visit.rest(20);
        }
    }
    if visit.percent(50) {
        for index in 0..own.len() {
            transport.delete(&own.key(index));
        }
    }
    visit.stage.count(&format!("calls over {kind:?}"), calls);
}

/// Makes one call and checks its answer.
fn step(visit: &mut Visit<'_>, kind: Kind, transport: &mut dyn Transport, own: &mut Own) {
    let stage = visit.stage;
    let index = visit.chance.below(own.len());
    let most = transport.value_bytes_max();
    match visit.chance.below(16) {
        0..4 => store(visit, transport, own, index),
        4..7 => read(visit, transport, own, index),
        7..9 => read_many(visit, transport, own),
        9 => {
            own.delete(index);
            transport.delete(&own.key(index));
        }
        10..12 => {
            let len = 8 + visit.length(most.min(SHARED_BYTES_MAX));
            let register = visit.chance.below(stage.registers.len());
            stage.registers[register].write(transport, len.min(most));
        }
        12..15 => {
            let register = visit.chance.below(stage.registers.len());
            stage.registers[register].read(stage, transport);
        }
        _ if kind != Kind::Udp => stage.counter.add(stage, transport),
        _ => {}
    }
}

fn store(visit: &mut Visit<'_>, transport: &mut dyn Transport, own: &mut Own, index: usize) {
    let len = visit.length(transport.value_bytes_max());
    let ttl = if visit.percent(25) {
        visit.between(1, 4) as u32
    } else {
        0
    };
    let value = own.store(index, len);
    let begin = visit.stage.clock.now();
    transport.set(&own.key(index), &value, ttl);
    if ttl > 0 {
        own.expire(index, [begin, visit.stage.clock.now()], ttl);
    }
}

fn read(visit: &Visit<'_>, transport: &mut dyn Transport, own: &Own, index: usize) {
    let begin = visit.stage.clock.now();
    let found = transport.get(&own.key(index));
    let times = [begin, visit.stage.clock.now()];
    own.check(
        visit.stage,
        index,
        (own.expected(index), found.as_deref()),
        times,
    );
}

fn read_many(visit: &Visit<'_>, transport: &mut dyn Transport, own: &Own) {
    let keys: Vec<String> = (0..own.len()).map(|index| own.key(index)).collect();
    let begin = visit.stage.clock.now();
    let found = transport.get_many(&keys);
    let times = [begin, visit.stage.clock.now()];
    for (index, found) in found.iter().enumerate() {
        own.check(
            visit.stage,
            index,
            (own.expected(index), found.as_deref()),
            times,
        );
    }
}

/// Checks that a client over this transport is served, after all others have left.
pub(crate) fn is_served(places: &Places, kind: Kind) {
    let mut transport = places.connect(kind).expect("all clients have disconnected");
    let key = format!("last:{kind:?}");
    transport.set(&key, b"here", 0);
    assert_eq!(
        transport.get(&key).as_deref(),
        Some(&b"here"[..]),
        "{kind:?}"
    );
    if kind != Kind::Udp {
        transport.set("last:count", b"6", 0);
        assert_eq!(transport.incr("last:count"), Some(7), "{kind:?}");
    }
}
