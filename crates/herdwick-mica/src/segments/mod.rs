//! Where items lie: memory is cut into segments of equal size, to which items are appended. A
//! segment is free when its last item is dead; else one is chosen and cleaned.

mod book;
mod clean;
mod copies;
mod gather;
mod limit;
mod place;
mod readers;
mod recover;
mod reuse;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use book::Book;
pub(crate) use copies::{COPY_RATE, Copies, Walk};
pub(crate) use readers::Readers;
pub(crate) use table::{HEAD, Past, Segments};
