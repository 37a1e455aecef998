//! FaRM-KV, the store that section 2.3 of the HERD paper describes and section 5.1.2 emulates: GETs
//! are READs of a hopscotch neighbourhood, PUTs are WRITEs into a ring that the server polls.
//!
//! [`Table`] is the server's: it stores items in memory that clients may READ, and only its
//! owner changes it. [`Probe`] is the client's judge of what a READ returned. `docs/farm.md` draws
//! the memory and explains why a READ during a change is either valid or detected as torn. [`ServerSide`] and
//! [`ClientSide`] are the machines of the two ends, [`ServerEnd`] and [`ClientEnd`] their objects on a
//! port.
#![forbid(unsafe_code)]

mod client;
mod in_process;
mod layout;
mod message;
mod probe;
mod server;
mod setup;
mod table;

pub use client::{Answer, CallError, ClientSide, Failure};
pub use herdwick_read::ClientId;
pub use layout::{
    BUCKETS_MAX, DATA_WORDS, Geometry, GeometryError, LINE_FIELDS, LINE_WORDS, NEIGHBOURHOOD,
    NEIGHBOURHOOD_MAX, OVERFLOW_MAX, POINTER_FIELDS, Terms, VALUE_BYTES_MAX, VALUE_LINES_MAX,
    Values, Version, value_lines,
};
pub use message::{CONTROL_FIELDS, Operation, ReplyCode, WINDOW_MAX};
pub use probe::{Extent, Probe, Verdict, View};
pub use server::{ServerCounters, ServerSide};
pub use setup::{
    Accept, CLIENTS_MAX, ClientEnd, ClientTerms, Grant, Resources, ServerEnd, ServerTerms,
    SetupError, TermsError,
};
pub use table::{CHAIN_MAX, PutError, Table, TableCounts};
