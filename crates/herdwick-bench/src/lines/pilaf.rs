//! Pilaf under the load of HERD's driver: a table at the paper's load, and a client on each other device.

use std::{hint::black_box, time::Duration};

use herdwick_fabric::{Device, Port};
use herdwick_herd::{Refused, wire::Unencodable};
use herdwick_mem::{WORD, crc64};
use herdwick_pilaf::{
    ClientEnd, ClientOptions, ServerEnd, ServerOptions,
    layout::{ENTRY_BYTES, VALUE_BYTES_MAX},
};
use herdwick_read::ReadCounters;
use herdwick_request::Request;

use super::{
    driver::{Lines, Reply},
    endpoints::EndpointError,
    get_or_put::get_or_put,
    one_sided::{HASH_KEY, OneSided, OneSidedTarget, fill},
};
use crate::{cost::ns_per_op, target::DriveError, workload::KeySpace};

/// Share of the buckets in use, in percent: the paper's.
const LOAD_PERCENT: u64 = 75;
/// Bytes of the smallest extent; the others are taken from blocks of a power of two.
const EXTENT_UNIT: usize = 64;
/// Share of the buckets in use at which the table grows, in percent, and how often as large it may be.
const GROWS_AT_PERCENT: u8 = 90;
const GROWS_TO: u64 = 4;
/// Time for which a larger table waits for clients that READ the one before the last.
const LAG: Duration = Duration::from_secs(1);
/// Bytes to spare, besides half of what the keys take: new keys have extents too, and a PUT takes the new
/// value's before it gives the old one's back.
const EXTENTS_TO_SPARE: usize = 16 << 20;

/// Checksums between two looks at the clock.
const CHECKSUMS: u64 = 2048;

/// Returns the nanoseconds that the checksums take of a GET of `reads` READs: of an entry each, and the last one of an
/// extent of `extent` bytes. Measured apart, of bytes that are in the cache.
pub(crate) fn checksum_ns(reads: f64, extent: usize) -> f64 {
    let of = |bytes: usize| {
        let bytes = vec![7; bytes];
        ns_per_op(|clock| {
            let start_ns = clock.ns();
            for _ in 0..CHECKSUMS {
                black_box(crc64(0, black_box(&bytes)));
            }
            (clock.ns() - start_ns, CHECKSUMS)
        })
    };
    // The last word of an entry is the checksum of the others.
    (reads - 1.0).max(0.0) * of(ENTRY_BYTES - WORD) + of(extent)
}

/// Starts a server on `cpus`, on the first device, with `keys` keys in its table, and connects a
/// client with a window of `window` to it on each of the others.
///
/// # Errors
/// [`EndpointError`].
pub(crate) fn targets<D: Device<Port: 'static> + Send + 'static>(
    (host, clients): (D, Vec<D>),
    (window, keys): (usize, u64),
    space: KeySpace,
    cpus: &[usize],
) -> Result<Vec<OneSidedTarget<ClientEnd<D>>>, EndpointError> {
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
    let ends = ends.map(|client| Ok(server.join_in_process(client, &options)?.0));
    let ends = ends.collect::<Result<Vec<_>, EndpointError>>()?;
    // A server whose table grows has a timer on every fabric.
    OneSidedTarget::start(("pilaf", cpus), (ends, space), false, move |now| {
        server.port.progress(now);
        server.pass(now);
        server.port.flush(now);
    })
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
        buckets_max: GROWS_TO * buckets,
        load_percent: GROWS_AT_PERCENT,
        lag: LAG,
        extent_bytes: keys as usize * extent.max(EXTENT_UNIT) * 3 / 2 + EXTENTS_TO_SPARE,
        clients,
        hash_key: HASH_KEY,
    };
    let mut server = ServerEnd::open(host, options)?;
    fill(keys, *space, |key, value| {
        server.store_mut().put(key, value).map(drop)
    })?;
    Ok(server)
}

impl<D: Device> Lines for ClientEnd<D> {
    #[inline]
    fn submit(&mut self, request: &Request<'_>, token: u64) -> Result<(), Refused> {
        let begun = match get_or_put(request)? {
            Some(value) => self.client.put(request.key, value, token),
            None => self.client.get(request.key, token),
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
        // A client that cannot is served by SEND, which its READs for each GET show.
        let _ = self.follow_in_process();
        let Self { client, port, .. } = self;
        let answers = client.poll(port, now, &mut |token, answer| {
            sink(token, Reply::of_answer(answer));
        });
        // A lookup that has a next step goes on at once.
        self.flush(now);
        answers
    }
}

impl<D: Device> OneSided for ClientEnd<D> {
    fn read_counters(&self) -> &ReadCounters {
        self.client.read_counters()
    }

    fn failure(&mut self) -> Option<DriveError> {
        self.client.failed().map(|_| DriveError::Closed)
    }
}
