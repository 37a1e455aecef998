//! All drawings on one HTML page that needs nothing else.

use std::fmt::Write;

use crate::{
    draw::{DrawError, figure_name, to_svg},
    drawing::Drawing,
};

// On a narrow screen a figure is scrolled, and not shrunk until its labels cannot be read.
const STYLE: &str = "body{font:15px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}\
.wide{overflow-x:auto}svg{max-width:100%;min-width:44rem;height:auto}table{border-collapse:collapse;margin:1rem 0}\
td,th{border:1px solid #bbb;padding:.2rem .6rem;text-align:left}\
.word{background:#eef;padding:0 .4rem;border-radius:.3rem}pre{overflow:auto;background:#f6f6f6;padding:.6rem}\
.missing{color:#8a4b00}";

/// Returns the page.
///
/// # Errors
/// [`DrawError`].
pub fn page(drawings: &[Drawing]) -> Result<String, DrawError> {
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta \
         name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>The figures of the HERD \
         paper</title><style>{STYLE}</style></head><body>\n<h1>The figures of the HERD paper, measured \
         here</h1>\n<p>Lines are measured on this host; triangles are points that the paper's text gives, \
         for other hardware.</p>\n"
    );
    for drawing in drawings {
        section(&mut html, drawing)?;
    }
    html.push_str("</body></html>\n");
    Ok(html)
}

fn section(html: &mut String, drawing: &Drawing) -> Result<(), DrawError> {
    // Writing to a `String` does not fail.
    let _ = writeln!(
        html,
        "<section id=\"{}\"><h2>{}: {}{}</h2>",
        drawing.name.replace(' ', "-"),
        escaped(&figure_name(drawing)),
        escaped(drawing.title),
        word(drawing)
    );
    if let Some(svg) = to_svg(drawing)? {
        let _ = writeln!(html, "<div class=\"wide\">{svg}</div>");
    }
    if !drawing.rows.is_empty() {
        html.push_str("<div class=\"wide\"><table>");
        for row in &drawing.rows {
            let cells = row.iter().map(|cell| format!("<td>{}</td>", escaped(cell)));
            let _ = write!(html, "<tr>{}</tr>", cells.collect::<String>());
        }
        html.push_str("</table></div>\n");
    }
    let notes = [
        ("The paper: ", drawing.found),
        ("Here: ", drawing.here.as_str()),
        ("Why they differ: ", drawing.why),
    ];
    for (what, note) in notes.iter().filter(|(_, note)| !note.is_empty()) {
        let _ = writeln!(html, "<p><b>{what}</b>{}</p>", escaped(note));
    }
    for missing in &drawing.missing {
        let _ = writeln!(
            html,
            "<p class=\"missing\"><b>Missing: </b>{}</p>",
            escaped(missing)
        );
    }
    if let Some(manifest) = &drawing.manifest {
        let json = serde_json::to_string_pretty(manifest).unwrap_or_default();
        let _ = writeln!(
            html,
            "<details><summary>Manifest of the last point</summary><pre>{}</pre></details>",
            escaped(&json)
        );
    }
    if let Some(simulated) = &drawing.simulated {
        let json = serde_json::to_string(simulated).unwrap_or_default();
        let _ = writeln!(html, "<pre>{}</pre>", escaped(&json));
    }
    html.push_str("</section>\n");
    Ok(())
}

/// Returns the class of a drawing's figures, behind its title.
fn word(drawing: &Drawing) -> String {
    match drawing.word.as_str() {
        "" => String::new(),
        word => format!(" <span class=\"word\">{}</span>", escaped(word)),
    }
}

/// Escapes what HTML reserves.
fn escaped(text: &str) -> String {
    let escape = |letter: char| match letter {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        '"' => "&quot;".to_owned(),
        letter => letter.to_string(),
    };
    text.chars().map(escape).collect()
}
