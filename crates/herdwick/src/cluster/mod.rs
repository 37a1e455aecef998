//! A client of several servers, each with the keys that consistent hashing gives it.

mod calls;
mod discovery;
mod health;
mod node;
mod ring;

use std::{fmt, time::Duration};

use rustix::event::Timespec;

pub use self::{
    calls::{FailedServer, MultiGet},
    discovery::{Discovery, DiscoveryError},
    health::OnFailure,
    node::Node,
    ring::Distribution,
};
use self::{
    discovery::Watch,
    health::{Health, is_failure, is_unsent},
    ring::Ring,
};
#[cfg(feature = "etcd")]
use crate::etcd::Feed;
use crate::{Client, Error, Key, Options, Usage, due::clock};

/// Options of a [`Cluster`].
#[derive(Clone, Debug, Default)]
pub struct ClusterOptions {
    /// Of the client of each server that has none of its own; the deadline is that of a whole call,
    /// on however many servers.
    pub client: Options,
    /// How keys are distributed over the servers.
    pub distribution: Distribution,
    /// What a call does whose server fails.
    pub on_failure: OnFailure,
}

/// A client of several servers. Each key belongs to one of them, which [`Distribution`] says.
///
/// It holds a [`Client`] for each server, which dials at its first call and finds the best transport by
/// itself: one server may be reached over shared memory, another over TCP. So a call blocks, fails and
/// is repeated as a client's; what happens then is [`OnFailure`]'s to say. A server that is away
/// concerns the calls of its own keys alone.
///
/// ```
/// # let a = herdwick_server::spawn(herdwick_server::Config::local()).unwrap();
/// # let b = herdwick_server::spawn(herdwick_server::Config::local()).unwrap();
/// # let (a, b) = (a.address().to_string(), b.address().to_string());
/// use herdwick::Client;
///
/// let mut cluster = Client::cluster([a, b])?;
/// cluster.set("greeting", "hello")?;
/// cluster.set("farewell", "bye")?;
/// let found = cluster.get_many(&["greeting", "farewell", "none"])?;
/// assert_eq!(found.items.iter().flatten().count(), 2);
/// assert!(found.failed.is_empty());
/// # Ok::<(), herdwick::Error>(())
/// ```
#[derive(Debug)]
pub struct Cluster {
    members: Vec<Member>,
    ring: Ring,
    options: ClusterOptions,
    /// Whether a server is away from the ring.
    is_short: bool,
    /// Where the list of servers is read again.
    watch: Option<Watch>,
    /// What follows the servers in etcd.
    #[cfg(feature = "etcd")]
    feed: Option<Feed>,
    origin: std::time::Instant,
}

/// A server, its client and its failures.
#[derive(Debug)]
struct Member {
    node: Node,
    client: Client,
    health: Health,
}

impl Member {
    fn new(node: Node, options: &Options) -> Self {
        let mut own = node.options().unwrap_or(options).clone();
        own.member = node.member().or(own.member);
        Self {
            client: Client::unconnected(node.address().clone(), own),
            node,
            health: Health::default(),
        }
    }

    /// Takes over what etcd says of `node`, the same server: its registration may be another now. Returns
    /// whether that has ended its time away: it has refused this client as one of its former registration.
    fn know_as(&mut self, node: &Node) -> bool {
        if node.member().is_none() || node.member() == self.node.member() {
            return false;
        }
        self.node.know_as(node);
        self.client.set_member(node.member());
        let was_away = !self.health.takes_part();
        self.health.succeeded();
        self.health.rejoin();
        was_away
    }
}

/// One call: when it must end, and which servers have failed it.
#[derive(Debug)]
struct Calling {
    due: Duration,
    without: Vec<usize>,
}

/// Where a call that failed goes on.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// At the same server, after a pause.
    Again(Duration),
    /// At the next server of the ring.
    Elsewhere,
}

/// Shortest pause before a server is tried again that has closed the connection.
const PAUSE_MIN: Duration = Duration::from_millis(10);

impl Client {
    /// Makes a client of several servers, written as in [`Node`], with default options. No server is
    /// dialled yet.
    ///
    /// # Errors
    /// [`Error::Usage`], for a malformed address, no server, or one that is there twice.
    pub fn cluster<T: AsRef<str>>(servers: impl IntoIterator<Item = T>) -> Result<Cluster, Error> {
        let nodes = servers.into_iter().map(|server| server.as_ref().parse());
        let nodes: Vec<Node> = nodes.collect::<Result<_, Usage>>()?;
        Ok(Cluster::new(nodes, ClusterOptions::default())?)
    }
}

impl Cluster {
    /// Makes a client of `nodes`. No server is dialled yet.
    ///
    /// # Errors
    /// [`Usage::NoServer`], [`Usage::ServerTwice`], [`Usage::Weight`].
    pub fn new(nodes: Vec<Node>, options: ClusterOptions) -> Result<Self, Usage> {
        check(&nodes, options.distribution)?;
        let ring = Ring::new(
            options.distribution,
            &nodes.iter().collect::<Vec<_>>(),
            |_| true,
        );
        let nodes = nodes.into_iter();
        let members = nodes.map(|node| Member::new(node, &options.client));
        Ok(Self {
            members: members.collect(),
            ring,
            options,
            is_short: false,
            watch: None,
            #[cfg(feature = "etcd")]
            feed: None,
            origin: clock(),
        })
    }

    /// Makes a client of the servers that `discovery` lists. The list is read again, at most a minute
    /// apart, by a call which that delays by up to 200 ms (a lookup of a name may take longer), and 1 s
    /// after a server has failed. While it cannot be read, the servers stay as they are.
    ///
    /// Of servers in etcd a thread learns, and the first call after a change uses the new list.
    ///
    /// # Errors
    /// [`DiscoveryError`].
    pub fn discover(discovery: Discovery, options: ClusterOptions) -> Result<Self, DiscoveryError> {
        #[cfg(feature = "etcd")]
        if let Discovery::Etcd(place) = discovery {
            let text = place.to_string();
            let feed = Feed::start(place);
            let feed = feed.map_err(|error| DiscoveryError::Etcd(error.to_string()))?;
            let nodes = feed.nodes();
            if nodes.is_empty() {
                return Err(DiscoveryError::Etcd(format!(
                    "no server has registered in {text}: start one by herdwick serve --etcd URL --cluster NAME"
                )));
            }
            let mut cluster = Self::new(nodes, options)?;
            cluster.feed = Some(feed);
            return Ok(cluster);
        }
        let list = discovery.read(&options.client)?;
        let mut cluster = Self::new(list.nodes, options)?;
        cluster.watch = Some(Watch::new(discovery, list.version, cluster.now()));
        Ok(cluster)
    }

    /// Reads the list of servers again now (of etcd: uses what its thread knows). Returns whether they
    /// have changed; never, if they were given.
    ///
    /// # Errors
    /// [`DiscoveryError`]: the servers stay as they are.
    pub fn refresh(&mut self) -> Result<bool, DiscoveryError> {
        #[cfg(feature = "etcd")]
        if let Some(feed) = &self.feed {
            let nodes = feed.nodes();
            return Ok(self.replace_servers(nodes)?);
        }
        let Some(watch) = &mut self.watch else {
            return Ok(false);
        };
        let Some(nodes) = watch.read(&self.options.client)? else {
            return Ok(false);
        };
        Ok(self.replace_servers(nodes)?)
    }

    /// Replaces the servers. Those that stay, with their address, weight and name, keep their sessions, of whatever
    /// registration in etcd they are: a server ends those that it must.
    /// Returns whether there was anything to change.
    ///
    /// # Errors
    /// As [`Cluster::new`]: the servers stay as they are.
    pub fn replace_servers(&mut self, nodes: Vec<Node>) -> Result<bool, Usage> {
        check(&nodes, self.options.distribution)?;
        let mut old = std::mem::take(&mut self.members);
        let is_same = old.len() == nodes.len()
            && old
                .iter()
                .zip(&nodes)
                .all(|(old, new)| old.node.is_like(new));
        if is_same {
            let known = old.iter_mut().zip(&nodes);
            // Counted and not searched for, since `know_as` has an effect on each.
            let returned = known.filter_map(|(member, node)| member.know_as(node).then_some(()));
            let returned = returned.count();
            self.members = old;
            if returned > 0 {
                self.rebuild();
            }
            return Ok(false);
        }
        // In the order of the new list, which the places of the ring count by.
        for node in nodes {
            let kept = old.iter().position(|member| member.node.is_like(&node));
            self.members.push(match kept {
                Some(place) => {
                    let mut member = old.swap_remove(place);
                    member.know_as(&node);
                    member
                }
                None => Member::new(node, &self.options.client),
            });
        }
        if !self.members.iter().any(|member| member.health.takes_part()) {
            // Those that stay are all away, and the last server never is.
            for member in &mut self.members {
                member.health.rejoin();
            }
        }
        self.rebuild();
        if let Some(watch) = &mut self.watch {
            watch.changed();
        }
        Ok(true)
    }

    /// Sets the longest duration of each later call.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.options.client.deadline = deadline;
    }

    /// The servers and their clients, in the order that they were given in.
    pub fn servers(&mut self) -> impl Iterator<Item = (&Node, &mut Client)> {
        let deadline = self.options.client.deadline;
        self.members.iter_mut().map(move |member| {
            // A call leaves what it had left.
            member.client.set_deadline(deadline);
            (&member.node, &mut member.client)
        })
    }

    /// Returns the server of `key`, of those that take part in the ring.
    ///
    /// # Errors
    /// [`Usage`], if it is no key.
    pub fn server_of(&self, key: impl AsRef<[u8]>) -> Result<&Node, Usage> {
        let key = Key::new(key.as_ref())?;
        let place = self.pick(key, &[]).ok_or(Usage::NoServer)?;
        Ok(&self.members[place].node)
    }

    fn now(&self) -> Duration {
        clock().saturating_duration_since(self.origin)
    }

    fn begin(&mut self) -> Calling {
        let now = self.now();
        self.watch_servers(now);
        if self.is_short {
            self.readmit(now);
        }
        Calling {
            due: now.saturating_add(self.options.client.deadline),
            without: Vec::new(),
        }
    }

    /// Reads the list of servers, if that is due. Whatever is wrong with it, the call goes on.
    fn watch_servers(&mut self, now: Duration) {
        #[cfg(feature = "etcd")]
        if let Some(nodes) = self.feed.as_ref().and_then(Feed::changed)
            && self.replace_servers(nodes).is_err()
            && let Some(feed) = &self.feed
        {
            // A list that makes no cluster is looked at again by the next call.
            feed.keep_changed();
        }
        let options = &self.options.client;
        if let Some(watch) = &mut self.watch
            && watch.is_due(now)
            && let Some(nodes) = watch.read_quickly(options)
        {
            // A list that makes no cluster changes nothing.
            let _ = self.replace_servers(nodes);
        }
    }

    fn pick(&self, key: Key<'_>, without: &[usize]) -> Option<usize> {
        self.ring.pick(key.as_bytes(), without)
    }

    /// Returns how long an attempt of `calling` may take.
    fn time_for(&self, calling: &Calling) -> Duration {
        let left = calling.due.saturating_sub(self.now());
        if self.has_others(calling) {
            left / 2
        } else {
            left
        }
    }

    /// Whether the call could go to yet another server after the next.
    fn has_others(&self, calling: &Calling) -> bool {
        let fails_over = self.options.on_failure == OnFailure::Failover;
        fails_over && calling.without.len() + 1 < self.ring.servers()
    }

    /// Notes how an attempt at the server in `place` has ended. Returns where the call goes on, if it
    /// does.
    fn after(&mut self, place: usize, calling: &Calling, error: Option<&Error>) -> Option<Next> {
        let policy = self.options.on_failure;
        let member = &mut self.members[place];
        let Some(error) = error.filter(|error| is_failure(error)) else {
            member.health.succeeded();
            return None;
        };
        let dials = member.client.failed_dials();
        // `was_tried` first, and always: it notes the number of dials.
        let leaves = member.health.was_tried(error, dials) && member.health.failed(policy);
        if let Some(watch) = &mut self.watch {
            watch.note_failure();
        }
        if leaves {
            self.eject(place);
        }
        let left = calling.due.saturating_sub(self.now());
        if left.is_zero() || !is_unsent(error) {
            return None;
        }
        match policy {
            OnFailure::Fail | OnFailure::Eject { .. } => None,
            OnFailure::Retry => {
                let pause = self.members[place].client.redial_pause().max(PAUSE_MIN);
                Some(Next::Again(pause.min(left)))
            }
            OnFailure::Failover => self.has_others(calling).then_some(Next::Elsewhere),
        }
    }

    fn eject(&mut self, place: usize) {
        let others = self.members.iter().enumerate();
        let mut others = others.filter(|(other, _)| *other != place);
        if others.any(|(_, member)| member.health.takes_part()) {
            let (now, policy) = (self.now(), self.options.on_failure);
            self.members[place].health.leave(now, policy);
            self.rebuild();
        }
    }

    /// Takes the servers back whose time away has passed.
    fn readmit(&mut self, now: Duration) {
        let members = self.members.iter_mut();
        // Counted and not searched for, since `returns` has an effect on each.
        let returned = members.filter_map(|member| member.health.returns(now).then_some(()));
        if returned.count() > 0 {
            self.rebuild();
        }
    }

    fn rebuild(&mut self) {
        let nodes: Vec<_> = self.members.iter().map(|member| &member.node).collect();
        let takes_part = |place: usize| self.members[place].health.takes_part();
        self.is_short = !(0..nodes.len()).all(takes_part);
        self.ring = Ring::new(self.options.distribution, &nodes, takes_part);
    }
}

fn check(nodes: &[Node], distribution: Distribution) -> Result<(), Usage> {
    if nodes.is_empty() {
        return Err(Usage::NoServer);
    }
    let mut names: Vec<_> = nodes.iter().map(Node::ketama_name).collect();
    // Equal names then stand side by side.
    names.sort_unstable();
    if names.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Usage::ServerTwice);
    }
    let is_weighted = nodes.iter().any(|node| node.weight() > 1);
    if distribution == Distribution::Rendezvous && is_weighted {
        return Err(Usage::Weight);
    }
    Ok(())
}

fn pause(span: Duration) {
    let span = Timespec::try_from(span).ok();
    // An interrupted pause is a short one.
    let _ = rustix::event::poll(&mut [], span.as_ref());
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

#[cfg(test)]
mod tests;
