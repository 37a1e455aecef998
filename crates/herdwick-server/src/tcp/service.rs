//! Rounds of a connection: decode a run of requests, execute it here or scatter it to its owners,
//! and encode the replies in order.

use std::sync::Arc;

use herdwick_memcache::text;
use herdwick_mica::{Execute, Request};

use super::{
    budget::Budget,
    buffer::Pool,
    connection::{Connection, Room},
    gather::{Gather, Purpose, Replies},
    keys::KeyRoom,
    lots::{Lots, WorkerLots},
    protocol::{Answer, BatchEncoder, Large, Mark},
    run::{Cursor, Owners, Progress, RUN_REQUESTS, Run, Stop},
    upload::{self, Left, Upload},
};
use crate::{
    context::Context,
    dump::Dump,
    forward::{Order, Ticket},
    front::Pass,
    recycle,
};

/// The state that one worker's connections share while they are served, one round at a time.
pub(crate) struct Service {
    pub(crate) pool: Pool,
    pub(crate) context: Arc<Context>,
    pub(crate) owners: Owners,
    run: Run<'static>,
    room: KeyRoom,
    pub(super) marks: Vec<u32>,
    own: Own,
    #[expect(clippy::vec_box, reason = "a connection holds it by pointer")]
    pub(super) spare: Vec<Box<Replies>>,
    /// The memory that connections hold and may hold.
    pub(super) budget: Budget,
    /// The lots by which uploads are admitted to logs.
    pub(super) lots: WorkerLots,
    /// Uploads that are still to be aborted at their owners.
    pub(super) left: Vec<Left>,
}

/// The requests of a scattered run that this worker owns.
#[derive(Default)]
struct Own {
    requests: Vec<Request<'static>>,
    answers: Vec<Answer<'static>>,
    slots: Vec<usize>,
    text: Vec<u8>,
}

/// Maximum number of unused lists of replies that a worker keeps.
const SPARE: usize = 64;

/// The result of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    /// The connection made progress; there may be more to do.
    Done,
    /// The input holds no complete command.
    Hungry,
    /// The peer has to read first.
    Full,
    /// Replies of other workers are pending.
    Away,
    /// There is no room for a large value.
    Short,
    /// An upload begins.
    Upload,
    /// All forwarded batches to some worker are in use; nothing was done.
    Starved,
}

impl Service {
    pub(crate) fn new(context: Arc<Context>, owners: Owners, lots: Arc<Lots>) -> Self {
        let settings = &context.settings;
        let (memory, workers) = (settings.memory_bytes, settings.workers);
        Self {
            budget: Budget::new(memory, workers, settings.item_bytes_max),
            lots: WorkerLots::new(lots),
            left: Vec::new(),
            pool: Pool::default(),
            context,
            owners,
            run: Run::default(),
            room: KeyRoom::new(RUN_REQUESTS),
            marks: Vec::with_capacity(RUN_REQUESTS),
            own: Own::default(),
            spare: Vec::new(),
        }
    }

    /// Executes one round of `connection`. `ticket` is that of its first request.
    pub(crate) fn round(
        &mut self,
        connection: &mut Connection,
        ticket: Ticket,
        pass: &mut Pass<'_>,
    ) -> Round {
        if connection.watches.is_some() || !connection.swallow() || !connection.has_work() {
            return Round::Hungry;
        }
        if connection.output.is_full() {
            return Round::Full;
        }
        if let Some(dump) = connection.dump {
            return go_on(connection, dump, ticket, pass);
        }
        let mut room = std::mem::take(&mut self.room);
        let round = self.run(&room, connection, ticket, pass);
        if round == Round::Starved {
            // Nothing was used, so the next round decodes from the same position again.
            connection.decoder.check_again();
        }
        room.clear();
        self.room = room;
        round
    }

    /// Decodes a run, with decoded keys in `room`, and executes it or begins to.
    fn run(
        &mut self,
        room: &KeyRoom,
        connection: &mut Connection,
        ticket: Ticket,
        pass: &mut Pass<'_>,
    ) -> Round {
        let mut run = Run::reuse(std::mem::take(&mut self.run));
        let mut cursor = connection.cursor;
        let input = connection.input.data();
        let decoder = &mut connection.decoder;
        let stop = run.collect(input, &mut cursor, decoder, room, &self.owners);
        let after = Progress::after(cursor, &stop);
        if let Stop::Upload(announced) = &stop {
            let (upload, used) = (Upload::new(announced, self), announced.used);
            self.run = Run::reuse(run);
            connection.upload = upload;
            connection.pass(Progress::past(used));
            return Round::Upload;
        }
        if run.requests.is_empty() {
            let begun = super::immediate::begin(self, &mut connection.output, stop, ticket, pass);
            self.run = Run::reuse(run);
            return super::immediate::end(connection, begun, after);
        }
        run.large = self.budget.allows(connection);
        run.plenty = self.budget.is_plentiful();
        if let Some(held) = connection.behind.take() {
            let resumed = self.resume(held, &run, input, after, ticket, pass);
            self.run = Run::reuse(run);
            return match resumed {
                Ok(gather) => self.await_replies(connection, Some(gather)),
                Err(held) => {
                    connection.behind = Some(held);
                    Round::Starved
                }
            };
        }
        if run.crosses {
            let scattered = self.scatter(&run, input, after, ticket, pass);
            self.run = Run::reuse(run);
            return self.await_replies(connection, scattered);
        }
        let out = connection.output.buffer(&mut self.pool);
        let (deferred, short) = execute(&run, out, &mut self.marks, pass);
        let progress = deferred.map_or(after, |deferred| {
            Progress::to(Cursor::back_to(run.points[deferred], input))
        });
        let large = run.large;
        self.run = Run::reuse(run);
        connection.advance(progress);
        if short {
            connection.room = Room::Wanted;
            return Round::Short;
        }
        if large {
            self.budget.used(connection);
        }
        Round::Done
    }

    /// Sends the requests of other owners to them and executes this worker's. Returns `None` if no
    /// forwarded batch was free.
    fn scatter(
        &mut self,
        run: &Run<'_>,
        input: &[u8],
        after: Progress,
        ticket: Ticket,
        pass: &mut Pass<'_>,
    ) -> Option<Gather> {
        let own = self.owners.own;
        let wanted = |slot: usize| usize::from(run.owners[slot]) != own;
        let (sent, outstanding) = send_away(run, wanted, ticket, pass);
        if sent == 0 {
            return None;
        }
        let mut replies = self.spare.pop().unwrap_or_default();
        replies.expect(&run.points[..sent], run.after(sent, input, after));
        self.execute_own(run, &mut replies, pass);
        Some(Gather::of_replies(outstanding, replies, run.large))
    }

    /// Resumes a run of reads of which some replies are held: executes the missing ones of the
    /// first request's owner only, so that all replies of another owner are of one round.
    ///
    /// # Errors
    /// `held`, unchanged but for its points, if no forwarded batch was free.
    fn resume(
        &mut self,
        mut held: Box<Replies>,
        run: &Run<'_>,
        input: &[u8],
        after: Progress,
        ticket: Ticket,
        pass: &mut Pass<'_>,
    ) -> Result<Gather, Box<Replies>> {
        let count = held.len().min(run.requests.len());
        held.go_on(&run.points[..count], run.after(count, input, after));
        let owner = run.owners[0];
        let mut outstanding = 0;
        if usize::from(owner) == self.owners.own {
            self.execute_own(run, &mut held, pass);
        } else {
            let wanted = |slot: usize| run.owners[slot] == owner && held.lacks(slot);
            (_, outstanding) = send_away(run, wanted, ticket, pass);
            if outstanding == 0 {
                return Err(held);
            }
        }
        Ok(Gather::of_replies(outstanding, held, run.large))
    }

    /// Executes the requests of a run that this worker owns and that have no reply yet.
    fn execute_own(&mut self, run: &Run<'_>, replies: &mut Replies, pass: &mut Pass<'_>) {
        let mine = |slot: &usize| {
            usize::from(run.owners[*slot]) == self.owners.own && replies.lacks(*slot)
        };
        let own = &mut self.own;
        let mut requests = recycle(std::mem::take(&mut own.requests));
        let mut answers = recycle(std::mem::take(&mut own.answers));
        own.slots.clear();
        own.text.clear();
        self.marks.clear();
        for slot in (0..run.requests.len()).filter(mine) {
            requests.push(run.requests[slot]);
            answers.push(run.answers[slot]);
            own.slots.push(slot);
        }
        let mut batch_encoder = BatchEncoder {
            clock: pass.clock,
            requests: &requests,
            answers: &answers,
            out: &mut own.text,
            marks: &mut self.marks,
            large: Large::All(own.slots.first().is_some_and(|&slot| run.is_large(slot))),
            refused_large: false,
            counters: pass.counters,
        };
        batch_encoder.counters.tcp_batches += u64::from(!requests.is_empty());
        pass.store
            .execute(pass.clock, &requests, &mut batch_encoder);
        own.requests = recycle(requests);
        own.answers = recycle(answers);
        let mut from = 0;
        for (&slot, &mark) in own.slots.iter().zip(&self.marks) {
            match Mark::of(mark) {
                Mark::Deferred { large } => replies.defer(slot, large),
                Mark::End(end) => {
                    replies.put(slot, &own.text[from..end]);
                    from = end;
                }
            }
        }
        own.text.shrink_to(super::protocol::OUTPUT_BYTES);
    }

    fn await_replies(&mut self, connection: &mut Connection, gather: Option<Gather>) -> Round {
        let Some(gather) = gather else {
            return Round::Starved;
        };
        let outstanding = gather.outstanding;
        connection.gather = Some(gather);
        if outstanding == 0 {
            self.complete(connection);
            return Round::Done;
        }
        Round::Away
    }

    /// Encodes the replies of a complete gather, and moves the connection on.
    pub(crate) fn complete(&mut self, connection: &mut Connection) {
        let Some(gather) = connection.gather.take() else {
            return;
        };
        if let Some(mut upload) = connection.upload.take() {
            upload::over(self, &mut upload);
        }
        let out = connection.output.buffer(&mut self.pool);
        match gather.purpose {
            Purpose::Replies(mut replies) => {
                let progress = replies.say(out, connection.input.data());
                connection.advance(progress);
                if gather.large {
                    // Only now are the granted bytes counted as the connection's own; until now
                    // they were in the forwarded batches.
                    self.budget.used(connection);
                }
                if replies.wants_room() && !gather.large {
                    connection.room = Room::Wanted;
                }
                if replies.holds() {
                    connection.behind = Some(replies);
                } else {
                    replies.shrink();
                    if self.spare.len() < SPARE {
                        self.spare.push(replies);
                    }
                }
                self.budget.count(connection);
            }
            Purpose::Consent { encoder } => encoder.done(out),
            Purpose::Dump { dump, text } => {
                out.extend_from_slice(&text);
                connection.dump = dump.onward(self.owners.workers);
                if connection.dump.is_none() {
                    out.extend_from_slice(dump.ending());
                }
            }
            Purpose::Prefixes { encoder, sum } => {
                let mut lines = Vec::new();
                sum.say(&mut lines);
                lines.extend_from_slice(text::END);
                encoder.detailed(out, &lines);
            }
            Purpose::Count {
                topic,
                encoder,
                clock,
                parts,
            } => self.context.say(topic, encoder, clock, &parts, out),
        }
    }
}

/// Sends the next step of a dump to its worker.
fn go_on(connection: &mut Connection, dump: Dump, ticket: Ticket, pass: &mut Pass<'_>) -> Round {
    if pass
        .cross_core
        .order(dump.worker, Order::Dump(dump), ticket)
        .is_err()
    {
        pass.counters.forward_batches_exhausted += 1;
        return Round::Starved;
    }
    let text = Vec::new();
    connection.gather = Some(Gather::new(1, Purpose::Dump { dump, text }));
    Round::Away
}

/// Puts the `wanted` requests into forwarded batches, until none is free. Returns how many requests
/// of the run, from the first, may proceed, and how many of them were sent.
fn send_away(
    run: &Run<'_>,
    wanted: impl Fn(usize) -> bool,
    ticket: Ticket,
    pass: &mut Pass<'_>,
) -> (usize, usize) {
    let mut away = 0;
    for (slot, request) in run.requests.iter().enumerate() {
        if !wanted(slot) {
            continue;
        }
        let owner = usize::from(run.owners[slot]);
        // A run has fewer than 2^32 requests.
        let ticket = Ticket {
            slot: slot as u32,
            ..ticket
        };
        if pass
            .cross_core
            .send(
                owner,
                request,
                &run.answers[slot],
                ticket,
                run.is_large(slot),
            )
            .is_err()
        {
            pass.counters.forward_batches_exhausted += 1;
            return (slot, away);
        }
        away += 1;
    }
    (run.requests.len(), away)
}

/// Executes a run that this worker owns entirely. Returns the first deferred read, and whether a
/// large value was deferred.
fn execute(
    run: &Run<'_>,
    out: &mut Vec<u8>,
    marks: &mut Vec<u32>,
    pass: &mut Pass<'_>,
) -> (Option<usize>, bool) {
    marks.clear();
    let mut batch_encoder = BatchEncoder {
        clock: pass.clock,
        requests: &run.requests,
        answers: &run.answers,
        out,
        marks,
        large: Large::All(run.large),
        refused_large: false,
        counters: pass.counters,
    };
    batch_encoder.counters.tcp_batches += 1;
    pass.store
        .execute(pass.clock, &run.requests, &mut batch_encoder);
    let short = batch_encoder.refused_large;
    // A run ends in its reads, and once one is deferred all after it are: the last mark decides.
    let is_deferred = |&mark: &u32| Mark::of(mark).is_deferred();
    let deferred = match marks.last() {
        Some(&last) if is_deferred(&last) => marks.iter().position(is_deferred),
        _ => None,
    };
    (deferred, short)
}
