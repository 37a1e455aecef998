//! The fit of a profile: each parameter is searched for with which the model has its point's value.

use super::{
    Span, VerbsError,
    calibration::{CalibrationPoint, Parameter},
};
use crate::Profile;

/// A parameter that was searched for.
#[derive(Clone, Copy, Debug)]
pub struct Fitted {
    /// The parameter.
    pub parameter: Parameter,
    /// The row of its point.
    pub row: &'static str,
    /// Its value in the profile.
    pub before: f64,
    /// What was found.
    pub found: Search,
}

/// What a search for a parameter found, between a quarter and four times of its value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Search {
    /// The value with which the model has the point's.
    Value(f64),
    /// The part is off in the profile, and stays so.
    Off,
    /// The point has the same value with a quarter of the parameter and with four times of it: other parts bound it.
    NotBound,
    /// With a quarter of it the model is still slower than the point.
    TooSlow,
    /// With four times of it the model is still faster than the point.
    TooFast,
}

impl Search {
    /// Returns the value that was found.
    #[must_use]
    pub fn value(self) -> Option<f64> {
        match self {
            Self::Value(value) => Some(value),
            _ => None,
        }
    }
}

/// How far from its value in the profile a parameter is searched for: by this factor, and its inverse.
const REACH: f64 = 4.0;
/// Change of a point's value, as a part of it, below which a parameter does not bound it.
const SAME: f64 = 1e-3;
/// Halvings of the range: the last one is 0.07 % wide.
const HALVINGS: u32 = 12;

/// Fits a profile: searches for the parameter of each point, in their order, with those that were found before
/// it. Returns the profile with what was found. `watch` gets each as it is found.
///
/// # Errors
/// [`VerbsError`].
pub fn fit_profile(
    profile: &Profile,
    points: &[CalibrationPoint],
    (seed, span): (u64, Span),
    watch: &mut dyn FnMut(&Fitted),
) -> Result<Profile, VerbsError> {
    let mut profile = profile.clone();
    for point in points {
        let Some(parameter) = point.parameter else {
            continue;
        };
        let before = *(parameter.field)(&mut profile);
        let found = search(&mut profile, (point, parameter), (seed, span))?;
        *(parameter.field)(&mut profile) = found.value().unwrap_or(before);
        watch(&Fitted {
            parameter,
            row: point.row,
            before,
            found,
        });
    }
    Ok(profile)
}

/// Halves the range around the value that a parameter has, in which the point's value is the paper's.
fn search(
    profile: &mut Profile,
    (point, parameter): (&CalibrationPoint, Parameter),
    (seed, span): (u64, Span),
) -> Result<Search, VerbsError> {
    let before = *(parameter.field)(profile);
    if before == 0.0 {
        return Ok(Search::Off);
    }
    let mut value = |parameter_value: f64| {
        *(parameter.field)(profile) = parameter_value;
        point.value(profile, seed, span)
    };
    let (mut low, mut high) = (before / REACH, before * REACH);
    let [least, most] = [value(low)?, value(high)?];
    if (most / least - 1.0).abs() < SAME {
        return Ok(Search::NotBound);
    }
    if point.is_slow(least) {
        return Ok(Search::TooSlow);
    }
    if !point.is_slow(most) {
        return Ok(Search::TooFast);
    }
    for _ in 0..HALVINGS {
        // The range is one of factors, so its middle is the geometric mean.
        let middle = (low * high).sqrt();
        match point.is_slow(value(middle)?) {
            true => high = middle,
            false => low = middle,
        }
    }
    Ok(Search::Value((low * high).sqrt()))
}
