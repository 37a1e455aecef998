//! Memory: how `-m` is divided; the stores, lease service and HERD front ends that are created in it; and
//! the memory file (`-e`).

pub(crate) mod file;
pub(crate) mod fit;
pub(crate) mod restart;
mod room;
pub(crate) mod split;
