//! Authentication of packets with a key that both ends share.
//!
//! RoCE accepts any packet with the right numbers. Two ends that share a 128-bit key add a trailer
//! between pad and ICRC, which routers and captures take for payload: a counter that grows by one
//! with each packet of a direction, and SipHash-2-4 over sender, packet and counter. A packet with
//! a wrong tag, or a counter that was used before or is too old, is dropped.

use core::{fmt, hash::Hasher};

use siphasher::sip::SipHasher24;
use zerocopy::{BigEndian, FromBytes, Immutable, IntoBytes, KnownLayout, U64, Unaligned};

use crate::{
    Drop,
    packet::{BTH_BYTES, ICRC_BYTES},
};

/// The bytes between pad and ICRC.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Trailer {
    counter: U64<BigEndian>,
    tag: U64<BigEndian>,
}

/// Bytes that the keyed mode adds to a packet.
pub const TRAILER_BYTES: usize = 16;
const _: () = assert!(size_of::<Trailer>() == TRAILER_BYTES);

/// A queue pair's contribution to a key, or the key itself. `Debug` does not print it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub [u8; 16]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Returns the key of two queue pairs, made of a random secret of each; both ends compute the same.
/// It is as secret as the channel over which the secrets were exchanged.
#[must_use]
pub fn agree(one: &Secret, other: &Secret) -> Secret {
    // Ordered, so that both ends hash the same bytes without a role.
    let (low, high) = (one.0.min(other.0), one.0.max(other.0));
    let mut key = [0; 16];
    // SipHash has 64 bits: two of them, over different first bytes, make the 128 of a key.
    for (domain, half) in (0..).zip(key.chunks_exact_mut(8)) {
        let mut hasher = SipHasher24::new_with_key(&low);
        hasher.write_u64(domain);
        hasher.write(&high);
        half.copy_from_slice(&hasher.finish().to_le_bytes());
    }
    Secret(key)
}

/// One end of a keyed peering.
pub(crate) struct Keyed {
    key: Secret,
    sent: u64,
    window: Window,
}

impl Keyed {
    pub(crate) fn new(key: Secret) -> Self {
        Self {
            key,
            sent: 0,
            window: Window::default(),
        }
    }

    /// Fills in the trailer of `room`, which is complete except for the trailer and the ICRC after
    /// it.
    pub(crate) fn seal(&mut self, sender: u32, room: &mut [u8]) {
        // 64 bits do not wrap, so no counter is used twice under one key.
        self.sent += 1;
        let end = room.len() - ICRC_BYTES - TRAILER_BYTES;
        let (packet, rest) = room.split_at_mut(end);
        let trailer = Trailer {
            counter: self.sent.into(),
            tag: self.tag(sender, packet, self.sent).into(),
        };
        rest[..TRAILER_BYTES].copy_from_slice(trailer.as_bytes());
    }

    /// Checks and removes the trailer of `bytes`, which end before the ICRC.
    ///
    /// # Errors
    /// [`Drop::Short`], [`Drop::Tag`] or [`Drop::Replay`].
    pub(crate) fn open<'p>(&mut self, sender: u32, bytes: &'p [u8]) -> Result<&'p [u8], Drop> {
        let (packet, trailer) = Trailer::read_from_suffix(bytes)
            .ok()
            .filter(|(packet, _)| packet.len() >= BTH_BYTES)
            .ok_or(Drop::Short)?;
        let counter = trailer.counter.get();
        if trailer.tag.get() != self.tag(sender, packet, counter) {
            return Err(Drop::Tag);
        }
        // Only an authentic counter moves the window.
        self.window
            .accept(counter)
            .then_some(packet)
            .ok_or(Drop::Replay)
    }

    /// Returns the hash of the sender's number, the packet without the bits that routers change,
    /// and the counter.
    fn tag(&self, sender: u32, packet: &[u8], counter: u64) -> u64 {
        // The sender's number is not in the packet of a connection. Without it the two directions,
        // which share a key and count alike, could be reflected.
        let mut head = [0; 4 + BTH_BYTES];
        head[..4].copy_from_slice(&sender.to_be_bytes());
        head[4..].copy_from_slice(&packet[..BTH_BYTES]);
        // Byte 4 of the BTH holds FECN and BECN, which routers set. The ICRC masks it the same way.
        head[8] = 0xff;
        let mut hasher = SipHasher24::new_with_key(&self.key.0);
        hasher.write(&head);
        hasher.write(&packet[BTH_BYTES..]);
        hasher.write_u64(counter.to_le());
        hasher.finish()
    }
}

/// Number of counters for which the window records whether they were used.
const WINDOW: u64 = 1024;

/// The used counters among the last [`WINDOW`].
#[derive(Default)]
struct Window {
    highest: u64,
    seen: [u64; WINDOW as usize / 64],
}

impl Window {
    /// Returns whether a counter is new and within the window, and marks it used.
    fn accept(&mut self, counter: u64) -> bool {
        if counter > self.highest {
            // A jump beyond the window clears every place once.
            let steps = (counter - self.highest).min(WINDOW);
            // At most `WINDOW` steps, whatever the counter: a jump costs no more.
            for passed in counter - steps + 1..=counter {
                self.set(passed, false);
            }
            self.highest = counter;
        } else if self.highest - counter >= WINDOW || self.is_set(counter) {
            return false;
        }
        self.set(counter, true);
        // Senders count from 1.
        counter > 0
    }

    fn is_set(&self, counter: u64) -> bool {
        let (word, bit) = Self::place(counter);
        self.seen[word] & bit != 0
    }

    fn set(&mut self, counter: u64, came: bool) {
        let (word, bit) = Self::place(counter);
        if came {
            self.seen[word] |= bit;
        } else {
            self.seen[word] &= !bit;
        }
    }

    fn place(counter: u64) -> (usize, u64) {
        let at = counter % WINDOW;
        ((at / 64) as usize, 1 << (at % 64))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use herdwick_check::Rng;

    use super::{Keyed, Secret, TRAILER_BYTES, WINDOW, Window, agree};
    use crate::Drop;

    #[test]
    fn counters_are_accepted_once_and_within_the_window() {
        let (mut window, mut taken) = (Window::default(), BTreeSet::new());
        let (mut chance, mut highest) = (Rng::new(1), 0);
        for _ in 0..50_000 {
            let around = highest.max(1100) - 1100;
            let counter = 1 + around + chance.below(1300);
            let expected = counter + WINDOW > highest && !taken.contains(&counter);
            assert_eq!(window.accept(counter), expected, "{counter} at {highest}");
            if expected {
                taken.insert(counter);
                highest = highest.max(counter);
            }
        }
        assert!(!window.accept(0));
    }

    #[test]
    fn both_ends_derive_one_key_and_any_changed_bit_is_detected() {
        let key = agree(&Secret([1; 16]), &Secret([2; 16]));
        assert_eq!(key, agree(&Secret([2; 16]), &Secret([1; 16])));
        assert_ne!(key, agree(&Secret([1; 16]), &Secret([3; 16])));
        let (mut here, mut there) = (Keyed::new(key), Keyed::new(key));
        let mut room = [7; 40 + TRAILER_BYTES + 4];
        here.seal(5, &mut room);
        let bytes = &room[..40 + TRAILER_BYTES];
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.to_vec();
            changed[bit / 8] ^= 1 << (bit % 8);
            let taken = Keyed::new(key).open(5, &changed).is_ok();
            assert_eq!(taken, bit / 8 == 4, "bit {bit}");
        }
        assert_eq!(there.open(6, bytes), Err(Drop::Tag), "of another sender");
        assert_eq!(there.open(5, bytes), Ok(&bytes[..40]));
        assert_eq!(there.open(5, bytes), Err(Drop::Replay));
    }
}
