//! The transport to a server with a secondary store (docs/hkvs.md): HERD, and reads of the other store while the
//! server's replies allow it.
//!
//! A read that the secondary store does not answer, with a version that this client may see, goes to the
//! server. Requests for one key keep their order: a write is not begun while a read of the key is under way at
//! the secondary store, and a key that was written is read there again when a read that began after the write
//! has found it replicated.
//!
//! Circular import with `secondary` and `transports`: a session with a secondary store has a transport to each
//! store.

mod secondary;
mod table;

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use herdwick_fabric::Port;
use herdwick_hkvs::Record;
use herdwick_request::KeyHash;

pub(crate) use self::secondary::SecondaryWay;
use self::{
    secondary::{DEADLINE, Secondary, WINDOW},
    table::Table,
};
use crate::{
    Answer, Cause, Hit, Key, Lost, Op, ReadFrom, Ticket,
    due::clock,
    herd::{Herd, MarkedReply},
    sleep::Sleep,
    text::{Command, IN_FLIGHT_MAX, When},
};

/// Times as many requests as are in flight at most whose time of sending is remembered, by the lower bits of their
/// tickets: one worker may answer later than others ...
const SENT: usize = 4;
/// ... and at least so many: requests by text take no room of the windows, and a lost reply comes milliseconds later.
const SENT_MIN: usize = 2 * IN_FLIGHT_MAX;
/// How long a read may take at the secondary store before the primary is asked instead, if its own deadline leaves
/// as much for that.
const READ_TIMEOUT: Duration = Duration::from_millis(50);
/// Longest time between two polls of the secondary store's session, which its lease needs.
const TICK: Duration = Duration::from_millis(1);

/// HERD and a secondary store.
#[derive(Debug)]
pub(crate) struct Hkvs<P> {
    pub(crate) primary: Herd<P>,
    secondary: Secondary,
    way: SecondaryWay,
    /// How long a reply allows reads of the secondary store.
    lease: Duration,
    /// Until when each worker's replies allow them.
    leased: Vec<Option<Instant>>,
    table: Table,
    sent: Vec<Sent>,
    /// Reads at the secondary store, and those that wait to go on to the primary.
    reads: Vec<PendingRead>,
    /// The tickets of reads that went on to the primary, by those that they have there.
    redirected: HashMap<Ticket, Ticket>,
    marked: Vec<MarkedReply>,
    next: u64,
    /// The clock at the last poll or flush: no request was sent earlier that was submitted later.
    clock: Instant,
    /// The time of the last poll of the secondary store's session.
    ticked: Duration,
    counts: SecondaryReads,
    read_from: ReadFrom,
}

/// What has become of reads that went to the secondary store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SecondaryReads {
    /// Answered there.
    pub answered: u64,
    /// Answered by the server after all.
    pub redirected: u64,
}

/// A request that was sent to the primary.
#[derive(Clone, Copy, Debug)]
struct Sent {
    ticket: u64,
    hash: KeyHash,
    at: Instant,
}

/// A read that the secondary store was asked for.
#[derive(Debug)]
struct PendingRead {
    ticket: Ticket,
    key: Vec<u8>,
    hash: KeyHash,
    when: When,
    /// Its ticket there; `None`: it waits to go to the primary.
    there: Option<Ticket>,
    /// It found an older version than this client has seen.
    found_older: bool,
}

impl PendingRead {
    /// Returns when the primary is to be asked instead: in time for its answer.
    fn asks_primary_at(&self) -> Duration {
        let When { now, due, .. } = self.when;
        now + READ_TIMEOUT.min(due.saturating_sub(now) / 2)
    }
}

impl<P: Port> Hkvs<P> {
    pub(crate) fn new(
        primary: Herd<P>,
        way: SecondaryWay,
        (lease, workers): (Duration, usize),
    ) -> Self {
        let now = clock();
        let sent = SENT_MIN.max(SENT * primary.capacity());
        let nothing = Sent {
            ticket: 0,
            hash: KeyHash(0),
            at: now,
        };
        Self {
            secondary: Secondary::new(),
            read_from: way.options.read_from,
            way,
            lease,
            leased: vec![None; workers],
            table: Table::default(),
            // A power of two, since the lower bits of a ticket select the place.
            sent: vec![nothing; sent.next_power_of_two()],
            primary,
            reads: Vec::new(),
            redirected: HashMap::new(),
            marked: Vec::new(),
            next: 0,
            clock: now,
            ticked: Duration::ZERO,
            counts: SecondaryReads::default(),
        }
    }

    pub(crate) fn set_read_from(&mut self, read_from: ReadFrom) {
        self.read_from = read_from;
    }

    pub(crate) fn secondary_reads(&self) -> SecondaryReads {
        self.counts
    }

    pub(crate) fn submit(&mut self, when: When, key: Key<'_>, op: &Op<'_>) -> Option<Ticket> {
        let hash = self.way.hash_key.hash(key.as_bytes());
        if !matches!(op, Op::Get) {
            if self.reads.iter().any(|read| read.hash == hash) {
                return None;
            }
            let ticket = self.submit_primary(when, key, (hash, op))?;
            self.table.write(hash, ticket.0);
            return Some(ours(ticket));
        }
        if self.goes_to_secondary(hash)
            && let Some(ticket) = self.submit_secondary(when, key, hash)
        {
            return Some(ticket);
        }
        // The session there may have no room.
        self.submit_primary(when, key, (hash, op)).map(ours)
    }

    fn submit_primary(
        &mut self,
        when: When,
        key: Key<'_>,
        (hash, op): (KeyHash, &Op<'_>),
    ) -> Option<Ticket> {
        let ticket = self.primary.submit(when, key, op)?;
        let at = self.clock;
        *self.sent(ticket) = Sent {
            ticket: ticket.0,
            hash,
            at,
        };
        Some(ticket)
    }

    /// Returns the place where it is noted when a request was sent.
    fn sent(&mut self, ticket: Ticket) -> &mut Sent {
        let index = ticket.0 as usize & (self.sent.len() - 1);
        &mut self.sent[index]
    }

    /// Returns whether a read is to be begun at the secondary store.
    fn goes_to_secondary(&mut self, hash: KeyHash) -> bool {
        let wanted = match self.read_from {
            ReadFrom::Primary => false,
            // Where fewer requests are in flight.
            ReadFrom::Extended => self.primary.in_flight() > self.reads.len(),
            ReadFrom::Interleaved(percent) => is_among(hash, percent),
            ReadFrom::Secondary => true,
        };
        wanted
            && self.reads.len() < WINDOW
            && self.is_leased(hash, self.clock)
            && self.table.get(hash).is_some()
    }

    /// Returns whether replies allow reads of this key at the secondary store at `at`.
    fn is_leased(&self, hash: KeyHash, at: Instant) -> bool {
        let worker = hash.partition(self.leased.len());
        self.leased[worker].is_some_and(|until| at < until)
    }

    fn submit_secondary(&mut self, when: When, key: Key<'_>, hash: KeyHash) -> Option<Ticket> {
        // Later than the read is given up here: one late answer does not end that session.
        let asked = When {
            due: when.now.saturating_add(DEADLINE),
            ..when
        };
        let there = self.secondary.open()?.submit(asked, key, &Op::Get)?;
        self.next += 1;
        let ticket = Ticket(self.next << 1 | 1);
        self.reads.push(PendingRead {
            ticket,
            key: key.as_bytes().to_vec(),
            hash,
            when,
            there: Some(there),
            found_older: false,
        });
        Some(ticket)
    }

    pub(crate) fn command(&mut self, when: When, command: Command<'_>) -> Option<Ticket> {
        // A command keeps its place behind the reads before it.
        if !self.reads.is_empty() {
            return None;
        }
        let is_flush = matches!(command, Command::FlushAll);
        let ticket = self.primary.command(when, command)?;
        if is_flush {
            self.table.flush(ticket.0);
        }
        Some(ours(ticket))
    }

    pub(crate) fn flush(&mut self, now: Duration) {
        self.clock = clock();
        if let Some(open) = self.secondary.open() {
            open.flush(now);
        }
        self.redirect();
        self.primary.flush(now);
    }

    pub(crate) fn poll(&mut self, now: Duration, sink: &mut impl FnMut(Ticket, Answer<'_>)) {
        self.clock = clock();
        self.poll_primary(now, sink);
        // Without reads there is only the connection to the secondary store to tend.
        if !self.reads.is_empty() || now.saturating_sub(self.ticked) >= TICK {
            self.ticked = now;
            self.poll_secondary(now, sink);
        }
        if let Some(cause) = self.primary.broken() {
            self.end_reads(cause, sink);
        }
    }

    fn poll_primary(&mut self, now: Duration, sink: &mut impl FnMut(Ticket, Answer<'_>)) {
        let Self {
            primary,
            redirected,
            marked,
            ..
        } = self;
        primary.poll_marked(now, marked, &mut |ticket, answer| {
            let outer = redirected.remove(&ticket).unwrap_or_else(|| ours(ticket));
            sink(outer, answer);
        });
        // Taken out while `note` borrows all of `self`, and put back for its room.
        let mut marked = std::mem::take(&mut self.marked);
        for reply in marked.drain(..) {
            self.note(&reply);
        }
        self.marked = marked;
    }

    /// Notes what a reply of the primary tells of the secondary store.
    fn note(&mut self, reply: &MarkedReply) {
        let sent = *self.sent(reply.ticket);
        if sent.ticket != reply.ticket.0 {
            // Of which key it tells is not known any more, if it was a read.
            if reply.is_read {
                self.table.flush(reply.ticket.0);
            }
            return;
        }
        // `is_leased` ends the session with a store that the server has no more.
        let has_store = self.secondary.name().is_some();
        if reply.is_leased && self.secondary.is_leased(reply.store, sent.at) {
            let worker = sent.hash.partition(self.leased.len());
            // Counted from the sending (docs/wire.md, Reply).
            let until = sent.at + self.lease;
            let leased = &mut self.leased[worker];
            // Replies may come in another order than the requests were sent.
            *leased = Some(leased.map_or(until, |known| known.max(until)));
        } else if has_store && self.secondary.name().is_none() {
            self.forget();
        }
        match reply.replicated {
            Some(version) => self.table.found(sent.hash, version, reply.ticket.0),
            // The secondary store may still have what was there before this miss, or before this item.
            None if reply.is_read => self.table.write(sent.hash, reply.ticket.0),
            None => {}
        }
    }

    /// `sink` is no type parameter, since the poll of the other transport is this one's caller.
    fn poll_secondary(&mut self, now: Duration, sink: &mut dyn FnMut(Ticket, Answer<'_>)) {
        if let Some(open) = self.secondary.open() {
            let (reads, table) = (&mut self.reads, &mut self.table);
            let (leased, counts) = (&self.leased, &mut self.counts);
            open.flush(now);
            open.poll(now, &mut |there, answer| {
                let Some(index) = reads.iter().position(|read| read.there == Some(there)) else {
                    return;
                };
                let read = &mut reads[index];
                // The store was read by now: only what is over by then counts against the lease.
                let worker = read.hash.partition(leased.len());
                let is_leased = leased[worker].is_some_and(|until| clock() < until);
                match found(&answer, table.get(read.hash).filter(|_| is_leased)) {
                    Some(hit) => {
                        table.saw(read.hash, hit.version);
                        counts.answered += 1;
                        let ticket = reads.swap_remove(index).ticket;
                        sink(ticket, Answer::Hit(hit));
                    }
                    None => {
                        // Unless it was only late, or too old, the key is there no more.
                        if answer == Answer::Miss {
                            table.remove(read.hash);
                        }
                        read.there = None;
                        read.found_older = is_leased && matches!(answer, Answer::Hit(_));
                    }
                }
            });
        }
        for read in &mut self.reads {
            if now >= read.asks_primary_at() {
                read.there = None;
            }
        }
        if (self.secondary).tend(&self.way, self.read_from != ReadFrom::Primary) {
            self.forget();
        }
        self.redirect();
    }

    /// Forgets what is known of the secondary store: there is another, or none.
    fn forget(&mut self) {
        self.table.clear();
        self.leased.fill(None);
        self.reads.iter_mut().for_each(|read| read.there = None);
    }

    /// Sends reads that the secondary store has not answered to the primary, as far as it accepts them.
    fn redirect(&mut self) {
        let mut index = 0;
        let mut any = false;
        while let Some(read) = self.reads.get(index) {
            if read.there.is_some() {
                index += 1;
                continue;
            }
            let (when, hash, outer) = (read.when, read.hash, read.ticket);
            let found_older = read.found_older;
            // A copy, since `submit_primary` borrows all of `self`.
            let owned = read.key.clone();
            let Ok(key) = Key::new(&owned) else {
                return;
            };
            let Some(ticket) = self.submit_primary(when, key, (hash, &Op::Get)) else {
                break;
            };
            if found_older {
                // Either that store is late, or versions go down, and it would never have what this client looks
                // for. What the server's answer shows counts, and nothing that it has shown before.
                self.table.write(hash, ticket.0);
            }
            self.redirected.insert(ticket, outer);
            self.counts.redirected += 1;
            // The last read has come to this place, so `index` stays.
            self.reads.swap_remove(index);
            any = true;
        }
        if any {
            // Now, since a caller that only waits does not flush.
            self.primary.post(self.ticked);
        }
    }

    /// Ends the reads that no primary will answer.
    fn end_reads(&mut self, cause: Cause, sink: &mut impl FnMut(Ticket, Answer<'_>)) {
        for read in self.reads.drain(..) {
            let perhaps_done = false;
            let lost = Lost {
                cause,
                perhaps_done,
            };
            sink(read.ticket, Answer::Lost(lost));
        }
    }

    pub(crate) fn check(&mut self, now: Duration) {
        self.primary.check(now);
    }

    pub(crate) fn sleep(&mut self, now: Duration, limit: Duration) -> Option<Sleep<'_>> {
        if self.reads.is_empty() {
            return self.primary.sleep(now, limit);
        }
        // It naps: the primary's answers wait for at most that long.
        self.secondary
            .open()
            .and_then(|open| open.sleep(now, limit))
    }

    pub(crate) fn disarm(&mut self) {
        self.primary.disarm();
        if let Some(open) = self.secondary.open() {
            open.disarm();
        }
    }

    pub(crate) fn due(&self) -> Option<Duration> {
        let reads = self.reads.iter().map(PendingRead::asks_primary_at).min();
        [self.primary.due(), reads].into_iter().flatten().min()
    }

    pub(crate) fn abandon(&mut self, cause: Cause, sink: &mut impl FnMut(Ticket, Answer<'_>)) {
        let redirected = &mut self.redirected;
        self.primary.abandon(cause, &mut |ticket, answer| {
            let outer = redirected.remove(&ticket).unwrap_or_else(|| ours(ticket));
            sink(outer, answer);
        });
        self.end_reads(cause, sink);
    }

    pub(crate) fn broken(&self) -> Option<Cause> {
        self.primary.broken()
    }

    /// Returns the transport to the secondary store, while there is a session with it.
    pub(crate) fn secondary(&self) -> Option<&'static str> {
        self.secondary.name()
    }
}

/// Returns the ticket of a request at the primary, as the caller sees it: the others have odd numbers.
fn ours(ticket: Ticket) -> Ticket {
    Ticket(ticket.0 << 1)
}

/// Returns whether a key is among the `percent` of all that are read from the secondary store.
fn is_among(hash: KeyHash, percent: u8) -> bool {
    (hash.0 >> 8 & 0xffff) * 100 < u64::from(percent) * 0x1_0000
}

/// Returns what the secondary store has answered, if it is an item that is not older than `known`.
fn found<'a>(answer: &Answer<'a>, known: Option<u64>) -> Option<Hit<'a>> {
    let Answer::Hit(Hit { value: record, .. }) = answer else {
        return None;
    };
    let Record {
        version,
        flags,
        value,
    } = Record::parse(record)?;
    (version >= known?).then_some(Hit {
        value,
        flags,
        version,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_goes_on_to_the_server_in_time_for_its_own_deadline() {
        let read = |due: u64| PendingRead {
            ticket: Ticket(1),
            key: Vec::new(),
            hash: KeyHash(1),
            when: When {
                unix: 0,
                now: Duration::from_millis(1000),
                due: Duration::from_millis(due),
            },
            there: None,
            found_older: false,
        };
        let asked = [5000, 1020, 1000, 900].map(|due| read(due).asks_primary_at().as_millis());
        assert_eq!(asked, [1050, 1010, 1000, 1000]);
    }
}
