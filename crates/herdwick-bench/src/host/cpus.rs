//! CPU placement: which CPUs the server and the clients get, and pinning a thread to them.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// CPUs of the server's workers and of the clients: disjoint if there are enough CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// CPUs for the server.
    pub server: Vec<usize>,
    /// CPUs for the clients; client `i` gets the `i`th, modulo their number.
    pub clients: Vec<usize>,
}

impl Placement {
    /// Assigns the first `workers` of `cpus` to the server and the rest to the clients; with too
    /// few CPUs both share all of them.
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

    /// Returns whether server and clients have disjoint CPUs.
    #[must_use]
    pub fn is_apart(&self) -> bool {
        self.server != self.clients
    }

    /// Returns the CPUs of client `index`.
    #[must_use]
    pub fn client(&self, index: usize) -> &[usize] {
        match self.clients.len() {
            0 => &[],
            len if self.is_apart() => std::slice::from_ref(&self.clients[index % len]),
            _ => &self.clients,
        }
    }

    /// Returns the CPU of server thread `index`.
    #[must_use]
    pub(crate) fn server_cpu(&self, index: usize) -> &[usize] {
        match self.server.len() {
            0 => &[],
            len if self.is_apart() => std::slice::from_ref(&self.server[index % len]),
            _ => &self.server,
        }
    }

    /// Returns the placement with the CPUs of server and clients exchanged.
    #[must_use]
    pub(crate) fn reversed(&self) -> Self {
        Self {
            server: self.clients.clone(),
            clients: self.server.clone(),
        }
    }

    /// Returns the number of CPUs of server and clients together.
    pub(crate) fn cpus(&self) -> usize {
        let shared = if self.is_apart() {
            0
        } else {
            self.clients.len()
        };
        self.server.len() + self.clients.len() - shared
    }

    /// Returns a CPU of the server and another one of the clients; `None` if there is only one CPU.
    #[must_use]
    pub fn pair(&self) -> Option<[usize; 2]> {
        // The last: if both share all CPUs, that is another one.
        let pair = [*self.server.first()?, *self.clients.last()?];
        (pair[0] != pair[1]).then_some(pair)
    }
}

/// Returns the CPUs that this thread may use, in ascending order.
#[must_use]
pub(crate) fn allowed_cpus() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|cpu| set.is_set(*cpu))
        .collect();
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// Pins this thread, and every thread that it starts, to `cpus`. If the kernel refuses, the thread
/// stays unpinned, and the figures show it by their spread.
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
    fn server_and_clients_get_separate_cpus_if_there_are_enough() {
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
    fn pinned_thread_stays_on_its_cpu() {
        let last = *allowed_cpus().last().unwrap();
        let seen = std::thread::spawn(move || {
            pin(&[last]);
            allowed_cpus()
        });
        assert_eq!(seen.join().unwrap(), [last]);
    }
}
