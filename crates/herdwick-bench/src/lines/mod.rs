//! Load over fabrics: HERD by a session, its echo, bare datagrams, and the cost of the generator.

mod bare;
pub(crate) mod clover;
mod driver;
mod echo;
pub(crate) mod emulated;
mod endpoints;
pub(crate) mod farm;
mod get_or_put;
mod instant;
mod memory_reads;
pub(crate) mod memrdma;
mod one_sided;
mod paper;
pub(crate) mod pilaf;
mod shared_reads;
mod slots;
mod stag_table;

use herdwick::{Options, RequestPath, Session};
use herdwick_herd::wire::Window;
use herdwick_request::HashKey;

use crate::{
    config::Fabric,
    error::BenchError,
    remote::Remote,
    target::{DriveError, Load, Target},
    workload::KeySpace,
};

pub(crate) use bare::BareTarget;
use driver::Driver;
pub(crate) use echo::EchoTarget;
pub use endpoints::EndpointError;
pub(crate) use endpoints::{BenchClient, REPLY_BYTES_MAX};
pub(crate) use instant::generator_ns;
pub(crate) use memory_reads::MemoryTarget;
pub(crate) use paper::{DEADLINE, PaperSizes, PaperTarget};

/// A session over a fabric, with a lease granted by the server.
pub(crate) struct HerdTarget {
    session: Session,
    driver: Driver,
}

impl HerdTarget {
    /// Connects to `server` over `fabric`.
    ///
    /// # Errors
    /// No server answers there, or it grants no lease.
    pub(crate) fn dial(
        server: &Remote,
        (fabric, path): (Fabric, Option<RequestPath>),
        window: usize,
        space: KeySpace,
    ) -> Result<Self, BenchError> {
        let no_transport = |reason: String| BenchError::NoTransport { fabric, reason };
        Window::new(window).ok_or(EndpointError::Window(window))?;
        let options = Options {
            window,
            only: fabric.session(),
            request_path: path,
            ..server.options.clone()
        };
        let dialled = Session::dial(&server.address, &options);
        let mut session = dialled.map_err(|error| no_transport(error.to_string()))?;
        // TCP would be measured under the fabric's name.
        if let Some(reason) = session.fallback() {
            return Err(no_transport(reason.to_string()));
        }
        let granted = session.direct().map_or(0, |direct| direct.window());
        // The figures would not be those of the window asked for.
        if granted < window {
            let reason = format!(
                "it has memory for {granted} of {window} requests in flight; lower --window, or \
                 give the server more memory (-m)"
            );
            return Err(no_transport(reason));
        }
        Ok(Self {
            session,
            driver: Driver::new(space, true),
        })
    }
}

impl Target for HerdTarget {
    fn hash_key(&mut self) -> Option<HashKey> {
        Some(self.session.direct()?.hash_key())
    }

    fn drive(
        &mut self,
        load: &mut Load<'_>,
        until_ns: u64,
        clock: &mut impl FnMut() -> u64,
    ) -> Result<(), DriveError> {
        let mut direct = self.session.direct().ok_or(DriveError::Closed)?;
        if !direct.is_live() {
            return Err(DriveError::Closed);
        }
        self.driver.drive(&mut direct, load, until_ns, clock)
    }

    fn in_flight(&self) -> impl Iterator<Item = u64> {
        self.driver.slots.started()
    }
}
