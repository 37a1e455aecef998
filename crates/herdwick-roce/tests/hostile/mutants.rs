//! Random changes of recorded traffic, most of them with a correct ICRC.

use std::net::SocketAddr;

use crate::{
    VICTIM, Way,
    common::{
        chance::{Chance, many},
        packet::ICRC,
        siege::Siege,
        stage::{FRIEND, STRANGER},
    },
};

/// Number of mutants; `HERDWICK_MUTANTS=1000000` tries a million.
const MUTANTS: usize = 40_000;
/// Mutants delivered to one pair.
const EACH: usize = 500;
/// Mutants from a stranger after which the pair executes one round of work.
const ROUND: usize = 50;

/// Changes recorded packets.
struct Mutator {
    chance: Chance,
    recorded: Vec<Vec<u8>>,
    qpns: Vec<u32>,
    rkeys: Vec<u32>,
    next: [u32; 2],
    /// Mutants with a correct ICRC, and those of them with a valid queue pair and rkey.
    sealed: usize,
    live: usize,
}

impl Mutator {
    fn new(siege: &mut Siege, chance: Chance) -> Self {
        siege.stage.recorded = Some(Vec::new());
        siege.survives();
        let victim = &siege.stage.victim;
        let regions = [
            siege.write,
            siege.read,
            siege.local,
            siege.scoped,
            siege.elsewhere,
        ];
        let mut rkeys = regions.map(|region| siege.key(region).1).to_vec();
        rkeys.extend([siege.key(victim.open).1; 3]);
        Self {
            chance,
            recorded: siege.stage.recorded.take().unwrap(),
            qpns: [victim.rc, victim.uc, victim.ud]
                .map(|qp| victim.qpn(qp))
                .to_vec(),
            rkeys,
            next: [siege.stage.next_rc, siege.stage.next_uc],
            sealed: 0,
            live: 0,
        }
    }

    fn packet(&mut self, from: SocketAddr) -> Vec<u8> {
        let which = self.chance.below(self.recorded.len());
        let mut bytes = self.recorded[which].clone();
        bytes.truncate(bytes.len() - ICRC);
        for _ in 0..1 + self.chance.below(3) {
            self.change(&mut bytes);
        }
        if self.chance.one_in(4) {
            bytes.extend([0; ICRC].map(|_| self.chance.next() as u8));
        } else {
            self.sealed += 1;
            bytes = Way::new(from, VICTIM).seal(&bytes);
        }
        self.live += usize::from(self.is_live(&bytes));
        bytes
    }

    /// Makes one change; most leave a packet that may be accepted.
    fn change(&mut self, bytes: &mut Vec<u8>) {
        let chance = &mut self.chance;
        let one = |chance: &mut Chance, of: &[u32]| of[chance.below(of.len())];
        match chance.below(12) {
            0 => bytes[0] = chance.next() as u8,
            1 => bytes[0] ^= 1 << chance.below(5),
            2 => put(bytes, 5, &one(chance, &self.qpns).to_be_bytes()[1..]),
            3 => {
                let psn = one(chance, &self.next).wrapping_add(chance.below(4) as u32);
                put(bytes, 9, &psn.to_be_bytes()[1..]);
            }
            4 | 5 => put(bytes, 20, &one(chance, &self.rkeys).to_be_bytes()),
            6 => put(
                bytes,
                12,
                &(chance.next() >> chance.below(64)).to_be_bytes(),
            ),
            7 => put(
                bytes,
                24,
                &((chance.next() as u32) >> chance.below(32)).to_be_bytes(),
            ),
            8 => bytes.truncate(chance.below(bytes.len())),
            9 => bytes.resize(bytes.len() + 4 * chance.below(300), chance.next() as u8),
            10 => put(bytes, 1, &[(chance.next() as u8) & 0xf0]),
            _ => {
                let at = chance.below(bytes.len());
                bytes[at] ^= 1 << chance.below(8);
            }
        }
        // The next changes need at least one byte.
        bytes.resize(bytes.len().max(1), 0);
    }

    /// Returns whether the queue pair exists, and the rkey, if the packet has one.
    fn is_live(&self, bytes: &[u8]) -> bool {
        let word = |at: usize| {
            bytes
                .get(at..at + 4)
                .map(|word| u32::from_be_bytes(word.try_into().unwrap()))
        };
        let qpn = word(4).is_some_and(|word| self.qpns.contains(&(word & 0xff_ffff)));
        qpn && word(20).is_some_and(|rkey| self.rkeys.contains(&rkey))
    }
}

/// Overwrites `bytes` with as much of `what` as fits.
fn put(bytes: &mut [u8], at: usize, what: &[u8]) {
    for (to, from) in bytes.iter_mut().skip(at).zip(what) {
        *to = *from;
    }
}

/// Delivers a mutant. Only the friend may be answered; one with a wrong ICRC has no effect.
fn hand(siege: &mut Siege, from: SocketAddr, bytes: &[u8]) {
    let whole = bytes.len() >= 12 + ICRC && {
        let (packet, icrc) = bytes.split_at(bytes.len() - ICRC);
        Way::new(from, VICTIM).icrc(packet).to_le_bytes() == icrc
    };
    let before = (!whole).then(|| (siege.memory(), siege.stage.victim.dropped()));
    for (to, answer) in siege.stage.hand(from, bytes) {
        assert!(
            to == FRIEND && from == FRIEND,
            "{bytes:02x?}: {answer:02x?}"
        );
    }
    if let Some((memory, dropped)) = before {
        assert!(memory == siege.stage.victim.memory, "{bytes:02x?}");
        assert_eq!(siege.stage.victim.dropped(), dropped + 1, "{bytes:02x?}");
    }
    siege.drain();
}

fn attack(from: SocketAddr, rounds: bool) {
    let count = many("MUTANTS", MUTANTS) / 2;
    let (mut sealed, mut live, mut chance) = (0, 0, Chance::new(from.port().into()));
    for _ in 0..count.div_ceil(EACH) {
        let mut siege = Siege::new();
        let mut mutator = Mutator::new(&mut siege, chance);
        for n in 0..EACH {
            let bytes = mutator.packet(from);
            hand(&mut siege, from, &bytes);
            if rounds && n % ROUND == 0 {
                siege.survives();
            }
        }
        assert!(siege.keeps());
        (sealed, live) = (sealed + mutator.sealed, live + mutator.live);
        chance = mutator.chance;
    }
    println!("{count} mutants, {sealed} with their ICRC, {live} with a live queue pair and key");
    assert!(sealed * 2 >= count && live * 4 >= count);
}

/// Mutants from an unknown address have no effect on the pair.
#[test]
fn mutants_from_other_addresses_have_no_effect() {
    attack(STRANGER, true);
}

/// An attacker who forges the friend's address can disturb the connection, but writes only what the
/// friend's keys permit.
#[test]
fn mutants_from_the_peer_stay_within_its_rights() {
    attack(FRIEND, false);
}
