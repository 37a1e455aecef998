//! Turns: how the requests of a batch are divided between clients.

use herdwick_fabric::Capabilities;
use herdwick_herd::RequestPath;
use herdwick_request::{Get, Op};

use crate::{
    fixture::{Fixture, capabilities, request},
    model::Model,
};

/// Far longer than the network takes to deliver, in microseconds.
const DELIVERED: usize = 50;

fn get() -> Op<'static> {
    Op::Get(Get::default())
}

/// Makes one worker and `clients` clients, all hot, so that every pass polls them. `gso`:
/// whether messages travel in GSO batches.
fn fixture(clients: usize, gso: bool) -> Fixture<Model> {
    let has = Capabilities {
        gso,
        ..capabilities()
    };
    let execs = vec![Model::default()];
    let mut fixture = Fixture::on(has, RequestPath::UcWrite, (1, 32), execs);
    for client in 0..clients {
        fixture.join(1 + client as u16);
        fixture.call(client, b"key", get(), |_| ());
    }
    fixture
}

/// Makes every client submit until it has `in_flight` requests, and the network deliver them.
fn ask(fixture: &mut Fixture<Model>, in_flight: usize) {
    for client in &mut fixture.clients {
        while client.side.in_flight() < in_flight {
            client
                .side
                .submit(&request(b"key", get()), 0)
                .expect("a slot");
        }
        client.side.flush(&mut client.port, fixture.now);
    }
    (0..DELIVERED).for_each(|_| fixture.advance());
}

/// Adds the new answers to `answers`, by client.
fn hear(fixture: &mut Fixture<Model>, answers: &mut [usize]) {
    for _ in 0..DELIVERED {
        fixture.advance();
        fixture.poll_clients(&mut |client, _, _| answers[client] += 1);
    }
}

/// Returns how many requests of each of twelve busy clients one batch answers.
fn shares(gso: bool) -> [usize; 12] {
    let (mut fixture, mut answers) = (fixture(12, gso), [0; 12]);
    ask(&mut fixture, 16);
    assert_eq!(fixture.serve(), 32, "a full batch");
    hear(&mut fixture, &mut answers);
    answers.sort_unstable();
    answers
}

#[test]
fn batch_takes_many_clients_without_gso() {
    assert_eq!(shares(false), [0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4]);
}

#[test]
fn batch_takes_few_clients_with_gso() {
    assert_eq!(shares(true), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 16]);
}

#[test]
fn client_interrupted_by_a_full_batch_is_compensated() {
    for clients in [2, 4, 5] {
        let (mut fixture, mut answers) = (fixture(clients, true), vec![0; clients]);
        for _ in 0..40 * clients {
            ask(&mut fixture, 20);
            fixture.serve();
            hear(&mut fixture, &mut answers);
        }
        let (least, most) = (answers.iter().min(), answers.iter().max());
        let (Some(least), Some(most)) = (least, most) else {
            unreachable!("there are clients");
        };
        assert!(most - least <= most / 10, "{answers:?}");
    }
}

/// Clients that were silent are looked at 16 a pass, in turns; a batch is full after eight of them.
#[test]
fn client_skipped_by_a_full_batch_is_polled_first_in_the_next() {
    let mut fixture = Fixture::new(1, 32, vec![Model::default()]);
    (0..32).for_each(|client| _ = fixture.join(1 + client));
    // The last takes the place of each that had requests, and so comes behind it.
    let busy = [0, 31, 30, 29, 28, 27, 26, 25, 24];
    for client in busy {
        let client = &mut fixture.clients[client];
        for _ in 0..4 {
            let slot = client.side.submit(&request(b"key", get()), 0);
            slot.expect("a slot");
        }
        client.side.flush(&mut client.port, fixture.now);
    }
    (0..DELIVERED).for_each(|_| fixture.advance());
    assert_eq!(fixture.serve(), 32, "a full batch");
    assert_eq!(fixture.serve(), 4, "of the ninth");
    let mut answers = [0; 32];
    hear(&mut fixture, &mut answers);
    assert!(busy.into_iter().all(|client| answers[client] == 4));
}

/// Three busy clients and one pass, so that the next does not begin with the first of them.
fn in_the_middle_of_a_turn() -> Fixture<Model> {
    let mut fixture = fixture(3, true);
    for _ in 0..2 {
        ask(&mut fixture, 32);
        fixture.serve();
    }
    fixture
}

fn leave(fixture: &mut Fixture<Model>, client: usize) {
    let id = fixture.clients[client].leases[0].id;
    assert!(fixture.workers[0].side.detach(id).is_some());
}

/// Returns how many answers each client gets from now on, until there are no more.
fn drain(fixture: &mut Fixture<Model>) -> [usize; 3] {
    let mut answers = [0; 3];
    hear(fixture, &mut answers);
    while fixture.serve() > 0 {
        hear(fixture, &mut answers);
    }
    answers
}

#[test]
fn client_detached_during_a_turn_delays_no_other() {
    for leavers in [[0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1]] {
        let mut fixture = in_the_middle_of_a_turn();
        for leaver in leavers {
            leave(&mut fixture, leaver);
            fixture.serve();
        }
        let stays = 3 - leavers[0] - leavers[1];
        let busy = fixture.clients[stays].side.in_flight();
        assert_eq!(
            drain(&mut fixture)[stays],
            busy,
            "after {leavers:?} were detached"
        );
    }
}

#[test]
fn new_client_is_served_after_all_detached_during_a_turn() {
    let mut fixture = in_the_middle_of_a_turn();
    (0..3).for_each(|client| leave(&mut fixture, client));
    assert_eq!(fixture.serve(), 0);
    fixture.clients.clear();
    let next = fixture.join(9);
    fixture.call(next, b"key", get(), |_| ());
}
