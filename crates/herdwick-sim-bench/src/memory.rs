//! What a core waits for memory: the accesses that a batch of requests makes to a store, counted by the
//! requests and replies themselves.

use herdwick_mica::Store;
use herdwick_request::{Clock, Execute, KeyHash, Op, Prefetch, ReadReport, Reply, Request, Sink};
use herdwick_sim::Cpu;

/// Bytes of a line.
const LINE: usize = 64;
/// Accesses of a request that no other line leads to: its bucket, and its item.
const STAGES: f64 = 2.0;

/// A store, and the accesses of the requests that it has executed.
pub(crate) struct CountedStore<'a> {
    store: &'a mut Store,
    pub(crate) accesses: Accesses,
}

/// Accesses of the requests of one pass.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Accesses {
    /// Requests, each of which looks at a bucket and at the first line of an item.
    requests: f64,
    /// Lines of items that are copied, to the store or from it.
    copied: f64,
    /// Lines of requests behind the first one, which the RNIC wrote.
    arrived: f64,
}

impl Accesses {
    /// Returns how long a core takes for them that executes all requests of a pass together: it prefetches
    /// all buckets, then all items.
    pub(crate) fn together_ns(&self, cpu: &Cpu) -> f64 {
        if self.requests == 0.0 {
            return 0.0;
        }
        // The first line comes after the whole latency, the others as many at a time as the core waits for.
        let lines = 1.0 + (self.requests - 1.0) / cpu.lines_under_way;
        STAGES * cpu.memory_ns * lines + self.moved_ns(cpu)
    }

    /// Returns how long a core takes for them that prefetches what a request needs while it posts the replies
    /// to those before it.
    pub(crate) fn beside_posts_ns(&self, cpu: &Cpu) -> f64 {
        let waits = (cpu.memory_ns - cpu.post_ns).max(0.0);
        STAGES * waits * self.requests + self.moved_ns(cpu)
    }

    /// Returns how long a core takes for them that executes one request after the other and prefetches nothing:
    /// each makes `accesses`, one after the other.
    pub(crate) fn one_by_one_ns(&self, accesses: f64, cpu: &Cpu) -> f64 {
        accesses * cpu.memory_ns * self.requests + self.moved_ns(cpu)
    }

    /// Returns those of `requests` of which `puts` store an item of `item_bytes`, and no other has one.
    pub(crate) fn of_puts(requests: u64, puts: u64, item_bytes: usize) -> Self {
        let [requests, puts] = [requests, puts].map(|count| f64::from(count as u32));
        Self {
            requests,
            copied: puts * lines(item_bytes),
            arrived: puts * (lines(item_bytes) - 1.0),
        }
    }

    fn moved_ns(&self, cpu: &Cpu) -> f64 {
        self.copied * cpu.copy_line_ns + self.arrived * cpu.rnic_line_ns
    }

    fn count(&mut self, request: &Request<'_>, reply: &Reply<'_>) {
        self.requests += 1.0;
        match (&request.op, &reply.item) {
            (Op::Put(put), _) => {
                let lines = lines(request.key.len() + put.value.len());
                self.copied += lines;
                self.arrived += lines - 1.0;
            }
            (_, Some(item)) => self.copied += lines(request.key.len() + item.value.len()),
            (_, None) => {}
        }
    }
}

fn lines(bytes: usize) -> f64 {
    u32::try_from(bytes.div_ceil(LINE)).map_or(f64::MAX, f64::from)
}

impl<'a> CountedStore<'a> {
    pub(crate) fn new(store: &'a mut Store) -> Self {
        Self {
            store,
            accesses: Accesses::default(),
        }
    }
}

impl Execute for CountedStore<'_> {
    fn execute(&mut self, clock: Clock, batch: &[Request<'_>], sink: &mut impl Sink) {
        let accesses = &mut self.accesses;
        let mut counting = CountingSink {
            batch,
            accesses,
            sink,
        };
        self.store.execute(clock, batch, &mut counting);
    }

    fn note_reads(&mut self, clock: Clock, report: &ReadReport<'_>) {
        self.store.note_reads(clock, report);
    }
}

impl Prefetch for CountedStore<'_> {
    fn prefetch_bucket(&self, hash: KeyHash) {
        self.store.prefetch_bucket(hash);
    }

    fn prefetch_item(&self, hash: KeyHash) {
        self.store.prefetch_item(hash);
    }
}

struct CountingSink<'a, 'b, S> {
    batch: &'a [Request<'b>],
    accesses: &'a mut Accesses,
    sink: &'a mut S,
}

impl<S: Sink> Sink for CountingSink<'_, '_, S> {
    fn reply(&mut self, index: usize, reply: &Reply<'_>) {
        self.accesses.count(&self.batch[index], reply);
        self.sink.reply(index, reply);
    }

    fn has_room(&mut self, index: usize) -> bool {
        self.sink.has_room(index)
    }

    fn has_room_for(&mut self, index: usize, value_len: usize) -> bool {
        self.sink.has_room_for(index, value_len)
    }
}

#[cfg(test)]
mod tests {
    use herdwick_request::{Delete, Get, Put};
    use herdwick_sim::Profile;

    use super::*;
    use crate::{
        herd::{CLOCK, empty_store},
        keys,
    };

    fn accesses(ops: &[Op<'_>]) -> Accesses {
        let mut store = empty_store(4 << 20).unwrap();
        let mut counted = CountedStore::new(&mut store);
        let key = keys::key(1);
        for op in ops {
            let (hash, key) = (keys::hash(&key), &key[..]);
            let request = Request { hash, key, op: *op };
            counted.execute(CLOCK, &[request], &mut |_: usize, _: &Reply<'_>| ());
        }
        counted.accesses
    }

    #[test]
    fn lines_of_keys_and_values_are_counted() {
        let put = |value| {
            Op::Put(Put {
                value,
                ..Put::default()
            })
        };
        let [get, delete] = [Op::Get(Get::default()), Op::Delete(Delete::default())];
        // 16 bytes of key and 32 of value are a line, with 1,000 they are 16.
        let of = |requests, copied, arrived| Accesses {
            requests,
            copied,
            arrived,
        };
        assert_eq!(accesses(&[get]), of(1.0, 0.0, 0.0));
        assert_eq!(accesses(&[put(&[1; 32]), get]), of(2.0, 2.0, 0.0));
        let long = accesses(&[put(&[1; 1000]), get, delete]);
        assert_eq!(long, of(3.0, 32.0, 15.0));
    }

    #[test]
    fn accesses_of_many_requests_overlap() {
        let mut cpu = Profile::named("apt").unwrap().cpu;
        (cpu.memory_ns, cpu.lines_under_way) = (100.0, 10.0);
        (cpu.copy_line_ns, cpu.rnic_line_ns, cpu.post_ns) = (5.0, 20.0, 150.0);
        let of = |requests| Accesses {
            requests,
            ..Accesses::default()
        };
        assert_eq!(of(0.0).together_ns(&cpu), 0.0);
        assert_eq!(of(1.0).together_ns(&cpu), 200.0);
        assert_eq!(of(31.0).together_ns(&cpu), 800.0);
        // A post takes longer than a line.
        assert_eq!(of(31.0).beside_posts_ns(&cpu), 0.0);
        cpu.post_ns = 60.0;
        assert_eq!(of(1.0).beside_posts_ns(&cpu), 80.0);
        assert_eq!(of(3.0).one_by_one_ns(2.6, &cpu), 780.0);
        let moved = Accesses {
            copied: 16.0,
            arrived: 15.0,
            ..of(0.0)
        };
        assert_eq!(moved.beside_posts_ns(&cpu), 16.0 * 5.0 + 15.0 * 20.0);
        // A PUT of 1,016 bytes, and a request without an item.
        let puts = Accesses::of_puts(2, 1, 1016);
        assert_eq!(
            puts,
            Accesses {
                requests: 2.0,
                ..moved
            }
        );
    }
}
