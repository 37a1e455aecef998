//! The store: a lossy index over a circular log, one owner a partition
