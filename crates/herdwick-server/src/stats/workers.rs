//! Statistics that memcached does not have: `stats workers` and `stats hotkeys`.

use crate::{context::Stats, counters::Snapshot, dump::Uri, hot::HotKey};

/// `stats workers`: the counters of each worker, and of each of its transports.
pub(crate) fn workers(parts: &[Snapshot], out: &mut Stats<'_>) {
    let mut parts: Vec<&Snapshot> = parts.iter().collect();
    parts.sort_by_key(|part| part.worker);
    for part in parts {
        let worker = part.worker;
        for (name, count) in of_worker(part) {
            out.say(&format!("worker:{worker}:{name}"), count);
        }
        for (transport, requests, batches) in transports(part) {
            out.say(&format!("worker:{worker}:{transport}:requests"), requests);
            out.say(&format!("worker:{worker}:{transport}:batches"), batches);
        }
    }
}

/// `stats hotkeys`: the most requested keys of the last 10 to 20 seconds, hottest first.
pub(crate) fn hot_keys(keys: &[HotKey], out: &mut Stats<'_>) {
    for (hot, rank) in keys.iter().zip(1..) {
        out.say(&format!("hotkey:{rank}:key"), Uri(&hot.key));
        for (name, value) in [
            ("requests", hot.count),
            ("excess", hot.excess),
            ("seconds", hot.seconds.into()),
            ("rate", hot.rate()),
        ] {
            out.say(&format!("hotkey:{rank}:{name}"), value);
        }
    }
}

/// Returns the main counters of one worker.
pub(crate) fn of_worker(part: &Snapshot) -> [(&'static str, u64); 10] {
    let Snapshot {
        counters, store, ..
    } = part;
    [
        ("items", store.items),
        ("bytes", store.bytes),
        ("connections", counters.connections),
        ("get_hits", counters.get_hits),
        ("get_misses", counters.get_misses),
        ("cmd_set", counters.cmd_set),
        ("evictions", store.evictions),
        ("forwarded", counters.forwarded),
        (
            "forward_batches_exhausted",
            counters.forward_batches_exhausted,
        ),
        ("sleeps", counters.sleeps),
    ]
}

/// Returns the transports: name, requests executed, and the batches they arrived in.
pub(crate) fn transports(part: &Snapshot) -> Vec<(&'static str, u64, u64)> {
    let mut transports = vec![("tcp", part.counters.tcp_requests, part.counters.tcp_batches)];
    for counted in &part.transports {
        let (requests, batches) = match counted.what {
            "requests" => (counted.count, 0),
            "batches" => (0, counted.count),
            _ => continue,
        };
        match transports
            .iter_mut()
            .find(|(transport, ..)| *transport == counted.transport)
        {
            Some(known) => {
                known.1 += requests;
                known.2 += batches;
            }
            None => transports.push((counted.transport, requests, batches)),
        }
    }
    transports
}
