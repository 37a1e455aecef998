//! Wraps text for a terminal of 80 columns.

use std::fmt;

/// Columns of the narrowest terminal that is supported.
pub(super) const COLUMNS: usize = 80;

/// Writes `text`, breaking lines that are too long at a space; continuation lines are indented.
pub(super) fn wrapped(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    for line in text.lines() {
        let mut rest = line;
        let mut room = COLUMNS;
        while let Some((cut, _)) = rest.char_indices().nth(room) {
            let head = &rest[..cut];
            let at = if rest[cut..].starts_with(' ') {
                Some(cut)
            } else {
                head.rfind(' ')
            };
            // A word longer than a line stays whole.
            let Some(at) = at.filter(|at| *at > 0) else {
                break;
            };
            write!(f, "{}\n  ", rest[..at].trim_end())?;
            rest = rest[at..].trim_start();
            room = COLUMNS - 2;
        }
        writeln!(f, "{rest}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Text(&'static str);

    impl fmt::Display for Text {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            wrapped(f, self.0)
        }
    }

    #[test]
    fn long_lines_wrap_at_spaces_and_keep_every_word() {
        let text = "one two three four five six seven eight nine ten eleven twelve thirteen 14 15 \
                    sixteen seventeen eighteen nineteen twenty twenty-one twenty-two twenty-three\n\
                    \nshort";
        let shown = Text(text).to_string();
        assert!(
            shown.lines().all(|line| line.chars().count() <= COLUMNS),
            "{shown}"
        );
        let words =
            |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
        assert_eq!(words(&shown), words(text));
        assert!(shown.ends_with("\n\nshort\n"), "{shown}");
    }

    #[test]
    fn word_longer_than_a_line_is_not_split() {
        const LONG: &str = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";
        assert_eq!(Text(LONG).to_string().trim_end(), LONG);
    }
}
