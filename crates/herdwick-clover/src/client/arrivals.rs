//! What arrives at a client: replies, completed READs and verbs, and the failure of a connection.

use std::time::Duration;

use herdwick_fabric::{Port, Status};
use herdwick_read::{Doubt, Outcome};

use super::Client;
use crate::{
    Failure,
    answer::Answer,
    calls::Caller,
    message::{CallStatus, Reply},
    mutations::{Ended, cursor_of},
};

/// Times that a GET looks for its chain again before it is given up.
const ROUNDS_MAX: u32 = 64;

impl Client {
    /// Takes what has arrived; hands every answer to `sink`. Returns how many there were.
    pub fn poll<P: Port>(
        &mut self,
        port: &mut P,
        now: Duration,
        sink: &mut impl FnMut(u64, Answer<'_>),
    ) -> usize {
        let mut ended = 0;
        let sink = &mut |user, answer: Answer<'_>| {
            ended += 1;
            sink(user, answer);
        };
        self.poll_replies(port, now, sink);
        self.poll_reads(port, sink);
        self.poll_writes(port, now);
        if self.reader.has_fallen_silent(self.delays.timeout, now)
            || self.mutations.is_silent(self.delays.timeout, now)
        {
            self.calls.fail(Failure::Silent);
        }
        if let Some(failure) = self.failed() {
            self.fail(port, failure, sink);
        }
        for Ended { user, answer } in self.mutations.ended.drain(..) {
            sink(user, answer);
        }
        ended
    }

    fn poll_reads<P: Port>(&mut self, port: &mut P, sink: &mut impl FnMut(u64, Answer<'_>)) {
        let Self {
            reader,
            lookups,
            gets,
            free,
            settled,
            epochs,
            ..
        } = self;
        // The judge is borrowed meanwhile: what it found is remembered afterwards.
        reader.poll(port, lookups, &mut |get, outcome| {
            let answer = match outcome {
                Outcome::Unsure(doubt) => return settled.push((get, Some(doubt))),
                Outcome::Found(value) => Answer::Value(value),
                Outcome::Missing => Answer::Missing,
                Outcome::Failed(status) => Answer::Failed(Failure::Node(status)),
            };
            if !matches!(answer, Answer::Failed(_)) {
                settled.push((get, None));
            }
            free.push(get.slot);
            if let Some(stay) = gets[get.slot as usize].stay.take() {
                epochs.end(stay);
            }
            sink(get.user, answer);
        });
        for index in 0..self.settled.len() {
            let (get, doubt) = self.settled[index];
            let (_, hash) = self.lookups.key(get.slot);
            let cursor = self.lookups.cursor(get.slot);
            match doubt {
                None => self.cursors.put(&hash, cursor),
                // A long chain: on from here.
                Some(Doubt::Steps) => {
                    self.gets[get.slot as usize].rounds += 1;
                    match self.gets[get.slot as usize].rounds > ROUNDS_MAX {
                        true => self.end(get.slot, Answer::Contended, sink),
                        false => self.read(get.slot, cursor),
                    }
                }
                // The cursor led to memory with another use, or nowhere: the server knows the
                // chain.
                Some(_) => {
                    self.cursors.forget(&hash);
                    self.again(get.slot, sink);
                }
            }
        }
        self.settled.clear();
    }

    /// Asks for the chain of a GET once more, unless it was asked too often.
    fn again(&mut self, slot: u32, sink: &mut impl FnMut(u64, Answer<'_>)) {
        let get = &mut self.gets[slot as usize];
        get.rounds += 1;
        if get.rounds <= ROUNDS_MAX {
            return self.finding.push_back(slot);
        }
        self.end(slot, Answer::Contended, sink);
    }

    fn end(&mut self, slot: u32, answer: Answer<'_>, sink: &mut impl FnMut(u64, Answer<'_>)) {
        let get = &mut self.gets[slot as usize];
        // A GET without a stay has ended: `fail` ends all slots, free ones included.
        if let Some(stay) = get.stay.take() {
            self.epochs.end(stay);
            self.free.push(slot);
            sink(get.user, answer);
        }
    }

    fn poll_writes<P: Port>(&mut self, port: &mut P, now: Duration) {
        let (mutations, mut shared) = self.mutations(now);
        mutations.poll(port, &mut shared);
    }

    fn poll_replies<P: Port>(
        &mut self,
        port: &mut P,
        now: Duration,
        sink: &mut impl FnMut(u64, Answer<'_>),
    ) {
        // A reply may have what it answers post again, which needs all of the client but the calls.
        let mut replies = std::mem::take(&mut self.replies);
        self.calls.poll(port, now, |caller, op, reply| {
            replies.push((caller, op, reply))
        });
        for (caller, op, reply) in replies.drain(..) {
            // Before the reply is taken: what begins by it begins in the new epoch.
            self.epochs.learn(reply.epoch, reply.flush);
            match caller {
                Caller::Get(slot) => self.found(slot, &reply, sink),
                Caller::FreeList(class) => {
                    let again = now + self.delays.publish;
                    self.mutations.free_list.refill(class, &reply.words, again);
                }
                Caller::Mutation(index) => {
                    let (mutations, mut shared) = self.mutations(now);
                    mutations.replied(port, index, (&reply, op), &mut shared);
                }
                Caller::None => {}
            }
        }
        self.replies = replies;
    }

    /// Takes the reply to a [`Find`](crate::message::CallOp::Find) of a GET.
    fn found(&mut self, slot: u32, reply: &Reply, sink: &mut impl FnMut(u64, Answer<'_>)) {
        match (reply.status, cursor_of(reply)) {
            (CallStatus::Done, Some(cursor)) if self.lookups.knows(cursor) => {
                self.read(slot, cursor);
            }
            (CallStatus::NotFound, _) => self.end(slot, Answer::Missing, sink),
            _ => self.end(slot, Answer::Refused, sink),
        }
    }

    /// Ends every request.
    #[cold]
    fn fail<P: Port>(
        &mut self,
        port: &mut P,
        failure: Failure,
        sink: &mut impl FnMut(u64, Answer<'_>),
    ) {
        self.reader.give_up(Status::Flushed);
        // Ends the GETs that have READs on the way; the loop below, those that wait for a reply.
        self.poll_reads(port, sink);
        self.finding.clear();
        for slot in 0..self.gets.len() as u32 {
            self.end(slot, Answer::Failed(failure), sink);
        }
        // The time is of no use: nothing begins any more.
        let (mutations, mut shared) = self.mutations(Duration::ZERO);
        mutations.fail(Answer::Failed(failure), &mut shared);
    }
}
