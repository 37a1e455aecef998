//! Memory: how `-m` is divided, what a start builds in it, and the memory file (`-e`).

pub(crate) mod file;
pub(crate) mod fit;
pub(crate) mod restart;
mod room;
pub(crate) mod split;
