//! Where a cluster's list of servers comes from: a DNS name, or `config get cluster`, and when it is read
//! again.

use std::{
    io::{ErrorKind, Read, Write},
    net::ToSocketAddrs,
    os::fd::AsFd,
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, poll};

use super::Node;
#[cfg(feature = "etcd")]
use crate::etcd::EtcdCluster;
use crate::{Address, Connection, DialError, Options, Usage, due::Due};

/// Longest reply to `config get cluster`: some hundred servers take a tenth of it.
const CONFIG_BYTES_MAX: usize = 1 << 18;

/// How often the list is read again.
const READ_AGAIN: Duration = Duration::from_secs(60);
/// How soon after the last reading a failed call has it read again; the pause doubles while the list
/// stays as it was.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// Longest time that reading the list again delays a call.
const BUDGET: Duration = Duration::from_millis(200);

/// Where the list of servers comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Discovery {
    /// All addresses of this name, `HOST:PORT`, as of a headless service of Kubernetes. Each is a
    /// server by its IP address, in numerical order.
    Dns(Address),
    /// What this server answers to `config get cluster`, as Amazon ElastiCache does.
    Config(Address),
    /// The servers that are registered in etcd. A thread follows them, so that a change is known at once.
    #[cfg(feature = "etcd")]
    Etcd(EtcdCluster),
}

/// Why there is no list of servers.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// The server that has the list cannot be reached, or the name does not resolve.
    #[error("{0}")]
    Dial(#[from] DialError),
    /// The reply to `config get cluster` is not a list of servers: the server's words, or their
    /// beginning.
    #[error("`config get cluster` is answered by {0:?}")]
    Reply(String),
    /// etcd fails (feature `etcd`), in its words.
    #[error("{0}")]
    Etcd(String),
    /// The list makes no cluster.
    #[error("{0}")]
    List(#[from] Usage),
}

/// A list of servers.
#[derive(Debug)]
pub(super) struct List {
    /// Grows with each change; 0 where there are no versions.
    pub(super) version: u64,
    pub(super) nodes: Vec<Node>,
}

impl Discovery {
    /// Reads the list.
    pub(super) fn read(&self, options: &Options) -> Result<List, DiscoveryError> {
        match self {
            Self::Dns(Address::Tcp(name)) => Ok(List {
                version: 0,
                nodes: resolve(name)?,
            }),
            Self::Dns(Address::Unix(_)) => Err(Usage::Address.into()),
            Self::Config(address) => {
                let reply = fetch(address, options)?;
                let refused = || {
                    let start = &reply[..reply.len().min(100)];
                    DiscoveryError::Reply(String::from_utf8_lossy(start).trim_end().to_owned())
                };
                parse(&reply).ok_or_else(refused)
            }
            // Only its thread reads it.
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => Err(Usage::NoServer.into()),
        }
    }
}

fn resolve(name: &str) -> Result<Vec<Node>, DialError> {
    let addresses = name.to_socket_addrs();
    let addresses = addresses.map_err(|error| DialError::Name(error.to_string()))?;
    let mut addresses: Vec<_> = addresses.collect();
    addresses.sort_unstable();
    addresses.dedup();
    let nodes = addresses
        .iter()
        .map(|at| Node::new(Address::Tcp(at.to_string())));
    Ok(nodes.collect())
}

/// Asks for the configuration. Returns the reply, or a line that is none.
fn fetch(address: &Address, options: &Options) -> Result<Vec<u8>, DialError> {
    let due = Due::after(options.deadline);
    let mut connection = Connection::dial(address, options)?;
    // A fresh socket accepts a short line whole.
    connection
        .write_all(b"config get cluster\r\n")
        .map_err(DialError::from)?;
    let mut reply = Vec::new();
    let mut room = [0; 4096];
    while !is_whole(&reply) {
        match connection.read(&mut room) {
            Ok(0) => return Err(DialError::Io(ErrorKind::UnexpectedEof.into())),
            Ok(len) => reply.extend_from_slice(&room[..len]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let left = due.timespec().map_err(DialError::from)?;
                let mut fds = [PollFd::from_borrowed_fd(connection.as_fd(), PollFlags::IN)];
                // After an interrupted wait the loop reads again.
                let _ = poll(&mut fds, Some(&left));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(reply)
}

/// Whether a reply has ended, or will be none.
fn is_whole(reply: &[u8]) -> bool {
    let is_config = b"CONFIG ".starts_with(&reply[..reply.len().min(7)]);
    let line = reply.ends_with(b"\n");
    reply.len() > CONFIG_BYTES_MAX || (line && !is_config) || reply.ends_with(b"\r\nEND\r\n")
}

/// Parses `CONFIG cluster FLAGS BYTES`, and in the block a line with the version and one with
/// `HOST|IP|PORT` for each server.
fn parse(reply: &[u8]) -> Option<List> {
    let text = std::str::from_utf8(reply).ok()?;
    let (head, rest) = text.split_once("\r\n")?;
    let mut words = head.split(' ');
    let head = [words.next()?, words.next()?, words.next()?, words.next()?];
    let [b"CONFIG", b"cluster", _, bytes] = head.map(str::as_bytes) else {
        return None;
    };
    let bytes: usize = std::str::from_utf8(bytes).ok()?.parse().ok()?;
    let block = rest.get(..bytes)?;
    if rest.get(bytes..)? != "\r\nEND\r\n" {
        return None;
    }
    let (version, servers) = block.split_once('\n')?;
    let nodes = servers.split_whitespace().map(|server| {
        let mut parts = server.split('|');
        let (host, ip, port) = (parts.next()?, parts.next()?, parts.next()?);
        let host = if host.is_empty() { ip } else { host };
        let port: u16 = port.parse().ok()?;
        let host = match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        };
        Some(Node::new(host.parse().ok()?))
    });
    Some(List {
        version: version.trim().parse().ok()?,
        nodes: nodes.collect::<Option<_>>()?,
    })
}

/// When the list is read, and which version it had.
#[derive(Debug)]
pub(super) struct Watch {
    discovery: Discovery,
    version: u64,
    last: Duration,
    due: Duration,
    pause: Duration,
}

impl Watch {
    /// Begins at `now`, with the list of `version`.
    pub(super) fn new(discovery: Discovery, version: u64, now: Duration) -> Self {
        Self {
            discovery,
            version,
            last: now,
            due: now + READ_AGAIN,
            pause: AFTER_FAILURE,
        }
    }

    /// Notes that a call has failed: the list may have changed.
    pub(super) fn note_failure(&mut self) {
        self.due = self.due.min(self.last + self.pause);
    }

    /// Whether the list is to be read at `now`. Then the next time is some way off.
    pub(super) fn is_due(&mut self, now: Duration) -> bool {
        let is_due = now >= self.due;
        if is_due {
            self.last = now;
            self.due = now + READ_AGAIN;
            self.pause = (self.pause * 2).min(READ_AGAIN);
        }
        is_due
    }

    /// Reads the list, in a small part of a call's time.
    pub(super) fn read_quickly(&mut self, options: &Options) -> Option<Vec<Node>> {
        let options = Options {
            deadline: (options.deadline / 2).min(BUDGET),
            ..options.clone()
        };
        self.read(&options).ok()?
    }

    /// Reads the list; `None`: it is older than the known one.
    pub(super) fn read(&mut self, options: &Options) -> Result<Option<Vec<Node>>, DiscoveryError> {
        let list = self.discovery.read(options)?;
        if list.version < self.version {
            return Ok(None);
        }
        self.version = list.version;
        Ok(Some(list.nodes))
    }

    /// Notes that the list has changed.
    pub(super) fn changed(&mut self) {
        self.pause = AFTER_FAILURE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the form of Amazon's "Adding auto discovery to your client library".
    const EXAMPLE: &str = "CONFIG cluster 0 136\r\n12\n\
        myCluster.pc4ldq.0001.use1.cache.amazonaws.com|10.82.235.120|11211 \
        myCluster.pc4ldq.0002.use1.cache.amazonaws.com|10.80.249.27|11211\n\r\nEND\r\n";

    fn names(list: &List) -> Vec<String> {
        list.nodes.iter().map(Node::name).collect()
    }

    #[test]
    fn configuration_of_the_documentation_is_parsed() {
        let list = parse(EXAMPLE.as_bytes()).unwrap();
        assert_eq!(list.version, 12);
        let host = |number| format!("myCluster.pc4ldq.000{number}.use1.cache.amazonaws.com:11211");
        assert_eq!(names(&list), [host(1), host(2)]);
        assert!(is_whole(EXAMPLE.as_bytes()));
        for end in 0..EXAMPLE.len() {
            assert!(!is_whole(&EXAMPLE.as_bytes()[..end]), "{end} bytes of it");
            assert!(
                parse(&EXAMPLE.as_bytes()[..end]).is_none(),
                "{end} bytes of it"
            );
        }
    }

    #[test]
    fn host_may_be_absent_and_anything_else_is_refused() {
        let config = |servers: &str| {
            let block = format!("3\n{servers}\n");
            format!("CONFIG cluster 0 {}\r\n{block}\r\nEND\r\n", block.len())
        };
        let list = parse(config("|10.0.0.1|7 |::1|8").as_bytes()).unwrap();
        assert_eq!(names(&list), ["10.0.0.1:7", "[::1]:8"]);
        for servers in ["a", "a|b", "a|b|x", "a|b|65536", "||7"] {
            assert!(parse(config(servers).as_bytes()).is_none(), "{servers}");
        }
        for reply in ["ERROR\r\n", "END\r\n", "VALUE k 0 1\r\n"] {
            assert!(
                is_whole(reply.as_bytes()) && parse(reply.as_bytes()).is_none(),
                "{reply}"
            );
        }
    }

    #[test]
    fn every_address_of_a_name_is_a_server() {
        let nodes = resolve("127.0.0.1:77").unwrap();
        assert_eq!(
            nodes.iter().map(Node::name).collect::<Vec<_>>(),
            ["127.0.0.1:77"]
        );
        let error = resolve("nowhere.invalid:77").unwrap_err();
        assert!(matches!(error, DialError::Name(_)), "{error}");
    }

    #[test]
    fn list_is_read_each_minute_and_soon_after_a_failure() {
        let at = Duration::from_secs;
        let dns = Discovery::Dns(Address::Tcp("h:1".into()));
        let mut watch = Watch::new(dns, 0, at(0));
        assert!(!watch.is_due(at(59)) && watch.is_due(at(60)) && !watch.is_due(at(119)));
        let mut read = Vec::new();
        for second in 119..1000 {
            watch.note_failure();
            if watch.is_due(at(second)) {
                read.push(second);
            }
        }
        assert_eq!(
            &read[..6],
            [119, 123, 131, 147, 179, 239],
            "the pauses double, to a minute"
        );
        watch.changed();
        watch.note_failure();
        assert!(
            watch.is_due(at(1000)),
            "and begin anew when the list has changed"
        );
    }
}
