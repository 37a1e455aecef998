use super::{
    ClientId,
    batch::Job,
    chunk::{Attached, Slot},
};

/// Polls without a request after which a client turns cold.
const HOT_POLLS: u32 = 1024;
/// Cold clients looked at in a pass: 2,048 of them cost what 16 do, and wait 128 passes at most.
const COLD_PER_PASS: usize = 16;

/// The clients of one worker, and which of them to poll.
///
/// Hot clients are polled every pass, cold ones in turns, those with a mailbox or a bell that is
/// always rung not at all.
pub(super) struct Roster {
    places: Vec<Place>,
    unpolled: usize,
    announced: usize,
    hot: Vec<u32>,
    cold: Vec<u32>,
    hot_turn: usize,
    cold_turn: usize,
}

struct Place {
    generation: u32,
    client: Option<Attached>,
}

impl Roster {
    pub(super) fn new(clients_max: usize) -> Self {
        Self {
            places: (0..clients_max)
                .map(|_| Place {
                    generation: 0,
                    client: None,
                })
                .collect(),
            unpolled: 0,
            announced: 0,
            hot: Vec::with_capacity(clients_max),
            cold: Vec::with_capacity(clients_max),
            hot_turn: 0,
            cold_turn: 0,
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
            self.cold.push(index);
        } else {
            self.unpolled += 1;
        }
        self.announced += usize::from(client.is_announced());
        place.client = Some(client);
        Some(ClientId {
            index,
            generation: place.generation,
        })
    }

    pub(super) fn remove(&mut self, id: ClientId) -> Option<Attached> {
        let place = self.places.get_mut(id.index as usize)?;
        if place.generation != id.generation {
            return None;
        }
        let client = place.client.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.unpolled -= usize::from(!client.is_polled());
        self.announced -= usize::from(client.is_announced());
        self.hot.retain(|index| *index != id.index);
        self.cold.retain(|index| *index != id.index);
        Some(client)
    }

    #[inline]
    pub(super) fn client(&mut self, index: u32) -> Option<&mut Attached> {
        self.places.get_mut(index as usize)?.client.as_mut()
    }

    /// The slot a job came from. Its client is there: nobody leaves during a pass.
    pub(super) fn slot(&mut self, job: &Job) -> &mut Slot {
        let client = self
            .client(job.client)
            .expect("clients leave between passes");
        &mut client.slots[usize::from(job.slot)]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Attached> {
        self.places.iter().filter_map(|place| place.client.as_ref())
    }

    pub(super) fn len(&self) -> usize {
        self.hot.len() + self.cold.len() + self.unpolled
    }

    /// How many there are whose requests completions tell of.
    #[inline]
    pub(super) fn announced(&self) -> usize {
        self.announced
    }

    #[inline]
    pub(super) fn hot_len(&self) -> usize {
        self.hot.len()
    }

    /// The `nth` hot client of this pass; passes begin at different ones.
    #[inline]
    pub(super) fn hot(&self, nth: usize) -> u32 {
        self.hot[wrapped(self.hot_turn + nth, self.hot.len())]
    }

    /// The next pass begins `seen` hot clients further on, and those long idle turn cold.
    #[inline]
    pub(super) fn turn_hot(&mut self, seen: usize) {
        if !self.hot.is_empty() {
            self.hot_turn = wrapped(self.hot_turn + seen, self.hot.len());
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
            let client = places[*index as usize].client.as_ref();
            let stays = client.is_some_and(|client| client.idle < HOT_POLLS);
            if !stays {
                cold.push(*index);
            }
            stays
        });
        self.hot_turn = 0;
    }

    /// How many cold clients to look at in this pass.
    #[inline]
    pub(super) fn cold_due(&self) -> usize {
        self.cold.len().min(COLD_PER_PASS)
    }

    /// The next cold client.
    #[inline]
    pub(super) fn next_cold(&mut self) -> Option<u32> {
        if self.cold_turn >= self.cold.len() {
            self.cold_turn = 0;
        }
        let index = self.cold.get(self.cold_turn).copied();
        self.cold_turn += 1;
        index
    }

    /// The client that `next_cold` gave last had a request.
    pub(super) fn warm_last(&mut self) {
        self.cold_turn -= 1;
        let index = self.cold.swap_remove(self.cold_turn);
        self.hot.push(index);
    }
}

#[inline]
fn wrapped(at: usize, len: usize) -> usize {
    if at >= len { at - len } else { at }
}
