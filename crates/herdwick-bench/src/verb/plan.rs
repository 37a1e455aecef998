//! What a benchmark of verbs measures: lists of values for each parameter, and the points that they
//! make, each checked against Table 1 of the HERD paper and against a provider's capabilities.

use std::str::FromStr;

use herdwick_fabric::{Atomics, Capabilities, Transport};

use crate::{
    names::{NameError, name_of, named},
    report::VerbPoint,
};

/// A verb that is posted to a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// SEND into a RECV of the peer.
    Send,
    /// WRITE into the peer's memory.
    Write,
    /// READ from the peer's memory.
    Read,
    /// FETCH_ADD on a word of the peer.
    FetchAdd,
    /// COMPARE_SWAP on a word of the peer.
    CompareSwap,
}

/// Who posts the verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The clients, to the server.
    Inbound,
    /// The server, to the clients.
    Outbound,
}

const VERB_NAMES: [(&str, Verb); 5] = [
    ("send", Verb::Send),
    ("write", Verb::Write),
    ("read", Verb::Read),
    ("fetch-add", Verb::FetchAdd),
    ("cas", Verb::CompareSwap),
];
const TRANSPORTS: [(&str, Transport); 3] = [
    ("rc", Transport::Rc),
    ("uc", Transport::Uc),
    ("ud", Transport::Ud),
];
const DIRECTIONS: [(&str, Direction); 2] = [
    ("inbound", Direction::Inbound),
    ("outbound", Direction::Outbound),
];
const YES_NO: [(&str, bool); 2] = [("yes", true), ("no", false)];

impl FromStr for Verb {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        named("verb", &VERB_NAMES, text)
    }
}

impl FromStr for Direction {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        named("direction", &DIRECTIONS, text)
    }
}

/// Parses `rc`, `uc` or `ud`.
///
/// # Errors
/// [`NameError`].
pub fn parse_transport(text: &str) -> Result<Transport, NameError> {
    named("transport", &TRANSPORTS, text)
}

/// Parses `yes` or `no`.
///
/// # Errors
/// [`NameError`].
pub fn parse_yes(text: &str) -> Result<bool, NameError> {
    named("answer", &YES_NO, text)
}

impl Verb {
    /// As on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        name_of(&VERB_NAMES, &self)
    }

    /// Whether it carries a payload to the peer.
    fn carries(self) -> bool {
        matches!(self, Self::Send | Self::Write)
    }

    fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap)
    }
}

/// What a benchmark of verbs measures: every combination of the lists. What it shares with the other
/// benchmarks (fabrics, seconds, runs, rate, server threads) is in [`crate::Config`].
#[derive(Clone, Debug)]
pub struct VerbPlan {
    /// The verbs.
    pub kinds: Vec<Verb>,
    /// Transports of the queue pairs.
    pub transports: Vec<Transport>,
    /// Whether payloads are inlined. Empty: where they fit.
    pub inline: Vec<bool>,
    /// Every so many verbs, one is signaled.
    pub signaled: Vec<usize>,
    /// Work requests in a post.
    pub postlists: Vec<usize>,
    /// Bytes of a payload.
    pub payloads: Vec<usize>,
    /// Verbs outstanding on a queue pair.
    pub windows: Vec<usize>,
    /// Queue pairs between a client thread and a server thread.
    pub queue_pairs: Vec<usize>,
    /// Client threads.
    pub clients: Vec<usize>,
    /// Who posts.
    pub directions: Vec<Direction>,
    /// Whether each thread posts to every thread of the other side.
    pub all_to_all: bool,
    /// Bytes of the memory of each thread that one-sided verbs access.
    pub memory: usize,
}

impl Default for VerbPlan {
    /// Returns an inbound WRITE of 32 bytes over RC.
    fn default() -> Self {
        Self {
            kinds: vec![Verb::Write],
            transports: vec![Transport::Rc],
            inline: Vec::new(),
            signaled: vec![1],
            postlists: vec![1],
            payloads: vec![32],
            windows: vec![32],
            queue_pairs: vec![1],
            clients: vec![1],
            directions: vec![Direction::Inbound],
            all_to_all: false,
            memory: 256 << 10,
        }
    }
}

/// One combination of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) verb: Verb,
    pub(crate) transport: Transport,
    pub(crate) direction: Direction,
    pub(crate) all_to_all: bool,
    pub(crate) payload: usize,
    pub(crate) inline: bool,
    pub(crate) signaled: usize,
    pub(crate) postlist: usize,
    pub(crate) window: usize,
    pub(crate) queue_pairs: usize,
    pub(crate) clients: usize,
    pub(crate) servers: usize,
    pub(crate) memory: usize,
}

/// Bytes of the word that an atomic accesses.
const ATOMIC_BYTES: usize = 8;
/// Most work requests in one post.
pub(crate) const POSTLIST_MAX: usize = 64;
/// Most verbs outstanding on a queue pair.
pub(crate) const WINDOW_MAX: usize = 1024;
/// Most queue pairs of one thread.
pub(crate) const QUEUE_PAIRS_MAX: usize = 256;
/// Most threads of one side.
pub(crate) const THREADS_MAX: usize = 64;

impl VerbPlan {
    /// Returns the first parameter with a value out of bounds, and its bounds.
    pub(crate) fn out_of_bounds(&self) -> Option<(&'static str, usize, usize)> {
        let lists = [
            ("signaled", &self.signaled, WINDOW_MAX),
            ("postlist", &self.postlists, POSTLIST_MAX),
            ("payload", &self.payloads, 1 << 30),
            ("window", &self.windows, WINDOW_MAX),
            ("queue-pairs", &self.queue_pairs, QUEUE_PAIRS_MAX),
            ("clients", &self.clients, THREADS_MAX),
        ];
        let bad = |list: &[usize], max| list.iter().copied().find(|n| !(1..=max).contains(n));
        let mut found = lists
            .iter()
            .filter_map(|(name, list, max)| Some((*name, bad(list, *max)?, *max)));
        found.next()
    }

    /// Returns every combination once, the first list varying slowest. A payload that a verb does not
    /// carry, and a period of signaling longer than the window, are replaced by what takes effect.
    pub(crate) fn points(&self, servers: usize, capabilities: &Capabilities) -> Vec<Point> {
        let mut points = vec![Point {
            verb: Verb::Write,
            transport: Transport::Rc,
            direction: Direction::Inbound,
            all_to_all: self.all_to_all,
            payload: 0,
            inline: false,
            signaled: 1,
            postlist: 1,
            window: 1,
            queue_pairs: 1,
            clients: 1,
            servers,
            memory: self.memory,
        }];
        points = crossed(&points, &self.kinds, |p, verb| p.verb = verb);
        points = crossed(&points, &self.transports, |p, it| p.transport = it);
        points = crossed(&points, &self.directions, |p, it| p.direction = it);
        points = crossed(&points, &self.clients, |p, it| p.clients = it);
        points = crossed(&points, &self.queue_pairs, |p, it| p.queue_pairs = it);
        points = crossed(&points, &self.windows, |p, it| p.window = it);
        points = crossed(&points, &self.postlists, |p, it| {
            p.postlist = it.min(p.window);
        });
        points = crossed(&points, &self.signaled, |p, it| {
            p.signaled = it.min(p.window);
        });
        points = crossed(&points, &self.payloads, |p, it| {
            p.payload = if p.verb.is_atomic() { ATOMIC_BYTES } else { it };
            p.inline = p.verb.carries() && it <= capabilities.inline_bytes_max;
        });
        if !self.inline.is_empty() {
            points = crossed(&points, &self.inline, |p, it| {
                p.inline = it && p.verb.carries();
            });
        }
        points
    }
}

/// Returns each point once with each value; equal ones once.
fn crossed<T: Copy>(points: &[Point], values: &[T], set: impl Fn(&mut Point, T)) -> Vec<Point> {
    let mut all = Vec::with_capacity(points.len() * values.len());
    for point in points {
        for value in values {
            let mut point = *point;
            set(&mut point, *value);
            if !all.contains(&point) {
                all.push(point);
            }
        }
    }
    all
}

impl Point {
    /// Returns why a fabric cannot measure this point; `None` if it can.
    pub(crate) fn obstacle(&self, has: &Capabilities) -> Option<String> {
        let transport = match self.transport {
            Transport::Rc => has.rc,
            Transport::Uc => has.uc,
            Transport::Ud => has.ud,
        };
        let one_sided = match (self.verb, self.transport) {
            (Verb::Send, _) => true,
            (Verb::Write, transport) => transport != Transport::Ud,
            (Verb::Read, transport) => transport == Transport::Rc && has.read,
            (_, transport) => transport == Transport::Rc && has.atomics != Atomics::None,
        };
        if !transport || !one_sided {
            return Some("the transport does not carry the verb".to_owned());
        }
        let max = match (self.verb, self.transport) {
            (Verb::Read, _) => has.read_bytes_max,
            (_, Transport::Ud) => has.datagram_bytes_max,
            _ => has.message_bytes_max,
        };
        if self.payload > max {
            return Some(format!("at most {max} bytes"));
        }
        if self.inline && self.payload > has.inline_bytes_max {
            return Some(format!("at most {} bytes inline", has.inline_bytes_max));
        }
        if self.postlist > has.postlist_max {
            return Some(format!("at most {} in a post", has.postlist_max));
        }
        if self.verb != Verb::Send && self.payload > self.memory {
            return Some("a payload larger than --memory".to_owned());
        }
        None
    }

    /// Returns the number of threads that post.
    pub(crate) fn issuers(&self) -> usize {
        match self.direction {
            Direction::Inbound => self.clients,
            Direction::Outbound => self.servers,
        }
    }

    /// Returns the pairs of a server thread and a client thread with queue pairs between them: all of
    /// them, or each thread of the larger side with one of the other.
    pub(crate) fn pairs(&self) -> Vec<(usize, usize)> {
        let some = self.servers.min(self.clients);
        let servers = 0..self.servers;
        let all = servers.flat_map(|server| (0..self.clients).map(move |client| (server, client)));
        all.filter(|(server, client)| self.all_to_all || server % some == client % some)
            .collect()
    }

    /// Returns the point as the report names it.
    pub(crate) fn described(&self, lost: Option<f64>) -> VerbPoint {
        VerbPoint {
            verb: self.verb.name().to_owned(),
            transport: name_of(&TRANSPORTS, &self.transport).to_owned(),
            direction: name_of(&DIRECTIONS, &self.direction).to_owned(),
            all_to_all: self.all_to_all,
            payload: self.payload,
            inline: self.inline,
            signaled: self.signaled,
            postlist: self.postlist,
            window: self.window,
            queue_pairs: self.queue_pairs,
            servers: self.servers,
            memory: self.memory,
            lost,
            ..VerbPoint::default()
        }
    }

    /// Returns a short name for progress and messages: `read rc 64 B`.
    pub(crate) fn name(&self) -> String {
        let transport = name_of(&TRANSPORTS, &self.transport);
        format!("{} {transport} {} B", self.verb.name(), self.payload)
    }
}
