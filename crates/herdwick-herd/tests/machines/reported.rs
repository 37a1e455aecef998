//! A port that reports WRITEs: a worker polls the clients that were written and no others, and finds every
//! request all the same. Clients write no line twice here, so that a request that is not found stays
//! without an answer.

use std::{ops::Range, time::Duration};

use herdwick_check::Rng;
use herdwick_conformance::seeded::Faults;
use herdwick_fabric::{Capabilities, Local, Payload, Port, SendOp, SendWr};
use herdwick_herd::{
    Destination, Refused, RequestPath,
    wire::{LINE_BYTES, LINE_WORDS, Line, OVERFLOW_BYTES, Sequence, Stamp, encode},
};
use herdwick_request::{Get, Mode, Op, Put};

use crate::{
    fixture::{Client, Fixture, capabilities, request},
    model::Model,
};

const NEVER: Duration = Duration::from_secs(1 << 20);
const KEYS: u64 = 40;
/// Steps after which each request has its answer: as many as full windows of torn lines and bodies take to
/// arrive.
const ARRIVED: usize = 200_000;
/// Steps after which a worker has polled every client whose WRITEs were reported for the last time.
const QUIET: usize = 300;

/// Makes `clients` clients at `workers` workers, without retries.
fn fixture(seed: u64, path: RequestPath, [clients, window, workers]: [usize; 3]) -> Fixture<Model> {
    let has = Capabilities {
        gso: seed.is_multiple_of(2),
        reports_writes: true,
        ..capabilities()
    };
    let execs = vec![Model::default(); workers];
    let mut fixture = Fixture::on(has, path, (seed, window), execs);
    (fixture.deadline, fixture.retry_after) = (NEVER, NEVER);
    for worker in &mut fixture.workers {
        worker.pools = true;
    }
    for client in 0..clients {
        fixture.join(1 + client as u16);
    }
    fixture
}

/// Submits one random request of a client; whether it took one.
fn submit(fixture: &mut Fixture<Model>, client: usize, values: usize, rng: &mut Rng) -> bool {
    let key = format!("{client} {}", rng.below(KEYS));
    // Some bodies overflow, by their keys: their WRITEs are none of a line. The replies are small: of large ones
    // only so many may be in flight, and a retry has to fetch the others.
    let (longer, len) = [(0, 8), (0, 20), (60, 30), (230, 40)][rng.index(values)];
    let key = format!("{key}{}", "x".repeat(longer)).into_bytes();
    let value = vec![7; len];
    let op = match rng.below(3) {
        0 => Op::Put(Put {
            value: &value,
            mode: Mode::Set,
            ..Put::default()
        }),
        _ => Op::Get(Get::default()),
    };
    match fixture.clients[client].side.submit(&request(&key, op), 0) {
        Ok(()) => true,
        Err(Refused::Full) => false,
        Err(refused) => panic!("{refused}"),
    }
}

/// Lets everything arrive; then no client waits for an answer, and none has written a line twice.
fn settle(fixture: &mut Fixture<Model>, answers: &mut u64) {
    let waits = |fixture: &Fixture<Model>| {
        let mut clients = fixture.clients.iter();
        clients.any(|client| client.side.in_flight() > 0)
    };
    for _ in 0..ARRIVED {
        if !waits(fixture) {
            break;
        }
        fixture.step(&mut |_, _, _| *answers += 1);
    }
    for _ in 0..QUIET {
        fixture.step(&mut |_, _, _| *answers += 1);
    }
    for worker in &fixture.workers {
        let counters = worker.side.counters();
        assert_eq!(
            counters.replies_held + counters.replies_refused,
            0,
            "{counters:?}"
        );
    }
    for client in &fixture.clients {
        let counters = client.side.counters();
        assert_eq!(client.side.in_flight(), 0, "{counters:?}");
        assert_eq!(counters.retries + counters.abandoned, 0);
    }
    for worker in &fixture.workers {
        assert!(!worker.side.has_news());
    }
}

/// Clients submit at random, leave and are replaced in their places, over a network that delays,
/// reorders, repeats or tears, and loses nothing.
fn run(seed: u64) {
    eprintln!("seed {seed}");
    let mut rng = Rng::new(seed);
    let path = [RequestPath::UcWrite, RequestPath::RcWrite][seed as usize % 2];
    let sizes = [1 + rng.index(8), 1 << rng.index(9), 1 + rng.index(2)];
    let mut fixture = fixture(seed, path, sizes);
    let mut faults = Faults {
        delay_max: Duration::from_micros(rng.below(6)),
        ..Faults::default()
    };
    if rng.below(2) == 0 {
        faults.tear = Duration::from_micros(rng.below(4));
    } else {
        // Over UC, a line that comes again may lie over the next one in its slot, which a retry repairs.
        if path == RequestPath::RcWrite {
            faults.duplicate_per_mille = [0, 100][rng.index(2)];
        }
        faults.reorder_per_mille = [0, 200][rng.index(2)];
        faults.reorder_window = Duration::from_micros(rng.below(100));
    }
    // A body that comes after its line is repaired by a retry, too.
    let overtaken = path == RequestPath::UcWrite && faults.reorder_per_mille > 0;
    let values = if overtaken { 2 } else { 4 };
    fixture.faults(faults);
    let (mut epoch, mut submitted, mut answers) = (100, 0, 0);
    for _ in 0..600 {
        for client in 0..sizes[0] {
            for _ in 0..[0, 0, 1, 4, 64][rng.index(5)] {
                submitted += u64::from(submit(&mut fixture, client, values, &mut rng));
            }
        }
        if rng.below(40) == 0 {
            let client = rng.index(sizes[0]);
            let open = fixture.clients[client].side.in_flight() as u64;
            fixture.revoke(client);
            epoch += 1;
            fixture.rejoin(client, epoch);
            submitted -= open;
        }
        fixture.step(&mut |_, _, _| answers += 1);
        (0..rng.below(3)).for_each(|_| fixture.advance());
    }
    settle(&mut fixture, &mut answers);
    assert_eq!(answers, submitted);
}

#[test]
fn reported_workers_find_every_request() {
    for seed in 0..herdwick_check::length(40, 400) {
        run(seed);
    }
}

/// Writes the lines of the GETs with numbers `sequences` by one WRITE, and waits until they are there.
fn write(fixture: &mut Fixture<Model>, sequences: Range<u32>) {
    let Client { port, channels, .. } = &mut fixture.clients[0];
    let channel = &channels[0];
    let Destination::Slots { lines, .. } = channel.to else {
        panic!("a client that writes");
    };
    let first = fixture.window.slot(Sequence::new(sequences.start));
    let stage = port.region(channel.stage).expect("ours").clone();
    for (n, sequence) in sequences.clone().enumerate() {
        let mut line = Line::default();
        let stamp = Stamp::new(channel.epoch, Sequence::new(sequence));
        let get = request(b"key", Op::Get(Get::default()));
        encode(&get, stamp, &mut line, &mut [0; OVERFLOW_BYTES]).expect("short");
        stage.write_words(n * LINE_WORDS, line.words());
    }
    let payload = Payload::Region(Local {
        region: channel.stage,
        offset: 0,
        len: sequences.len() * LINE_BYTES,
    });
    let wr = SendWr {
        wr_id: 0,
        op: SendOp::Write {
            payload,
            to: lines.offset((first * LINE_BYTES) as u64),
            imm: None,
        },
        signaled: false,
        solicited: false,
        fence: false,
    };
    port.post_send(channel.requests, &[wr]).expect("a slot");
    (0..50).for_each(|_| fixture.advance());
}

fn served(fixture: &Fixture<Model>) -> u64 {
    fixture.workers[0].side.counters().requests
}

#[test]
fn lines_of_one_write_that_fill_more_than_a_batch_are_all_found() {
    let mut fixture = fixture(1, RequestPath::UcWrite, [1, 64, 1]);
    write(&mut fixture, 0..40);
    assert_eq!([fixture.serve(), fixture.serve()], [32, 8]);
    assert!(!fixture.workers[0].side.has_news());
}

#[test]
fn a_request_ahead_of_a_missing_one_is_found_where_the_sweep_was_before() {
    let mut fixture = fixture(1, RequestPath::UcWrite, [1, 64, 1]);
    for _ in 0..2 {
        // The second time there is no request behind the report: the sweep looks for one.
        write(&mut fixture, 0..1);
        (0..2).for_each(|_| _ = fixture.serve());
    }
    assert_eq!(served(&fixture), 1);
    write(&mut fixture, 5..6);
    (0..5).for_each(|_| _ = fixture.serve());
    assert_eq!(served(&fixture), 2);
    assert!(!fixture.workers[0].side.has_news());
}

/// As many passes as sweep a whole window follow a WRITE without a request, and then none.
#[test]
fn a_client_that_writes_no_requests_is_polled_no_more() {
    let mut fixture = fixture(1, RequestPath::UcWrite, [1, 256, 1]);
    for _ in 0..20 {
        write(&mut fixture, 0..1);
    }
    (0..17).for_each(|_| _ = fixture.serve());
    // Stored without a WRITE, so that no report tells of it.
    let lines = fixture.clients[0].leases[0].lines.clone();
    let mut next = Line::default();
    let stamp = Stamp::new(fixture.clients[0].channels[0].epoch, Sequence::new(1));
    let get = request(b"key", Op::Get(Get::default()));
    encode(&get, stamp, &mut next, &mut [0; OVERFLOW_BYTES]).expect("short");
    lines.write_words(LINE_WORDS, next.words());
    (0..300).for_each(|_| _ = fixture.serve());
    assert_eq!(served(&fixture), 1);
    write(&mut fixture, 2..3);
    fixture.serve();
    assert_eq!(served(&fixture), 3);
}

/// Seen to fail where datagrams might fill each batch, as there were no polled clients.
#[test]
fn datagrams_leave_room_for_clients_that_write() {
    const PASSES: usize = 100;
    let mut fixture = fixture(1, RequestPath::UdSend, [4, 32, 1]);
    fixture.path = RequestPath::UcWrite;
    let writer = fixture.join(9);
    let (mut datagrams, mut writes) = (0, 0);
    let ask = |fixture: &mut Fixture<Model>, client: usize| {
        let get = request(b"key", Op::Get(Get::default()));
        fixture.clients[client].side.submit(&get, 0).is_ok()
    };
    assert!(ask(&mut fixture, writer));
    for _ in 0..PASSES {
        for client in 0..writer {
            while ask(&mut fixture, client) {}
        }
        fixture.step(&mut |client, _, _| match client == writer {
            true => writes += 1,
            false => datagrams += 1,
        });
    }
    assert!(
        datagrams > 30 * PASSES,
        "{datagrams}: the batches are not full"
    );
    assert_eq!(writes, 1, "beside {datagrams} datagrams");
}
