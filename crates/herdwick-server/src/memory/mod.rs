//! Memory: how `-m` is divided, and the file of items (`-e`).

pub(crate) mod file;
pub(crate) mod fit;
pub(crate) mod restart;
mod room;
pub(crate) mod split;
