//! A server's place in a cluster: a key under a lease, which a thread renews.
//!
//! The fence: a server whose key was gone had its keys' items stored elsewhere. Before it registers again
//! it invalidates all items, unless etcd shows that its key was there all the time, or was wiped so lately that
//! no client has given the server up. And from then on it refuses clients that know it by a registration of before:
//! what they store is of an older ring.

use std::{
    fmt, io,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        mpsc::{self, Receiver},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    api::{Etcd, KeyValue, Range},
    error::EtcdError,
    pause::{PAUSE, jittered},
    place::{EtcdCluster, JOINS, LEAVES},
    view::GRACE,
};
use crate::due::clock;

/// Longest pause between two renewals: what etcd has lost is registered again after that. A third of a shorter
/// lease.
const RENEWAL: Duration = Duration::from_secs(1);
/// How much earlier than a client a server takes itself to be given up.
const MARGIN: Duration = Duration::from_secs(2);
/// How long a server that is about to join waits for its clients to see that: until a client whose watch works does
/// without doubt.
const SEEN: Duration = Duration::from_secs(1);
/// Most registrations by which clients may know a server that has kept its place: those of before are refused.
const ADMITTED_MAX: usize = 8;
/// How long the end of a registration waits for etcd: the lease runs out anyway.
const END: Duration = Duration::from_secs(3);

/// What decides which clients may use a server, by the registrations of it that they know.
type Admit = Box<dyn Fn(&[u64]) -> Option<bool> + Send>;

/// A server as it registers.
pub struct EtcdMember {
    /// Where clients reach it, as in [`Node`](crate::Node).
    pub address: String,
    /// How long it is a member after etcd has last heard of it, in seconds.
    pub lease: u64,
    /// Whether it may hold items from before: those of a memory file.
    pub has_items: bool,
    /// From now on refuses clients that know the server by another registration than these, each the lease of its key,
    /// and ends their sessions. Returns whether there may have been any; `None`: the server ends.
    pub admit: Admit,
    /// Invalidates all items that are stored before this is called. Returns false if it has not: the server ends.
    pub invalidate: Box<dyn Fn() -> bool + Send>,
    /// Receives each event.
    pub report: Box<dyn Fn(Event<'_>) + Send>,
}

impl fmt::Debug for EtcdMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EtcdMember").field(&self.address).finish()
    }
}

/// What happens to a registration.
#[derive(Debug)]
pub enum Event<'a> {
    /// It is registered.
    Registered,
    /// Its place was given up meanwhile: all items were invalidated.
    Invalidated,
    /// etcd fails. Reported once, until it works again.
    Failed(&'a EtcdError),
    /// The lease or the key is gone.
    Lost,
    /// Another server has registered this address: this one is no member until that one leaves. Reported once.
    Taken,
}

/// A registered server. [`Registration::end`] removes it; dropped, it leaves when its lease ends.
#[derive(Debug)]
pub struct Registration {
    ended: Arc<(Mutex<bool>, Condvar)>,
    /// Closed as the thread ends.
    thread: Receiver<()>,
}

impl Registration {
    /// Starts a thread that registers the server, and keeps it registered.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(cluster: EtcdCluster, member: EtcdMember) -> io::Result<Self> {
        let ended = Arc::new((Mutex::new(false), Condvar::new()));
        let seen = Arc::clone(&ended);
        let (at_end, thread) = mpsc::channel();
        let run = move || {
            Registrar::new(cluster, member, seen).run();
            // `end` waits for this.
            drop(at_end);
        };
        thread::Builder::new().name("etcd".into()).spawn(run)?;
        Ok(Self { ended, thread })
    }

    /// Removes the server from the cluster. If etcd has not answered within 3 s, the server leaves as its lease
    /// runs out.
    pub fn end(self) {
        self.stop();
        // Nothing is ever sent.
        let _ = self.thread.recv_timeout(END);
    }

    fn stop(&self) {
        *self.ended.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ended.1.notify_all();
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What the thread knows.
struct Registrar {
    ended: Arc<(Mutex<bool>, Condvar)>,
    cluster: EtcdCluster,
    member: EtcdMember,
    key: String,
    endpoint: usize,
    /// The lease, which the key may be under.
    lease: Option<i64>,
    /// The lease before, the key under which etcd may not have removed yet.
    last_lease: Option<i64>,
    /// Whether the key was there under the lease, when that was last looked at.
    is_registered: bool,
    /// Since which revision the key is there.
    since: Option<u64>,
    /// The revision when the key was last seen.
    revision: u64,
    /// When the lease was last renewed: before the request was sent.
    renewed: Option<Instant>,
    has_failed: bool,
    /// The server was there for a while before it was registered.
    has_waited: bool,
    /// Another server has registered the address.
    is_taken: bool,
    /// All items are to be invalidated before it registers.
    is_stale: bool,
    /// The registrations by which clients may know the server: its own since it has last invalidated its items.
    admitted: Vec<u64>,
}

impl Registrar {
    fn new(cluster: EtcdCluster, member: EtcdMember, ended: Arc<(Mutex<bool>, Condvar)>) -> Self {
        Self {
            ended,
            key: format!("{}{}", cluster.prefix(), member.address),
            cluster,
            member,
            endpoint: 0,
            lease: None,
            last_lease: None,
            is_registered: false,
            since: None,
            revision: 0,
            renewed: None,
            has_failed: false,
            has_waited: false,
            is_taken: false,
            is_stale: false,
            admitted: Vec::new(),
        }
    }

    fn run(mut self) {
        let mut pause = PAUSE.0;
        loop {
            let span = match self.step() {
                Ok(()) => {
                    pause = PAUSE.0;
                    self.has_failed = false;
                    RENEWAL.min(Duration::from_secs(self.member.lease) / 3)
                }
                Err(error) => {
                    self.has_waited = true;
                    // Only the first of several failures in a row is reported.
                    if !std::mem::replace(&mut self.has_failed, true) {
                        (self.member.report)(Event::Failed(&error));
                    }
                    self.endpoint = (self.endpoint + 1) % self.cluster.endpoints.len();
                    let span = jittered(pause);
                    pause = (pause * 2).min(PAUSE.1);
                    span
                }
            };
            if has_ended_within(&self.ended, span) {
                break;
            }
        }
        self.leave();
    }

    /// Tells clients that the server leaves, and ends the lease. If etcd does not hear it, the lease runs out.
    fn leave(&mut self) {
        if let Some(lease) = self.lease.take() {
            if self.is_registered {
                // Before the lease ends: a key that is only gone leaves clients in doubt.
                let _ = self.etcd().put(&self.key, LEAVES, lease);
            }
            // It runs out by itself otherwise.
            let _ = self.etcd().revoke(lease);
        }
    }

    /// Registers, or renews the registration.
    fn step(&mut self) -> Result<(), EtcdError> {
        let sent = clock();
        let lease = self.leased()?;
        let found = self.etcd().read(&self.key)?;
        if self.note_own(sent, lease, &found) {
            return Ok(());
        }
        if self.is_taken_by_another(lease, &found) {
            self.is_registered = false;
            if !std::mem::replace(&mut self.is_taken, true) {
                (self.member.report)(Event::Taken);
            }
            return Ok(());
        }
        self.note_lost();
        self.take_place(lease, &found)?;
        let own = self.etcd().read(&self.key)?;
        self.note_own(sent, lease, &own);
        Ok(())
    }

    /// Renews the lease, or is granted one if it is gone. The identifier is known before it is granted: whatever
    /// fails then, the next attempt leaves none behind, and finds what the last one has done.
    fn leased(&mut self) -> Result<i64, EtcdError> {
        if let Some(lease) = self.lease {
            if self.etcd().keep_alive(lease)? {
                return Ok(lease);
            }
            self.last_lease = self.lease.take();
            self.note_lost();
        }
        let random = getrandom::u64();
        let random = random.map_err(|error| {
            let error = io::Error::other(error.to_string());
            EtcdError::Io("random number".into(), error)
        })?;
        // Positive, and not 0, for which etcd chooses one.
        let lease = ((random >> 1) | 1).cast_signed();
        self.lease = Some(lease);
        self.etcd().grant(lease, self.member.lease)?;
        Ok(lease)
    }

    fn note_lost(&mut self) {
        if std::mem::take(&mut self.is_registered) {
            (self.member.report)(Event::Lost);
        }
    }

    /// Whether another server has registered the address since this one had. A server that has not been
    /// registered takes over the place of the one before it.
    fn is_taken_by_another(&self, lease: i64, found: &Range) -> bool {
        let is_anothers = |holder| holder != lease && Some(holder) != self.last_lease;
        self.renewed.is_some() && found.entries.iter().any(|entry| is_anothers(entry.lease))
    }

    /// Notes that the server is registered under the lease, which was renewed after `sent`, if it is.
    fn note_own(&mut self, sent: Instant, lease: i64, found: &Range) -> bool {
        let mut entries = found.entries.iter();
        let own = entries.find(|it| it.lease == lease && it.value == self.member.address);
        let Some(own) = own.filter(|_| !self.is_stale) else {
            return false;
        };
        self.renewed = Some(sent);
        self.since = Some(own.created);
        // It goes back as etcd is wiped.
        self.revision = found.revision;
        self.is_taken = false;
        if !std::mem::replace(&mut self.is_registered, true) {
            (self.member.report)(Event::Registered);
        }
        true
    }

    /// Sets the key under the lease.
    fn take_place(&mut self, lease: i64, found: &Range) -> Result<(), EtcdError> {
        if self.has_kept_place(lease, found)? {
            return Ok(());
        }
        self.is_stale |= self.may_be_stale(found.revision);
        if self.is_stale {
            // Clients that still use this server stop before its items are invalid. And for an etcd that takes no
            // keys nothing is invalidated.
            self.etcd().put(&self.key, JOINS, lease)?;
            if has_ended_within(&self.ended, SEEN) || !self.begin_anew(lease) {
                return Ok(());
            }
            self.is_stale = false;
            (self.member.report)(Event::Invalidated);
            return self.put_address(lease);
        }
        if !self.admit_from(lease) {
            return Ok(());
        }
        self.put_address(lease)?;
        // It may have taken too long.
        self.is_stale = self.may_be_stale(found.revision);
        Ok(())
    }

    /// Invalidates all items, once those clients alone are served that know the server by this lease: no client does yet.
    /// Returns false: the server ends.
    fn begin_anew(&mut self, lease: i64) -> bool {
        self.admitted = vec![lease.unsigned_abs()];
        (self.member.admit)(&self.admitted).is_some() && (self.member.invalidate)()
    }

    /// Registers a server whose items are not stale by this lease, too. What clients have stored that knew one of
    /// before is, if the server was not registered yet. Returns false: the server ends.
    fn admit_from(&mut self, lease: i64) -> bool {
        let is_first = self.admitted.is_empty();
        match self.admit_also(&[lease]) {
            None => false,
            Some(are_others) => !(is_first && are_others) || (self.member.invalidate)(),
        }
    }

    /// Has clients be served that know the server by these leases, too.
    fn admit_also(&mut self, leases: &[i64]) -> Option<bool> {
        for lease in leases.iter().map(|lease| lease.unsigned_abs()) {
            if !self.admitted.contains(&lease) {
                self.admitted.push(lease);
            }
        }
        let excess = self.admitted.len().saturating_sub(ADMITTED_MAX);
        self.admitted.drain(..excess);
        (self.member.admit)(&self.admitted)
    }

    fn put_address(&self, lease: i64) -> Result<(), EtcdError> {
        let address = &self.member.address;
        self.etcd().put(&self.key, address, lease).map(drop)
    }

    /// Puts the key under the lease, if it is there and has been since this server, or the one before it, has
    /// registered.
    fn has_kept_place(&mut self, lease: i64, found: &Range) -> Result<bool, EtcdError> {
        let address = self.member.address.as_str();
        // Its own key is of an attempt that got no further. And one that leaves, or is about to join, is not used.
        let is_used = |it: &&KeyValue| it.lease != lease && it.value == address;
        let used = found.entries.iter().find(is_used);
        let before = self.since.or_else(|| used.map(|it| it.created));
        let Some(created) = before.filter(|_| !self.is_stale) else {
            return Ok(false);
        };
        let is_first = self.admitted.is_empty();
        let leases: Vec<_> = used.map(|it| it.lease).into_iter().chain([lease]).collect();
        // Those that have stored something meanwhile, and knew yet another one, are of an older ring.
        if self.admit_also(&leases) == Some(true) && is_first {
            self.is_stale = true;
            return Ok(false);
        }
        let put = (self.key.as_str(), self.member.address.as_str(), lease);
        let is_kept = self.etcd().put_if_kept(put, created)?;
        if !is_kept && self.since.is_none() {
            // The one before has left.
            self.admitted.clear();
        }
        Ok(is_kept)
    }

    /// Whether items of this server may have been replaced at another, now that its key is gone.
    fn may_be_stale(&self, revision: u64) -> bool {
        let Some(renewed) = self.renewed else {
            return self.member.has_items || self.has_waited;
        };
        // Clients give a server up as its lease ends, and those of an etcd that was wiped after their time.
        let given_up = GRACE.min(Duration::from_secs(self.member.lease));
        let was_wiped = revision < self.revision;
        let gone = clock().saturating_duration_since(renewed);
        !was_wiped || gone + MARGIN >= given_up
    }

    fn etcd(&self) -> Etcd<'_> {
        Etcd(&self.cluster.endpoints[self.endpoint])
    }
}

/// Waits. Returns whether the registration has ended.
fn has_ended_within((ended, changed): &(Mutex<bool>, Condvar), span: Duration) -> bool {
    let state = ended.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = changed.wait_timeout_while(state, span, |ended| !*ended);
    let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
    *state
}
