//! A port of any provider, and what is compiled for each provider. Here and in `any_device` alone,
//! calls are dispatched over providers.

use std::{os::fd::BorrowedFd, time::Duration};

use herdwick_fabric::{
    Armed, Completion, CqId, Device, Local, Port, PostError, Progress, QpId, RecvWr, RegionId,
    SendWr, WriteReport,
};
use herdwick_mem::Span;

use crate::providers;

/// What to do with a device, compiled for each provider.
pub trait Visit {
    /// The result of the visit.
    type Output;

    /// Visits a device of one provider.
    fn visit<D>(self, device: D) -> Self::Output
    where
        D: Device<Port: Into<AnyPort> + 'static> + Send + 'static;
}

/// What to do with several devices of one provider, compiled for each provider.
pub trait VisitAll {
    /// The result of the visit.
    type Output;

    /// Visits the devices of one provider.
    fn visit<D>(self, first: D, others: Vec<D>) -> Self::Output
    where
        D: Device<Port: Into<AnyPort> + 'static> + Send + 'static;
}

/// Makes [`AnyPort`] from the list of providers, and from a port of the simulator.
macro_rules! ports {
    ($($(#[$doc:meta])* $name:ident: $module:ident, $device:ty, $port:ty;)*) => {
        any_port! {
            $($name: $port;)*
            #[cfg(feature = "seeded")]
            Seeded: herdwick_sim::SeededPort;
        }
    };
}

/// Makes [`AnyPort`] from a list of ports. Each call is one branch.
macro_rules! any_port {
    ($($(#[$cfg:meta])* $name:ident: $port:ty;)*) => {
        /// A port of any provider. Each call is one branch; everything behind it is concrete.
        #[derive(Debug)]
        pub enum AnyPort {
            $($(#[$cfg])* #[doc = concat!("A [`", stringify!($port), "`].")] $name(Box<$port>),)*
        }

        $($(#[$cfg])*
        impl From<$port> for AnyPort {
            fn from(port: $port) -> Self {
                Self::$name(Box::new(port))
            }
        })*

        impl Port for AnyPort {
            #[inline]
            fn post_send(&mut self, qp: QpId, batch: &[SendWr<'_>]) -> Result<(), PostError> {
                match self {
                    // The `cfg` of a variant is that of its arms, too.
                    $($(#[$cfg])* Self::$name(port) => port.post_send(qp, batch),)*
                }
            }

            #[inline]
            fn post_recv(&mut self, qp: QpId, batch: &[RecvWr]) -> Result<(), PostError> {
                match self {
                    $($(#[$cfg])* Self::$name(port) => port.post_recv(qp, batch),)*
                }
            }

            #[inline]
            fn poll(&mut self, cq: CqId, out: &mut [Completion]) -> usize {
                match self {
                    $($(#[$cfg])* Self::$name(port) => port.poll(cq, out),)*
                }
            }

            #[inline]
            fn watch_writes(&mut self, qp: QpId, range: Local, token: u64) -> bool {
                match self {
                    $($(#[$cfg])* Self::$name(port) => port.watch_writes(qp, range, token),)*
                }
            }

            #[inline]
            fn written(&mut self, out: &mut [WriteReport]) -> usize {
                match self {
                    $($(#[$cfg])* Self::$name(port) => port.written(out),)*
                }
            }

            #[inline]
            fn progress(&mut self, now: Duration) -> Progress {
                match self {
                    $($(#[$cfg])* Self::$name(port) => port.progress(now),)*
                }
            }

            #[inline]
            fn flush(&mut self, now: Duration) {
                match self {
                    $($(#[$cfg])* Self::$name(port) => port.flush(now),)*
                }
            }

            fn arm(&mut self, cq: CqId) -> Armed {
                match self {
                    $($(#[$cfg])* Self::$name(port) => port.arm(cq),)*
                }
            }

            fn disarm(&mut self, cq: CqId) {
                match self {
                    $($(#[$cfg])* Self::$name(port) => port.disarm(cq),)*
                }
            }

            fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
                match self {
                    $($(#[$cfg])* Self::$name(port) => port.wait_fd(),)*
                }
            }

            fn region(&self, region: RegionId) -> Option<&Span> {
                match self {
                    $($(#[$cfg])* Self::$name(port) => port.region(region),)*
                }
            }

            fn drops(&self) -> Vec<(&'static str, u64)> {
                match self {
                    $($(#[$cfg])* Self::$name(port) => port.drops(),)*
                }
            }

            fn connection_counts(&self) -> Vec<(&'static str, u64)> {
                match self {
                    $($(#[$cfg])* Self::$name(port) => port.connection_counts(),)*
                }
            }
        }
    };
}

providers!(ports);
