//! The behaviours, by what they look at. Each takes a fresh stage and panics where the provider
//! does not do as `herdwick-fabric` says.

pub(crate) mod messages;
pub(crate) mod protection;
pub(crate) mod publication;
pub(crate) mod queues;
pub(crate) mod states;
pub(crate) mod verbs;
pub(crate) mod waking;
