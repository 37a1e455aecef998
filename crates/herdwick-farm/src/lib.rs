//! FaRM-KV, the store that section 2.3 of the HERD paper describes and section 5.1.2 emulates: GETs
//! are READs of a hopscotch neighbourhood, PUTs are WRITEs into a ring that the server polls.
//!
//! [`Table`] is the server's: it stores items in memory that clients may READ, and nobody but its
//! owner changes it. [`Probe`] is the client's judge of what a READ returned. `docs/farm.md` draws
//! the memory and says why a READ beside a change is either good or seen to be torn.
#![forbid(unsafe_code)]

mod layout;
mod probe;
mod table;

pub use layout::{
    BUCKETS_MAX, DATA_WORDS, Geometry, GeometryError, LINE_FIELDS, LINE_WORDS, NEIGHBOURHOOD,
    NEIGHBOURHOOD_MAX, OVERFLOW_MAX, POINTER_FIELDS, Terms, VALUE_BYTES_MAX, VALUE_LINES_MAX,
    Values, Version,
};
pub use probe::{Extent, Probe, Verdict, View};
pub use table::{CHAIN_MAX, PutError, Table, TableCounts};
