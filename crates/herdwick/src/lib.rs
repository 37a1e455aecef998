//! The Herdwick client: uses the fastest transport that client and server share, else memcached's.
//!
//! Start with [`Client`], which makes one call at a time and waits for the reply. [`Session`] is the
//! engine below it: many requests in flight, driven by polling. Folder `herd` is a session over a
//! fabric, `text` one over memcached's text protocol; `transports` names the fabrics.
//!
//! ```
//! # let server = herdwick_server::spawn(herdwick_server::Config::local()).unwrap();
//! # let address = server.address().to_string();
//! use std::time::Duration;
//! use herdwick::{Client, Put};
//!
//! let mut client = Client::connect(&address)?;
//! client.set("greeting", "hello")?;
//! client.set("session:7", Put::new("...").ttl(Duration::from_secs(60)))?;
//! assert_eq!(client.get("greeting")?.as_deref(), Some(&b"hello"[..]));
//! # Ok::<(), herdwick::Error>(())
//! ```
//!
//! [`Client::cluster`] makes a client of several servers, a [`Cluster`], which distributes keys over them
//! as other clients of memcached do.
//!
//! With the feature `etcd`, servers register in etcd, and a cluster follows them (`herdwick::etcd`).
//!
//! With the feature `aio` there is a client for tokio, `herdwick::aio::AsyncClient`, that many tasks share.
//!
//! Expected results are values (`None`, `false`, [`Cas::Changed`]); everything else is an
//! [`Error`], sorted by who is to blame. Every program that counts or appends should handle one of
//! them with care: [`Error::UnknownOutcome`].
#![forbid(unsafe_code)]

mod address;
#[cfg(feature = "aio")]
pub mod aio;
mod answer;
mod client;
mod clover;
mod cluster;
mod connection;
mod due;
mod error;
#[cfg(feature = "etcd")]
pub mod etcd;
mod fallback;
mod hello;
mod herd;
mod hkvs;
#[cfg(test)]
mod map;
mod memcached;
mod memcached_port;
mod options;
mod poll_descriptor;
mod pool;
mod request;
mod session;
mod sleep;
mod stream;
mod text;
mod tls;
mod transports;

pub use address::Address;
pub use answer::{Answer, Hit, Lost, Refusal, Ticket};
pub use client::{Cas, Client, Item};
pub use cluster::{
    Cluster, ClusterOptions, Discovery, DiscoveryError, Distribution, FailedServer, MultiGet, Node,
    OnFailure,
};
pub use connection::Connection;
pub use error::{Cause, DialError, Error, OsError, Usage};
pub use fallback::{Fallback, LeaseRefusal};
pub use herd::{Direct, OneSidedCounters};
pub use hkvs::SecondaryReads;
pub use options::{
    DialOptions, Fabric, Login, OneSidedReads, Options, ReadFrom, RequestPath, Secret, StoreId,
};
pub use poll_descriptor::PollDescriptor;
pub use pool::{Pool, Pooled};
pub use request::{Key, Mode, Op, Put, Ttl};
pub use session::Session;
pub use tls::{Tls, TlsError, TlsFiles};
