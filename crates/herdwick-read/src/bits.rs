//! Fields of a word in the layouts of the systems that are read.

/// The bits of a word that hold one field.
#[derive(Clone, Copy, Debug)]
pub struct Bits {
    first: u32,
    count: u32,
}

impl Bits {
    /// Makes the field of `count` bits, fewer than 64, of which `first` is the least significant.
    pub const fn new(first: u32, count: u32) -> Self {
        Self { first, count }
    }

    /// The bit after the last.
    pub const fn end(self) -> u32 {
        self.first + self.count
    }

    /// The largest value.
    pub const fn max(self) -> u64 {
        (1 << self.count) - 1
    }

    /// Returns the value in `word`.
    pub const fn of(self, word: u64) -> u64 {
        word >> self.first & self.max()
    }

    /// Returns a word with `value` here, less what does not fit, and zeros elsewhere.
    pub const fn put(self, value: u64) -> u64 {
        (value & self.max()) << self.first
    }
}
