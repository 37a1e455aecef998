//! Draws the screen of `herdwick top`, at any size of terminal.

use std::time::Duration;

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Paragraph, Row, Sparkline, Table},
};

use super::sample::{LEASES, OFFLOAD, STATS, State};

/// Columns of a terminal that shows all columns of the tables; narrower ones omit some.
const WIDE: u16 = 80;
/// Most workers shown, which leaves room for hot keys.
const WORKERS_MAX: usize = 8;
/// Most rows of latencies shown, likewise.
const LATENCIES_MAX: usize = 4;

const TITLE: Style = Style::new().add_modifier(Modifier::BOLD);
const HEAD: Style = Style::new().fg(Color::Cyan);
const TROUBLE: Style = Style::new().fg(Color::Red);

/// Draws the screen.
pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let numbers = numbers(state);
    // `chunks(0)` panics.
    let columns = usize::from((frame.area().width / CELL).max(1));
    let rows = numbers.len().div_ceil(columns) as u16;
    let fabrics = fabrics(state);
    let workers = workers(state, frame.area().width);
    let height = |count: usize| if count == 0 { 0 } else { count as u16 + 2 };
    let graph_height = if state.history(1).is_empty() {
        0
    } else {
        GRAPH
    };
    let latencies = latencies(state);
    let [
        head,
        overview,
        graph,
        transports,
        latency_area,
        worker_area,
        keys,
        foot,
    ] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(rows + 1),
        Constraint::Length(graph_height),
        Constraint::Length(height(fabrics.len())),
        Constraint::Length(height(latencies.len())),
        Constraint::Length(height(workers.len())),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(headline(state)), head);
    frame.render_widget(Paragraph::new(grid(&numbers, columns)), overview);
    draw_history(frame, state, graph);
    table(
        frame,
        transports,
        &["fabric", "requests/s", "a batch"],
        fabrics,
    );
    let units = &[
        "latency", "requests", "p50 us", "p99 us", "p999 us", "max us",
    ];
    table(frame, latency_area, units, latencies);
    table(frame, worker_area, worker_head(frame.area().width), workers);
    table(frame, keys, &["hot key", "requests/s"], hot(state, keys));
    frame.render_widget(Paragraph::new(footer(state)), foot);
}

/// Rows of the graph: its title, two of bars, and an empty one.
const GRAPH: u16 = 4;

/// Draws requests per second, one column per sample.
fn draw_history(frame: &mut Frame<'_>, state: &State, area: Rect) {
    let history = state.history(area.width.into());
    let Some(&highest) = history.iter().max() else {
        return;
    };
    let [name, bars, _] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(2),
        Constraint::Min(0),
    ])
    .areas(area);
    let highest = shown(Some(highest as f64));
    let now = shown(state.requests());
    let title = format!("requests/s {now}, highest {highest}");
    frame.render_widget(Line::styled(title, HEAD), name);
    frame.render_widget(Sparkline::default().data(history), bars);
}

fn headline(state: &State) -> Line<'_> {
    let mut words = vec![Span::styled(
        format!("herdwick top  {}", state.server),
        TITLE,
    )];
    if let (Some(version), Some(uptime)) = (state.text(STATS.version), state.number(STATS.uptime)) {
        words.push(format!("  {version}  up {}", span(uptime)).into());
    }
    if let Some(trouble) = &state.trouble {
        words.push(Span::styled(format!("  {trouble}"), TROUBLE));
    }
    Line::from(words)
}

fn footer(state: &State) -> Line<'static> {
    let order = if state.by_name { "name" } else { "rate" };
    let pause = if state.paused {
        "PAUSED  p goes on"
    } else {
        "p pauses"
    };
    Line::styled(format!("q ends  {pause}  s sorts (by {order})"), HEAD)
}

/// Width of a number with its name.
const CELL: u16 = 24;

/// Returns the numbers of the server as a whole, each with its name.
fn numbers(state: &State) -> Vec<(&'static str, String)> {
    let rate = |names: &[&str]| shown(state.rate(names));
    let is = |name: &str| shown(state.number(name));
    let percent =
        |part: Option<f64>| part.map_or_else(none, |part| format!("{:.1} %", 100.0 * part));
    let used = state.number(STATS.bytes).zip(
        state
            .number(STATS.limit_maxbytes)
            .filter(|&most| most > 0.0),
    );
    let mut numbers = vec![
        ("gets/s", rate(&[STATS.get_hits, STATS.get_misses])),
        ("sets/s", rate(&[STATS.cmd_set])),
        ("hits", percent(state.hit_ratio())),
        ("deletes/s", rate(&[STATS.delete_hits, STATS.delete_misses])),
        (
            "counts/s",
            rate(&[
                STATS.incr_hits,
                STATS.incr_misses,
                STATS.decr_hits,
                STATS.decr_misses,
            ]),
        ),
        ("touches/s", rate(&[STATS.touch_hits, STATS.touch_misses])),
        ("evictions/s", rate(&[STATS.evictions])),
        ("items", is(STATS.curr_items)),
        ("memory", percent(used.map(|(bytes, most)| bytes / most))),
        ("connections", is(STATS.curr_connections)),
        ("B/s in", rate(&[STATS.bytes_read, STATS.fabric_bytes_read])),
        (
            "B/s out",
            rate(&[STATS.bytes_written, STATS.fabric_bytes_written]),
        ),
        ("leases", is(LEASES.leases)),
        ("answers in", state.round_trip().map_or_else(none, short)),
    ];
    // A server without a secondary store has none of these.
    if let Some(connected) = state.number(OFFLOAD.connected) {
        let up = if connected > 0.0 { "up" } else { "down" };
        let delay = state.number(OFFLOAD.delay_p99);
        let delay = delay.and_then(|micros| Duration::try_from_secs_f64(micros / 1e6).ok());
        numbers.extend([
            ("secondary", up.to_owned()),
            ("popular", is(OFFLOAD.keys)),
            ("offloadable", percent(state.offloadable())),
            ("sync p99", delay.map_or_else(none, short)),
        ]);
    }
    numbers
}

fn grid(numbers: &[(&'static str, String)], columns: usize) -> Vec<Line<'static>> {
    let cell = |(name, value): &(&'static str, String)| {
        [
            Span::styled(format!("{name:>11} "), HEAD),
            Span::raw(format!("{value:<12}")),
        ]
    };
    numbers
        .chunks(columns)
        .map(|row| Line::from(row.iter().flat_map(cell).collect::<Vec<_>>()))
        .collect()
}

fn fabrics(state: &State) -> Vec<Vec<String>> {
    let fabrics = state.fabrics().into_iter();
    fabrics
        .map(|fabric| {
            let batch = fabric
                .batch
                .map_or_else(none, |batch| format!("{batch:.1}"));
            vec![fabric.name, shown(fabric.requests), batch]
        })
        .collect()
}

fn latencies(state: &State) -> Vec<Vec<String>> {
    let all = state.latencies().into_iter().take(LATENCIES_MAX);
    all.map(|one| {
        let name = format!("{} {}", one.transport, one.command);
        let mut row = vec![name, shown(Some(one.count))];
        row.extend([one.p50, one.p99, one.p999, one.max].map(micros));
        row
    })
    .collect()
}

fn worker_head(width: u16) -> &'static [&'static str] {
    let all = &[
        "worker",
        "gets/s",
        "sets/s",
        "items",
        "connections",
        "forwarded/s",
        "in place/s",
        "sleeps/s",
    ];
    if width < WIDE { &all[..4] } else { all }
}

fn workers(state: &State, width: u16) -> Vec<Vec<String>> {
    let columns = worker_head(width).len();
    let workers = state.workers().into_iter().take(WORKERS_MAX);
    workers
        .map(|worker| {
            let mut row = vec![
                worker.number.to_string(),
                shown(worker.gets),
                shown(worker.sets),
                shown(Some(worker.items)),
                shown(Some(worker.connections)),
                shown(worker.forwarded),
                shown(worker.executed_in_place),
                shown(worker.sleeps),
            ];
            row.truncate(columns);
            row
        })
        .collect()
}

fn hot(state: &State, area: Rect) -> Vec<Vec<String>> {
    let room = usize::from(area.height.saturating_sub(1));
    let keys = state.hot().into_iter().take(room);
    keys.map(|(key, rate)| vec![key, shown(Some(rate))])
        .collect()
}

/// Most columns of the first cell of a row, such as a hot key.
const FIRST: usize = 60;

/// Draws a table, unless it has no rows.
fn table(frame: &mut Frame<'_>, area: Rect, head: &[&'static str], rows: Vec<Vec<String>>) {
    if rows.is_empty() {
        return;
    }
    // As wide as the heading, and at least as a number such as `999.9k`, with a column to spare.
    let width = |head: &&str| Constraint::Length(head.len().max(7) as u16 + 1);
    let mut widths: Vec<_> = head.iter().map(width).collect();
    let longest = rows
        .iter()
        .filter_map(|row| row.first())
        .map(|cell| cell.chars().count());
    if let (Some(first), Some(longest)) = (widths.first_mut(), longest.max()) {
        let least = head.first().map_or(0, |head| head.len());
        *first = Constraint::Length(longest.clamp(least, FIRST) as u16 + 1);
    }
    let rows = rows.into_iter().map(Row::new);
    let head = Row::new(head.iter().copied()).style(HEAD);
    frame.render_widget(Table::new(rows, widths).header(head), area);
}

fn none() -> String {
    "-".to_owned()
}

/// Formats a number with one decimal and a unit from thousands on: `999`, `1.0k`.
fn shown(number: Option<f64>) -> String {
    let Some(number) = number else {
        return none();
    };
    let units = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.into_iter().find(|(unit, _)| number >= *unit) {
        Some((unit, letter)) => format!("{:.1}{letter}", number / unit),
        None => format!("{number:.0}"),
    }
}

/// Formats microseconds, with decimals where they are few.
fn micros(micros: f64) -> String {
    if micros < 10.0 {
        format!("{micros:.2}")
    } else {
        shown(Some(micros))
    }
}

fn short(time: Duration) -> String {
    match time.as_micros() {
        micros @ 0..10_000 => format!("{micros} us"),
        micros => format!("{} ms", micros / 1000),
    }
}

fn span(seconds: f64) -> String {
    let seconds = seconds as u64;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours) {
        (0, 0) => format!("{minutes}m{:02}s", seconds % 60),
        (0, hours) => format!("{hours}h{minutes:02}m"),
        (days, hours) => format!("{days}d{hours:02}h"),
    }
}

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend};

    use super::*;
    use crate::top::sample::tests::state;

    /// Returns what a terminal of this size shows.
    fn screen(state: &State, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, state)).unwrap();
        let buffer = terminal.backend().buffer();
        let rows = buffer.content.chunks(usize::from(width));
        rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>() + "\n")
            .collect()
    }

    fn herdwick() -> State {
        let general = [
            ("version", "1.6.45"),
            ("uptime", "3700"),
            ("get_hits", "100"),
            ("get_misses", "0"),
            ("limit_maxbytes", "1000"),
            ("bytes", "250"),
            ("worker:0:items", "5"),
            ("worker:0:tcp:requests", "0"),
            ("worker:0:tcp:batches", "0"),
            ("worker:0:forwarded", "0"),
            ("worker:0:executed_in_place", "0"),
            ("worker:0:sleeps", "0"),
            ("hotkey:1:key", "user:1"),
            ("hotkey:1:rate", "1234"),
        ];
        let mut later = general;
        later[2] = ("get_hits", "4100");
        later[7] = ("worker:0:tcp:requests", "4000");
        later[8] = ("worker:0:tcp:batches", "1000");
        later[9] = ("worker:0:forwarded", "62");
        later[10] = ("worker:0:executed_in_place", "182");
        later[11] = ("worker:0:sleeps", "142");
        state(&general, &later)
    }

    #[test]
    fn screen_shows_every_figure() {
        let said = screen(&herdwick(), 80, 24);
        for part in [
            "127.0.0.1:11211",
            "1.6.45",
            "up 1h01m",
            "gets/s 2.0k",
            "hits 100.0 %",
            "requests/s 0, highest 0",
            "memory 25.0 %",
            "answers in 123 us",
            "user:1",
            "1.2k",
            "q ends",
        ] {
            assert!(said.contains(part), "{part} in:\n{said}");
        }
        let lines: Vec<Vec<&str>> = said
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        let heads = lines
            .iter()
            .position(|words| words.first() == Some(&"worker"));
        let expected = "worker gets/s sets/s items connections forwarded/s in place/s sleeps/s";
        assert_eq!(lines[heads.unwrap()].join(" "), expected, "{said}");
        let figures = &lines[heads.unwrap() + 1];
        assert_eq!(figures[figures.len() - 3..], ["31", "91", "71"], "{said}");
        let fabric = said.lines().find(|line| line.starts_with("tcp")).unwrap();
        assert!(
            fabric.contains("2.0k") && fabric.contains("4.0"),
            "{fabric}"
        );
    }

    #[test]
    fn latencies_are_shown_where_they_are_measured() {
        assert!(!screen(&herdwick(), 80, 24).contains("p999"));
        let said = [
            ("latency:shm:get:count", "9"),
            ("latency:shm:get:p50", "0.640"),
            ("latency:tcp:set:count", "1200"),
            ("latency:tcp:set:mean", "77.000"),
            ("latency:tcp:set:p50", "10.240"),
            ("latency:tcp:set:p99", "20.480"),
            ("latency:tcp:set:p999", "123.456"),
            ("latency:tcp:set:max", "4100.250"),
            ("latency_status", "disabled"),
        ];
        let said = screen(&state(&said, &said), 80, 24);
        let lines: Vec<String> = said
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        let at = lines.iter().position(|line| line.starts_with("latency"));
        let shown = &lines[at.unwrap()..at.unwrap() + 3];
        let head = "latency requests p50 us p99 us p999 us max us";
        let (set, get) = (
            "tcp set 1.2k 10 20 123 4.1k",
            "shm get 9 0.64 0.00 0.00 0.00",
        );
        assert_eq!(shown, [head, set, get], "{said}");
    }

    #[test]
    fn secondary_store_is_shown_where_there_is_one() {
        assert!(!screen(&herdwick(), 80, 24).contains("offloadable"));
        let first = [
            ("offload_connected", "1"),
            ("offload_keys", "1200"),
            ("offload_reads", "100"),
            ("offload_replicated_reads", "100"),
            ("offload_delay_p99", "340"),
        ];
        let mut next = first;
        next[2] = ("offload_reads", "300");
        next[3] = ("offload_replicated_reads", "250");
        let said = screen(&state(&first, &next), 80, 24);
        for part in [
            "secondary up",
            "popular 1.2k",
            "offloadable 75.0 %",
            "sync p99 340 us",
        ] {
            assert!(said.contains(part), "{part} in:\n{said}");
        }
        // A server may send any number.
        for odd in ["-1", "inf", "nan", "1e30"] {
            let mut odds = next;
            odds[4] = ("offload_delay_p99", odd);
            let said = screen(&state(&first, &odds), 80, 24);
            assert!(said.contains("secondary up"), "{odd} in:\n{said}");
        }
        // Without hits lately it is the share since the start.
        let said = screen(&state(&next, &next), 80, 24);
        assert!(said.contains("offloadable 83.3 %"), "{said}");
    }

    #[test]
    fn fabric_bytes_are_counted_and_history_is_drawn() {
        let first = [
            ("bytes_read", "0"),
            ("fabric_bytes_read", "0"),
            ("cmd_get", "0"),
        ];
        let next = [
            ("bytes_read", "500"),
            ("fabric_bytes_read", "1500"),
            ("cmd_get", "80"),
        ];
        let said = screen(&state(&first, &next), 80, 24);
        assert!(said.contains("B/s in 1.0k"), "{said}");
        assert!(said.contains("requests/s 40, highest 40"), "{said}");
        assert!(said.contains('\u{2588}'), "{said}");
    }

    #[test]
    fn memcached_shows_no_worker_tables() {
        let said = screen(&state(&[("cmd_set", "1")], &[("cmd_set", "3")]), 80, 24);
        assert!(said.contains("sets/s 1 "), "{said}");
        for head in ["worker", "fabric", "hot key"] {
            assert!(!said.contains(head), "{said}");
        }
    }

    #[test]
    fn screen_renders_at_any_size() {
        for (width, height) in [(1, 1), (10, 3), (30, 10), (50, 20), (300, 100)] {
            screen(&herdwick(), width, height);
        }
        let narrow = screen(&herdwick(), 50, 24);
        assert!(
            narrow.contains("items") && !narrow.contains("forwarded/s"),
            "{narrow}"
        );
    }

    #[test]
    fn error_is_shown_beside_the_last_sample() {
        let mut state = herdwick();
        state.take(Err("nobody listens".into()));
        let said = screen(&state, 100, 24);
        assert!(
            said.contains("nobody listens") && said.contains("user:1"),
            "{said}"
        );
    }

    #[test]
    fn numbers_are_abbreviated() {
        for (number, expected) in [(0.0, "0"), (999.0, "999"), (1500.0, "1.5k"), (2e7, "20.0M")] {
            assert_eq!(shown(Some(number)), expected);
        }
        assert_eq!(
            (span(59.0), span(90_000.0)),
            ("0m59s".into(), "1d01h".into())
        );
    }
}
