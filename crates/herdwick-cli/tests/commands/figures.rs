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

#[test]
fn wrong_arguments_have_the_codes_of_the_table() {
    for (arguments, code, hint) in [
        (&["figure", "1"][..], 2, "2 to 14"),
        (&["figure", "3", "--fabric", "tcp"], 2, "no verbs"),
        (
            &["figure", "3", "--fabric", "shm,roce"],
            2,
            "one fabric: say one of shm, verbs, roce",
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
