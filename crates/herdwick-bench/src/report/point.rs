//! The verb of an outcome, and how it was posted.

use serde::{Deserialize, Serialize};

/// One point of a sweep, as the report names it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VerbPoint {
    /// The verb.
    pub verb: String,
    /// The transport.
    pub transport: String,
    /// Who posts.
    pub direction: String,
    /// Whether each thread posts to every thread of the other side.
    pub all_to_all: bool,
    /// Bytes of a payload.
    pub payload: usize,
    /// Whether the payload is inlined.
    pub inline: bool,
    /// Every so many verbs, one is signaled.
    pub signaled: usize,
    /// Work requests in a post.
    pub postlist: usize,
    /// Verbs outstanding on a queue pair.
    pub window: usize,
    /// Queue pairs between a client thread and a server thread.
    pub queue_pairs: usize,
    /// Server threads.
    pub servers: usize,
    /// Bytes of the memory that one-sided verbs access.
    pub memory: usize,
    /// The optimization that was added last, of an ECHO in a design of Fig 5.
    #[serde(default)]
    pub level: String,
    /// Random memory accesses of the server for a request of an ECHO.
    #[serde(default)]
    pub accesses: usize,
    /// Whether they are prefetched.
    #[serde(default)]
    pub prefetch: bool,
    /// The share of messages that did not arrive, where arrivals are counted.
    #[serde(default)]
    pub lost: Option<f64>,
}
