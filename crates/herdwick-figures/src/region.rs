//! Figure 8: the memory of requests, from the constants of the layout, beside the paper's.

use herdwick_layout::wire::{LINE_BYTES, Window};

/// The paper's example: server processes, clients, and requests of each client to each server.
const PAPER: [usize; 3] = [16, 200, 2];
const PAPER_SLOT: usize = 1024;

/// Returns a table of both regions.
pub(crate) fn rows() -> Vec<Vec<String>> {
    let [servers, clients, window] = PAPER;
    let row = |cells: [String; 3]| cells.to_vec();
    let slots = servers * clients * window;
    let ours = Window::new(window);
    let [line, overflow] = match ours {
        Some(window) => [window.line_bytes(), window.overflow_bytes()],
        None => [0, 0],
    };
    let kib = |bytes: usize| format!("{:.1} KiB", bytes as f64 / 1024.0);
    vec![
        row(["", "paper", "here"].map(str::to_owned)),
        row([
            "chunks".into(),
            "server, client".into(),
            "server, client".into(),
        ]),
        row(["slots".into(), slots.to_string(), slots.to_string()]),
        row([
            "bytes of a slot".into(),
            PAPER_SLOT.to_string(),
            LINE_BYTES.to_string(),
        ]),
        row([
            "a client's slots".into(),
            kib(window * PAPER_SLOT),
            kib(line),
        ]),
        row(["its overflow".into(), "-".into(), kib(overflow)]),
        row([
            "polled region".into(),
            kib(slots * PAPER_SLOT),
            kib(servers * clients * line),
        ]),
    ]
}
