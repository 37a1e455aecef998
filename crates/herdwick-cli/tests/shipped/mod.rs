//! The part of a source file that is shipped, for the tests that read sources: all before its test module.

/// Returns `text` before the body of its test module. A declaration (`mod tests;`) ends nothing.
pub(crate) fn shipped(text: &str) -> &str {
    let opens_tests = |at: &usize| {
        let mut lines = text[at + 1..].lines();
        let attribute = lines.next().unwrap_or_default();
        let is_test = ["#[cfg(test)]", "#[cfg(all(test"];
        let item = lines
            .find(|line| !line.starts_with("#["))
            .unwrap_or_default();
        is_test.iter().any(|start| attribute.starts_with(start))
            && item.split_whitespace().any(|word| word == "mod")
            && item.ends_with('{')
    };
    let mut attributes = text.match_indices("\n#[cfg(").map(|(at, _)| at);
    let end = attributes.find(opens_tests);
    &text[..end.unwrap_or(text.len())]
}
