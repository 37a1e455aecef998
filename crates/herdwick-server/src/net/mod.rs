//! Sockets: listeners, byte streams (TCP, TLS, unix sockets, UDP), users and passwords. `threads/accept`
//! accepts the connections.

pub(crate) mod auth;
pub(crate) mod listeners;
pub(crate) mod stream;
pub(crate) mod tls;
pub(crate) mod udp;
pub(crate) mod unix;
