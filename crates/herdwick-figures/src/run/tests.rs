//! Tests of the catalogue, and of what becomes of measured points.

use std::path::PathBuf;

use herdwick_bench::{Fabric, Latency, Run, Subject};
use herdwick_check::length;

use super::*;
use crate::{FIGURES, find, page, simulate, to_csv, to_svg, to_text};

const PLACE: (&str, FigureClass) = ("shm", FigureClass::Shm);

fn terms() -> Terms {
    Terms {
        fabric: Fabric::BEST,
        seconds: 0.0,
        program: PathBuf::from("not-needed"),
    }
}

#[test]
fn catalogue_has_every_figure_of_the_evaluation_once() {
    let names: Vec<_> = FIGURES.iter().map(|figure| figure.name).collect();
    let numbers = (2..=14).map(|n: u8| n.to_string());
    let expected: Vec<_> = std::iter::once("table 1".to_owned())
        .chain(numbers)
        .collect();
    assert_eq!(names, expected);
    for name in ["3", "fig3", "Figure 3"] {
        assert_eq!(find(name).map(|figure| figure.name), Some("3"));
    }
    assert_eq!(find("table1").map(|figure| figure.name), Some("table 1"));
    assert!(find("15").is_none() && find("").is_none());
}

#[test]
fn every_point_of_the_paper_stands_at_a_value_of_its_axis() {
    for figure in FIGURES {
        let drawing = blank(figure, PLACE);
        let points = drawing.paper.iter().flat_map(|line| &line.points);
        for point in points {
            assert!(
                point.x.is_finite() && point.y > 0.0,
                "figure {}",
                figure.name
            );
        }
        let missing = figure.series.is_empty() && !["8", "table 1"].contains(&figure.name);
        assert!(!missing, "figure {}", figure.name);
    }
}

#[test]
fn partitions_have_shares_that_add_up_and_skew_shows() {
    let skewed = shares(true, 6);
    let uniform = shares(false, 6);
    for line in [&skewed, &uniform] {
        let sum: f64 = line.iter().map(|point| point.y).sum();
        assert!((sum - 6.0).abs() < 1e-9, "{sum}");
        assert!(line.is_sorted_by(|a, b| a.y >= b.y));
    }
    // The paper's partitions differ by a half under Zipf .99.
    let ratio = |line: &[PlotPoint]| line[0].y / line[5].y;
    assert!(ratio(&uniform) < 1.02, "{}", ratio(&uniform));
    assert!((1.02..3.0).contains(&ratio(&skewed)), "{}", ratio(&skewed));
}

/// A system that fails leaves the others of its figure, and a figure that fails leaves its page.
#[test]
fn what_fails_is_told_in_place_of_its_points() {
    // The program that would serve HERD is not there; the others need none, and have one worker.
    let drawing = run(find("13").unwrap(), &terms(), &mut |_| ()).unwrap();
    for line in &drawing.series {
        let expected = usize::from(line.name != "HERD");
        let points = line.points.len();
        assert_eq!(points, expected, "{}: {:?}", line.name, drawing.missing);
    }
    let told = |missing: &&String| missing.starts_with("HERD at 1, 2: ");
    assert_eq!(drawing.missing.iter().filter(told).count(), 1);

    // Figure 12 without its series that need no program.
    let figure = find("12").unwrap();
    let served = &figure.series[..2];
    assert!(
        served
            .iter()
            .all(|series| matches!(series.load, Load::Herd { .. }))
    );
    let served: &'static Figure = Box::leak(Box::new(Figure {
        series: served,
        ..*figure
    }));
    let error = run(served, &terms(), &mut |_| ()).unwrap_err();
    let drawing = unmeasured(served, &terms(), &error);
    assert!(drawing.missing.contains(&error.to_string()));
    assert!(page(&[drawing]).unwrap().contains("not-needed"));
}

/// Seconds of all points of a figure: more if a busy host let nothing be answered in the time of a point.
const SECONDS: [f64; 3] = [0.0, 10.0, 100.0];

/// Measures `figure` until each point is there, or the longest time has passed.
fn measured(figure: &'static Figure) -> Drawing {
    let mut drawing = None;
    for seconds in SECONDS {
        let terms = Terms { seconds, ..terms() };
        let drawn = drawing.insert(run(figure, &terms, &mut |_| ()).unwrap());
        if !drawn.missing.iter().any(|told| told.contains(UNANSWERED)) {
            break;
        }
    }
    drawing.unwrap()
}

/// Figures that need no server are measured over shared memory and drawn in every form.
#[test]
fn figures_are_measured_and_drawn_in_every_form() {
    let drawn = ["table 1", "2", "8", "14"].map(|name| {
        let mut figure = *find(name).unwrap();
        if name == "2" {
            // A few of its payloads: each point is a set-up of queue pairs and memory.
            let payloads: [&[usize]; 2] = [&[8, 1024], &[8, 32, 128, 1024]];
            figure.sweep = Sweep::Bytes(length(payloads[0], payloads[1]));
        }
        measured(Box::leak(Box::new(figure)))
    });
    let [table, latency, region, partitions] = &drawn;
    let yes = |row: &[String]| {
        row[1..]
            .iter()
            .map(|cell| cell.starts_with("yes"))
            .collect::<Vec<_>>()
    };
    let carried: Vec<_> = table.rows[1..].iter().map(|row| yes(row)).collect();
    // Table 1 of the paper, and the atomics of the verbs.
    let (send, write, read) = ([true; 3], [true, true, false], [true, false, false]);
    assert_eq!(carried, [send, write, read, read, read]);
    assert_eq!(latency.series.len(), 4);
    for line in &latency.series {
        assert!(
            line.points.len() >= length(2, 4),
            "{}: {:?}",
            line.name,
            latency.missing
        );
        let ordered = |point: &PlotPoint| 0.0 < point.low && point.low <= point.high;
        assert!(line.points.iter().all(ordered), "{line:?}");
    }
    assert_eq!(region.rows[3], ["bytes of a slot", "1024", "64"]);
    let svg = to_svg(region).unwrap().unwrap();
    for text in [
        "16 x 200 x 2 slots of 1024 bytes",
        "server process 15",
        "client 199",
        "slot 1",
    ] {
        assert!(svg.contains(text), "{text}");
    }
    for drawing in [latency, partitions] {
        let svg = to_svg(drawing).unwrap().unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for line in &drawing.series {
            assert!(svg.contains(&line.name), "{}", line.name);
            assert!(to_text(drawing).contains(&line.name));
        }
        let points: usize = [&drawing.series, &drawing.paper]
            .iter()
            .flat_map(|lines| lines.iter())
            .map(|line| line.points.len())
            .sum();
        assert_eq!(to_csv(drawing).lines().count(), 1 + points);
    }
    let html = page(&drawn).unwrap();
    for text in [
        "Table 1",
        "Figure 8",
        "Figure 14",
        "<svg",
        "&quot;commit&quot;",
    ] {
        assert!(html.contains(text), "{text}");
    }
    // A manifest for each figure that was measured.
    assert_eq!(html.matches("&quot;commit&quot;").count(), 2);
    assert_eq!(
        html.matches("<section").count(),
        html.matches("</section>").count()
    );
}

fn outcome(latency_us: Option<Latency>, errors: u64) -> Outcome {
    let run = Run {
        ops_per_s: 2e6,
        latency_us,
        errors,
        ..Run::default()
    };
    Outcome::of(Subject::default(), &[run])
}

/// A point without a latency is named, and failed requests are counted.
#[test]
fn points_that_vanish_or_fail_are_told() {
    let figure = find("11").unwrap();
    let mut drawing = blank(figure, PLACE);
    let mut line = Line {
        name: "HERD".to_owned(),
        ..Line::default()
    };
    let at = ("8", figure.measure);
    add_point(&mut drawing, &mut line, at, &outcome(None, 0));
    assert!(line.points.is_empty());
    assert_eq!(
        drawing.missing[0],
        format!("HERD at 8: {UNANSWERED}; raise --seconds")
    );
    let latency = Latency {
        mean: 4.0,
        p5: 1.0,
        p50: 2.0,
        p95: 3.0,
        ..Latency::default()
    };
    add_point(&mut drawing, &mut line, at, &outcome(Some(latency), 5));
    assert_eq!(drawing.failed, 5);
    assert_eq!(drawing.missing[1], "HERD at 8: 5 requests failed");
    let point = PlotPoint {
        x: 2.0,
        y: 4.0,
        low: 1.0,
        high: 3.0,
        median: Some(2.0),
    };
    assert_eq!(line.points, [point]);
}

/// On a logarithmic axis equal ratios are equal distances, and the median is marked.
#[test]
fn latencies_over_throughput_are_drawn_on_a_logarithmic_axis() {
    let point = |y: f64| PlotPoint {
        x: y,
        y,
        low: y,
        high: y,
        median: Some(y),
    };
    let drawing = |points: Vec<PlotPoint>| Drawing {
        series: vec![Line {
            name: "HERD".to_owned(),
            points,
        }],
        paper: Vec::new(),
        ..blank(find("11").unwrap(), PLACE)
    };
    let svg = to_svg(&drawing([1.0, 10.0, 100.0].map(point).to_vec()))
        .unwrap()
        .unwrap();
    let centres = svg.split("cy=\"").skip(1);
    let centres = centres.map(|rest| rest.split('"').next().unwrap().parse().unwrap());
    let centres: Vec<i32> = centres.take(3).collect();
    let (first, second) = (centres[0] - centres[1], centres[1] - centres[2]);
    assert!(first > 20 && (first - second).abs() <= 1, "{centres:?}");
    let plain = PlotPoint {
        median: None,
        ..point(1.0)
    };
    let without = to_svg(&drawing(vec![plain; 3])).unwrap().unwrap();
    let dashes = |svg: &str| svg.matches("stroke-width=\"3\"").count();
    assert_eq!((dashes(&svg), dashes(&without)), (3, 0));
}

/// Values that no line may join are bars, side by side, with the paper's points on those of their series.
#[test]
fn groups_of_bars_have_one_for_each_series_and_the_papers_points_on_them() {
    let drawing = blank(find("5").unwrap(), PLACE);
    assert_eq!(drawing.labels[..3], ["SEND/SEND", "WR/WR", "WR/SEND"]);
    let point = |x: usize| PlotPoint {
        x: x as f64,
        y: 20.0,
        low: 20.0,
        high: 20.0,
        median: None,
    };
    let line = |name: &str| Line {
        name: name.to_owned(),
        points: (0..4).map(point).collect(),
    };
    let drawing = Drawing {
        series: ["basic", "+inlined"].map(line).to_vec(),
        ..drawing
    };
    let svg = to_svg(&drawing).unwrap().unwrap();
    let lefts = svg.split("<rect x=\"").skip(1);
    let mut lefts: Vec<i32> = lefts
        .filter(|rest| !rest.contains("fill=\"#FFFFFF\"") || !rest.starts_with('0'))
        .map(|rest| rest.split('"').next().unwrap().parse().unwrap())
        .filter(|left| *left > 0)
        .collect();
    lefts.sort_unstable();
    lefts.dedup();
    // And a square for each in the legend, one below the other.
    assert_eq!(lefts.len(), 8 + 1, "{lefts:?}");
    assert_eq!(svg.matches("s numbers").count(), 1);
}

/// A series without a value leaves no gap: the bars of the others stand side by side, in the middle.
#[test]
fn groups_of_bars_have_no_gaps() {
    let point = |x: f64| PlotPoint {
        x,
        y: 20.0,
        ..PlotPoint::default()
    };
    let line = |name: &str, places: &[f64]| Line {
        name: name.to_owned(),
        points: places.iter().copied().map(point).collect(),
    };
    let series = ["a", "b", "c"].map(|name| line(name, &[0.0, 1.0]));
    let bars = |series: &[Line]| {
        let drawing = Drawing {
            series: series.to_vec(),
            paper: Vec::new(),
            ..blank(find("9").unwrap(), PLACE)
        };
        let svg = to_svg(&drawing).unwrap().unwrap();
        let corners = svg.split("<rect x=\"").skip(2);
        let corners = corners.map(|rest| rest.split('"').next().unwrap().parse().unwrap());
        let mut corners: Vec<i32> = corners.collect();
        // The legend's squares come last.
        corners.truncate(series.iter().map(|line| line.points.len()).sum());
        corners.sort_unstable();
        corners
    };
    let all = bars(&series);
    let mut without = series;
    without[1].points.pop();
    let some = bars(&without);
    assert_eq!(all[..3], some[..3]);
    let (step, half) = (all[1] - all[0], (all[1] - all[0]) / 2);
    assert!((some[4] - some[3] - step).abs() <= 1, "{all:?}, {some:?}");
    assert!((some[3] - all[3] - half).abs() <= 1, "{all:?}, {some:?}");
}

/// The paper's points beyond what is measured here have a place of their own.
#[test]
fn the_axis_has_the_papers_values_in_their_order() {
    let labels = |name: &str| find(name).unwrap().labels();
    assert_eq!(labels("13"), ["1", "2", "5", "6"]);
    assert_eq!(labels("12"), ["1", "2", "4", "8", "16", "260"]);
    assert_eq!(labels("7"), ["1", "5"]);
    let drawing = blank(find("13").unwrap(), PLACE);
    let places: Vec<_> = drawing.paper[0]
        .points
        .iter()
        .map(|point| point.x)
        .collect();
    assert_eq!(places, [0.0, 2.0, 3.0]);
}

/// On simulated RNICs of the paper's cluster ECHOs are as fast as in the paper.
#[test]
fn simulated_figures_are_near_the_papers_points() {
    let profile = herdwick_sim::Profile::named("apt").unwrap();
    let drawing = simulate(find("5").unwrap(), ("apt", &profile));
    assert_eq!(
        (drawing.fabric.as_str(), drawing.word.as_str()),
        ("sim:apt", "sim")
    );
    let [paper] = &drawing.paper[..] else {
        panic!("{:?}", drawing.paper);
    };
    let inlined = drawing.series.iter().find(|line| line.name == paper.name);
    let points = &inlined.unwrap().points;
    assert_eq!(points.len(), 4);
    for (said, here) in paper.points.iter().zip(points) {
        assert!((here.y / said.y - 1.0).abs() < 0.05, "{here:?}");
    }
    // What is not simulated is named.
    assert!(drawing.missing[0].starts_with("basic at SEND/SEND, WR/WR, WR/SEND"));
    assert!(to_text(&drawing).contains("profile apt, seed 1"));
}

/// Names with commas, as of Figure 7's series, are one field.
#[test]
fn rows_of_csv_have_as_many_fields_as_their_head() {
    let drawing = |name: &str| Drawing {
        series: vec![Line {
            name: name.to_owned(),
            points: vec![PlotPoint::default()],
        }],
        ..blank(find("7").unwrap(), PLACE)
    };
    for series in find("7").unwrap().series {
        assert!(series.name.contains(','));
        let csv = to_csv(&drawing(series.name));
        let row = format!("\n7,shm,shm,here,\"{}\",1,0,0,0,\n", series.name);
        assert!(csv.contains(&row), "{csv}");
    }
    let csv = to_csv(&drawing("the \"best\""));
    assert!(csv.contains(",\"the \"\"best\"\"\",1,"), "{csv}");
}
