//! Packets to send, gathered into GSO batches ("trains"): the datagrams of a train have equal
//! lengths and go to one flow; only the last may be shorter.
//!
//! Trains are sent in the order in which they were opened. Packets that must keep their order
//! within a flow are added only to the flow's first open train, which is younger than every other
//! train that holds an ordered packet of the flow. Datagrams may also be added to the second, so
//! that replies of two lengths make two trains rather than many.

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

/// Maximum bytes of a train. Sixty-four packets that carry a 64-byte line are 6 KiB.
const TRAIN_BYTES: usize = 16 << 10;
/// Maximum trains that are open or wait for the socket. The replies of a worker's batch may go to
/// as many clients, each in two lengths.
const TRAINS: usize = 96;

/// The route of a flow's packets, and its open trains.
#[derive(Debug)]
pub(crate) struct Track {
    to: Destination,
    /// The fields of the IP and UDP headers that the ICRC covers.
    route: Route,
    /// Index of the socket that sends them.
    socket: usize,
    /// Whether the kernel segments trains on this route.
    cut: Cutting,
    flow: FlowId,
    /// Trains that accept more packets.
    open: [Option<usize>; 2],
}

impl Track {
    /// Makes the track of `flow`: along `route` to `to`, the peer's address for the kernel, from
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

/// Whether the kernel segments trains into datagrams (GSO).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cutting {
    /// It does, or has not been tried.
    Tried,
    /// It refused; it is tried again after so many datagrams.
    Refused(u32),
    /// The device cannot.
    Absent,
}

/// Datagrams sent singly after the kernel refused a train for a reason that may pass, such as a
/// path MTU that it has just learnt.
const ALONE: u32 = 1024;

impl Cutting {
    /// Returns the maximum datagrams of one train.
    fn segments(self) -> usize {
        match self {
            Self::Tried => SEGMENTS_MAX,
            Self::Refused(_) | Self::Absent => 1,
        }
    }

    /// Returns the new state after the kernel refused a train with `error`; `None` if the error
    /// does not concern segmentation.
    fn refused(error: &io::Error) -> Option<Self> {
        match error.raw_os_error() {
            Some(libc::EIO | libc::ENOPROTOOPT) => Some(Self::Absent),
            Some(libc::EINVAL) => Some(Self::Refused(ALONE)),
            _ => None,
        }
    }

    /// Counts a train that was opened.
    fn opened(&mut self) {
        *self = match *self {
            Self::Refused(left) if left > 1 => Self::Refused(left - 1),
            Self::Refused(_) | Self::Tried => Self::Tried,
            Self::Absent => Self::Absent,
        };
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Train {
    len: usize,
    segment: usize,
    count: usize,
    flow: usize,
}

impl Train {
    fn takes(&self, len: usize, segments: usize) -> bool {
        let whole = self.len == self.count * self.segment;
        whole && self.count < segments && self.len + len <= TRAIN_BYTES
    }
}

/// The bytes of all trains, [`TRAIN_BYTES`] each, in one allocation: the kernel backs only as many
/// with memory as are ever open at once, which in a client are few.
#[derive(Debug)]
struct Yard(Box<[u8]>);

impl Yard {
    fn new() -> Self {
        Self(vec![0; TRAINS * TRAIN_BYTES].into())
    }

    fn of(&self, train: usize, len: usize) -> &[u8] {
        &self.0[train * TRAIN_BYTES..][..TRAIN_BYTES][..len]
    }

    fn of_mut(&mut self, train: usize, len: usize) -> &mut [u8] {
        &mut self.0[train * TRAIN_BYTES..][..TRAIN_BYTES][..len]
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
pub(crate) struct Outbox {
    sockets: Vec<Socket>,
    /// By flow index.
    tracks: Vec<Option<Track>>,
    pool: [Train; TRAINS],
    yard: Yard,
    /// A stack: the train freed last is reused first, because its bytes are in the cache.
    free: ArrayVec<usize, TRAINS>,
    /// Non-empty trains, oldest first.
    queue: VecDeque<usize>,
    pub(crate) losses: Losses,
    /// ICRC state of the packets that are sent.
    sums: Run,
    capture: Option<Capture>,
    /// The time of the last pass; `disarm` has no time of its own.
    pub(crate) now: Duration,
}

impl Outbox {
    /// Sends from `socket`, and from others that [`Outbox::add_socket`] adds.
    pub(crate) fn new(socket: Socket, capture: Option<Capture>) -> Self {
        Self {
            sockets: vec![socket],
            tracks: Vec::new(),
            pool: [Train::default(); TRAINS],
            yard: Yard::new(),
            free: (0..TRAINS).collect(),
            queue: VecDeque::with_capacity(TRAINS),
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

    /// Adds the track of a flow, unless it has one.
    pub(crate) fn lay(&mut self, track: Track) {
        let index = track.flow.index();
        if self.tracks.len() <= index {
            self.tracks.resize_with(index + 1, || None);
        }
        self.tracks[index].get_or_insert(track);
    }

    /// Removes the tracks of flows for which `stays` returns false, after sending what waits on
    /// them.
    pub(crate) fn retain(&mut self, stays: impl Fn(FlowId) -> bool) {
        self.flush();
        for index in 0..self.tracks.len() {
            let track = self.tracks[index].as_ref();
            if track.is_some_and(|track| !stays(track.flow)) {
                self.lift(index);
            }
        }
    }

    /// Removes a track, and the packets on it that could not be sent.
    fn lift(&mut self, flow: usize) {
        let (pool, free) = (&mut self.pool, &mut self.free);
        self.queue.retain(|train| {
            let stays = pool[*train].flow != flow;
            if !stays {
                free.push(*train);
            }
            stays
        });
        self.tracks[flow] = None;
    }

    /// Passes all trains to the kernel; returns `false` when the socket accepts no more for now.
    pub(crate) fn flush(&mut self) -> bool {
        while let Some(first) = self.queue.front() {
            let socket = self.socket_of(*first);
            let run = self.seal_run(socket);
            match self.send_run(socket, run) {
                Sent::All(count) => {
                    self.note_sent(count);
                    (0..count).for_each(|_| self.release());
                }
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
    pub(crate) fn note_train(&mut self, route: &Route, segment: usize, train: &[u8]) {
        if self.capture.is_some() {
            for (packet, id) in train.chunks(segment).zip(0..) {
                self.note(route, id, packet);
            }
        }
    }

    /// Writes the oldest trains to the capture.
    fn note_sent(&mut self, trains: usize) {
        let Some(capture) = &mut self.capture else {
            return;
        };
        for index in self.queue.iter().take(trains) {
            let train = &self.pool[*index];
            if let Some(track) = &self.tracks[train.flow] {
                let bytes = self.yard.of(*index, train.len);
                for (id, packet) in (0..).zip(bytes.chunks(train.segment)) {
                    capture.packet(self.now, &track.route, id, packet);
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

    fn socket_of(&self, train: usize) -> usize {
        let track = self.tracks[self.pool[train].flow].as_ref();
        track.map_or(0, |track| track.socket)
    }

    /// Computes the ICRCs of the oldest trains that one call can send from `socket`; returns how
    /// many.
    fn seal_run(&mut self, socket: usize) -> usize {
        let same = |train: &&usize| self.socket_of(**train) == socket;
        let run = self.queue.iter().take(SENDS).take_while(same).count();
        for index in self.queue.iter().take(run) {
            let train = &self.pool[*index];
            let Some(track) = &self.tracks[train.flow] else {
                continue;
            };
            let bytes = self.yard.of_mut(*index, train.len);
            self.sums.seal_train(bytes, train.segment, &track.route);
        }
        run
    }

    fn send_run(&self, socket: usize, run: usize) -> Sent {
        let mut trains = ArrayVec::<Outgoing<'_>, SENDS>::new();
        for index in self.queue.iter().take(run) {
            let train = &self.pool[*index];
            let Some(track) = &self.tracks[train.flow] else {
                continue;
            };
            trains.push(Outgoing {
                to: &track.to,
                bytes: self.yard.of(*index, train.len),
                segment: train.segment,
            });
        }
        self.sockets[socket].send(&trains)
    }

    /// Handles the kernel's refusal of the oldest train. If it does not segment, the train's
    /// packets are sent singly, and so are those behind it. After any other error they are dropped
    /// and counted, as a network may drop packets.
    fn refused(&mut self, socket: usize, error: &io::Error) {
        let index = self.queue[0];
        let train = &self.pool[index];
        let Some(track) = self.tracks[train.flow].as_mut() else {
            return self.release();
        };
        if let Some(cut) = Cutting::refused(error).filter(|_| train.count > 1) {
            track.cut = cut;
            let bytes = self.yard.of_mut(index, train.len);
            for packet in bytes.chunks_mut(train.segment) {
                // A datagram sent by itself has identification 0, not its number in the train.
                self.sums.seal(packet, &track.route, 0);
                let alone = Outgoing {
                    to: &track.to,
                    segment: packet.len(),
                    bytes: packet,
                };
                match self.sockets[socket].send(&[alone]) {
                    Sent::All(_) => {}
                    Sent::Full => self.losses.refused += 1,
                    Sent::Refused(error) => self.losses.count(&error, 1),
                }
            }
        } else {
            self.losses.count(error, train.count as u64);
        }
        self.release();
    }

    /// Frees the oldest train.
    fn release(&mut self) {
        let Some(index) = self.queue.pop_front() else {
            return;
        };
        let flow = self.pool[index].flow;
        if let Some(track) = &mut self.tracks[flow] {
            for open in &mut track.open {
                *open = open.filter(|train| *train != index);
            }
        }
        self.free.push(index);
    }

    /// Returns the flow's open train in `slot` if its packets have this length and it accepts one
    /// more.
    #[inline]
    fn same_train(&self, flow: usize, slot: usize, len: usize) -> Option<usize> {
        let track = self.tracks.get(flow)?.as_ref()?;
        let open = track.open[slot]?;
        let train = &self.pool[open];
        (train.segment == len && train.takes(len, track.cut.segments())).then_some(open)
    }

    /// Returns a train for a packet that does not fit the flow's first open train by length, or
    /// `None` when all trains are full and none can be sent.
    fn train_for(&mut self, flow: usize, len: usize, ordered: bool) -> Option<usize> {
        let track = self.tracks.get(flow)?.as_ref()?;
        let first = track.open[0];
        let found = if ordered {
            first.filter(|train| {
                let train = &self.pool[*train];
                train.segment > len && train.takes(len, track.cut.segments())
            })
        } else {
            self.same_train(flow, 1, len)
        };
        if found.is_some() {
            return found;
        }
        let beside = !ordered && first.is_some_and(|train| self.pool[train].segment != len);
        self.open(flow, usize::from(beside), len)
    }

    fn open(&mut self, flow: usize, slot: usize, len: usize) -> Option<usize> {
        if self.free.is_empty() {
            self.flush();
        }
        let index = self.free.pop()?;
        self.pool[index] = Train {
            segment: len,
            flow,
            ..Train::default()
        };
        let track = self.tracks[flow].as_mut()?;
        track.cut.opened();
        track.open[slot] = Some(index);
        self.queue.push_back(index);
        Some(index)
    }
}

impl Wire for Outbox {
    #[inline]
    fn packet(&mut self, flow: FlowId, len: usize, ordered: bool) -> Option<&mut [u8]> {
        let flow = flow.index();
        let train = match self.same_train(flow, 0, len) {
            Some(train) => train,
            None => self.train_for(flow, len, ordered)?,
        };
        let known = &mut self.pool[train];
        known.len += len;
        known.count += 1;
        Some(&mut self.yard.of_mut(train, known.len)[known.len - len..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_refused_train_is_not_the_end_of_trains() {
        let refused = |errno| Cutting::refused(&io::Error::from_raw_os_error(errno));
        let mut cut = refused(libc::EINVAL).expect("the path may have become narrow");
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
    fn what_is_too_long_has_a_count_of_its_own() {
        let mut losses = Losses::default();
        losses.count(&io::Error::from_raw_os_error(libc::EMSGSIZE), 3);
        losses.count(&io::Error::from_raw_os_error(libc::EPERM), 2);
        assert_eq!((losses.too_long, losses.refused), (3, 2));
    }
}
