//! How a request ended, until its call takes that.

use crate::{Answer, Cause, Error, Item, Lost, Refusal};

/// An answer that its call has not taken.
#[derive(Debug)]
pub(super) enum Outcome {
    Item(Option<Item>),
    Done,
    NotStored,
    Exists,
    Missing,
    Number(u64),
    Lines(Vec<(String, String)>),
    Failed(Error),
    Lost(Lost),
    /// It was not submitted, and has to be made again: no driver is left, or there is no session.
    Unsent,
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Makes an outcome of an answer, and of the lines before it.
pub(super) fn outcome(answer: Answer<'_>, lines: Vec<(String, String)>) -> Outcome {
    match answer {
        Answer::Hit(hit) => Outcome::Item(Some(hit.into())),
        Answer::Miss => Outcome::Missing,
        Answer::Done if lines.is_empty() => Outcome::Done,
        Answer::Done => Outcome::Lines(lines),
        Answer::NotStored => Outcome::NotStored,
        Answer::Exists => Outcome::Exists,
        Answer::Number(number) => Outcome::Number(number),
        Answer::Refused(Refusal::TooLarge) => Outcome::Failed(Error::TooLarge),
        Answer::Refused(Refusal::NotNumeric) => Outcome::Failed(Error::NotNumeric),
        Answer::Refused(Refusal::Other(words)) => Outcome::Failed(Error::Server(text(words))),
        Answer::Lost(lost) => Outcome::Lost(lost),
        Answer::Line { .. } => Outcome::Failed(Error::Disconnected(Cause::Unexpected)),
    }
}
