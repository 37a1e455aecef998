//! Two engines in virtual time, over a link that is as good or bad as a test demands; packets that
//! `rdma_rxe` sent ([`golden`]); and the corpus of the fuzz target ([`corpus`]).

mod churn;
mod corpus;
mod floods;
mod golden;
mod gso;
mod keyed;
mod link;
mod pacing;
mod reads;
mod reliable;
mod unreliable;
