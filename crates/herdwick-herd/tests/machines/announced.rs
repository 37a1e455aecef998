//! Announced WRITEs: all of them on a fabric that does not promise the order of their words, and
//! those after pauses on a fabric whose WRITEs do not wake.

use std::time::Duration;

use herdwick_conformance::seeded::Faults;
use herdwick_fabric::Capabilities;
use herdwick_herd::{
    Announce, Outcome,
    RequestPath::{self, RcWrite, UcWrite, UdSend},
    wire::ReplyStatus,
};
use herdwick_request::{Get, Op, Put};

use crate::{
    fixture::{Fixture, capabilities},
    model::Model,
};

fn unordered() -> Capabilities {
    Capabilities {
        ordered_write: false,
        ..capabilities()
    }
}

/// Words of one WRITE appear over three microseconds, in any order.
fn torn() -> Faults {
    Faults {
        tear: Duration::from_micros(3),
        ..Faults::default()
    }
}

/// Stores and reads values that differ in every word. Returns how many requests ended wrongly.
fn wrong(path: RequestPath, announce: Announce, seed: u64) -> usize {
    let mut fixture = Fixture::on(unordered(), path, (seed, 4), vec![Model::default()]);
    fixture.announce = announce;
    let client = fixture.join(7);
    fixture.faults(torn());
    let mut wrong = 0;
    for round in 0_u8..200 {
        // Values that fit the line, and values that overflow it.
        let value = vec![round; if round % 3 == 0 { 300 } else { 24 }];
        let key = [b'k', b'0' + round % 4];
        let put = Op::Put(Put {
            value: &value,
            ..Put::default()
        });
        let status = |outcome: Outcome<'_>| match outcome {
            Outcome::Answered(answer) => Some(answer.status),
            Outcome::Timeout | Outcome::Unknown => None,
        };
        let stored = fixture.call(client, &key, put, status) == Some(ReplyStatus::Done);
        let found = fixture.call(
            client,
            &key,
            Op::Get(Get::default()),
            |outcome| matches!(outcome, Outcome::Answered(answer) if answer.value == value),
        );
        wrong += usize::from(!stored || !found);
    }
    if announce == Announce::Always {
        let counters = *fixture.workers[0].side.counters();
        assert!(counters.announcements >= 400, "{counters:?}");
    }
    wrong
}

#[test]
fn announced_lines_are_whole_and_unannounced_lines_may_be_torn() {
    for path in [UcWrite, RcWrite] {
        for seed in 0..4 {
            assert_eq!(
                wrong(path, Announce::Always, seed),
                0,
                "{path}, seed {seed}"
            );
        }
        assert!(wrong(path, Announce::Never, 1) > 0, "{path}");
    }
}

#[test]
fn lost_announcement_is_repeated() {
    let mut fixture = Fixture::on(unordered(), UcWrite, (3, 16), vec![Model::default()]);
    fixture.announce = Announce::Always;
    let client = fixture.join(7);
    fixture.faults(Faults {
        drop_per_mille: 200,
        ..torn()
    });
    for round in 0..500_u16 {
        let value = round.to_le_bytes();
        let put = Op::Put(Put {
            value: &value,
            ..Put::default()
        });
        fixture.call(client, b"key", put, |_| ());
        fixture.call(client, b"key", Op::Get(Get::default()), |outcome| {
            if let Outcome::Answered(answer) = outcome {
                assert_eq!(answer.value, value);
            }
        });
    }
    let client = fixture.clients[client].side.counters();
    assert!(client.retries > 0, "{client:?}");
}

#[test]
fn only_the_first_request_after_a_pause_is_announced() {
    let mut fixture = Fixture::over(UcWrite, 1, 16, vec![Model::default()]);
    fixture.announce = Announce::AfterPause;
    let client = fixture.join(7);
    let mut announced = 0;
    for pause in [50, 0, 0, 50, 0, 500] {
        fixture.now += Duration::from_micros(pause);
        fixture.call(client, b"key", Op::Get(Get::default()), |_| ());
        announced += u64::from(pause > 0);
        assert_eq!(
            fixture.workers[0].side.counters().announcements,
            announced,
            "after {pause} us"
        );
    }
    assert_eq!(fixture.clients[client].side.counters().retries, 0);
}

#[test]
fn request_path_without_announcement_is_preferred() {
    let choice =
        |has: &Capabilities| RequestPath::best(has).map(|path| (path, Announce::on(path, has)));
    assert_eq!(choice(&capabilities()), Some((UcWrite, Announce::Never)));
    assert_eq!(choice(&unordered()), Some((UdSend, Announce::Never)));
    let asleep = Capabilities {
        wakes_on_write: false,
        uc: false,
        ..capabilities()
    };
    assert_eq!(choice(&asleep), Some((RcWrite, Announce::AfterPause)));
    let connected = Capabilities {
        ud: false,
        ..unordered()
    };
    assert_eq!(choice(&connected), Some((UcWrite, Announce::Always)));
}

/// A plain WRITE does not wake a worker here, so what has to be announced depends on when it may sleep.
#[test]
fn worker_that_never_sleeps_needs_no_announcements() {
    let asleep = Capabilities {
        wakes_on_write: false,
        ..capabilities()
    };
    let of = |spin, has: &Capabilities| Announce::for_spin(UcWrite, has, spin);
    assert_eq!(of(Duration::MAX, &asleep), Announce::Never);
    assert_eq!(of(Duration::from_micros(20), &asleep), Announce::AfterPause);
    assert_eq!(of(Duration::from_micros(19), &asleep), Announce::Always);
    // Without an order of words only the completion shows that a WRITE is whole.
    assert_eq!(of(Duration::MAX, &unordered()), Announce::Always);
}
