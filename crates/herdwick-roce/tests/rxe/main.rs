//! Interoperability with Linux's software RNIC, rdma_rxe: Debian's stock kernel in QEMU, with the
//! engine as its only neighbour on the Ethernet. `tests/rxe/run.sh` builds the guest and runs
//! these.

#[path = "../common/mod.rs"]
mod common;
mod guest;
mod judge;
mod link;
mod perftest;
mod pingpong;
mod rc;
mod verbs;

use herdwick_fabric::Transport;
use judge::{Family, Judge};
use link::Loss;
use perftest::Run;
use pingpong::Rally;
use verbs::Pair;

/// Lengths around all boundaries at a path MTU of 1,024.
const LENGTHS: &[usize] = &[0, 1, 3, 4, 56, 57, 64, 1023, 1024, 1025, 2048, 5000, 65_537];
fn judge() -> Judge {
    Judge::new(Family::V4, Loss::new(0, 0))
}

fn rally(transport: Transport, size: usize, rounds: usize) -> Rally {
    Rally {
        transport,
        size,
        rounds,
        mtu: 1024,
    }
}

fn run(program: &'static str, transport: Transport, size: usize, rounds: usize) -> Run {
    Run {
        program,
        transport,
        size,
        rounds,
    }
}

#[test]
#[ignore = "needs a guest: tests/rxe/run.sh"]
fn ibv_uc_pingpong() {
    rally(Transport::Uc, 64, 200).play(&mut judge());
    rally(Transport::Uc, 10_001, 50).play(&mut judge());
}

#[test]
#[ignore = "needs a guest: tests/rxe/run.sh"]
fn ibv_ud_pingpong() {
    rally(Transport::Ud, 64, 200).play(&mut judge());
    rally(Transport::Ud, 2048, 50).play(&mut judge());
}

#[test]
#[ignore = "needs a guest: tests/rxe/run.sh"]
fn perftest_over_uc_and_ud() {
    run("ib_write_bw", Transport::Uc, 5000, 100).run(&mut judge());
    run("ib_send_bw", Transport::Uc, 3000, 50).run(&mut judge());
    run("ib_send_bw", Transport::Ud, 1000, 100).run(&mut judge());
}

#[test]
#[ignore = "needs a guest: tests/rxe/run.sh"]
fn uc_verbs() {
    let mut judge = judge();
    let mut pair = Pair::new(&mut judge, Transport::Uc, 1024);
    for len in LENGTHS {
        pair.guest_sends(*len, 0);
        pair.we_send(*len, 0xfeed_0001);
        pair.guest_writes(*len, 0);
        pair.guest_writes(*len, 0xfeed_0002);
        pair.we_write(*len, 0);
        pair.we_write(*len, 0xfeed_0003);
    }
    pair.end();
}

#[test]
#[ignore = "needs a guest: tests/rxe/run.sh"]
fn ud_verbs() {
    for family in [Family::V4, Family::V6] {
        let mut judge = Judge::new(family, Loss::new(0, 0));
        let mut pair = Pair::new(&mut judge, Transport::Ud, 1024);
        for len in [0, 1, 3, 56, 57, 1000, 1024] {
            pair.guest_sends(len, 0);
            pair.guest_sends(len, 0xfeed_0001);
            pair.we_send(len, 0);
            pair.we_send(len, 0xfeed_0002);
        }
        pair.end();
    }
}
