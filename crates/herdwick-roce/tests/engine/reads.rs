//! READs longer than the requester's receive buffer, or longer than one pass of the responder
//! sends.

use herdwick_fabric::{Access, Local, SendOp, Status, Transport};
use herdwick_roce::{Config, Mtu};

use crate::{
    link::{A, B, World},
    unreliable::{pattern, signaled},
};

/// Socket buffer under Linux's default `net.core.rmem_max`.
const DEFAULT_BUFFER: usize = 212_992;
const LEN: usize = 8 << 20;
const PACKETS: u64 = (LEN / 4096) as u64;

fn world(buffer: usize) -> World {
    let config = Config {
        mtu: Mtu::B4096,
        ..Config::default()
    };
    let mut world = World::new(1, &config);
    (world.mtu, world.buffer) = (Mtu::B4096, buffer);
    world
}

#[test]
fn long_read_is_requested_in_pieces_that_fit_the_receive_buffer() {
    for buffer in [DEFAULT_BUFFER / 2, DEFAULT_BUFFER, 4 << 20] {
        let mut world = world(buffer);
        let qps = world.connected(Transport::Rc);
        let there = world.sides[B].region_of(LEN, Access::ALL);
        let here = world.sides[A].region_of(LEN, Access::LOCAL);
        let bytes = pattern(LEN, 7);
        world.sides[B].bank.regions.insert(there, bytes.clone());
        let from = world.sides[B].remote(there);
        let into = Local {
            region: here,
            offset: 0,
            len: LEN,
        };
        world.sides[A].post(qps[A], &[signaled(1, SendOp::Read { into, from })]);
        assert_eq!(world.next(A).status, Status::Success);
        assert!(world.sides[A].bank.regions[&here] == bytes);
        let sent = world.sent[B];
        assert!(
            sent * 10 <= PACKETS * 11,
            "{sent} packets for {PACKETS} with {buffer} bytes; {} overflowed",
            world.overflowed
        );
        let asked = world.sent[A];
        assert!(asked <= PACKETS / 8, "{asked} requests");
    }
}

#[test]
fn read_of_megabytes_does_not_monopolize_a_pass() {
    const PASS: usize = 256;
    let mut world = world(usize::MAX);
    let qps = world.connected(Transport::Rc);
    let there = world.sides[B].region_of(LEN, Access::ALL);
    let from = world.sides[B].remote(there);
    let to = world.sides[B].engine.endpoint(qps[B]).expect("known").qpn.0;
    let psn = world.sides[A].engine.endpoint(qps[A]).expect("known").psn.0;
    // READ request: BTH, RETH, room for the ICRC.
    let mut packet = vec![0x0c, 0, 0xff, 0xff];
    packet.extend(to.to_be_bytes());
    packet.extend((0x8000_0000 | psn).to_be_bytes());
    packet.extend(from.addr.to_be_bytes());
    packet.extend(from.rkey.0.to_be_bytes());
    packet.extend((LEN as u32).to_be_bytes());
    packet.extend([0; 4]);
    world.forge(B, &packet);
    let mut answers = world.caught(B).len();
    assert_eq!(answers, PASS);
    while answers < LEN / 4096 {
        let side = &mut world.sides[B];
        assert_eq!(
            side.engine.poll_timeout(),
            Some(world.now),
            "more is to leave"
        );
        side.engine
            .poll_transmit(world.now, &side.bank, &mut side.outbox);
        let more = world.caught(B).len();
        assert!((1..=PASS).contains(&more), "{more}");
        answers += more;
    }
    assert_eq!(answers, LEN / 4096);
    assert_eq!(world.sides[B].engine.poll_timeout(), None);
}

/// A queue pair has up to 64 READs and atomics outstanding (docs/roce.md), so that GSO batches of
/// requests are long. The window for responses has to grow first.
#[test]
fn sixty_four_short_reads_leave_in_one_pass() {
    const OUTSTANDING: u64 = 64;
    let mut world = world(usize::MAX);
    let qps = world.connected(Transport::Rc);
    let there = world.sides[B].region(Access::ALL);
    let from = world.sides[B].remote(there);
    let into = Local {
        region: world.sides[A].inbox,
        offset: 0,
        len: 8,
    };
    let read = |id| signaled(id, SendOp::Read { into, from });
    for round in 0..2 {
        let before = world.sent[A];
        let reads: Vec<_> = (0..OUTSTANDING).map(read).collect();
        world.sides[A].post(qps[A], &reads);
        world.step();
        let sent = world.sent[A] - before;
        assert!(round == 0 || sent == OUTSTANDING, "{sent}");
        for id in 0..OUTSTANDING {
            let done = world.next(A);
            assert_eq!((done.wr_id, done.status), (id, Status::Success));
        }
    }
}
