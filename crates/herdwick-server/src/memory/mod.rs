//! Memory: how `-m` is divided, and the file of items (`-e`).

pub(crate) mod file;
pub(crate) mod fit;
mod room;
pub(crate) mod split;
