//! Rounds of a connection: decode a run of requests, execute it in the partitions that are free or
//! forward it to their owners, and encode the replies in order.

use std::os::fd::RawFd;

use herdwick_memcache::{meta::KeyRoom, text};

use super::{
    buffer::Output,
    connection::{Connection, Room},
    gather::{Gather, OrderedReplies, Purpose},
    locked_partitions::{self, HeldPartitions},
    run::{Progress, Run, Stop},
    server_commands,
    service::{Round, Service},
    statistics, upload,
    upload_state::Upload,
};
use crate::{
    runtime::reply_encoding::{BatchEncoder, Large, OUTPUT_BYTES, PerRequest, ReplyMark},
    runtime::{
        cross_core::CrossCore,
        dump::Dump,
        forward::{ReplyTo, WorkerCommand},
        front::Pass,
        partition_lock::Guard,
    },
    telemetry::snapshot::WorkerCounters,
};

/// What became of a run.
enum RunOutcome {
    /// A large value follows its command, of `used` bytes.
    Upload {
        upload: Option<Box<Upload>>,
        used: usize,
    },
    /// A command that is not a request to one partition.
    Command(server_commands::Begun),
    /// Some requests were sent to other workers, or put off, for lack of a forwarded batch or of room;
    /// all others were executed here.
    Scattered(Gather),
    /// All requests were executed here, or put off for lack of room.
    Executed {
        put_off: Option<Box<OrderedReplies>>,
        /// Large values were allowed.
        large: bool,
    },
}

impl Service {
    /// Executes one round of `connection`. `ticket` is that of its first request.
    pub(crate) fn round(
        &mut self,
        connection: &mut Connection,
        ticket: ReplyTo,
        pass: &mut Pass<'_>,
    ) -> Round {
        if connection.watches.is_some() {
            return Round::Incomplete;
        }
        if !connection.has_put_off() && (!connection.discard() || !connection.has_work()) {
            return Round::Incomplete;
        }
        if connection.output.is_full() {
            return Round::Full;
        }
        if let Some(dump) = connection.dump {
            return go_on(connection, dump, ticket, pass);
        }
        if let Some(command) = connection.command.take() {
            return server_commands::broadcast(connection, command, ticket, pass);
        }
        if let Some(behind) = connection.behind.take() {
            return self.execute_behind(behind, connection, ticket, pass);
        }
        let mut room = std::mem::take(&mut self.room);
        let round = self.run(&room, connection, ticket, pass);
        room.clear();
        // Taken out for the round: the run borrows the decoded keys while `self` executes it.
        self.room = room;
        round
    }

    /// Executes a run, or begins to, and moves the connection on: behind all of the run, of which what is
    /// put off is copied.
    fn run(
        &mut self,
        room: &KeyRoom,
        connection: &mut Connection,
        ticket: ReplyTo,
        pass: &mut Pass<'_>,
    ) -> Round {
        let (outcome, after) = self.begin(room, connection, ticket, pass);
        match outcome {
            RunOutcome::Upload { upload, used } => {
                connection.upload = upload;
                connection.pass(Progress::past(used));
                Round::Upload
            }
            RunOutcome::Command(begun) => {
                server_commands::end(connection, begun, after, ticket, pass)
            }
            RunOutcome::Scattered(gather) => {
                connection.advance(after);
                self.await_replies(connection, gather)
            }
            RunOutcome::Executed { put_off, large } => {
                connection.advance(after);
                self.executed(connection, put_off, large)
            }
        }
    }

    /// Decodes a run, with decoded keys in `room`, and executes it or begins to. The run borrows
    /// from the connection's input, so the connection is moved on only after it.
    #[inline]
    fn begin(
        &mut self,
        room: &KeyRoom,
        connection: &mut Connection,
        ticket: ReplyTo,
        pass: &mut Pass<'_>,
    ) -> (RunOutcome, Progress) {
        let mut run = Run::default();
        let mut cursor = connection.cursor;
        let input = connection.input.data();
        let decoder = &mut connection.decoder;
        let stop = run.collect(input, &mut cursor, decoder, room, &self.owners);
        let after = Progress::after(cursor, &stop);
        let has_data = !run.requests.is_empty() || matches!(stop, Stop::Upload { .. });
        if has_data && !self.context.settings.engine.has_partitions() {
            let out = connection.output.buffer(&mut self.pool);
            return (
                RunOutcome::Command(server_commands::refuse_data(out, pass)),
                after,
            );
        }
        if let Stop::Upload { upload, used } = stop {
            return (RunOutcome::Upload { upload, used }, after);
        }
        if run.requests.is_empty() {
            let begun = server_commands::begin(self, &mut connection.output, stop, pass);
            return (RunOutcome::Command(begun), after);
        }
        run.large = self.budget.allows(connection);
        run.plenty = self.budget.is_plentiful();
        if let Some(times) = &self.times {
            times.start(&mut connection.timer, &run.requests, pass.start.now);
        }
        let out = &mut connection.output;
        (self.execute_run(&run, out, ticket, pass), after)
    }

    /// Executes requests that were put off. If some behind them have been executed, only those to the
    /// first one's owner, so that all replies of another owner are of one round.
    #[cold]
    fn execute_behind(
        &mut self,
        mut behind: Box<OrderedReplies>,
        connection: &mut Connection,
        ticket: ReplyTo,
        pass: &mut Pass<'_>,
    ) -> Round {
        let holds = behind.holds();
        let requests = behind.take_put_off();
        let mut run = Run::default();
        behind.restore(&requests, &mut run, &self.owners);
        run.large = holds || self.budget.allows(connection);
        run.plenty = self.budget.is_plentiful();
        if holds {
            let gather = self.resume(behind, &run, ticket, pass);
            return self.await_replies(connection, gather);
        }
        // The requests are in `run` now, and no reply is held: the list has done its work.
        self.spare.put(behind);
        match self.execute_run(&run, &mut connection.output, ticket, pass) {
            RunOutcome::Scattered(gather) => self.await_replies(connection, gather),
            RunOutcome::Executed { put_off, large } => self.executed(connection, put_off, large),
            RunOutcome::Upload { .. } | RunOutcome::Command(_) => Round::Done,
        }
    }

    #[inline]
    fn execute_run(
        &mut self,
        run: &Run<'_>,
        output: &mut Output,
        ticket: ReplyTo,
        pass: &mut Pass<'_>,
    ) -> RunOutcome {
        let executed = if run.is_mixed {
            None
        } else {
            let out = output.buffer(&mut self.pool);
            execute(run, out, &mut self.marks, self.owners.own, ticket, pass)
        };
        let Some(deferred) = executed else {
            return RunOutcome::Scattered(self.scatter(run, ticket, pass));
        };
        let put_off = deferred.map(|deferred| self.put_off_from(run, deferred));
        let large = run.large;
        RunOutcome::Executed { put_off, large }
    }

    /// Keeps the requests of `run` from `deferred` on, of which all are deferred.
    #[cold]
    fn put_off_from(&mut self, run: &Run<'_>, deferred: usize) -> Box<OrderedReplies> {
        let mut replies = self.spare.take();
        replies.expect(run.requests.len() - deferred);
        for (slot, at) in (deferred..run.requests.len()).enumerate() {
            let large = ReplyMark::of(self.marks[at]).is_deferred_large();
            replies.put_off(slot, large, run.get(at));
        }
        replies
    }

    /// Ends the round of a run that was executed here.
    fn executed(
        &mut self,
        connection: &mut Connection,
        put_off: Option<Box<OrderedReplies>>,
        large: bool,
    ) -> Round {
        let short = put_off.as_ref().is_some_and(|replies| replies.wants_room());
        connection.behind = put_off;
        if short {
            connection.room = Room::Wanted;
            return Round::Short;
        }
        if large {
            self.budget.used(connection);
        }
        Round::Done
    }

    /// Executes the requests to partitions that can be locked now, and sends the others to their
    /// owners. Those from the first one on for which no forwarded batch is free are put off.
    fn scatter(&mut self, run: &Run<'_>, ticket: ReplyTo, pass: &mut Pass<'_>) -> Gather {
        let start = pass.start;
        let held =
            HeldPartitions::lock(run, self.owners.own, &mut pass.own, pass.partitions, start);
        let wanted = |slot: usize| !held.has(run.owners[slot]);
        let (sent, outstanding) = send_away(run, wanted, ticket, pass.cross_core, pass.counters);
        let mut replies = self.spare.take();
        replies.expect(run.requests.len());
        for slot in sent..run.requests.len() {
            replies.put_off(slot, false, run.get(slot));
        }
        held.each(|owner, partition| {
            let (caller, counters) = (ticket.caller, &mut *pass.counters);
            self.execute_part(run, owner, &mut replies, partition, caller, counters);
        });
        Gather {
            lacks_batch: sent == 0,
            ..Gather::of_replies(outstanding, replies, run.large)
        }
    }

    /// Resumes a run of reads of which some replies are held: executes the outstanding ones of the
    /// first request's owner only, and puts the others off again.
    fn resume(
        &mut self,
        mut held: Box<OrderedReplies>,
        run: &Run<'_>,
        ticket: ReplyTo,
        pass: &mut Pass<'_>,
    ) -> Gather {
        let owner = run.owners[0];
        let (own, start) = (self.owners.own, pass.start);
        let partition =
            locked_partitions::lock(owner.into(), own, &mut pass.own, pass.partitions, start);
        let (mut sent, mut outstanding) = (run.requests.len(), 0);
        if partition.is_none() {
            let wanted = |slot: usize| run.owners[slot] == owner && held.is_outstanding(slot);
            (sent, outstanding) = send_away(run, wanted, ticket, pass.cross_core, pass.counters);
        }
        for slot in 0..run.requests.len() {
            let goes = slot < sent && run.owners[slot] == owner;
            if !goes && held.is_outstanding(slot) {
                held.put_off(slot, false, run.get(slot));
            }
        }
        let lacks_batch = partition.is_none() && outstanding == 0;
        if let Some(partition) = partition {
            let (caller, counters) = (ticket.caller, &mut *pass.counters);
            self.execute_part(run, owner, &mut held, partition, caller, counters);
        }
        Gather {
            lacks_batch,
            ..Gather::of_replies(outstanding, held, run.large)
        }
    }

    /// Executes the requests of a run to the partition of `owner` that have no reply yet. Unlocks
    /// the partition before it copies the replies.
    fn execute_part(
        &mut self,
        run: &Run<'_>,
        owner: u16,
        replies: &mut OrderedReplies,
        mut partition: Guard<'_>,
        caller: RawFd,
        counters: &mut WorkerCounters,
    ) {
        let wanted = |slot: &usize| run.owners[*slot] == owner && replies.is_outstanding(*slot);
        let part = &mut self.part;
        let (mut requests, mut answers) = (PerRequest::new(), PerRequest::new());
        part.slots.clear();
        part.text.clear();
        self.marks.clear();
        for slot in (0..run.requests.len()).filter(wanted) {
            requests.push(run.requests[slot]);
            answers.push(run.answers[slot]);
            part.slots.push(slot);
        }
        let clock = partition.clock();
        let mut batch_encoder = BatchEncoder {
            clock,
            requests: &requests,
            answers: &answers,
            out: &mut part.text,
            marks: &mut self.marks,
            large: Large::All(part.slots.first().is_some_and(|&slot| run.is_large(slot))),
            refused_large: false,
            counters,
        };
        batch_encoder.counters.tcp_batches += u64::from(!requests.is_empty());
        if usize::from(owner) != self.owners.own {
            batch_encoder.counters.executed_in_place += requests.len() as u64;
        }
        partition.execute_for(clock, &requests, |_| caller, &mut batch_encoder);
        // Others may lock it while the replies are copied.
        drop(partition);
        let mut from = 0;
        for (&slot, &mark) in part.slots.iter().zip(&self.marks) {
            match ReplyMark::of(mark) {
                ReplyMark::Deferred { large } => replies.put_off(slot, large, run.get(slot)),
                ReplyMark::End(end) => {
                    replies.put(slot, &part.text[from..end]);
                    from = end;
                }
            }
        }
        part.text.shrink_to(OUTPUT_BYTES);
    }

    fn await_replies(&mut self, connection: &mut Connection, gather: Gather) -> Round {
        let (outstanding, lacks_batch) = (gather.outstanding, gather.lacks_batch);
        connection.gather = Some(gather);
        if outstanding == 0 {
            self.complete(connection);
            return if lacks_batch {
                Round::NoBatch
            } else {
                Round::Done
            };
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
                let puts_off = replies.encode(out);
                if gather.large {
                    // Only now are the granted bytes counted as the connection's own; until now
                    // they were in the forwarded batches.
                    self.budget.used(connection);
                }
                if replies.wants_room() && !gather.large {
                    connection.room = Room::Wanted;
                }
                if puts_off {
                    connection.behind = Some(replies);
                } else {
                    self.spare.put(replies);
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
                sum.encode(&mut lines);
                lines.extend_from_slice(text::END);
                encoder.detailed(out, &lines);
            }
            Purpose::Count {
                topic,
                encoder,
                clock,
                parts,
            } => statistics::topic(&self.context, topic, encoder, clock, &parts, out),
        }
    }
}

/// Sends the next step of a dump to its worker.
fn go_on(connection: &mut Connection, dump: Dump, ticket: ReplyTo, pass: &mut Pass<'_>) -> Round {
    if pass
        .cross_core
        .command(dump.worker, WorkerCommand::Dump(dump), ticket)
        .is_err()
    {
        pass.counters.forward_batches_exhausted += 1;
        return Round::NoBatch;
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
    ticket: ReplyTo,
    cross_core: &mut CrossCore,
    counters: &mut WorkerCounters,
) -> (usize, usize) {
    let mut away = 0;
    for (slot, request) in run.requests.iter().enumerate() {
        if !wanted(slot) {
            continue;
        }
        let owner = usize::from(run.owners[slot]);
        // A run has fewer than 2^32 requests.
        let ticket = ReplyTo {
            slot: slot as u32,
            ..ticket
        };
        let (answer, large) = (&run.answers[slot], run.is_large(slot));
        let sent = cross_core.send(owner, request, answer, ticket, large);
        if sent.is_err() {
            counters.forward_batches_exhausted += 1;
            return (slot, away);
        }
        away += 1;
    }
    (run.requests.len(), away)
}

/// Executes a run whose requests are all to one partition. Returns the first deferred read, if there is
/// one; `None`, if another worker's partition is not free.
fn execute(
    run: &Run<'_>,
    out: &mut Vec<u8>,
    marks: &mut Vec<u32>,
    own: usize,
    ticket: ReplyTo,
    pass: &mut Pass<'_>,
) -> Option<Option<usize>> {
    let (owner, start) = (run.owners[0], pass.start);
    let mut partition =
        locked_partitions::lock(owner.into(), own, &mut pass.own, pass.partitions, start)?;
    marks.clear();
    let clock = partition.clock();
    let mut batch_encoder = BatchEncoder {
        clock,
        requests: &run.requests,
        answers: &run.answers,
        out,
        marks,
        large: Large::All(run.large),
        refused_large: false,
        counters: pass.counters,
    };
    batch_encoder.counters.tcp_batches += 1;
    if usize::from(owner) != own {
        batch_encoder.counters.executed_in_place += run.requests.len() as u64;
    }
    let caller = |_| ticket.caller;
    partition.execute_for(clock, &run.requests, caller, &mut batch_encoder);
    drop(partition);
    // A run ends in its reads, and once one is deferred all after it are: the last mark decides.
    let is_deferred = |&mark: &u32| ReplyMark::of(mark).is_deferred();
    Some(match marks.last() {
        Some(&last) if is_deferred(&last) => marks.iter().position(is_deferred),
        _ => None,
    })
}
