//! The stripped-down systems that section 5.1 of the HERD paper compares HERD with: they communicate as
//! Pilaf and FaRM-KV do, and leave out the store. A GET READs as many bytes as often as the real system's,
//! from places in a region as large as its table that the key's hash chooses; a PUT is a message with the
//! item, which a server acknowledges. All of the paper's optimizations are on.

use std::time::Duration;

use herdwick_check::Rng;
use herdwick_fabric::{CqSpec, Device, PdId, Port, Remote, SharedMemory, Sharing, Transport};
use herdwick_herd::{
    Refused,
    wire::{ReplyStatus, Unencodable},
};
use herdwick_mem::WORD;
use herdwick_read::{
    Begin, Fetch, Fetched, Judge, Outcome, ReadCounters, Reader, ReaderOptions, Step, Verdict,
};
use herdwick_request::{KeyHash, Request};

use super::{
    driver::{Lines, Reply},
    endpoints::EndpointError,
    get_or_put::get_or_put,
    one_sided::{OneSided, OneSidedTarget},
    shared_reads::share,
};
use crate::{
    messages::{Asker, Attach, EchoParty, EchoServer, Exchange, MESSAGE_WORDS_MAX, Way, connect},
    system::EmulatedSystem,
    target::DriveError,
    workload::KeySpace,
};

/// Share of the table in use, in percent: that of the real systems here.
const LOAD_PERCENT: u64 = 75;
/// Bytes of a bucket of Pilaf (5.1.1).
const PILAF_BUCKET: usize = 32;
/// Of so many GETs of Pilaf, [`SECOND_PROBES`] READ a second bucket: 1.6 probes on average (5.1.1).
const PROBES_OF: u64 = 5;
const SECOND_PROBES: u64 = 3;
/// Slots that a GET of FaRM-KV READs (5.1.2).
const NEIGHBOURHOOD: usize = 6;
/// Bytes of a pointer to a value out of FaRM-KV's table; the paper gives none.
const POINTER: usize = 8;

/// What a GET READs, and of how much memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReadLayout {
    /// Bytes from one place of the table to the next, and of a READ there.
    stride: usize,
    len: usize,
    /// Places of the table where a READ may begin.
    places: u64,
    /// Of [`PROBES_OF`] GETs, those that READ a second place.
    second: u64,
    /// Bytes of a value out of the table, and where the values begin; `None`: it is in the table.
    value: Option<(usize, u64)>,
    /// Where the value is in the last READ.
    answer: usize,
    /// Values.
    keys: u64,
}

impl ReadLayout {
    fn of(system: EmulatedSystem, keys: u64, space: &KeySpace) -> Self {
        let (key, value) = (space.key_size(), space.value_size());
        let slots = (keys * 100).div_ceil(LOAD_PERCENT);
        let (stride, neighbours, second, inline) = match system {
            EmulatedSystem::PilafOpt => (PILAF_BUCKET, 1, SECOND_PROBES, false),
            EmulatedSystem::Farm => (key + value, NEIGHBOURHOOD, 0, true),
            EmulatedSystem::FarmVar => (key + POINTER, NEIGHBOURHOOD, 0, false),
        };
        // The neighbourhood of the last slot is in the table too.
        let table = (slots + neighbours as u64) * stride as u64;
        Self {
            stride,
            len: neighbours * stride,
            places: slots,
            second,
            value: (!inline).then(|| (value, table.next_multiple_of(WORD as u64))),
            answer: value,
            keys,
        }
    }

    /// Returns the bytes of the region.
    fn bytes(&self) -> usize {
        let bytes = match self.value {
            Some((len, first)) => first + self.keys * Self::value_stride(len),
            None => self.places * self.stride as u64 + self.len as u64,
        };
        bytes as usize
    }

    /// Returns how many places of the table a GET READs after the first.
    #[inline]
    fn more_probes(&self, hash: KeyHash) -> u8 {
        // From other numbers than its places, which are drawn from the hash itself.
        u8::from(Rng::new(!hash.0).below(PROBES_OF) < self.second)
    }

    fn value_stride(len: usize) -> u64 {
        len.next_multiple_of(WORD) as u64
    }

    /// Returns the bytes of the longest READ.
    fn longest(&self) -> usize {
        self.value.map_or(0, |(len, _)| len).max(self.len)
    }
}

/// A GET on its way.
#[derive(Clone, Copy, Debug)]
struct Get {
    token: u64,
    rng: u64,
    /// READs of the table that are left after this one.
    probes: u8,
    in_table: bool,
}

/// Decides what a GET READs next; what it READs means nothing.
struct Places {
    layout: ReadLayout,
    region: Remote,
}

impl Places {
    fn probe(&self, get: &mut Get) -> Step {
        let mut rng = Rng::new(get.rng);
        let place = rng.below(self.layout.places);
        get.rng = rng.bits();
        Step::one(Fetch {
            from: self.region.offset(place * self.layout.stride as u64),
            len: self.layout.len,
        })
    }
}

impl Judge for Places {
    type Lookup = Get;

    #[inline]
    fn judge(&mut self, get: &mut Get, read: &Fetched<'_>) -> Verdict {
        if get.probes > 0 {
            get.probes -= 1;
            return Verdict::Follow(self.probe(get));
        }
        match self.layout.value {
            Some((len, first)) if get.in_table => {
                get.in_table = false;
                let place = Rng::new(get.rng).below(self.layout.keys);
                let from = self
                    .region
                    .offset(first + place * ReadLayout::value_stride(len));
                Verdict::Follow(Step::one(Fetch { from, len }))
            }
            _ => Verdict::Found(read.within(0, 0..self.layout.answer)),
        }
    }
}

/// The region, as a part of each client's connection.
struct Region {
    memory: SharedMemory,
    layout: ReadLayout,
    window: usize,
}

impl<D: Device> Attach<D> for Region {
    type Client = EmulatedGets;
    type Error = EndpointError;

    fn attach(
        &mut self,
        (server, there): (&mut EchoParty<D>, PdId),
        (client, here): (&mut EchoParty<D>, PdId),
    ) -> Result<EmulatedGets, EndpointError> {
        let options = ReaderOptions {
            lookups: self.window,
            step_bytes: self.layout.longest().next_multiple_of(WORD),
            ..ReaderOptions::default()
        };
        let reader = Reader::create(&client.device, &mut client.port, here, &options)?;
        let EchoParty { device, port, .. } = server;
        // A READ completes at the client alone, but each queue pair has a queue.
        let cq = device.create_cq(port, &CqSpec { depth: 1 })?;
        let region = share(
            (device, port, there),
            (&client.device, &mut client.port, here),
            (&self.memory, cq),
            &reader,
        )?;
        Ok(EmulatedGets {
            reader,
            places: Places {
                layout: self.layout,
                region,
            },
        })
    }
}

/// A client's GETs.
struct EmulatedGets {
    reader: Reader<Get>,
    places: Places,
}

/// One client of an emulated system.
pub(crate) struct EmulatedEnd<D: Device> {
    asker: Asker<D>,
    lookups: EmulatedGets,
    now_ns: u64,
    /// Why nothing more is answered.
    failed: Option<DriveError>,
}

/// Starts a server on `cpus`, on the first device, with a region as for `keys` keys, and connects a
/// client with a window of `window` to it on each of the others.
///
/// # Errors
/// [`EndpointError`].
pub(crate) fn targets<D: Device<Port: 'static> + Send + 'static>(
    (host, clients): (D, Vec<D>),
    (system, window, keys): (EmulatedSystem, usize, u64),
    space: KeySpace,
    cpus: &[usize],
) -> Result<Vec<OneSidedTarget<EmulatedEnd<D>>>, EndpointError> {
    let lossless = host.capabilities().lossless;
    let exchange = exchange(system, window, &space, host.capabilities().inline_bytes_max)?;
    let layout = ReadLayout::of(system, keys, &space);
    let mut region = Region {
        memory: host.allocate_shared(layout.bytes(), Sharing::ReadOnly)?,
        layout,
        window,
    };
    touch(&region.memory);
    let (server, ends) = connect(&exchange, (host, clients), &mut region)?;
    let mut server = EchoServer::new(server, None);
    server.start()?;
    let ends = ends.into_iter().map(|(channels, lookups)| {
        Ok(EmulatedEnd {
            asker: Asker::new(channels, window, lossless)?,
            lookups,
            now_ns: 0,
            failed: None,
        })
    });
    let ends = ends.collect::<Result<Vec<_>, EndpointError>>()?;
    OneSidedTarget::start((system.name(), cpus), (ends, space), lossless, move |now| {
        // A failed queue pair shows at the client, whose requests are not answered.
        let _ = server.pass(now);
    })
}

/// Returns the messages of PUTs: the item, and an acknowledgement of one word.
fn exchange(
    system: EmulatedSystem,
    window: usize,
    space: &KeySpace,
    inline_max: usize,
) -> Result<Exchange, EndpointError> {
    let words = (space.key_size() + space.value_size()).div_ceil(WORD);
    if words > MESSAGE_WORDS_MAX {
        let max = MESSAGE_WORDS_MAX * WORD - space.key_size();
        return Err(EndpointError::EmulatedValue { max });
    }
    let way = match system {
        EmulatedSystem::PilafOpt => Way::Send(Transport::Uc),
        EmulatedSystem::Farm | EmulatedSystem::FarmVar => Way::Write(Transport::Uc),
    };
    Ok(Exchange {
        ways: [way; 2],
        words: [words, 1],
        window,
        signaled: window,
        inline: words * WORD <= inline_max,
    })
}

/// Writes each page: pages that were never written are all the same one.
fn touch(memory: &SharedMemory) {
    const PAGE: usize = 4096;
    let span = memory.span();
    for offset in (0..span.len()).step_by(PAGE) {
        span.write_bytes(offset, &[1]);
    }
}

impl<D: Device> Lines for EmulatedEnd<D> {
    #[inline]
    fn submit(&mut self, request: &Request<'_>, token: u64) -> Result<(), Refused> {
        if let Some(value) = get_or_put(request)? {
            if !self.asker.has_room() {
                return Err(Refused::Full);
            }
            self.asker.ask((token, self.now_ns), |_, message| {
                write_item(message, request.key, value);
            });
            return Ok(());
        }
        let EmulatedGets { reader, places } = &mut self.lookups;
        let mut get = Get {
            token,
            rng: request.hash.0,
            probes: places.layout.more_probes(request.hash),
            in_table: true,
        };
        let first = places.probe(&mut get);
        reader.begin(get, first).map_err(|error| match error {
            Begin::TooLong(_) => Refused::Unencodable(Unencodable::TooLarge),
            Begin::Full(_) | Begin::Failed(..) => Refused::Full,
        })
    }

    #[inline]
    fn flush(&mut self, now: Duration) {
        let sent = self.asker.send(self.now_ns);
        self.lookups.reader.post(&mut self.asker.channels.port);
        self.asker.channels.port.flush(now);
        if let Err(error) = sent {
            // The first error is the cause.
            self.failed.get_or_insert_with(|| error.into());
        }
    }

    #[inline]
    fn poll(&mut self, now: Duration, sink: &mut impl FnMut(u64, Option<Reply<'_>>)) -> usize {
        self.now_ns = now.as_nanos() as u64;
        let replies = self
            .asker
            .replies(now, &mut |token, _, _| sink(token, done(&[])));
        let EmulatedGets { reader, places } = &mut self.lookups;
        let ended = reader.poll(
            &mut self.asker.channels.port,
            places,
            &mut |get, outcome| {
                sink(
                    get.token,
                    match outcome {
                        Outcome::Found(value) => done(value),
                        Outcome::Missing | Outcome::Unsure(_) | Outcome::Failed(_) => None,
                    },
                );
            },
        );
        // A lookup that has a next step goes on at once.
        self.flush(now);
        match replies {
            Ok(count) => count + ended,
            Err(status) => {
                self.failed.get_or_insert(DriveError::Verb(status));
                ended
            }
        }
    }
}

fn done(value: &[u8]) -> Option<Reply<'_>> {
    Some(Reply {
        status: ReplyStatus::Done,
        value,
    })
}

/// Writes an item into a message, the key behind the value.
fn write_item(message: &mut [u64], key: &[u8], value: &[u8]) {
    let mut bytes = value.iter().chain(key).copied();
    for word in message {
        *word = u64::from_le_bytes(std::array::from_fn(|_| bytes.next().unwrap_or_default()));
    }
}

impl<D: Device> OneSided for EmulatedEnd<D> {
    /// What an emulated system stores means nothing.
    const STORED: bool = false;

    fn read_counters(&self) -> &ReadCounters {
        self.lookups.reader.counters()
    }

    fn failure(&mut self) -> Option<DriveError> {
        let reader = self.lookups.reader.failed();
        self.failed.take().or_else(|| reader.map(DriveError::Verb))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::one_sided::HASH_KEY, *};
    use crate::{Config, Dist, Fabric, Mix, Outcome, System, compare};

    const KEYS: u64 = 10_000;
    /// GETs of a run, so that those in flight at its ends are few.
    const GETS_MIN: f64 = 1_000.0;
    /// Runs, each twice as long as the one before, until one has so many.
    const TRIES: i32 = 8;

    fn measured(system: EmulatedSystem, fabric: Fabric) -> Outcome {
        let run = |turn| {
            let seconds = herdwick_check::length(0.05, 0.2) * 2_f64.powi(turn);
            let config = Config {
                systems: vec![System::Emulated(system)],
                fabrics: vec![fabric],
                mix: Mix::GetShare(0.5),
                dist: Dist::Uniform,
                keys: KEYS,
                window: 16,
                clients: 2,
                seconds,
                runs: 1,
                ..Config::default()
            };
            let outcome = compare(&config, &mut |_| ()).unwrap().results.remove(0);
            (outcome.ops_per_s * seconds * 0.5, outcome)
        };
        let mut tries = (0..TRIES).map(run);
        let long =
            tries.find(|(gets, outcome)| *gets > GETS_MIN && outcome.reads_per_get.is_some());
        long.expect("a run with enough GETs").1
    }

    /// 1.6 buckets a GET.
    #[test]
    fn pilaf_probes_as_often_as_the_paper_says() {
        let space = KeySpace::new(KEYS, 16, 32).unwrap();
        let mean = |system| {
            let layout = ReadLayout::of(system, KEYS, &space);
            let hash = |n: u64| HASH_KEY.hash(&n.to_le_bytes());
            let more = (0..KEYS).map(|n| u64::from(layout.more_probes(hash(n))));
            let more: u64 = more.sum();
            1.0 + more as f64 / KEYS as f64
        };
        let pilaf = mean(EmulatedSystem::PilafOpt);
        assert!((1.58..1.62).contains(&pilaf), "{pilaf}");
        assert!((mean(EmulatedSystem::Farm) - 1.0).abs() < f64::EPSILON);
    }

    /// READs and bytes of a GET are those of section 5.1 for keys of 16 bytes and values of 32, but for the
    /// GETs in flight at the ends of a run; every GET and every PUT is answered.
    #[test]
    fn gets_read_what_the_paper_says() {
        let expected = [
            (EmulatedSystem::PilafOpt, 2.6, 1.6 * 32.0 + 32.0),
            (EmulatedSystem::Farm, 1.0, 288.0),
            (EmulatedSystem::FarmVar, 2.0, 6.0 * 24.0 + 32.0),
        ];
        for (system, reads, bytes) in expected {
            for fabric in [Fabric::BEST, Fabric::BARE] {
                let outcome = measured(system, fabric);
                assert_eq!(outcome.errors, 0, "{system:?}");
                let is_near = |value: Option<f64>, near: f64| {
                    value.is_some_and(|value| (value / near - 1.0).abs() < 0.1)
                };
                assert!(is_near(outcome.reads_per_get, reads), "{outcome:?}");
                assert!(is_near(outcome.read_bytes_per_get, bytes), "{outcome:?}");
            }
        }
    }

    /// The region is as large as the table, and no READ leaves it.
    #[test]
    fn reads_stay_in_a_region_as_large_as_the_table() {
        let space = KeySpace::new(KEYS, 16, 32).unwrap();
        let slots = KEYS * 4 / 3;
        for (system, least) in [
            (EmulatedSystem::PilafOpt, slots * 32 + KEYS * 32),
            (EmulatedSystem::Farm, slots * 48),
            (EmulatedSystem::FarmVar, slots * 24 + KEYS * 32),
        ] {
            let layout = ReadLayout::of(system, KEYS, &space);
            let bytes = layout.bytes() as u64;
            assert!((least..least + least / 10).contains(&bytes), "{system:?}");
            let last = (layout.places - 1) * layout.stride as u64 + layout.len as u64;
            let first = layout.value.map_or(bytes, |(_, first)| first);
            assert!(last <= first, "{system:?}");
            if let Some((len, first)) = layout.value {
                assert!(first + (KEYS - 1) * ReadLayout::value_stride(len) + len as u64 <= bytes);
            }
        }
    }
}
