//! The events of the seeded fabric, and the packets that they carry.

use herdwick_check::mix;
use herdwick_fabric::{Qpn, RecvWr, Remote, Status, Transport};
use herdwick_mem::Span;

use super::{
    completing::Completing,
    host::{Class, Inbound, Wqe},
};

/// The events.
pub(super) enum Event {
    /// A WQE of a queue pair is written to the RNIC, or a doorbell has the RNIC fetch it.
    HandOver(Qpn, Wqe),
    /// A queue pair transmits its next work request.
    Transmit(Qpn),
    /// A packet arrives.
    Arrive(Packet),
    /// The RNIC has executed a packet.
    Deliver(Packet),
    /// The completion of a send is in memory.
    Complete(Completing),
    /// The next word of a WRITE becomes visible.
    Land(Landing),
    /// The next word of a READ is loaded.
    Load(Loading),
    /// RC's retransmission timer expires.
    Timer(Qpn),
}

/// A READ with words that are loaded one by one.
pub(super) struct Loading {
    pub(super) packet: Packet,
    pub(super) region: u32,
    pub(super) span: Span,
    pub(super) offset: usize,
    pub(super) data: Vec<u8>,
    /// The ranges of `data` still to be loaded, the next one at the end.
    pub(super) words: Vec<(usize, usize)>,
    /// How likely a pause between two words is, per thousand.
    pub(super) pause_per_mille: u16,
    /// Whether there was one.
    pub(super) paused: bool,
}

#[derive(Clone)]
pub(super) struct Packet {
    pub(super) origin: usize,
    pub(super) from: Qpn,
    pub(super) to: Qpn,
    pub(super) psn: u64,
    /// Whether a bit flipped on the link.
    pub(super) corrupt: bool,
    pub(super) kind: Kind,
}

#[derive(Clone)]
pub(super) enum Kind {
    Request(Request),
    Reply(Reply),
}

#[derive(Clone)]
pub(super) struct Request {
    pub(super) verb: Verb,
    pub(super) imm: Option<u32>,
    pub(super) body: Vec<u8>,
    /// The requester has the answers to all requests before this one.
    pub(super) oldest: u64,
}

impl Request {
    /// What costs depend on.
    pub(super) fn inbound(&self, transport: Transport) -> Inbound {
        let payload = match self.verb {
            Verb::Read(_, len) => len,
            _ => self.body.len(),
        };
        let class = self.verb.class();
        Inbound {
            class,
            transport,
            payload: payload as u64,
            recv: class == Class::Send || self.imm.is_some(),
        }
    }
}

impl Verb {
    pub(super) fn class(self) -> Class {
        match self {
            Self::Send => Class::Send,
            Self::Write(_) => Class::Write,
            Self::Read(..) => Class::Read,
            Self::FetchAdd(..) | Self::CompareSwap(..) => Class::Atomic,
        }
    }
}

#[derive(Clone, Copy)]
pub(super) enum Verb {
    Send,
    Write(Remote),
    Read(Remote, usize),
    FetchAdd(Remote, u64),
    CompareSwap(Remote, u64, u64),
}

#[derive(Clone)]
pub(super) enum Reply {
    /// Executed; with the result of a READ or atomic.
    Ack(Vec<u8>),
    /// There was no RECV.
    NotReady,
    /// Refused for good.
    Refused(Status),
}

/// A WRITE with words that become visible one by one.
pub(super) struct Landing {
    pub(super) packet: Packet,
    pub(super) region: u32,
    pub(super) offset: usize,
    pub(super) span: Span,
    /// The words to come, the next one at the end: where each is stored, and its range of the body.
    pub(super) words: Vec<(usize, usize, usize)>,
    pub(super) recv: Option<RecvWr>,
}

impl Landing {
    pub(super) fn digest(&self) -> u64 {
        let next = self.words.last();
        next.map_or(0, |(offset, start, end)| {
            digest(&self.packet.body()[*start..*end]) ^ *offset as u64
        })
    }
}

impl Packet {
    /// The payload of a request.
    pub(super) fn body(&self) -> &[u8] {
        match &self.kind {
            Kind::Request(request) => &request.body,
            Kind::Reply(_) => &[],
        }
    }

    /// A hash of what it does.
    pub(super) fn digest(&self) -> u64 {
        let kind = match &self.kind {
            Kind::Request(request) => {
                let imm = request.imm.map_or(0, |imm| u64::from(imm) + 1);
                fold(request.verb.digest(), &[imm, digest(&request.body)])
            }
            Kind::Reply(Reply::Ack(data)) => fold(7, &[digest(data)]),
            Kind::Reply(Reply::NotReady) => 1,
            Kind::Reply(Reply::Refused(status)) => fold(8, &[*status as u64]),
        };
        kind ^ u64::from(self.corrupt)
    }
}

impl Verb {
    fn digest(self) -> u64 {
        let at = |at: Remote| [u64::from(at.rkey.0), at.addr];
        let [kind, rkey, addr, a, b] = match self {
            Self::Send => [2, 0, 0, 0, 0],
            Self::Write(to) => [3, at(to)[0], at(to)[1], 0, 0],
            Self::Read(from, len) => [4, at(from)[0], at(from)[1], len as u64, 0],
            Self::FetchAdd(to, add) => [5, at(to)[0], at(to)[1], add, 0],
            Self::CompareSwap(to, expected, new) => [6, at(to)[0], at(to)[1], expected, new],
        };
        fold(kind, &[rkey, addr, a, b])
    }
}

/// Adds words to a hash.
pub(super) fn fold(hash: u64, words: &[u64]) -> u64 {
    let add = |hash: u64, word: &u64| mix(hash ^ word).wrapping_add(*word);
    words.iter().fold(hash, add)
}

/// A hash of bytes, word by word.
pub(super) fn digest(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let hash = words.iter().fold(bytes.len() as u64, |hash, word| {
        mix(hash ^ u64::from_le_bytes(*word))
    });
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mix(hash ^ u64::from_le_bytes(last))
}
