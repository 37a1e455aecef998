//! The receiver of names and values for the reply to `stats`.

use std::fmt::Display;

use super::statistic::{Statistic, Value};

/// Receives statistics, each a name and a value.
pub(crate) struct Stats<'a>(pub(crate) &'a mut dyn FnMut(&str, &dyn Display));

impl Stats<'_> {
    pub(crate) fn add(&mut self, name: &str, value: impl Display) {
        (self.0)(name, &value);
    }

    /// Writes the statistics of a table, each name after `prefix`, with the value that `value`
    /// reads.
    pub(crate) fn table<R>(
        &mut self,
        table: &[Statistic<R>],
        prefix: &str,
        value: impl Fn(&R) -> Value,
    ) {
        for statistic in table {
            match value(&statistic.read) {
                Value::Absent => {}
                value if prefix.is_empty() => self.add(statistic.name, value),
                value => self.add(&format!("{prefix}{}", statistic.name), value),
            }
        }
    }
}
