//! Windows of READs: one poll-driven machine looks keys up in the memory of a peer, for every system
//! whose clients do so by RDMA READs alone (Pilaf, FaRM-KV: section 2.3 of the HERD paper).
//!
//! A *lookup* is a chain of steps. A [`Step`] is one to four READs that are posted together. When all
//! of them have completed, the system's [`Judge`] decides on their bytes ([`Verdict`]): the answer is
//! there, or the key is not stored, or a pointer has to be followed, or the bytes were torn by a writer
//! and have to be read again. The judge owns what it needs to decide, in the lookup itself: key,
//! position, what was read before.
//!
//! [`Reader`] does the rest, once for all systems: it keeps a window of lookups, posts their READs as
//! one postlist, bounds READs and bytes on the way ([`ReaderOptions`]), bounds steps and repetitions of
//! a lookup, and counts ([`ReadCounters`]). It does not allocate after set-up, and reads no clock.
//! What a lookup cannot settle ends as [`Outcome::Unsure`]: the system asks the peer's CPU instead.
//!
//! What READs do not settle, and what changes the data, clients ask a server for by messages. The server's
//! side has its clients in a table ([`Clients`]), and both have buffers for what arrives
//! ([`RecvBuffers`]). How a request ends is an [`Answer`] in every system.
//!
//! Nothing that is read is trusted: a pointer that leads out of the peer's region fails the queue pair
//! there, one that is too long for the buffer ends its lookup here, and a chain without end is cut.
//!
//! ```
//! use std::time::Duration;
//! use herdwick_fabric::{Access, Device, Port, PortLimits, QpSpec, RegionSpec, Scope, Transport};
//! use herdwick_mem::Words;
//! use herdwick_read::{Fetched, Fetch, Judge, Outcome, Reader, ReaderOptions, Step, Verdict};
//! # use herdwick_fabric::CqSpec;
//! # let network = herdwick_conformance::seeded::SeededNetwork::new(1);
//! # let (here, there) = (network.device(), network.device());
//! # let mut port = here.open_port(&PortLimits::default()).unwrap();
//! # let pd = here.create_pd(&mut port).unwrap();
//! # let mut peer_port = there.open_port(&PortLimits::default()).unwrap();
//! # let peer_pd = there.create_pd(&mut peer_port).unwrap();
//! # let cq = there.create_cq(&mut peer_port, &CqSpec { depth: 4 }).unwrap();
//! # let peer_qp = there.create_qp(&mut peer_port, &QpSpec {
//! #     pd: peer_pd, transport: Transport::Rc, send_cq: cq, recv_cq: cq, send_depth: 2, recv_depth: 0,
//! # }).unwrap();
//! /// A table of words; 0: not stored.
//! struct Squares;
//! impl Judge for Squares {
//!     type Lookup = u64;
//!     fn judge(&mut self, _: &mut u64, read: &Fetched<'_>) -> Verdict {
//!         let empty = read.part(0).iter().all(|byte| *byte == 0);
//!         if empty { Verdict::Missing } else { Verdict::Found(read.whole(0)) }
//!     }
//! }
//!
//! // The peer's table, which holds the squares of 0 to 7.
//! let spec = RegionSpec { len: 64, access: Access::READ, scope: Scope::Pd };
//! let table = there.allocate_region(&mut peer_port, peer_pd, &spec).unwrap();
//! (0..8).for_each(|n| peer_port.region(table).unwrap().store(n as usize, n * n));
//! let from = there.remote(&peer_port, table).unwrap();
//!
//! let options = ReaderOptions { lookups: 4, step_bytes: 64, ..ReaderOptions::default() };
//! let mut reader = Reader::create(&here, &mut port, pd, &options).unwrap();
//! here.connect(&mut port, reader.qp(), &there.endpoint(&peer_port, peer_qp).unwrap()).unwrap();
//! # let end = here.endpoint(&port, reader.qp()).unwrap();
//! # there.connect(&mut peer_port, peer_qp, &end).unwrap();
//! for n in [0, 3, 5] {
//!     reader.begin(n, Step::one(Fetch { from: from.offset(8 * n), len: 8 })).unwrap();
//! }
//! let (mut answers, mut now) = (Vec::new(), Duration::ZERO);
//! while reader.in_flight() > 0 {
//!     reader.post(&mut port);
//!     now += Duration::from_micros(1);
//!     port.progress(now);
//!     reader.poll(&mut port, &mut Squares, &mut |n, outcome| answers.push((n, match outcome {
//!         Outcome::Found(value) => value[0],
//!         Outcome::Missing => 0,
//!         Outcome::Unsure(_) | Outcome::Failed(_) => unreachable!("no judge returns it, no link failed"),
//!     })));
//! }
//! assert_eq!(answers, [(0, 0), (3, 9), (5, 25)]);
//! ```
#![forbid(unsafe_code)]

mod answer;
mod bits;
mod clients;
mod counters;
mod options;
mod pace;
mod reader;
mod step;

pub use answer::Answer;
pub use bits::Bits;
pub use clients::{ClientId, Clients, RecvBuffers, drain};
pub use counters::ReadCounters;
pub use options::{LOOKUPS_MAX, OUTSTANDING_MAX, ReaderError, ReaderOptions, STEP_BYTES_MAX};
pub use reader::{Begin, Reader};
pub use step::{Doubt, Fetch, Fetched, Judge, Outcome, READS_PER_STEP, Step, Verdict};
