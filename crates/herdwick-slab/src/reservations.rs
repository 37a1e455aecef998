//! The reservations of a store: large values that are being received.

use std::num::NonZeroU64;

use herdwick_request::{Staged, Status};

use crate::metas::Chunk;

/// Where the value is.
#[derive(Clone, Copy)]
pub(crate) enum Location {
    In(Chunk),
    /// Refused: its bytes are dropped.
    Refused(Status),
}

pub(crate) struct Reservation {
    pub(crate) id: NonZeroU64,
    pub(crate) place: Location,
    /// Bytes of the value that have arrived.
    pub(crate) came: usize,
    pub(crate) value_len: usize,
}

/// The staged puts of a store.
#[derive(Default)]
pub(crate) struct Staging {
    pub(crate) under_way: Vec<Reservation>,
    /// The last number given to one.
    pub(crate) last: u64,
    /// Bytes of the chunks that are reserved.
    pub(crate) reserved: usize,
}

impl Staging {
    pub(crate) fn get(&mut self, staged: Staged) -> Option<&mut Reservation> {
        let mut all = self.under_way.iter_mut();
        // Searched one by one: uploads under way are few (`Store::staged_max`).
        all.find(|reservation| reservation.id == staged.id())
    }

    pub(crate) fn take(&mut self, staged: Staged) -> Option<Reservation> {
        let mut all = self.under_way.iter();
        let at = all.position(|reservation| reservation.id == staged.id())?;
        Some(self.under_way.swap_remove(at))
    }
}
