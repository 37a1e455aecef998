//! Clover under the load of HERD's driver: data nodes, whose memory the clients read and write, and a
//! metadata server.

use std::time::Duration;

use herdwick_clover::{
    Answer, ClientEnd, ClientOptions, Hosts, NodeEnd, NodeOptions, Secret, ServerOptions,
    layout::{CLASSES, Geometry, HEAD_BYTES, KEY_BYTES_MAX, UNIT, VERSIONS_MAX, class_of_len},
};
use herdwick_fabric::{Device, Port};
use herdwick_herd::{Refused, wire::Unencodable};
use herdwick_providers::End;
use herdwick_read::ReadCounters;
use herdwick_request::Request;

use super::{
    driver::{Lines, Reply},
    endpoints::EndpointError,
    get_or_put::get_or_put,
    one_sided::{HASH_KEY, OneSided, OneSidedTarget},
};
use crate::{target::DriveError, workload::KeySpace};

/// What the data node asks for; its clients are in this process.
const SECRET: Secret = Secret(*b"herdwick bench's");
/// Entries to spare, and those of each client: in its free list, being linked, or retired. Retired entries
/// are most of them: they are reused when all clients have published a later epoch, every millisecond.
const ENTRIES_TO_SPARE: u32 = 1 << 16;
const ENTRIES_OF_CLIENT: u32 = 1 << 14;
/// Bytes of entries to spare, at most: what a host writes in 25 ms at 10 GB/s, or 25 epochs. Of the longest
/// entries fewer are needed, and [`ENTRIES_TO_SPARE`] of them would take 2 GiB.
const SPARE_BYTES: usize = 256 << 20;
/// Most PUTs in flight.
const PUTS_MAX: usize = 256;
/// How long a client waits for an entry, or an answer.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Most cursors of a client.
const CURSORS_MAX: u64 = 1 << 22;

/// Returns the ends that the devices of [`targets`] after the first are for, in order.
pub(crate) fn ends(replicas: usize, clients: usize) -> impl Iterator<Item = End> {
    // The metadata server serves clients, and is one of the data nodes.
    let hosts = std::iter::repeat_n(End::Worker, replicas);
    hosts.chain(std::iter::repeat_n(End::Client, 1 + clients))
}

/// The devices of all parties.
struct Devices<D> {
    nodes: Vec<D>,
    /// The metadata server's, for its clients, and for the data nodes.
    server: (D, D),
    clients: Vec<D>,
}

impl<D> Devices<D> {
    /// `None`: there are fewer than [`ends`] returns.
    fn new((node, others): (D, Vec<D>), replicas: usize) -> Option<Self> {
        let mut others = others.into_iter();
        let mut nodes = vec![node];
        nodes.extend(others.by_ref().take(replicas - 1));
        let server = (others.next()?, others.next()?);
        Some(Self {
            nodes,
            server,
            clients: others.collect(),
        })
    }
}

/// Starts `replicas` data nodes and a metadata server on `cpus`, stores `keys` keys, and connects a client
/// with a window of `window` on each of the other devices, which are those of [`ends`].
///
/// # Errors
/// [`EndpointError`].
pub(crate) fn targets<D: Device<Port: 'static> + Send + 'static>(
    devices: (D, Vec<D>),
    (replicas, window, keys): (usize, usize, u64),
    space: KeySpace,
    cpus: &[usize],
) -> Result<Vec<OneSidedTarget<CloverLines<D>>>, EndpointError> {
    let devices = Devices::new(devices, replicas).ok_or(EndpointError::CloverNodes)?;
    let clients = devices.clients.len();
    let geometry = geometry(&space, keys, clients)?;
    let mut hosts = hosts(devices.nodes, devices.server, geometry, clients)?;
    let options = ClientOptions {
        window,
        puts: window.min(PUTS_MAX),
        cursors: (2 * keys).min(CURSORS_MAX) as usize,
        value_max: space.value_size(),
        entry_wait: TIMEOUT,
        timeout: TIMEOUT,
        ..ClientOptions::default()
    };
    let ends = devices.clients.into_iter();
    let ends = ends.map(|client| {
        let (end, _) = hosts.join(client, &options)?;
        Ok(CloverLines {
            end,
            start: Duration::ZERO,
            now: Duration::ZERO,
        })
    });
    let mut ends = ends.collect::<Result<Vec<_>, EndpointError>>()?;
    let start = fill(&mut hosts, &mut ends, keys, space)?;
    for lines in &mut ends {
        (lines.start, lines.now) = (start, start);
    }
    // The metadata server sweeps by the clock, on a fabric that loses nothing too.
    let lossless = false;
    OneSidedTarget::start(("clover", cpus), (ends, space), lossless, move |now| {
        hosts.pass(start + now);
    })
}

/// Returns the dimensions of memory for `keys` keys.
fn geometry(space: &KeySpace, keys: u64, clients: usize) -> Result<Geometry, EndpointError> {
    let len = HEAD_BYTES + space.key_size() + space.value_size();
    let class = class_of_len(len).filter(|_| space.key_size() <= KEY_BYTES_MAX);
    let class = class.ok_or(EndpointError::CloverValue)?;
    let slots = u32::try_from(keys).map_err(|_| EndpointError::CloverFull)?;
    let mut entries = [0; CLASSES];
    let spare = ENTRIES_TO_SPARE + ENTRIES_OF_CLIENT * clients as u32;
    let spare = spare.min((SPARE_BYTES / (UNIT << class)) as u32);
    entries[class] = slots.saturating_add(spare);
    let geometry = Geometry {
        slots,
        entries,
        versions: VERSIONS_MAX,
    };
    geometry.check().map_err(|_| EndpointError::CloverFull)?;
    Ok(geometry)
}

fn hosts<D: Device>(
    devices: Vec<D>,
    server: (D, D),
    geometry: Geometry,
    clients: usize,
) -> Result<Hosts<D>, EndpointError> {
    let options = NodeOptions {
        geometry,
        // The metadata server is a client of them, too.
        clients: clients + 1,
        secret: SECRET,
    };
    let nodes = devices.into_iter();
    let nodes = nodes.map(|device| NodeEnd::open(device, options.clone()));
    let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
    let options = ServerOptions::new(clients, HASH_KEY);
    let mut hosts = Hosts::open(nodes, server, &options, SECRET)?;
    // No clock runs yet: the passes have a time of their own.
    let mut now = Duration::ZERO;
    while !hosts.server.server().is_ready() {
        if let Some(status) = hosts.server.server().failed() {
            return Err(EndpointError::CloverNode(status));
        }
        now += STEP;
        hosts.pass(now);
    }
    Ok(hosts)
}

/// Time of a pass until the keys are stored.
const STEP: Duration = Duration::from_nanos(200);

/// Stores the keys by PUTs of the first client. Returns the time at the end.
fn fill<D: Device>(
    hosts: &mut Hosts<D>,
    ends: &mut [CloverLines<D>],
    keys: u64,
    space: KeySpace,
) -> Result<Duration, EndpointError> {
    let Some(CloverLines { end, .. }) = ends.first_mut() else {
        return Ok(Duration::ZERO);
    };
    let (mut key, mut value) = (space.key_filler(), vec![0; space.value_size()]);
    let (mut begun, mut ended, mut now, mut refused) = (0, 0, Duration::ZERO, false);
    while ended < keys && !refused {
        while begun < keys {
            space.key_digits(begun as u32, &mut key);
            space.value(begun as u32, 0, &mut value);
            match end.client.put(&key, &value, begun, now) {
                Ok(()) => begun += 1,
                Err(herdwick_clover::Refused::Full) => break,
                Err(error) => return Err(EndpointError::CloverFill(error)),
            }
        }
        now += STEP;
        end.client.post(&mut end.port, now);
        end.port.flush(now);
        hosts.pass(now);
        end.port.progress(now);
        ended += end.client.poll(&mut end.port, now, &mut |_, answer| {
            refused |= answer != Answer::Done;
        }) as u64;
    }
    match refused {
        true => Err(EndpointError::CloverFull),
        false => Ok(now),
    }
}

/// A client as the driver uses it.
pub(crate) struct CloverLines<D: Device> {
    end: ClientEnd<D>,
    /// When the run begins, which has a clock of its own: the keys were stored before.
    start: Duration,
    now: Duration,
}

impl<D: Device> Lines for CloverLines<D> {
    #[inline]
    fn submit(&mut self, request: &Request<'_>, token: u64) -> Result<(), Refused> {
        let client = &mut self.end.client;
        let begun = match get_or_put(request)? {
            Some(value) => client.put(request.key, value, token, self.now),
            None => client.get(request.key, token),
        };
        begun.map_err(|error| match error {
            herdwick_clover::Refused::Key(_) | herdwick_clover::Refused::Value { .. } => {
                Refused::Unencodable(Unencodable::TooLarge)
            }
            // A client that failed answers what is in flight, and nothing more.
            _ => Refused::Full,
        })
    }

    #[inline]
    fn flush(&mut self, now: Duration) {
        self.now = self.start + now;
        self.end.client.post(&mut self.end.port, self.now);
        self.end.port.flush(self.now);
    }

    #[inline]
    fn poll(&mut self, now: Duration, sink: &mut impl FnMut(u64, Option<Reply<'_>>)) -> usize {
        let (since_start, now) = (now, self.start + now);
        let ClientEnd { client, port, .. } = &mut self.end;
        port.progress(now);
        let answers = client.poll(port, now, &mut |token, answer| {
            sink(token, Reply::of_answer(answer));
        });
        // What has a next step goes on at once.
        self.flush(since_start);
        answers
    }
}

impl<D: Device> OneSided for CloverLines<D> {
    fn read_counters(&self) -> &ReadCounters {
        self.end.client.read_counters()
    }

    fn failure(&mut self) -> Option<DriveError> {
        self.end.client.failed().map(|_| DriveError::Closed)
    }
}
