//! The reservations of one store: large values that are being received, by slot. What is done with
//! them is in [`staged`](crate::staged).

use std::num::NonZeroU64;

use herdwick_layout::{bucket::Offset, item::Header};
use herdwick_request::Status;

/// A slot number plus 1 in the low 32 bits, and in the high ones a count that distinguishes the
/// successive users of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id(pub(crate) NonZeroU64);

impl Id {
    pub(crate) fn new(slot: usize, turn: u32) -> Self {
        let bits = u64::from(turn) << 32 | (slot as u64 + 1);
        // Slots are far fewer than 2^32, so the low half is never 0.
        Self(NonZeroU64::new(bits).unwrap_or(NonZeroU64::MAX))
    }

    pub(crate) fn slot(self) -> usize {
        (self.0.get() as u32 as usize).wrapping_sub(1)
    }
}

/// The location of the value.
pub(crate) enum Location {
    At(Offset),
    /// Refused: its bytes are dropped.
    Refused(Status),
}

pub(crate) struct Reservation {
    pub(crate) id: Id,
    pub(crate) place: Location,
    /// Bytes in the store; 0 if refused.
    pub(crate) footprint: usize,
    /// Bytes of the value that have arrived.
    pub(crate) came: usize,
    pub(crate) value_len: usize,
}

/// The staged puts of one store.
#[derive(Default)]
pub(crate) struct Staging {
    pub(crate) slots: Vec<Option<Reservation>>,
    vacant: Vec<usize>,
    /// Distinguishes the successive users of a slot.
    turn: u32,
    /// Bytes that are reserved.
    pub(crate) reserved: usize,
}

impl Staging {
    pub(crate) fn get(&mut self, id: Id) -> Option<&mut Reservation> {
        let slot = self.slots.get_mut(id.slot())?.as_mut()?;
        (slot.id == id).then_some(slot)
    }

    pub(crate) fn add(&mut self, place: Location, footprint: usize, value_len: usize) -> Id {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.turn = self.turn.wrapping_add(1);
        let id = Id::new(slot, self.turn);
        self.slots[slot] = Some(Reservation {
            id,
            place,
            footprint,
            came: 0,
            value_len,
        });
        self.reserved += footprint;
        id
    }

    pub(crate) fn take(&mut self, id: Id) -> Option<Reservation> {
        // The number alone is not enough: its slot may have another user by now.
        self.get(id)?;
        let taken = self.slots[id.slot()].take()?;
        self.vacant.push(id.slot());
        self.reserved -= taken.footprint;
        Some(taken)
    }

    pub(crate) fn refuse(&mut self, id: Id) {
        let footprint = self.get(id).map_or(0, |reservation| {
            reservation.place = Location::Refused(Status::OutOfMemory);
            std::mem::take(&mut reservation.footprint)
        });
        self.reserved -= footprint;
    }

    /// Returns the reservation at `at` with this header, unless it has ended or moved.
    pub(crate) fn live_at(&mut self, header: &Header, at: Offset) -> Option<&mut Reservation> {
        let id = Id(NonZeroU64::new(header.version)?);
        let found = self.get(id)?;
        // The version in a header may be that of an ordinary item, and equal an id by chance: the
        // place decides.
        matches!(found.place, Location::At(place) if place == at).then_some(found)
    }
}
