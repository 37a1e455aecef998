//! The behaviours, by subject. Each takes a fresh stage and panics if the provider does not behave
//! as `herdwick-fabric` specifies.

pub(crate) mod messages;
pub(crate) mod protection;
pub(crate) mod publication;
pub(crate) mod queues;
pub(crate) mod reads;
pub(crate) mod reports;
pub(crate) mod states;
pub(crate) mod verbs;
pub(crate) mod waking;
