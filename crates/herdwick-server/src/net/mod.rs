//! Sockets: listeners, the threads that accept, TLS, unix sockets (whose clients are not trusted),
//! datagrams, users and passwords.

pub(crate) mod auth;
pub(crate) mod listen;
pub(crate) mod stream;
pub(crate) mod tls;
pub(crate) mod udp;
pub(crate) mod unix;
