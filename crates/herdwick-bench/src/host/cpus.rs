use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Where the server's workers and the clients run: apart, as far as the CPUs reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// CPUs for the server.
    pub server: Vec<usize>,
    /// CPUs for the clients, taken in turn.
    pub clients: Vec<usize>,
}

impl Placement {
    /// Gives the first `workers` of `cpus` to the server and the rest to the clients; both share
    /// all of them where there are too few.
    #[must_use]
    pub fn new(cpus: &[usize], workers: usize) -> Self {
        let (server, clients) = cpus.split_at(workers.min(cpus.len()));
        if clients.is_empty() || server.is_empty() {
            return Self {
                server: cpus.to_vec(),
                clients: cpus.to_vec(),
            };
        }
        Self {
            server: server.to_vec(),
            clients: clients.to_vec(),
        }
    }

    /// Whether a server thread and a client thread never meet on a CPU.
    #[must_use]
    pub fn is_apart(&self) -> bool {
        self.server != self.clients
    }

    /// Where client `index` runs.
    #[must_use]
    pub fn client(&self, index: usize) -> &[usize] {
        match self.clients.len() {
            0 => &[],
            len if self.is_apart() => std::slice::from_ref(&self.clients[index % len]),
            _ => &self.clients,
        }
    }

    /// How many CPUs there are for all of them.
    pub(crate) fn cpus(&self) -> usize {
        let shared = if self.is_apart() {
            0
        } else {
            self.clients.len()
        };
        self.server.len() + self.clients.len() - shared
    }

    /// Two CPUs between which requests travel, if they do.
    #[must_use]
    pub fn pair(&self) -> Option<[usize; 2]> {
        let pair = [*self.server.first()?, *self.clients.last()?];
        (pair[0] != pair[1]).then_some(pair)
    }
}

/// The CPUs that this thread may use, in order.
#[must_use]
pub(crate) fn allowed_cpus() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|cpu| set.is_set(*cpu))
        .collect();
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// Keeps this thread, and what it starts, on `cpus`. Where the kernel refuses, it stays free: the
/// figures then say so by their spread.
pub(crate) fn pin(cpus: &[usize]) {
    let mut set = CpuSet::new();
    for cpu in cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU) {
        set.set(*cpu);
    }
    if set.count() > 0 {
        let _ = sched_setaffinity(None, &set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_and_clients_part_where_they_can() {
        let two = Placement::new(&[0, 1], 1);
        assert_eq!((two.client(0), two.client(5)), (&[1][..], &[1][..]));
        assert_eq!(two.pair(), Some([0, 1]));

        let four = Placement::new(&[2, 3, 6, 7], 2);
        assert_eq!(four.server, [2, 3]);
        assert_eq!(
            (four.client(0), four.client(1), four.client(2)),
            (&[6][..], &[7][..], &[6][..])
        );

        let one = Placement::new(&[0], 1);
        assert!(!one.is_apart());
        assert_eq!(one.pair(), None);
        let crowded = Placement::new(&[0, 1], 4);
        assert_eq!(crowded.client(0), [0, 1]);
        assert_eq!(crowded.pair(), Some([0, 1]));
    }

    #[test]
    fn a_pinned_thread_stays_where_it_was_put() {
        let last = *allowed_cpus().last().unwrap();
        let seen = std::thread::spawn(move || {
            pin(&[last]);
            allowed_cpus()
        });
        assert_eq!(seen.join().unwrap(), [last]);
    }
}
