//! What `herdwick bench` measures, as it is named on the command line.

use clap::ValueEnum;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum System {
    /// The store alone, without any fabric: reads, then writes.
    Store,
    /// HERD with an echo in place of the store: measures the fabric alone, shared memory or roce.
    Echo,
    /// FaRM-KV: GETs are READs of a hopscotch table. A server without leases in this process.
    Farm,
    /// FaRM-KV with values outside the table.
    FarmVar,
    /// Pilaf: GETs are READs of a cuckoo table, then of an extent. A server in this process.
    Pilaf,
    /// Memcached/RDMA: GETs are READs of a chunk in a slab. A server in this process, which PUTs reach in
    /// memory.
    Memrdma,
    /// Clover: GETs are READs of a chain of versions, PUTs a WRITE and a CAS. Data nodes and metadata
    /// server in this process.
    Clover,
    /// The communication of Pilaf without its store, as the HERD paper emulates it.
    PilafEmOpt,
    /// The communication of FaRM-KV without its store, as the HERD paper emulates it.
    FarmEm,
    /// The same with values outside the table.
    FarmEmVar,
    /// HERD with the request format and the pipeline of the paper; the same as herd --herd paper.
    HerdPaper,
    /// The whole server.
    Herd,
    /// The whole server, with --one-sided-reads: clients read items in its memory themselves, over shared
    /// memory. Beside herd it shows what each GET takes of both ends' CPUs.
    OneSided,
    /// The server, while a process on the host overwrites its own shared memory with random words;
    /// compared with one that only uses as much CPU.
    Hostile,
    /// The server at rest, with 16 sessions over shared memory and 100 TCP connections attached:
    /// its CPU time, and the latency of the first request after --seconds of rest.
    Idle,
    /// Hit ratio and memory per item, compared with the memcached in PATH at equal resident memory:
    /// Zipf, Zipf with a scan, and a hot set that moves, with room for a tenth and three tenths of
    /// the keys.
    Cache,
    /// The verbs alone, in any combination of --verb, --transport, --payload and the other options of
    /// verbs.
    Verbs,
}

impl System {
    /// Returns the name on the command line.
    pub(super) fn name(&self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// How HERD's requests look, and how they are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum HerdMode {
    Batch,
    Paper,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Letter {
    A,
    B,
    C,
    D,
    F,
}
