//! Clusters in an etcd whose answers are scripted.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::SeqCst},
    mpsc,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::{scripted::Scripted, *};
use crate::{Client, Cluster, ClusterOptions, DialError, Discovery, DiscoveryError, Error};

const RANGE: &str = "/v3/kv/range";
const WATCH: &str = "/v3/watch";

fn cluster(etcd: &Scripted) -> EtcdCluster {
    EtcdCluster::new([&etcd.endpoint], "test").unwrap()
}

fn kv(name: &str, created: u64, lease: i64) -> String {
    let key = STANDARD.encode(format!("herdwick/test/members/{name}"));
    let value = STANDARD.encode(name);
    format!(
        r#"{{"key":"{key}","value":"{value}","create_revision":"{created}","mod_revision":"{created}","lease":"{lease}"}}"#
    )
}

fn list(revision: u64, kvs: &[String]) -> String {
    let kvs = kvs.join(",");
    format!(r#"{{"header":{{"revision":"{revision}"}},"kvs":[{kvs}]}}"#)
}

fn event(revision: u64, event: &str) -> String {
    format!(r#"{{"result":{{"header":{{"revision":"{revision}"}},"events":[{event}]}}}}"#) + "\n"
}

fn names(feed: &Feed) -> Vec<String> {
    feed.nodes().iter().map(crate::Node::name).collect()
}

/// Starts a feed on a list of one server.
fn feed(etcd: &Scripted) -> Feed {
    let place = cluster(etcd);
    let starting = std::thread::spawn(move || Feed::start(place).unwrap());
    etcd.next(RANGE).answer(&list(7, &[kv("a:1", 3, 1)]));
    starting.join().unwrap()
}

/// Waits until the servers are these.
fn becomes(feed: &Feed, expected: &[&str]) {
    while names(feed) != expected {
        std::thread::yield_now();
    }
}

#[test]
fn a_cluster_has_a_text() {
    let text = "etcd://a:1,b:2379,[::1]:5/cache-1";
    assert_eq!(text.parse::<EtcdCluster>().unwrap().to_string(), text);
    let one = EtcdCluster::new(["http://a/"], "c").unwrap();
    assert_eq!(one.to_string(), "etcd://a:2379/c");
    for (text, error) in [
        ("a:1/c", EtcdUsage::Endpoint),
        ("etcd:///c", EtcdUsage::Endpoint),
        ("etcd://a:1,/c", EtcdUsage::Endpoint),
        ("etcd://a:x/c", EtcdUsage::Endpoint),
        ("etcd://::1:1/c", EtcdUsage::Endpoint),
        ("etcd://a:1", EtcdUsage::Name),
        ("etcd://a:1/", EtcdUsage::Name),
        ("etcd://a:1/b/c", EtcdUsage::Name),
        ("etcd://a b:1/c", EtcdUsage::Endpoint),
    ] {
        assert_eq!(text.parse::<EtcdCluster>().unwrap_err(), error, "{text}");
    }
    let tls = EtcdCluster::new(["https://a:1"], "c").unwrap_err();
    assert_eq!(tls, EtcdUsage::Tls);
}

#[test]
fn changes_are_followed_from_the_revision_of_the_list() {
    let etcd = Scripted::start();
    let feed = feed(&etcd);
    assert_eq!(names(&feed), ["a:1"]);
    let asked = etcd.next(WATCH);
    assert!(
        asked.body.contains(r#""start_revision":"8""#),
        "{}",
        asked.body
    );
    let mut watch = asked.stream();
    let joined = event(8, &format!(r#"{{"kv":{}}}"#, kv("b:1", 8, 2)));
    // However the lines are cut.
    let (start, rest) = joined.split_at(30);
    watch.send(start);
    watch.send(rest);
    becomes(&feed, &["a:1", "b:1"]);
    let left = format!(r#"{{"type":"DELETE","kv":{}}}"#, kv("a:1", 3, 1));
    watch.send(&event(9, &left));
    // After a second without another change.
    etcd.next(RANGE).answer(&list(9, &[kv("b:1", 8, 2)]));
    becomes(&feed, &["b:1"]);
}

#[test]
fn a_watch_that_is_cancelled_odd_or_cut_is_followed_by_a_list() {
    let etcd = Scripted::start();
    let feed = feed(&etcd);
    let compacted =
        r#"{"result":{"header":{"revision":"90"},"canceled":true,"compact_revision":"80"}}"#;
    let odd = [
        "[]",
        "\u{1}",
        r#"{"error":{"message":"x"}}"#,
        r#"{"result":{"events":7}}"#,
    ];
    for (round, line) in [compacted].iter().chain(&odd).enumerate() {
        let mut watch = etcd.next(WATCH).stream();
        watch.send(&format!("{line}\n"));
        let name = format!("b:{}", round + 1);
        let revision = 90 + round as u64;
        etcd.next(RANGE).answer(&list(revision, &[kv(&name, 3, 1)]));
        // One that replaces the only server is in doubt: both are used.
        while !names(&feed).contains(&name) {
            std::thread::yield_now();
        }
    }
    etcd.next(WATCH)
        .raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz");
    etcd.next(RANGE).raw("");
    etcd.next(RANGE)
        .raw("HTTP/1.1 503 Gone\r\nContent-Length: 2\r\n\r\n{}");
    etcd.next(RANGE).answer("{}");
    etcd.next(RANGE).answer(&list(120, &[kv("c:1", 3, 1)]));
    while !names(&feed).contains(&"c:1".to_owned()) {
        std::thread::yield_now();
    }
}

#[test]
fn a_cluster_without_servers_or_etcd_is_an_error() {
    let etcd = Scripted::start();
    let place = cluster(&etcd);
    let discover = move || Cluster::discover(Discovery::Etcd(place), ClusterOptions::default());
    let starting = std::thread::spawn(discover);
    etcd.next(RANGE).answer(&list(1, &[]));
    let error = starting.join().unwrap().unwrap_err();
    assert!(error.to_string().contains("no server has"), "{error}");
    let place = "etcd://127.0.0.1:1/test".parse().unwrap();
    let error = Cluster::discover(Discovery::Etcd(place), ClusterOptions::default()).unwrap_err();
    assert!(matches!(error, DiscoveryError::Etcd(_)), "{error}");
}

/// A registration, how often it has invalidated its items, and what it reports.
struct Registered {
    etcd: Scripted,
    registration: Registration,
    invalidated: Arc<AtomicU32>,
    /// By which leases clients may know it, and how often items were invalidated before.
    admitted: mpsc::Receiver<(Vec<u64>, u32)>,
    events: mpsc::Receiver<String>,
}

fn register(has_items: bool) -> Registered {
    register_beside(has_items, false)
}

/// Registers a server; `are_others`: clients use it already that know a registration of before.
fn register_beside(has_items: bool, are_others: bool) -> Registered {
    let etcd = Scripted::start();
    let invalidated = Arc::new(AtomicU32::new(0));
    let (sender, events) = mpsc::channel();
    let (admits, admitted) = mpsc::channel();
    let counter = Arc::clone(&invalidated);
    let before = Arc::clone(&invalidated);
    let member = EtcdMember {
        address: "a:1".into(),
        lease: 3600,
        has_items,
        admit: Box::new(move |members| {
            let _ = admits.send((members.to_vec(), before.load(SeqCst)));
            Some(are_others)
        }),
        invalidate: Box::new(move || {
            counter.fetch_add(1, SeqCst);
            true
        }),
        report: Box::new(move |event| {
            let _ = sender.send(format!("{event:?}"));
        }),
    };
    let registration = Registration::start(cluster(&etcd), member).unwrap();
    Registered {
        etcd,
        registration,
        invalidated,
        admitted,
        events,
    }
}

impl Registered {
    /// Grants the lease, and returns it.
    fn grants(&self) -> i64 {
        let asked = self.etcd.next("/v3/lease/grant");
        let body: serde_json::Value = serde_json::from_str(&asked.body).unwrap();
        assert_eq!(body["TTL"], 3600);
        let lease = body["ID"].as_str().unwrap().parse().unwrap();
        asked.answer(&format!(r#"{{"ID":"{lease}","TTL":"3600"}}"#));
        lease
    }

    fn keeps(&self, lease: i64) {
        let kept = self.etcd.next("/v3/lease/keepalive");
        assert!(kept.body.contains(&lease.to_string()), "{}", kept.body);
        kept.answer(&format!(r#"{{"result":{{"ID":"{lease}","TTL":"3600"}}}}"#));
    }

    /// Sets the key to `value`, under the lease.
    fn puts(&self, lease: i64, value: &str) {
        let put = self.etcd.next("/v3/kv/put");
        let body: serde_json::Value = serde_json::from_str(&put.body).unwrap();
        assert_eq!(body["lease"], lease.to_string());
        assert_eq!(body["value"], STANDARD.encode(value));
        put.answer(PUT);
    }

    /// Checks by which leases clients may know the server next, and how often items were invalidated before.
    fn admits(&self, leases: &[i64], invalidated: u32) {
        let leases = leases.iter().map(|lease| lease.unsigned_abs()).collect();
        assert_eq!(self.admitted.recv().unwrap(), (leases, invalidated));
    }

    fn expect(&self, event: &str) {
        assert_eq!(self.events.recv().unwrap(), event);
    }
}

const PUT: &str = r#"{"header":{"revision":"5"}}"#;

#[test]
fn a_server_registers_and_leaves() {
    let one = register(false);
    let lease = one.grants();
    one.etcd.next(RANGE).answer(&list(4, &[]));
    one.puts(lease, "a:1");
    one.etcd
        .next(RANGE)
        .answer(&list(5, &[kv("a:1", 5, lease)]));
    one.expect("Registered");
    let ending = one.registration;
    let etcd = one.etcd;
    let ending = std::thread::spawn(move || ending.end());
    loop {
        let asked = etcd.any();
        let (path, body) = (asked.path.clone(), asked.body.clone());
        asked.answer(PUT);
        if path == "/v3/kv/put" {
            assert!(body.contains(&STANDARD.encode("-")), "{body}");
        } else if path == "/v3/lease/revoke" {
            assert!(body.contains(&lease.to_string()), "{body}");
            break;
        }
    }
    ending.join().unwrap();
    assert_eq!(one.invalidated.load(SeqCst), 0);
}

#[test]
fn items_of_before_are_invalidated_unless_the_place_was_kept() {
    let one = register(true);
    let lease = one.grants();
    one.etcd.next(RANGE).answer(&list(4, &[]));
    one.puts(lease, "");
    one.puts(lease, "a:1");
    assert_eq!(one.invalidated.load(SeqCst), 1, "before it registers");
    let one = register(true);
    let lease = one.grants();
    one.etcd.next(RANGE).answer(&list(4, &[kv("a:1", 2, 9)]));
    let txn = one.etcd.next("/v3/kv/txn");
    assert!(
        txn.body.contains(r#""create_revision":"2""#),
        "{}",
        txn.body
    );
    txn.answer(r#"{"header":{"revision":"5"},"succeeded":true}"#);
    one.etcd
        .next(RANGE)
        .answer(&list(5, &[kv("a:1", 2, lease)]));
    one.expect("Registered");
    assert_eq!(one.invalidated.load(SeqCst), 0);
}

/// One before it had left, or was about to invalidate its items: clients used other servers.
#[test]
fn a_place_that_clients_did_not_use_is_not_kept() {
    for value in ["-", ""] {
        let one = register(true);
        let lease = one.grants();
        let key = kv("a:1", 2, 9).replace(
            &format!(r#""value":"{}""#, STANDARD.encode("a:1")),
            &format!(r#""value":"{}""#, STANDARD.encode(value)),
        );
        one.etcd.next(RANGE).answer(&list(4, &[key]));
        one.puts(lease, "");
        one.puts(lease, "a:1");
        assert_eq!(one.invalidated.load(SeqCst), 1);
    }
}

#[test]
fn a_place_that_ends_while_it_is_taken_over_is_not_kept() {
    let one = register(true);
    let lease = one.grants();
    one.etcd.next(RANGE).answer(&list(4, &[kv("a:1", 2, 9)]));
    one.etcd
        .next("/v3/kv/txn")
        .answer(r#"{"header":{"revision":"5"}}"#);
    one.puts(lease, "");
    one.puts(lease, "a:1");
    assert_eq!(one.invalidated.load(SeqCst), 1);
}

/// A server that was there before etcd was may have served clients of another ring.
#[test]
fn an_etcd_that_fails_is_reported_once_and_tried_again() {
    let one = register(false);
    for _ in 0..3 {
        one.etcd
            .next("/v3/lease/grant")
            .raw("HTTP/1.1 503 Gone\r\nContent-Length: 0\r\n\r\n");
        one.etcd
            .next("/v3/lease/keepalive")
            .answer(r#"{"result":{"ID":"1"}}"#);
    }
    let lease = one.grants();
    one.etcd.next(RANGE).answer(&list(4, &[]));
    one.puts(lease, "");
    one.puts(lease, "a:1");
    one.etcd
        .next(RANGE)
        .answer(&list(5, &[kv("a:1", 5, lease)]));
    assert!(one.events.recv().unwrap().starts_with("Failed"));
    one.expect("Invalidated");
    one.expect("Registered");
}

/// The lease of an attempt is used by the next, which finds what the first has done.
#[test]
fn a_put_whose_answer_is_lost_has_registered() {
    let one = register(true);
    let lease = one.grants();
    one.etcd.next(RANGE).answer(&list(4, &[]));
    one.puts(lease, "");
    one.etcd.next("/v3/kv/put").raw("");
    one.keeps(lease);
    one.etcd
        .next(RANGE)
        .answer(&list(5, &[kv("a:1", 5, lease)]));
    one.expect("Invalidated");
    assert!(one.events.recv().unwrap().starts_with("Failed"));
    one.expect("Registered");
    assert_eq!(one.invalidated.load(SeqCst), 1);
}

/// The lease of a grant whose answer is lost is used, too.
#[test]
fn a_grant_whose_answer_is_lost_leaves_no_lease_behind() {
    let one = register(false);
    let asked = one.etcd.next("/v3/lease/grant");
    let body: serde_json::Value = serde_json::from_str(&asked.body).unwrap();
    let lease = body["ID"].as_str().unwrap().parse().unwrap();
    asked.raw("");
    one.keeps(lease);
    one.etcd.next(RANGE).answer(&list(4, &[]));
    one.puts(lease, "");
}

/// An etcd that takes no keys empties no server.
#[test]
fn nothing_is_invalidated_before_etcd_has_taken_a_key() {
    let one = register(true);
    let lease = one.grants();
    for _ in 0..3 {
        one.etcd.next(RANGE).answer(&list(4, &[]));
        let full = r#"{"error":"etcdserver: mvcc: database space exceeded"}"#;
        let len = full.len();
        let head = format!("HTTP/1.1 429 Full\r\nContent-Length: {len}\r\n\r\n");
        one.etcd.next("/v3/kv/put").raw(&(head + full));
        one.keeps(lease);
    }
    assert_eq!(one.invalidated.load(SeqCst), 0);
    let failed = one.events.recv().unwrap();
    assert!(failed.contains("space exceeded"), "{failed}");
}

/// Registers a server that has no items of before.
fn registered() -> (Registered, i64) {
    let one = register(false);
    let lease = one.grants();
    one.etcd.next(RANGE).answer(&list(100, &[]));
    one.puts(lease, "a:1");
    let own = kv("a:1", 101, lease);
    one.etcd.next(RANGE).answer(&list(101, &[own]));
    one.expect("Registered");
    (one, lease)
}

/// The key under another's lease is not taken back, but when it is gone; its keys had the other server meanwhile.
#[test]
fn an_address_that_another_server_has_taken_is_left_to_it() {
    let (one, lease) = registered();
    for _ in 0..2 {
        one.keeps(lease);
        one.etcd
            .next(RANGE)
            .answer(&list(106, &[kv("a:1", 101, 99)]));
    }
    one.expect("Taken");
    one.keeps(lease);
    one.etcd.next(RANGE).answer(&list(107, &[]));
    let txn = one.etcd.next("/v3/kv/txn");
    txn.answer(r#"{"header":{"revision":"107"}}"#);
    one.puts(lease, "");
    one.puts(lease, "a:1");
    one.etcd
        .next(RANGE)
        .answer(&list(108, &[kv("a:1", 108, lease)]));
    one.expect("Invalidated");
    one.expect("Registered");
}

/// Loses the lease and the key in an etcd of this revision. Returns the new lease, before the key is put.
fn loses(one: &Registered, revision: u64) -> i64 {
    one.etcd
        .next("/v3/lease/keepalive")
        .answer(r#"{"result":{"ID":"1"}}"#);
    let lease = one.grants();
    one.expect("Lost");
    one.etcd.next(RANGE).answer(&list(revision, &[]));
    one.etcd
        .next("/v3/kv/txn")
        .answer(r#"{"header":{"revision":"5"}}"#);
    lease
}

/// Clients of the registration before are of an older ring: they are refused from before the items are invalidated.
#[test]
fn a_server_that_joins_again_is_used_by_clients_that_know_its_new_registration() {
    let (one, first) = registered();
    one.admits(&[first], 0);
    let second = loses(&one, 106);
    one.admits(&[first, second], 0);
    one.puts(second, "");
    one.puts(second, "a:1");
    one.admits(&[second], 0);
    assert_eq!(one.invalidated.load(SeqCst), 1);
    one.etcd
        .next(RANGE)
        .answer(&list(108, &[kv("a:1", 108, second)]));
    one.expect("Invalidated");
    one.expect("Registered");
}

/// They are clients of the same ring.
#[test]
fn a_server_that_keeps_its_place_is_used_by_clients_of_its_last_registrations() {
    let one = register(true);
    let lease = one.grants();
    one.etcd.next(RANGE).answer(&list(4, &[kv("a:1", 2, 9)]));
    one.admits(&[9, lease], 0);
    one.etcd
        .next("/v3/kv/txn")
        .answer(r#"{"header":{"revision":"5"}}"#);
    one.puts(lease, "");
    one.puts(lease, "a:1");
    one.admits(&[lease], 0);
    let (one, first) = registered();
    one.admits(&[first], 0);
    let mut leases = vec![first];
    for revision in 0..8 {
        leases.push(loses_all(&one, &leases));
        let lease = leases[leases.len() - 1];
        one.puts(lease, "a:1");
        let own = kv("a:1", 2, lease);
        // Wiped, and each time anew.
        one.etcd.next(RANGE).answer(&list(100 - revision, &[own]));
        one.expect("Registered");
    }
    assert_eq!(one.invalidated.load(SeqCst), 0);
}

/// Loses the lease and the key in an etcd that was wiped. Returns the new lease, by which the server is known besides
/// the last ones.
fn loses_all(one: &Registered, before: &[i64]) -> i64 {
    let lease = loses(one, 1);
    let leases: Vec<_> = before.iter().copied().chain([lease]).collect();
    let last = leases.len().saturating_sub(8);
    one.admits(&leases[last..], 0);
    one.admits(&leases[last..], 0);
    lease
}

/// Between its start and its registration.
#[test]
fn what_clients_of_an_older_registration_have_stored_at_the_start_is_invalidated() {
    let one = register_beside(false, true);
    let lease = one.grants();
    one.etcd.next(RANGE).answer(&list(4, &[]));
    one.puts(lease, "a:1");
    one.admits(&[lease], 0);
    assert_eq!(one.invalidated.load(SeqCst), 1);
    let one = register_beside(true, true);
    let lease = one.grants();
    one.etcd.next(RANGE).answer(&list(4, &[kv("a:1", 2, 9)]));
    one.admits(&[9, lease], 0);
    one.puts(lease, "");
    one.puts(lease, "a:1");
    one.admits(&[lease], 0);
    assert_eq!(one.invalidated.load(SeqCst), 1);
}

/// Only while it is wiped: afterwards a key that is gone is gone.
#[test]
fn a_server_of_an_etcd_that_was_wiped_keeps_its_items_once() {
    let (one, _) = registered();
    let lease = loses(&one, 1);
    one.puts(lease, "a:1");
    one.etcd
        .next(RANGE)
        .answer(&list(2, &[kv("a:1", 2, lease)]));
    one.expect("Registered");
    assert_eq!(one.invalidated.load(SeqCst), 0);
    let lease = loses(&one, 3);
    one.puts(lease, "");
    one.puts(lease, "a:1");
    assert_eq!(one.invalidated.load(SeqCst), 1);
}

/// A server that ends before it is registered ends the lease that it was granted.
#[test]
fn a_lease_that_holds_no_key_yet_is_revoked_at_the_end() {
    let one = register(false);
    let lease = one.grants();
    one.etcd.next(RANGE).raw("");
    assert!(one.events.recv().unwrap().starts_with("Failed"));
    let ending = one.registration;
    let ending = std::thread::spawn(move || ending.end());
    loop {
        let asked = one.etcd.any();
        if asked.path == "/v3/lease/revoke" {
            assert!(asked.body.contains(&lease.to_string()), "{}", asked.body);
            asked.answer("{}");
            break;
        }
        // An attempt that began before the end.
        asked.raw("");
    }
    ending.join().unwrap();
}

/// A cluster of `server`, by the only list that etcd gives.
fn client_of(etcd: &Scripted, server: &str, lease: i64, fabric: bool) -> Cluster {
    let place = cluster(etcd);
    let mut options = ClusterOptions::default();
    options.client.deadline = std::time::Duration::from_secs(60);
    options.client.fabric = fabric;
    let discover = move || Cluster::discover(Discovery::Etcd(place), options).unwrap();
    let starting = std::thread::spawn(discover);
    etcd.next(RANGE)
        .answer(&list(7, &[kv(server, lease.unsigned_abs(), lease)]));
    starting.join().unwrap()
}

fn is_refused<T>(result: Result<T, Error>) -> bool {
    let refused = DialError::AnotherMember;
    matches!(result, Err(Error::Unreachable { reason, .. }) if reason == refused)
}

/// What it stored would be read by clients of the new ring, which had another server for the key meanwhile.
#[test]
fn a_client_that_has_not_heard_of_a_servers_return_stores_nothing_there() {
    for fabric in [true, false] {
        let server = herdwick_server::spawn(herdwick_server::Config::local()).unwrap();
        let invalidator = server.invalidator();
        assert_eq!(invalidator.admit(&[1]), Some(false));
        let address = server.address().to_string();
        let old = Scripted::start();
        let mut late = client_of(&old, &address, 1, fabric);
        late.set("key", "old").unwrap();
        let mut watch = old.next(WATCH).stream();
        let mut plain = Client::connect(&address).unwrap();
        plain.set("other", "value").unwrap();
        assert_eq!(invalidator.admit(&[2]), Some(true));
        assert!(invalidator.invalidate_all());
        // The first may be sent before the session is known to have ended.
        assert!(late.set("key", "old").is_err(), "fabric: {fabric}");
        for _ in 0..3 {
            assert!(is_refused(late.set("key", "old")), "fabric: {fabric}");
            assert!(is_refused(late.get("key")), "fabric: {fabric}");
        }
        let new = Scripted::start();
        let mut current = client_of(&new, &address, 2, fabric);
        assert_eq!(current.get("key").unwrap(), None);
        current.set("key", "new").unwrap();
        assert_eq!(plain.get("other").unwrap(), None, "its session goes on");
        let heard = event(8, &format!(r#"{{"kv":{}}}"#, kv(&address, 8, 2)));
        watch.send(&heard);
        while is_refused(late.get("key")) {
            std::thread::yield_now();
        }
        assert_eq!(late.get("key").unwrap().as_deref(), Some(&b"new"[..]));
    }
}
