//! FaRM-KV: its table, its machines over the seeded fabric, and the layouts that docs/farm.md draws.

mod guards;
mod instants;
mod layout_doc;
mod machines;
mod table;
