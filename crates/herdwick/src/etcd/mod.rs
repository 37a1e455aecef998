//! Members of a cluster in etcd: a server registers itself under a lease, and a client follows who is
//! registered (docs/cluster.md).
//!
//! `http` is HTTP/1.1 on a socket, `api` the calls of etcd's JSON gateway, `view` decides which servers a
//! client uses, `watch` is the thread that follows etcd, `registration` that of a server.

mod api;
mod error;
mod http;
mod pause;
mod place;
mod registration;
mod view;
mod watch;

pub use error::EtcdError;
pub use place::{EtcdCluster, EtcdUsage};
pub use registration::{EtcdMember, Event, Registration};
pub(crate) use watch::Feed;

#[cfg(test)]
mod scripted;
#[cfg(test)]
mod tests;
