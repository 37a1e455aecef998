//! The `herdwick` command: parses, wires, launches.
fn main() {}
