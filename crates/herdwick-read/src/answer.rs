//! How a request of a client ends, in every system whose clients READ.

/// The answer to a GET, PUT or DELETE. `V` is the value, borrowed from the client's buffers unless it was
/// copied ([`Answer::copied`]); `F` is why a client of the system fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<V, F> {
    /// The value of a GET.
    Value(V),
    /// The key of a GET or DELETE is not stored.
    Missing,
    /// The PUT or DELETE is done.
    Done,
    /// The PUT is refused: there is no memory for it, or no place for another key.
    Full,
    /// Others change the key so often that the request was given up. It has no effect. Of Clover alone,
    /// where clients link the values themselves.
    Contended,
    /// The server refuses the request as malformed: it and the client do not fit together.
    Refused,
    /// The client has failed. Whether a PUT or DELETE is done is not known.
    Failed(F),
}

impl<F> Answer<&[u8], F> {
    /// Copies the value.
    #[must_use]
    pub fn copied(self) -> Answer<Vec<u8>, F> {
        match self {
            Self::Value(value) => Answer::Value(value.to_vec()),
            Self::Missing => Answer::Missing,
            Self::Done => Answer::Done,
            Self::Full => Answer::Full,
            Self::Contended => Answer::Contended,
            Self::Refused => Answer::Refused,
            Self::Failed(failure) => Answer::Failed(failure),
        }
    }
}
