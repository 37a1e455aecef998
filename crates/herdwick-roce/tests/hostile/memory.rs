//! Wrong keys, addresses and lengths.

use herdwick_fabric::{Access, Scope};
use herdwick_roce::Drop;

use crate::{
    Siege, VICTIM, Way,
    common::{
        chance::{Chance, many},
        packet::{Packet, op},
        stage::{FRIEND, MTU, REGION, STRANGER},
    },
};

/// Returns a WRITE of one packet over UC.
fn write(siege: &Siege, addr: u64, rkey: u32, len: u32, payload: &[u8]) -> Packet {
    let qpn = siege.qpn(siege.stage.victim.uc);
    Packet::new(op::UC | op::WRITE_ONLY, qpn, siege.stage.next_uc)
        .reth(addr, rkey, len)
        .payload(payload)
}

/// Returns one request of each kind that uses an rkey, over RC and with the expected PSN.
fn requests(siege: &Siege, addr: u64, rkey: u32, len: u32) -> [Packet; 4] {
    let qpn = siege.qpn(siege.stage.victim.rc);
    let of = |operation| Packet::new(op::RC | operation, qpn, siege.stage.next_rc).ack();
    let payload = vec![7; len.min(MTU as u32) as usize];
    let first = if len as usize > MTU {
        op::WRITE_FIRST
    } else {
        op::WRITE_ONLY
    };
    [
        of(first).reth(addr, rkey, len).payload(&payload),
        of(op::READ_REQUEST).reth(addr, rkey, len),
        of(op::FETCH_ADD).atomic(addr & !7, rkey, 1, 0),
        of(op::COMPARE_SWAP).atomic(addr & !7, rkey, 1, 0),
    ]
}

#[test]
fn u10_guessed_rkeys_are_refused_and_end_no_connection() {
    let mut siege = Siege::new();
    let (addr, rkey) = siege.key(siege.write);
    let (_, open) = siege.key(siege.stage.victim.open);
    let mut chance = Chance::new(10);
    let live = |siege: &Siege, key| {
        let all = [siege.write, siege.stage.victim.open];
        all.iter().any(|region| siege.key(*region).1 == key)
    };
    let near = [
        0,
        u32::MAX,
        rkey.wrapping_add(1),
        rkey ^ 0x100,
        open.wrapping_sub(1),
    ];
    let random = std::iter::repeat_with(|| chance.next() as u32).take(many("GUESSES", 20_000));
    for key in near.into_iter().chain(random) {
        if live(&siege, key) {
            continue;
        }
        let packet = write(&siege, addr, key, 64, &[7; 64]).sealed(&Way::new(FRIEND, VICTIM));
        let before = siege.stage.victim.engine.counters().dropped(Drop::Rkey);
        assert!(siege.stage.hand(FRIEND, &packet).is_empty());
        let after = siege.stage.victim.engine.counters().dropped(Drop::Rkey);
        assert_eq!(after - before, 1);
    }
    for key in near {
        for packet in requests(&siege, addr, key, 64) {
            siege.dropped_for(STRANGER, &packet, Drop::Source);
            siege.refused(&packet);
        }
    }
    assert!(siege.stage.victim.poll().is_empty());
    siege.survives();
}

#[test]
fn u10_revoked_rkey_is_refused() {
    let mut siege = Siege::new();
    let pd = siege.stage.victim.pd;
    let region = siege.stage.victim.region(pd, Access::ALL, Scope::Pd);
    let (addr, rkey) = siege.key(region);
    siege.stage.victim.engine.deregister(region).unwrap();
    let packet = write(&siege, addr, rkey, 64, &[7; 64]);
    siege.dropped_for(FRIEND, &packet, Drop::Rkey);
    // The revoked key stays invalid when its slot is reused.
    siege.stage.victim.region(pd, Access::ALL, Scope::Pd);
    siege.dropped_for(FRIEND, &packet, Drop::Rkey);
    for packet in requests(&siege, addr, rkey, 64) {
        siege.refused(&packet);
    }
    siege.survives();
}

#[test]
fn u11_accesses_beyond_a_region_have_no_effect() {
    let mut siege = Siege::new();
    let (base, rkey) = siege.key(siege.stage.victim.open);
    let end = base + REGION as u64;
    let addresses = [
        base.wrapping_sub(1),
        base.wrapping_sub(64),
        end - 63,
        end,
        end + 1,
        u64::MAX,
        u64::MAX - 63,
        u64::MAX - 62,
        1 << 63,
        base | 1 << 32,
    ];
    for addr in addresses {
        let packet = write(&siege, addr, rkey, 64, &[7; 64]);
        siege.dropped_for(FRIEND, &packet, Drop::Range);
        // The eight bytes of an atomic would fit where 64 do not.
        for packet in &requests(&siege, addr, rkey, 64)[..2] {
            siege.refused(packet);
        }
    }
    let uc = siege.qpn(siege.stage.victim.uc);
    for len in [REGION as u32 + 1, 1 << 31, (1 << 31) + 1, u32::MAX] {
        let first = Packet::new(op::UC | op::WRITE_FIRST, uc, siege.stage.next_uc);
        siege.dropped(FRIEND, &first.reth(base, rkey, len).payload(&[7; MTU]));
        for packet in &requests(&siege, base, rkey, len)[..2] {
            siege.refused(packet);
        }
    }
    siege.survives();
}

#[test]
fn u12_packets_with_false_lengths_are_dropped() {
    let mut siege = Siege::new();
    let (addr, rkey) = siege.key(siege.write);
    for (len, payload) in [
        (64, 60),
        (64, 68),
        (64, 0),
        (0, 64),
        (MTU as u32, 4),
        (63, 64),
    ] {
        let packet = write(&siege, addr, rkey, len, &vec![7; payload]);
        siege.dropped(FRIEND, &packet);
    }
    for pad in 1..4 {
        let mut packet = write(&siege, addr, rkey, 64, &[7; 64]);
        packet.second = Some(pad << 4);
        siege.dropped(FRIEND, &packet);
    }
    // A message of two packets whose last is too long or too short: what was written stays within
    // the range named by the first.
    let uc = siege.qpn(siege.stage.victim.uc);
    for last in [4, 496, 504, MTU] {
        let psn = siege.stage.next_uc;
        let first = Packet::new(op::UC | op::WRITE_FIRST, uc, psn);
        let first = first.reth(addr, rkey, 1524).payload(&[7; MTU]);
        let way = Way::new(FRIEND, VICTIM);
        assert!(siege.stage.hand(FRIEND, &first.sealed(&way)).is_empty());
        let last = Packet::new(op::UC | op::WRITE_LAST, uc, psn + 1).payload(&vec![7; last]);
        siege.dropped(FRIEND, &last);
    }
    assert!(
        siege.stage.victim.memory.of(siege.write)[MTU..]
            .iter()
            .all(|byte| *byte == 0)
    );
    siege.survives();
}

#[test]
fn u15_rights_that_were_not_granted_are_refused() {
    let mut siege = Siege::new();
    let kept = [siege.local, siege.scoped, siege.elsewhere];
    for region in kept {
        let (addr, rkey) = siege.key(region);
        for packet in requests(&siege, addr, rkey, 64) {
            siege.refused(&packet);
        }
        let packet = write(&siege, addr, rkey, 64, &[7; 64]);
        siege.dropped(FRIEND, &packet);
    }
    let (addr, rkey) = siege.key(siege.write);
    for packet in &requests(&siege, addr, rkey, 64)[1..] {
        siege.refused(packet);
    }
    let (addr, rkey) = siege.key(siege.read);
    for packet in [0, 2, 3].map(|i| requests(&siege, addr, rkey, 64)[i].clone()) {
        siege.refused(&packet);
    }
    siege.survives();
}

#[test]
fn u16_zero_length_write_has_no_effect() {
    let mut siege = Siege::new();
    let mut chance = Chance::new(16);
    for _ in 0..100 {
        let (addr, rkey) = (chance.next(), chance.next() as u32);
        let mut packet = write(&siege, addr, rkey, 0, &[]);
        packet.psn = chance.next() as u32;
        siege.ignored(FRIEND, &packet);
    }
    assert!(siege.stage.victim.poll().is_empty());
    siege.survives();
}
