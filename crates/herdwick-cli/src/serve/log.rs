//! The log: one line per event on standard error, as text or as JSON. Only the thread that started
//! the server logs; a worker does not, except when it panics under JSON.

use std::{
    fmt,
    io::{self, Stderr},
    panic,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
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

/// Format of events (`--log-format`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// `herdwick: what happened`
    #[default]
    Text,
    /// An object with `timestamp` (RFC 3339), `level`, `message`, `target`, and the event's own fields
    Json,
}

/// Whether events below `INFO` are written, as with `-v`.
static VERBOSE: AtomicBool = AtomicBool::new(false);

/// Sets the verbosity of the log.
pub(super) fn set_verbosity(verbosity: u8) {
    // Relaxed: the level alone is shared.
    VERBOSE.store(verbosity > 0, Relaxed);
}

/// Starts writing events, of a level that depends on `verbosity`.
pub(super) fn start(format: LogFormat, verbosity: u8) {
    set_verbosity(verbosity);
    let all = tracing_subscriber::fmt()
        .with_writer(Lines)
        // Of a line that cannot be written it would write another, by a macro that then panics.
        .log_internal_errors(false)
        .with_max_level(Level::DEBUG);
    // Fails if a log was started before; the format then stays as it was.
    let _ = match format {
        LogFormat::Text => all.event_format(Words).try_init(),
        LogFormat::Json => {
            // By default a panic prints lines that are no JSON.
            panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
            let json = all.json().flatten_event(true);
            json.with_timer(SystemTime).try_init()
        }
    };
}

/// Writes events to standard error if they are enabled. Checked for each event, since the level may
/// change while the server runs.
struct Lines;

impl<'a> MakeWriter<'a> for Lines {
    type Writer = OptionalWriter<Stderr>;

    fn make_writer(&'a self) -> Self::Writer {
        OptionalWriter::some(io::stderr())
    }

    fn make_writer_for(&'a self, event: &Metadata<'_>) -> Self::Writer {
        let is_shown = *event.level() <= Level::INFO || VERBOSE.load(Relaxed);
        if !is_shown || !is_taken() {
            return OptionalWriter::none();
        }
        self.make_writer()
    }
}

/// How long a line waits for standard error to take it.
const LINE_WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// Returns whether standard error takes a line soon. The thread that logs also waits for signals: in
/// a write to a full pipe without a reader it would not see SIGTERM.
fn is_taken() -> bool {
    let mut stderr = [PollFd::from_borrowed_fd(
        rustix::stdio::stderr(),
        PollFlags::OUT,
    )];
    // An error is left to the write.
    let ready = retry_on_intr(|| poll(&mut stderr, Some(&LINE_WAIT)));
    ready.map_or(true, |ready| ready > 0)
}

/// Formats an event as the program's name and the message, without other fields.
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
        let mut message = MessageField(String::new());
        event.record(&mut message);
        writeln!(writer, "herdwick: {}", message.0)
    }
}

struct MessageField(String);

impl Visit for MessageField {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}
