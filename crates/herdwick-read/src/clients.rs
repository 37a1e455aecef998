//! The clients of a server that they call by messages: for what READs do not settle, and for what changes
//! the data.

use herdwick_fabric::{Completion, CqId, Local, Port, PostError, QpId, RecvWr, RegionId};
use herdwick_mem::{Span, WORD};

/// A client of a server: its index, and how many had this index before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientId {
    index: u16,
    turn: u16,
}

impl ClientId {
    /// Returns the index, which another client may have later.
    #[must_use]
    pub const fn index(self) -> u16 {
        self.index
    }

    /// Returns the `wr_id` of one of this client's work requests, which has a number besides.
    #[must_use]
    pub const fn wr_id(self, number: u32) -> u64 {
        (self.index as u64) << 32 | (self.turn as u64) << 48 | number as u64
    }

    /// Returns whose work request a `wr_id` is, and its number.
    #[must_use]
    pub const fn of(wr_id: u64) -> (Self, u32) {
        let (index, turn) = ((wr_id >> 32) as u16, (wr_id >> 48) as u16);
        (Self { index, turn }, wr_id as u32)
    }
}

/// What a server keeps of each client, by its id. Completions of a removed client match no entry, even
/// when another has its index.
#[derive(Debug)]
pub struct Clients<C> {
    places: Vec<Place<C>>,
}

#[derive(Debug)]
struct Place<C> {
    turn: u16,
    client: Option<C>,
}

impl<C> Clients<C> {
    /// Makes room for `most` clients.
    #[must_use]
    pub fn new(most: u16) -> Self {
        let free = |_| Place {
            turn: 0,
            client: None,
        };
        Self {
            places: (0..most).map(free).collect(),
        }
    }

    /// Returns the most clients: every index is below it.
    #[must_use]
    pub fn most(&self) -> u16 {
        self.places.len() as u16
    }

    fn id(&self, index: u16) -> ClientId {
        let turn = self.places[usize::from(index)].turn;
        ClientId { index, turn }
    }

    /// Returns the id that the next client has; `None`: no index is free that `may_use` admits.
    pub fn next_id(&self, may_use: impl Fn(u16) -> bool) -> Option<ClientId> {
        let is_free = |index: &u16| self.places[usize::from(*index)].client.is_none();
        let found = (0..self.most()).find(|index| is_free(index) && may_use(*index));
        found.map(|index| self.id(index))
    }

    /// Adds the client of [`Clients::next_id`].
    pub fn insert(&mut self, id: ClientId, client: C) {
        let place = self.places.get_mut(usize::from(id.index));
        if let Some(place) = place.filter(|place| place.turn == id.turn) {
            place.client = Some(client);
        }
    }

    /// Removes a client; its id matches no entry any more.
    pub fn remove(&mut self, id: ClientId) -> Option<C> {
        self.get_mut(id)?;
        let place = &mut self.places[usize::from(id.index)];
        // An id recurs after 65,536 clients at its index: completions of the first are long polled.
        place.turn = place.turn.wrapping_add(1);
        place.client.take()
    }

    /// Returns a client; `None`: it was removed.
    #[inline]
    pub fn get_mut(&mut self, id: ClientId) -> Option<&mut C> {
        let place = self.places.get_mut(usize::from(id.index))?;
        place.client.as_mut().filter(|_| place.turn == id.turn)
    }

    /// Returns the client that has an index now.
    #[inline]
    pub fn at(&mut self, index: u16) -> Option<(ClientId, &mut C)> {
        let Place { turn, client } = self.places.get_mut(usize::from(index))?;
        let id = ClientId { index, turn: *turn };
        client.as_mut().map(|client| (id, client))
    }

    /// Returns all clients.
    pub fn iter(&self) -> impl Iterator<Item = (ClientId, &C)> {
        let clients = (0..self.most()).zip(&self.places);
        clients.filter_map(|(index, place)| Some((self.id(index), place.client.as_ref()?)))
    }
}

/// Buffers of one length on a queue pair, for messages that arrive by SEND.
#[derive(Debug)]
pub struct RecvBuffers {
    qp: QpId,
    region: RegionId,
    span: Span,
    /// Bytes of a buffer: whole words.
    len: usize,
}

impl RecvBuffers {
    /// Divides a region into buffers of `len` bytes for `qp`.
    #[must_use]
    pub fn new(qp: QpId, (region, span): (RegionId, Span), len: usize) -> Self {
        Self {
            qp,
            region,
            span,
            len,
        }
    }

    /// Posts the RECV of a buffer.
    ///
    /// # Errors
    /// [`PostError`] of the port.
    #[inline]
    pub fn post<P: Port>(&self, port: &mut P, wr_id: u64, buffer: u32) -> Result<(), PostError> {
        let into = Local {
            region: self.region,
            offset: self.offset(buffer),
            len: self.len,
        };
        port.post_recv(self.qp, &[RecvWr { wr_id, into }])
    }

    /// Posts a RECV for each of the first `count` buffers; `wr_id` names the work request of each.
    ///
    /// # Errors
    /// [`PostError`] of the port.
    pub fn post_all<P: Port>(
        &self,
        port: &mut P,
        count: u32,
        wr_id: impl Fn(u32) -> u64,
    ) -> Result<(), PostError> {
        (0..count).try_for_each(|buffer| self.post(port, wr_id(buffer), buffer))
    }

    /// Stores what arrived inside its completion, so that it is in the buffer in any case. Returns the
    /// message's length, at most a buffer's.
    #[inline]
    pub fn arrived(&self, completion: &Completion, buffer: u32) -> usize {
        if let Some(inline) = &completion.inline {
            let word = self.offset(buffer) / WORD;
            self.span.write_words(word, inline.words());
        }
        (completion.byte_len as usize).min(self.len)
    }

    /// Copies a message that arrived to the front of `out`. Returns its length, at most a buffer's and
    /// that of `out`.
    #[inline]
    pub fn take(&self, completion: &Completion, buffer: u32, out: &mut [u8]) -> usize {
        let len = (completion.byte_len as usize).min(self.len).min(out.len());
        match &completion.inline {
            Some(inline) => inline.copy_to(&mut out[..len]),
            None => self.read(buffer, &mut out[..len]),
        }
        len
    }

    /// Copies the first bytes of a buffer.
    #[inline]
    pub fn read(&self, buffer: u32, bytes: &mut [u8]) {
        self.span.read_bytes(self.offset(buffer), bytes);
    }

    /// Returns the first words of a buffer.
    #[inline]
    pub fn words<const N: usize>(&self, buffer: u32) -> [u64; N] {
        self.span.read_words(self.offset(buffer) / WORD)
    }

    fn offset(&self, buffer: u32) -> usize {
        buffer as usize * self.len
    }
}

/// Polls `cq` until it is empty, `done.len()` completions at a time, and hands each to `take`.
#[inline]
pub fn drain<P: Port>(
    port: &mut P,
    cq: CqId,
    done: &mut [Completion],
    mut take: impl FnMut(&mut P, &Completion),
) {
    loop {
        let count = port.poll(cq, done);
        for completion in &done[..count] {
            take(port, completion);
        }
        if count < done.len() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_a_wr_id_and_name_one_client_alone() {
        let mut clients = Clients::new(2);
        let first = clients.next_id(|_| true).unwrap();
        clients.insert(first, 'a');
        assert_eq!(ClientId::of(first.wr_id(u32::MAX)), (first, u32::MAX));
        let second = clients.next_id(|_| true).unwrap();
        assert_ne!(first, second);
        assert_eq!(clients.next_id(|index| index != second.index()), None);
        clients.insert(second, 'b');
        assert_eq!(clients.next_id(|_| true), None);

        assert_eq!(clients.remove(first), Some('a'));
        let third = clients.next_id(|_| true).unwrap();
        clients.insert(third, 'c');
        assert_eq!(
            (third.index(), clients.get_mut(first)),
            (first.index(), None)
        );
        assert_eq!(clients.remove(first), None);
        // Too late: its turn is over.
        clients.insert(first, 'd');
        let all: Vec<_> = clients.iter().map(|(id, client)| (id, *client)).collect();
        assert_eq!(all, [(third, 'c'), (second, 'b')]);
        assert_eq!(clients.at(0), Some((third, &mut 'c')));
    }
}
