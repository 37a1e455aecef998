//! Pilaf over the seeded fabric, over shared memory and over the RNIC in software: against a model, beside writers, under hostile
//! messages, and with parties that die.

mod deaths;
mod doc;
mod fixture;
mod flips;
mod hostile;
mod model;
mod probes;
mod threads;
