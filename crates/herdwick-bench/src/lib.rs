//! Load, measurement and report
