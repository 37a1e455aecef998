//! Two engines face to face, in virtual time, over a link that is as good or bad as a test wants.

mod churn;
mod floods;
mod keyed;
mod link;
mod pacing;
mod reads;
mod reliable;
mod trains;
mod unreliable;
