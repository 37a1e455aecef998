//! What each provider needs of this host: trials in this process, which change nothing.

pub(crate) mod roce;
pub(crate) mod shm;
pub(crate) mod verbs;
