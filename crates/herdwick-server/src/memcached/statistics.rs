//! The replies to `stats`: each topic's table, written to the connection's output.

use std::fmt::Display;

use herdwick_memcache::Keys;
use herdwick_request::Clock;

use super::gather::Topic;
use crate::{
    context::Context,
    runtime::reply_encoding::Encoder,
    telemetry::{
        hot::KEYS_MAX,
        snapshot::{Snapshot, StatsView},
        stats::{self, Stats},
    },
};

/// Writes the statistics of `topic`, summed over the workers' snapshots where the topic is not
/// per worker.
pub(super) fn topic(
    context: &Context,
    topic: Topic,
    encoder: Encoder,
    clock: Clock,
    parts: &[Snapshot],
    out: &mut Vec<u8>,
) {
    let sum = &Snapshot::sum(parts);
    let view = &StatsView::new(context, clock, sum);
    let mut say = |name: &str, value: &dyn Display| encoder.stat(out, name, value);
    let mut stats = Stats(&mut say);
    match topic {
        Topic::General => stats::general(view, &mut stats),
        Topic::Items => stats::items(view, &mut stats),
        Topic::Slabs => stats::slabs(view, &mut stats),
        // `-X` hides keys.
        Topic::HotKeys if context.settings.offers.dump => {
            stats::hot_keys(
                &stats::hottest(&context.settings, sum, KEYS_MAX),
                &mut stats,
            );
        }
        Topic::HotKeys => {
            encoder.no_topic(out);
            return;
        }
        Topic::Latency => stats::latency(&context.settings, sum, &mut stats),
        Topic::Workers => stats::workers(view, parts, &mut stats),
        Topic::Reset => {
            // The workers have reset theirs already; these belong to no worker.
            context.reset_counters();
            encoder.reset(out);
            return;
        }
    }
    encoder.end(out);
}

/// Writes the topics that need no other worker.
pub(super) fn local(context: &Context, mut words: Keys<'_>, encoder: Encoder, out: &mut Vec<u8>) {
    let mut say = |name: &str, value: &dyn Display| encoder.stat(out, name, value);
    let mut stats = Stats(&mut say);
    match words.next() {
        // memcached accepts any prefix of the word.
        Some(word) if b"settings".starts_with(word) => stats::settings(context, &mut stats),
        Some(word) if encoder.is_text() && b"extstore".starts_with(word) => {}
        // As a memcached that was not started with `-o track_sizes`.
        Some(b"sizes") => stats.add("sizes_status", "disabled"),
        _ => {
            encoder.no_topic(out);
            return;
        }
    }
    encoder.end(out);
}
