//! How requests end, by either connection of a session over a fabric.

use std::collections::VecDeque;

use herdwick_herd::Outcome;

use super::{Pending, translate::lost};
use crate::{Answer, Cause, Ticket};

/// Answers a request on the fabric whose session ended for `cause`.
pub(super) fn ended(
    pending: &mut Pending,
    cause: Cause,
    token: u64,
    outcome: &Outcome<'_>,
    sink: &mut impl FnMut(Ticket, Answer<'_>),
) {
    if let Some(entry) = pending.entry(token) {
        let ticket = entry.ticket;
        pending.release(token);
        sink(ticket, lost(cause, outcome));
    }
}

/// Passes an answer of the text connection on under the caller's ticket.
pub(super) fn outside(
    aliases: &mut VecDeque<(Ticket, Ticket)>,
    inner: Ticket,
    answer: Answer<'_>,
    sink: &mut impl FnMut(Ticket, Answer<'_>),
) {
    // Answers arrive in order, and some tickets get several: an older alias has had its last one.
    while aliases.front().is_some_and(|(front, _)| *front < inner) {
        aliases.pop_front();
    }
    if let Some((_, ticket)) = aliases.front() {
        sink(*ticket, answer);
    }
}
