//! The two machines against each other, over the seeded fabric.

mod at_most_once;
mod hostile;
mod model;
mod rig;
mod round_trip;
