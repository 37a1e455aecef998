//! RC in both directions, with and without packets lost on the way.

use herdwick_fabric::Transport;

use crate::{
    LENGTHS, judge,
    judge::{Family, Judge},
    link::Loss,
    rally, run,
    verbs::Pair,
};

/// Packets lost of a thousand, in the tests with losses.
const LOST: u32 = 40;

#[test]
#[ignore = "needs a guest: tests/rxe/run.sh"]
fn ibv_rc_pingpong() {
    rally(Transport::Rc, 64, 200).play(&mut judge());
    rally(Transport::Rc, 4096, 100).play(&mut judge());
    rally(Transport::Rc, 10_001, 50).play(&mut judge());
}

#[test]
#[ignore = "needs a guest: tests/rxe/run.sh"]
fn ibv_rc_pingpong_with_packets_lost() {
    let mut judge = Judge::new(Family::V4, Loss::new(LOST, 1));
    rally(Transport::Rc, 5000, 100).play(&mut judge);
    assert!(judge.lost() > 10);
}

#[test]
#[ignore = "needs a guest: tests/rxe/run.sh"]
fn perftest_over_rc() {
    run("ib_write_bw", Transport::Rc, 64, 300).run(&mut judge());
    run("ib_write_bw", Transport::Rc, 5000, 100).run(&mut judge());
    run("ib_read_bw", Transport::Rc, 5000, 100).run(&mut judge());
    run("ib_atomic_bw", Transport::Rc, 8, 200).run(&mut judge());
    let received = run("ib_send_bw", Transport::Rc, 3000, 100).run(&mut judge());
    assert_eq!(received, 100);
}

/// Executes every verb of an RC queue pair, in both directions.
fn rc(judge: &mut Judge, mtu: usize, lengths: &[usize]) {
    let mut pair = Pair::new(judge, Transport::Rc, mtu);
    for len in lengths {
        pair.guest_sends(*len, 0);
        pair.guest_sends(*len, 0xfeed_0001);
        pair.we_send(*len, 0);
        pair.we_send(*len, 0xfeed_0002);
        pair.guest_writes(*len, 0);
        pair.guest_writes(*len, 0xfeed_0003);
        pair.we_write(*len, 0);
        pair.we_write(*len, 0xfeed_0004);
        pair.guest_reads(*len);
        pair.we_read(*len);
    }
    pair.guest_counts();
    pair.we_count();
    pair.crowd(3000);
    pair.end();
}

#[test]
#[ignore = "needs a guest: tests/rxe/run.sh"]
fn rc_verbs() {
    rc(&mut judge(), 1024, LENGTHS);
    rc(&mut judge(), 4096, &[4095, 4096, 4097, 70_000]);
    rc(&mut judge(), 256, &[255, 257, 3000]);
}

#[test]
#[ignore = "needs a guest: tests/rxe/run.sh"]
fn rc_verbs_over_ipv6() {
    rc(
        &mut Judge::new(Family::V6, Loss::new(0, 0)),
        1024,
        &[0, 33, 5000],
    );
}

#[test]
#[ignore = "needs a guest: tests/rxe/run.sh"]
fn rc_verbs_with_packets_lost() {
    for seed in 1..4 {
        let mut judge = Judge::new(Family::V4, Loss::new(LOST, seed));
        rc(&mut judge, 1024, &[1, 1025, 5000, 20_000]);
        assert!(judge.lost() > 10);
    }
}

#[test]
#[ignore = "needs a guest: tests/rxe/run.sh"]
fn rnr_and_wrong_rkeys_against_rdma_rxe() {
    let mut judge = judge();
    let mut pair = Pair::new(&mut judge, Transport::Rc, 1024);
    pair.waits_for_receivers();
    pair.wrong_keys_are_refused();
    Pair::new(&mut judge, Transport::Rc, 1024).our_wrong_key_is_refused();
}
