//! The shared-memory fabric provider
