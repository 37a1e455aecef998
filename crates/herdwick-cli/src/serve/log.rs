//! What the server says to whoever runs it: a line an event on standard error, as words or as JSON.
//! All of it is said by the thread that started the server, never by a worker.

use std::{
    fmt,
    io::{self, Stderr},
    panic,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::fmt::{
    FmtContext, FormatEvent, FormatFields, MakeWriter, format::Writer, time::SystemTime,
    writer::OptionalWriter,
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

/// Whether events are written that only a verbose server (`-v`) tells.
static VERBOSE: AtomicBool = AtomicBool::new(false);

/// From now on a server is as verbose as this.
pub(super) fn set_verbosity(verbosity: u8) {
    VERBOSE.store(verbosity > 0, Relaxed);
}

/// From here on events are written. Those of a verbose server are more.
pub(super) fn start(format: LogFormat, verbosity: u8) {
    set_verbosity(verbosity);
    let all = tracing_subscriber::fmt()
        .with_writer(Lines)
        .with_max_level(Level::DEBUG);
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

/// Standard error, for the events that are to be written now: the level may change while the server
/// runs.
struct Lines;

impl<'a> MakeWriter<'a> for Lines {
    type Writer = OptionalWriter<Stderr>;

    fn make_writer(&'a self) -> Self::Writer {
        OptionalWriter::some(io::stderr())
    }

    fn make_writer_for(&'a self, event: &Metadata<'_>) -> Self::Writer {
        if *event.level() > Level::INFO && !VERBOSE.load(Relaxed) {
            return OptionalWriter::none();
        }
        self.make_writer()
    }
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
