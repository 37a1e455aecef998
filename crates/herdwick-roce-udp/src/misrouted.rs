//! Forwards misrouted packets between the ports (shards) that share one UDP port.
//!
//! The socket filter reads the first datagram of a GRO batch only, so a batch that a network card
//! merged from packets for several workers arrives at one of them.

use std::net::SocketAddr;

use herdwick_mem::spsc;

/// Maximum packets in flight between two ports; the next is dropped.
const UNDER_WAY: usize = 32;
/// Maximum bytes of a packet: the largest payload, and room for headers and trailers.
const PACKET: usize = 4096 + 128;
/// Offset of the low byte of the destination queue pair number in a packet.
const LOW_BYTE_OF_DEST_QP: usize = 7;

/// A misrouted packet with its addresses, IP identification and traffic class.
#[derive(Debug)]
pub(crate) struct MisroutedPacket {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) id: u16,
    pub(crate) class: u8,
    bytes: Box<[u8; PACKET]>,
    len: usize,
}

impl MisroutedPacket {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The queues to and from one other port. Buffers circulate, so nothing is allocated.
struct PortQueues {
    there: spsc::Producer<MisroutedPacket>,
    /// Empty buffers that return from there.
    back: spsc::Consumer<MisroutedPacket>,
    /// Packets that the other port sent here.
    here: spsc::Consumer<MisroutedPacket>,
    /// Their buffers, emptied, on the way back.
    home: spsc::Producer<MisroutedPacket>,
}

/// One port's channels to the others of its address.
pub(crate) struct Misrouted {
    shard: usize,
    /// By shard; `None` for this port's own.
    queues: Vec<Option<PortQueues>>,
    pub(crate) forwarded: u64,
    pub(crate) lost: u64,
}

impl std::fmt::Debug for Misrouted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Misrouted")
            .field("shard", &self.shard)
            .field("forwarded", &self.forwarded)
            .finish_non_exhaustive()
    }
}

/// The port that a packet belongs to, as far as its first bytes show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Belongs {
    Here,
    /// Another shard.
    There(usize),
}

impl Misrouted {
    /// Makes the queues of `shards` ports, each connected to all others.
    pub(crate) fn between(shards: usize) -> Vec<Self> {
        let misrouted = |shard| Self {
            shard,
            queues: (0..shards).map(|_| None).collect(),
            forwarded: 0,
            lost: 0,
        };
        let mut all: Vec<Self> = (0..shards).map(misrouted).collect();
        for a in 0..shards {
            for b in 0..a {
                let (one, other) = queues();
                all[a].queues[b] = Some(one);
                all[b].queues[a] = Some(other);
            }
        }
        all
    }

    /// Returns whether all packets of a batch, `segment` bytes each, belong to this port.
    #[inline]
    pub(crate) fn all_belong_here(&self, batch: &[u8], segment: usize) -> bool {
        let mut packets = batch.chunks(segment);
        // A port with one socket has nothing to compare.
        self.queues.len() <= 1 || packets.all(|packet| self.belongs(packet) == Belongs::Here)
    }

    /// Returns the port that `packet` belongs to. One too short to carry the number stays here,
    /// where the engine drops and counts it.
    #[inline]
    pub(crate) fn belongs(&self, packet: &[u8]) -> Belongs {
        let shards = self.queues.len();
        let Some(low) = packet.get(LOW_BYTE_OF_DEST_QP).filter(|_| shards > 1) else {
            return Belongs::Here;
        };
        match usize::from(*low) % shards {
            shard if shard == self.shard => Belongs::Here,
            shard => Belongs::There(shard),
        }
    }

    /// Forwards a packet; returns `false` when it is dropped.
    pub(crate) fn forward(
        &mut self,
        shard: usize,
        (from, to): (SocketAddr, SocketAddr),
        (id, class): (u16, u8),
        packet: &[u8],
    ) -> bool {
        let queue = self.queues.get_mut(shard).and_then(Option::as_mut);
        let sent = queue.is_some_and(|queue| queue.send((from, to), (id, class), packet));
        self.forwarded += u64::from(sent);
        self.lost += u64::from(!sent);
        sent
    }

    /// Passes the packets that other ports sent here to `sink`; returns how many.
    pub(crate) fn arrived(&mut self, mut sink: impl FnMut(&MisroutedPacket)) -> usize {
        let mut count = 0;
        for queue in self.queues.iter_mut().flatten() {
            while let Some(misrouted) = queue.here.pop() {
                count += 1;
                sink(&misrouted);
                // The return queue has room for every buffer there is, so this cannot fail.
                let _ = queue.home.push(misrouted);
            }
        }
        count
    }
}

impl PortQueues {
    fn send(
        &mut self,
        (from, to): (SocketAddr, SocketAddr),
        (id, class): (u16, u8),
        packet: &[u8],
    ) -> bool {
        // No engine of this crate accepts so long a packet.
        if packet.len() > PACKET || !self.there.has_room() {
            return false;
        }
        // All buffers are on their way: the other port is slow. The packet is lost, as on a
        // network.
        let Some(empty) = self.back.pop() else {
            return false;
        };
        let mut misrouted = MisroutedPacket {
            from,
            to,
            id,
            class,
            len: packet.len(),
            // Takes over the buffer: nothing is allocated.
            ..empty
        };
        misrouted.bytes[..packet.len()].copy_from_slice(packet);
        self.there.push(misrouted).is_ok()
    }
}

/// Makes both ends of the channel between two ports, each with its empty buffers.
fn queues() -> (PortQueues, PortQueues) {
    let (there, here) = spsc::channel(UNDER_WAY);
    let (other_there, other_here) = spsc::channel(UNDER_WAY);
    let (home, back) = stock();
    let (other_home, other_back) = stock();
    let one = PortQueues {
        there,
        back,
        here: other_here,
        home: other_home,
    };
    let other = PortQueues {
        there: other_there,
        back: other_back,
        here,
        home,
    };
    (one, other)
}

/// Makes a queue full of empty buffers.
fn stock() -> (
    spsc::Producer<MisroutedPacket>,
    spsc::Consumer<MisroutedPacket>,
) {
    let (mut home, back) = spsc::channel(UNDER_WAY);
    let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
    for _ in 0..UNDER_WAY {
        let empty = MisroutedPacket {
            from: nowhere,
            to: nowhere,
            id: 0,
            class: 0,
            bytes: Box::new([0; PACKET]),
            len: 0,
        };
        // The queue was made for so many.
        let _ = home.push(empty);
    }
    (home, back)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDS: (SocketAddr, SocketAddr) = (
        SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1),
        SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 2),
    );

    #[test]
    fn misrouted_packet_reaches_its_port_and_its_room_is_freed() {
        let mut all = Misrouted::between(3);
        let packet = [0, 1, 2, 3, 4, 5, 6, 5, 8];
        assert_eq!(all[0].belongs(&packet), Belongs::There(2));
        assert_eq!(all[2].belongs(&packet), Belongs::Here);
        let mut batch = packet.repeat(3);
        assert!(all[2].all_belong_here(&batch, packet.len()));
        batch[9 + 7] = 6;
        assert!(!all[2].all_belong_here(&batch, packet.len()));
        assert!(Misrouted::between(1)[0].all_belong_here(&batch, packet.len()));
        for round in 0..10 * UNDER_WAY {
            let sent = all[0].forward(2, ENDS, (7, 1), &packet);
            assert!(sent, "round {round}");
            let mut seen = Vec::new();
            all[2].arrived(|misrouted| seen.push((misrouted.id, misrouted.bytes().to_vec())));
            assert_eq!(seen, [(7, packet.to_vec())]);
        }
        assert_eq!(all[1].arrived(|_| {}), 0);
    }

    #[test]
    fn port_that_does_not_poll_costs_no_memory() {
        let mut all = Misrouted::between(2);
        let sent = (0..1000).filter(|_| all[0].forward(1, ENDS, (0, 0), &[0; 64]));
        assert_eq!(sent.count(), UNDER_WAY);
        assert_eq!(all[0].lost, 1000 - UNDER_WAY as u64);
        assert!(!all[0].forward(9, ENDS, (0, 0), &[]), "no such port");
    }
}
