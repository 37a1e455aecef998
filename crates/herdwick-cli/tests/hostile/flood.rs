//! One peer with a lease that sends WRITEs under a wrong rkey as fast as it can, beside a client
//! that reads. Each is served, and every packet of the flood is counted.
//!
//! What the flood costs the client is measured, not checked: it depends on the CPUs. Each part is
//! measured for a tenth of a second, or for `HERDWICK_FLOOD_SECONDS`:
//!
//! ```sh
//! HERDWICK_FLOOD_SECONDS=2 cargo test --release -p herdwick-cli --test hostile \
//!     flood -- --nocapture
//! ```

use std::{hint::black_box, time::Duration};

use herdwick::Client;
use herdwick_fabric::{Remote, Rkey};

use crate::{
    KEPT, Siege,
    common::{Clock, value},
    meanwhile,
    network::{Far, honest},
};

/// Turns of the parts, so that a host that changes its speed affects all of them.
const TURNS: usize = 5;
/// Keys of one call.
const KEYS: usize = 32;
/// WRITEs of one postlist.
const BURST: usize = 16;
/// Steps of arithmetic between two looks at the clock of a thread that only computes.
const STRETCH: usize = 10_000;

#[expect(
    clippy::disallowed_methods,
    reason = "how long; a test has no arguments"
)]
fn time_of_a_part() -> Duration {
    let asked = std::env::var("HERDWICK_FLOOD_SECONDS").ok();
    asked.map_or(Duration::from_millis(100), |seconds| {
        Duration::from_secs_f64(seconds.parse().expect("a number of seconds"))
    })
}

/// Calls of the client, and how long each took.
#[derive(Default)]
struct Reads {
    waits: Vec<Duration>,
}

impl Reads {
    /// Reads for `time`, and checks every value.
    fn run(&mut self, client: &mut Client, time: Duration) {
        let keys: Vec<String> = (0..KEPT).map(|n| format!("kept:{n}")).collect();
        let clock = Clock::start();
        while clock.now() < time {
            let first = self.waits.len() * KEYS % (KEPT - KEYS);
            let begin = clock.now();
            let found = client.get_many(&keys[first..first + KEYS]).unwrap();
            self.waits.push(clock.now() - begin);
            for (n, found) in (first..).zip(found) {
                let found = found.map(|item| item.value);
                assert!(found == Some(value(&keys[n], 7, n * 4)), "{}", keys[n]);
            }
        }
    }

    /// Keys in a second.
    fn rate(&self) -> f64 {
        (self.waits.len() * KEYS) as f64 / self.waits.iter().sum::<Duration>().as_secs_f64()
    }

    fn print(&mut self, beside: &str, alone: f64) {
        self.waits.sort_unstable();
        let part = |share: f64| self.waits[(share * (self.waits.len() - 1) as f64) as usize];
        println!(
            "beside {beside}: {:.0} keys/s ({:.0} %), a call of {KEYS} keys p50 {:.1?}, p99 {:.1?}, \
             longest {:.1?}",
            self.rate(),
            100.0 * self.rate() / alone,
            part(0.5),
            part(0.99),
            part(1.0),
        );
    }
}

#[test]
fn flood_of_wrong_rkeys_is_counted_and_a_client_is_served_beside_it() {
    let mut siege = Siege::new();
    let mut client = honest(&siege);
    let mut far = Far::take(&siege.server.address);
    let time = time_of_a_part();
    let mut beside = [(); 3].map(|()| Reads::default());
    let (mut sent, mut computed) = (0, 0_u64);
    for _ in 0..TURNS {
        let [nothing, computing, flood] = &mut beside;
        nothing.run(&mut client, time);
        let compute = || (0..STRETCH).for_each(|n| computed = black_box(computed + n as u64));
        meanwhile(compute, || computing.run(&mut client, time));
        let write = || {
            for channel in 0..far.channels() {
                let wrong = |lines: Remote| Remote {
                    rkey: Rkey(!lines.rkey.0),
                    ..lines
                };
                far.write_often(channel, wrong, BURST);
                sent += BURST as u64;
            }
        };
        meanwhile(write, || flood.run(&mut client, time));
    }
    let alone = beside[0].rate();
    let names = ["nothing", "a thread that computes", "the flood"];
    for (reads, name) in beside.iter_mut().zip(names) {
        reads.print(name, alone);
    }
    // What the socket had no room for is counted apart from what was looked at.
    let refused = ["roce_unknown_rkey", "roce_too_many_refused"].map(|name| siege.stat(name));
    println!("{sent} packets sent, of which the server refused {refused:?}");
    assert!(refused[0] > 0 && refused.iter().sum::<u64>() <= sent);
    siege.survives();
}
