//! Clients over every transport that make one call after the other, and check each answer.

use crate::{
    model::Own,
    stage::Visit,
    ways::{Kind, Places, Way},
};

/// Keys of its own for each client.
const KEYS: usize = 12;
/// Longest value that is shared with clients over UDP.
const SHARED_BYTES_MAX: usize = 16 << 10;

/// Connects, makes calls, and leaves; half of the clients delete their items first.
pub(crate) fn visit(visit: &mut Visit<'_>) {
    let kind = visit.kind(|_| true);
    let Some(mut way) = visit.stage.places.connect(kind) else {
        visit.stage.count("refused a lease", 1);
        return;
    };
    let mut own = Own::new(visit, kind, KEYS);
    let calls = visit.between(5, 300);
    for call in 0..calls {
        if !visit.stage.lasts() {
            break;
        }
        step(visit, kind, &mut *way, &mut own);
        if call % 32 == 31 {
            visit.rest(20);
        }
    }
    if visit.percent(50) {
        for index in 0..own.len() {
            way.delete(&own.key(index));
        }
    }
    visit.stage.count(&format!("calls over {kind:?}"), calls);
}

/// Makes one call and checks its answer.
fn step(visit: &mut Visit<'_>, kind: Kind, way: &mut dyn Way, own: &mut Own) {
    let stage = visit.stage;
    let index = visit.chance.below(own.len());
    let most = way.value_bytes_max();
    match visit.chance.below(16) {
        0..4 => store(visit, way, own, index),
        4..7 => read(visit, way, own, index),
        7..9 => read_many(visit, way, own),
        9 => {
            own.delete(index);
            way.delete(&own.key(index));
        }
        10..12 => {
            let len = 8 + visit.length(most.min(SHARED_BYTES_MAX));
            let register = visit.chance.below(stage.registers.len());
            stage.registers[register].write(way, len.min(most));
        }
        12..15 => {
            let register = visit.chance.below(stage.registers.len());
            stage.registers[register].read(stage, way);
        }
        _ if kind != Kind::Udp => stage.counter.add(stage, way),
        _ => {}
    }
}

fn store(visit: &mut Visit<'_>, way: &mut dyn Way, own: &mut Own, index: usize) {
    let len = visit.length(way.value_bytes_max());
    let ttl = if visit.percent(25) {
        visit.between(1, 4) as u32
    } else {
        0
    };
    let value = own.store(index, len);
    let begin = visit.stage.clock.now();
    way.set(&own.key(index), &value, ttl);
    if ttl > 0 {
        own.expire(index, [begin, visit.stage.clock.now()], ttl);
    }
}

fn read(visit: &Visit<'_>, way: &mut dyn Way, own: &Own, index: usize) {
    let begin = visit.stage.clock.now();
    let found = way.get(&own.key(index));
    let times = [begin, visit.stage.clock.now()];
    own.check(
        visit.stage,
        index,
        (own.expected(index), found.as_deref()),
        times,
    );
}

fn read_many(visit: &Visit<'_>, way: &mut dyn Way, own: &Own) {
    let keys: Vec<String> = (0..own.len()).map(|index| own.key(index)).collect();
    let begin = visit.stage.clock.now();
    let found = way.get_many(&keys);
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
    let mut way = places.connect(kind).expect("everybody has left");
    let key = format!("last:{kind:?}");
    way.set(&key, b"here", 0);
    assert_eq!(way.get(&key).as_deref(), Some(&b"here"[..]), "{kind:?}");
    if kind != Kind::Udp {
        way.set("last:count", b"6", 0);
        assert_eq!(way.incr("last:count"), Some(7), "{kind:?}");
    }
}
