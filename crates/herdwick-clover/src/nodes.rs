//! The verbs that write the memory of data nodes, and READs of single words: one queue pair to each
//! node, results in buffers of this side.

use arrayvec::ArrayVec;
use herdwick_fabric::{
    Completion, CqId, Local, Payload, Port, PostError, QpId, RegionId, Remote, SendOp, SendWr,
    Status,
};
use herdwick_mem::{Span, WORD, Words};

use crate::append::Act;

/// Most data nodes: replicas of each entry.
// `Membership::members` has a bit for each.
pub const NODES_MAX: usize = 8;

/// A queue pair to a data node.
#[derive(Debug)]
pub(crate) struct NodeLink {
    pub(crate) qp: QpId,
    /// The node's memory.
    pub(crate) memory: Remote,
    /// A buffer for each operation.
    pub(crate) buffers: (RegionId, Span),
}

/// Queue pairs to all data nodes. Each operation has at most one verb on its way to each node.
#[derive(Debug)]
pub(crate) struct Nodes {
    links: Vec<NodeLink>,
    cq: CqId,
    /// Bytes of an operation's buffer: the first word is for the results of CASes.
    stride: usize,
    failed: Option<Status>,
}

/// A verb that has completed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Landed {
    pub(crate) operation: usize,
    pub(crate) node: usize,
}

impl Nodes {
    pub(crate) fn new(links: Vec<NodeLink>, cq: CqId, stride: usize) -> Self {
        Self {
            links,
            cq,
            stride,
            failed: None,
        }
    }

    /// Returns the number of nodes.
    pub(crate) fn count(&self) -> usize {
        self.links.len()
    }

    /// Returns the status with which a queue pair failed.
    pub(crate) fn failed(&self) -> Option<Status> {
        self.failed
    }

    /// Returns the completion queue of the verbs.
    pub(crate) fn cq(&self) -> CqId {
        self.cq
    }

    /// Gives the nodes up.
    pub(crate) fn give_up(&mut self, status: Status) {
        self.failed = self.failed.or(Some(status));
    }

    fn buffer(&self, node: usize, operation: usize, len: usize) -> Local {
        Local {
            region: self.links[node].buffers.0,
            offset: operation * self.stride,
            len,
        }
    }

    fn post<P: Port>(&mut self, port: &mut P, node: usize, operation: usize, op: SendOp<'_>) {
        let wr = SendWr {
            // Nodes are at most 8, and have 8 bits.
            wr_id: (operation as u64) << 8 | node as u64,
            op,
            signaled: true,
            solicited: false,
            fence: false,
        };
        match port.post_send(self.links[node].qp, &[wr]) {
            Ok(()) => {}
            // The queue has a place for each operation.
            Err(PostError::Full) => self.give_up(Status::LocalError),
            Err(_) => self.give_up(Status::Flushed),
        }
    }

    /// READs `len` bytes, up to the stride, of the first node into the operation's buffer.
    pub(crate) fn read<P: Port>(&mut self, port: &mut P, operation: usize, at: u64, len: usize) {
        self.read_of(port, (operation, 0), at, len);
    }

    /// READs `len` bytes, up to the stride, of a node into the operation's buffer for it.
    pub(crate) fn read_of<P: Port>(
        &mut self,
        port: &mut P,
        (operation, node): (usize, usize),
        at: u64,
        len: usize,
    ) {
        let op = SendOp::Read {
            into: self.buffer(node, operation, len),
            from: self.links[node].memory.offset(at),
        };
        self.post(port, node, operation, op);
    }

    /// WRITEs a word on all nodes.
    pub(crate) fn write_word<P: Port>(
        &mut self,
        port: &mut P,
        operation: usize,
        (at, word): (u64, u64),
    ) {
        for node in 0..self.links.len() {
            self.write_word_of(port, (operation, node), (at, word));
        }
    }

    /// WRITEs a word on a node.
    pub(crate) fn write_word_of<P: Port>(
        &mut self,
        port: &mut P,
        (operation, node): (usize, usize),
        (at, word): (u64, u64),
    ) {
        let op = SendOp::Write {
            payload: Payload::Words(&[word]),
            to: self.links[node].memory.offset(at),
            imm: None,
        };
        self.post(port, node, operation, op);
    }

    /// WRITEs `bytes`, up to the stride, on all nodes, from the operation's buffers.
    pub(crate) fn write<P: Port>(
        &mut self,
        port: &mut P,
        operation: usize,
        (at, bytes): (u64, &[u8]),
    ) {
        for node in 0..self.links.len() {
            // A copy for each node: a buffer is in the domain of its queue pair.
            let from = self.buffer(node, operation, bytes.len());
            self.links[node].buffers.1.write_bytes(from.offset, bytes);
            let op = SendOp::Write {
                payload: Payload::Region(from),
                to: self.links[node].memory.offset(at),
                imm: None,
            };
            self.post(port, node, operation, op);
        }
    }

    /// Posts the CAS of an append.
    pub(crate) fn act<P: Port>(&mut self, port: &mut P, operation: usize, act: Act) {
        let Act::Cas {
            tail,
            node,
            expected,
            new,
        } = act
        else {
            return;
        };
        let op = SendOp::CompareSwap {
            into: self.buffer(node, operation, WORD),
            at: self.links[node].memory.offset(tail.offset()),
            expected,
            new,
        };
        self.post(port, node, operation, op);
    }

    /// Returns the first word of an operation's buffer.
    pub(crate) fn word(&self, landed: Landed) -> u64 {
        let at = landed.operation * self.stride / WORD;
        self.links[landed.node].buffers.1.load(at)
    }

    /// Copies the front of an operation's buffer, where a READ has landed.
    pub(crate) fn bytes(&self, landed: Landed, out: &mut [u8]) {
        let span = &self.links[landed.node].buffers.1;
        span.read_bytes(landed.operation * self.stride, out);
    }

    /// Takes completions, as many as `landed` has room for, each with the first word of its buffer.
    pub(crate) fn poll_some<P: Port, const N: usize>(
        &mut self,
        port: &mut P,
        landed: &mut ArrayVec<(Landed, u64), N>,
    ) {
        let mut done = [Completion::BLANK; N];
        let count = port.poll(self.cq, &mut done);
        for completion in &done[..count] {
            if completion.status != Status::Success {
                self.give_up(completion.status);
            }
            let one = Landed {
                operation: (completion.wr_id >> 8) as usize,
                node: (completion.wr_id & 0xff) as usize,
            };
            let word = match completion.status {
                Status::Success => self.word(one),
                _ => continue,
            };
            landed.push((one, word));
        }
    }
}
