//! FaRM-KV under the load of HERD's driver: a server with ample overflow slots and blocks, and a client on
//! each other device.

use std::time::Duration;

use herdwick_fabric::{Device, Port};
use herdwick_farm::{
    CallError, ClientEnd, ClientTerms, NEIGHBOURHOOD, ServerEnd, ServerTerms, Terms, Values,
    WINDOW_MAX, value_lines,
};
use herdwick_herd::{Refused, wire::Unencodable};
use herdwick_read::ReadCounters;
use herdwick_request::Request;

use super::{
    driver::{Lines, Reply},
    endpoints::EndpointError,
    get_or_put::get_or_put,
    one_sided::{HASH_KEY, OneSided, OneSidedTarget, fill},
};
use crate::{system::FarmValues, target::DriveError, workload::KeySpace};

/// Three quarters of the slots hold an item.
const SLOTS: u64 = 4;
const ITEMS_OF_SLOTS: u64 = 3;
/// One overflow slot for so many keys: far more than that load needs.
const KEYS_PER_OVERFLOW: u64 = 16;
/// Overflow slots of the smallest table.
const OVERFLOW_MIN: u64 = 64;
/// Blocks to spare: a PUT takes the new value's before it gives the old one's back.
const BLOCKS_TO_SPARE: u64 = 64;

/// Starts a server on `cpus`, on the first device, stores `keys` keys, and connects a client to it
/// on each of the others.
///
/// # Errors
/// [`EndpointError`].
pub(crate) fn targets<D: Device<Port: 'static> + Send + 'static>(
    (worker, clients): (D, Vec<D>),
    (values, window, keys): (FarmValues, usize, u64),
    space: KeySpace,
    cpus: &[usize],
) -> Result<Vec<OneSidedTarget<FarmLines<D::Port>>>, EndpointError> {
    let terms = ServerTerms {
        table: table(values, keys, space),
        hash_key: HASH_KEY,
        clients_max: clients.len(),
        window: window.min(WINDOW_MAX),
    };
    let mut server = ServerEnd::open(&worker, &terms)?;
    fill(keys, space, |key, value| {
        server.side.table_mut().put(key, value).map(drop)
    })?;
    let options = ClientTerms {
        lookups: window,
        outstanding: window.min(WINDOW_MAX),
        ..ClientTerms::default()
    };
    let ends = clients.iter().map(|client| {
        let (end, _) = server.join_in_process((&worker, client), &options)?;
        let now = Duration::ZERO;
        Ok(FarmLines { end, now })
    });
    let ends = ends.collect::<Result<Vec<_>, EndpointError>>()?;
    let lossless = worker.capabilities().lossless;
    OneSidedTarget::start(("farm", cpus), (ends, space), lossless, move |now| {
        server.port.progress(now);
        if server.side.poll(&mut server.port) > 0 {
            server.port.flush(now);
        }
    })
}

/// Returns a table for `keys` keys.
fn table(values: FarmValues, keys: u64, space: KeySpace) -> Terms {
    let lines = value_lines(space.value_size()).next_power_of_two() as u64;
    Terms {
        buckets: keys.saturating_mul(SLOTS).div_ceil(ITEMS_OF_SLOTS) as usize,
        neighbourhood: NEIGHBOURHOOD,
        overflow: (keys / KEYS_PER_OVERFLOW).max(OVERFLOW_MIN) as usize,
        key_bytes_max: space.key_size(),
        value_bytes_max: space.value_size(),
        values: match values {
            FarmValues::Inline => Values::Inline,
            FarmValues::OutOfTable => Values::OutOfTable {
                lines: (keys.saturating_add(BLOCKS_TO_SPARE).saturating_mul(lines)) as usize,
            },
        },
    }
}

/// A client as the driver uses it.
pub(crate) struct FarmLines<P> {
    end: ClientEnd<P>,
    now: Duration,
}

impl<P: Port> Lines for FarmLines<P> {
    #[inline]
    fn submit(&mut self, request: &Request<'_>, token: u64) -> Result<(), Refused> {
        let ClientEnd { port, side } = &mut self.end;
        let begun = match get_or_put(request)? {
            Some(value) => side.put(port, (request.key, value), token, self.now),
            None => side.get(request.key, token),
        };
        begun.map_err(|error| match error {
            CallError::Length => Refused::Unencodable(Unencodable::TooLarge),
            CallError::Window | CallError::Failed(_) => Refused::Full,
        })
    }

    #[inline]
    fn flush(&mut self, now: Duration) {
        self.end.side.post(&mut self.end.port);
        self.end.port.flush(now);
    }

    #[inline]
    fn poll(&mut self, now: Duration, sink: &mut impl FnMut(u64, Option<Reply<'_>>)) -> usize {
        self.now = now;
        let ClientEnd { port, side } = &mut self.end;
        port.progress(now);
        let ended = side.poll(port, now, &mut |token, answer| {
            sink(token, Reply::of_answer(answer));
        });
        // The READs that follow others.
        side.post(port);
        ended
    }
}

impl<P: Port> OneSided for FarmLines<P> {
    fn read_counters(&self) -> &ReadCounters {
        self.end.read_counters()
    }

    fn failure(&mut self) -> Option<DriveError> {
        self.end.side.failed().map(|_| DriveError::Closed)
    }
}
