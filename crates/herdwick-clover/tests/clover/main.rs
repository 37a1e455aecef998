//! Clover over the seeded fabric, shared memory and RoCE: against a model, by histories, with parties
//! that die at every step, and under hostile messages.

mod create;
mod doc;
mod fixture;
mod hostile;
mod linear;
mod model;
mod nodes;
mod slow;
mod threads;
