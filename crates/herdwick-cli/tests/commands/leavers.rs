//! Clients disconnect with full windows, one after another: the server keeps serving the others.

use crate::common::{Clock, Folder, Server, TIMEOUT};
use herdwick::{Answer, Fabric, Key, Op, Options, Session};

/// Requests in flight: more than a batch of the server.
const WINDOW: usize = 64;
/// Answers that every remaining client gets between two disconnects.
const ANSWERS: usize = 500;
const ROUNDS: usize = 8;

/// A session that keeps its window full.
struct Busy {
    session: Session,
    submitted: usize,
    answered: usize,
}

impl Busy {
    fn new(server: &Server, fabric: Fabric) -> Self {
        let options = Options {
            only: Some(fabric),
            window: WINDOW,
            deadline: TIMEOUT,
            ..Options::default()
        };
        let address = server.address.parse().unwrap();
        let session = Session::dial(&address, &options).unwrap();
        assert_eq!(
            session.transport(),
            fabric.name(),
            "{:?}",
            session.fallback()
        );
        Self {
            session,
            submitted: 0,
            answered: 0,
        }
    }

    fn turn(&mut self, clock: &Clock) {
        let now = clock.now();
        loop {
            let name = format!("key:{}", self.submitted % 1000);
            let key = Key::new(name.as_bytes()).unwrap();
            if self.session.submit(now, key, &Op::Get).is_none() {
                break;
            }
            self.submitted += 1;
        }
        self.session.flush(now);
        let answered = &mut self.answered;
        self.session.poll(clock.now(), &mut |_, answer| {
            assert_eq!(answer, Answer::Miss);
            *answered += 1;
        });
    }
}

/// Runs all of `busy` until each has got [`ANSWERS`] more answers.
fn serve(busy: &mut [Busy]) {
    let clock = Clock::start();
    let served: Vec<_> = busy.iter().map(|busy| busy.answered + ANSWERS).collect();
    while busy
        .iter()
        .zip(&served)
        .any(|(busy, all)| busy.answered < *all)
    {
        busy.iter_mut().for_each(|busy| busy.turn(&clock));
        clock.hurry("answers for those that stay");
    }
}

/// Connects and disconnects clients round by round, in different orders, one by one or all at once.
fn come_and_leave(fabric: Fabric, clients: usize) {
    let folder = Folder::new();
    let more = ["-m", "512", "-p", "0", "--roce", "127.0.0.1:0"];
    let server = Server::run(&folder, 1, &more);
    let mut stay = vec![Busy::new(&server, fabric)];
    for round in 0..ROUNDS {
        stay.extend((1..clients).map(|_| Busy::new(&server, fabric)));
        serve(&mut stay);
        while stay.len() > 1 {
            drop(stay.remove(round % stay.len()));
            if round % 4 == 0 {
                serve(&mut stay);
            }
        }
        serve(&mut stay);
    }
    server.client().set("last", "word").unwrap();
    server.stop();
}

#[test]
fn busy_clients_disconnect_over_shm() {
    for clients in [3, 9] {
        come_and_leave(Fabric::Shm, clients);
    }
}

#[test]
fn busy_clients_disconnect_over_roce() {
    for clients in [3, 6] {
        come_and_leave(Fabric::Roce, clients);
    }
}
