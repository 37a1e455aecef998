//! HERD as in the paper, with its request format and its pipeline, under the load of HERD's driver: a thread
//! of this process is the server, and every key is in its store beforehand.

use std::{sync::Arc, time::Duration};

use herdwick_fabric::{Device, Port};
use herdwick_herd::{
    Refused,
    paper::{
        KEYHASH_BYTES, Keyhash, PaperAnswer, PaperClientEnd, PaperClientSetup, PaperClientTerms,
        PaperRefused, PaperServerEnd, PaperServerTerms, PaperSetupError, VALUE_BYTES_MAX, pd_room,
    },
    wire::{ReplyStatus, Unencodable, Window},
};
use herdwick_mica::{Store, StoreConfig};
use herdwick_request::{
    Clock, Execute, HashKey, Op, Put, Reply as Stored, Request, Second, Status,
};

use super::{
    driver::{Driver, Lines, Reply},
    endpoints::EndpointError,
    get_or_put::get_or_put,
    one_sided::{HASH_KEY, fill},
};
use crate::{
    helper::Helper,
    host::Stopwatch,
    target::{DriveError, Load, Target},
    workload::KeySpace,
};

/// A constant time: nothing expires.
const CLOCK: Clock = Clock {
    epoch_unix: 0,
    second: Second(1),
};
/// A request without an answer for so long ends the run, on a fabric that may lose messages.
pub(crate) const DEADLINE: Duration = Duration::from_secs(2);
/// A deadline longer than any measurement.
const NEVER: Duration = Duration::from_secs(1 << 30);
/// The store's largest item: any of a slot of the paper's, 1 KiB, fits.
const ITEM_BYTES_MAX: usize = 4096;

/// Sizes of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PaperSizes {
    pub(crate) window: usize,
    pub(crate) keys: u64,
    pub(crate) memory_bytes: usize,
    /// Replies of fewer bytes are inlined.
    pub(crate) inline_below: usize,
    /// On a fabric that may lose messages; see [`DEADLINE`].
    pub(crate) deadline: Duration,
}

/// One client.
pub(crate) struct PaperTarget<P> {
    lines: PaperLines<P>,
    driver: Driver,
    // The last client that is dropped stops the server.
    _server: Arc<Helper>,
}

impl<P: Port + Send + 'static> PaperTarget<P> {
    /// Starts a server on `cpus`, on the first device, stores every key, and connects a client to it on
    /// each of the others.
    ///
    /// # Errors
    /// [`EndpointError`].
    pub(crate) fn endpoints<D: Device<Port = P> + Send + 'static>(
        (host, clients): (D, Vec<D>),
        sizes: PaperSizes,
        space: KeySpace,
        cpus: &[usize],
    ) -> Result<Vec<Self>, EndpointError> {
        if space.key_size() != KEYHASH_BYTES || !(1..=VALUE_BYTES_MAX).contains(&space.value_size())
        {
            return Err(EndpointError::PaperItem);
        }
        let window = Window::new(sizes.window).ok_or(EndpointError::Window(sizes.window))?;
        let terms = PaperServerTerms {
            clients_max: clients.len(),
            window,
            inline_below: sizes.inline_below,
            hash_key: HASH_KEY,
        };
        let mut server = PaperServerEnd::open(&host, &terms)?;
        let mut store = store(sizes, space)?;
        let lossless = host.capabilities().lossless;
        let terms = PaperClientTerms {
            servers: 1,
            window,
            deadline: if lossless { NEVER } else { sizes.deadline },
        };
        let ends = clients.into_iter();
        let ends = ends.map(|client| join((&host, &mut server), (client, &terms), window));
        let ends = ends.collect::<Result<Vec<_>, _>>()?;
        let watch = Stopwatch::start();
        let serve = move || {
            // The device stays open as long as its port is used.
            let _ = &host;
            let now = Duration::from_nanos(if lossless { 0 } else { watch.ns() });
            let PaperServerEnd { port, side, .. } = &mut server;
            side.round(port, (now, CLOCK), &mut store);
        };
        let server = Arc::new(Helper::start("herd-paper", cpus, serve)?);
        let target = |lines| Self {
            lines,
            driver: Driver::new(space, true),
            _server: Arc::clone(&server),
        };
        Ok(ends.into_iter().map(target).collect())
    }
}

/// Makes a store that holds every key.
fn store(sizes: PaperSizes, space: KeySpace) -> Result<Store, EndpointError> {
    let mut store = Store::new(&StoreConfig {
        memory_bytes: sizes.memory_bytes,
        item_bytes_max: ITEM_BYTES_MAX,
        hash_key: HASH_KEY,
    })?;
    fill(sizes.keys, space, |key, value| {
        let put = Put {
            value,
            ..Put::default()
        };
        let request = Request {
            hash: HASH_KEY.hash(key),
            key,
            op: Op::Put(put),
        };
        let mut status = Status::Done;
        let mut sink = |_: usize, reply: &Stored<'_>| status = reply.status;
        store.execute(CLOCK, &[request], &mut sink);
        match status {
            Status::Done => Ok(()),
            _ => Err(EndpointError::PaperFull),
        }
    })?;
    Ok(store)
}

/// Connects a client: what a session's set-up does between two processes.
fn join<D: Device>(
    (host, server): (&D, &mut PaperServerEnd<D::Port>),
    (client, terms): (D, &PaperClientTerms),
    window: Window,
) -> Result<PaperLines<D::Port>, EndpointError> {
    let pd = host.create_pd_for(&mut server.port, &pd_room(window))?;
    let (lease, grant) = server.grant(host, pd)?;
    let ticket = host.export_pd(&mut server.port, pd)?;
    let mut setup = PaperClientSetup::open(&client, terms)?;
    let here = client.import_pd(&mut setup.port, ticket);
    let here = here.map_err(PaperSetupError::from)?;
    let accept = setup.join(&client, here, &grant)?;
    server.admit(host, &lease, &accept)?;
    Ok(PaperLines {
        end: setup.finish(),
        now: Duration::ZERO,
    })
}

/// A client as the driver uses it.
struct PaperLines<P> {
    end: PaperClientEnd<P>,
    now: Duration,
}

impl<P: Port> Lines for PaperLines<P> {
    #[inline]
    fn submit(&mut self, request: &Request<'_>, token: u64) -> Result<(), Refused> {
        let PaperClientEnd { port, side } = &mut self.end;
        let value = get_or_put(request)?;
        let keyhash = <[u8; KEYHASH_BYTES]>::try_from(request.key).ok();
        let keyhash = keyhash.and_then(Keyhash::new);
        let keyhash = keyhash.ok_or(Refused::Unencodable(Unencodable::TooLarge))?;
        let begun = side.submit(port, (0, keyhash), value, (token, self.now));
        begun.map_err(|error| match error {
            PaperRefused::Length(_) => Refused::Unencodable(Unencodable::TooLarge),
            // An ended client takes nothing more; `drive` says why.
            PaperRefused::Full | PaperRefused::Server(_) | PaperRefused::Ended(_) => Refused::Full,
        })
    }

    #[inline]
    fn flush(&mut self, now: Duration) {
        self.end.port.flush(now);
    }

    #[inline]
    fn poll(&mut self, now: Duration, sink: &mut impl FnMut(u64, Option<Reply<'_>>)) -> usize {
        self.now = now;
        let PaperClientEnd { port, side } = &mut self.end;
        port.progress(now);
        side.poll(port, now, &mut |token, answer| {
            let (status, value) = match answer {
                PaperAnswer::Value(value) => (ReplyStatus::Done, value),
                PaperAnswer::Stored => (ReplyStatus::Done, &[][..]),
                PaperAnswer::Missing => (ReplyStatus::NotFound, &[][..]),
                PaperAnswer::NotStored => (ReplyStatus::OutOfMemory, &[][..]),
                PaperAnswer::Lost => return sink(token, None),
            };
            sink(token, Some(Reply { status, value }));
        })
    }
}

impl<P: Port> Target for PaperTarget<P> {
    fn hash_key(&mut self) -> Option<HashKey> {
        Some(HASH_KEY)
    }

    fn drive(
        &mut self,
        load: &mut Load<'_>,
        until_ns: u64,
        clock: &mut impl FnMut() -> u64,
    ) -> Result<(), DriveError> {
        self.driver.drive(&mut self.lines, load, until_ns, clock)?;
        match self.lines.end.side.ended() {
            Some(loss) => Err(loss.into()),
            None => Ok(()),
        }
    }

    fn in_flight(&self) -> impl Iterator<Item = u64> {
        self.driver.slots.started()
    }
}

#[cfg(test)]
mod tests {
    use herdwick_providers::{AnyPort, End, VisitAll};

    use super::*;
    use crate::{
        Config, Dist, Fabric, Mix, System, compare, counters::RunCounters, host::allowed_cpus,
        pace::Pace, workload::Trace,
    };

    const CLIENTS: usize = 2;
    const KEYS: u64 = 2_000;
    /// Requests of a client.
    const REQUESTS: usize = 2_000;
    /// Time of one client before the next, on a host whose CPUs are fewer than the threads.
    const SLICE_NS: u64 = 1_000_000;
    /// Slices until a client without its answers fails.
    const SLICES: usize = 100_000;

    /// Runs of a number of requests, however long they take.
    struct RunByCount(KeySpace);

    impl VisitAll for RunByCount {
        type Output = RunCounters;

        fn visit<D>(self, worker: D, clients: Vec<D>) -> RunCounters
        where
            D: Device<Port: Into<AnyPort> + 'static> + Send + 'static,
        {
            let sizes = PaperSizes {
                window: 16,
                keys: KEYS,
                memory_bytes: 64 << 20,
                inline_below: herdwick_herd::paper::INLINE_BELOW,
                deadline: NEVER,
            };
            let devices = (worker, clients);
            let targets = PaperTarget::endpoints(devices, sizes, self.0, &allowed_cpus()).unwrap();
            let mut counters = RunCounters::new();
            let watch = Stopwatch::start();
            let mut running: Vec<_> = targets
                .into_iter()
                .zip((1..).map(|n| self.trace(n)))
                .collect();
            for _ in 0..SLICES {
                for (target, trace) in &mut running {
                    let mut load = Load {
                        trace,
                        pace: &mut Pace::closed(),
                        counters: &mut counters,
                        version: 0,
                    };
                    let until_ns = watch.ns() + SLICE_NS;
                    target
                        .drive(&mut load, until_ns, &mut || watch.ns())
                        .unwrap();
                }
                running.retain_mut(|(target, trace)| {
                    trace.peek().is_some() || target.in_flight().count() > 0
                });
                if running.is_empty() {
                    break;
                }
            }
            counters
        }
    }

    impl RunByCount {
        fn trace(&self, seed: u64) -> Trace {
            let mut trace = Trace::new(Mix::GetShare(0.5), Dist::Uniform, KEYS, REQUESTS, seed);
            trace.piece(REQUESTS, &HASH_KEY, &self.0)
        }
    }

    /// Every request is answered, and every key found with its value, over each fabric of one host; with
    /// values that are inlined and values that are not.
    #[test]
    fn every_request_is_answered_with_the_value_of_its_key() {
        for fabric in [Fabric::BEST, Fabric::BARE] {
            for value_size in [32, 143, 144, 1000] {
                let open = |end| fabric.session().unwrap().loopback(end).unwrap();
                let clients = (0..CLIENTS).map(|_| open(End::Client)).collect();
                let space = KeySpace::new(KEYS, KEYHASH_BYTES, value_size).unwrap();
                let counters = open(End::Worker).visit_all(clients, RunByCount(space));
                let wrong = (counters.misses, counters.errors, counters.wrong_values);
                assert_eq!(wrong, (0, 0, 0), "{fabric}, {value_size}");
                let answered = counters.operations();
                assert_eq!(
                    answered,
                    (CLIENTS * REQUESTS) as u64,
                    "{fabric}, {value_size}"
                );
            }
        }
    }

    /// The benchmark runs it, and its manifest has the cut-off.
    #[test]
    fn reports_name_the_inline_cut_off() {
        let config = Config {
            systems: vec![System::HerdPaper],
            keys: KEYS,
            inline_below: 192,
            clients: 1,
            seconds: 0.05,
            runs: 1,
            ..Config::default()
        };
        let report = compare(&config, &mut |_| ()).unwrap();
        assert_eq!(report.manifest.knobs.inline_below, Some(192));
        let [outcome] = &report.results[..] else {
            panic!("{:?}", report.results)
        };
        assert_eq!((outcome.errors, outcome.wrong_values), (0, 0));
    }

    #[test]
    fn items_that_no_slot_holds_are_refused() {
        for (key_size, value_size) in [(16, 1001), (20, 32)] {
            let config = Config {
                systems: vec![System::HerdPaper],
                key_size,
                value_size,
                ..Config::default()
            };
            let error = compare(&config, &mut |_| ()).unwrap_err().to_string();
            assert!(
                error.contains("--value-size") && error.contains("--key-size"),
                "{error}"
            );
        }
    }
}
