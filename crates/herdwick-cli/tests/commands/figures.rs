//! Tests of `herdwick figure` and `herdwick report`: the files they write, and their exit codes.

use std::process::{Command, Output};

use crate::common::Folder;
use serde_json::Value;

fn herdwick(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_herdwick"))
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn a_figure_is_printed_and_written_as_svg_csv_and_json() {
    let folder = Folder::new();
    let out = folder.0.join("figures");
    let arguments = ["figure", "14", "--out", out.to_str().unwrap()];
    let output = herdwick(&arguments);
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{complaint}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("Figure 14") && text.contains("Zipf (.99)"),
        "{text}"
    );
    let read = |end: &str| std::fs::read_to_string(out.join(format!("figure-14.{end}"))).unwrap();
    assert!(read("svg").contains("</svg>"));
    assert_eq!(read("csv").lines().count(), 1 + 2 * 6);
    let json: Value = serde_json::from_str(&read("json")).unwrap();
    assert_eq!(json["series"][1]["name"], "Uniform");
}

#[test]
#[ignore = "five systems, one after the other; CI runs it"]
fn a_figure_with_a_server_is_measured() {
    let folder = Folder::new();
    let out = folder.0.to_str().unwrap().to_owned();
    let output = herdwick(&["figure", "13", "--seconds", "0.1", "--out", &out]);
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{complaint}");
    let json = std::fs::read_to_string(folder.0.join("figure-13-shm.json")).unwrap();
    let json: Value = serde_json::from_str(&json).unwrap();
    let series = json["series"].as_array().unwrap();
    let points = |line: &Value| line["points"].as_array().unwrap().len();
    let of = |line: &Value| (line["name"].as_str().unwrap().to_owned(), points(line));
    let expected = [
        ("HERD", 2),
        ("HERD (paper's format)", 1),
        ("Pilaf-em-OPT (PUT)", 1),
        ("FaRM-em (PUT)", 1),
    ];
    let expected = expected.map(|(name, points)| (name.to_owned(), points));
    assert_eq!(series.iter().map(of).collect::<Vec<_>>(), expected);
    assert!(json["manifest"]["commit"].is_string());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("missing: ") && text.contains("one core"),
        "{text}"
    );
}

/// The page of a report for which there was no time: it has each figure all the same, and says what is missing.
#[test]
fn a_report_ends_in_its_time_and_its_page_has_every_figure_and_loads_nothing() {
    let folder = Folder::new();
    let out = folder.0.to_str().unwrap();
    // 60 ns: over before the first figure.
    let output = herdwick(&["report", "--out", out, "--minutes", "0.000000001"]);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{complaint}");
    assert!(complaint.contains("--minutes"), "{complaint}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("Table 1 and the figures 2 to 14, 30 s for each; at most"));
    let page = std::fs::read_to_string(folder.0.join("index.html")).unwrap();
    let section = |name: &str| {
        let begin = page.find(&format!("<section id=\"{name}\">")).unwrap();
        let length = page[begin..].find("</section>").unwrap();
        page[begin..begin + length].to_owned()
    };
    assert_eq!(page.matches("<section").count(), 14);
    for number in 2..=14 {
        let figure = section(&number.to_string());
        let missing = format!("left no time for it: run herdwick figure {number},");
        let is_measured = number != 8 && number != 14;
        assert_eq!(figure.contains(&missing), is_measured, "{figure}");
        assert_eq!(figure.contains("<svg"), figure.contains("</svg>"));
        assert!(is_measured || figure.contains("<svg"), "{figure}");
    }
    assert!(section("table-1").contains("run herdwick figure table1,"));
    // Phones lay a page out for a width of 980 pixels unless it says this.
    assert!(page.contains("content=\"width=device-width,initial-scale=1\""));
    // What a browser would load, but for the name of SVG's dialect.
    let page = page.replace("http://www.w3.org/2000/svg", "");
    for reference in [
        "http:", "https:", "src=", "href=", "url(", "@import", "<script", "<link",
    ] {
        assert!(!page.contains(reference), "{reference}");
    }
}

#[test]
fn wrong_arguments_have_the_codes_of_the_table() {
    for (arguments, code, hint) in [
        (&["figure", "1"][..], 2, "2 to 14"),
        (&["figure", "3", "--fabric", "tcp"], 2, "no verbs"),
        (
            &["figure", "3", "--fabric", "shm,roce"],
            2,
            "one fabric: give one of shm, verbs, roce",
        ),
        (&["figure", "3", "--seconds", "0"], 2, "--seconds"),
        (&["figure", "3", "--fabric", "sim:nothing"], 2, "nothing"),
        (
            &["figure", "3", "--fabric", "sim:apt", "--seconds", "1"],
            2,
            "leave out --seconds",
        ),
        // Options that would do nothing.
        (
            &["figure", "14", "--fabric", "shm"],
            2,
            "leave out --fabric",
        ),
        (&["figure", "8", "--seconds", "1"], 2, "leave out --seconds"),
        (&["figure", "8", "--out", "/dev/null/x"], 4, "--out"),
        // Not even root can make a file there; the directory is checked before the measurement.
        (&["figure", "8", "--out", "/proc"], 4, "/proc cannot be"),
        (&["report"], 2, "--out"),
        (&["report", "--out", "x", "--minutes", "0"], 2, "--minutes"),
    ] {
        let output = herdwick(arguments);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {complaint}"
        );
        assert!(complaint.contains(hint), "{arguments:?}: {complaint}");
    }
}
