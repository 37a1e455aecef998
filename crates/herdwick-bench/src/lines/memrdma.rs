//! Memcached/RDMA under the load of HERD's driver: a store in slabs whose chunks the clients READ. Each client
//! has a table of stags. A GET with an entry READs the chunk and checks it; anything odd purges the entry, and
//! the server is asked. What the paper sends over TCP, those requests and PUTs, is handed to the server's
//! thread in memory: their cost is not the system's.

use std::{
    sync::mpsc::{self, Receiver, Sender, SyncSender, TrySendError},
    time::Duration,
};

use herdwick_fabric::{CqId, CqSpec, Device, Port, PortLimits, SharedMemory, Sharing, Windows};
use herdwick_herd::{
    Refused, SetupError,
    wire::{ReplyStatus, Unencodable},
};
use herdwick_layout::chunk::StoreHead;
use herdwick_mem::WORD;
use herdwick_read::{Begin, Outcome, ReadCounters, Reader, ReaderOptions};
use herdwick_request::{Clock, Execute, Get, KeyHash, Op, Put, Request, Second, Status};
use herdwick_slab::{Growth, SlabConfig, Store, Tagged};

use super::{
    driver::{Lines, Reply},
    endpoints::EndpointError,
    get_or_put::get_or_put,
    one_sided::{HASH_KEY, OneSided, OneSidedTarget, fill},
    shared_reads::share,
    stag_table::{Chunks, Lookup, StagTable},
};
use crate::{target::DriveError, workload::KeySpace};

/// Memory besides what the keys take: a slab of each class, and the index.
const SPARE_BYTES: usize = 96 << 20;
/// The least size that `-I` has in a server.
const ITEM_BYTES_MAX: usize = 1 << 20;
/// READs of a GET that found torn bytes, before the server is asked.
const RETRIES: u32 = 8;
/// Requests to the server that it has not taken.
const ASKED_MAX: usize = 1024;
/// Requests that a pass of the server takes.
const PASS: usize = 64;
/// The store's time: nothing expires here.
const CLOCK: Clock = Clock {
    epoch_unix: 0,
    second: Second(1),
};

/// The paper doubles the sizes of chunks.
const GROWTH: Growth = Growth {
    factor: 2.0,
    smallest: 32,
};

/// What a client asks the server.
struct SlabRequest {
    client: usize,
    token: u64,
    key: Vec<u8>,
    hash: KeyHash,
    /// The value of a PUT; `None`: a GET.
    put: Option<Vec<u8>>,
}

/// What the server answers.
struct SlabAnswer {
    token: u64,
    hash: KeyHash,
    status: ReplyStatus,
    value: Vec<u8>,
    tagged: Option<Tagged>,
}

/// The server: the store, and its end of each client's connection.
struct MemrdmaServer<D: Device> {
    port: D::Port,
    store: Store,
    asked: Receiver<SlabRequest>,
    told: Vec<Sender<SlabAnswer>>,
    // Objects of the port go with their device.
    _device: D,
}

impl<D: Device> MemrdmaServer<D> {
    fn pass(&mut self, now: Duration) {
        self.port.progress(now);
        for asked in self.asked.try_iter().take(PASS) {
            let told = tell(&mut self.store, &asked);
            // A client that is gone needs no answer.
            let _ = self.told[asked.client].send(told);
        }
        self.port.flush(now);
    }
}

fn tell(store: &mut Store, asked: &SlabRequest) -> SlabAnswer {
    let op = match &asked.put {
        Some(value) => Op::Put(Put {
            value,
            ..Put::default()
        }),
        None => Op::Get(Get::default()),
    };
    let request = Request {
        hash: asked.hash,
        key: &asked.key,
        op,
    };
    let (mut status, mut value) = (ReplyStatus::NotFound, Vec::new());
    store.execute(CLOCK, &[request], &mut |_,
                                           reply: &herdwick_request::Reply<
        '_,
    >| {
        status = match reply.status {
            Status::Done => ReplyStatus::Done,
            Status::NotFound => ReplyStatus::NotFound,
            _ => ReplyStatus::OutOfMemory,
        };
        if let (Some(item), None) = (&reply.item, &asked.put) {
            value.extend_from_slice(item.value);
        }
    });
    SlabAnswer {
        token: asked.token,
        hash: asked.hash,
        status,
        value,
        tagged: store.tagged(&request),
    }
}

/// A client.
pub(crate) struct MemrdmaEnd<D: Device> {
    port: D::Port,
    reader: Reader<Lookup>,
    chunks: Chunks,
    stags: StagTable,
    index: usize,
    server: SyncSender<SlabRequest>,
    told: Receiver<SlabAnswer>,
    /// Requests that the server did not take yet, and those that it has not answered.
    waiting: Vec<SlabRequest>,
    asked: usize,
    window: usize,
    /// Keys for the next lookups.
    keys: Vec<Vec<u8>>,
    _device: D,
}

/// Starts a server on `cpus`, on the first device, with `keys` keys in its store, and connects a
/// client with a window of `window` to it on each of the others. The clients know all stags.
///
/// # Errors
/// [`EndpointError`].
pub(crate) fn targets<D: Device<Port: 'static> + Send + 'static>(
    (host, clients): (D, Vec<D>),
    (window, keys): (usize, u64),
    space: KeySpace,
    cpus: &[usize],
) -> Result<Vec<OneSidedTarget<MemrdmaEnd<D>>>, EndpointError> {
    let lossless = host.capabilities().lossless;
    if !host.capabilities().windows {
        return Err(EndpointError::NoWindows(host.capabilities().name));
    }
    let (mut store, memory) = published(&space, keys)?;
    let (asks, asked) = mpsc::sync_channel(ASKED_MAX);
    let port = host.open_port(&PortLimits::default());
    let mut port = port.map_err(SetupError::from)?;
    let cq = host.create_cq(
        &mut port,
        &CqSpec {
            depth: clients.len(),
        },
    )?;
    let (mut ends, mut told) = (Vec::new(), Vec::new());
    for (index, client) in clients.into_iter().enumerate() {
        let (reader, client_port, chunks) =
            connect((&host, &mut port, cq), &client, (&memory, window), &space)?;
        let (tells, hears) = mpsc::channel();
        told.push(tells);
        ends.push(MemrdmaEnd {
            port: client_port,
            reader,
            chunks,
            stags: StagTable::new(keys),
            index,
            server: asks.clone(),
            told: hears,
            waiting: Vec::new(),
            asked: 0,
            window,
            keys: Vec::new(),
            _device: client,
        });
    }
    fill(keys, space, |key, _| {
        let hash = HASH_KEY.hash(key);
        let op = Op::Get(Get::default());
        let tagged = store.tagged(&Request { hash, key, op });
        ends.iter_mut().for_each(|end| end.stags.set(hash, tagged));
        Ok::<_, EndpointError>(())
    })?;
    let mut server = MemrdmaServer {
        port,
        store,
        asked,
        told,
        _device: host,
    };
    OneSidedTarget::start(("memrdma", cpus), (ends, space), lossless, move |now| {
        server.pass(now);
    })
}

/// Makes a store with all keys, in memory that clients READ.
fn published(space: &KeySpace, keys: u64) -> Result<(Store, SharedMemory), EndpointError> {
    let item = (64 + space.key_size() + space.value_size()).next_power_of_two();
    let config = SlabConfig {
        memory_bytes: keys as usize * item * 2 + SPARE_BYTES,
        item_bytes_max: ITEM_BYTES_MAX,
        hash_key: HASH_KEY,
        growth: GROWTH,
    };
    let (mut store, publication) = Store::published(&config)?;
    fill(keys, *space, |key, value| {
        let (hash, value) = (HASH_KEY.hash(key), value.to_vec());
        let told = tell(
            &mut store,
            &SlabRequest {
                client: 0,
                token: 0,
                key: key.to_vec(),
                hash,
                put: Some(value),
            },
        );
        match told.status {
            ReplyStatus::Done => Ok(()),
            _ => Err(EndpointError::SlabFull),
        }
    })?;
    let memory = publication.memory;
    let windows = Windows::new(publication.stags, publication.shift);
    let windows = windows.ok_or(EndpointError::SlabFull)?;
    let memory = SharedMemory::new(memory.words, Some(memory.fd), Sharing::ReadOnly);
    Ok((store, memory.with_windows(windows)?))
}

type Parts<D> = (Reader<Lookup>, <D as Device>::Port, Chunks);

/// Connects a client: a domain with the memory, and the queue pair of its READs.
fn connect<D: Device>(
    (host, port, cq): (&D, &mut D::Port, CqId),
    client: &D,
    (memory, window): (&SharedMemory, usize),
    space: &KeySpace,
) -> Result<Parts<D>, EndpointError> {
    let there = host.create_pd(port)?;
    let ticket = host.export_pd(port, there)?;
    let client_port = client.open_port(&PortLimits::default());
    let mut client_port = client_port.map_err(SetupError::from)?;
    let here = client.import_pd(&mut client_port, ticket);
    let here = here.map_err(SetupError::from)?;
    let item = herdwick_layout::chunk::len(&[], space.key_size() + space.value_size());
    let options = ReaderOptions {
        lookups: window,
        step_bytes: item.next_multiple_of(WORD) + StoreHead::BYTES,
        retries: RETRIES,
        ..ReaderOptions::default()
    };
    let reader = Reader::create(client, &mut client_port, here, &options)?;
    let region = share(
        (host, port, there),
        (client, &mut client_port, here),
        (memory, cq),
        &reader,
    )?;
    let chunks = Chunks {
        region,
        windows: memory.windows().ok_or(EndpointError::SlabFull)?,
    };
    Ok((reader, client_port, chunks))
}

impl<D: Device> MemrdmaEnd<D> {
    /// Hands the server what waits, as far as it takes it.
    fn ask(&mut self) {
        while let Some(asked) = self.waiting.pop() {
            match self.server.try_send(asked) {
                Ok(()) => self.asked += 1,
                Err(TrySendError::Full(asked) | TrySendError::Disconnected(asked)) => {
                    self.waiting.push(asked);
                    return;
                }
            }
        }
    }
}

impl<D: Device> Lines for MemrdmaEnd<D> {
    #[inline]
    fn submit(&mut self, request: &Request<'_>, token: u64) -> Result<(), Refused> {
        let put = get_or_put(request)?;
        let hash = request.hash;
        let tagged = match put {
            None => self.stags.get(hash),
            Some(_) => None,
        };
        let mut key = self.keys.pop().unwrap_or_default();
        key.clear();
        key.extend_from_slice(request.key);
        let Some(Tagged { stag, len }) = tagged else {
            if self.asked + self.waiting.len() >= self.window {
                self.keys.push(key);
                return Err(Refused::Full);
            }
            self.waiting.push(SlabRequest {
                client: self.index,
                token,
                key,
                hash,
                put: put.map(<[u8]>::to_vec),
            });
            return Ok(());
        };
        let first = self.chunks.step(stag, len);
        let lookup = Lookup {
            token,
            hash,
            key,
            stag,
        };
        self.reader
            .begin(lookup, first)
            .map_err(|error| match error {
                Begin::TooLong(_) => Refused::Unencodable(Unencodable::TooLarge),
                Begin::Full(lookup) | Begin::Failed(lookup, _) => {
                    self.keys.push(lookup.key);
                    Refused::Full
                }
            })
    }

    #[inline]
    fn flush(&mut self, now: Duration) {
        self.ask();
        self.reader.post(&mut self.port);
        self.port.flush(now);
    }

    #[inline]
    fn poll(&mut self, now: Duration, sink: &mut impl FnMut(u64, Option<Reply<'_>>)) -> usize {
        self.port.progress(now);
        let Self {
            reader,
            port,
            chunks,
            stags,
            waiting,
            keys,
            index,
            ..
        } = self;
        let mut unsure = 0;
        let mut answers = reader.poll(port, chunks, &mut |lookup: Lookup, outcome| match outcome {
            Outcome::Found(value) => {
                keys.push(lookup.key);
                sink(lookup.token, done(value));
            }
            Outcome::Failed(_) => sink(lookup.token, None),
            // The entry is purged, and the server asked.
            Outcome::Missing | Outcome::Unsure(_) => {
                stags.set(lookup.hash, None);
                unsure += 1;
                waiting.push(SlabRequest {
                    client: *index,
                    token: lookup.token,
                    key: lookup.key,
                    hash: lookup.hash,
                    put: None,
                });
            }
        });
        answers -= unsure;
        while let Ok(told) = self.told.try_recv() {
            self.asked -= 1;
            self.stags.set(told.hash, told.tagged);
            answers += 1;
            let (status, value) = (told.status, &told.value[..]);
            sink(told.token, Some(Reply { status, value }));
        }
        // A lookup that has a next step goes on at once.
        self.flush(now);
        answers
    }
}

fn done(value: &[u8]) -> Option<Reply<'_>> {
    Some(Reply {
        status: ReplyStatus::Done,
        value,
    })
}

impl<D: Device> OneSided for MemrdmaEnd<D> {
    fn read_counters(&self) -> &ReadCounters {
        self.reader.counters()
    }

    fn failure(&mut self) -> Option<DriveError> {
        self.reader.failed().map(DriveError::Verb)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Config, Dist, Fabric, Mix, System, compare};

    /// Every GET and PUT is answered with what was stored, which the driver checks; a GET is two READs, of the
    /// chunk and of the head.
    #[test]
    fn gets_read_the_chunk_and_the_head() {
        for fabric in [Fabric::BEST, Fabric::BARE] {
            for (value_size, share) in [(32, 1.0), (1000, 0.5), (100_000, 0.9)] {
                let config = Config {
                    systems: vec![System::Memrdma],
                    fabrics: vec![fabric],
                    mix: Mix::GetShare(share),
                    dist: Dist::Uniform,
                    keys: 100,
                    value_size,
                    window: 4,
                    clients: 2,
                    seconds: herdwick_check::length(0.1, 0.4),
                    runs: 1,
                    ..Config::default()
                };
                let outcome = compare(&config, &mut |_| ()).unwrap().results.remove(0);
                assert_eq!(outcome.errors, 0, "{fabric:?} {value_size}");
                assert!(outcome.ops_per_s > 0.0, "{fabric:?} {value_size}");
                // Where a run has few GETs, those that its ends cut off count.
                if fabric == Fabric::BEST && share == 1.0 {
                    let reads = outcome.reads_per_get.expect("there were GETs");
                    assert!((1.9..=2.1).contains(&reads), "{reads}");
                }
            }
        }
    }
}
