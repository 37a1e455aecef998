//! The thread of a client that follows a cluster in etcd: it lists the members, watches them from that
//! revision on, and lists anew after whatever ends the watch.

use std::{
    net::{Shutdown, TcpStream},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    api::{self, Etcd, Notice},
    error::EtcdError,
    pause::{PAUSE, jittered},
    place::EtcdCluster,
    view::View,
};
use crate::{Node, due::clock};

/// A watch that says nothing for so long ends: its connection may be dead, or its etcd hang.
const SILENCE: Duration = Duration::from_secs(5);

/// The servers of a cluster, as a thread learns them. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Feed(Arc<FeedShared>);

#[derive(Debug)]
struct FeedShared {
    origin: Instant,
    /// The servers have changed since they were last taken.
    has_changed: AtomicBool,
    state: Mutex<FeedState>,
    ended: Condvar,
}

#[derive(Debug)]
struct FeedState {
    view: View,
    /// The connection of the watch.
    connection: Option<TcpStream>,
    has_ended: bool,
}

impl Feed {
    /// Reads the members of `cluster`, and starts the thread.
    pub(crate) fn start(cluster: EtcdCluster) -> Result<Self, EtcdError> {
        let shared = Arc::new(FeedShared {
            origin: clock(),
            has_changed: AtomicBool::new(false),
            state: Mutex::new(FeedState {
                view: View::default(),
                connection: None,
                has_ended: false,
            }),
            ended: Condvar::new(),
        });
        let mut endpoint = 0;
        while let Err(error) = shared.list(&cluster, endpoint) {
            endpoint += 1;
            if endpoint == cluster.endpoints.len() {
                return Err(error);
            }
        }
        let thread = Arc::clone(&shared);
        let run = move || thread.run(&cluster, endpoint);
        let named = thread::Builder::new().name("etcd".into()).spawn(run);
        named.map_err(|error| EtcdError::Io("the thread that follows it".into(), error))?;
        Ok(Self(shared))
    }

    /// Returns the servers, if they have changed since they were last taken.
    pub(crate) fn changed(&self) -> Option<Vec<Node>> {
        // Relaxed: the mutex orders what the servers are.
        let is_new = self.0.has_changed.load(Ordering::Relaxed);
        is_new.then(|| self.nodes())
    }

    /// Has the servers count as changed: they could not be used.
    pub(crate) fn keep_changed(&self) {
        self.0.has_changed.store(true, Ordering::Relaxed);
    }

    /// Returns the servers.
    pub(crate) fn nodes(&self) -> Vec<Node> {
        let state = self.0.lock();
        self.0.has_changed.store(false, Ordering::Relaxed);
        state.view.nodes()
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.has_ended = true;
        if let Some(connection) = &state.connection {
            // One that is closed already has ended the thread's wait.
            let _ = connection.shutdown(Shutdown::Both);
        }
        self.0.ended.notify_all();
    }
}

impl FeedShared {
    fn run(&self, cluster: &EtcdCluster, mut endpoint: usize) {
        let mut pause = PAUSE.0;
        let mut is_listed = true;
        loop {
            let watched = is_listed && self.watch(cluster, endpoint).is_ok();
            if self.lock().has_ended {
                return;
            }
            is_listed = self.list(cluster, endpoint).is_ok();
            if is_listed && watched {
                pause = PAUSE.0;
                continue;
            }
            if !is_listed {
                // A doubt goes on: that nothing is heard does not show that servers have left.
                endpoint = (endpoint + 1) % cluster.endpoints.len();
            }
            if self.has_ended_within(jittered(pause)) {
                return;
            }
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    fn list(&self, cluster: &EtcdCluster, endpoint: usize) -> Result<(), EtcdError> {
        let range = Etcd(&cluster.endpoints[endpoint]).list(&cluster.prefix())?;
        let now = self.now();
        let mut state = self.lock();
        state.view.list(&range, now);
        self.has_changed.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Watches until the watch ends, or is silent for [`SILENCE`].
    ///
    /// # Errors
    /// It has reported no change, and did not last.
    fn watch(&self, cluster: &EtcdCluster, endpoint: usize) -> Result<(), EtcdError> {
        let at = &cluster.endpoints[endpoint];
        // The list has what came up to its revision.
        let revision = self.lock().view.revision() + 1;
        let mut answer = Etcd(at).watch(&cluster.prefix(), revision)?;
        let connection = answer.connection();
        let connection = connection.map_err(|error| EtcdError::Io(at.clone(), error))?;
        {
            // Under the lock in which the end looks for the connection: either this sees the end,
            // or the end sees the connection.
            let mut state = self.lock();
            if state.has_ended {
                return Ok(());
            }
            state.connection = Some(connection);
        }
        let start = self.now();
        let mut has_lasted = false;
        while let Ok(Some(line)) = answer.line(self.longest_silence()) {
            let Notice::Changes(revision, changes) = api::notice(&line) else {
                break;
            };
            let now = self.now();
            has_lasted |= !changes.is_empty();
            if !changes.is_empty() {
                self.lock().view.change(revision, &changes, now);
                self.has_changed.store(true, Ordering::Relaxed);
            }
        }
        self.lock().connection = None;
        // One that is cut again and again is followed by a pause.
        match has_lasted || self.now() >= start + PAUSE.1 {
            true => Ok(()),
            false => Err(EtcdError::Reply(at.clone())),
        }
    }

    /// How long to wait for the next line.
    fn longest_silence(&self) -> Duration {
        let due = self.lock().view.due();
        let left = due.map(|due| due.saturating_sub(self.now()));
        // A doubt is ended by the list that follows.
        left.map_or(SILENCE, |left| left.clamp(PAUSE.0, SILENCE))
    }

    /// Waits. Returns whether the feed has ended.
    fn has_ended_within(&self, span: Duration) -> bool {
        let state = self.lock();
        let waited = self
            .ended
            .wait_timeout_while(state, span, |state| !state.has_ended);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.has_ended
    }

    fn now(&self) -> Duration {
        clock().saturating_duration_since(self.origin)
    }

    fn lock(&self) -> MutexGuard<'_, FeedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
