//! Memory: how `-m` is divided; the stores, lease service and HERD front ends that are created in it; and
//! the memory file (`-e`).

mod disk_space;
pub(crate) mod file;
pub(crate) mod reduce;
pub(crate) mod restart;
pub(crate) mod split;
