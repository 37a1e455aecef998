//! Both state machines against each other, over the seeded fabric; and the layouts that docs/wire.md
//! draws ([`wire_doc`]).

mod announced;
mod at_most_once;
mod fixture;
mod given_up;
mod handshakes;
mod histories;
mod hostile;
mod known;
mod model;
mod odd_replies;
mod order;
mod paper;
mod probe;
mod reported;
mod round_trip;
mod schedules;
mod setup;
mod touched;
mod turns;
mod ud_queue;
mod wire_doc;
