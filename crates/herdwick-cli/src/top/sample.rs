//! Samples of a server: two snapshots of its statistics, and the rates between them.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::{Duration, Instant},
};

use herdwick::{Client, Error};
use herdwick_server::{
    GeneralNames, LeaseNames, OffloadNames, WorkerNames,
    names::{self, HotKeyStatistic, LatencyStatistic},
};

/// The names in `stats`; a memcached has those that are its own.
pub(super) const STATS: GeneralNames = GeneralNames::NAMES;
/// The names of the leases' statistics.
pub(super) const LEASES: LeaseNames = LeaseNames::NAMES;
/// The names of a secondary store's statistics, which a server has that replicates to one.
pub(super) const OFFLOAD: OffloadNames = OffloadNames::NAMES;
/// The names in `stats workers`, of one worker.
const WORKER: WorkerNames = WorkerNames::NAMES;

/// A snapshot of a server.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) at: Instant,
    /// Time that the server took to answer `version`.
    pub(super) round_trip: Duration,
    general: HashMap<String, String>,
    /// `stats workers`, by worker and name; empty if the server has no such statistics.
    workers: BTreeMap<u32, HashMap<String, f64>>,
    /// `stats hotkeys`, hottest first: keys and requests per second.
    hot: Vec<(String, f64)>,
    /// `stats latency`, in its order; empty if the server does not measure it.
    latencies: Vec<MeasuredCommand>,
}

/// How long the requests of a command took over a transport, since the server's start or `stats reset`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct MeasuredCommand {
    pub(super) transport: String,
    pub(super) command: String,
    /// Requests.
    pub(super) count: f64,
    /// Microseconds, as those after it.
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    pub(super) max: f64,
}

/// The state of the screen.
pub(super) struct State {
    pub(super) server: String,
    pub(super) paused: bool,
    /// Whether hot keys and workers are ordered by name or number, not by rate.
    pub(super) by_name: bool,
    /// Why the last sample failed, if it did.
    pub(super) trouble: Option<String>,
    before: Option<Sample>,
    now: Option<Sample>,
    /// Requests per second between the samples so far, the latest last.
    history: VecDeque<u64>,
}

/// Length of the history: as many columns as a wide screen has.
const HISTORY: usize = 240;

/// A worker, with its rates between two samples.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Worker {
    pub(super) number: u32,
    pub(super) items: f64,
    pub(super) connections: f64,
    /// Per second, as the three after it.
    pub(super) gets: Option<f64>,
    pub(super) sets: Option<f64>,
    pub(super) forwarded: Option<f64>,
    pub(super) executed_in_place: Option<f64>,
    pub(super) sleeps: Option<f64>,
}

/// A transport of the server between two samples: requests per second, and the mean number of
/// requests in a batch.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FabricRates {
    pub(super) name: String,
    pub(super) requests: Option<f64>,
    pub(super) batch: Option<f64>,
}

impl Sample {
    /// Requests the statistics. Those that a memcached does not have stay empty.
    pub(super) fn take(
        client: &mut Client,
        clock: &mut dyn FnMut() -> Instant,
    ) -> Result<Self, Error> {
        let asked = clock();
        client.version()?;
        let at = clock();
        let general = client.stats("")?.into_iter().collect();
        // A memcached answers these with an error.
        let workers = client.stats("workers").unwrap_or_default();
        let hot = client.stats("hotkeys").unwrap_or_default();
        let latencies = client.stats("latency").unwrap_or_default();
        Ok(Self {
            at,
            round_trip: at - asked,
            general,
            workers: read_workers(workers),
            hot: read_hot(&hot.into_iter().collect()),
            latencies: read_latencies(latencies),
        })
    }

    fn number(&self, name: &str) -> Option<f64> {
        self.general.get(name)?.parse().ok()
    }
}

fn read_workers(said: Vec<(String, String)>) -> BTreeMap<u32, HashMap<String, f64>> {
    let mut workers: BTreeMap<u32, HashMap<String, f64>> = BTreeMap::new();
    for (name, value) in said {
        if let (Some((number, name)), Ok(value)) = (names::worker_of(&name), value.parse()) {
            let worker = workers.entry(number).or_default();
            worker.insert(name.to_owned(), value);
        }
    }
    workers
}

fn read_hot(said: &HashMap<String, String>) -> Vec<(String, f64)> {
    (1..)
        .map_while(|rank| {
            let key = said.get(&names::of_hot_key(rank, HotKeyStatistic::Key))?;
            let rate = said.get(&names::of_hot_key(rank, HotKeyStatistic::Rate))?;
            Some((key.clone(), rate.parse().ok()?))
        })
        .collect()
}

fn read_latencies(said: Vec<(String, String)>) -> Vec<MeasuredCommand> {
    let mut all: Vec<MeasuredCommand> = Vec::new();
    for (name, value) in said {
        let parsed = (names::latency_of(&name), value.parse());
        let (Some((transport, command, statistic)), Ok(value)) = parsed else {
            continue;
        };
        let is_of = |one: &MeasuredCommand| one.transport == transport && one.command == command;
        if !all.last().is_some_and(is_of) {
            all.push(MeasuredCommand {
                transport: transport.to_owned(),
                command: command.to_owned(),
                ..MeasuredCommand::default()
            });
        }
        if let Some(last) = all.last_mut() {
            match statistic {
                LatencyStatistic::Count => last.count = value,
                LatencyStatistic::P50 => last.p50 = value,
                LatencyStatistic::P99 => last.p99 = value,
                LatencyStatistic::P999 => last.p999 = value,
                LatencyStatistic::Max => last.max = value,
                LatencyStatistic::Mean => {}
            }
        }
    }
    all
}

impl State {
    pub(super) fn new(server: &str) -> Self {
        Self {
            server: server.to_owned(),
            paused: false,
            by_name: false,
            trouble: None,
            before: None,
            now: None,
            history: VecDeque::new(),
        }
    }

    /// Takes the result of a sample, unless the screen is paused.
    pub(super) fn take(&mut self, found: Result<Sample, String>) {
        if self.paused {
            return;
        }
        match found {
            Ok(sample) => {
                self.trouble = None;
                self.before = self.now.replace(sample);
                if let Some(requests) = self.requests() {
                    self.history.push_back(requests as u64);
                    if self.history.len() > HISTORY {
                        self.history.pop_front();
                    }
                }
            }
            Err(trouble) => self.trouble = Some(trouble),
        }
    }

    /// Returns a statistic of the last sample as text.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.now.as_ref()?.general.get(name).map(String::as_str)
    }

    /// Returns a statistic of the last sample as a number.
    pub(super) fn number(&self, name: &str) -> Option<f64> {
        self.now.as_ref()?.number(name)
    }

    /// Returns how fast the sum of these statistics grows, per second. `None` before the second
    /// sample, and if the sum has fallen, which means that the server was restarted.
    pub(super) fn rate(&self, names: &[&str]) -> Option<f64> {
        let (before, now, seconds) = self.between()?;
        let sum = |sample: &Sample| names.iter().filter_map(|name| sample.number(name)).sum();
        growth(sum(before), sum(now), seconds)
    }

    /// Returns requests per second, of every kind.
    pub(super) fn requests(&self) -> Option<f64> {
        self.rate(&[
            STATS.cmd_get,
            STATS.cmd_set,
            STATS.cmd_touch,
            STATS.delete_hits,
            STATS.delete_misses,
            STATS.incr_hits,
            STATS.incr_misses,
            STATS.decr_hits,
            STATS.decr_misses,
        ])
    }

    /// Returns requests per second at the samples so far, the latest last, at most `most`.
    pub(super) fn history(&self, most: usize) -> Vec<u64> {
        let skipped = self.history.len().saturating_sub(most);
        self.history.iter().copied().skip(skipped).collect()
    }

    /// Returns the share of reads that hit between the samples; if there were no reads, since the
    /// start of the server.
    pub(super) fn hit_ratio(&self) -> Option<f64> {
        let of = |hits: f64, misses: f64| (hits + misses > 0.0).then(|| hits / (hits + misses));
        let lately = self
            .rate(&[STATS.get_hits])
            .zip(self.rate(&[STATS.get_misses]))
            .and_then(|(hits, misses)| of(hits, misses));
        lately.or_else(|| of(self.number(STATS.get_hits)?, self.number(STATS.get_misses)?))
    }

    /// Returns the share of hits between the samples that the secondary store could have answered; if there were
    /// none, since the start of the server.
    pub(super) fn offloadable(&self) -> Option<f64> {
        let of = |part: f64, all: f64| (all > 0.0).then(|| part / all);
        let lately = self
            .rate(&[OFFLOAD.replicated_reads])
            .zip(self.rate(&[OFFLOAD.reads]))
            .and_then(|(part, all)| of(part, all));
        lately.or_else(|| {
            of(
                self.number(OFFLOAD.replicated_reads)?,
                self.number(OFFLOAD.reads)?,
            )
        })
    }

    pub(super) fn round_trip(&self) -> Option<Duration> {
        self.now.as_ref().map(|now| now.round_trip)
    }

    /// Returns how long requests took, the commands with the most requests first.
    pub(super) fn latencies(&self) -> Vec<MeasuredCommand> {
        let now = self.now.as_ref();
        let mut all = now.map_or_else(Vec::new, |now| now.latencies.clone());
        if !self.by_name {
            all.sort_by(|a, b| b.count.total_cmp(&a.count));
        }
        all
    }

    /// Returns the hot keys, with their requests per second.
    pub(super) fn hot(&self) -> Vec<(String, f64)> {
        let mut hot = self
            .now
            .as_ref()
            .map_or_else(Vec::new, |now| now.hot.clone());
        if self.by_name {
            hot.sort_by(|a, b| a.0.cmp(&b.0));
        } else {
            hot.sort_by(|a, b| b.1.total_cmp(&a.1));
        }
        hot
    }

    pub(super) fn workers(&self) -> Vec<Worker> {
        let Some(now) = &self.now else {
            return Vec::new();
        };
        let mut workers: Vec<Worker> = now
            .workers
            .iter()
            .map(|(&number, said)| {
                let is = |name: &str| said.get(name).copied().unwrap_or_default();
                let grows = |names: &[&str]| self.worker_rate(number, names);
                Worker {
                    number,
                    items: is(WORKER.items),
                    connections: is(WORKER.connections),
                    gets: grows(&[WORKER.get_hits, WORKER.get_misses]),
                    sets: grows(&[WORKER.cmd_set]),
                    forwarded: grows(&[WORKER.forwarded]),
                    executed_in_place: grows(&[WORKER.executed_in_place]),
                    sleeps: grows(&[WORKER.sleeps]),
                }
            })
            .collect();
        if !self.by_name {
            let busy = |worker: &Worker| worker.gets.unwrap_or(0.0) + worker.sets.unwrap_or(0.0);
            workers.sort_by(|a, b| busy(b).total_cmp(&busy(a)));
        }
        workers
    }

    pub(super) fn fabrics(&self) -> Vec<FabricRates> {
        let Some(now) = &self.now else {
            return Vec::new();
        };
        let of_workers = now.workers.values().flat_map(HashMap::keys);
        let mut transports: Vec<&str> = of_workers
            .filter_map(|name| names::transport_of(name))
            .map(|(transport, _)| transport)
            .collect();
        transports.sort_unstable();
        transports.dedup();
        let all = |name: String| -> Option<f64> {
            let each = now.workers.keys();
            each.map(|&number| self.worker_rate(number, &[&name])).sum()
        };
        transports
            .into_iter()
            .map(|name| {
                let requests = all(names::of_transport(name, names::REQUESTS));
                let batches = all(names::of_transport(name, names::BATCHES));
                FabricRates {
                    name: name.to_owned(),
                    requests,
                    batch: requests
                        .zip(batches.filter(|&batches| batches > 0.0))
                        .map(|(requests, batches)| requests / batches),
                }
            })
            .collect()
    }

    fn worker_rate(&self, number: u32, names: &[&str]) -> Option<f64> {
        let (before, now, seconds) = self.between()?;
        let sum = |sample: &Sample| {
            let said = sample.workers.get(&number)?;
            Some(names.iter().filter_map(|name| said.get(*name)).sum())
        };
        growth(sum(before)?, sum(now)?, seconds)
    }

    fn between(&self) -> Option<(&Sample, &Sample, f64)> {
        let (before, now) = self.before.as_ref().zip(self.now.as_ref())?;
        let seconds = now.at.saturating_duration_since(before.at).as_secs_f64();
        (seconds > 0.0).then_some((before, now, seconds))
    }
}

fn growth(before: f64, now: f64, seconds: f64) -> Option<f64> {
    (now >= before).then(|| (now - before) / seconds)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a sample, taken `seconds` after `start`, of a server with these statistics.
    pub(in crate::top) fn check(start: Instant, seconds: u64, said: &[(&str, &str)]) -> Sample {
        let pairs = || {
            let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
            said.iter().map(owned)
        };
        Sample {
            at: start + Duration::from_secs(seconds),
            round_trip: Duration::from_micros(123),
            general: pairs().collect(),
            workers: read_workers(pairs().collect()),
            hot: read_hot(&pairs().collect()),
            latencies: read_latencies(pairs().collect()),
        }
    }

    /// Returns a state after these two samples, two seconds apart.
    pub(in crate::top) fn state(before: &[(&str, &str)], now: &[(&str, &str)]) -> State {
        #[expect(clippy::disallowed_methods, reason = "any instant will do")]
        let start = Instant::now();
        let mut state = State::new("127.0.0.1:11211");
        state.take(Ok(check(start, 0, before)));
        state.take(Ok(check(start, 2, now)));
        state
    }

    #[test]
    fn rates_are_between_two_samples() {
        let state = state(
            &[("get_hits", "100"), ("get_misses", "0"), ("cmd_set", "50")],
            &[("get_hits", "130"), ("get_misses", "10"), ("cmd_set", "7")],
        );
        assert_eq!(state.rate(&["get_hits", "get_misses"]), Some(20.0));
        assert_eq!(state.hit_ratio(), Some(0.75));
        // The server was restarted.
        assert_eq!(state.rate(&["cmd_set"]), None);
    }

    #[test]
    fn workers_fabrics_and_hot_keys_are_parsed() {
        let before = [
            ("worker:0:shm:requests", "0"),
            ("worker:0:shm:batches", "0"),
            ("worker:1:shm:requests", "0"),
            ("worker:1:shm:batches", "0"),
            ("worker:0:cmd_set", "0"),
            ("worker:1:cmd_set", "0"),
        ];
        let now = [
            ("worker:0:shm:requests", "10"),
            ("worker:0:shm:batches", "2"),
            ("worker:1:shm:requests", "30"),
            ("worker:1:shm:batches", "3"),
            ("worker:0:cmd_set", "2"),
            ("worker:1:cmd_set", "20"),
            ("hotkey:1:key", "b"),
            ("hotkey:1:rate", "9"),
            ("hotkey:2:key", "a"),
            ("hotkey:2:rate", "5"),
        ];
        let mut state = state(&before, &now);
        let numbers = |state: &State| -> Vec<u32> {
            state.workers().iter().map(|worker| worker.number).collect()
        };
        assert_eq!(numbers(&state), [1, 0]);
        let [fabric] = &state.fabrics()[..] else {
            panic!("one fabric")
        };
        assert_eq!((fabric.requests, fabric.batch), (Some(20.0), Some(8.0)));
        assert_eq!(state.hot()[0].0, "b");
        state.by_name = true;
        assert_eq!(
            (numbers(&state), state.hot()[0].0.as_str()),
            (vec![0, 1], "a")
        );
    }

    #[test]
    fn paused_screen_does_not_change() {
        let mut state = state(&[("x", "1")], &[("x", "2")]);
        state.paused = true;
        state.take(Err("gone".into()));
        assert_eq!((state.number("x"), &state.trouble), (Some(2.0), &None));
        state.paused = false;
        state.take(Err("gone".into()));
        assert_eq!(
            (state.number("x"), state.trouble.is_some()),
            (Some(2.0), true)
        );
    }
}
