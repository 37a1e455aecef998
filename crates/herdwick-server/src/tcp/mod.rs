//! The front for memcached's clients: sockets, one connection each.

mod admin;
mod buffer;
mod connection;
mod gate;
mod gather;
mod immediate;
mod keys;
mod listing;
mod packets;
mod protocol;
mod pulse;
mod run;
mod service;
mod stream;

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, mpsc::Sender},
};

use herdwick_mem::spsc::Consumer;
use herdwick_memcache::{Decoder, GET_LINE_BYTES_MAX, LINE_BYTES_MAX};
use herdwick_mica::Second;
use mio::{Registry, event::Event};

pub(crate) use gather::Topic;
pub(crate) use protocol::{Answer, DEFERRED, Speaker, Voice};
pub(crate) use run::Owners;
pub(crate) use stream::Stream;

use crate::{
    facts::Facts,
    front::{Activity, Front, Pass, Tokens},
    lease::{Arrival, Seat},
    parcel::{Parcel, Ticket},
    partition::NOBODY,
    tally::Closed,
    tcp::{
        connection::{Connection, Flow},
        gather::{Gather, Purpose},
        pulse::{Pulse, Watch},
        run::RUN_REQUESTS,
        service::{Round, Service},
    },
    udp::Sent,
    watch::{Asking, What, topic},
};

/// One worker's connections.
pub(crate) struct TcpFront {
    /// Accepted for this worker.
    intake: Consumer<Stream>,
    connections: Vec<Option<Connection>>,
    vacant: Vec<u32>,
    /// Connections to be served, each at most once.
    queue: VecDeque<u32>,
    /// Those that wait for a parcel.
    starved: Vec<u32>,
    service: Service,
    tokens: Tokens,
    /// Counts the connections ever made: tells those apart that have had the same place.
    generation: u32,
    input_bytes_max: usize,
    /// Rounds of one connection in one pass; then it is the next one's turn.
    rounds: usize,
    watch: Watch,
    /// Where connections go that watch.
    teller: Sender<Asking>,
    draining: bool,
}

impl TcpFront {
    pub(crate) fn new(
        facts: Arc<Facts>,
        owners: Owners,
        intake: Consumer<Stream>,
        teller: Sender<Asking>,
    ) -> Self {
        // The longest command: a line and the largest block, or the longest `get`.
        let settings = &facts.settings;
        let block = LINE_BYTES_MAX + settings.item_bytes_max + 2;
        let watch = Watch::new(settings.workers, settings.item_bytes_max);
        let rounds = settings.turn_requests.div_ceil(RUN_REQUESTS);
        Self {
            intake,
            connections: Vec::new(),
            vacant: Vec::new(),
            queue: VecDeque::new(),
            starved: Vec::new(),
            service: Service::new(facts, owners),
            tokens: Tokens::of_front(0),
            generation: 0,
            input_bytes_max: block.max(GET_LINE_BYTES_MAX + 1),
            rounds,
            watch,
            teller,
            draining: false,
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
            pass.tally.closed_errors += 1;
            self.service.facts.limits.leave();
            self.vacant.push(place);
            return;
        }
        self.generation = self.generation.wrapping_add(1);
        let decoder = Decoder::new(self.service.facts.settings.item_bytes_max);
        let mut connection = Connection::new(stream, self.generation, decoder);
        connection.admitted = self.service.facts.auth.is_none();
        connection.pulse = Pulse::new(pass.clock.second.0);
        connection.queued = true;
        if self.draining {
            connection.drain();
        }
        if pass.store.journal.wants(topic::CONNEVENTS) && !connection.stream.is_datagram() {
            let (number, from) = connection.stream.origin();
            pass.store.journal.note(What::Opened(number, from), &[]);
        }
        self.connections[place as usize] = Some(connection);
        self.queue.push_back(place);
        pass.tally.connections += 1;
    }

    /// Serves one connection: one read, some rounds, one write.
    fn serve(&mut self, place: u32, pass: &mut Pass<'_>) {
        let Some(connection) = self.connections[place as usize].as_mut() else {
            return;
        };
        connection.queued = false;
        let bounds = (self.input_bytes_max, self.rounds);
        let (flow, starved) = turn(&mut self.service, connection, place, bounds, pass);
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
        if flow == Flow::Broken || connection.is_done() {
            let reason = if flow == Flow::Broken {
                "error"
            } else {
                let sent = connection.stream.conclude();
                pass.tally.udp_unsent += u64::from(sent == Sent::Less);
                if connection.faulty { "error" } else { "normal" }
            };
            self.dismiss(place, reason, pass);
            return;
        }
        connection.input.rest(&mut self.service.pool);
        self.watch.note(connection, pass.clock.second.0);
        pass.tally.held_bytes = self.watch.held() as u64;
        let may_go_on = flow == Flow::Moved && connection.gather.is_none();
        if starved {
            connection.queued = true;
            self.starved.push(place);
        } else if may_go_on && (connection.readable || connection.has_work()) {
            pass.tally.conn_yields += u64::from(connection.has_work());
            connection.queued = true;
            self.queue.push_back(place);
        }
    }

    fn dismiss(&mut self, place: u32, reason: &'static str, pass: &mut Pass<'_>) {
        if let Some(connection) = self.take_out(place, pass) {
            if pass.store.journal.wants(topic::CONNEVENTS) && !connection.stream.is_datagram() {
                let (number, from) = connection.stream.origin();
                let what = What::Closed(number, from, reason);
                pass.store.journal.note(what, &[]);
            }
            self.service.facts.limits.leave();
        }
    }

    /// Gives the connection to the thread that tells watchers; it stays counted until that lets
    /// it go.
    fn hand_over(&mut self, place: u32, pass: &mut Pass<'_>) {
        let Some(Connection {
            stream,
            watches: Some(topics),
            ..
        }) = self.take_out(place, pass)
        else {
            return;
        };
        if self.teller.send(Asking { stream, topics }).is_err() {
            // It ends with the workers, and not before.
            self.service.facts.limits.leave();
        }
    }

    /// Gives the connection to the desk for leases; it stays counted until that lets it go.
    fn pass_on(&mut self, place: u32, pass: &mut Pass<'_>) {
        if let Some(Connection { stream, input, .. }) = self.take_out(place, pass) {
            let facts = &self.service.facts;
            facts.pass_on(Arrival {
                stream,
                input: input.data().to_vec(),
                seat: Seat(Arc::clone(facts)),
            });
        }
    }

    fn take_out(&mut self, place: u32, pass: &mut Pass<'_>) -> Option<Connection> {
        let mut connection = self.connections[place as usize].take()?;
        // Closing the descriptor would do it as well.
        let _ = connection.stream.deregister(pass.registry);
        self.watch.forget(&connection);
        self.vacant.push(place);
        pass.tally.connections -= 1;
        Some(connection)
    }

    /// Gives up those that stall too long or hold too much.
    #[cold]
    fn give_up(&mut self, pass: &mut Pass<'_>) {
        let now = pass.clock.second.0;
        let patience = self.service.facts.tunables.patience();
        let given_up = self
            .watch
            .look(&self.connections, patience, now, pass.tally);
        for (place, why) in given_up {
            let reason = match why {
                Closed::Idle => "idle_timeout",
                Closed::HalfSent | Closed::Stalled => "error",
            };
            self.dismiss(place, reason, pass);
        }
    }

    /// Hands out the replies of a parcel that has come back.
    fn deliver(&mut self, parcel: &mut Parcel) {
        if parcel.is_barrier() {
            for ticket in std::mem::take(&mut parcel.tickets) {
                self.arrive(ticket, |purpose| purpose.take(parcel));
            }
            return;
        }
        let adopted = parcel
            .large_text()
            .is_some_and(|(ticket, text)| self.adopt(ticket, text));
        for (ticket, reply) in parcel.replies() {
            self.arrive(ticket, |purpose| match (purpose, reply) {
                (Purpose::Replies(replies), Some(range)) if adopted => {
                    replies.place(ticket.slot as usize, range);
                }
                (Purpose::Replies(replies), Some(range)) => {
                    replies.put(ticket.slot as usize, &parcel.text()[range]);
                }
                _ => {}
            });
        }
    }

    /// Lets a connection that waits for replies keep their text.
    fn adopt(&mut self, ticket: Ticket, text: &mut Vec<u8>) -> bool {
        match self
            .waiting(ticket)
            .and_then(|connection| connection.gather.as_mut())
        {
            Some(Gather {
                purpose: Purpose::Replies(replies),
                ..
            }) => replies.adopt(text),
            _ => false,
        }
    }

    /// The connection that holds `ticket`, if it still lives.
    fn waiting(&mut self, ticket: Ticket) -> Option<&mut Connection> {
        self.connections[ticket.connection as usize]
            .as_mut()
            .filter(|connection| connection.generation == ticket.generation)
    }

    /// One more reply is in for the connection that holds `ticket`, if it still lives.
    fn arrive(&mut self, ticket: Ticket, take: impl FnOnce(&mut Purpose)) {
        let place = ticket.connection as usize;
        let Some(connection) = self.connections[place].as_mut() else {
            return;
        };
        if connection.generation != ticket.generation {
            return;
        }
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

/// One connection's turn: how its stream flows, and whether it waits for a parcel.
fn turn(
    service: &mut Service,
    connection: &mut Connection,
    place: u32,
    (input_bytes_max, rounds): (usize, usize),
    pass: &mut Pass<'_>,
) -> (Flow, bool) {
    let flow = connection.write(&mut service.pool, pass.tally);
    if flow != Flow::Moved || connection.gather.is_some() {
        return (flow, false);
    }
    if connection.readable && !connection.closing && !connection.has_work() {
        let flow = connection.read(&mut service.pool, input_bytes_max, pass.tally);
        if flow == Flow::Broken {
            return (flow, false);
        }
    }
    if service.facts.takes_claims()
        && let Some(whole) = connection.begins_with_claim()
    {
        connection.claims = whole;
        return (Flow::Moved, false);
    }
    let ticket = Ticket {
        connection: place,
        generation: connection.generation,
        caller: connection.stream.number(),
        slot: 0,
    };
    if !connection.admitted && !service.admit(connection, pass.tally) {
        return (connection.write(&mut service.pool, pass.tally), false);
    }
    pass.store.caller = ticket.caller;
    let mut starved = false;
    for _ in 0..rounds {
        match service.round(connection, ticket, pass) {
            Round::Done => {}
            Round::Starved => {
                starved = true;
                break;
            }
            Round::Hungry | Round::Full | Round::Away => break,
        }
    }
    (connection.write(&mut service.pool, pass.tally), starved)
}

impl Front for TcpFront {
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
        if !connection.queued {
            connection.queued = true;
            self.queue.push_back(local as u32);
        }
    }

    fn pass(&mut self, pass: &mut Pass<'_>) -> Activity {
        let mut busy = false;
        while let Some(stream) = self.intake.pop() {
            busy = true;
            self.admit(stream, pass);
        }
        while let Some((peer, mut parcel)) = pass.crossing.returned() {
            busy = true;
            self.deliver(&mut parcel);
            pass.crossing.recycle(peer, parcel);
            self.queue.extend(self.starved.drain(..));
        }
        for _ in 0..self.queue.len() {
            busy = true;
            if let Some(place) = self.queue.pop_front() {
                self.serve(place, pass);
            }
        }
        pass.store.caller = NOBODY;
        if self.watch.is_due(pass.clock.second.0) {
            self.give_up(pass);
        }
        if busy { Activity::Busy } else { Activity::Idle }
    }

    fn arm(&mut self) -> bool {
        self.queue.is_empty() && self.intake.is_empty()
    }

    fn way(&self) -> &'static str {
        "tcp"
    }

    fn connections(&self, now: Second, out: &mut Vec<u8>) {
        for connection in self.connections.iter().flatten() {
            listing::say(connection, now.0, out);
        }
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
