//! The verbs, as vocabulary and traits
