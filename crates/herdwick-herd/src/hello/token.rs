//! The secret that opens a lease.

/// A secret that opens one lease, once: 128 bits that its server alone can make.
#[derive(Clone, Copy)]
pub struct Token(pub [u8; 16]);

// By hand: a derived comparison would stop at the first difference.
impl PartialEq for Token {
    /// Compares in constant time: a peer may guess as often as it likes.
    fn eq(&self, other: &Self) -> bool {
        self.0
            .iter()
            .zip(other.0)
            .fold(0, |diff, (a, b)| diff | (a ^ b))
            == 0
    }
}

impl Eq for Token {}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}
