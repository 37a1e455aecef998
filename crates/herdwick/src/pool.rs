//! Blocking clients for many threads: a handle that is cloned and sent, and clients that are lent.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{Address, Client, Cluster, ClusterOptions, Error, Node, Options, Usage, due::clock};

/// A handle to clients of the same servers, at most so many at a time. Clones share them.
///
/// The client that was returned last is lent first, so that threads which take turns use few sessions. Clients
/// are made as they are needed, and connect at their first call.
///
/// ```
/// # let server = herdwick_server::spawn(herdwick_server::Config::local()).unwrap();
/// # let address = server.address().to_string();
/// use herdwick::{Options, Pool};
///
/// let pool = Pool::of_server(&address, Options::default(), 4)?;
/// std::thread::scope(|scope| {
///     for number in 0..16 {
///         let pool = pool.clone();
///         scope.spawn(move || pool.get()?.set(format!("thread-{number}"), "done"));
///     }
/// });
/// assert_eq!(pool.get()?.get("thread-7")?.as_deref(), Some(&b"done"[..]));
/// # Ok::<(), herdwick::Error>(())
/// ```
pub struct Pool<C = Client> {
    shared: Arc<Shared<C>>,
}

struct Shared<C> {
    make: Box<dyn Fn() -> C + Send + Sync>,
    most: usize,
    wait: Duration,
    clients: Mutex<Clients<C>>,
    returned: Condvar,
}

struct Clients<C> {
    idle: Vec<C>,
    /// Those that exist, lent ones included.
    made: usize,
}

/// A client that is lent. It is returned when this is dropped.
#[derive(Debug)]
pub struct Pooled<C = Client> {
    pool: Pool<C>,
    /// `None` after it was returned.
    client: Option<C>,
}

impl Pool<Client> {
    /// Makes a pool of at most `most` clients of one server; 0 is 1.
    ///
    /// # Errors
    /// [`Usage::Address`].
    pub fn of_server(address: &str, options: Options, most: usize) -> Result<Self, Usage> {
        let address: Address = address.parse()?;
        let wait = options.deadline;
        let make = move || Client::unconnected(address.clone(), options.clone());
        Ok(Self::new(most, wait, make))
    }
}

impl Pool<Cluster> {
    /// Makes a pool of at most `most` clients of several servers; 0 is 1.
    ///
    /// # Errors
    /// As [`Cluster::new`].
    pub fn of_cluster(
        nodes: Vec<Node>,
        options: ClusterOptions,
        most: usize,
    ) -> Result<Self, Usage> {
        let wait = options.client.deadline;
        // Made at once, so that nodes which make no cluster are reported here.
        let first = Cluster::new(nodes.clone(), options.clone())?;
        let make = move || {
            let again = Cluster::new(nodes.clone(), options.clone());
            again.expect("these nodes and options have made a cluster before")
        };
        let pool = Self::new(most, wait, make);
        {
            let mut clients = pool.lock();
            clients.idle.push(first);
            clients.made = 1;
        }
        Ok(pool)
    }
}

impl<C> Pool<C> {
    fn new(most: usize, wait: Duration, make: impl Fn() -> C + Send + Sync + 'static) -> Self {
        let clients = Clients {
            idle: Vec::new(),
            made: 0,
        };
        Self {
            shared: Arc::new(Shared {
                make: Box::new(make),
                most: most.max(1),
                wait,
                clients: Mutex::new(clients),
                returned: Condvar::new(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Clients<C>> {
        // Nothing panics between its changes.
        let clients = self.shared.clients.lock();
        clients.unwrap_or_else(PoisonError::into_inner)
    }

    /// Lends a client. If all are lent, waits for one, for as long as a call may take.
    ///
    /// # Errors
    /// [`Error::Timeout`]: none was returned.
    pub fn get(&self) -> Result<Pooled<C>, Error> {
        let shared = &self.shared;
        let start = clock();
        let mut clients = self.lock();
        loop {
            let idle = clients.idle.pop();
            if idle.is_some() || clients.made < shared.most {
                clients.made += usize::from(idle.is_none());
                // Made without the lock, so that others can return clients meanwhile.
                drop(clients);
                return Ok(Pooled {
                    pool: self.clone(),
                    client: Some(idle.unwrap_or_else(|| (shared.make)())),
                });
            }
            // Anew for each wait: another thread may have taken what was returned.
            let left = shared.wait.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(Error::Timeout(shared.wait));
            }
            let waited = shared.returned.wait_timeout(clients, left);
            clients = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl<C> Clone for Pool<C> {
    fn clone(&self) -> Self {
        let shared = Arc::clone(&self.shared);
        Self { shared }
    }
}

impl<C> fmt::Debug for Pool<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clients = self.lock();
        f.debug_struct("Pool")
            .field("most", &self.shared.most)
            .field("made", &clients.made)
            .field("idle", &clients.idle.len())
            .finish()
    }
}

impl<C> Drop for Pooled<C> {
    fn drop(&mut self) {
        let client = self.client.take();
        // A call that has panicked may have left requests behind whose answers are still to come.
        let is_sound = !std::thread::panicking();
        let mut clients = self.pool.lock();
        match client {
            Some(client) if is_sound => clients.idle.push(client),
            _ => clients.made -= 1,
        }
        drop(clients);
        // Without the lock, which the thread that wakes needs.
        self.pool.shared.returned.notify_one();
    }
}

impl<C> Deref for Pooled<C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.client
            .as_ref()
            .expect("it is there until it is dropped")
    }
}

impl<C> DerefMut for Pooled<C> {
    fn deref_mut(&mut self) -> &mut C {
        self.client
            .as_mut()
            .expect("it is there until it is dropped")
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        thread,
    };

    use super::*;

    fn numbers(most: usize, wait: Duration) -> Pool<usize> {
        let next = AtomicUsize::new(0);
        Pool::new(most, wait, move || next.fetch_add(1, Ordering::Relaxed))
    }

    #[test]
    fn handles_go_from_thread_to_thread() {
        fn shared<T: Clone + Send + Sync + 'static>() {}
        shared::<Pool<Client>>();
        shared::<Pool<Cluster>>();
        fn sent<T: Send + 'static>() {}
        sent::<Pooled<Client>>();
    }

    #[test]
    fn no_more_clients_exist_than_allowed_and_each_is_lent_once() {
        let pool = numbers(3, Duration::from_secs(60));
        let lent: [AtomicUsize; 3] = Default::default();
        thread::scope(|scope| {
            for _ in 0..8 {
                let (pool, lent) = (pool.clone(), &lent);
                scope.spawn(move || {
                    for _ in 0..2000 {
                        let number = pool.get().unwrap();
                        assert_eq!(lent[*number].fetch_add(1, Ordering::SeqCst), 0);
                        thread::yield_now();
                        assert_eq!(lent[*number].fetch_sub(1, Ordering::SeqCst), 1);
                    }
                });
            }
        });
        assert_eq!(format!("{pool:?}"), "Pool { most: 3, made: 3, idle: 3 }");
    }

    #[test]
    fn last_returned_is_lent_first_and_one_that_panicked_never() {
        let pool = numbers(2, Duration::from_millis(1));
        assert_eq!(*pool.get().unwrap(), 0);
        assert_eq!(*pool.get().unwrap(), 0);
        let (first, second) = (pool.get().unwrap(), pool.get().unwrap());
        assert_eq!((*first, *second), (0, 1));
        assert!(matches!(pool.get(), Err(Error::Timeout(_))));
        let fails = thread::spawn(move || {
            let _lent = second;
            panic!("on purpose");
        });
        assert!(fails.join().is_err());
        assert_eq!(*pool.get().unwrap(), 2, "a new one in its place");
    }
}
