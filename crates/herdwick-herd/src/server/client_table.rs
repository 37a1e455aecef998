//! The clients of a worker: hot ones are polled every pass, cold ones in turns, so that a pass
//! costs the same however many clients are idle.

use std::collections::VecDeque;

use herdwick_fabric::WriteReport;

use super::{
    chunk::{Attached, ReportedWrites, SlotRecord},
    job::Job,
};

/// Polls without a request after which a client becomes cold.
const HOT_POLLS: u32 = 1024;
/// Cold clients looked at in a pass, fewer if the batch is full before: 2,048 of them cost what 16 do.
/// A client waits for one pass for every 16 before it, and for one more for every pass that was full.
const COLD_PER_PASS: usize = 16;

/// A client of one [`ServerSide`](crate::ServerSide). Invalid for good after the client is detached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientId {
    pub(super) index: u32,
    generation: u32,
}

impl ClientId {
    /// The token of the reports of its WRITEs.
    pub(super) fn token(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    fn of_token(token: u64) -> Self {
        Self {
            index: token as u32,
            generation: (token >> 32) as u32,
        }
    }
}

/// The clients of one worker, and which of them to poll.
///
/// Hot clients are polled every pass and cold ones in turns. Clients with a UD receive queue, or
/// whose every WRITE is announced, are not polled. Those whose WRITEs the port reports are neither hot nor
/// cold: they are polled from a report on until its requests are found.
pub(super) struct ClientTable {
    places: Vec<Place>,
    len: usize,
    announced: usize,
    hot: RoundRobin,
    cold: RoundRobin,
    /// Clients whose WRITEs the port reports.
    watched: usize,
    /// Those of them that are to be polled, each once.
    reported: VecDeque<u32>,
}

/// Indices of clients that are polled in turns.
#[derive(Default)]
struct RoundRobin {
    places: Vec<u32>,
    /// Position of the next client: below their number, or 0.
    turn: usize,
}

struct Place {
    generation: u32,
    client: Option<Attached>,
}

impl ClientTable {
    pub(super) fn new(clients_max: usize) -> Self {
        Self {
            places: (0..clients_max)
                .map(|_| Place {
                    generation: 0,
                    client: None,
                })
                .collect(),
            len: 0,
            announced: 0,
            hot: RoundRobin::with_capacity(clients_max),
            cold: RoundRobin::with_capacity(clients_max),
            watched: 0,
            reported: VecDeque::with_capacity(clients_max),
        }
    }

    pub(super) fn insert(&mut self, client: Attached) -> Option<ClientId> {
        let index = self
            .places
            .iter()
            .position(|place| place.client.is_none())?;
        let place = &mut self.places[index];
        let index = u32::try_from(index).ok()?;
        if client.is_polled() {
            // Cold until its first request.
            self.cold.places.push(index);
        }
        self.len += 1;
        self.announced += usize::from(client.is_announced());
        place.client = Some(client);
        Some(ClientId {
            index,
            generation: place.generation,
        })
    }

    /// Polls a new client after reports of its WRITEs alone, and once before the first.
    pub(super) fn watch(&mut self, id: ClientId) {
        if let Some(client) = self.client(id.index) {
            client.writes = Some(ReportedWrites::new(client.slots.len()));
            self.watched += 1;
            self.cold.retain(|other| other != id.index);
            self.reported.push_back(id.index);
        }
    }

    /// Number of clients whose WRITEs the port reports.
    #[inline]
    pub(super) fn watched(&self) -> usize {
        self.watched
    }

    /// Has the client polled that a report is of, unless it has left.
    #[inline]
    pub(super) fn note_report(&mut self, report: &WriteReport) {
        let id = ClientId::of_token(report.token);
        let place = self.places.get_mut(id.index as usize);
        let place = place.filter(|place| place.generation == id.generation);
        let client = place.and_then(|place| place.client.as_mut());
        if client.is_some_and(|client| client.note_writes(report.writes)) {
            self.reported.push_back(id.index);
        }
    }

    /// Number of clients to be polled since a report.
    #[inline]
    pub(super) fn reported_len(&self) -> usize {
        self.reported.len()
    }

    #[inline]
    pub(super) fn next_reported(&mut self) -> Option<u32> {
        self.reported.pop_front()
    }

    /// Has a client that `next_reported` returned polled once more, if requests of its reported WRITEs may
    /// be left; before the others, if it is to go on.
    #[inline]
    pub(super) fn put_back(&mut self, index: u32, goes_on: bool) {
        let client = self.client(index);
        if client.is_none_or(Attached::rests) {
            return;
        }
        if goes_on {
            self.reported.push_front(index);
        } else {
            self.reported.push_back(index);
        }
    }

    pub(super) fn remove(&mut self, id: ClientId) -> Option<Attached> {
        let place = self.places.get_mut(id.index as usize)?;
        if place.generation != id.generation {
            return None;
        }
        let client = place.client.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.len -= 1;
        self.announced -= usize::from(client.is_announced());
        self.watched -= usize::from(client.writes.is_some());
        self.reported.retain(|index| *index != id.index);
        self.hot.retain(|index| index != id.index);
        self.cold.retain(|index| index != id.index);
        Some(client)
    }

    #[inline]
    pub(super) fn client(&mut self, index: u32) -> Option<&mut Attached> {
        self.places.get_mut(index as usize)?.client.as_mut()
    }

    /// The slot of a job. Its client exists: clients are detached only between passes.
    pub(super) fn slot(&mut self, job: &Job) -> &mut SlotRecord {
        let client = self
            .client(job.client)
            .expect("clients leave between passes");
        &mut client.slots[usize::from(job.slot)]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Attached> {
        self.places.iter().filter_map(|place| place.client.as_ref())
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Number of clients with announced requests.
    #[inline]
    pub(super) fn announced(&self) -> usize {
        self.announced
    }

    #[inline]
    pub(super) fn hot_len(&self) -> usize {
        self.hot.places.len()
    }

    /// The `nth` hot client of this pass; each pass begins at another one.
    #[inline]
    pub(super) fn hot(&self, nth: usize) -> u32 {
        self.hot.places[wrapped(self.hot.turn + nth, self.hot.places.len())]
    }

    /// Makes the next pass begin `seen` hot clients farther on.
    #[inline]
    pub(super) fn turn_hot(&mut self, seen: usize) {
        if !self.hot.places.is_empty() {
            self.hot.turn = wrapped(self.hot.turn + seen, self.hot.places.len());
        }
    }

    /// Whether the client at `index` has been idle for long.
    #[inline]
    pub(super) fn is_cooling(&self, index: u32) -> bool {
        let client = self.places[index as usize].client.as_ref();
        client.is_some_and(|client| client.idle >= HOT_POLLS)
    }

    /// Moves every hot client that has been idle for long to the cold ones.
    #[cold]
    pub(super) fn cool(&mut self) {
        let Self {
            places, hot, cold, ..
        } = self;
        hot.retain(|index| {
            let client = places[index as usize].client.as_ref();
            let stays = client.is_some_and(|client| client.idle < HOT_POLLS);
            if !stays {
                cold.places.push(index);
            }
            stays
        });
    }

    /// Number of cold clients to poll in this pass.
    #[inline]
    pub(super) fn cold_due(&self) -> usize {
        self.cold.places.len().min(COLD_PER_PASS)
    }

    /// Returns the next cold client.
    #[inline]
    pub(super) fn next_cold(&mut self) -> Option<u32> {
        self.cold.next()
    }

    /// Makes the client that `next_cold` returned last a hot one: it had a request.
    pub(super) fn warm_last(&mut self) {
        self.hot.places.extend(self.cold.take_last());
    }
}

impl RoundRobin {
    fn with_capacity(clients_max: usize) -> Self {
        Self {
            places: Vec::with_capacity(clients_max),
            turn: 0,
        }
    }

    #[inline]
    fn next(&mut self) -> Option<u32> {
        let index = self.places.get(self.turn).copied();
        self.pass_to(self.turn + 1);
        index
    }

    /// Removes the index that `next` returned last. The last index takes its place, and is next.
    fn take_last(&mut self) -> Option<u32> {
        let last = self.turn.checked_sub(1);
        // If the turn is 0, `next` has wrapped: it returned the last index.
        let last = last.or_else(|| self.places.len().checked_sub(1))?;
        let index = self.places.swap_remove(last);
        self.pass_to(last);
        Some(index)
    }

    #[inline]
    fn pass_to(&mut self, turn: usize) {
        self.turn = if turn < self.places.len() { turn } else { 0 };
    }

    /// Removes the indices that do not stay. The turn stays with its index, or moves to the next
    /// one that stays.
    fn retain(&mut self, mut stays: impl FnMut(u32) -> bool) {
        let (mut at, mut before) = (0, 0);
        self.places.retain(|index| {
            let stays = stays(*index);
            before += usize::from(stays && at < self.turn);
            at += 1;
            stays
        });
        self.pass_to(before);
    }
}

#[inline]
fn wrapped(at: usize, len: usize) -> usize {
    // `at` is below twice `len`: a comparison costs less than a division.
    if at >= len { at - len } else { at }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn take_last_removes_the_client_returned_last() {
        for taken in 0..5 {
            let mut ring = RoundRobin::with_capacity(5);
            ring.places.extend(0..5);
            (0..taken).for_each(|n| assert_eq!(ring.next(), Some(n)));
            assert_eq!(ring.next(), Some(taken));
            assert_eq!(ring.take_last(), Some(taken));
            let mut left: Vec<_> = (0..4).map_while(|_| ring.next()).collect();
            left.sort_unstable();
            let others: Vec<_> = (0..5).filter(|index| *index != taken).collect();
            assert_eq!(left, others);
        }
        assert_eq!(RoundRobin::default().take_last(), None);
    }

    #[test]
    fn retain_keeps_the_turn_at_the_next_remaining_client() {
        for turn in 0..5 {
            for leavers in 0..32_u32 {
                let mut ring = RoundRobin {
                    places: (0..5).collect(),
                    turn,
                };
                ring.retain(|index| leavers >> index & 1 == 0);
                let stayed = (0..5).map(|n| (turn as u32 + n) % 5);
                let next = stayed.into_iter().find(|index| leavers >> index & 1 == 0);
                assert_eq!(ring.places.get(ring.turn).copied(), next);
                assert!(next.is_some() || ring.turn == 0);
            }
        }
    }
}
