//! The byte layouts that two processes must agree on beyond the verbs, each defined once, together
//! with the check of what the other process wrote.
//!
//! [`wire`] has HERD's request line and its reply: a client encodes them, a server decodes them.
//! [`item`] and [`bucket`] have the store's memory: a store writes it, and the next process that
//! maps its file, or a reader of a store in [`published`] memory, checks what it finds there.
//!
//! | layout | written by | checked by |
//! |---|---|---|
//! | [`wire::Line`] | [`wire::encode`] | [`wire::Line::body`], [`wire::decode`] |
//! | [`wire::ReplyHead`] | its constructors | its accessors: an unknown code is `None` |
//! | [`item::Header`], key, value; gaps | [`item::put_header`], [`item::seal`], [`item::put_gap`] | [`item::examine`] |
//! | [`bucket::Bucket`] | [`bucket::Bucket::set`] | its tag: a match is a guess, and the item decides |
//! | [`chunk::ChunkHeader`], key, value; [`chunk::StoreHead`] | [`chunk::ChunkHeader::seal`], [`chunk::bury`] | [`chunk::judge`], [`chunk_view::ChunkView`] |
//! | [`published::Word`] | [`published::Geometry::describe`], the store | [`published::View`] |
//!
//! A request through a line, from the client to the worker:
//!
//! ```
//! use herdwick_layout::wire::{Body, Epoch, Line, OVERFLOW_BYTES, Sequence, Stamp, decode, encode};
//! use herdwick_request::{Get, HashKey, Op, Request};
//!
//! let (hash, key) = (HashKey([1, 2]).hash(b"key"), b"key");
//! let request = Request { hash, key, op: Op::Get(Get::default()) };
//! let stamp = Stamp::new(Epoch::new(9).unwrap(), Sequence::new(0));
//! let (mut line, mut overflow) = (Line::default(), [0; OVERFLOW_BYTES]);
//! encode(&request, stamp, &mut line, &mut overflow)?;
//!
//! let Body::Here(body) = line.body()? else { panic!("a short request overflows") };
//! assert_eq!(decode(&line, body)?.key, b"key");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("lines and replies are little-endian words, and are used as such in memory");

pub mod bucket;
pub mod chunk;
pub mod chunk_view;
pub mod item;
pub mod published;
pub mod wire;
