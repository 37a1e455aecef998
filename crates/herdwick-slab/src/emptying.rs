//! How far the emptying of a slab has come.

/// A slab that is being emptied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Emptying {
    pub(crate) slab: u32,
    /// Chunks that were looked at.
    pub(crate) done: usize,
}
