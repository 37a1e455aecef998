//! Values of parameters by their names on the command line.

/// A text that names no value of a parameter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{given}' is no {what}: give {known}")]
pub struct NameError {
    given: String,
    what: &'static str,
    known: String,
}

/// Returns the value that `text` names.
pub(crate) fn named<T: Copy>(
    what: &'static str,
    names: &[(&'static str, T)],
    text: &str,
) -> Result<T, NameError> {
    let found = names.iter().find(|(name, _)| *name == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let known: Vec<_> = names.iter().map(|(name, _)| *name).collect();
        NameError {
            given: text.to_owned(),
            what,
            known: known.join(", "),
        }
    })
}

/// Returns the name of `value`.
pub(crate) fn name_of<T: PartialEq>(names: &[(&'static str, T)], value: &T) -> &'static str {
    let found = names.iter().find(|(_, named)| named == value);
    found.map_or("", |(name, _)| name)
}
