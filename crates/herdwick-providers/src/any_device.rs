//! A device of any provider. Its calls are dispatched to that provider; in release builds, code that
//! moves data is compiled for each provider instead.

use std::net::IpAddr;

use herdwick_fabric::{
    Access, AddressHandle, Capabilities, ConnectError, ControlError, CqId, CqSpec, Device,
    Endpoint, ImportError, OpenError, PdId, PdRoom, PdTicket, PortHealth, PortLimits, QpId, QpSpec,
    QpState, RegionId, RegionSpec, Released, Remote, Rkey, Scope, SharedMemory, Sharing, Source,
};
use herdwick_mem::Span;

use crate::{AnyPort, Fabric, Visit, VisitAll, providers};

/// What a call with a port that another provider opened ends with.
const FOREIGN: ControlError = ControlError::Unknown("port, which another provider opened");

/// Makes [`AnyDevice`] from the list of providers.
macro_rules! devices {
    ($($(#[$doc:meta])* $name:ident: $module:ident, $device:ty, $port:ty;)*) => {
        /// A device of any provider.
        #[derive(Clone, Debug)]
        pub enum AnyDevice {
            $(#[doc = concat!("A [`", stringify!($device), "`].")] $name($device),)*
        }

        impl AnyDevice {
            /// Returns the device's fabric.
            #[must_use]
            pub fn fabric(&self) -> Fabric {
                match self {
                    $(Self::$name(_) => Fabric::$name,)*
                }
            }

            /// Runs the code that is compiled for this device. In builds with debug assertions it
            /// is compiled once, for a device of any provider: compiling is most of a test there.
            pub fn visit<V: Visit>(self, visit: V) -> V::Output {
                #[cfg(debug_assertions)]
                return visit.visit(self);
                #[cfg(not(debug_assertions))]
                match self {
                    $(Self::$name(device) => visit.visit(device),)*
                }
            }

            /// Runs the code that is compiled for this device, with those of `others` that are of
            /// the same provider. As in [`AnyDevice::visit`], debug builds have it once.
            pub fn visit_all<V: VisitAll>(self, others: Vec<Self>, visit: V) -> V::Output {
                #[cfg(debug_assertions)]
                {
                    let fabric = self.fabric();
                    // As in release builds: a device of another provider is left out.
                    let alike = others.into_iter().filter(|other| other.fabric() == fabric);
                    visit.visit(self, alike.collect())
                }
                #[cfg(not(debug_assertions))]
                match self {
                    $(Self::$name(device) => {
                        let others = others.into_iter().filter_map(|other| match other {
                            Self::$name(other) => Some(other),
                            _ => None,
                        });
                        visit.visit(device, others.collect())
                    })*
                }
            }
        }

        impl Device for AnyDevice {
            type Port = AnyPort;

            fn capabilities(&self) -> &Capabilities {
                match self {
                    $(Self::$name(device) => device.capabilities(),)*
                }
            }

            fn open_port(&self, limits: &PortLimits) -> Result<AnyPort, OpenError> {
                match self {
                    $(Self::$name(device) => device.open_port(limits).map(AnyPort::from),)*
                }
            }

            fn allocate_shared(
                &self,
                len: usize,
                sharing: Sharing,
            ) -> Result<SharedMemory, ControlError> {
                match self {
                    $(Self::$name(device) => device.allocate_shared(len, sharing),)*
                }
            }

            fn source(&self, peer: &Endpoint) -> Result<Source, ConnectError> {
                match self {
                    $(Self::$name(device) => device.source(peer),)*
                }
            }

            /// Returns the most that any provider needs; [`Fabric::pd_bytes`] is exact.
            fn pd_bytes(room: &PdRoom) -> usize {
                // It has no `self`, so which provider is meant is not known.
                [$(<$device>::pd_bytes(room)),*].into_iter().max().unwrap_or(0)
            }

            fn release_pd(&self, port: &mut AnyPort, pd: PdId, done: Released) {
                match (self, port) {
                    $((Self::$name(device), AnyPort::$name(port)) => {
                        device.release_pd(port, pd, done);
                    })*
                    // `done` is called in any case: its caller waits for it.
                    _ => done(Err(FOREIGN)),
                }
            }

            fn is_at(
                &self,
                port: &AnyPort,
                pd: PdId,
                endpoints: &[&Endpoint],
                host: Option<IpAddr>,
            ) -> bool {
                match (self, port) {
                    $((Self::$name(device), AnyPort::$name(port)) => {
                        device.is_at(port, pd, endpoints, host)
                    })*
                    // No device is at a port that another provider opened.
                    _ => false,
                }
            }

            fn imported(&self, port: &AnyPort, pd: PdId, rkey: Rkey) -> Option<Span> {
                match (self, port) {
                    $((Self::$name(device), AnyPort::$name(port)) => {
                        device.imported(port, pd, rkey)
                    })*
                    _ => None,
                }
            }

            fn check(&self, port: &mut AnyPort) {
                match (self, port) {
                    $((Self::$name(device), AnyPort::$name(port)) => device.check(port),)*
                    _ => {}
                }
            }

            fn health(&self, port: &AnyPort) -> PortHealth {
                match (self, port) {
                    $((Self::$name(device), AnyPort::$name(port)) => device.health(port),)*
                    _ => PortHealth::default(),
                }
            }

            with_port! { [$($name)*]
                create_pd(port: &mut AnyPort) -> Result<PdId, ControlError>;
                destroy_pd(port: &mut AnyPort, pd: PdId) -> Result<(), ControlError>;
                allocate_region(port: &mut AnyPort, pd: PdId, spec: &RegionSpec) -> Result<RegionId, ControlError>;
                allocate_memory(port: &mut AnyPort, pd: PdId, spec: &RegionSpec) -> Result<(RegionId, Span), ControlError>;
                register_shared(port: &mut AnyPort, pd: PdId, memory: &SharedMemory, access: Access, scope: Scope) -> Result<RegionId, ControlError>;
                export_region(port: &AnyPort, region: RegionId) -> Result<PdTicket, ControlError>;
                import_region(port: &mut AnyPort, pd: PdId, ticket: PdTicket) -> Result<(), ImportError>;
                free_region(port: &mut AnyPort, region: RegionId) -> Result<(), ControlError>;
                remote(port: &AnyPort, region: RegionId) -> Result<Remote, ControlError>;
                create_cq(port: &mut AnyPort, spec: &CqSpec) -> Result<CqId, ControlError>;
                destroy_cq(port: &mut AnyPort, cq: CqId) -> Result<(), ControlError>;
                create_qp(port: &mut AnyPort, spec: &QpSpec) -> Result<QpId, ControlError>;
                destroy_qp(port: &mut AnyPort, qp: QpId) -> Result<(), ControlError>;
                endpoint(port: &AnyPort, qp: QpId) -> Result<Endpoint, ControlError>;
                connect(port: &mut AnyPort, qp: QpId, peer: &Endpoint) -> Result<(), ConnectError>;
                create_address(port: &mut AnyPort, qp: QpId, peer: &Endpoint) -> Result<AddressHandle, ConnectError>;
                accept_from(port: &mut AnyPort, qp: QpId, peer: &Endpoint) -> Result<Option<AddressHandle>, ConnectError>;
                destroy_address(port: &mut AnyPort, address: AddressHandle) -> Result<(), ControlError>;
                fail_qp(port: &mut AnyPort, qp: QpId) -> Result<(), ControlError>;
                qp_state(port: &AnyPort, qp: QpId) -> Result<QpState, ControlError>;
                create_pd_for(port: &mut AnyPort, room: &PdRoom) -> Result<PdId, ControlError>;
                export_pd(port: &mut AnyPort, pd: PdId) -> Result<PdTicket, ControlError>;
                import_pd(port: &mut AnyPort, ticket: PdTicket) -> Result<PdId, ImportError>;
            }
        }
    };
}

/// Makes the calls that take a port and may fail.
macro_rules! with_port {
    ($names:tt $($call:ident(port: $port:ty $(, $argument:ident: $type:ty)*) -> $result:ty;)*) => {
        $(with_port! { @one $names $call(port: $port $(, $argument: $type)*) -> $result })*
    };
    (@one [$($name:ident)*] $call:ident(port: $port:ty $(, $argument:ident: $type:ty)*) -> $result:ty) => {
        fn $call(&self, port: $port $(, $argument: $type)*) -> $result {
            with_port! { @match self port [$($name)*] $call($($argument),*) }
        }
    };
    (@match $self:ident $port:ident [$($name:ident)*] $call:ident $arguments:tt) => {
        match ($self, $port) {
            $((Self::$name(device), AnyPort::$name(port)) => {
                with_port! { @call device port $call $arguments }
            })*
            // The types do not prevent this mixture: a port of one provider with a device of
            // another.
            _ => Err(FOREIGN.into()),
        }
    };
    (@call $device:ident $port:ident $call:ident($($argument:ident),*)) => {
        $device.$call($port $(, $argument)*)
    };
}

providers!(devices);
