//! The systems that a benchmark measures.

use crate::Neighbour;

/// The system that answers the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// HERD with an echo in the store's place: measures the fabric alone.
    Echo,
    /// Plain datagrams of the same sizes, echoed: the baseline of the software RNIC.
    Bare,
    /// FaRM-KV, with values in its table or out of it, without a lease.
    Farm(FarmValues),
    /// Pilaf.
    Pilaf,
    /// Memcached/RDMA: a store in slabs whose chunks clients READ.
    Memrdma,
    /// Clover, with [`Config::replicas`](crate::Config::replicas) data nodes.
    Clover,
    /// The communication of another system alone, as section 5.1 of the HERD paper has it.
    Emulated(EmulatedSystem),
    /// HERD with the request format and the pipeline of the paper.
    HerdPaper,
    /// A server.
    Herd,
    /// A server, whose memory its clients read themselves.
    OneSided,
    /// A server that also holds [`Config::idle_connections`](crate::Config::idle_connections).
    Crowded,
    /// A server whose client shares the host with this neighbour.
    Beside(Neighbour),
}

impl System {
    /// As on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Bare => "bare",
            Self::Farm(FarmValues::Inline) => "farm",
            Self::Farm(FarmValues::OutOfTable) => "farm-var",
            Self::Pilaf => "pilaf",
            Self::Memrdma => "memrdma",
            Self::Clover => "clover",
            Self::Emulated(system) => system.name(),
            Self::HerdPaper => "herd-paper",
            Self::Herd | Self::Crowded => "herd",
            Self::OneSided => "one-sided",
            Self::Beside(_) => "hostile",
        }
    }
}

/// A system whose communication is measured without its store (HERD paper, section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmulatedSystem {
    /// Pilaf-em-OPT: a GET READs 1.6 buckets of 32 bytes on average, then the value; a PUT is a SEND,
    /// answered by a SEND.
    PilafOpt,
    /// FaRM-em: a GET READs six items; a PUT is a WRITE, answered by a WRITE.
    Farm,
    /// FaRM-em-VAR: a GET READs six keys with pointers, then the value.
    FarmVar,
}

impl EmulatedSystem {
    /// As on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PilafOpt => "pilaf-em-opt",
            Self::Farm => "farm-em",
            Self::FarmVar => "farm-em-var",
        }
    }
}

/// Where FaRM-KV has its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FarmValues {
    /// In the table: a GET is one READ.
    Inline,
    /// Out of the table (VAR): a GET is two READs.
    OutOfTable,
}

impl System {
    /// Returns whether it is measured in one process, with a thread of the benchmark as its server.
    pub(crate) fn is_in_process(self) -> bool {
        matches!(
            self,
            Self::Echo
                | Self::Bare
                | Self::Farm(_)
                | Self::Pilaf
                | Self::Memrdma
                | Self::Clover
                | Self::Emulated(_)
                | Self::HerdPaper
        )
    }
}
