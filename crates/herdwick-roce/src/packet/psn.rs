//! Packet sequence numbers: 24-bit serial number arithmetic.

/// The 24 bits of a queue pair number or a PSN in a 32-bit field.
pub(crate) const LOW_24: u32 = 0x00ff_ffff;

/// A packet sequence number: 24 bits that wrap, ordered by signed distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Psn24(u32);

impl Psn24 {
    /// Returns the low 24 bits of `value` as a PSN.
    #[inline]
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value & LOW_24)
    }

    /// Returns a number below 2^24.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the number `count` packets further on.
    #[inline]
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self::new(self.0.wrapping_add(count))
    }

    /// Returns how far `self` is ahead of `other`; negative when it is behind.
    #[inline]
    #[must_use]
    pub const fn ahead_of(self, other: Self) -> i32 {
        // Shifting up and back extends the sign bit of 24 bits to 32.
        (self.0.wrapping_sub(other.0) << 8).cast_signed() >> 8
    }
}

#[cfg(test)]
mod tests {
    use super::Psn24;

    #[test]
    fn psn_distance_is_signed_and_wraps() {
        let psn = Psn24::new(0xff_ffff);
        assert_eq!(psn.plus(1).get(), 0);
        assert_eq!(psn.plus(3).ahead_of(psn), 3);
        assert_eq!(psn.ahead_of(psn.plus(3)), -3);
        assert_eq!(psn.plus(0x7f_ffff).ahead_of(psn), 0x7f_ffff);
        assert_eq!(psn.plus(0x80_0000).ahead_of(psn), -0x80_0000);
    }
}
