//! A connected pair of engines, the victim and its friend, while an attacker sends packets to the
//! victim.

use std::net::SocketAddr;

use herdwick_fabric::{Access, Opcode, QpId, RegionId, Scope, Transport};
use herdwick_roce::Drop;

use super::{
    Memories,
    packet::{Packet, Way},
    stage::{FRIEND, Stage, VICTIM},
};

/// The contents of the regions that no packet may write.
const KEPT: u8 = 0x5a;

/// The pair, and regions of the victim.
pub struct Siege {
    pub stage: Stage,
    /// Regions with one right each.
    pub write: RegionId,
    pub read: RegionId,
    pub local: RegionId,
    /// Regions with every right: one for a queue pair that is not connected, one in another
    /// protection domain.
    pub scoped: RegionId,
    pub elsewhere: RegionId,
}

impl Siege {
    pub fn new() -> Self {
        let mut stage = Stage::new();
        stage.honest();
        let victim = &mut stage.victim;
        let pd = victim.pd;
        let other = victim.engine.create_pd().unwrap();
        let lonely = Scope::Qp(victim.queue_pair(Transport::Rc));
        let mut siege = Self {
            write: victim.region(pd, Access::WRITE, Scope::Pd),
            read: victim.region(pd, Access::READ, Scope::Pd),
            local: victim.region(pd, Access::LOCAL, Scope::Pd),
            scoped: victim.region(pd, Access::ALL, lonely),
            elsewhere: victim.region(other, Access::ALL, Scope::Pd),
            stage,
        };
        for region in siege.kept() {
            siege.stage.victim.memory.of_mut(region).fill(KEPT);
        }
        siege
    }

    /// Returns the regions that no packet may write to.
    pub fn kept(&self) -> [RegionId; 4] {
        [self.read, self.local, self.scoped, self.elsewhere]
    }

    pub fn memory(&self) -> Memories {
        self.stage.victim.memory.clone()
    }

    pub fn qpn(&self, qp: QpId) -> u32 {
        self.stage.victim.qpn(qp)
    }

    /// Returns the address and rkey of a region of the victim.
    pub fn key(&self, region: RegionId) -> (u64, u32) {
        let remote = self.stage.victim.remote(region);
        (remote.addr, remote.rkey.0)
    }

    /// Delivers a packet: no answer is sent, no byte changes, and one drop is counted.
    pub fn dropped(&mut self, from: SocketAddr, packet: &Packet) {
        self.dropped_bytes(from, &packet.sealed(&Way::new(from, VICTIM)));
    }

    pub fn dropped_bytes(&mut self, from: SocketAddr, bytes: &[u8]) {
        let before = self.stage.victim.dropped();
        self.ignored_bytes(from, bytes);
        let dropped = self.stage.victim.dropped() - before;
        assert_eq!(dropped, 1, "{bytes:02x?}");
    }

    /// Delivers a packet as [`Siege::dropped`] does; the drop is counted for this reason.
    pub fn dropped_for(&mut self, from: SocketAddr, packet: &Packet, why: Drop) {
        let before = self.stage.victim.engine.counters().dropped(why);
        self.dropped(from, packet);
        let after = self.stage.victim.engine.counters().dropped(why);
        assert_eq!(after - before, 1, "{why:?}: {packet:?}");
    }

    /// Delivers a packet: no answer is sent, and no byte changes.
    pub fn ignored(&mut self, from: SocketAddr, packet: &Packet) {
        self.ignored_bytes(from, &packet.sealed(&Way::new(from, VICTIM)));
    }

    pub fn ignored_bytes(&mut self, from: SocketAddr, bytes: &[u8]) {
        let memory = self.memory();
        let answers = self.stage.hand(from, bytes);
        assert!(answers.is_empty(), "{bytes:02x?}: {answers:02x?}");
        assert!(memory == self.stage.victim.memory, "{bytes:02x?}");
    }

    /// Delivers a packet from the friend's address: no byte changes, and a NAK is sent to the
    /// friend only.
    pub fn refused(&mut self, packet: &Packet) {
        let memory = self.memory();
        let before = self.stage.victim.dropped();
        let bytes = packet.sealed(&Way::new(FRIEND, VICTIM));
        for (to, _) in self.stage.hand(FRIEND, &bytes) {
            assert_eq!(to, FRIEND);
        }
        assert!(memory == self.stage.victim.memory, "{packet:?}");
        assert_eq!(self.stage.victim.dropped() - before, 1, "{packet:?}");
    }

    /// Checks that the pair still works, and that the protected regions are unchanged.
    pub fn survives(&mut self) {
        self.stage.honest();
        self.stage.honest();
        assert!(self.keeps());
    }

    /// Polls the victim's completions, and posts each RECV again.
    pub fn drain(&mut self) {
        for done in self.stage.victim.poll() {
            if matches!(done.opcode, Opcode::Recv | Opcode::RecvWithImm) {
                self.stage.victim.recv(done.qp, 0);
            }
        }
    }

    /// Returns whether the protected regions are unchanged.
    pub fn keeps(&self) -> bool {
        let whole = |region| {
            let bytes = self.stage.victim.memory.of(region);
            bytes.iter().all(|byte| *byte == KEPT)
        };
        self.kept().into_iter().all(whole)
    }
}
