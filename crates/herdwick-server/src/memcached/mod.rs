//! The front end for memcached's clients: one worker's connections over TCP, TLS, unix sockets and UDP,
//! served in turns. A connection is identified by its index in a table and a generation number.

mod budget;
mod buffer;
mod connection;
mod fenced;
mod gate;
mod gather;
mod locked_partitions;
mod operator_lines;
mod owners;
mod round;
mod run;
mod sasl;
mod server_commands;
mod server_packets;
mod service;
mod statistics;
mod stats_conns;
#[cfg(test)]
mod tests;
mod timeouts;
mod turn;
mod upload;
mod upload_state;

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    sync::{Arc, mpsc::Sender},
    time::Duration,
};

use herdwick_mem::spsc::Consumer;
use herdwick_memcache::Decoder;
use herdwick_request::Second;
use mio::{Registry, event::Event};

pub(crate) use owners::Owners;

use crate::{
    context::Context,
    herd::lease::{CountedConnection, HelloResponder, LeaseArrival},
    memcached::{
        budget::CHECK,
        buffer::UPLOAD_BYTES_MIN,
        connection::{Connection, Flow, Room},
        gather::{Gather, Purpose},
        service::{Service, TRANSPORT},
        timeouts::ActivityTimer,
        turn::Turn,
    },
    net::{stream::Stream, udp::Sent},
    runtime::{
        forward::{ForwardBatch, ReplyTo},
        front::{Activity, Front, Pass, Tokens},
        reply_encoding::RUN_REQUESTS,
        upload_permits::Permits,
    },
    telemetry::{
        latency::LatencyHistograms,
        snapshot::Closed,
        watch::{What, topic},
    },
    threads::event_writer::Asking,
};

/// Interval at which a worker with waiting connections tries again to take a shared permit of a
/// partition for which other workers wait, too.
const ASK_AGAIN: Duration = Duration::from_millis(10);

/// One worker's connections.
pub(crate) struct MemcachedFront {
    /// Streams that were accepted for this worker.
    intake: Consumer<Stream>,
    connections: Vec<Option<Connection>>,
    vacant: Vec<u32>,
    /// Connections to be served, each at most once.
    queue: VecDeque<u32>,
    /// Connections that wait for a free forwarded batch.
    awaiting_batch: Vec<u32>,
    service: Service,
    tokens: Tokens,
    /// Counts all connections ever made, to distinguish successive users of a place.
    generation: u32,
    /// Maximum number of rounds of one connection in one pass.
    rounds: usize,
    /// Time of the next attempt to take shared permits in turn.
    next_ask: Duration,
    /// Sends watching connections to the event writer.
    writer: Sender<Asking>,
    draining: bool,
    /// The last order of the fence that is carried out.
    fenced: u64,
}

impl MemcachedFront {
    pub(crate) fn new(
        context: Arc<Context>,
        hello: Arc<HelloResponder>,
        owners: Owners,
        intake: Consumer<Stream>,
        writer: Sender<Asking>,
        permits: Arc<Permits>,
    ) -> Self {
        // `-R` counts requests; a round has up to `RUN_REQUESTS`.
        let rounds = context.settings.turn_requests.div_ceil(RUN_REQUESTS);
        Self {
            intake,
            connections: Vec::new(),
            vacant: Vec::new(),
            queue: VecDeque::new(),
            awaiting_batch: Vec::new(),
            service: Service::new(context, hello, owners, permits),
            tokens: Tokens::of_front(0),
            generation: 0,
            rounds,
            next_ask: Duration::ZERO,
            writer,
            draining: false,
            fenced: 0,
        }
    }

    fn admit(&mut self, mut stream: Stream, pass: &mut Pass<'_>) {
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.connections.push(None);
            // `-c` is far below 2^32.
            (self.connections.len() - 1) as u32
        });
        let token = self.tokens.token(place as usize);
        if stream.register(pass.registry, token).is_err() {
            pass.counters.closed_errors += 1;
            self.service.context.limits.leave();
            self.vacant.push(place);
            return;
        }
        self.generation = self.generation.wrapping_add(1);
        let item_bytes_max = self.service.context.settings.item_bytes_max;
        let decoder = Decoder::new(item_bytes_max).announcing(UPLOAD_BYTES_MIN);
        let mut connection = Connection::new(stream, self.generation, decoder);
        connection.admitted = self.service.context.auth.is_none();
        connection.activity = ActivityTimer::new(pass.start.clock.second.0);
        connection.queued = true;
        if self.draining {
            connection.drain();
        }
        self.note_event(&connection.stream, pass, What::Opened);
        self.connections[place as usize] = Some(connection);
        self.queue.push_back(place);
        pass.counters.connections += 1;
    }

    /// Gives one connection its turn, then closes it, hands it over, or queues it again.
    fn serve(&mut self, place: u32, pass: &mut Pass<'_>) {
        let Some(connection) = self.connections[place as usize].as_mut() else {
            return;
        };
        connection.queued = false;
        let ticket = connection.ticket(place);
        let Turn {
            flow,
            waits_for_batch,
        } = turn::serve(&mut self.service, connection, ticket, self.rounds, pass);
        if connection.claims {
            self.pass_on(place, pass);
            return;
        }
        if connection.watches.is_some() && connection.output.is_empty() {
            if connection.stream.is_datagram() {
                self.dismiss(place, "error", pass);
            } else {
                self.hand_over(place, pass);
            }
            return;
        }
        let broken = flow == Flow::Broken || connection.waits_in_vain();
        if broken || connection.is_done() {
            let reason = if broken {
                "error"
            } else {
                let sent = connection.stream.conclude();
                pass.counters.udp_unsent += u64::from(sent == Sent::Less);
                if connection.faulty { "error" } else { "normal" }
            };
            self.dismiss(place, reason, pass);
            return;
        }
        connection.rest(&mut self.service.pool);
        let budget = &mut self.service.budget;
        budget.note(connection, pass.start.clock.second.0);
        pass.counters.held_bytes = budget.held() as u64;
        let may_go_on = flow == Flow::Moved && connection.gather.is_none() && !connection.waits();
        if waits_for_batch {
            connection.queued = true;
            self.awaiting_batch.push(place);
        } else if may_go_on && (connection.readable || connection.has_work()) {
            pass.counters.conn_yields += u64::from(connection.has_work());
            connection.queued = true;
            self.queue.push_back(place);
        }
    }

    /// Records an event of a connection for watchers. Locks the partition, where events are
    /// recorded, only if there are any.
    fn note_event(
        &self,
        stream: &Stream,
        pass: &mut Pass<'_>,
        what: impl FnOnce(i32, Option<SocketAddr>) -> What,
    ) {
        if !stream.is_datagram() && self.service.context.watch.wants(topic::CONNEVENTS) {
            let (number, from) = stream.origin();
            pass.own().event_queue.note(what(number, from), &[]);
        }
    }

    fn dismiss(&mut self, place: u32, reason: &'static str, pass: &mut Pass<'_>) {
        if let Some(connection) = self.take_out(place, pass) {
            let closed = |number, from| What::Closed(number, from, reason);
            self.note_event(&connection.stream, pass, closed);
            self.service.context.limits.leave();
        }
    }

    /// Hands a watching connection over to the event writer. It stays counted until the writer
    /// closes it.
    fn hand_over(&mut self, place: u32, pass: &mut Pass<'_>) {
        let Some(Connection {
            stream,
            watches: Some(topics),
            ..
        }) = self.take_out(place, pass)
        else {
            return;
        };
        if self.writer.send(Asking { stream, topics }).is_err() {
            // The writer has ended, which it does only with the workers.
            self.service.context.limits.leave();
        }
    }

    /// Passes a connection that began with a claim to the lease manager. It stays counted until its
    /// [`CountedConnection`] is dropped.
    fn pass_on(&mut self, place: u32, pass: &mut Pass<'_>) {
        if let Some(Connection { stream, input, .. }) = self.take_out(place, pass) {
            let context = &self.service.context;
            self.service.hello.pass_on(LeaseArrival {
                stream,
                input: input.data().to_vec(),
                slot: CountedConnection(Arc::clone(context)),
            });
        }
    }

    fn take_out(&mut self, place: u32, pass: &mut Pass<'_>) -> Option<Connection> {
        let mut connection = self.connections[place as usize].take()?;
        // An error is harmless: closing the descriptor deregisters it, too.
        let _ = connection.stream.deregister(pass.registry);
        self.service.budget.forget(&connection, place);
        if let Some(mut upload) = connection.upload.take() {
            let ticket = connection.ticket(place);
            upload::abort(&mut self.service, &mut upload, ticket, pass);
        }
        self.vacant.push(place);
        pass.counters.connections -= 1;
        Some(connection)
    }

    /// Closes the connections that have timed out or stalled, as the budget decides.
    #[cold]
    fn give_up(&mut self, pass: &mut Pass<'_>) {
        let timeout = self.service.context.tunables.timeout();
        let Service {
            budget, permits, ..
        } = &mut self.service;
        let now = (pass.start.now, pass.start.clock.second.0);
        let given_up = budget.check(&mut self.connections, permits, timeout, now, pass.counters);
        for (place, why) in given_up {
            let reason = match why {
                Closed::Idle => "idle_timeout",
                Closed::HalfSent | Closed::Stalled => "error",
            };
            self.dismiss(place, reason, pass);
        }
        pass.counters.held_bytes = self.service.budget.held() as u64;
    }

    /// Resumes the connections that have waited for room, in the budget or in a store, and have it
    /// now.
    #[cold]
    fn let_go_on(&mut self, pass: &mut Pass<'_>) {
        upload::send_aborts(&mut self.service, pass);
        while let Some(place) = self.service.budget.next() {
            self.resume(place, |connection| connection.room = Room::Granted);
        }
        let in_turn = pass.start.now >= self.next_ask;
        if in_turn {
            self.next_ask = pass.start.now + ASK_AGAIN;
        }
        while let Some((place, permit)) = self.service.permits.next(in_turn) {
            self.resume(place, |connection| {
                if let Some(upload) = &mut connection.upload {
                    upload.grant(permit);
                }
            });
        }
    }

    fn resume(&mut self, place: u32, change: impl FnOnce(&mut Connection)) {
        if let Some(connection) = &mut self.connections[place as usize] {
            change(connection);
            if !connection.queued {
                connection.queued = true;
                self.queue.push_back(place);
            }
        }
    }

    /// Returns whether a connection waits for room, or an abort of an upload is still to be sent.
    fn is_short(&self) -> bool {
        let Service {
            budget,
            permits,
            left,
            ..
        } = &self.service;
        budget.waits() || permits.waits() || !left.is_empty()
    }

    /// Distributes the replies of a forwarded batch that has returned.
    fn deliver(&mut self, batch: &mut ForwardBatch) {
        if batch.is_command() {
            for ticket in std::mem::take(&mut batch.tickets) {
                self.arrive(ticket, |purpose| purpose.take(batch));
            }
            return;
        }
        let adopted = batch
            .large_text()
            .is_some_and(|(ticket, text)| self.adopt(ticket, text));
        for (index, (ticket, reply)) in batch.replies().enumerate() {
            self.arrive(ticket, |purpose| match (purpose, reply) {
                (Purpose::Replies(replies), Ok(range)) if adopted => {
                    replies.place(ticket.slot as usize, range);
                }
                (Purpose::Replies(replies), Ok(range)) => {
                    replies.put(ticket.slot as usize, &batch.text()[range]);
                }
                (Purpose::Replies(replies), Err(large)) => {
                    replies.put_off(ticket.slot as usize, large, batch.request(index));
                }
                _ => {}
            });
        }
    }

    /// Moves the text of a batch to the one connection that waits for it; returns whether it did.
    fn adopt(&mut self, ticket: ReplyTo, text: &mut Vec<u8>) -> bool {
        let connection = waiting(&mut self.connections, ticket);
        match connection.and_then(|connection| connection.gather.as_mut()) {
            Some(Gather {
                purpose: Purpose::Replies(replies),
                ..
            }) => replies.adopt(text),
            _ => false,
        }
    }

    /// Takes one more reply for the connection of `ticket`, if it is still open; completes its
    /// round with the last reply.
    fn arrive(&mut self, ticket: ReplyTo, take: impl FnOnce(&mut Purpose)) {
        let Some(connection) = waiting(&mut self.connections, ticket) else {
            return;
        };
        let Some(gather) = connection.gather.as_mut() else {
            return;
        };
        take(&mut gather.purpose);
        gather.outstanding -= 1;
        if gather.outstanding == 0 {
            self.service.complete(connection);
            if !connection.queued {
                connection.queued = true;
                self.queue.push_back(ticket.connection);
            }
        }
    }
}

/// Returns the connection of `ticket`, if it is still open.
fn waiting(connections: &mut [Option<Connection>], ticket: ReplyTo) -> Option<&mut Connection> {
    connections[ticket.connection as usize]
        .as_mut()
        // Another connection may have the place by now.
        .filter(|connection| connection.generation == ticket.generation)
}

impl Front for MemcachedFront {
    fn register(&mut self, _registry: &Registry, tokens: Tokens) -> io::Result<()> {
        self.tokens = tokens;
        Ok(())
    }

    fn ready(&mut self, local: usize, event: &Event) {
        let Some(Some(connection)) = self.connections.get_mut(local) else {
            return;
        };
        connection.readable |= event.is_readable();
        connection.half_closed |= event.is_read_closed() || event.is_error();
        connection.gone |= event.is_error() || event.is_read_closed() && event.is_write_closed();
        if !connection.queued {
            connection.queued = true;
            self.queue.push_back(local as u32);
        }
    }

    fn pass(&mut self, pass: &mut Pass<'_>) -> Activity {
        let mut busy = false;
        self.end_fenced(pass);
        while let Some(stream) = self.intake.pop() {
            busy = true;
            self.admit(stream, pass);
        }
        while let Some((peer, mut batch)) = pass.cross_core.returned() {
            busy = true;
            for permit in batch.steps().permits() {
                self.service.permits.give_back(peer, permit);
            }
            self.deliver(&mut batch);
            pass.cross_core.recycle(peer, batch);
            // The batch is free again. Connections that wait for one precede those that it was for, which
            // may need another: they have waited longer.
            for place in self.awaiting_batch.drain(..).rev() {
                self.queue.push_front(place);
            }
        }
        if self.is_short() {
            self.let_go_on(pass);
        }
        // The length now: a connection that queues itself again has its next turn in the next pass.
        for _ in 0..self.queue.len() {
            busy = true;
            if let Some(place) = self.queue.pop_front() {
                self.serve(place, pass);
            }
        }
        let (now, second) = (pass.start.now, pass.start.clock.second);
        if self.service.budget.is_due(now, second.0) {
            self.give_up(pass);
            self.service.ease(now);
        }
        if busy { Activity::Busy } else { Activity::Idle }
    }

    fn arm(&mut self) -> bool {
        self.queue.is_empty() && self.intake.is_empty()
    }

    fn tick(&self) -> Option<Duration> {
        if self.service.permits.waits() {
            Some(ASK_AGAIN)
        } else if self.is_short() || self.service.permits.is_out() {
            Some(CHECK)
        } else {
            None
        }
    }

    fn transport(&self) -> &'static str {
        TRANSPORT
    }

    fn connections(&self, now: Second, from: usize, out: &mut Vec<u8>) -> Option<usize> {
        stats_conns::step(&self.connections, now, from, out)
    }

    fn latencies(&mut self) -> Option<&mut LatencyHistograms> {
        self.service.times.as_mut()?.histograms()
    }

    fn drain(&mut self) {
        self.draining = true;
        for (place, connection) in self.connections.iter_mut().enumerate() {
            if let Some(connection) = connection {
                connection.drain();
                if !connection.queued {
                    connection.queued = true;
                    self.queue.push_back(place as u32);
                }
            }
        }
    }

    fn is_drained(&self) -> bool {
        self.draining && self.vacant.len() == self.connections.len()
    }
}
