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
    /// The value that was found; `None`: the point is not bound by it, between a quarter and four times
    /// of its value.
    pub after: Option<f64>,
}

/// How far from its value in the profile a parameter is searched for: by this factor, and its inverse.
const REACH: f64 = 4.0;
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
        let after = search(&mut profile, (point, parameter), (seed, span))?;
        *(parameter.field)(&mut profile) = after.unwrap_or(before);
        watch(&Fitted {
            parameter,
            row: point.row,
            before,
            after,
        });
    }
    Ok(profile)
}

/// Halves the range around the value that a parameter has, in which the point's value is the paper's.
fn search(
    profile: &mut Profile,
    (point, parameter): (&CalibrationPoint, Parameter),
    (seed, span): (u64, Span),
) -> Result<Option<f64>, VerbsError> {
    let before = *(parameter.field)(profile);
    let mut is_slow = |value: f64| {
        *(parameter.field)(profile) = value;
        Ok::<_, VerbsError>(point.is_slow(point.value(profile, seed, span)?))
    };
    let (mut low, mut high) = (before / REACH, before * REACH);
    // A part that is off stays off.
    if before == 0.0 || is_slow(low)? || !is_slow(high)? {
        return Ok(None);
    }
    for _ in 0..HALVINGS {
        let middle = (low * high).sqrt();
        match is_slow(middle)? {
            true => high = middle,
            false => low = middle,
        }
    }
    Ok(Some((low * high).sqrt()))
}
