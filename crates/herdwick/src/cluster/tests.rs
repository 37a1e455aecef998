//! What calls of a cluster do at servers that refuse, are silent, or have no key.

use std::{
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use super::*;
use crate::{Address, Login};

/// A deadline that no test waits for.
const LONG: Duration = Duration::from_secs(15);
/// A deadline that tests wait for.
const SHORT: Duration = Duration::from_millis(100);

fn cluster(nodes: Vec<Node>, on_failure: OnFailure, deadline: Duration) -> Cluster {
    let options = ClusterOptions {
        client: by_text(deadline),
        on_failure,
        ..ClusterOptions::default()
    };
    Cluster::new(nodes, options).unwrap()
}

fn by_text(deadline: Duration) -> Options {
    Options {
        deadline,
        fabric: false,
        ..Options::default()
    }
}

/// A server at a path where none is.
fn absent(number: u32) -> Node {
    let path = format!("/nonexistent/{number}.sock");
    Node::new(Address::Unix(path.into()))
}

/// Servers that accept connections and answer nothing, for as long as the listeners live.
fn silent(count: usize) -> (Vec<TcpListener>, Vec<Node>) {
    let listeners = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let listeners: Vec<_> = listeners.collect();
    let nodes = listeners.iter().map(node_at).collect();
    (listeners, nodes)
}

fn node_at(listener: &TcpListener) -> Node {
    listener.local_addr().unwrap().to_string().parse().unwrap()
}

/// A server that closes each connection, and the number of its connections. The client logs in, so
/// that a dial fails.
fn refusing() -> (Node, Arc<AtomicU32>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = Options {
        login: Login::parse("one:two"),
        ..by_text(LONG)
    };
    let node = node_at(&listener).with_options(options);
    let dials = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&dials);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            counter.fetch_add(1, Ordering::SeqCst);
            drop(stream);
        }
    });
    (node, dials)
}

/// A key of the first server.
fn key_of_first(cluster: &Cluster) -> String {
    let first = cluster.members[0].node.name();
    let mut keys = (0..1000).map(|number| format!("key:{number}"));
    let is_hers = |key: &String| cluster.server_of(key).unwrap().name() == first;
    keys.find(is_hers).unwrap()
}

/// The deadline that the client's calls have now, by an error of a server that does not answer.
fn deadline_of(client: &mut Client) -> Duration {
    match client.get("k") {
        Err(Error::Timeout(deadline)) => deadline,
        other => panic!("{other:?}"),
    }
}

#[test]
fn calls_in_the_pause_between_dials_do_not_eject() {
    let policy = OnFailure::Eject {
        failures: 3,
        away: LONG,
    };
    for is_multiget in [false, true] {
        let (node, dials) = refusing();
        let mut cluster = cluster(vec![node, absent(1)], policy, LONG);
        let key = key_of_first(&cluster);
        while cluster.members[0].health.takes_part() {
            if is_multiget {
                assert_eq!(cluster.get_many(&[&key]).unwrap().failed.len(), 1);
            } else {
                let error = cluster.get(&key).unwrap_err();
                assert!(matches!(error, Error::Unreachable { .. }), "{error}");
            }
        }
        assert_eq!(dials.load(Ordering::SeqCst), 3);
    }
}

#[test]
fn servers_that_are_away_return_where_a_list_leaves_no_others() {
    let policy = OnFailure::Eject {
        failures: 1,
        away: LONG,
    };
    let mut cluster = cluster(vec![absent(0), absent(1)], policy, LONG);
    let key = key_of_first(&cluster);
    cluster.get(&key).unwrap_err();
    assert!(!cluster.members[0].health.takes_part());
    assert!(cluster.replace_servers(vec![absent(0)]).unwrap());
    assert_eq!(cluster.get_many(&[&key]).unwrap().failed.len(), 1);
    let error = cluster.get(&key).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}

/// It has refused this client, which knew its former registration alone. Seen to fail where the time away went
/// on.
#[cfg(feature = "etcd")]
#[test]
fn a_server_that_has_registered_anew_is_no_longer_away() {
    let policy = OnFailure::Eject {
        failures: 1,
        away: LONG,
    };
    let nodes = |member| vec![absent(0).with_member(Some(member)), absent(1)];
    let mut cluster = cluster(nodes(1), policy, LONG);
    let key = key_of_first(&cluster);
    cluster.get(&key).unwrap_err();
    assert!(!cluster.replace_servers(nodes(1)).unwrap());
    assert!(!cluster.members[0].health.takes_part());
    assert!(!cluster.replace_servers(nodes(2)).unwrap());
    assert_eq!(key_of_first(&cluster), key);
}

/// The second server's share of the weights gives it no point, so the first has all keys.
#[test]
fn outage_is_no_miss_where_the_next_server_has_no_point() {
    let nodes = vec![absent(0).with_weight(200), absent(1)];
    let mut cluster = cluster(nodes, OnFailure::Failover, LONG);
    for number in 0..20 {
        let key = format!("key:{number}");
        let one = cluster.get(&key).unwrap_err();
        let found = cluster.get_many(&[&key]).unwrap();
        assert_eq!(found.failed.len(), 1, "{key}");
        let many = found.complete().unwrap_err();
        for error in [one, many] {
            assert!(matches!(error, Error::Unreachable { .. }), "{error}");
        }
    }
}

#[test]
fn flush_all_divides_its_time_among_the_servers() {
    let (_listeners, nodes) = silent(4);
    let mut cluster = cluster(nodes, OnFailure::Fail, SHORT);
    assert!(cluster.flush_all().is_err());
    for (member, left) in cluster.members.iter_mut().zip([4, 3, 2, 1]) {
        let part = deadline_of(&mut member.client);
        assert!(part <= SHORT / left, "{part:?} with {left} left");
    }
}

#[test]
fn clients_of_servers_have_the_deadline_of_the_cluster() {
    let (_listeners, mut nodes) = silent(3);
    let last = nodes.pop().unwrap();
    let mut cluster = cluster(nodes.clone(), OnFailure::Failover, SHORT);
    cluster.get("k").unwrap_err();
    nodes.push(last.with_options(by_text(LONG)));
    cluster.replace_servers(nodes).unwrap();
    for (node, client) in cluster.servers() {
        assert_eq!(deadline_of(client), SHORT, "{node}");
    }
}
