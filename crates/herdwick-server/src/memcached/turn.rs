//! One connection's turn: one write, one read, a bounded number of rounds, one write.

use super::{
    buffer::{INPUT_BYTES_MAX, LONG_INPUT_BYTES_MAX},
    connection::{Connection, Flow, Room},
    service::{Round, Service},
    upload::{self, Went},
};
use crate::runtime::{forward::ReplyTo, front::Pass};

/// The result of a turn: the state of the stream, and whether the connection waits for a forwarded
/// batch.
pub(super) struct Turn {
    pub(super) flow: Flow,
    pub(super) waits_for_batch: bool,
}

impl Turn {
    fn flows(flow: Flow) -> Self {
        Self {
            flow,
            waits_for_batch: false,
        }
    }
}

/// Serves `connection`, at most `rounds` rounds. `ticket` is that of its first request.
pub(super) fn serve(
    service: &mut Service,
    connection: &mut Connection,
    ticket: ReplyTo,
    rounds: usize,
    pass: &mut Pass<'_>,
) -> Turn {
    let flow = write(service, connection, pass);
    // Replies first: a peer that does not read them is given no more work.
    if flow != Flow::Moved || connection.gather.is_some() {
        return Turn::flows(flow);
    }
    if connection.room == Room::Wanted && !service.budget.allows(connection) {
        service.budget.wait(connection, ticket.connection);
        pass.counters.replies_queued += 1;
    }
    if connection.waits() {
        return Turn::flows(flow);
    }
    if connection.upload.is_some() {
        match upload::go_on(service, connection, ticket, pass) {
            Went::Over if connection.gather.is_none() => {}
            went => return after_upload(service, connection, went, pass),
        }
    }
    if connection.may_read() && !connection.has_work() {
        let Some(limit) = input_limit(service, connection) else {
            return Turn::flows(Flow::Moved);
        };
        let flow = connection.read(&mut service.pool, limit, pass.counters);
        if flow == Flow::Broken {
            return Turn::flows(flow);
        }
    }
    if service.hello.takes_claims()
        && let Some(whole) = connection.begins_with_claim()
    {
        connection.claims = whole;
        return Turn::flows(Flow::Moved);
    }
    if connection.begins_otherwise(service.context.settings.protocol) {
        pass.counters.closed_not_memcached += 1;
        connection.faulty = true;
        connection.hang_up();
        return Turn::flows(Flow::Moved);
    }
    if !connection.admitted && !service.admit(connection, pass.counters) {
        return Turn::flows(write(service, connection, pass));
    }
    let mut waits_for_batch = false;
    // Bounded by `-R`: a peer that sends without a pause does not keep others waiting.
    for _ in 0..rounds {
        match service.round(connection, ticket, pass) {
            Round::Done => {}
            Round::NoBatch => {
                waits_for_batch = true;
                break;
            }
            Round::Upload => {
                let went = upload::go_on(service, connection, ticket, pass);
                return after_upload(service, connection, went, pass);
            }
            Round::Incomplete | Round::Full | Round::Away | Round::Short => break,
        }
    }
    Turn {
        flow: write(service, connection, pass),
        waits_for_batch,
    }
}

/// Writes the replies that there are, and records how long the requests took if that is measured and the socket
/// has taken all of their replies. What is behind them, as `stats`, may still wait for other workers.
#[inline]
fn write(service: &mut Service, connection: &mut Connection, pass: &mut Pass<'_>) -> Flow {
    let flow = connection.write(&mut service.pool, pass.counters);
    if let Some(times) = &mut service.times
        && connection.timer.runs()
        && flow == Flow::Moved
        && connection.has_sent_replies()
    {
        times.stop(&mut connection.timer, connection.stream.number(), pass);
    }
    flow
}

fn after_upload(
    service: &mut Service,
    connection: &mut Connection,
    went: Went,
    pass: &mut Pass<'_>,
) -> Turn {
    if went == Went::Broken {
        return Turn::flows(Flow::Broken);
    }
    Turn {
        flow: write(service, connection, pass),
        waits_for_batch: went == Went::NoBatch,
    }
}

/// Returns the bytes of input that the connection may buffer; `None` if it has to wait for room.
fn input_limit(service: &mut Service, connection: &mut Connection) -> Option<usize> {
    if connection.input.data().len() < INPUT_BYTES_MAX {
        return Some(INPUT_BYTES_MAX);
    }
    if !connection.long_line {
        if !service.budget.allows(connection) {
            connection.room = Room::Wanted;
            return None;
        }
        service.budget.used(connection);
        connection.long_line = true;
    }
    Some(LONG_INPUT_BYTES_MAX)
}
