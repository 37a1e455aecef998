//! The server: workers, the ways in, leases
