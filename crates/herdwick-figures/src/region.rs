//! Figure 8: the memory of requests, from the constants of the layout, beside the paper's.

use herdwick_herd::paper::SLOT_BYTES;
use herdwick_layout::wire::{LINE_BYTES, Window};
use plotters::prelude::*;

use crate::drawing::{Drawn, WIDTH};

/// The figure of the paper.
pub(crate) const FIGURE: &str = "8";
/// The paper's example: server processes, clients, and requests of each client to each server.
const PAPER: [usize; 3] = [16, 200, 2];

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
            SLOT_BYTES.to_string(),
            LINE_BYTES.to_string(),
        ]),
        row([
            "a client's slots".into(),
            kib(window * SLOT_BYTES),
            kib(line),
        ]),
        row(["its overflow".into(), "-".into(), kib(overflow)]),
        row([
            "polled region".into(),
            kib(slots * SLOT_BYTES),
            kib(servers * clients * line),
        ]),
    ]
}

const HEIGHT: u32 = 330;
/// Left and right edge of each row of boxes.
const EDGES: [i32; 2] = [20, WIDTH as i32 - 20];
/// Height of a row, and the tops of the three rows.
const ROW: i32 = 44;
const TOPS: [i32; 3] = [60, 150, 240];
/// Boxes of a row before the dots and the last one.
const SHOWN: usize = 5;
const FILL: RGBColor = RGBColor(225, 235, 248);

/// Draws the paper's region: chunks of server processes, in each the slots of every client, and in these the
/// window of one client.
pub(crate) fn plot(title: &str, svg: &mut String) -> Drawn<()> {
    let [servers, clients, window] = PAPER;
    let root = SVGBackend::with_string(svg, (WIDTH, HEIGHT)).into_drawing_area();
    root.fill(&WHITE)?;
    let text = |at: (i32, i32), text: String, size: i32| {
        root.draw(&Text::new(text, at, ("sans-serif", size)))
    };
    let bytes = servers * clients * window * SLOT_BYTES;
    let caption = format!(
        "Figure {FIGURE}: {title}: {servers} x {clients} x {window} slots of {SLOT_BYTES} bytes, {bytes} in all"
    );
    text((EDGES[0], 10), caption, 15)?;
    let rows = [
        (servers, "server process", clients * window * SLOT_BYTES),
        (clients, "client", window * SLOT_BYTES),
        (window, "slot", SLOT_BYTES),
    ];
    for (row, ((count, name, bytes), top)) in rows.into_iter().zip(TOPS).enumerate() {
        let note = format!("{count} of {bytes} bytes, one a {name}");
        text((EDGES[0], top - 18), note, 12)?;
        let boxes = boxes(count);
        for (edges, label) in &boxes {
            let corners = [(edges[0], top), (edges[1], top + ROW)];
            root.draw(&Rectangle::new(corners, FILL.filled()))?;
            root.draw(&Rectangle::new(corners, BLACK.stroke_width(1)))?;
            let label = label.map_or_else(|| "...".to_owned(), |n| format!("{name} {n}"));
            text((edges[0] + 6, top + 8), label, 11)?;
            if row + 1 == rows.len() {
                text(
                    (edges[0] + 6, top + 24),
                    "value, LEN, keyhash rightmost".to_owned(),
                    11,
                )?;
            }
        }
        // The first box is what the next row consists of.
        if let (Some(next), Some(([left, right], _))) = (TOPS.get(row + 1), boxes.first()) {
            for (from, to) in [*left, *right].into_iter().zip(EDGES) {
                let path = vec![(from, top + ROW), (to, *next)];
                root.draw(&PathElement::new(path, BLACK.stroke_width(1)))?;
            }
        }
    }
    root.present()?;
    Ok(())
}

/// Returns the edges and the number of each box of a row of `count`; boxes that are not shown have no number.
fn boxes(count: usize) -> Vec<([i32; 2], Option<usize>)> {
    // The dots take the place of a box: as many are all shown.
    let labels: Vec<_> = match count > SHOWN + 2 {
        true => (0..SHOWN)
            .map(Some)
            .chain([None, Some(count - 1)])
            .collect(),
        false => (0..count).map(Some).collect(),
    };
    let width = (EDGES[1] - EDGES[0]) / labels.len().max(1) as i32;
    let edges = |place: i32| [EDGES[0] + place * width, EDGES[0] + (place + 1) * width];
    (0..).map(edges).zip(labels).collect()
}
