//! Why verbs could not be measured.

/// Why verbs could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum VerbError {
    /// A value out of bounds.
    #[error("--{option} is 1 to {max}, not {given}")]
    Bounds {
        /// The option.
        option: &'static str,
        /// The value.
        given: usize,
        /// Its largest value.
        max: usize,
    },
    /// None of the points can be measured.
    #[error(
        "none of this can be measured: {0}; each transport carries the operations of Table 1 of the HERD paper"
    )]
    Nothing(String),
}
