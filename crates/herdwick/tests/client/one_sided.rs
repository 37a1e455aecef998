//! Reads in the server's memory: what they find, in which order, and when they end.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use herdwick::{
    Answer, Client, Key, Mode, OneSidedCounters, OneSidedReads, Op, Options, Put, Session,
};
use herdwick_check::{Action, Operation, Register, Rng, check, count};
use herdwick_herd::{
    handshake::{ClientEvent, ClientHandshake},
    hello::{Claim, Hello, Offer, OneSidedOffer},
};
use herdwick_mem::{Access, Mapping};
use herdwick_providers::Fabric;
use herdwick_server::{Config, Engine, Listen, Offers, OneSidedReads as Readers, Server, spawn};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// The engines whose memory clients read.
const ENGINES: [Engine; 2] = [Engine::Herd, Engine::Slab];

pub(crate) fn config_of(engine: Engine, readers: Readers) -> Config {
    Config {
        engine,
        one_sided_reads: readers,
        workers: Some(2),
        offers: Offers {
            debug: true,
            ..Offers::default()
        },
        ..Config::local()
    }
}

fn config(readers: Readers) -> Config {
    config_of(Engine::Herd, readers)
}

fn server() -> Server {
    spawn(config(Readers::Owner)).unwrap()
}

pub(crate) fn patient(one_sided: OneSidedReads) -> Options {
    Options {
        // A loaded machine may keep a worker off its CPU for long.
        deadline: Duration::from_secs(60),
        one_sided,
        ..Options::default()
    }
}

pub(crate) fn client(server: &Server, one_sided: OneSidedReads) -> Client {
    let address = server.address().to_string();
    Client::connect_with(&address, patient(one_sided)).unwrap()
}

pub(crate) fn counters(client: &Client) -> OneSidedCounters {
    let session = client.session().expect("a session");
    session.one_sided().expect("it may read the stores")
}

/// Sends lines of memcached's protocol, each of which is answered by a line.
pub(crate) fn say(server: &Server, lines: &[&str]) -> Vec<String> {
    let mut stream = TcpStream::connect(server.address().to_string()).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let answers = lines.iter().map(|line| {
        // At once: the end of a line that is sent apart waits for an acknowledgement.
        stream.write_all(format!("{line}\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        reader.read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    });
    answers.collect()
}

#[expect(clippy::disallowed_methods, reason = "a session takes a clock")]
fn clock() -> Instant {
    Instant::now()
}

#[test]
fn reads_find_what_requests_find() {
    let server = server();
    let mut reader = client(&server, OneSidedReads::Always);
    let mut other = client(&server, OneSidedReads::Never);
    assert!(other.session().unwrap().one_sided().is_none());
    assert_eq!(counters(&reader), OneSidedCounters::default());
    let lens = [
        0, 1, 8, 20, 31, 32, 33, 100, 960, 1024, 4095, 4096, 9000, 100_000, 900_000,
    ];
    for (n, len) in (1..).zip(lens) {
        let (key, value) = (format!("key-{len}"), vec![n as u8; len]);
        other.set(&key, Put::new(&value).flags(n)).unwrap();
        let item = reader.gets(&key).unwrap().unwrap();
        assert_eq!((&item.value, item.flags), (&value, n));
        assert_eq!(Some(item), other.gets(&key).unwrap());
        assert_eq!(counters(&reader).hits, u64::from(n), "{len}");
    }
    let keys: Vec<_> = (0..500).map(|n| format!("many-{n}")).collect();
    for key in keys.iter().step_by(2) {
        other.set(key, key).unwrap();
    }
    let before = counters(&reader);
    let items = reader.get_many(&keys).unwrap();
    for (n, (key, item)) in keys.iter().zip(items).enumerate() {
        let found = item.map(|item| item.value);
        assert_eq!(found.is_some(), n % 2 == 0);
        assert!(found.is_none_or(|value| value == key.as_bytes()));
    }
    let after = counters(&reader);
    assert_eq!(after.hits - before.hits, 250);
    assert_eq!(after.absent - before.absent, 250);
}

#[test]
fn nothing_that_is_gone_is_read_after_its_end_was_acknowledged() {
    let server = server();
    let mut reader = client(&server, OneSidedReads::Always);
    let mut other = client(&server, OneSidedReads::Never);
    let minute = Duration::from_secs(60);
    for key in ["deleted", "replaced", "flushed", "late"] {
        other.set(key, "old").unwrap();
    }
    for key in ["mortal", "touched"] {
        other.set(key, Put::new("old").ttl(minute)).unwrap();
    }
    for key in [
        "deleted", "replaced", "mortal", "touched", "flushed", "late",
    ] {
        assert_eq!(reader.get(key).unwrap().as_deref(), Some(&b"old"[..]));
    }
    assert_eq!(counters(&reader).hits, 6);
    assert!(other.delete("deleted").unwrap());
    assert_eq!(reader.get("deleted").unwrap(), None);
    for value in ["NEW", "longer than it was before"] {
        other.set("replaced", value).unwrap();
        let read = reader.get("replaced").unwrap();
        assert_eq!(read.as_deref(), Some(value.as_bytes()));
    }
    // The reader tells the time itself: the workers may sleep.
    assert!(other.touch("touched", 5 * minute).unwrap());
    assert_eq!(say(&server, &["debugtime 61"]), ["OK"]);
    assert_eq!(reader.get("mortal").unwrap(), None);
    let touched = reader.get("touched").unwrap();
    assert_eq!(touched.as_deref(), Some(&b"old"[..]));
    assert_eq!(say(&server, &["debugtime 300"]), ["OK"]);
    assert_eq!(reader.get("touched").unwrap(), None);
    assert_eq!(counters(&reader).expired, 2);
    // Where the server's clock stands, it is not the reader's.
    other.set("stopped", Put::new("old").ttl(minute)).unwrap();
    assert_eq!(say(&server, &["debugtime p"]), ["OK"]);
    assert!(reader.get("stopped").unwrap().is_some());
    assert_eq!(counters(&reader).expired, 3);
    assert_eq!(say(&server, &["debugtime r"]), ["OK"]);
    assert_eq!(say(&server, &["flush_all 100"]), ["OK"]);
    assert!(reader.get("late").unwrap().is_some());
    assert_eq!(say(&server, &["debugtime 101"]), ["OK"]);
    assert_eq!(reader.get("late").unwrap(), None);
    other.set("flushed", "old").unwrap();
    assert!(reader.get("flushed").unwrap().is_some());
    other.flush_all().unwrap();
    assert_eq!(reader.get("flushed").unwrap(), None);
    assert!(counters(&reader).flushed >= 2);
    // A stale item is for the server: one reader wins it.
    assert_eq!(
        say(&server, &["set s 0 0 1\r\nx", "md s I T30"]),
        ["STORED", "HD"]
    );
    let before = counters(&reader);
    assert!(reader.get("s").unwrap().is_some());
    assert_eq!(counters(&reader).stale, before.stale + 1);
}

#[test]
fn who_may_not_read_the_stores_uses_requests() {
    let off = spawn(config(Readers::Off)).unwrap();
    let all = spawn(config(Readers::All)).unwrap();
    let text = Options {
        fabric: false,
        ..patient(OneSidedReads::Always)
    };
    let text = Client::connect_with(&all.address().to_string(), text).unwrap();
    for client in [
        client(&off, OneSidedReads::Always),
        client(&all, OneSidedReads::Never),
        text,
    ] {
        assert!(client.session().unwrap().one_sided().is_none());
    }
    let mut reader = client(&all, OneSidedReads::Auto);
    reader.set("a", "1").unwrap();
    assert_eq!(reader.get("a").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(counters(&reader).hits, 1);
}

/// Reads, sets and deletes of few keys, many in flight: each read finds what was stored by the last change that
/// was submitted before it.
#[test]
fn requests_of_one_key_take_effect_in_the_order_of_submission() {
    ENGINES.into_iter().for_each(requests_take_effect_in_order);
}

fn requests_take_effect_in_order(engine: Engine) {
    let server = spawn(config_of(engine, Readers::Owner)).unwrap();
    let address = server.address().to_string().parse().unwrap();
    let mut session = Session::dial(&address, &patient(OneSidedReads::Always)).unwrap();
    let (start, mut rng) = (clock(), Rng::new(3));
    let (mut stored, mut due) = (HashMap::new(), HashMap::new());
    let mut answered = 0;
    let total = count("HERDWICK_ONE_SIDED_OPERATIONS", 20_000);
    for n in 0..total {
        let key = format!("key-{}", rng.below(40));
        let mut value = n.to_le_bytes().to_vec();
        value.resize(8 + rng.index(3) * 400, n as u8);
        let op = match rng.below(20) {
            0 => Op::Store(Mode::Set, Put::new(&value)),
            1 => Op::Delete,
            _ => Op::Get,
        };
        let ticket = loop {
            let name = Key::new(key.as_bytes()).unwrap();
            if let Some(ticket) = session.submit(start.elapsed(), name, &op) {
                break ticket;
            }
            assert_eq!(session.broken(), None);
            session.flush(start.elapsed());
            answered += take(&mut session, start, &mut due);
        };
        match op {
            Op::Get => {
                due.insert(ticket, stored.get(&key).cloned());
            }
            Op::Delete => drop(stored.remove(&key)),
            _ => drop(stored.insert(key, value)),
        }
    }
    session.flush(start.elapsed());
    while answered < total {
        session.wait(start.elapsed());
        answered += take(&mut session, start, &mut due);
    }
    let counters = session.one_sided().unwrap();
    assert!(counters.hits > total / 10, "{counters:?}");
    assert!(due.is_empty());
}

type Due = HashMap<herdwick::Ticket, Option<Vec<u8>>>;

/// Takes answers, and compares those of reads. Returns how many there were.
fn take(session: &mut Session, start: Instant, due: &mut Due) -> u64 {
    let mut answered = 0;
    session.poll(start.elapsed(), &mut |ticket, answer| {
        answered += 1;
        match (answer, due.remove(&ticket)) {
            (Answer::Hit(hit), Some(stored)) => assert_eq!(Some(hit.value), stored.as_deref()),
            (Answer::Miss, Some(stored)) => assert_eq!(stored, None),
            (Answer::Done | Answer::Miss, None) => {}
            (other, _) => panic!("{other:?}"),
        }
    });
    answered
}

/// Clients by TCP, by HERD, and by reads of the memory, on a few keys; with large values, times to live and
/// flushes, so that memory is used again. Each key's history is linearizable.
#[test]
fn mixed_histories_are_linearizable() {
    ENGINES.into_iter().for_each(mixed_histories_of);
}

fn mixed_histories_of(engine: Engine) {
    const KEYS: usize = 6;
    let server = spawn(Config {
        memory_bytes: 16 << 20,
        workers: Some(1),
        ..config_of(engine, Readers::Owner)
    })
    .unwrap();
    let calls = count("HERDWICK_ONE_SIDED_CALLS", 1_500);
    let text = Options {
        fabric: false,
        ..patient(OneSidedReads::Never)
    };
    let kinds = [
        text,
        patient(OneSidedReads::Never),
        patient(OneSidedReads::Always),
        patient(OneSidedReads::Always),
    ];
    let (start, hits) = (clock(), AtomicU64::new(0));
    let now = || u64::try_from(start.elapsed().as_nanos()).unwrap();
    let address = server.address().to_string();
    let play = |number: usize, options: Options| {
        let mut client = Client::connect_with(&address, options).unwrap();
        let mut rng = Rng::new(number as u64);
        let mut histories = vec![Vec::new(); KEYS];
        for call in 0..calls {
            let n = rng.index(KEYS);
            let key = format!("key-{n}");
            let value = (call << 8) + number as u64 + 1;
            let called = now();
            let action = match rng.below(10) {
                0 | 1 => {
                    let mut bytes = value.to_le_bytes().to_vec();
                    bytes.resize([8, 32, 700, 60_000][rng.index(4)], number as u8);
                    let put = Put::new(&bytes);
                    let put = match rng.below(2) {
                        0 => put,
                        _ => put.ttl(Duration::from_secs(1000)),
                    };
                    client.set(&key, put).unwrap();
                    Action::Put {
                        value,
                        done: Some(true),
                    }
                }
                2 => Action::Delete {
                    done: Some(client.delete(&key).unwrap()),
                },
                _ => Action::Get {
                    value: client.get(&key).unwrap().map(|bytes| {
                        let (head, rest) = bytes.split_first_chunk::<8>().unwrap();
                        let value = u64::from_le_bytes(*head);
                        let by = (value & 0xff) as u8 - 1;
                        assert!(rest.iter().all(|byte| *byte == by), "torn");
                        value
                    }),
                },
            };
            histories[n].push(Operation {
                client: number,
                called,
                answered: Some(now()),
                action,
            });
        }
        let session = client.session().unwrap();
        let read = session.one_sided().map_or(0, |counters| counters.hits);
        hits.fetch_add(read, Ordering::Relaxed);
        histories
    };
    let histories = thread::scope(|scope| {
        let clients = kinds.into_iter().enumerate();
        let clients = clients.map(|(number, options)| scope.spawn(move || play(number, options)));
        let clients: Vec<_> = clients.collect();
        let histories = clients.into_iter().map(|client| client.join().unwrap());
        histories.collect::<Vec<_>>()
    });
    for key in 0..KEYS {
        let history: Vec<_> = histories.iter().flat_map(|of| of[key].clone()).collect();
        // A cache with room for all.
        check(Register::KEEPS, &history).unwrap();
    }
    assert!(hits.into_inner() > calls / 4);
}

/// The session itself asks whether the server lives: who drives one makes no other call.
#[test]
fn session_whose_server_has_ended_reads_no_more() {
    let server = server();
    let address = server.address().to_string().parse().unwrap();
    let mut session = Session::dial(&address, &patient(OneSidedReads::Always)).unwrap();
    client(&server, OneSidedReads::Never).set("a", "1").unwrap();
    let start = clock();
    let mut read = |after: Duration| {
        let now = start.elapsed() + after;
        let ticket = session.submit(now, Key::new(b"a").unwrap(), &Op::Get);
        session.flush(now);
        let mut lost = None;
        session.poll(now, &mut |of, answer| {
            assert_eq!(Some(of), ticket);
            lost = Some(matches!(answer, Answer::Lost(_)));
        });
        lost.unwrap()
    };
    assert!(!read(Duration::ZERO));
    drop(server);
    assert!(read(Duration::from_millis(1)));
    assert!(session.one_sided().is_none(), "the memory is given up");
}

/// The memory of a server that has ended stays mapped. Another one at its address has other data.
#[test]
fn memory_of_a_server_that_has_ended_is_read_no_more() {
    let first = server();
    let address = first.address().clone();
    let name = address.to_string();
    let mut reader = client(&first, OneSidedReads::Always);
    let listen: SocketAddr = name.parse().unwrap();
    let listen = Listen::Tcp(vec![listen.into()]);
    let mut current = Some(first);
    for round in 0..10_u32 {
        let value = round.to_string();
        let mut writer = client(current.as_ref().unwrap(), OneSidedReads::Never);
        writer.set("a", &value).unwrap();
        for _ in 0..2 {
            let read = reader.get("a").unwrap();
            assert_eq!(read.as_deref(), Some(value.as_bytes()), "round {round}");
        }
        assert!(counters(&reader).hits > 0);
        drop(writer);
        drop(current.take());
        current = Some(loop {
            let config = Config {
                listen: listen.clone(),
                ..config(Readers::Owner)
            };
            // The port is free when the kernel is done with its connections.
            if let Ok(server) = spawn(config) {
                break server;
            }
        });
    }
}

fn stat(client: &mut Client, name: &str) -> u64 {
    let stats = client.stats("").unwrap();
    let found = stats.into_iter().find(|(found, _)| found == name);
    found.unwrap().1.parse().unwrap()
}

/// Items that are read in the memory alone are kept, while others are evicted; and their reads are counted.
#[test]
fn reads_are_reported_to_the_server() {
    ENGINES.into_iter().for_each(reads_of_are_reported);
}

fn reads_of_are_reported(engine: Engine) {
    let server = spawn(Config {
        memory_bytes: 8 << 20,
        workers: Some(1),
        leases: Some(herdwick_server::Leases {
            clients_max: 4,
            ..herdwick_server::Leases::default()
        }),
        ..config_of(engine, Readers::Owner)
    })
    .unwrap();
    let mut reader = client(&server, OneSidedReads::Always);
    let mut writer = client(&server, OneSidedReads::Never);
    let value = vec![7; 1000];
    let name = |kind: &str, n: u32| format!("{kind}-{n}");
    // One after the other: what lies among items that are read is not evicted before segments of others are.
    for kind in ["hot", "cold"] {
        for n in 0..100 {
            writer.set(name(kind, n), &value).unwrap();
        }
    }
    let hot: Vec<_> = (0..100).map(|n| name("hot", n)).collect();
    let mut stored = 0;
    while stat(&mut writer, "evictions") < 8_000 {
        for _ in 0..200 {
            writer.set(name("other", stored), &value).unwrap();
            stored += 1;
        }
        let due = clock() + Duration::from_millis(12);
        while clock() < due {
            reader.get_many(&hot).unwrap();
        }
    }
    let kept = |client: &mut Client, kind| {
        let kept = (0..100).filter(|n| client.get(name(kind, *n)).unwrap().is_some());
        kept.count()
    };
    let before = counters(&reader);
    // `me` shows whether an item has been read, and is no read itself.
    let has_been_read = |kind: &str| {
        let lines: Vec<_> = (0..100).map(|n| format!("me {}", name(kind, n))).collect();
        let lines: Vec<_> = lines.iter().map(String::as_str).collect();
        let said = say(&server, &lines);
        said.iter()
            .filter(|line| line.contains(" fetch=yes"))
            .count()
    };
    assert!(has_been_read("hot") > 90 && has_been_read("cold") == 0);
    let (hot, cold) = (kept(&mut reader, "hot"), kept(&mut writer, "cold"));
    assert!(
        hot > 90 && cold < hot,
        "{hot} that were read, {cold} others"
    );
    assert!(
        before.hits > 1000 && before.absent < before.hits / 4,
        "{before:?}"
    );
    // The last of them are reported when the session is used for long enough.
    while stat(&mut writer, "one_sided_hits") < before.hits {
        reader.get("hot-0").unwrap();
    }
    let counted = stat(&mut writer, "one_sided_hits");
    assert!(counted <= counters(&reader).hits);
    assert!(stat(&mut writer, "get_hits") >= counted);
    assert!(stat(&mut writer, "read_reports") > 1);
    // A command has its place beside a report.
    for _ in 0..1000 {
        reader.get("hot-0").unwrap();
        reader.version().unwrap();
    }
}

/// Claims a lease with its stores, and returns the descriptors of the grant.
fn granted(server: &Server) -> Vec<OwnedFd> {
    let mut stream = TcpStream::connect(server.address().to_string()).unwrap();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let hello = Hello {
        fabrics: vec!["shm".to_owned()],
        boot: herdwick_herd::hello::BootId::parse(&boot),
        ..Hello::default()
    };
    stream.write_all(hello.to_line().as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    let offer = Offer::parse(line.trim_end().as_bytes(), &Fabric::all_words()).unwrap();
    assert_eq!(offer.one_sided, Some(OneSidedOffer::Reads));
    let lease = offer.fabric("shm").unwrap();
    let mut socket = UnixStream::connect(lease.socket.as_ref().unwrap()).unwrap();
    let (mut shake, claim) = ClientHandshake::new(&Claim {
        token: lease.token,
        window: 1,
        reply_bytes_max: 64,
        reads: true,
    });
    socket.write_all(&claim).unwrap();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut head = vec![0; shake.wanted()];
    let into = &mut [std::io::IoSliceMut::new(&mut head)];
    recvmsg(&socket, into, &mut control, RecvFlags::empty()).unwrap();
    let fds = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => rights.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    let fds = fds.collect();
    assert!(shake.handle_input(&head, fds).unwrap().is_none());
    let mut rest = vec![0; shake.wanted()];
    socket.read_exact(&mut rest).unwrap();
    match shake.handle_input(&rest, Vec::new()).unwrap().unwrap() {
        ClientEvent::Granted(grant, tickets) => {
            assert!(grant.workers.iter().all(|worker| worker.store.is_some()));
            let stores = tickets.into_iter().filter_map(|worker| worker.store);
            stores.flat_map(|store| store.fds).collect()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn mapping_of_a_store_cannot_be_made_writable() {
    let server = server();
    let fds = granted(&server);
    assert_eq!(fds.len(), 2, "one for each worker");
    for fd in fds {
        assert!(Mapping::shared(&fd, 4096, Access::Read).is_ok());
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let again = std::fs::File::options().read(true).write(true).open(path);
        for fd in [fd, again.unwrap().into()] {
            let refused = Mapping::shared(&fd, 4096, Access::ReadWrite).unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
            assert!(rustix::io::pwrite(&fd, b"x", 0).is_err());
            assert!(rustix::fs::ftruncate(&fd, 0).is_err());
        }
    }
}
