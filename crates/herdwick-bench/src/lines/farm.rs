//! FaRM-KV under the load of HERD's driver: a thread of this process is the server, and every key is in
//! its table beforehand.

use std::{sync::Arc, time::Duration};

use herdwick_fabric::{Device, Port};
use herdwick_farm::{
    Answer, CallError, ClientEnd, ClientTerms, NEIGHBOURHOOD, ServerEnd, ServerTerms, Terms,
    Values, WINDOW_MAX, value_lines,
};
use herdwick_herd::{
    Refused,
    wire::{ReplyStatus, Unencodable},
};
use herdwick_request::{HashKey, Op, Request};

use super::{
    driver::{Driver, Lines, Reply},
    endpoints::EndpointError,
};
use crate::{
    helper::Helper,
    host::Stopwatch,
    system::FarmValues,
    target::{DriveError, Load, Reads, Target},
    workload::KeySpace,
};

const HASH_KEY: HashKey = HashKey([1, 2]);
/// Three quarters of the slots hold an item.
const SLOTS: u64 = 4;
const ITEMS_OF_SLOTS: u64 = 3;
/// One overflow slot for so many keys: far more than that load needs.
const KEYS_PER_OVERFLOW: u64 = 16;
/// Overflow slots of the smallest table.
const OVERFLOW_MIN: u64 = 64;
/// Blocks to spare: a PUT takes the new value's before it gives the old one's back.
const BLOCKS_TO_SPARE: u64 = 64;

/// One client of FaRM-KV.
pub(crate) struct FarmTarget<P> {
    end: FarmLines<P>,
    driver: Driver,
    // The last client that is dropped stops the server.
    _server: Arc<Helper>,
}

impl<P: Port + Send + 'static> FarmTarget<P> {
    /// Starts a server on `cpus`, on the first device, stores `keys` keys, and connects a client to it
    /// on each of the others.
    ///
    /// # Errors
    /// [`EndpointError`].
    pub(crate) fn endpoints<D: Device<Port = P> + Send + 'static>(
        (worker, clients): (D, Vec<D>),
        (values, window, keys): (FarmValues, usize, u64),
        space: KeySpace,
        cpus: &[usize],
    ) -> Result<Vec<Self>, EndpointError> {
        let terms = ServerTerms {
            table: table(values, keys, space),
            hash_key: HASH_KEY,
            clients_max: clients.len(),
            window: window.min(WINDOW_MAX),
        };
        let mut server = ServerEnd::open(&worker, &terms)?;
        fill(&mut server, keys, space)?;
        let options = ClientTerms {
            lookups: window,
            outstanding: window.min(WINDOW_MAX),
            ..ClientTerms::default()
        };
        let ends = clients.iter().map(|client| {
            let (resources, grant) = server.grant(&worker)?;
            let (end, accept) = ClientEnd::open(client, &options, grant)?;
            server.admit(&worker, resources, &accept)?;
            Ok(end)
        });
        let ends = ends.collect::<Result<Vec<_>, EndpointError>>()?;
        // A lossless fabric has no timers, so the clock need not be read.
        let timed = !worker.capabilities().lossless;
        let server = Arc::new(Helper::start("farm", cpus, turns(server, timed))?);
        let target = |end| Self {
            end: FarmLines {
                end,
                now: Duration::ZERO,
            },
            driver: Driver::new(space, true),
            _server: Arc::clone(&server),
        };
        Ok(ends.into_iter().map(target).collect())
    }
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

/// Stores every key, as PUTs do.
fn fill<P: Port>(
    server: &mut ServerEnd<P>,
    keys: u64,
    space: KeySpace,
) -> Result<(), EndpointError> {
    let (mut key, mut value) = (space.key_filler(), vec![0; space.value_size()]);
    for index in 0..keys as u32 {
        space.key_digits(index, &mut key);
        space.value(index, 0, &mut value);
        server.side.table_mut().put(&key, &value)?;
    }
    Ok(())
}

/// Returns one pass of the server's loop, to be called repeatedly.
fn turns<P: Port>(mut server: ServerEnd<P>, timed: bool) -> impl FnMut() {
    let watch = Stopwatch::start();
    move || {
        let now = Duration::from_nanos(if timed { watch.ns() } else { 0 });
        server.port.progress(now);
        if server.side.poll(&mut server.port) > 0 {
            server.port.flush(now);
        }
    }
}

/// A client as the driver uses it.
struct FarmLines<P> {
    end: ClientEnd<P>,
    now: Duration,
}

impl<P: Port> Lines for FarmLines<P> {
    #[inline]
    fn submit(&mut self, request: &Request<'_>, token: u64) -> Result<(), Refused> {
        let ClientEnd { port, side } = &mut self.end;
        let begun = match request.op {
            Op::Put(put) => side.put(port, (request.key, put.value), token, self.now),
            _ => side.get(request.key, token),
        };
        begun.map_err(|error| match error {
            CallError::Length => Refused::Unencodable(Unencodable::TooLarge),
            CallError::Window | CallError::Lost(_) => Refused::Full,
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
            let (status, value) = match answer {
                Answer::Value(value) => (ReplyStatus::Done, value),
                Answer::Done => (ReplyStatus::Done, &[][..]),
                Answer::NotFound => (ReplyStatus::NotFound, &[][..]),
                Answer::Full => (ReplyStatus::OutOfMemory, &[][..]),
                Answer::Refused | Answer::Lost(_) => return sink(token, None),
            };
            sink(token, Some(Reply { status, value }));
        });
        // The READs that follow others.
        side.post(port);
        ended
    }
}

impl<P: Port> Target for FarmTarget<P> {
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
        match self.end.end.side.lost() {
            Some(_) => Err(DriveError::Closed),
            None => Ok(()),
        }
    }

    fn reads(&self) -> Option<Reads> {
        let counters = self.end.end.read_counters();
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
