//! A drawing as SVG: measured series as lines or groups of bars, the paper's points as triangles of the same
//! colour, and the legend beside them, so that it hides none.

use plotters::{
    coord::{Shift, types::RangedCoordf64},
    prelude::*,
};

use crate::{
    drawing::{Drawing, Drawn, Line, PlotPoint, WIDTH},
    region,
};

/// Why a drawing could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("drawing {what}: {reason}")]
pub struct DrawError {
    what: String,
    reason: String,
}

impl DrawError {
    pub(crate) fn new(what: impl Into<String>, reason: String) -> Self {
        let what = what.into();
        Self { what, reason }
    }
}

/// Width of the chart; the legend is right of it.
const CHART_WIDTH: u32 = 700;
const HEIGHT: u32 = 420;
/// Colours of series, as many as any figure has: those of Okabe and Ito, which readers with colour vision
/// deficiencies tell apart, with two darker ones in place of yellow and black.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
    RGBColor(51, 34, 136),
];

/// Draws the series, or the region of Figure 8; `None` if there are none, as of a table.
///
/// # Errors
/// [`DrawError`].
pub fn to_svg(drawing: &Drawing) -> Result<Option<String>, DrawError> {
    let is_region = drawing.name == region::FIGURE;
    if !is_region && lines(drawing).all(|(_, line, _)| line.points.is_empty()) {
        return Ok(None);
    }
    let mut svg = String::new();
    let failed = |reason: String| DrawError::new(figure_name(drawing), reason);
    let drawn = match is_region {
        true => region::plot(drawing.title, &mut svg),
        false => plot(drawing, &mut svg),
    };
    drawn.map_err(|error| failed(error.to_string()))?;
    Ok(Some(svg))
}

/// Returns every series with its colour and whether it is the paper's.
fn lines(drawing: &Drawing) -> impl Iterator<Item = (RGBColor, &Line, bool)> {
    let names: Vec<&str> = drawing
        .series
        .iter()
        .map(|line| line.name.as_str())
        .collect();
    let fresh = names.len();
    // A series of the paper has the colour of the one with its name.
    let place = move |line: &Line, index: usize| {
        let known = names.iter().position(|name| *name == line.name);
        known.unwrap_or(fresh + index) % COLOURS.len()
    };
    let here = drawing.series.iter().map(|line| (line, false));
    let all = here.chain(drawing.paper.iter().map(|line| (line, true)));
    all.enumerate()
        .map(move |(index, (line, paper))| (COLOURS[place(line, index)], line, paper))
}

type Chart<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

fn plot(drawing: &Drawing, svg: &mut String) -> Drawn<()> {
    let root = SVGBackend::with_string(svg, (WIDTH, HEIGHT)).into_drawing_area();
    root.fill(&WHITE)?;
    let (left, right) = root.split_horizontally(CHART_WIDTH);
    let mut chart = axes(drawing, &left)?;
    for (colour, line, paper) in lines(drawing) {
        let scale = Scale::of(drawing);
        let line = &beside(drawing, line);
        match (paper, drawing.bars) {
            (true, false) => draw_paper(&mut chart, (line, scale), colour)?,
            // On a bar of its colour a triangle would not be seen.
            (true, true) => draw_paper(&mut chart, (line, scale), BLACK)?,
            (false, false) => draw_measured(&mut chart, (line, scale), colour)?,
            (false, true) => draw_bars(&mut chart, line, bar_width(drawing), colour)?,
        }
    }
    legend(drawing, &right)?;
    root.present()?;
    Ok(())
}

/// Width of a group of bars; the groups are 1 apart.
const GROUP: f64 = 0.8;

fn bar_width(drawing: &Drawing) -> f64 {
    GROUP / drawing.series.len().max(1) as f64
}

/// Returns a line as it is, or in a drawing of bars, moved to the bars of its series. A group has the bars of
/// the series that have a value there, and no gaps for others.
fn beside(drawing: &Drawing, line: &Line) -> Line {
    let offset = |x: f64| {
        let has_bar = |other: &&Line| placed(other).any(|point| point.x == x);
        let group: Vec<_> = drawing.series.iter().filter(has_bar).collect();
        let place = group.iter().position(|other| other.name == line.name);
        place.map_or(0.0, |place| {
            bar_width(drawing) * (place as f64 + 0.5 - group.len() as f64 / 2.0)
        })
    };
    let moved = |point: &PlotPoint| PlotPoint {
        x: point.x + if drawing.bars { offset(point.x) } else { 0.0 },
        ..*point
    };
    Line {
        name: line.name.clone(),
        points: line.points.iter().map(moved).collect(),
    }
}

/// Draws a bar for each point, and its spread.
fn draw_bars(chart: &mut Chart<'_>, line: &Line, width: f64, colour: RGBColor) -> Drawn<()> {
    // A tenth of the width stays between two bars.
    let half = width * 0.45;
    chart.draw_series(placed(line).map(|point| {
        let corners = [(point.x - half, 0.0), (point.x + half, point.y)];
        Rectangle::new(corners, colour.filled())
    }))?;
    let spreads = placed(line).filter(|point| point.low < point.high);
    chart.draw_series(spreads.map(|point| {
        ErrorBar::new_vertical(point.x, point.low, point.y, point.high, BLACK.filled(), 4)
    }))?;
    Ok(())
}

/// Height of an entry of the legend, and where the first one is.
const ENTRY: i32 = 20;
const FIRST_ENTRY: i32 = 48;

/// Draws a sample and the name of each series that has points. In a drawing of bars the paper's points are
/// alike, on the bars of their series, and have one entry.
fn legend(drawing: &Drawing, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Drawn<()> {
    let mut shown: Vec<_> = lines(drawing)
        .filter(|(_, line, _)| placed(line).next().is_some())
        .collect();
    if drawing.bars {
        let mut papers = 0;
        // On bars all of the paper's points have one mark, whatever their series.
        shown.retain(|(_, _, paper)| {
            papers += usize::from(*paper);
            !paper || papers == 1
        });
    }
    for (index, (colour, line, paper)) in shown.into_iter().enumerate() {
        let y = FIRST_ENTRY + ENTRY * index as i32;
        let name = if paper && drawing.bars {
            area.draw(&TriangleMarker::new((15, y), 6, BLACK.filled()))?;
            "the paper's numbers".to_owned()
        } else if paper {
            area.draw(&TriangleMarker::new((15, y), 6, colour.filled()))?;
            format!("{} (paper)", line.name)
        } else if drawing.bars {
            area.draw(&Rectangle::new([(9, y - 6), (21, y + 6)], colour.filled()))?;
            line.name.clone()
        } else {
            let sample = vec![(6, y), (24, y)];
            area.draw(&PathElement::new(sample, colour.stroke_width(2)))?;
            area.draw(&Circle::new((15, y), 3, colour.filled()))?;
            line.name.clone()
        };
        area.draw(&Text::new(name, (32, y - 6), ("sans-serif", 12)))?;
    }
    Ok(())
}

/// Draws the caption and the axes, which have room for every point.
fn axes<'a>(drawing: &Drawing, root: &DrawingArea<SVGBackend<'a>, Shift>) -> Drawn<Chart<'a>> {
    let points = || lines(drawing).flat_map(|(_, line, _)| placed(line));
    let scale = Scale::of(drawing);
    let top = points().map(|point| point.high.max(point.y));
    let top = top.fold(0.0, f64::max);
    let bottom = points().map(|point| point.low.min(point.y));
    let bottom = bottom.fold(top, f64::min);
    let (left, right) = match drawing.labels.len() {
        0 => (0.0, points().map(|point| point.x).fold(0.0, f64::max) * 1.1),
        count => (-0.5, count as f64 - 0.5),
    };
    let name = figure_name(drawing);
    let word = match drawing.word.as_str() {
        "" => String::new(),
        word => format!(" ({word})"),
    };
    let mut chart = ChartBuilder::on(root)
        .caption(
            format!("{name}: {}{word}", drawing.title),
            ("sans-serif", 15),
        )
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(64)
        // Not an empty axis where every value is 0 or there is none.
        .build_cartesian_2d(left..right.max(1e-3), scale.range(bottom, top))?;
    // The axis has marks between the labels, too; these stay empty.
    let label = |x: &f64| match drawing.labels.get(x.round().max(0.0) as usize) {
        Some(label) if (x - x.round()).abs() < 0.01 => label.clone(),
        _ if drawing.labels.is_empty() => format!("{x:.1}"),
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .max_light_lines(1)
        .y_label_formatter(&|y| short(&scale.value(*y)))
        .x_labels(2 * drawing.labels.len().max(5) + 1)
        .x_label_formatter(&label)
        .x_desc(drawing.axes[0])
        .y_desc(drawing.axes[1])
        .draw()?;
    Ok(chart)
}

/// How values become heights.
#[derive(Clone, Copy)]
enum Scale {
    Linear,
    /// Heights are decimal logarithms.
    Logarithmic,
}

/// The least value that a logarithmic axis shows: a picosecond, in microseconds.
const LEAST: f64 = 1e-6;

impl Scale {
    fn of(drawing: &Drawing) -> Self {
        match drawing.logarithmic {
            true => Self::Logarithmic,
            false => Self::Linear,
        }
    }

    fn height(self, value: f64) -> f64 {
        match self {
            Self::Linear => value,
            Self::Logarithmic => value.max(LEAST).log10(),
        }
    }

    /// The inverse of [`Scale::height`].
    fn value(self, height: f64) -> f64 {
        match self {
            Self::Linear => height,
            Self::Logarithmic => 10_f64.powf(height),
        }
    }

    /// Returns the heights of an axis that has room for values from `bottom` to `top`.
    fn range(self, bottom: f64, top: f64) -> std::ops::Range<f64> {
        match self {
            Self::Linear => 0.0..(top * 1.1).max(1e-3),
            Self::Logarithmic => {
                let (bottom, top) = (self.height(bottom), self.height(top));
                bottom - 0.1..(top + 0.1).max(bottom + 0.5)
            }
        }
    }
}

/// Half of the width of a median's dash, in pixels.
const DASH: i32 = 7;

/// Draws a line with its points, a bar from low to high at each, and a dash where the median is.
fn draw_measured(
    chart: &mut Chart<'_>,
    (line, scale): (&Line, Scale),
    colour: RGBColor,
) -> Drawn<()> {
    // The value of a single run has no spread.
    let bars = placed(line).filter(|point| point.low < point.high);
    let bars = bars.map(|point| {
        let [low, y, high] = [point.low, point.y, point.high].map(|value| scale.height(value));
        ErrorBar::new_vertical(point.x, low, y, high, colour.filled(), 6)
    });
    chart.draw_series(bars)?;
    let medians = placed(line).filter_map(|point| Some((point.x, scale.height(point.median?))));
    chart.draw_series(medians.map(|at| {
        // In pixels, so that its width does not depend on the axis.
        let dash = vec![(-DASH, 0), (DASH, 0)];
        EmptyElement::at(at) + PathElement::new(dash, colour.stroke_width(3))
    }))?;
    let points = || placed(line).map(|point| (point.x, scale.height(point.y)));
    let drawn = LineSeries::new(points(), colour.stroke_width(2));
    chart.draw_series(drawn)?;
    chart.draw_series(points().map(|at| Circle::new(at, 3, colour.filled())))?;
    Ok(())
}

/// Draws the paper's points.
fn draw_paper(chart: &mut Chart<'_>, (line, scale): (&Line, Scale), colour: RGBColor) -> Drawn<()> {
    let mark = move |at| TriangleMarker::new(at, 6, colour.filled());
    chart.draw_series(placed(line).map(|point| mark((point.x, scale.height(point.y)))))?;
    Ok(())
}

/// Returns a number of the y axis with as many digits as tell it from its neighbours.
fn short(value: &f64) -> String {
    let whole = (value - value.round()).abs() < 1e-9;
    match *value {
        value if whole => format!("{value:.0}"),
        value if value < 1.0 => format!("{value:.2}"),
        value => format!("{value:.1}"),
    }
}

/// Returns the points of a line that have a place on the x axis.
fn placed(line: &Line) -> impl Iterator<Item = &PlotPoint> {
    // A point of the paper that no label belongs to is at NaN.
    line.points.iter().filter(|point| point.x.is_finite())
}

/// Returns `Figure 3` or `Table 1`.
pub(crate) fn figure_name(drawing: &Drawing) -> String {
    match drawing.name {
        "table 1" => "Table 1".to_owned(),
        name => format!("Figure {name}"),
    }
}
