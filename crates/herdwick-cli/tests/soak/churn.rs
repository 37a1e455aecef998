//! Thousands of leases and queue pairs, one after the other: clients that connect, make a call or
//! two, and leave.

use crate::{
    model::Own,
    stage::Visit,
    transports::{Kind, Transport},
};

/// Takes leases in a row.
pub(crate) fn visit(visit: &mut Visit<'_>) {
    let kind = visit.kind(Kind::is_lease);
    let mut own = Own::new(visit, kind, 2);
    for _ in 0..visit.between(10, 60) {
        if !visit.stage.lasts() {
            break;
        }
        let window = [1, 16, 32, 64][visit.chance.below(4)];
        let Some(mut library) = visit.stage.places.library(kind, window) else {
            visit.stage.count("refused a lease", 1);
            visit.rest(20);
            continue;
        };
        for index in 0..visit.between(0, 2) as usize {
            let value = own.store(index, visit.length(4000));
            library.set(&own.key(index), &value, 0);
            let found = library.get(&own.key(index));
            let times = [visit.stage.clock.now(); 2];
            own.check(
                visit.stage,
                index,
                (own.expected(index), found.as_deref()),
                times,
            );
        }
        visit.stage.count(&format!("leases over {kind:?}"), 1);
        visit.rest(3);
    }
}
