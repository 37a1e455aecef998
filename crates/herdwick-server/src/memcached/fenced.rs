//! Ends the connections of clients that know the server by a registration in etcd of before, at the fence's order.

use super::{MemcachedFront, connection::Connection};
use crate::runtime::front::Pass;

impl MemcachedFront {
    /// Carries out the fence's last order, if it is not yet.
    #[inline]
    pub(super) fn end_fenced(&mut self, pass: &mut Pass<'_>) {
        let order = self.service.context.fence.orders();
        if order != self.fenced {
            self.end_admitted_before(order, pass);
            self.fenced = order;
            self.service.context.fence.done(order);
        }
    }

    #[cold]
    fn end_admitted_before(&mut self, order: u64, pass: &mut Pass<'_>) {
        let is_ended = |connection: &Connection| connection.member.is_some_and(|it| it < order);
        for place in 0..self.connections.len() {
            if self.connections[place].as_ref().is_some_and(is_ended) {
                self.dismiss(place as u32, "error", pass);
            }
        }
    }
}
