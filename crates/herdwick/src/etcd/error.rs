//! Why a call of etcd failed.

use std::io;

/// Why a call of etcd failed.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// It cannot be reached, or does not answer in time.
    #[error("etcd at {0}: {1}")]
    Io(String, io::Error),
    /// It refuses.
    #[error("etcd at {0} refuses: {1}")]
    Refused(String, String),
    /// What it answers is not etcd's JSON.
    #[error("etcd at {0}: the answer is not that of etcd's JSON gateway (/v3)")]
    Reply(String),
}
