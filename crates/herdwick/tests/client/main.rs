//! The client against servers: stock ones, and faulty ones.

mod between;
mod clover;
mod cluster;
mod deadlines;
mod etcd;
mod fallback;
mod faults;
mod hkvs;
mod login;
mod one_sided;
mod peers;
mod servers;
mod stags;
mod transports;
