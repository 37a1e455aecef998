//! A drawing as CSV, and as a chart for a terminal of 80 columns.

use std::fmt::Write;

use crate::{
    draw::figure_name,
    drawing::{Drawing, Line, PlotPoint},
};

/// Columns of the longest bar.
const BAR: usize = 40;

/// Returns the points as CSV (RFC 4180): figure, fabric, word, source (here or paper), series, x, y, low,
/// high, median (if y is a mean). A row of a table has its cells after the source `row`.
#[must_use]
pub fn to_csv(drawing: &Drawing) -> String {
    let mut csv = "figure,fabric,word,source,series,x,y,low,high,median\n".to_owned();
    for (source, lines) in [("here", &drawing.series), ("paper", &drawing.paper)] {
        for line in lines {
            for point in &line.points {
                // Writing to a `String` does not fail.
                let _ = writeln!(
                    csv,
                    "{},{},{},{source},{},{},{},{},{},{}",
                    drawing.name,
                    drawing.fabric,
                    drawing.word,
                    field(&line.name),
                    field(&x_of(drawing, point)),
                    point.y,
                    point.low,
                    point.high,
                    point
                        .median
                        .map(|median| median.to_string())
                        .unwrap_or_default()
                );
            }
        }
    }
    for row in &drawing.rows {
        let cells: Vec<_> = row.iter().map(|cell| field(cell)).collect();
        let _ = writeln!(
            csv,
            "{},{},{},row,{}",
            drawing.name,
            drawing.fabric,
            drawing.word,
            cells.join(",")
        );
    }
    csv
}

/// Returns a field of CSV, in quotes if it has a comma or a quote.
fn field(text: &str) -> String {
    match text.contains([',', '"']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

/// Returns a point's label on the x axis, or its number.
fn x_of(drawing: &Drawing, point: &PlotPoint) -> String {
    match drawing.labels.get(point.x as usize) {
        Some(label) => label.clone(),
        None => format!("{:.2}", point.x),
    }
}

/// Returns the drawing as text: a bar for each point, and what was found.
#[must_use]
pub fn to_text(drawing: &Drawing) -> String {
    let mut text = format!("{}: {}\n", figure_name(drawing), drawing.title);
    if !drawing.series.is_empty() {
        let _ = writeln!(
            text,
            "{} over {}{}",
            drawing.axes[1],
            drawing.axes[0],
            fabric(drawing)
        );
    }
    let all = || {
        drawing
            .series
            .iter()
            .chain(&drawing.paper)
            .flat_map(|line| &line.points)
    };
    let top = all().map(|point| point.y).fold(0.0, f64::max);
    for line in &drawing.series {
        bars(&mut text, drawing, line, top, '#');
    }
    for line in &drawing.paper {
        bars(&mut text, drawing, line, top, '.');
    }
    for row in &drawing.rows {
        let cells: Vec<_> = row.iter().map(|cell| format!("{cell:<18}")).collect();
        let _ = writeln!(text, "  {}", cells.concat().trim_end());
    }
    for (what, said) in [
        ("paper", drawing.found),
        ("here", drawing.here.as_str()),
        ("why", drawing.why),
    ] {
        if !said.is_empty() {
            let _ = writeln!(text, "{what}: {said}");
        }
    }
    for missing in &drawing.missing {
        let _ = writeln!(text, "missing: {missing}");
    }
    if let Some(simulated) = &drawing.simulated {
        let _ = writeln!(
            text,
            "profile {}, seed {}, {} ns a point, {} of FaRM-KV and Pilaf; commit {}",
            simulated.profile,
            simulated.seed,
            simulated.measured_ns,
            simulated.stores_measured_ns,
            simulated.commit
        );
    }
    text
}

/// Returns the fabric and the class of its figures, behind the axes.
fn fabric(drawing: &Drawing) -> String {
    match drawing.fabric.as_str() {
        "" => String::new(),
        fabric => format!("; {fabric}, {}", drawing.word),
    }
}

fn bars(text: &mut String, drawing: &Drawing, line: &Line, top: f64, mark: char) {
    let source = if mark == '.' { " (paper)" } else { "" };
    let _ = writeln!(text, "{}{source}", line.name);
    for point in &line.points {
        let length = (point.y / top.max(1e-9) * BAR as f64).round() as usize;
        let bar: String = std::iter::repeat_n(mark, length).collect();
        let _ = writeln!(
            text,
            "  {:>14} {:>9.3} {bar}",
            x_of(drawing, point),
            point.y
        );
    }
}
