//! State that all workers share: settings, limits, users, certificates, and the output of `stats`.
//! The settings are fixed at the start; the rest is atomic or locked only outside the data path.

use std::{
    fmt::Display,
    ops::Deref,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use herdwick_memcache::Keys;
use herdwick_mica::{Clock, Second};

use crate::{
    accept::{Opened, Source},
    auth::Auth,
    config::{Config, Listen, StartError},
    counters::Snapshot,
    hot::{self, HotKey, KEYS_MAX as HOT_KEYS_MAX},
    lease::{Arrival, Host, LeaseCounters},
    stats::{self, View},
    tcp::{Encoder, Topic},
    tls::Certificates,
    tuning::{Limits, MemoryLimit, Tunables},
    udp, watch,
};

/// The memcached version whose protocols the server implements. Clients select features by it, and
/// some parse the last three numbers, so nothing may follow them.
pub(crate) const VERSION: &str = "1.6.45";
/// The version of this server.
pub(crate) const HERDWICK_VERSION: &str = env!("CARGO_PKG_VERSION");

/// What all workers share.
pub(crate) struct Context {
    /// The store's second at the start.
    started: Second,
    pub(crate) settings: Settings,
    /// The settings that may change while the server runs.
    pub(crate) tunables: Tunables,
    pub(crate) limits: Limits,
    /// Users and passwords; `None`: no authentication.
    pub(crate) auth: Option<Auth>,
    /// Certificates for TLS; `None`: no TLS.
    pub(crate) certificates: Option<Certificates>,
    /// The listeners.
    pub(crate) sources: Vec<Source>,
    /// Counters of datagrams that were dropped.
    pub(crate) udp: udp::Refused,
    /// The topics and counters of `watch`.
    pub(crate) watch: Arc<watch::Shared>,
    host: Host,
}

/// The settings that are fixed at the start: the configuration, and what the server made of it.
pub(crate) struct Settings {
    config: Config,
    pub(crate) workers: usize,
    pub(crate) port: u16,
    /// 0: no UDP.
    pub(crate) udp_port: u16,
}

impl Deref for Settings {
    type Target = Config;

    fn deref(&self) -> &Config {
        &self.config
    }
}

/// What clients are admitted by, read from the files that the configuration names. Each file is read
/// once: it may be a pipe.
pub(crate) struct Credentials {
    auth: Option<Auth>,
    certificates: Option<Certificates>,
}

impl Credentials {
    /// Reads users, certificates and keys.
    ///
    /// # Errors
    /// [`StartError::Auth`], [`StartError::Tls`].
    pub(crate) fn read(config: &Config) -> Result<Self, StartError> {
        let is_tcp = matches!(config.listen, Listen::Tcp(_));
        let tls = config.tls.as_ref().filter(|_| is_tcp);
        Ok(Self {
            auth: Auth::open(config)?,
            certificates: tls.map(Certificates::open).transpose()?,
        })
    }
}

impl Context {
    /// Returns the seconds since the start.
    pub(crate) fn uptime(&self, clock: Clock) -> u32 {
        clock.second.0.saturating_sub(self.started.0)
    }

    pub(crate) fn new(
        config: &Config,
        (workers, memory): (usize, MemoryLimit),
        opened: &Opened,
        credentials: Credentials,
        host: Host,
        clock: Clock,
    ) -> Self {
        let (port, udp_port) = opened.ports();
        let Credentials { auth, certificates } = credentials;
        if let Some(certificates) = &certificates {
            certificates.read_at.store(clock.second.0, Relaxed);
        }
        Self {
            started: clock.second,
            settings: Settings {
                config: config.clone(),
                workers,
                port,
                udp_port,
            },
            tunables: Tunables::new(&config.tuning(), memory),
            limits: Limits::new(config.connections_max),
            auth,
            certificates,
            sources: opened.sources(),
            udp: udp::Refused::default(),
            watch: Arc::default(),
            host,
        }
    }

    /// Writes the reply to a hello into `out`; `false`: the line is no hello.
    pub(crate) fn greet(&self, line: &[u8], out: &mut Vec<u8>) -> bool {
        let Some(reply) = self.host.greet(line) else {
            return false;
        };
        out.extend_from_slice(reply.as_bytes());
        true
    }

    /// Returns whether a connection that begins with a claim is handed to the lease manager.
    pub(crate) fn takes_claims(&self) -> bool {
        self.host.takes_claims()
    }

    /// Hands a connection that began with a claim to the lease manager.
    pub(crate) fn pass_on(&self, arrival: Arrival) {
        self.host.pass_on(arrival);
    }

    /// Writes the statistics of `topic`, summed over the workers' snapshots where the topic is not
    /// per worker.
    pub(crate) fn say(
        &self,
        topic: Topic,
        encoder: Encoder,
        clock: Clock,
        parts: &[Snapshot],
        out: &mut Vec<u8>,
    ) {
        let sum = &Snapshot::sum(parts);
        let view = &View::new(self, clock, sum);
        let mut say = |name: &str, value: &dyn Display| encoder.stat(out, name, value);
        let mut stats = Stats(&mut say);
        match topic {
            Topic::General => stats::general(view, &mut stats),
            Topic::Items => stats::items(view, &mut stats),
            Topic::Slabs => stats::slabs(view, &mut stats),
            Topic::HotKeys if self.settings.offers.dump => {
                stats::hot_keys(&self.hot_keys(sum, HOT_KEYS_MAX), &mut stats);
            }
            Topic::HotKeys => {
                encoder.no_topic(out);
                return;
            }
            Topic::Workers => stats::workers(view, parts, &mut stats),
            Topic::Reset => {
                encoder.reset(out);
                return;
            }
        }
        encoder.end(out);
    }

    /// Returns the hottest keys, at most `most`; an empty list if clients may not see keys.
    pub(crate) fn hot_keys(&self, sum: &Snapshot, most: usize) -> Vec<HotKey> {
        let mut keys = sum.hot.clone();
        let shown = if self.settings.offers.dump {
            most.min(self.settings.hot_keys)
        } else {
            0
        };
        hot::shorten(&mut keys, shown);
        keys
    }

    /// Returns the lease manager's counters, if there is one.
    pub(crate) fn leases(&self) -> Option<&LeaseCounters> {
        self.host.counters()
    }

    /// Writes the topics that need no other worker.
    pub(crate) fn say_settings(&self, mut words: Keys<'_>, encoder: Encoder, out: &mut Vec<u8>) {
        let mut say = |name: &str, value: &dyn Display| encoder.stat(out, name, value);
        let mut stats = Stats(&mut say);
        match words.next() {
            // memcached accepts any prefix of the word.
            Some(word) if b"settings".starts_with(word) => stats::settings(self, &mut stats),
            Some(word) if encoder.is_text() && b"extstore".starts_with(word) => {}
            Some(b"sizes") => stats.say("sizes_status", "disabled"),
            _ => {
                encoder.no_topic(out);
                return;
            }
        }
        encoder.end(out);
    }
}

/// The receiver of statistics: a name and a value each.
pub(crate) struct Stats<'a>(pub(crate) &'a mut dyn FnMut(&str, &dyn Display));

impl Stats<'_> {
    pub(crate) fn say(&mut self, name: &str, value: impl Display) {
        (self.0)(name, &value);
    }
}
