//! Floods of wrong packets from one peer, beside another that sends correct ones.

use herdwick_fabric::{Access, Payload, QpId, RegionId, Remote, Rkey, SendOp, Transport};
use herdwick_roce::{Config, Drop};

use crate::{
    link::{A, B, World},
    unreliable::signaled,
};

/// Wrong packets of one source that a pass processes.
const CHECKED: u64 = 32;
const FLOOD: u64 = 1000;

struct Besieged {
    world: World,
    honest: QpId,
    hostile: QpId,
    region: RegionId,
    at: Remote,
    written: u64,
}

impl Besieged {
    fn new(transport: Transport) -> Self {
        let mut world = World::new(1, &Config::default());
        let ([honest, _], [hostile, _]) = (world.connected(transport), world.connected(transport));
        let region = world.sides[B].region(Access::WRITE);
        let at = world.sides[B].remote(region);
        Self {
            world,
            honest,
            hostile,
            region,
            at,
            written: 0,
        }
    }

    fn packet(&mut self, qp: QpId, value: u64, to: Remote) -> Vec<u8> {
        let words = [value];
        let write = SendOp::Write {
            payload: Payload::Words(&words),
            to,
            imm: None,
        };
        self.world.sides[A].post(qp, &[signaled(1, write)]);
        self.world.sides[A].collect();
        let mut sent = self.world.caught(A);
        assert_eq!(sent.len(), 1);
        sent.remove(0)
    }

    /// Delivers `count` packets with a wrong rkey within one pass.
    fn flood(&mut self, count: u64) {
        let wrong = Remote {
            rkey: Rkey(!self.at.rkey.0),
            ..self.at
        };
        let packet = self.packet(self.hostile, 0xbad, wrong);
        (0..count).for_each(|_| self.world.forge(B, &packet));
    }

    /// The honest one writes, and it lands.
    fn writes(&mut self) {
        self.written += 1;
        let packet = self.packet(self.honest, self.written, self.at);
        self.world.forge(B, &packet);
        let memory = &self.world.sides[B].bank.regions[&self.region];
        assert_eq!(memory[..8], self.written.to_le_bytes());
    }

    fn dropped(&self, reason: Drop) -> u64 {
        self.world.sides[B].engine.counters().dropped(reason)
    }

    /// Starts the next pass.
    fn pass(&mut self) {
        let side = &mut self.world.sides[B];
        side.engine
            .poll_transmit(self.world.now, &side.bank, &mut side.outbox);
    }
}

#[test]
fn flood_of_wrong_rkeys_is_checked_a_bounded_number_of_times_per_pass() {
    let mut besieged = Besieged::new(Transport::Uc);
    for pass in 1..=3 {
        besieged.writes();
        besieged.flood(FLOOD);
        besieged.writes();
        assert_eq!(besieged.dropped(Drop::Rkey), CHECKED * pass);
        let unseen = (FLOOD - CHECKED) * pass;
        assert_eq!(besieged.dropped(Drop::TooManyRefused), unseen);
        besieged.pass();
    }
}

#[test]
fn packets_of_a_source_below_the_error_limit_are_always_checked() {
    let mut besieged = Besieged::new(Transport::Uc);
    for _ in 0..100 {
        besieged.flood(CHECKED - 1);
        // A correct packet from the same source.
        let packet = besieged.packet(besieged.hostile, 7, besieged.at);
        besieged.world.forge(B, &packet);
        let memory = &besieged.world.sides[B].bank.regions[&besieged.region];
        assert_eq!(memory[0], 7);
        besieged.writes();
        besieged.pass();
    }
    assert_eq!(besieged.dropped(Drop::TooManyRefused), 0);
}
