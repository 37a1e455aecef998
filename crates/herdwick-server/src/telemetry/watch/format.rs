//! The log lines of `watch`, in memcached's format.

use std::{fmt, net::SocketAddr};

use herdwick_request::{Mode, Status};

use super::{Event, LookupOutcome, What};
use crate::telemetry::uri::Uri;

/// One line for a watcher: the event, the Unix time that its `now` counts from, and the line's
/// number.
pub(crate) struct Line<'a> {
    pub(crate) event: &'a Event,
    pub(crate) started_unix: u64,
    pub(crate) number: u64,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event { now, what, .. } = self.event;
        let key = Uri(self.event.key());
        let (seconds, micros) = (self.started_unix + now.as_secs(), now.subsec_micros());
        // The microseconds are not padded with zeros, as in memcached.
        write!(f, "ts={seconds}.{micros} gid={} ", self.number)?;
        match *what {
            What::Get {
                found,
                size,
                caller,
            } => {
                let (status, class) = found_words(found);
                writeln!(
                    f,
                    "type=item_get key={key} status={status} clsid={class} cfd={caller} size={size}"
                )
            }
            What::Store {
                mode,
                compared,
                status,
                ttl,
                size,
                caller,
            } => {
                let (status, command) = (status_word(status), command_word(mode, compared));
                writeln!(
                    f,
                    "type=item_store key={key} status={status} cmd={command} ttl={ttl} clsid=1 cfd={caller} size={size}"
                )
            }
            What::Deleted { size } => {
                writeln!(f, "type=deleted key={key} cmd=delete clsid=1 size={size}")
            }
            What::Evicted {
                fetched,
                ttl,
                idle,
                size,
            } => {
                let fetched = if fetched { "yes" } else { "no" };
                writeln!(
                    f,
                    "type=eviction key={key} fetch={fetched} ttl={ttl} la={idle} clsid=1 size={size}"
                )
            }
            What::Slow {
                command,
                requests,
                time,
                transport,
                caller,
            } => {
                let micros = time.as_micros();
                writeln!(
                    f,
                    "type=slow_request key={key} cmd={command} requests={requests} us={micros} transport={transport} cfd={caller}"
                )
            }
            What::Opened(number, from) => {
                writeln!(f, "type=conn_new {} cfd={number}", From(from))
            }
            What::Closed(number, from, reason) => {
                let from = From(from);
                writeln!(f, "type=conn_close {from} reason={reason} cfd={number}")
            }
        }
    }
}

/// Formats the address that a connection was opened from.
struct From(Option<SocketAddr>);

impl fmt::Display for From {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => write!(
                f,
                "rip={} rport={} transport=tcp",
                address.ip(),
                address.port()
            ),
            None => f.write_str("rip=unix rport=0 transport=local"),
        }
    }
}

fn found_words(found: LookupOutcome) -> (&'static str, u8) {
    match found {
        // The class of all items in `stats items`; 0 where there is none.
        LookupOutcome::Yes => ("found", 1),
        LookupOutcome::No => ("not_found", 0),
        LookupOutcome::Flushed => ("flushed", 0),
        LookupOutcome::Expired => ("expired", 0),
    }
}

fn status_word(status: Status) -> &'static str {
    match status {
        Status::Done => "stored",
        Status::Exists => "exists",
        Status::NotFound => "not_found",
        Status::TooLarge => "too_large",
        Status::OutOfMemory => "no_memory",
        Status::NotStored | Status::NonNumeric | Status::BadKey => "not_stored",
    }
}

fn command_word(mode: Mode, compared: bool) -> &'static str {
    match mode {
        _ if compared => "cas",
        Mode::Set => "set",
        Mode::Add => "add",
        Mode::Replace => "replace",
        Mode::Append => "append",
        Mode::Prepend => "prepend",
    }
}
