//! Two engines in virtual time, over a link that is as good or bad as a test demands.

mod churn;
mod floods;
mod gso;
mod keyed;
mod link;
mod pacing;
mod reads;
mod reliable;
mod unreliable;
