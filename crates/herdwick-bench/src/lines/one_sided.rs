//! Systems whose clients READ, and their emulations, under the load of HERD's driver: a thread of this
//! process is the server, and every key is in its table beforehand.

use std::{sync::Arc, time::Duration};

use herdwick_read::ReadCounters;
use herdwick_request::HashKey;

use super::{
    driver::{Driver, Lines},
    endpoints::EndpointError,
};
use crate::{
    helper::Helper,
    host::Stopwatch,
    target::{DriveError, Load, Reads, Target},
    workload::KeySpace,
};

/// Any hash key: the keys are not hostile.
pub(super) const HASH_KEY: HashKey = HashKey([1, 2]);

/// A client of such a system.
pub(super) trait OneSided: Lines {
    /// Whether answers carry the stored values.
    const STORED: bool = true;

    /// Returns what its READs counted.
    fn read_counters(&self) -> &ReadCounters;
    /// Returns why it answers nothing more, if so.
    fn failure(&mut self) -> Option<DriveError>;
}

/// One client, and its part of the server's thread.
pub(crate) struct OneSidedTarget<C> {
    client: C,
    driver: Driver,
    // The last client that is dropped stops the server.
    _server: Arc<Helper>,
}

impl<C> OneSidedTarget<C> {
    /// Starts the thread `name` of the server that `clients` are connected to, on `cpus`: it calls
    /// `pass` with the time, or with 0 on a fabric that loses nothing and has no timers.
    ///
    /// # Errors
    /// [`EndpointError::System`].
    pub(super) fn start(
        (name, cpus): (&str, &[usize]),
        (clients, space): (Vec<C>, KeySpace),
        lossless: bool,
        mut pass: impl FnMut(Duration) + Send + 'static,
    ) -> Result<Vec<Self>, EndpointError>
    where
        C: OneSided,
    {
        let watch = Stopwatch::start();
        let work = move || pass(Duration::from_nanos(if lossless { 0 } else { watch.ns() }));
        let server = Arc::new(Helper::start(name, cpus, work)?);
        let target = |client| Self {
            client,
            driver: Driver::new(space, C::STORED),
            _server: Arc::clone(&server),
        };
        Ok(clients.into_iter().map(target).collect())
    }
}

/// Stores the first `keys` keys by `put`.
pub(super) fn fill<E>(
    keys: u64,
    space: KeySpace,
    mut put: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let (mut key, mut value) = (space.key_filler(), vec![0; space.value_size()]);
    for index in 0..keys as u32 {
        space.key_digits(index, &mut key);
        space.value(index, 0, &mut value);
        put(&key, &value)?;
    }
    Ok(())
}

impl<C: OneSided> Target for OneSidedTarget<C> {
    fn hash_key(&mut self) -> Option<HashKey> {
        Some(HASH_KEY)
    }

    fn drive(
        &mut self,
        load: &mut Load<'_>,
        until_ns: u64,
        clock: &mut impl FnMut() -> u64,
    ) -> Result<(), DriveError> {
        self.driver.drive(&mut self.client, load, until_ns, clock)?;
        self.client.failure().map_or(Ok(()), Err)
    }

    fn reads(&self) -> Option<Reads> {
        let counters = self.client.read_counters();
        Some(Reads {
            gets: counters.found + counters.missing,
            reads: counters.reads,
            bytes: counters.read_bytes,
        })
    }

    fn in_flight(&self) -> impl Iterator<Item = u64> {
        self.driver.slots.started()
    }
}
