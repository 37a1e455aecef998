//! The client for tokio: many tasks on one session, cancelled and disconnected at any time, against servers
//! in this process and ones that do not answer.

use std::{
    future::Future,
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use herdwick::{Cas, Client as Blocking, Error, Options, Put, aio::AsyncClient as Client};
use herdwick_server::{Config, Listen, Server, spawn};
use tokio::runtime::{Builder, Runtime};

/// A loaded machine may keep a worker off its CPU for long.
const DEADLINE: Duration = Duration::from_secs(600);

fn server() -> Server {
    spawn(Config {
        workers: Some(2),
        ..Config::local()
    })
    .unwrap()
}

/// One thread, and several.
fn runtimes() -> [Runtime; 2] {
    [
        Builder::new_current_thread().enable_all().build().unwrap(),
        Builder::new_multi_thread()
            .worker_threads(3)
            .enable_all()
            .build()
            .unwrap(),
    ]
}

/// The best transport, and memcached's protocol.
fn transports() -> [Options; 2] {
    [true, false].map(|fabric| Options {
        fabric,
        deadline: DEADLINE,
        ..Options::default()
    })
}

/// Runs `test` with each transport on each runtime.
fn everywhere<F: Future<Output = ()>>(server: &Server, test: impl Fn(Client) -> F) {
    let address = server.address().to_string();
    for runtime in runtimes() {
        for options in transports() {
            runtime.block_on(async {
                let by = options.fabric;
                let client = Client::connect_with(&address, options).await.unwrap();
                assert_eq!(client.transport() == Some("tcp"), !by);
                client.flush_all().await.unwrap();
                test(client).await;
            });
        }
    }
}

#[test]
fn calls_have_the_results_of_the_blocking_client() {
    let server = server();
    everywhere(&server, |client| async move {
        let mut other = Blocking::connect(&server_address(&client)).unwrap();
        assert_eq!(client.get("k").await.unwrap(), None);
        client.set("k", Put::new("1").flags(7)).await.unwrap();
        let item = client.gets("k").await.unwrap().unwrap();
        assert_eq!(Some(&item), other.gets("k").unwrap().as_ref());
        assert!(!client.add("k", "2").await.unwrap());
        assert!(client.add("new", "2").await.unwrap());
        assert!(!client.replace("none", "2").await.unwrap());
        assert_eq!(
            client.cas("k", "41", item.version).await.unwrap(),
            Cas::Stored
        );
        assert_eq!(
            client.cas("k", "42", item.version).await.unwrap(),
            Cas::Changed
        );
        assert_eq!(client.cas("none", "42", 1).await.unwrap(), Cas::Missing);
        assert_eq!(client.incr("k", 1).await.unwrap(), Some(42));
        assert_eq!(client.decr("k", 100).await.unwrap(), Some(0));
        assert_eq!(client.incr("none", 1).await.unwrap(), None);
        assert!(client.append("new", ">").await.unwrap());
        assert!(client.prepend("new", "<").await.unwrap());
        assert!(matches!(
            client.incr("new", 1).await,
            Err(Error::NotNumeric)
        ));
        assert_eq!(other.get("new").unwrap().unwrap(), b"<2>");
        assert!(client.touch("k", DEADLINE).await.unwrap());
        assert!(client.delete("k").await.unwrap() && !client.delete("k").await.unwrap());
        let large = vec![b'x'; 2 << 20];
        assert!(matches!(
            client.set("k", &large).await,
            Err(Error::TooLarge)
        ));
        client.set("k", &large[..500_000]).await.unwrap();
        assert_eq!(client.get("k").await.unwrap().unwrap().len(), 500_000);
        assert!(matches!(client.get("a b").await, Err(Error::Usage(_))));
        assert_eq!(client.version().await.unwrap(), other.version().unwrap());
        assert!(client.stats("").await.unwrap().len() > 20);
        let keys: Vec<_> = (0..1000).map(|number| format!("many-{number}")).collect();
        for key in keys.iter().step_by(3) {
            client.set(key, key.as_str()).await.unwrap();
        }
        let found = client.get_many(&keys).await.unwrap();
        for (number, (key, item)) in keys.iter().zip(found).enumerate() {
            let wanted = (number % 3 == 0).then(|| key.clone().into_bytes());
            assert_eq!(item.map(|item| item.value), wanted, "{key}");
        }
    });
}

fn server_address(client: &Client) -> String {
    client.address().to_string()
}

/// More tasks than the window has room for, with values that are copied for the driver and ones too large for
/// that: each is served, in a bounded order, and counts once.
#[test]
fn many_tasks_share_one_session() {
    let server = server();
    everywhere(&server, |client| async move {
        client.set("sum", "0").await.unwrap();
        let sums = Arc::new(AtomicU64::new(0));
        let tasks: Vec<_> = (0..1000)
            .map(|number| {
                let (client, sums) = (client.clone(), Arc::clone(&sums));
                tokio::spawn(async move {
                    let key = format!("task-{number}");
                    let stored = key.repeat([1, 2, 600, 3000][number % 4]);
                    client.set(&key, stored.as_str()).await.unwrap();
                    let value = client.get(&key).await.unwrap();
                    assert!(value.as_deref() == Some(stored.as_bytes()), "{key}");
                    let sum = client.incr("sum", 1).await.unwrap().unwrap();
                    sums.fetch_add(sum, Ordering::Relaxed);
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(sums.load(Ordering::Relaxed), 1000 * 1001 / 2);
    });
}

/// Calls are dropped before their first poll, while they wait for room, and in flight.
#[test]
fn cancelled_calls_leave_the_session_usable() {
    let server = server();
    everywhere(&server, |client| async move {
        for round in 0..50 {
            let keys: Vec<_> = (0..500).map(|number| format!("c-{number}")).collect();
            let mut calls: Vec<_> = keys
                .iter()
                .map(|key| Box::pin(client.set(key, "x")))
                .collect();
            let mut cx = Context::from_waker(Waker::noop());
            for call in calls.iter_mut().skip(round % 3) {
                let _ = call.as_mut().poll(&mut cx);
            }
            for _ in 0..round % 5 {
                tokio::task::yield_now().await;
            }
            calls.reverse();
            calls.truncate(calls.len() / (1 + round % 4));
            drop(calls);
            let key = format!("after-{round}");
            client.set(&key, "1").await.unwrap();
            assert_eq!(client.get(&key).await.unwrap().unwrap(), b"1");
        }
    });
}

/// The driver runs on the same thread, so it has not submitted them when they end.
#[test]
fn calls_that_end_before_the_driver_runs_are_not_made() {
    let server = server();
    let address = server.address().to_string();
    let [runtime, _] = runtimes();
    for options in transports() {
        runtime.block_on(async {
            let client = Client::connect_with(&address, options).await.unwrap();
            client.set("kept", "1").await.unwrap();
            let mut cx = Context::from_waker(Waker::noop());
            for _ in 0..1000 {
                let mut set = Box::pin(client.set("dropped", "x"));
                assert!(set.as_mut().poll(&mut cx).is_pending());
                let mut delete = Box::pin(client.delete("kept"));
                assert!(delete.as_mut().poll(&mut cx).is_pending());
            }
            let hurried = client.with_deadline(Duration::ZERO);
            let late = hurried.set("late", "x").await.unwrap_err();
            assert!(matches!(late, Error::Timeout(Duration::ZERO)), "{late}");
            for (key, value) in [("dropped", None), ("late", None), ("kept", Some("1"))] {
                let found = client.get(key).await.unwrap();
                assert_eq!(found.as_deref(), value.map(str::as_bytes), "{key}");
            }
        });
    }
}

#[test]
fn server_that_returns_is_found_again() {
    for runtime in runtimes() {
        for options in transports() {
            let server = server();
            let address = server.address().to_string();
            let (first, client) = runtime.block_on(async {
                let client = Client::connect_with(&address, options).await.unwrap();
                client.set("k", "1").await.unwrap();
                (client.get("k").await.unwrap(), client)
            });
            assert_eq!(first.unwrap(), b"1");
            drop(server);
            runtime.block_on(async {
                let away = client.get("k").await.unwrap_err();
                assert!(matches!(away, Error::Unreachable { .. }), "{away}");
                // Nothing was sent: the session had ended.
                let set = client.set("k", "2").await.unwrap_err();
                assert!(matches!(set, Error::Unreachable { .. }), "{set}");
            });
            let again = Config {
                listen: Listen::Tcp(vec![address.parse::<SocketAddr>().unwrap().into()]),
                ..Config::local()
            };
            let _server = spawn(again).unwrap();
            runtime.block_on(async {
                // No call dials for up to a second after a failure.
                loop {
                    match client.get("k").await {
                        Ok(found) => return assert_eq!(found, None),
                        Err(Error::Unreachable { .. }) => tokio::task::yield_now().await,
                        Err(other) => panic!("{other}"),
                    }
                }
            });
        }
    }
}

/// Accepts a connection, and answers `reply` to what comes, if anything.
fn scripted(reply: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            if !reply.is_empty() {
                let mut room = [0; 4096];
                let _ = stream.read(&mut room);
                let _ = stream.write_all(reply);
            } else {
                open.push(stream);
            }
        }
    });
    address
}

fn by_text(deadline: Duration) -> Options {
    Options {
        fabric: false,
        deadline,
        ..Options::default()
    }
}

#[test]
fn deadline_ends_each_call_truly() {
    let address = scripted(b"");
    for runtime in runtimes() {
        runtime.block_on(async {
            let slow = Client::connect_with(&address, by_text(DEADLINE))
                .await
                .unwrap();
            // Enough to dial in.
            let client = slow.with_deadline(Duration::from_millis(500));
            let read = client.get("k").await.unwrap_err();
            assert!(matches!(read, Error::Timeout(_)), "{read}");
            let write = client.set("k", "1").await.unwrap_err();
            assert!(matches!(write, Error::UnknownOutcome(_)), "{write}");
            // One that waits for room behind others, with less time than they have.
            let keys: Vec<_> = (0..5000).map(|number| format!("k{number}")).collect();
            let mut filled = Vec::new();
            for key in &keys {
                let mut call = Box::pin(slow.get(key));
                let poll = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                assert!(poll.is_pending());
                filled.push(call);
            }
            let late = client.get("late").await.unwrap_err();
            assert!(matches!(late, Error::Timeout(_)), "{late}");
        });
    }
}

#[test]
fn connection_closed_after_a_reply_repeats_reads_alone() {
    let address = scripted(b"END\r\n");
    for runtime in runtimes() {
        runtime.block_on(async {
            let client = Client::connect_with(&address, by_text(DEADLINE))
                .await
                .unwrap();
            for _ in 0..20 {
                assert_eq!(client.get("k").await.unwrap(), None);
            }
        });
    }
}

/// The driver ends with the last clone; and a client outlives its runtime.
#[test]
fn client_may_go_to_another_runtime() {
    let server = server();
    let address = server.address().to_string();
    let [first, second] = runtimes();
    let client = first.block_on(async {
        let client = Client::connect(&address).await.unwrap();
        client.set("k", "1").await.unwrap();
        client
    });
    let metrics = first.metrics();
    let clone = client.clone();
    drop(client);
    first.block_on(async {
        assert_eq!(clone.get("k").await.unwrap().unwrap(), b"1");
        assert_eq!(metrics.num_alive_tasks(), 1);
        drop(clone.clone());
        assert_eq!(clone.get("k").await.unwrap().unwrap(), b"1");
    });
    drop(first);
    second.block_on(async {
        assert_eq!(clone.get("k").await.unwrap().unwrap(), b"1");
        drop(clone);
        while second.metrics().num_alive_tasks() > 0 {
            tokio::task::yield_now().await;
        }
    });
}

/// A call that no runtime can serve ends; one that can is served.
#[test]
fn runtime_that_ends_leaves_no_call_waiting() {
    let server = server();
    let address = server.address().to_string();
    let client = Client::unconnected(address.parse().unwrap(), Options::default());
    let mut context = Context::from_waker(Waker::noop());
    let refused = |outcome| match outcome {
        Poll::Ready(Err(Error::Unreachable { .. })) => {}
        other => panic!("{other:?}"),
    };
    let [first, second] = runtimes();
    refused(pin!(client.get("k")).poll(&mut context));
    let (on_first, on_second) = (first.handle().clone(), second.handle().clone());
    {
        // The driver is spawned, and never polled.
        let _entered = on_first.enter();
        let call = pin!(client.get("k"));
        assert!(call.poll(&mut context).is_pending());
        drop(first);
        refused(pin!(client.get("k")).poll(&mut context));
    }
    second.block_on(async {
        assert_eq!(client.get("k").await.unwrap(), None);
    });
    drop(second);
    let _entered = on_second.enter();
    refused(pin!(client.get("k")).poll(&mut context));
    let third = Builder::new_current_thread().enable_all().build().unwrap();
    assert_eq!(third.block_on(client.get("k")).unwrap(), None);
}

/// A runtime without what the client needs: its task panics, and the calls end.
#[test]
fn runtime_without_io_or_clock_ends_calls() {
    let server = server();
    let address = server.address().to_string();
    for enable in [
        |_: &mut Builder| (),
        |builder: &mut Builder| {
            builder.enable_io();
        },
    ] {
        let options = Options {
            deadline: DEADLINE,
            ..Options::default()
        };
        let client = Client::unconnected(address.parse().unwrap(), options);
        let mut builder = Builder::new_current_thread();
        enable(&mut builder);
        let away = builder.build().unwrap().block_on(client.get("k"));
        assert!(matches!(away, Err(Error::Unreachable { .. })), "{away:?}");
        let [whole, _] = runtimes();
        assert_eq!(whole.block_on(client.get("k")).unwrap(), None);
    }
}

/// A server that does not answer while a client dials; a second call has less time than the first.
#[test]
fn deadline_holds_while_another_call_dials() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    // With a transport to agree on, dialling waits for an answer.
    let options = Options {
        deadline: DEADLINE,
        login: herdwick::Login::parse("user:password"),
        ..by_text(DEADLINE)
    };
    for runtime in runtimes() {
        let client = Client::unconnected(address.parse().unwrap(), options.clone());
        runtime.block_on(async {
            let mut long = pin!(client.get("k"));
            let mut context = Context::from_waker(Waker::noop());
            assert!(long.as_mut().poll(&mut context).is_pending());
            // The driver is at its dialling when the thread that dials has connected.
            let listener = silent.try_clone().unwrap();
            let accepted = tokio::task::spawn_blocking(move || listener.accept().unwrap());
            let _stream = accepted.await.unwrap();
            let short = client.with_deadline(Duration::from_millis(20));
            let late = short.get("k").await.unwrap_err();
            assert!(matches!(late, Error::Timeout(_)), "{late}");
        });
        runtime.shutdown_background();
    }
}

/// A call of many keys, more than are polled at a time.
#[test]
fn many_keys_are_read_at_once() {
    let server = server();
    everywhere(&server, |client| async move {
        let keys: Vec<_> = (0..3000).map(|number| format!("many-{number}")).collect();
        for key in keys.iter().step_by(7) {
            client.set(key, key.as_str()).await.unwrap();
        }
        let found = client.get_many(&keys).await.unwrap();
        assert_eq!(found.len(), keys.len());
        for (number, (key, item)) in keys.iter().zip(found).enumerate() {
            let value = item.map(|item| item.value);
            let wanted = (number % 7 == 0).then(|| key.clone().into_bytes());
            assert_eq!(value, wanted, "{key}");
        }
    });
}

/// A call is `Send`, so tasks may move between threads.
#[test]
fn calls_are_send() {
    fn send<T: Send>(_: &T) {}
    let client = Client::unconnected("127.0.0.1:1".parse().unwrap(), Options::default());
    let keys = ["a", "b"];
    send(&client.get("k"));
    send(&client.set("k", "v"));
    send(&client.get_many(&keys));
    send(&client.stats(""));
    let mut refused = pin!(client.get("k"));
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        assert!(matches!(
            refused.as_mut().await,
            Err(Error::Unreachable { .. })
        ));
    });
}
