//! Pilaf under the load of HERD's driver: a thread of this process is the server, and every key is in
//! its table beforehand.

use std::{sync::Arc, time::Duration};

use herdwick_fabric::{Device, Port};
use herdwick_herd::{
    Refused,
    wire::{ReplyStatus, Unencodable},
};
use herdwick_pilaf::{
    Answer, ClientEnd, ClientOptions, ServerEnd, ServerOptions, SetupError,
    layout::VALUE_BYTES_MAX, pd_room,
};
use herdwick_request::{HashKey, Op, Request};

use super::{
    driver::{Driver, Lines, Reply},
    endpoints::EndpointError,
};
use crate::{
    helper::Helper,
    host::Stopwatch,
    target::{DriveError, Load, Reads, Target},
    workload::KeySpace,
};

const HASH_KEY: HashKey = HashKey([1, 2]);
/// Share of the buckets in use, in percent: the paper's.
const LOAD_PERCENT: u64 = 75;
/// Bytes of the smallest extent; the others are taken from blocks of a power of two.
const EXTENT_UNIT: usize = 64;
/// Bytes to spare: a PUT takes the new value's extent before it gives the old one's back.
const EXTENTS_TO_SPARE: usize = 16 << 20;

/// One client of Pilaf.
pub(crate) struct PilafTarget<D: Device> {
    end: ClientEnd<D>,
    driver: Driver,
    // The last client that is dropped stops the server.
    _server: Arc<Helper>,
}

impl<D: Device + Send + 'static> PilafTarget<D>
where
    D::Port: 'static,
{
    /// Starts a server on `cpus`, on the first device, with `keys` keys in its table, and connects a
    /// client with a window of `window` to it on each of the others.
    ///
    /// # Errors
    /// [`EndpointError`].
    pub(crate) fn endpoints(
        (host, clients): (D, Vec<D>),
        (window, keys): (usize, u64),
        space: KeySpace,
        cpus: &[usize],
    ) -> Result<Vec<Self>, EndpointError> {
        let lossless = host.capabilities().lossless;
        if space.value_size() > VALUE_BYTES_MAX {
            return Err(EndpointError::PilafValue);
        }
        let mut server = server(host, clients.len(), &space, keys)?;
        let options = ClientOptions {
            window,
            read_value_max: space.value_size(),
            ..ClientOptions::default()
        };
        let ends = clients.into_iter();
        let ends = ends.map(|client| join(&mut server, client, &options));
        let ends = ends.collect::<Result<Vec<_>, _>>()?;
        let watch = Stopwatch::start();
        let serve = move || {
            // A lossless fabric has no timers, so the clock need not be read.
            let now = if lossless { 0 } else { watch.ns() };
            server.port.progress(Duration::from_nanos(now));
            server.pass();
            server.port.flush(Duration::from_nanos(now));
        };
        let server = Arc::new(Helper::start("pilaf", cpus, serve)?);
        let target = |end| Self {
            end,
            driver: Driver::new(space, true),
            _server: Arc::clone(&server),
        };
        Ok(ends.into_iter().map(target).collect())
    }
}

/// Makes a server that holds every key.
fn server<D: Device>(
    host: D,
    clients: usize,
    space: &KeySpace,
    keys: u64,
) -> Result<ServerEnd<D>, EndpointError> {
    let extent = (space.key_size() + space.value_size()).next_power_of_two();
    let buckets = (keys * 100).div_ceil(LOAD_PERCENT);
    let options = ServerOptions {
        buckets,
        buckets_max: buckets,
        load_percent: 90,
        lag_passes: 0,
        extent_bytes: keys as usize * extent.max(EXTENT_UNIT) + EXTENTS_TO_SPARE,
        clients,
        hash_key: HASH_KEY,
    };
    let mut server = ServerEnd::open(host, options)?;
    let (mut key, mut value) = (space.key_filler(), vec![0; space.value_size()]);
    for index in 0..keys as u32 {
        space.key_digits(index, &mut key);
        space.value(index, 0, &mut value);
        server.store_mut().put(&key, &value)?;
    }
    Ok(server)
}

/// Connects a client: what a session's set-up does between two processes.
fn join<D: Device>(
    server: &mut ServerEnd<D>,
    client: D,
    options: &ClientOptions,
) -> Result<ClientEnd<D>, EndpointError> {
    let pd = server.device.create_pd_for(&mut server.port, &pd_room())?;
    let ticket = server.device.export_pd(&mut server.port, pd)?;
    let (id, grant) = server.admit(pd)?;
    let mut port = ClientEnd::open_port(&client).map_err(SetupError::from)?;
    let pd = client
        .import_pd(&mut port, ticket)
        .map_err(SetupError::from)?;
    let (end, accept) = ClientEnd::open(client, (port, pd), grant, options)?;
    server.connect(id, &accept)?;
    Ok(end)
}

impl<D: Device> Lines for ClientEnd<D> {
    #[inline]
    fn submit(&mut self, request: &Request<'_>, token: u64) -> Result<(), Refused> {
        let begun = match request.op {
            Op::Put(put) => self.client.put(request.key, put.value, token),
            _ => self.client.get(request.key, token),
        };
        begun.map_err(|error| match error {
            herdwick_pilaf::Refused::Key(_) | herdwick_pilaf::Refused::Value(_) => {
                Refused::Unencodable(Unencodable::TooLarge)
            }
            // A client that failed answers what is in flight, and nothing more.
            herdwick_pilaf::Refused::Full | herdwick_pilaf::Refused::Failed(_) => Refused::Full,
        })
    }

    #[inline]
    fn flush(&mut self, now: Duration) {
        self.client.post(&mut self.port, now);
        self.port.flush(now);
    }

    #[inline]
    fn poll(&mut self, now: Duration, sink: &mut impl FnMut(u64, Option<Reply<'_>>)) -> usize {
        self.port.progress(now);
        let Self { client, port, .. } = self;
        let answers = client.poll(port, now, &mut |token, answer| {
            let reply = |status, value| Some(Reply { status, value });
            sink(
                token,
                match answer {
                    Answer::Value(value) => reply(ReplyStatus::Done, value),
                    Answer::Done => reply(ReplyStatus::Done, &[]),
                    Answer::Missing => reply(ReplyStatus::NotFound, &[]),
                    Answer::Full => reply(ReplyStatus::OutOfMemory, &[]),
                    Answer::Refused | Answer::Failed(_) => None,
                },
            );
        });
        // A lookup that has a next step goes on at once.
        self.flush(now);
        answers
    }
}

impl<D: Device> Target for PilafTarget<D> {
    fn hash_key(&mut self) -> Option<HashKey> {
        Some(HASH_KEY)
    }

    fn drive(
        &mut self,
        load: &mut Load<'_>,
        until_ns: u64,
        clock: &mut impl FnMut() -> u64,
    ) -> Result<(), DriveError> {
        self.driver.drive(&mut self.end, load, until_ns, clock)?;
        match self.end.client.failed() {
            Some(_) => Err(DriveError::Closed),
            None => Ok(()),
        }
    }

    fn reads(&self) -> Option<Reads> {
        let counters = self.end.client.read_counters();
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
