//! HERD's endpoints, set up without a lease: server and client in one process.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use herdwick_fabric::{ControlError, Device, Port, PostError};
use herdwick_herd::{
    ClientEnd, ClientSetup, ClientSide, ClientTerms, Refused, RequestPath, SetupError,
    handshake::WorkerTickets,
    hello::{Accept, Grant},
    wire::{Epoch, Window},
};
use herdwick_read::ReaderError;
use herdwick_request::Request;

use super::driver::{Lines, Reply};

/// Why the endpoints could not be created.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// HERD's objects could not be created or connected.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// Objects of the fabric alone could not be created or connected.
    #[error(transparent)]
    Objects(#[from] herdwick_fabric::SetupError),
    /// The provider refused to create a protection domain.
    #[error("setting up a domain: {0}")]
    Control(#[from] ControlError),
    /// A thread or a socket could not be created.
    #[error("starting an echo: {0}")]
    System(#[from] std::io::Error),
    /// A window that HERD does not support.
    #[error("--window is a power of two from 1 to {max}, not {0}", max = Window::MAX)]
    Window(usize),
    /// FaRM-KV's objects could not be created or connected.
    #[error("setting up FaRM-KV: {0}")]
    Farm(#[from] herdwick_farm::SetupError),
    /// FaRM-KV's table does not take the keys.
    #[error("storing the keys: {0}")]
    FarmFull(#[from] herdwick_farm::PutError),
    /// Pilaf's objects could not be created or connected.
    #[error("setting up Pilaf: {0}")]
    Pilaf(#[from] herdwick_pilaf::SetupError),
    /// Pilaf's table does not take the keys.
    #[error("storing the keys: {0}")]
    PilafFull(#[from] herdwick_pilaf::PutError),
    /// Values that are too long for Pilaf.
    #[error("Pilaf has values up to {max} bytes: lower --value-size", max = herdwick_pilaf::layout::VALUE_BYTES_MAX)]
    PilafValue,
    /// The objects of HERD as in the paper could not be created or connected.
    #[error("setting up HERD as in the paper: {0}")]
    Paper(#[from] herdwick_herd::paper::PaperSetupError),
    /// Keys or values that HERD's request format of the paper does not have.
    #[error(
        "HERD as in the paper has keys of {key} bytes and values of 1 to {value}: leave --key-size, lower \
         --value-size", key = herdwick_herd::paper::KEYHASH_BYTES,
        value = herdwick_herd::paper::VALUE_BYTES_MAX
    )]
    PaperItem,
    /// The store does not fit into its memory.
    #[error(transparent)]
    Store(#[from] herdwick_mica::StoreError),
    /// The store does not take the keys.
    #[error("storing the keys: the store refused one; ask for fewer --keys")]
    PaperFull,
    /// The store in slabs does not fit into memory.
    #[error(transparent)]
    Slab(#[from] herdwick_slab::SlabError),
    /// The store in slabs does not take the keys.
    #[error("storing the keys: the store refused one; ask for fewer --keys, or lower --value-size")]
    SlabFull,
    /// The fabric has no windows onto shared memory.
    #[error("the fabric {0} has no windows that are bound anew, which stags are; take another")]
    NoWindows(&'static str),
    /// Clover's objects could not be created or connected.
    #[error("setting up Clover: {0}")]
    Clover(#[from] herdwick_clover::SetupError),
    /// Clover's data nodes have no room for the keys, or do not answer.
    #[error("storing the keys: Clover's data nodes refused one; ask for fewer --keys")]
    CloverFull,
    /// Clover's client does not take a key.
    #[error("storing the keys: {0}")]
    CloverFill(herdwick_clover::Refused),
    /// Too few devices were opened.
    #[error("Clover has fewer devices than parties")]
    CloverNodes,
    /// Clover's metadata server lost a data node.
    #[error("a data node of Clover does not answer: {0:?}")]
    CloverNode(herdwick_fabric::Status),
    /// Keys and values that are too long for Clover.
    #[error(
        "Clover has keys up to {key} bytes, and keys and values up to {both} together: lower --key-size or \
         --value-size", key = herdwick_clover::layout::KEY_BYTES_MAX,
        both = herdwick_clover::layout::ENTRY_BYTES_MAX - herdwick_clover::layout::HEAD_BYTES
    )]
    CloverValue,
    /// READs could not be set up.
    #[error(transparent)]
    Reader(#[from] ReaderError),
    /// The first RECVs were refused.
    #[error("posting RECVs: {0}")]
    Recvs(#[from] PostError),
    /// Values that do not fit a PUT of an emulated system.
    #[error("an emulated system has values up to {max} bytes: lower --value-size")]
    EmulatedValue {
        /// Bytes of the longest value.
        max: usize,
    },
    /// Values that do not fit a reply.
    #[error("the echo has values up to {REPLY_BYTES_MAX} bytes, head included: lower --value-size")]
    Value,
}

/// Largest reply, as in the `herdwick` client.
pub(crate) const REPLY_BYTES_MAX: usize = 4096;
/// A timeout longer than any measurement.
const NEVER: Duration = Duration::from_secs(1 << 30);
/// The address of both ends on fabrics that use sockets: loopback, any free port.
pub(super) const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Time that a client waits for an answer before it repeats a request, as in the `herdwick` client.
/// A fabric that loses nothing repeats nothing, which would hide a bug.
const RETRY_AFTER: Duration = Duration::from_millis(5);

/// A connected client.
pub(crate) struct End<P> {
    port: P,
    side: ClientSide,
}

impl<P: Port> Lines for End<P> {
    #[inline]
    fn submit(&mut self, request: &Request<'_>, token: u64) -> Result<(), Refused> {
        self.side.submit(request, token).map(drop)
    }

    #[inline]
    fn flush(&mut self, now: Duration) {
        self.side.flush(&mut self.port, now);
        self.port.flush(now);
    }

    #[inline]
    fn poll(&mut self, now: Duration, sink: &mut impl FnMut(u64, Option<Reply<'_>>)) -> usize {
        self.port.progress(now);
        self.side.poll(&mut self.port, now, &mut |token, outcome| {
            sink(token, Reply::of(&outcome));
        })
    }
}

/// A client's endpoints on a provider.
pub(crate) struct BenchClient<D: Device> {
    device: D,
    endpoints: ClientSetup<D::Port>,
}

impl<D: Device> BenchClient<D> {
    /// Opens the endpoints of a client.
    pub(crate) fn new(
        device: D,
        (path, window): (RequestPath, Window),
        epoch: Epoch,
        workers: usize,
    ) -> Result<Self, EndpointError> {
        let retry_after = if device.capabilities().lossless {
            NEVER
        } else {
            RETRY_AFTER
        };
        let terms = ClientTerms {
            path,
            window,
            epoch,
            reply_bytes_max: REPLY_BYTES_MAX,
            retry_after,
            retry_after_max: retry_after.saturating_mul(40).min(NEVER),
            deadline: NEVER,
        };
        let endpoints = ClientSetup::open(&device, workers, &terms)?;
        Ok(Self { device, endpoints })
    }

    /// Connects to the domains of a grant's workers.
    pub(crate) fn accept(
        &mut self,
        grant: &Grant,
        tickets: Vec<WorkerTickets>,
    ) -> Result<Accept, EndpointError> {
        Ok(self.endpoints.accept(&self.device, grant, tickets)?)
    }

    /// Posts the RECVs and returns the connected client.
    pub(crate) fn finish(self) -> Result<End<D::Port>, EndpointError> {
        let ClientEnd { port, side, .. } = self.endpoints.finish()?;
        Ok(End { port, side })
    }
}
