//! What the server says to whoever runs it: a line an event on standard error, as words or as JSON.
//! All of it is said by the thread that started the server, never by a worker.

use std::{fmt, io, panic};

use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::fmt::{
    FmtContext, FormatEvent, FormatFields, format::Writer, time::SystemTime,
};
use tracing_subscriber::registry::LookupSpan;

/// How events are written (`--log-format`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// `herdwick: what happened`
    #[default]
    Text,
    /// An object with `timestamp` (RFC 3339), `level`, `message`, `target`, and the event's own fields
    Json,
}

/// From here on events are written. Those of a `verbose` server are more.
pub(super) fn start(format: LogFormat, verbose: bool) {
    let level = if verbose { Level::DEBUG } else { Level::INFO };
    let all = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_max_level(level);
    // It fails if it was done before, by a start that has failed since.
    let _ = match format {
        LogFormat::Text => all.event_format(Words).try_init(),
        LogFormat::Json => {
            panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
            let json = all.json().flatten_event(true);
            json.with_timer(SystemTime).try_init()
        }
    };
}

/// An event's message alone, behind the program's name.
struct Words;

impl<S, N> FormatEvent<S, N> for Words
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut message = Message(String::new());
        event.record(&mut message);
        writeln!(writer, "herdwick: {}", message.0)
    }
}

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}
