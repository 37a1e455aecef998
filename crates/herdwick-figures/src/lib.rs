//! The figures and Table 1 of the HERD paper, measured on a fabric of this host and drawn beside the
//! points that the paper's text gives, or run on simulated RNICs.
//!
//! A figure is data: [`FIGURES`] has each with its axes, its series and the paper's points. [`run()`]
//! measures one, [`simulate`] runs it in virtual time; both return a [`Drawing`], which [`to_svg`], [`to_csv`], [`to_text`] and [`page()`]
//! write. A [`Timeline`] shows one simulated run over its time.
#![forbid(unsafe_code)]

mod catalogue;
mod draw;
mod drawing;
mod failures;
mod figure;
mod page;
mod region;
mod run;
mod sim;
mod text;
mod timeline;

pub use catalogue::{FIGURES, find};
pub use draw::{DrawError, to_svg};
pub use drawing::{Drawing, FigureError, Line, PlotPoint, Simulated, Terms};
pub use figure::{Figure, Load, Measure, PaperPoint, SeriesSpec, Sweep};
pub use page::page;
pub use run::{run, unmeasured};
pub use sim::simulate;
pub use text::{to_csv, to_text};
pub use timeline::Timeline;
