//! Scenarios: files of options for `herdwick sim`, for one run or several.

use std::{fs, path::Path};

use clap::Parser;
use toml::{Table, Value};

use super::args::{SimArgs, SimSubject};

/// The options of a scenario, as of a command line.
#[derive(Parser, Debug)]
#[command(name = "sim", no_binary_name = true)]
struct ScenarioArgs {
    #[command(flatten)]
    args: SimArgs,
}

/// Reads a file: the options of each of its runs. `given` are those of the command line, of which a scenario
/// takes none.
pub(super) fn read(path: &Path, given: &SimArgs) -> Result<Vec<SimArgs>, String> {
    let name = path.display();
    if given.what.len() > 1 {
        return Err(format!("{name} is a scenario: give it alone"));
    }
    let alone = ScenarioArgs::try_parse_from([path]);
    // What differs was given beside the path.
    if alone.is_ok_and(|alone| alone.args != *given) {
        return Err(format!(
            "{name} is a scenario: write the other options into it, without their dashes"
        ));
    }
    let text = fs::read_to_string(path).map_err(|error| format!("reading {name}: {error}"))?;
    runs(&text).map_err(|error| format!("{name}: {error}"))
}

/// Returns the options of each `[[run]]`, with those above the first one; without any, those alone.
fn runs(text: &str) -> Result<Vec<SimArgs>, String> {
    let mut common: Table = toml::from_str(text).map_err(|error| error.to_string())?;
    let further = match common.remove("run") {
        None => vec![Table::new()],
        Some(Value::Array(runs)) => runs
            .into_iter()
            .map(|run| run.try_into::<Table>().map_err(|_| NO_TABLE.to_owned()))
            .collect::<Result<_, _>>()?,
        Some(_) => return Err(NO_TABLE.to_owned()),
    };
    let with = |run: Table| {
        let mut all = common.clone();
        all.extend(run);
        options(&all)
    };
    further.into_iter().map(with).collect()
}

const NO_TABLE: &str = "run: each begins with [[run]] and has options";

fn options(table: &Table) -> Result<SimArgs, String> {
    let mut words = Vec::new();
    let Some(system) = table.get("system") else {
        return Err("system: give it, as on the command line: system = \"herd\"".to_owned());
    };
    for (name, value) in table {
        match value {
            _ if name == "system" => {}
            Value::Boolean(true) => words.push(format!("--{name}")),
            Value::Boolean(false) => {}
            // With `=`, since a value may begin with `-`.
            value => words.push(format!("--{name}={}", word(name, value)?)),
        }
    }
    words.push(word("system", system)?);
    let parsed = ScenarioArgs::try_parse_from(&words).map_err(|error| {
        // The further lines are about a command line.
        let text = error.to_string();
        let line = text.lines().next().unwrap_or_default();
        line.trim_start_matches("error: ").to_owned()
    })?;
    let nested = |what: &SimSubject| matches!(what, SimSubject::Scenario(_));
    match parsed.args.what.iter().any(nested) {
        true => Err("system: a scenario names no other".to_owned()),
        false => Ok(parsed.args),
    }
}

/// Returns a value as it is on the command line.
fn word(name: &str, value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        Value::Array(values) => {
            let words = values.iter().map(|value| word(name, value));
            Ok(words.collect::<Result<Vec<_>, _>>()?.join(","))
        }
        _ => Err(format!("{name}: no value of an option")),
    }
}

#[cfg(test)]
mod tests {
    use herdwick_sim_bench::System;

    use super::*;

    #[test]
    fn runs_have_what_stands_above_them() {
        let text = "profile = \"apt\"\nclients = [6, 12]\nsystem = \"herd\"\n\
                    [[run]]\nput = 50\n[[run]]\nsystem = [\"farm\", \"pilaf\"]\nclients = 3\n";
        let runs = runs(text).unwrap();
        let [first, second] = &runs[..] else {
            panic!("{runs:?}");
        };
        assert_eq!(first.what, [SimSubject::System(System::Herd)]);
        assert_eq!(
            (&first.clients[..], &first.put[..]),
            (&[6, 12][..], &[50][..])
        );
        let both = [System::Farm, System::Pilaf].map(SimSubject::System);
        assert_eq!(second.what, both);
        assert_eq!((&second.clients[..], &second.put[..]), (&[3][..], &[5][..]));
    }

    #[test]
    fn what_is_no_option_is_named() {
        for (text, named) in [
            ("clients = 6", "system"),
            ("system = \"herd\"\nclient = 6", "--client"),
            ("system = \"herd\"\nclients = \"many\"", "many"),
            ("system = \"herd\"\nrun = 1", "run"),
            ("system = \"other.toml\"", "scenario"),
            ("system = \"herd\"\nclients = { a = 1 }", "clients"),
            ("system = ", "TOML"),
        ] {
            let error = runs(text).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
