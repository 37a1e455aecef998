//! Packets that came to the wrong socket of a shared port, on their way to the right one.
//!
//! The filter looks at the first datagram of a train, so a train that a network card merged from
//! packets for several workers comes whole to one of them.

use std::net::SocketAddr;

use herdwick_mem::spsc;

/// Packets under way between two ports, at most; the next is dropped.
const UNDER_WAY: usize = 32;
/// Bytes of a packet, at most: the largest payload, and what stands around it.
const PACKET: usize = 4096 + 128;
/// Offset of the low byte of the destination queue pair in a packet.
const LOW_BYTE_OF_DEST_QP: usize = 7;

/// A packet with what is known of its way here.
#[derive(Debug)]
pub(crate) struct Stray {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) id: u16,
    pub(crate) class: u8,
    bytes: Box<[u8; PACKET]>,
    len: usize,
}

impl Stray {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The way to one other port, and back.
struct Lane {
    there: spsc::Producer<Stray>,
    /// What this port sent there, empty.
    back: spsc::Consumer<Stray>,
    /// What the other port sent here.
    here: spsc::Consumer<Stray>,
    /// Those, emptied.
    home: spsc::Producer<Stray>,
}

/// One port's ways to the others of its address.
pub(crate) struct Mail {
    shard: usize,
    /// By shard; `None` is this one.
    lanes: Vec<Option<Lane>>,
    pub(crate) forwarded: u64,
    pub(crate) lost: u64,
}

impl std::fmt::Debug for Mail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mail")
            .field("shard", &self.shard)
            .field("forwarded", &self.forwarded)
            .finish_non_exhaustive()
    }
}

/// What a packet is, as far as its first bytes tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Belongs {
    Here,
    /// To this other shard.
    There(usize),
}

impl Mail {
    /// The mail of `shards` ports, which all reach each other.
    pub(crate) fn between(shards: usize) -> Vec<Self> {
        let mail = |shard| Self {
            shard,
            lanes: (0..shards).map(|_| None).collect(),
            forwarded: 0,
            lost: 0,
        };
        let mut all: Vec<Self> = (0..shards).map(mail).collect();
        for a in 0..shards {
            for b in 0..a {
                let (one, other) = lanes();
                all[a].lanes[b] = Some(one);
                all[b].lanes[a] = Some(other);
            }
        }
        all
    }

    /// Whether all of a train's packets, `segment` bytes each, are its port's own.
    #[inline]
    pub(crate) fn all_belong_here(&self, train: &[u8], segment: usize) -> bool {
        let mut packets = train.chunks(segment);
        self.lanes.len() <= 1 || packets.all(|packet| self.belongs(packet) == Belongs::Here)
    }

    /// Whose `packet` is.
    #[inline]
    pub(crate) fn belongs(&self, packet: &[u8]) -> Belongs {
        let shards = self.lanes.len();
        let Some(low) = packet.get(LOW_BYTE_OF_DEST_QP).filter(|_| shards > 1) else {
            return Belongs::Here;
        };
        match usize::from(*low) % shards {
            shard if shard == self.shard => Belongs::Here,
            shard => Belongs::There(shard),
        }
    }

    /// Sends a packet on; `false` when it is lost.
    pub(crate) fn forward(
        &mut self,
        shard: usize,
        (from, to): (SocketAddr, SocketAddr),
        (id, class): (u16, u8),
        packet: &[u8],
    ) -> bool {
        let lane = self.lanes.get_mut(shard).and_then(Option::as_mut);
        let sent = lane.is_some_and(|lane| lane.send((from, to), (id, class), packet));
        self.forwarded += u64::from(sent);
        self.lost += u64::from(!sent);
        sent
    }

    /// Shows `sink` what others sent here.
    pub(crate) fn arrived(&mut self, mut sink: impl FnMut(&Stray)) -> usize {
        let mut count = 0;
        for lane in self.lanes.iter_mut().flatten() {
            while let Some(stray) = lane.here.pop() {
                count += 1;
                sink(&stray);
                // The way home has room for every one there is.
                let _ = lane.home.push(stray);
            }
        }
        count
    }
}

impl Lane {
    fn send(
        &mut self,
        (from, to): (SocketAddr, SocketAddr),
        (id, class): (u16, u8),
        packet: &[u8],
    ) -> bool {
        if packet.len() > PACKET || !self.there.has_room() {
            return false;
        }
        let Some(empty) = self.back.pop() else {
            return false;
        };
        let mut stray = Stray {
            from,
            to,
            id,
            class,
            len: packet.len(),
            ..empty
        };
        stray.bytes[..packet.len()].copy_from_slice(packet);
        self.there.push(stray).is_ok()
    }
}

/// Both ends of the way between two ports, each with its empty packets.
fn lanes() -> (Lane, Lane) {
    let (there, here) = spsc::channel(UNDER_WAY);
    let (other_there, other_here) = spsc::channel(UNDER_WAY);
    let (home, back) = stock();
    let (other_home, other_back) = stock();
    let one = Lane {
        there,
        back,
        here: other_here,
        home: other_home,
    };
    let other = Lane {
        there: other_there,
        back: other_back,
        here,
        home,
    };
    (one, other)
}

/// A queue full of empty packets.
fn stock() -> (spsc::Producer<Stray>, spsc::Consumer<Stray>) {
    let (mut home, back) = spsc::channel(UNDER_WAY);
    let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
    for _ in 0..UNDER_WAY {
        let empty = Stray {
            from: nowhere,
            to: nowhere,
            id: 0,
            class: 0,
            bytes: Box::new([0; PACKET]),
            len: 0,
        };
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
    fn a_stray_reaches_its_port_and_its_room_comes_back() {
        let mut all = Mail::between(3);
        let packet = [0, 1, 2, 3, 4, 5, 6, 5, 8];
        assert_eq!(all[0].belongs(&packet), Belongs::There(2));
        assert_eq!(all[2].belongs(&packet), Belongs::Here);
        let mut train = packet.repeat(3);
        assert!(all[2].all_belong_here(&train, packet.len()));
        train[9 + 7] = 6;
        assert!(!all[2].all_belong_here(&train, packet.len()));
        assert!(Mail::between(1)[0].all_belong_here(&train, packet.len()));
        for round in 0..10 * UNDER_WAY {
            let sent = all[0].forward(2, ENDS, (7, 1), &packet);
            assert!(sent, "round {round}");
            let mut seen = Vec::new();
            all[2].arrived(|stray| seen.push((stray.id, stray.bytes().to_vec())));
            assert_eq!(seen, [(7, packet.to_vec())]);
        }
        assert_eq!(all[1].arrived(|_| {}), 0);
    }

    #[test]
    fn a_port_that_does_not_look_costs_no_memory() {
        let mut all = Mail::between(2);
        let sent = (0..1000).filter(|_| all[0].forward(1, ENDS, (0, 0), &[0; 64]));
        assert_eq!(sent.count(), UNDER_WAY);
        assert_eq!(all[0].lost, 1000 - UNDER_WAY as u64);
        assert!(!all[0].forward(9, ENDS, (0, 0), &[]), "no such port");
    }
}
