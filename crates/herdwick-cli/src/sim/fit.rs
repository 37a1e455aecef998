//! `herdwick sim fit`: searches for the parameters of a profile, and compares the model with the papers' points.

use std::io::{IsTerminal, Write, stderr};

use clap::Parser;
use herdwick_sim::{
    Profile,
    verbs::{
        CALIBRATED, CalibrationPoint, Fitted, Search, Span, VerbsError, calibration_points,
        fit_profile,
    },
};

use super::{args::SimArgs, sweep::aligned};

/// The options that have an effect on a fit.
#[derive(Parser, Debug)]
#[command(name = "sim", no_binary_name = true)]
struct FitArgs {
    #[command(flatten)]
    args: SimArgs,
}

/// Fits each of `profiles`; returns the tables.
pub(super) fn table(args: &SimArgs, profiles: &[(&str, Profile)]) -> Result<String, String> {
    check(args)?;
    let tables = profiles.iter().map(|(_, profile)| one(args.seed, profile));
    Ok(tables.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

/// Refuses options that a fit has no use for.
fn check(args: &SimArgs) -> Result<(), String> {
    let (profiles, seed) = (args.profile.join(","), args.seed.to_string());
    let words = ["fit", "--profile", &profiles, "--seed", &seed];
    let alone = FitArgs::try_parse_from(words).map_err(|error| error.to_string())?;
    // What differs was given beside the two.
    match alone.args == *args {
        true => Ok(()),
        false => Err("fit has --profile and --seed, and no other option".to_owned()),
    }
}

fn one(seed: u64, profile: &Profile) -> Result<String, String> {
    let points = calibration_points(&profile.name);
    if points.is_empty() {
        let names = CALIBRATED.join(" and ");
        return Err(format!(
            "no rates of verbs are known for a profile named {:?}; there are those of {names}: give one, or a \
             file whose name = is one of them",
            profile.name
        ));
    }
    measured(seed, profile, &points).map_err(|error| error.to_string())
}

fn measured(
    seed: u64,
    profile: &Profile,
    points: &[CalibrationPoint],
) -> Result<String, VerbsError> {
    let span = Span::default();
    let mut parameters = vec![
        ["parameter", "profile", "fit", "point"]
            .map(str::to_owned)
            .to_vec(),
    ];
    let fitted = fit_profile(profile, points, (seed, span), &mut |found| {
        progress(Some(found));
        parameters.push(parameter(found));
    })?;
    progress(None);
    let head = ["point", "paper", "profile", "error %", "fit", "error %"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for point in points {
        let values = [profile, &fitted].map(|profile| point.value(profile, seed, span));
        let [before, after] = values;
        rows.push(residuals(point, [before?, after?]));
    }
    Ok(format!(
        "fit of {} (sim: {}), seed {seed}; 10^6 a second, or us\n{}\n{}",
        profile.name,
        profile.about,
        aligned(&rows),
        aligned(&parameters)
    ))
}

fn residuals(point: &CalibrationPoint, values: [f64; 2]) -> Vec<String> {
    let mut row = vec![point.row.to_owned(), format!("{:.2}", point.paper)];
    for value in values {
        // Rounded, and without a sign of zero.
        let percent = (1000.0 * (value / point.paper - 1.0)).round() / 10.0 + 0.0;
        row.extend([format!("{value:.2}"), format!("{percent:+.1}")]);
    }
    row
}

fn parameter(found: &Fitted) -> Vec<String> {
    let after = match found.found {
        Search::Value(value) => format!("{value:.2}"),
        Search::Off => "off".to_owned(),
        Search::NotBound => "not bound by it".to_owned(),
        Search::TooSlow => "below a quarter".to_owned(),
        Search::TooFast => "above four times".to_owned(),
    };
    let before = format!("{:.2}", found.before);
    let name = found.parameter.name.to_owned();
    vec![name, before, after, found.row.to_owned()]
}

/// Shows the parameter that was found last.
fn progress(found: Option<&Fitted>) {
    if stderr().is_terminal() {
        let name = found.map_or("", |found| found.parameter.name);
        // Errors are ignored: the progress line is dispensable.
        let _ = write!(stderr(), "\r\x1b[K{name}");
    }
}
