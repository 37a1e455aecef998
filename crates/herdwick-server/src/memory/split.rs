//! Divides the memory limit (`-m`) between partitions and leases; opens the lease socket; creates the lease
//! service and the front ends of fabrics.

use std::{io, sync::Arc, time::Duration};

use herdwick_clover::{CLIENTS_MAX, Secret};
use herdwick_fabric::SharedMemory;
use herdwick_herd::{
    RequestPath, ServerOptions,
    hello::{Offer, OneSidedOffer},
};
use herdwick_providers::Fabric;
use herdwick_request::HashKey;

use crate::{
    clover::{self, CloverConfig, CloverFront},
    herd::{
        HerdConfig,
        fabrics::{self, OpenFabrics, REPLY_BYTES_MAX},
        lease::{HelloResponder, LeaseConfig, LeaseListener, LeaseService, Offered, WorkerEnd},
    },
    memory::offload::secondary_offer,
    runtime::{front::Front, offload::OffloadLink, parking::WakeupFd, time::ServerClock},
    settings::{
        config::{Config, Engine, OneSidedReads},
        error::{StartError, refused},
        latency::Latency,
    },
};

/// The memory for all leases together. It is subtracted from the memory for items, so that the
/// server stays within its limit.
pub(crate) struct LeaseBounds {
    clients_max: usize,
    bytes_max: usize,
    /// Bytes of each worker's large replies over all fabrics, independent of leases.
    reply_bytes: usize,
    /// Shortest time that a worker polls before it sleeps.
    spin: Duration,
    latency: Latency,
    engine: Engine,
    /// Of a secondary store.
    secondary: Option<Secret>,
    /// Bytes of an engine that has no partitions.
    engine_bytes: usize,
    readers: OneSidedReads,
}

impl LeaseBounds {
    /// A sixteenth of the memory, within these bounds. 12 MiB hold full windows for nine clients of
    /// three workers, and smaller ones for two more.
    const BYTES: std::ops::RangeInclusive<usize> = 12 << 20..=256 << 20;
    /// At most one part in so many of a small memory.
    const PART: usize = 5;

    pub(crate) fn new(config: &Config) -> Self {
        let bounds = Self::within(config, config.memory_bytes);
        // Clover, which has no partitions, has one worker.
        let left = bounds.left(config.memory_bytes, 1);
        Self {
            engine_bytes: left.saturating_sub(clover::STORE_BYTES),
            ..bounds
        }
    }

    /// Computes the bounds for `memory_bytes`.
    fn within(config: &Config, memory_bytes: usize) -> Self {
        let fronts = config.fabrics();
        if fronts == 0 {
            return Self {
                clients_max: 0,
                bytes_max: 0,
                reply_bytes: 0,
                spin: config.spin,
                latency: config.latency,
                engine: config.engine,
                secondary: config.secondary,
                engine_bytes: 0,
                readers: OneSidedReads::Off,
            };
        }
        let share = (memory_bytes / 16).clamp(*Self::BYTES.start(), *Self::BYTES.end());
        Self {
            clients_max: config.leases.clone().unwrap_or_default().clients_max,
            bytes_max: share.min(memory_bytes / Self::PART),
            reply_bytes: fronts * ServerOptions::reply_memory(REPLY_BYTES_MAX),
            spin: config.spin,
            latency: config.latency,
            engine: config.engine,
            secondary: config.secondary,
            engine_bytes: 0,
            readers: config.one_sided_reads,
        }
    }

    /// Returns what is left for items.
    fn left(&self, memory_bytes: usize, workers: usize) -> usize {
        memory_bytes.saturating_sub(self.bytes_max + self.reply_bytes * workers)
    }

    pub(crate) fn service(
        &self,
        transports: &OpenFabrics,
        wakeups: &[WakeupFd],
        socket: Option<LeaseListener>,
    ) -> Result<Option<LeaseService>, StartError> {
        let fabrics = transports.offered(socket.is_some());
        if fabrics.is_empty() && self.engine == Engine::Clover {
            return Err(StartError::Clover("it needs a fabric".to_owned()));
        }
        if fabrics.is_empty() {
            return Ok(None);
        }
        let manager = LeaseConfig {
            leases_max: self.clients_max,
            reply_bytes_max: Fabric::ALL
                .map(|fabric| reply_bytes_max(fabric, &fabrics))
                .into(),
            bytes_max: self.bytes_max,
            lease_bytes: match self.engine {
                Engine::Herd | Engine::Slab => fabrics::lease_bytes,
                Engine::Clover => clover::lease_bytes,
            },
            is_local: Fabric::is_local,
            readers: self.readers,
        };
        let service = LeaseService::open(socket, fabrics, manager, wakeups);
        service.map(Some).map_err(refused("the lease service"))
    }

    pub(crate) fn front(
        &self,
        (worker, workers): (usize, usize),
        transports: &OpenFabrics,
        (fabric, end): (Fabric, WorkerEnd),
        (hash_key, timer): (HashKey, ServerClock),
        published: &[SharedMemory],
    ) -> Result<Box<dyn Front + Send>, StartError> {
        if let (Engine::Clover, Some(device)) = (self.engine, transports.device(fabric)) {
            let config = CloverConfig {
                bytes: self.engine_bytes,
                clients_max: self.clients_max.clamp(1, CLIENTS_MAX),
                hash_key,
                secret: Secret(random_bytes()?),
                secondary: self.secondary,
                end,
            };
            let front = CloverFront::open(device, config, timer)?;
            return Ok(Box::new(front));
        }
        let config = HerdConfig {
            worker,
            workers,
            leases_max: self.clients_max,
            spin: self.spin,
            reply_bytes_max: REPLY_BYTES_MAX,
            latency: self.latency,
            // Over a network it would have to be registered with each device.
            store: published.get(worker).filter(|_| fabric.is_local()).cloned(),
            end,
        };
        let front = transports.front(fabric, config);
        front.map_err(|error| refused("what a fabric takes")(io::Error::other(error)))
    }
}

/// Opens the lease socket, if leases are configured. If they are optional and this fails, the
/// reason is added to `left_out`.
pub(crate) fn lease_socket(
    config: &mut Config,
    left_out: &mut Vec<StartError>,
) -> Result<Option<LeaseListener>, StartError> {
    let Some(leases) = &config.leases else {
        return Ok(None);
    };
    let possible = fabrics::try_local().map_err(StartError::from);
    let bound = possible.and_then(|()| {
        let bound = LeaseListener::bind(&leases.directory, leases.mode);
        bound.map_err(|source| StartError::Leases {
            directory: leases.directory.clone(),
            source,
        })
    });
    match bound {
        Err(error) if !leases.needed => {
            left_out.push(error);
            // With a memory file the partitions must have the same size whether the socket can be
            // opened or not, so the memory for leases stays set aside.
            if config.memory_file.is_none() {
                config.leases = None;
            }
            Ok(None)
        }
        bound => bound.map(Some),
    }
}

/// Creates what answers hellos.
pub(crate) fn hello(
    config: &Config,
    workers: usize,
    (hash_key, timer, secondary): (HashKey, ServerClock, Option<Arc<OffloadLink>>),
    service: Option<&mut LeaseService>,
) -> Arc<HelloResponder> {
    let offer = Offer {
        workers,
        hash_key,
        item_bytes_max: config.item_bytes_max,
        path: RequestPath::default(),
        engine: (config.engine.word(config.secondary.is_some())).map(str::to_owned),
        one_sided: one_sided_offer(config),
        secondary: secondary_offer(config),
        fabrics: Vec::new(),
    };
    let hello = HelloResponder::new(offer, config.request_path, service, timer);
    Arc::new(hello.beside(secondary))
}

/// Returns how clients find items in the memory of the stores.
fn one_sided_offer(config: &Config) -> Option<OneSidedOffer> {
    let is_on = config.one_sided_reads != OneSidedReads::Off;
    is_on.then_some(match config.engine {
        Engine::Slab => OneSidedOffer::Stags,
        Engine::Herd | Engine::Clover => OneSidedOffer::Reads,
    })
}

/// Returns the largest reply over `fabric`; a datagram of the fabric may hold less than
/// [`REPLY_BYTES_MAX`].
fn reply_bytes_max(fabric: Fabric, fabrics: &[Offered]) -> u32 {
    let found = fabrics.iter().find(|offered| offered.fabric == fabric);
    found.map_or(0, |offered| {
        REPLY_BYTES_MAX.min(offered.has.datagram_bytes_max) as u32
    })
}

pub(super) fn random_bytes() -> Result<[u8; 16], StartError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| refused("random bytes")(io::Error::other(error)))?;
    Ok(bytes)
}

/// Returns the bytes of each partition for a memory of `memory_bytes`.
pub(crate) fn partition_bytes(config: &Config, workers: usize, memory_bytes: usize) -> usize {
    let left = LeaseBounds::within(config, memory_bytes).left(memory_bytes, workers);
    let offload = config.offload.as_ref();
    let offload = offload.map_or(0, |offload| offload.worker_bytes(workers));
    match config.engine {
        Engine::Herd | Engine::Slab => (left / workers).saturating_sub(offload),
        Engine::Clover => left.min(clover::STORE_BYTES),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values in README.md for `-m`.
    #[test]
    fn lease_memory_is_a_sixteenth_within_bounds() {
        let config = Config::default();
        let cases = [
            (10, 2),
            (20, 4),
            (64, 12),
            (192, 12),
            (1 << 10, 64),
            (4 << 10, 256),
            (64 << 10, 256),
        ];
        for (memory, share) in cases {
            let bounds = LeaseBounds::within(&config, memory << 20);
            assert_eq!(bounds.bytes_max, share << 20, "-m {memory}");
            assert_eq!(bounds.clients_max, 512);
        }
    }
}
