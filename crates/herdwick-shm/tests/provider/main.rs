//! The provider as it is used: between two ports of one process, between processes, against peers
//! that die, and against hostile peers.

mod across;
mod conformance;
mod hostile;
mod kills;
mod pair;
mod party;
mod process;
mod schedules;
mod seals;
mod shared;
mod wire_doc;
