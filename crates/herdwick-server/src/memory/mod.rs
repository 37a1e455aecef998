//! Memory: how the configuration is fitted into `-m` and how that is divided; the stores, lease service, front
//! ends of fabrics and parts of the replication to a secondary store that are created in it; and the memory file
//! (`-e`).

mod disk_space;
pub(crate) mod file;
pub(crate) mod fit_config;
pub(crate) mod offload;
pub(crate) mod recovery;
pub(crate) mod split;
pub(crate) mod stores;
