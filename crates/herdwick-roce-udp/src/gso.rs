//! Packets to send, gathered into GSO batches: the datagrams of a batch have equal
//! lengths and go to one flow; only the last may be shorter.
//!
//! GSO batches are sent in the order in which they were opened. Packets that must keep their order
//! within a flow are added only to the flow's first open GSO batch, which is younger than every
//! other GSO batch that holds an ordered packet of the flow. Datagrams may also be added to the
//! second, so that replies of two lengths make two GSO batches rather than many.

use std::{collections::VecDeque, io, time::Duration};

use arrayvec::ArrayVec;
use herdwick_roce::{
    FlowId, Wire,
    icrc::{Route, Run},
};

use crate::{
    capture::Capture,
    socket::{Destination, Outgoing, SEGMENTS_MAX, SENDS, Sent, Socket},
};

/// Maximum bytes of a batch. Sixty-four packets that carry a 64-byte line are 6 KiB.
const BATCH_BYTES: usize = 16 << 10;
/// Maximum GSO batches that are open or wait for the socket. The replies of a worker's batch may go
/// to as many clients, each in two lengths.
const BATCHES: usize = 96;

/// The route of a flow's packets, and its open GSO batches.
#[derive(Debug)]
pub(crate) struct FlowState {
    to: Destination,
    /// The fields of the IP and UDP headers that the ICRC covers.
    route: Route,
    /// Index of the socket that sends them.
    socket: usize,
    /// Whether the kernel segments GSO batches on this route.
    cut: Cutting,
    flow: FlowId,
    /// GSO batches that accept more packets.
    open: [Option<usize>; 2],
}

impl FlowState {
    /// Makes the state of `flow`: along `route` to `to`, the peer's address for the kernel, from
    /// socket number `socket`.
    pub(crate) fn new(flow: FlowId, socket: usize, route: Route, to: Destination) -> Self {
        Self {
            to,
            route,
            socket,
            cut: Cutting::Tried,
            flow,
            open: [None; 2],
        }
    }
}

/// Whether the kernel segments GSO batches into datagrams (GSO).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cutting {
    /// It does, or has not been tried.
    Tried,
    /// It refused; it is tried again after so many datagrams.
    Refused(u32),
    /// The device cannot.
    Absent,
}

/// Datagrams sent singly after the kernel refused a GSO batch for a reason that may pass, such as a
/// path MTU that it has just learnt.
const ALONE: u32 = 1024;

impl Cutting {
    /// Returns the maximum datagrams of one GSO batch.
    fn segments(self) -> usize {
        match self {
            Self::Tried => SEGMENTS_MAX,
            Self::Refused(_) | Self::Absent => 1,
        }
    }

    /// Returns the new state after the kernel refused a GSO batch with `error`; `None` if the error
    /// does not concern segmentation.
    fn refused(error: &io::Error) -> Option<Self> {
        match error.raw_os_error() {
            // The kernel's udp_send_skb: EIO where the route's device computes no checksums, or IPsec
            // encrypts, which does not change with the next datagram; EINVAL for lengths.
            Some(libc::EIO | libc::ENOPROTOOPT) => Some(Self::Absent),
            Some(libc::EINVAL) => Some(Self::Refused(ALONE)),
            _ => None,
        }
    }

    /// Counts a GSO batch that was opened.
    fn opened(&mut self) {
        *self = match *self {
            Self::Refused(left) if left > 1 => Self::Refused(left - 1),
            Self::Refused(_) | Self::Tried => Self::Tried,
            Self::Absent => Self::Absent,
        };
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct GsoBatch {
    len: usize,
    segment: usize,
    count: usize,
    flow: usize,
}

impl GsoBatch {
    fn takes(&self, len: usize, segments: usize) -> bool {
        // A batch with a short packet is complete: only the last of a batch may be shorter.
        let whole = self.len == self.count * self.segment;
        whole && self.count < segments && self.len + len <= BATCH_BYTES
    }
}

/// The bytes of all GSO batches, [`BATCH_BYTES`] each, in one allocation: the kernel backs only as
/// many with memory as are ever open at once, which in a client are few.
#[derive(Debug)]
struct BatchBuffers(Box<[u8]>);

impl BatchBuffers {
    fn new() -> Self {
        Self(vec![0; BATCHES * BATCH_BYTES].into())
    }

    fn of(&self, batch: usize, len: usize) -> &[u8] {
        // The second slice keeps a length that is too long within its own batch.
        &self.0[batch * BATCH_BYTES..][..BATCH_BYTES][..len]
    }

    fn of_mut(&mut self, batch: usize, len: usize) -> &mut [u8] {
        &mut self.0[batch * BATCH_BYTES..][..BATCH_BYTES][..len]
    }
}

/// Counters of packets that could not be sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Losses {
    /// Packets that the kernel refused: no route, a firewall, a full socket.
    pub(crate) refused: u64,
    /// Packets that exceed the current MTU of the path.
    pub(crate) too_long: u64,
}

impl Losses {
    fn count(&mut self, error: &io::Error, packets: u64) {
        if error.raw_os_error() == Some(libc::EMSGSIZE) {
            self.too_long += packets;
        } else {
            self.refused += packets;
        }
    }
}

/// The sending half of a port.
#[derive(Debug)]
pub(crate) struct SendHalf {
    sockets: Vec<Socket>,
    /// By flow index.
    flows: Vec<Option<FlowState>>,
    pool: [GsoBatch; BATCHES],
    buffers: BatchBuffers,
    /// A stack: the GSO batch freed last is reused first, because its bytes are in the cache.
    free: ArrayVec<usize, BATCHES>,
    /// Non-empty GSO batches, oldest first.
    queue: VecDeque<usize>,
    pub(crate) losses: Losses,
    /// ICRC state of the packets that are sent.
    sums: Run,
    capture: Option<Capture>,
    /// The time of the last pass; `disarm` has no time of its own.
    pub(crate) now: Duration,
}

impl SendHalf {
    /// Sends from `socket`, and from others that [`SendHalf::add_socket`] adds.
    pub(crate) fn new(socket: Socket, capture: Option<Capture>) -> Self {
        Self {
            sockets: vec![socket],
            flows: Vec::new(),
            pool: [GsoBatch::default(); BATCHES],
            buffers: BatchBuffers::new(),
            free: (0..BATCHES).collect(),
            queue: VecDeque::with_capacity(BATCHES),
            losses: Losses::default(),
            sums: Run::new(),
            capture,
            now: Duration::ZERO,
        }
    }

    /// Returns the socket that also receives.
    pub(crate) fn main(&self) -> &Socket {
        &self.sockets[0]
    }

    /// Returns the sockets to send from.
    pub(crate) fn sockets(&self) -> &[Socket] {
        &self.sockets
    }

    pub(crate) fn add_socket(&mut self, socket: Socket) {
        self.sockets.push(socket);
    }

    /// Adds the state of a flow, unless it has one.
    pub(crate) fn add_flow(&mut self, state: FlowState) {
        let index = state.flow.index();
        if self.flows.len() <= index {
            self.flows.resize_with(index + 1, || None);
        }
        self.flows[index].get_or_insert(state);
    }

    /// Removes the flows for which `stays` returns false, after sending what waits on them.
    pub(crate) fn retain(&mut self, stays: impl Fn(FlowId) -> bool) {
        // First: the route is still there.
        self.flush();
        for index in 0..self.flows.len() {
            let state = self.flows[index].as_ref();
            if state.is_some_and(|state| !stays(state.flow)) {
                self.remove_flow(index);
            }
        }
    }

    /// Removes a flow, and its packets that could not be sent.
    fn remove_flow(&mut self, flow: usize) {
        let (pool, free) = (&mut self.pool, &mut self.free);
        self.queue.retain(|batch| {
            let stays = pool[*batch].flow != flow;
            if !stays {
                free.push(*batch);
            }
            stays
        });
        self.flows[flow] = None;
    }

    /// Passes all GSO batches to the kernel; returns `false` when the socket accepts no more for
    /// now.
    pub(crate) fn flush(&mut self) -> bool {
        // Each turn sends or drops at least the first batch, or ends.
        while let Some(first) = self.queue.front() {
            let socket = self.socket_of(*first);
            let run = self.seal_run(socket);
            match self.send_run(socket, run) {
                Sent::All(count) => {
                    self.note_sent(count);
                    // After the capture, which reads the batch.
                    (0..count).for_each(|_| self.release());
                }
                // The batches stay, and open ones go on filling.
                Sent::Full => return false,
                Sent::Refused(error) => self.refused(socket, &error),
            }
        }
        true
    }

    /// Writes a packet to the capture, if there is one.
    #[inline]
    pub(crate) fn note(&mut self, route: &Route, id: u16, packet: &[u8]) {
        if let Some(capture) = &mut self.capture {
            capture.packet(self.now, route, id, packet);
        }
    }

    /// Writes packets that arrived as one batch to the capture.
    #[inline]
    pub(crate) fn note_batch(&mut self, route: &Route, segment: usize, batch: &[u8]) {
        if self.capture.is_some() {
            for (packet, id) in batch.chunks(segment).zip(0..) {
                self.note(route, id, packet);
            }
        }
    }

    /// Writes the oldest GSO batches to the capture.
    fn note_sent(&mut self, batches: usize) {
        let Some(capture) = &mut self.capture else {
            return;
        };
        for index in self.queue.iter().take(batches) {
            let batch = &self.pool[*index];
            if let Some(state) = &self.flows[batch.flow] {
                let bytes = self.buffers.of(*index, batch.len);
                for (id, packet) in (0..).zip(bytes.chunks(batch.segment)) {
                    capture.packet(self.now, &state.route, id, packet);
                }
            }
        }
        capture.flush();
    }

    /// Flushes the capture to its file.
    pub(crate) fn keep_notes(&mut self) {
        if let Some(capture) = &mut self.capture {
            capture.flush();
        }
    }

    /// Returns the number of packets that may be missing from the capture's file.
    pub(crate) fn notes_lost(&self) -> u64 {
        self.capture.as_ref().map_or(0, Capture::lost)
    }

    fn socket_of(&self, batch: usize) -> usize {
        let state = self.flows[self.pool[batch].flow].as_ref();
        state.map_or(0, |state| state.socket)
    }

    /// Computes the ICRCs of the oldest GSO batches that one call can send from `socket`; returns
    /// how many.
    fn seal_run(&mut self, socket: usize) -> usize {
        // One call has one socket: a run ends where the next batch leaves from another.
        let same = |batch: &&usize| self.socket_of(**batch) == socket;
        let run = self.queue.iter().take(SENDS).take_while(same).count();
        for index in self.queue.iter().take(run) {
            let batch = &self.pool[*index];
            let Some(state) = &self.flows[batch.flow] else {
                // Not reached: a flow goes with its batches.
                continue;
            };
            let bytes = self.buffers.of_mut(*index, batch.len);
            // Now, because a batch grows until it is sent, and a later packet's position decides
            // its identification. Sealed again if the call fails.
            self.sums.seal_batch(bytes, batch.segment, &state.route);
        }
        run
    }

    fn send_run(&self, socket: usize, run: usize) -> Sent {
        let mut batches = ArrayVec::<Outgoing<'_>, SENDS>::new();
        for index in self.queue.iter().take(run) {
            let batch = &self.pool[*index];
            let Some(state) = &self.flows[batch.flow] else {
                continue;
            };
            batches.push(Outgoing {
                to: &state.to,
                bytes: self.buffers.of(*index, batch.len),
                segment: batch.segment,
            });
        }
        self.sockets[socket].send(&batches)
    }

    /// Handles the kernel's refusal of the oldest GSO batch. If it does not segment, the GSO
    /// batch's packets are sent singly, and so are those behind it. After any other error they are
    /// dropped and counted, as a network may drop packets.
    fn refused(&mut self, socket: usize, error: &io::Error) {
        let index = self.queue[0];
        let batch = &self.pool[index];
        let Some(state) = self.flows[batch.flow].as_mut() else {
            return self.release();
        };
        // A single packet was not segmented, so the error is about something else.
        if let Some(cut) = Cutting::refused(error).filter(|_| batch.count > 1) {
            state.cut = cut;
            let bytes = self.buffers.of_mut(index, batch.len);
            for packet in bytes.chunks_mut(batch.segment) {
                // A datagram sent by itself has identification 0, not its number in the GSO batch.
                self.sums.seal(packet, &state.route, 0);
                let alone = Outgoing {
                    to: &state.to,
                    segment: packet.len(),
                    bytes: packet,
                };
                match self.sockets[socket].send(&[alone]) {
                    Sent::All(_) => {}
                    // Nothing keeps single packets for later; the network may have lost them as well.
                    Sent::Full => self.losses.refused += 1,
                    Sent::Refused(error) => self.losses.count(&error, 1),
                }
            }
        } else {
            self.losses.count(error, batch.count as u64);
        }
        self.release();
    }

    /// Frees the oldest GSO batch.
    fn release(&mut self) {
        let Some(index) = self.queue.pop_front() else {
            return;
        };
        let flow = self.pool[index].flow;
        if let Some(state) = &mut self.flows[flow] {
            // A batch that was sent accepts no more packets.
            for open in &mut state.open {
                *open = open.filter(|batch| *batch != index);
            }
        }
        self.free.push(index);
    }

    /// Returns the flow's open GSO batch in `slot` if its packets have this length and it accepts
    /// one more.
    #[inline]
    fn same_batch(&self, flow: usize, slot: usize, len: usize) -> Option<usize> {
        let state = self.flows.get(flow)?.as_ref()?;
        let open = state.open[slot]?;
        let batch = &self.pool[open];
        (batch.segment == len && batch.takes(len, state.cut.segments())).then_some(open)
    }

    /// Returns a GSO batch for a packet that does not fit the flow's first open GSO batch by
    /// length, or `None` when all GSO batches are full and none can be sent.
    fn batch_for(&mut self, flow: usize, len: usize, ordered: bool) -> Option<usize> {
        let state = self.flows.get(flow)?.as_ref()?;
        let first = state.open[0];
        let found = if ordered {
            first.filter(|batch| {
                let batch = &self.pool[*batch];
                // A shorter packet may end the first batch, where it keeps its order.
                batch.segment > len && batch.takes(len, state.cut.segments())
            })
        } else {
            self.same_batch(flow, 1, len)
        };
        if found.is_some() {
            return found;
        }
        // Slot 1 is for datagrams of a second length, if slot 0 has an open batch of another.
        let beside = !ordered && first.is_some_and(|batch| self.pool[batch].segment != len);
        self.open(flow, usize::from(beside), len)
    }

    fn open(&mut self, flow: usize, slot: usize, len: usize) -> Option<usize> {
        if self.free.is_empty() {
            self.flush();
        }
        let index = self.free.pop()?;
        self.pool[index] = GsoBatch {
            segment: len,
            flow,
            ..GsoBatch::default()
        };
        let state = self.flows[flow].as_mut()?;
        state.cut.opened();
        state.open[slot] = Some(index);
        self.queue.push_back(index);
        Some(index)
    }
}

impl Wire for SendHalf {
    #[inline]
    fn packet(&mut self, flow: FlowId, len: usize, ordered: bool) -> Option<&mut [u8]> {
        let flow = flow.index();
        let batch = match self.same_batch(flow, 0, len) {
            Some(batch) => batch,
            None => self.batch_for(flow, len, ordered)?,
        };
        let known = &mut self.pool[batch];
        known.len += len;
        known.count += 1;
        Some(&mut self.buffers.of_mut(batch, known.len)[known.len - len..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_gso_batch_disables_gso_only_for_a_while() {
        let refused = |errno| Cutting::refused(&io::Error::from_raw_os_error(errno));
        let mut cut = refused(libc::EINVAL).expect("the path MTU may have decreased");
        for _ in 0..ALONE {
            assert_eq!(cut.segments(), 1);
            cut.opened();
        }
        assert_eq!(cut.segments(), SEGMENTS_MAX);
        cut.opened();
        assert_eq!(cut, Cutting::Tried);
        let mut never = refused(libc::EIO).expect("the device does not cut");
        (0..2 * ALONE).for_each(|_| never.opened());
        assert_eq!(never.segments(), 1);
        assert_eq!(refused(libc::ENETUNREACH), None);
    }

    #[test]
    fn too_long_packets_are_counted_separately() {
        let mut losses = Losses::default();
        losses.count(&io::Error::from_raw_os_error(libc::EMSGSIZE), 3);
        losses.count(&io::Error::from_raw_os_error(libc::EPERM), 2);
        assert_eq!((losses.too_long, losses.refused), (3, 2));
    }
}
