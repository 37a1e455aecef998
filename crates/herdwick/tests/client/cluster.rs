//! A cluster of servers: where items are, and what calls return while a server is away.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    path::PathBuf,
    sync::Barrier,
    thread,
    time::Duration,
};

use herdwick::{
    Cas, Client, Cluster, ClusterOptions, Discovery, DiscoveryError, Distribution, Error, Node,
    OnFailure, Options, Put, Usage,
};
use herdwick_server::{Config, Listen, Server};

/// A deadline that no test waits for.
const LONG: Duration = Duration::from_secs(60);

/// Servers on unix sockets, so that one that is started again has the address of before.
struct Servers {
    folder: PathBuf,
    running: Vec<Option<Server>>,
}

impl Servers {
    fn start(test: &str, count: usize) -> Self {
        let name = format!("herdwick-cluster-{test}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let mut servers = Self {
            folder,
            running: (0..count).map(|_| None).collect(),
        };
        (0..count).for_each(|index| servers.restart(index));
        servers
    }

    fn path(&self, index: usize) -> PathBuf {
        self.folder.join(format!("{index}.sock"))
    }

    fn config(&self, index: usize) -> Config {
        Config {
            listen: Listen::Unix {
                path: self.path(index),
                mode: 0o700,
            },
            workers: Some(1),
            ..Config::local()
        }
    }

    fn restart(&mut self, index: usize) {
        self.running[index] = Some(herdwick_server::spawn(self.config(index)).unwrap());
    }

    fn stop(&mut self, index: usize) {
        self.running[index].take().unwrap().shutdown();
    }

    /// A client of one of them, by text.
    fn client(&self, index: usize) -> Client {
        let address = self.path(index).display().to_string();
        Client::connect_with(&address, by_text()).unwrap()
    }

    /// The cluster; every other server is reached by text only.
    fn cluster(&self, on_failure: OnFailure) -> Cluster {
        let node = |index: usize| {
            let address = self.path(index).display().to_string().parse().unwrap();
            let node = Node::new(address).with_name(format!("server-{index}"));
            match index % 2 {
                0 => node,
                _ => node.with_options(by_text()),
            }
        };
        let nodes = (0..self.running.len()).map(node).collect();
        Cluster::new(nodes, options(on_failure, LONG)).unwrap()
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.running.clear();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn by_text() -> Options {
    Options {
        fabric: false,
        deadline: LONG,
        ..Options::default()
    }
}

fn options(on_failure: OnFailure, deadline: Duration) -> ClusterOptions {
    let client = Options {
        deadline,
        ..Options::default()
    };
    ClusterOptions {
        client,
        on_failure,
        ..ClusterOptions::default()
    }
}

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("key:{number}")).collect()
}

/// The number of the server that `key` belongs to now.
fn home(cluster: &Cluster, key: &str) -> usize {
    let name = cluster.server_of(key).unwrap().name();
    name.strip_prefix("server-").unwrap().parse().unwrap()
}

/// The first key of the server.
fn key_of(cluster: &Cluster, server: usize) -> String {
    let mut names = keys(1000).into_iter();
    names.find(|key| home(cluster, key) == server).unwrap()
}

fn is_away(error: &Error) -> bool {
    matches!(
        error,
        Error::Unreachable { .. } | Error::UnknownOutcome(_) | Error::Disconnected(_)
    )
}

#[test]
fn items_are_at_the_servers_of_their_keys() {
    let servers = Servers::start("items", 3);
    let mut cluster = servers.cluster(OnFailure::Fail);
    let keys = keys(300);
    for key in &keys {
        cluster.set(key, Put::new(key).flags(7)).unwrap();
    }
    let mut singles: Vec<_> = (0..3).map(|index| servers.client(index)).collect();
    for key in &keys {
        let found: Vec<_> = singles
            .iter_mut()
            .map(|one| one.get(key).unwrap())
            .collect();
        let at = found.iter().position(Option::is_some);
        assert_eq!(at, Some(home(&cluster, key)), "{key}");
        assert_eq!(found.iter().flatten().count(), 1, "{key}");
    }
    let mut asked: Vec<&str> = keys.iter().map(String::as_str).collect();
    asked.insert(7, "none");
    asked.push(asked[0]);
    let items = cluster.get_many(&asked).unwrap().complete().unwrap();
    for (key, item) in asked.iter().zip(items) {
        let wanted = (*key != "none").then(|| (key.as_bytes().to_vec(), 7));
        assert_eq!(item.map(|item| (item.value, item.flags)), wanted, "{key}");
    }
    let transports = cluster
        .servers()
        .map(|(_, client)| client.session().unwrap().transport());
    assert_eq!(transports.collect::<Vec<_>>(), ["shm", "tcp", "shm"]);
    cluster.flush_all().unwrap();
    let items = cluster.get_many(&keys).unwrap().complete().unwrap();
    assert_eq!(items.into_iter().flatten().count(), 0);
}

#[test]
fn every_call_goes_to_the_server_of_its_key() {
    let servers = Servers::start("calls", 3);
    let mut cluster = servers.cluster(OnFailure::Fail);
    for server in 0..3 {
        let key = &key_of(&cluster, server);
        assert!(cluster.add(key, "b").unwrap() && !cluster.add(key, "b").unwrap());
        assert!(cluster.append(key, "c").unwrap() && cluster.prepend(key, "a").unwrap());
        assert_eq!(cluster.get(key).unwrap().as_deref(), Some(&b"abc"[..]));
        let version = cluster.gets(key).unwrap().unwrap().version;
        assert_eq!(cluster.cas(key, "10", version).unwrap(), Cas::Stored);
        assert_eq!(cluster.cas(key, "11", version).unwrap(), Cas::Changed);
        assert_eq!(cluster.incr(key, 5).unwrap(), Some(15));
        assert_eq!(cluster.decr(key, 1).unwrap(), Some(14));
        assert_eq!(
            servers.client(server).get(key).unwrap().as_deref(),
            Some(&b"14"[..])
        );
        assert!(cluster.touch(key, LONG).unwrap() && cluster.replace(key, "x").unwrap());
        assert!(cluster.delete(key).unwrap() && !cluster.delete(key).unwrap());
    }
    assert!(matches!(
        cluster.get("a b"),
        Err(Error::Usage(Usage::KeyByte(b' ')))
    ));
    assert!(matches!(
        cluster.get_many(&["ok", ""]),
        Err(Error::Usage(Usage::KeyLength(0)))
    ));
}

#[test]
fn server_that_is_away_concerns_its_own_keys_alone() {
    let mut servers = Servers::start("away", 3);
    let mut cluster = servers.cluster(OnFailure::Fail);
    let keys = keys(200);
    for round in 0..2 {
        for key in &keys {
            while let Err(error) = cluster.set(key, "x") {
                assert!(
                    round > 0 && is_away(&error) && home(&cluster, key) == 1,
                    "{error}"
                );
            }
        }
        servers.stop(1);
        let found = cluster.get_many(&keys).unwrap();
        let [failed] = &found.failed[..] else {
            panic!("{:?}", found.failed)
        };
        assert!(
            failed.server == "server-1" && is_away(&failed.error),
            "{failed:?}"
        );
        for (place, key) in keys.iter().enumerate() {
            let is_hers = home(&cluster, key) == 1;
            assert_eq!(failed.keys.contains(&place), is_hers, "{key}");
            assert_eq!(found.items[place].is_none(), is_hers, "{key}");
            assert_eq!(cluster.get(key).is_err(), is_hers, "{key}");
            assert_eq!(cluster.set(key, "x").is_err(), is_hers, "{key}");
        }
        servers.restart(1);
    }
}

#[test]
fn call_that_retries_outlasts_a_restart() {
    let mut servers = Servers::start("retry", 2);
    let mut cluster = servers.cluster(OnFailure::Retry);
    let key = key_of(&cluster, 1);
    cluster.set(&key, "before").unwrap();
    servers.stop(1);
    let config = servers.config(1);
    let server = thread::scope(|scope| {
        let found = scope.spawn(|| (cluster.get(&key), cluster.get_many(&[&key])));
        let server = herdwick_server::spawn(config).unwrap();
        let (one, many) = found.join().unwrap();
        assert_eq!(one.unwrap(), None, "the new server is empty");
        assert_eq!(many.unwrap().complete().unwrap(), [None]);
        server
    });
    servers.running[1] = Some(server);
    servers.stop(1);
    // Without a server it ends by its deadline.
    cluster.set_deadline(Duration::from_millis(50));
    let error = cluster.get(&key).unwrap_err();
    assert!(
        matches!(error, Error::Unreachable { .. } | Error::Timeout(_)),
        "{error}"
    );
    let failed = cluster.get_many(&[&key]).unwrap().failed;
    assert_eq!(failed.len(), 1, "{failed:?}");
}

#[test]
fn call_fails_over_to_the_next_server_and_back() {
    let mut servers = Servers::start("failover", 3);
    let mut cluster = servers.cluster(OnFailure::Failover);
    let keys = keys(100);
    cluster.get_many(&keys).unwrap().complete().unwrap();
    servers.stop(1);
    for key in &keys {
        // A mutation that was sent to a server as it went has an unknown outcome under any policy;
        // these are sent after it went.
        cluster.set(key, "elsewhere").unwrap();
        assert!(cluster.get(key).unwrap().is_some(), "{key}");
    }
    let items = cluster.get_many(&keys).unwrap().complete().unwrap();
    assert_eq!(items.iter().flatten().count(), keys.len());
    servers.restart(1);
    for key in &keys {
        // A pause between two dials may still hold it off. The new server is empty.
        while home(&cluster, key) == 1 && cluster.get(key).unwrap().is_some() {}
    }
    servers.stop(0);
    servers.stop(1);
    servers.stop(2);
    assert!(cluster.get("k").is_err_and(|error| is_away(&error)));
    let failed = cluster.get_many(&keys).unwrap().failed;
    let [last] = &failed[..] else {
        panic!("each key ends at the last server that is tried: {failed:?}")
    };
    assert_eq!(last.keys.len(), keys.len());
}

#[test]
fn failing_server_is_ejected_and_returns() {
    let mut servers = Servers::start("eject", 3);
    let policy = OnFailure::Eject {
        failures: 2,
        away: Duration::from_millis(20),
    };
    let mut cluster = servers.cluster(policy);
    let key = &key_of(&cluster, 1);
    cluster.set(key, "first").unwrap();
    servers.stop(1);
    let mut errors = 0;
    while let Err(error) = cluster.set(key, "second") {
        assert!(is_away(&error), "{error}");
        errors += 1;
    }
    assert!(errors >= 2, "{errors}");
    let mut others = [servers.client(0), servers.client(2)];
    let copies = others.iter_mut().map(|other| other.get(key).unwrap());
    assert_eq!(copies.flatten().count(), 1, "it is at one of the others");
    servers.restart(1);
    // Each time that it returned before it was there, it left again at the first failure.
    while home(&cluster, key) != 1 || !matches!(cluster.set(key, "third"), Ok(())) {
        let _ = cluster.get(key);
    }
    assert_eq!(
        servers.client(1).get(key).unwrap().as_deref(),
        Some(&b"third"[..])
    );
    (0..3).for_each(|server| servers.stop(server));
    for key in keys(20) {
        assert!(
            cluster.get(&key).is_err_and(|error| is_away(&error)),
            "the last one stays"
        );
    }
}

/// Two servers that answer when both have been asked: requests to one do not wait for the other.
#[test]
fn multiget_asks_every_server_before_it_waits() {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses: Vec<_> = listeners
        .iter()
        .map(|one| one.local_addr().unwrap())
        .collect();
    let both_asked = Barrier::new(2);
    let serve = |listener: &TcpListener| {
        let stream = listener.accept().unwrap().0;
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        both_asked.wait();
        let keys = line.split_whitespace().skip(1);
        let values = keys.map(|key| format!("VALUE {key} 0 1 9\r\nv\r\n"));
        let reply: String = values.collect();
        (&stream)
            .write_all(format!("{reply}END\r\n").as_bytes())
            .unwrap();
    };
    let nodes = addresses.iter().map(|address| {
        let node: Node = address.to_string().parse().unwrap();
        node.with_options(by_text())
    });
    let mut cluster = Cluster::new(nodes.collect(), options(OnFailure::Fail, LONG)).unwrap();
    thread::scope(|scope| {
        for listener in &listeners {
            scope.spawn(|| serve(listener));
        }
        let items = cluster.get_many(&keys(50)).unwrap().complete().unwrap();
        assert_eq!(items.iter().flatten().count(), 50);
    });
}

#[test]
fn server_that_does_not_answer_delays_no_other() {
    let servers = Servers::start("silent", 2);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut nodes: Vec<Node> = (0..2)
        .map(|index| servers.path(index).display().to_string().parse().unwrap())
        .collect();
    let address = silent.local_addr().unwrap().to_string();
    nodes.insert(0, address.parse::<Node>().unwrap().with_options(by_text()));
    let mut cluster = Cluster::new(nodes, options(OnFailure::Fail, LONG)).unwrap();
    let keys = keys(200);
    for key in &keys {
        if cluster.server_of(key).unwrap().name() != address {
            cluster.set(key, "x").unwrap();
        }
    }
    // The kernel accepts the connection in the server's place.
    for (_, client) in cluster.servers() {
        client.dial().unwrap();
    }
    // A busy host may let a deadline pass before the others answer: then they get twice the time. By then
    // the silent server is dialled anew, for which a busy host may take too long as well.
    let mut deadline = Duration::from_millis(50);
    loop {
        cluster.set_deadline(deadline);
        let found = cluster.get_many(&keys).unwrap();
        let failed: HashMap<_, _> = found.failed.iter().map(|one| (&*one.server, one)).collect();
        let silent = failed[&*address];
        assert!(
            matches!(silent.error, Error::Timeout(_) | Error::Unreachable { .. }),
            "{silent:?}"
        );
        if failed.len() == 1 {
            let items = found.items.iter().flatten().count();
            assert_eq!(items + silent.keys.len(), keys.len());
            return;
        }
        assert!(deadline < LONG, "{failed:?}");
        deadline *= 2;
    }
}

#[test]
fn impossible_clusters_are_refused() {
    let refused = |servers: &[&str]| match Client::cluster(servers) {
        Err(Error::Usage(usage)) => usage,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&[]), Usage::NoServer);
    assert_eq!(refused(&["a", "b", "a:11211"]), Usage::ServerTwice);
    assert_eq!(refused(&["a", "http://b"]), Usage::Address);
    let nodes = vec!["a:11211:2".parse().unwrap()];
    let rendezvous = ClusterOptions {
        distribution: Distribution::Rendezvous,
        ..ClusterOptions::default()
    };
    assert_eq!(Cluster::new(nodes, rendezvous).unwrap_err(), Usage::Weight);
}

/// Answers `config get cluster` with each of `blocks`, one a connection.
fn endpoint(blocks: Vec<String>) -> (String, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serve = move || {
        for block in blocks {
            let stream = listener.accept().unwrap().0;
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            assert_eq!(line, "config get cluster\r\n");
            let len = block.len();
            let reply = format!("CONFIG cluster 0 {len}\r\n{block}\r\nEND\r\n");
            (&stream).write_all(reply.as_bytes()).unwrap();
        }
    };
    (address, thread::spawn(serve))
}

fn tcp_server() -> (Server, String) {
    let config = Config {
        workers: Some(1),
        ..Config::local()
    };
    let server = herdwick_server::spawn(config).unwrap();
    let address = server.address().to_string();
    (server, address)
}

#[test]
fn listed_servers_are_used_as_the_list_changes() {
    let servers = [(); 3].map(|()| tcp_server());
    let block = |version: u32, listed: &[usize]| {
        let word = |server: &usize| {
            format!(
                "|127.0.0.1|{}",
                servers[*server].1.rsplit(':').next().unwrap()
            )
        };
        let words: Vec<_> = listed.iter().map(word).collect();
        format!("{version}\n{}\n", words.join(" "))
    };
    let (address, endpoint) = endpoint(vec![
        block(4, &[0, 1]),
        block(5, &[0, 1, 2]),
        block(5, &[0, 1, 2]),
        block(4, &[0, 1]),
        block(6, &[2, 0]),
        "7\n\n".into(),
    ]);
    let discovery = Discovery::Config(address.parse().unwrap());
    let mut cluster = Cluster::discover(discovery, options(OnFailure::Fail, LONG)).unwrap();
    let names = |cluster: &mut Cluster| {
        let names = cluster.servers().map(|(node, _)| node.name());
        names.collect::<Vec<_>>()
    };
    let listed = |places: &[usize]| -> Vec<_> {
        places
            .iter()
            .map(|place| servers[*place].1.clone())
            .collect()
    };
    assert_eq!(names(&mut cluster), listed(&[0, 1]));
    let keys = keys(100);
    for key in &keys {
        cluster.set(key, "x").unwrap();
    }
    assert!(cluster.refresh().unwrap());
    assert_eq!(names(&mut cluster), listed(&[0, 1, 2]));
    let sessions = cluster
        .servers()
        .filter(|(_, client)| client.session().is_some());
    assert_eq!(sessions.count(), 2, "those that stay keep their sessions");
    let items = cluster.get_many(&keys).unwrap().complete().unwrap();
    for (key, item) in keys.iter().zip(items) {
        let moved = cluster.server_of(key).unwrap().name() == servers[2].1;
        assert_eq!(item.is_none(), moved, "{key}");
    }
    assert!(!cluster.refresh().unwrap(), "the same list");
    assert!(!cluster.refresh().unwrap(), "an older list");
    assert_eq!(names(&mut cluster), listed(&[0, 1, 2]));
    assert!(cluster.refresh().unwrap());
    assert_eq!(names(&mut cluster), listed(&[2, 0]));
    let error = cluster.refresh().unwrap_err();
    assert!(
        matches!(error, DiscoveryError::List(Usage::NoServer)),
        "{error}"
    );
    endpoint.join().unwrap();
    let error = cluster.refresh().unwrap_err();
    assert!(matches!(error, DiscoveryError::Dial(_)), "{error}");
    assert_eq!(
        names(&mut cluster),
        listed(&[2, 0]),
        "a list that cannot be read changes nothing"
    );
    assert!(cluster.get("k").is_ok());
}

#[test]
fn server_without_a_list_is_named_by_its_answer() {
    let (_server, address) = tcp_server();
    let discovery = Discovery::Config(address.parse().unwrap());
    match Cluster::discover(discovery, options(OnFailure::Fail, LONG)) {
        Err(DiscoveryError::Reply(words)) => assert_eq!(words, "ERROR"),
        other => panic!("{other:?}"),
    }
    let discovery = Discovery::Dns(address.parse().unwrap());
    let mut cluster = Cluster::discover(discovery, options(OnFailure::Fail, LONG)).unwrap();
    cluster.set("k", "v").unwrap();
    assert!(
        !cluster.refresh().unwrap(),
        "the name has the address of before"
    );
    assert_eq!(cluster.servers().next().unwrap().0.name(), address);
}

/// A failed call has the list read again: a server that was replaced is not asked for ever.
#[test]
fn failure_has_the_list_read_again() {
    let [gone, new] = [(); 2].map(|()| tcp_server());
    let block = |version, address: &str| {
        let port = address.rsplit(':').next().unwrap();
        format!("{version}\n127.0.0.1||{port}\n")
    };
    let (address, endpoint) = endpoint(vec![block(1, &gone.1), block(2, &new.1)]);
    let discovery = Discovery::Config(address.parse().unwrap());
    let mut cluster = Cluster::discover(discovery, options(OnFailure::Fail, LONG)).unwrap();
    gone.0.shutdown();
    while let Err(error) = cluster.set("k", "v") {
        assert!(is_away(&error), "{error}");
    }
    assert_eq!(cluster.server_of("k").unwrap().name(), new.1);
    endpoint.join().unwrap();
}
