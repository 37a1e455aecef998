//! Fits a configuration into its memory (`-m`). This server starts wherever memcached starts: what
//! does not fit is reduced, first workers, then fabrics, then the largest item, so that the
//! properties a memcached client can see are kept longest. More workers than a lease can name start
//! without fabrics.

use std::fmt;

use herdwick_clover::layout::VALUE_BYTES_MAX;
use herdwick_herd::hello::WORKERS_MAX as LEASE_WORKERS_MAX;
use herdwick_mica::{StoreConfig, StoreError};
use herdwick_providers::{Fabric, Wanted};
use herdwick_request::HashKey;

use crate::{
    memory::split::partition_bytes,
    runtime::store::Store,
    settings::{
        config::{Config, Engine, OneSidedReads, Protocol},
        error::StartError,
    },
};

/// memcached's smallest `-I`. A server that cannot hold such an item does not start.
const ITEM_BYTES_MIN: usize = 1 << 10;

/// A part of the configuration that was reduced, and to what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reduced {
    /// Fewer workers: the memory is split between them, and one part would not hold the largest
    /// item.
    Workers {
        /// The configured number.
        asked: usize,
        /// The number of workers.
        started: usize,
        /// The memory, in MiB.
        memory: usize,
        /// The largest item in bytes.
        item_bytes_max: usize,
    },
    /// No fabrics: there are more workers than a lease can name.
    FabricsForWorkers {
        /// The number of workers.
        workers: usize,
    },
    /// No fabrics: the memory for leases is needed for items.
    FabricsForMemory {
        /// The memory, in MiB.
        memory: usize,
    },
    /// A smaller largest item; larger ones are refused.
    Items {
        /// The configured size in bytes.
        asked: usize,
        /// The largest item in bytes.
        taken: usize,
        /// The memory, in MiB.
        memory: usize,
    },
}

impl fmt::Display for Reduced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Workers {
                asked,
                started,
                memory,
                item_bytes_max,
            } => write!(
                f,
                "-m {memory} is too little for {asked} workers and items of up to \
                 {item_bytes_max} bytes: {started} started; give more memory (-m), fewer workers \
                 (-t), or smaller items (-I)"
            ),
            Self::FabricsForWorkers { workers } => write!(
                f,
                "fabrics ({}) are for at most {LEASE_WORKERS_MAX} workers, and there are {workers}: \
                 clients use TCP; give fewer workers (-t) to have them",
                Fabric::list(Fabric::title, ", ")
            ),
            Self::FabricsForMemory { memory } => write!(
                f,
                "-m {memory} is too little for items and for leases: no fabrics ({}); give more \
                 memory (-m) to have them",
                Fabric::list(Fabric::title, ", ")
            ),
            Self::Items {
                asked,
                taken,
                memory,
            } => write!(
                f,
                "-m {memory} holds no items of {asked} bytes (-I): those of more than {taken} \
                 bytes are refused as too large; give more memory (-m)"
            ),
        }
    }
}

/// Checks `config` and fits it into its memory, on a host with `cpus` CPUs. Returns the number of
/// workers and what was reduced.
///
/// # Errors
/// [`StartError`].
pub(crate) fn settle(
    config: &mut Config,
    cpus: usize,
) -> Result<(usize, Vec<Reduced>), StartError> {
    if config.one_sided_reads != OneSidedReads::Off
        && let Some(leases) = &mut config.leases
    {
        // Only clients with a lease can read.
        leases.needed = true;
    }
    let asked = config.settle(cpus)?;
    if config.engine == Engine::Clover {
        // memcached's port refuses every item.
        config.item_bytes_max = config.item_bytes_max.min(VALUE_BYTES_MAX);
        config.protocol = Protocol::Text;
    }
    fit(config, asked)
}

/// Fits `config`, with `asked` workers, into its memory. Returns the number of workers and what was
/// reduced.
///
/// # Errors
/// [`StartError::Memory`]: not even the smallest server fits.
fn fit(config: &mut Config, asked: usize) -> Result<(usize, Vec<Reduced>), StartError> {
    let memory = config.memory_bytes >> 20;
    let item_bytes_max = config.item_bytes_max;
    let fewer = |started| Reduced::Workers {
        asked,
        started,
        memory,
        item_bytes_max,
    };
    // The most workers that fit.
    let found = (1..=asked).rev().find(|&workers| {
        let tried = if workers > LEASE_WORKERS_MAX {
            without_fabrics(config)
        } else {
            counted(config)
        };
        lacks(&tried, workers).is_none()
    });
    let mut reduced = Vec::new();
    let workers = found.unwrap_or(1);
    if workers < asked {
        reduced.push(fewer(workers));
    }
    if workers > LEASE_WORKERS_MAX && config.leases.is_some() {
        *config = without_fabrics(config);
        reduced.push(Reduced::FabricsForWorkers { workers });
    }
    if found.is_some() {
        return Ok((workers, reduced));
    }
    if counted(config).fabrics() > without_fabrics(config).fabrics() {
        *config = without_fabrics(config);
        reduced.push(Reduced::FabricsForMemory { memory });
    }
    if lacks(config, 1).is_some() {
        config.item_bytes_max = largest_item(config)?;
        reduced.push(Reduced::Items {
            asked: item_bytes_max,
            taken: config.item_bytes_max,
            memory,
        });
    }
    Ok((1, reduced))
}

/// Returns the configuration without the fabrics that are optional.
fn without_fabrics(config: &Config) -> Config {
    let mut without = config.clone();
    without.leases = without.leases.filter(|leases| leases.needed);
    for fabric in config.fabrics.all(Wanted::IfThere) {
        without.fabrics.remove(fabric);
    }
    without
}

/// Returns the configuration with the fabrics that the server will have, as far as is known by now:
/// no memory is set aside for an optional device that the host lacks.
fn counted(config: &Config) -> Config {
    let mut counted = config.clone();
    // With a memory file the partitions must have the same size whether the device is present or
    // not.
    if config.memory_file.is_none() {
        let absent = |fabric: &Fabric| fabric.probe().is_err();
        for fabric in config.fabrics.all(Wanted::IfThere).filter(absent) {
            counted.fabrics.remove(fabric);
        }
    }
    counted
}

/// Returns the bytes that a partition of `workers` needs, if it has less.
fn lacks(config: &Config, workers: usize) -> Option<usize> {
    let bytes = partition_bytes(config, workers, config.memory_bytes);
    let is_read = config.one_sided_reads != OneSidedReads::Off;
    let for_readers = match config.engine {
        Engine::Herd if is_read => herdwick_mica::Store::readers_bytes(bytes),
        Engine::Herd | Engine::Clover | Engine::Slab => 0,
    };
    let shape = StoreConfig {
        memory_bytes: bytes.saturating_sub(for_readers),
        item_bytes_max: config.item_bytes_max,
        hash_key: HashKey([0; 2]),
    };
    let checked = match config.engine {
        Engine::Herd | Engine::Clover => herdwick_mica::Store::file_bytes(&shape).map(drop),
        Engine::Slab => Store::check_slabs(&shape, config.growth, is_read),
    };
    match checked {
        Err(StoreError::TooSmall { needed, .. }) => Some(needed),
        _ => None,
    }
}

/// Returns the largest item that a single worker's partition holds, by binary search.
fn largest_item(config: &Config) -> Result<usize, StartError> {
    let mut tried = config.clone();
    let mut fits = |item_bytes_max| {
        tried.item_bytes_max = item_bytes_max;
        lacks(&tried, 1)
    };
    if let Some(needed) = fits(ITEM_BYTES_MIN) {
        return Err(StartError::Memory {
            given: config.memory_bytes >> 20,
            // Rounded up to whole MiB, in which `-m` is given.
            needed: (needed >> 20) + 1,
        });
    }
    let (mut least, mut most) = (ITEM_BYTES_MIN, config.item_bytes_max);
    // `least` always fits, `most` never.
    while most - least > 1 {
        let middle = least + (most - least) / 2;
        match fits(middle) {
            None => least = middle,
            Some(_) => most = middle,
        }
    }
    Ok(least)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::config::Leases;

    /// Returns workers, largest item, and whether there is shared memory.
    fn fitted(memory: usize, workers: usize, item: usize) -> (usize, usize, bool) {
        let mut config = Config {
            memory_bytes: memory << 20,
            item_bytes_max: item,
            ..Config::default()
        };
        let (workers, reduced) = fit(&mut config, workers).unwrap();
        assert_eq!(lacks(&config, workers), None);
        let is_as_asked = reduced.is_empty();
        let shm = config.leases.is_some();
        assert!(!is_as_asked || (shm && config.item_bytes_max == item));
        (workers, config.item_bytes_max, shm)
    }

    #[test]
    fn small_memory_reduces_workers_then_fabrics_then_item_size() {
        const MIB: usize = 1 << 20;
        assert_eq!(fitted(64, 4, MIB), (4, MIB, true));
        assert_eq!(fitted(1024, 4, MIB), (4, MIB, true));
        let (workers, item, shm) = fitted(16, 4, MIB);
        assert!((1..4).contains(&workers) && item == MIB && shm, "{workers}");
        assert_eq!(fitted(8, 4, MIB), (1, MIB, true));
        assert_eq!(fitted(6, 4, MIB), (1, MIB, false));
        let (workers, item, shm) = fitted(1, 4, MIB);
        assert!(
            workers == 1 && (100_000..MIB).contains(&item) && !shm,
            "{item}"
        );
        assert_eq!(fitted(1 << 12, 64, MIB), (64, MIB, false));
        // Fewer workers than a lease can name, so there are leases.
        let (workers, _, shm) = fitted(128, 64, MIB);
        assert!(
            (2..=LEASE_WORKERS_MAX).contains(&workers) && shm,
            "{workers}"
        );
    }

    #[test]
    fn explicitly_enabled_fabrics_are_kept() {
        let mut config = Config {
            memory_bytes: 1 << 20,
            leases: Some(Leases {
                needed: true,
                ..Leases::default()
            }),
            ..Config::default()
        };
        let (_, reduced) = fit(&mut config, 4).unwrap();
        assert!(config.leases.is_some());
        assert_eq!(reduced.len(), 2, "{reduced:?}");
    }

    #[test]
    fn no_memory_is_refused() {
        let mut config = Config {
            memory_bytes: 0,
            ..Config::default()
        };
        let refused = fit(&mut config, 1);
        assert!(matches!(refused, Err(StartError::Memory { needed: 1, .. })));
    }
}
