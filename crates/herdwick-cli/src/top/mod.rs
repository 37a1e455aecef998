//! `herdwick top`: a live view of a server, from its `stats`.

mod batch;
mod sample;
mod view;

use std::{
    io::{self, IsTerminal},
    ops::RangeInclusive,
    process::ExitCode,
    sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender},
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use herdwick::{Client, Options};
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
};

use crate::{
    client::{self, Access},
    exit::Exit,
    say, units,
};
use sample::{Sample, State};

/// Watch a server: rates, hit ratio, latency, hot keys, workers, fabrics.
///
/// It reads `stats`, so it works with a memcached too, which has no hot keys, workers or fabrics to
/// show. Keys: q quits, p pauses, s changes the order.
#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// Where the server listens: HOST:PORT, or the path of a unix socket.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:11211")]
    server: String,
    #[command(flatten)]
    access: Access,
    /// Take two samples, --interval apart, and print one JSON object with the rates between them,
    /// for scripts; needs no terminal.
    #[arg(long)]
    json: bool,
    /// Seconds between two samples, or 500ms, 1m.
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    interval: Duration,
}

/// The result of the sampling thread: a sample, or the error.
type SampleResult = Result<Sample, String>;

/// Time that the screen waits for a key before it is drawn again.
const KEYS: Duration = Duration::from_millis(50);
/// Bounds of the interval between two samples.
const INTERVALS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);
/// Timeout of an answer of the server.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Shows the server until the user quits.
pub(crate) fn run(args: &TopArgs) -> ExitCode {
    if !args.json && !io::stdout().is_terminal() {
        say::complain("top needs a terminal; without one, give --json");
        return Exit::Usage.into();
    }
    let (to_screen, found) = mpsc::sync_channel(1);
    let (enough, done) = mpsc::channel();
    let options = match args.access.options() {
        Ok(options) => Options {
            // Statistics are text: a session over a fabric would have no use.
            fabric: false,
            deadline: TIMEOUT,
            ..options
        },
        Err(failure) => {
            say::complain(client::complaint(&args.server, &failure));
            return Exit::from(&failure).into();
        }
    };
    if args.json {
        return batch::run(&args.server, &options, args.interval);
    }
    let (server, interval) = (args.server.clone(), args.interval);
    let sampler =
        thread::spawn(move || check_again(&server, &options, interval, &to_screen, &done));
    let mut terminal = ratatui::init();
    let shown = show(&mut terminal, State::new(&args.server), &found);
    ratatui::restore();
    // Closing the channels wakes the sampling thread and ends it.
    drop((found, enough));
    // The sampling thread ends when its channels are closed. A panic in it has already been
    // printed.
    let _ = sampler.join();
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say::complain(format_args!("the terminal refused: {error}"));
            Exit::Failed.into()
        }
    }
}

/// Takes a sample every `interval` and sends it to the screen, until a channel is closed.
fn check_again(
    server: &str,
    options: &Options,
    interval: Duration,
    screen: &SyncSender<SampleResult>,
    done: &Receiver<()>,
) {
    let mut client = None;
    loop {
        let found = check(&mut client, server, options);
        if found.is_err() {
            // The next sample connects again.
            client = None;
        }
        if screen.send(found).is_err() {
            return;
        }
        if done.recv_timeout(interval) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is the shell that reads the clock"
)]
fn check(client: &mut Option<Client>, server: &str, options: &Options) -> SampleResult {
    let dialled = match client.take() {
        Some(dialled) => dialled,
        None => Client::connect_with(server, options.clone()).map_err(|error| error.to_string())?,
    };
    Sample::take(client.insert(dialled), &mut Instant::now).map_err(|error| error.to_string())
}

/// Draws the samples and handles the keys, until the user quits.
fn show(
    terminal: &mut DefaultTerminal,
    mut state: State,
    found: &Receiver<SampleResult>,
) -> io::Result<()> {
    loop {
        while let Ok(found) = found.try_recv() {
            state.take(found);
        }
        terminal.draw(|frame| view::draw(frame, &state))?;
        if !event::poll(KEYS)? {
            continue;
        }
        if let Event::Key(key) = event::read()?
            // Some terminals report releases, too.
            && key.kind == KeyEventKind::Press
            && !follow(&mut state, key)
        {
            return Ok(());
        }
    }
}

/// Handles a key; returns `false` if the user quits.
fn follow(state: &mut State, key: KeyEvent) -> bool {
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return false,
        // In raw mode it sends no signal.
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        KeyCode::Char('p') | KeyCode::Char(' ') => state.paused = !state.paused,
        KeyCode::Char('s') => state.by_name = !state.by_name,
        _ => {}
    }
    true
}

fn seconds(text: &str) -> Result<Duration, String> {
    units::time(text, Duration::from_secs(1))
        .filter(|time| INTERVALS.contains(time))
        .ok_or_else(|| "give seconds between 0.1 and 3600, or 500ms, 1m".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_pause_sort_and_quit() {
        let mut state = State::new("x");
        let mut press = |code| follow(&mut state, KeyEvent::new(code, KeyModifiers::NONE));
        assert!(press(KeyCode::Char('p')) && press(KeyCode::Char('s')) && press(KeyCode::Up));
        assert!(!press(KeyCode::Char('q')));
        assert!(state.paused && state.by_name);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert!(!follow(&mut state, interrupt));
    }

    #[test]
    fn intervals_are_seconds() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["", "0", "x", "-1", "NaN", "1e9"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
