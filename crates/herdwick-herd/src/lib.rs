//! HERD: the client WRITEs requests into the server's memory, the server SENDs replies.
//!
//! The request path of the HERD paper (SIGCOMM'14) with the batching of the ATC'16 guidelines. A
//! client WRITEs a request line into its window of slots at the worker that owns the key; the
//! worker finds it by polling, executes a batch, and answers with UD SENDs. Where connections are
//! unavailable or scarce, the client SENDs the line instead ([`RequestPath`]).
//!
//! [`wire`] defines the bytes, [`hello`] the handshake. [`ServerSide`] and [`ClientSide`] are state
//! machines over a [`herdwick_fabric::Port`]: they read no clock, allocate nothing after set-up, and
//! name no provider. Start with [`ClientSide`]; [`ClientSetup`] and [`ServerEnd`] create the queue
//! pairs and memory of both ends. A client of one worker:
//!
//! ```
//! use std::time::Duration;
//! use herdwick_fabric::Device;
//! use herdwick_herd::{
//!     ClientEnd, ClientSetup, ClientTerms, Outcome, RequestPath,
//!     wire::{Epoch, Window},
//! };
//! use herdwick_request::{Get, HashKey, Op, Put, Request};
//! # use herdwick_herd::{ServerEnd, ServerTerms};
//! # use herdwick_mica::{Store, StoreConfig};
//! # use herdwick_request::{Clock, Second};
//! # let network = herdwick_conformance::seeded::SeededNetwork::new(1);
//! # let (ours, device) = (network.device(), network.device());
//! # let hash_key = HashKey([1, 2]);
//! # let config = StoreConfig { memory_bytes: 1 << 20, item_bytes_max: 4096, hash_key };
//! # let mut store = Store::new(&config).unwrap();
//! # let clock = Clock { epoch_unix: 1_700_000_000, second: Second(100) };
//! # let terms = ServerTerms {
//! #     worker: 0, workers: 1, clients_max: 1, spin: Duration::MAX, reply_bytes_max: 1040,
//! # };
//! # let mut server = ServerEnd::open(&ours, &terms).unwrap();
//! # let pd = ours.create_pd(&mut server.port).unwrap();
//!
//! let (path, window) = (RequestPath::UcWrite, Window::new(4).unwrap());
//! let terms = ClientTerms {
//!     path,
//!     window,
//!     epoch: Epoch::new(9).unwrap(),
//!     reply_bytes_max: 1040,
//!     retry_after: Duration::from_micros(50),
//!     retry_after_max: Duration::from_millis(1),
//!     deadline: Duration::from_millis(5),
//! };
//! let mut setup = ClientSetup::open(&device, 1, &terms).unwrap();
//! let pd_here = device.create_pd(&mut setup.port).unwrap();
//! # let lease = server.allocate(&ours, pd, path, window).unwrap();
//! # let grant = server.grant(&ours, &lease, Vec::new(), 0).unwrap();
//! // `grant` is the server's answer to the claim, `accept` what the client returns.
//! let accept = setup.join(&device, pd_here, &grant).unwrap();
//! # server.admit(&ours, &lease, &accept, terms.epoch, terms.reply_bytes_max).unwrap();
//! let ClientEnd { mut port, mut side, .. } = setup.finish().unwrap();
//!
//! let mut now = Duration::ZERO;
//! let mut value = None;
//! for op in [Op::Put(Put { value: b"hello", ..Put::default() }), Op::Get(Get::default())] {
//!     side.submit(&Request { hash: hash_key.hash(b"key"), key: b"key", op }, 7).unwrap();
//!     side.flush(&mut port, now);
//!     value = None;
//!     while value.is_none() {
//!         now += Duration::from_micros(1);
//! #       network.run(now);
//! #       server.side.pass(&mut server.port, clock, &mut store);
//!         side.poll(&mut port, now, &mut |_token, outcome: Outcome<'_>| match outcome {
//!             Outcome::Answered(answer) => value = Some(answer.value.to_vec()),
//!             other => panic!("{other:?}"),
//!         });
//!     }
//! }
//! assert_eq!(value.as_deref(), Some(&b"hello"[..]));
//! ```
#![forbid(unsafe_code)]

mod client;
mod counters;
mod echo;
pub mod handshake;
pub mod hello;
pub mod paper;
mod path;
mod server;
mod setup;
mod signals;

pub use herdwick_layout::wire;

pub use client::{
    Answer, ClientOptions, ClientSetupError, ClientSide, Destination, Outcome, Refused,
    WorkerChannel,
};
pub use counters::{ClientCounters, ServerCounters};
pub use echo::Echo;
pub use path::{Announce, RequestPath, UnknownPath};
pub use server::{
    AttachError, BATCH, Chunk, ClientId, LineWatch, RECV_BYTES_MIN, REPLY_BYTES_MIN, REPLY_QPS_MAX,
    ServerOptions, ServerOptionsError, ServerSide, UdQueue, WriteNotify,
};
pub use setup::{
    Admitted, ClientEnd, ClientSetup, ClientTerms, LeaseResources, MachineError, RECV_SLACK,
    ServerEnd, ServerTerms, SetupError,
};
pub use signals::SEND_DEPTH_MIN;
