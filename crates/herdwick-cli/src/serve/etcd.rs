//! The flags by which a server registers in etcd, and its registration.

use std::net::{IpAddr, SocketAddr};

use clap::Args;
use herdwick::{
    Address,
    etcd::{EtcdCluster, EtcdMember, Event, Registration},
};
use herdwick_server::{Engine, Server};
use tracing::{info, warn};

use super::error::ServeError;

/// Where clients find this server.
#[derive(Args, Clone, Debug)]
pub(crate) struct EtcdArgs {
    /// Register in etcd, at http://HOST:PORT, with commas between several: clients of the cluster learn of
    /// this server by etcd://HOST:PORT/NAME
    #[arg(
        long = "etcd",
        value_name = "URL",
        value_delimiter = ',',
        requires = "cluster"
    )]
    etcd: Vec<String>,
    /// Name of the cluster in etcd
    #[arg(long = "cluster", value_name = "NAME", requires = "etcd")]
    cluster: Option<String>,
    /// Address that clients reach this server at [default: what it listens on]
    #[arg(long = "advertise", value_name = "HOST:PORT", requires = "etcd")]
    advertise: Option<String>,
    /// Seconds until a server that etcd does not hear of is no member of the cluster any more, 2 to 3600
    #[arg(long = "etcd-lease", value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(2..=3600), requires = "etcd")]
    lease: u64,
}

/// How a server is to register, as far as that is known before it listens.
pub(super) struct Membership {
    cluster: EtcdCluster,
    advertised: Option<String>,
    lease: u64,
}

impl EtcdArgs {
    /// Checks the flags; `None`: the server is not to register.
    pub(super) fn membership(&self, engine: Engine) -> Result<Option<Membership>, ServeError> {
        let Some(name) = &self.cluster else {
            return Ok(None);
        };
        if engine == Engine::Clover {
            return Err(ServeError::Refused(
                "--etcd: a server that is back empties its store, which --engine clover and --secondary \
                 cannot; leave one of them out",
            ));
        }
        let advertised = self.advertise.as_deref().map(dialled).transpose()?;
        Ok(Some(Membership {
            cluster: EtcdCluster::new(&self.etcd, name)?,
            advertised,
            lease: self.lease,
        }))
    }
}

impl Membership {
    /// Completes it by what is known of a server that listens.
    pub(super) fn of(self, server: &Server) -> Result<Registering, ServeError> {
        let (invalidator, gate) = (server.invalidator(), server.invalidator());
        let member = EtcdMember {
            address: match self.advertised {
                Some(address) => address,
                None => listened_on(server, self.cluster.is_local())?,
            },
            lease: self.lease,
            has_items: server.restart().is_some_and(|restart| restart.items > 0),
            admit: Box::new(move |members| gate.admit(members)),
            invalidate: Box::new(move || invalidator.invalidate_all()),
            report: Box::new(report),
        };
        Ok(Registering {
            cluster: self.cluster,
            member,
        })
    }
}

/// A server that may register.
pub(super) struct Registering {
    cluster: EtcdCluster,
    member: EtcdMember,
}

impl Registering {
    /// Registers it.
    pub(super) fn start(self) -> Result<Registration, ServeError> {
        Registration::start(self.cluster, self.member).map_err(ServeError::EtcdThread)
    }
}

/// Checks an address that clients dial.
fn dialled(text: &str) -> Result<String, ServeError> {
    let unspecified = |ip: IpAddr| ip.is_unspecified();
    let socket = text.parse::<SocketAddr>();
    match text.parse() {
        // Port 0 and an address for all of a host's cannot be dialled.
        Ok(Address::Tcp(address))
            if !text.ends_with(":0") && !socket.is_ok_and(|it| unspecified(it.ip())) =>
        {
            Ok(address)
        }
        _ => Err(ServeError::Refused(
            "--advertise: give HOST:PORT, as clients reach this server",
        )),
    }
}

/// Returns the address that the server listens on, if clients can dial it: by the loopback address only if etcd
/// `is_local`, too.
fn listened_on(server: &Server, is_local: bool) -> Result<String, ServeError> {
    match server.address() {
        herdwick_server::Address::Tcp(address)
            if !address.ip().is_unspecified() && (is_local || !address.ip().is_loopback()) =>
        {
            Ok(address.to_string())
        }
        _ => Err(ServeError::Refused(
            "--etcd: clients cannot dial what this server listens on; listen on an address of this host \
             (-l ADDR), or give --advertise HOST:PORT",
        )),
    }
}

/// Logs what happens.
fn report(event: Event<'_>) {
    match event {
        Event::Registered => info!("registered in etcd"),
        Event::Invalidated => warn!(
            "this server had left the cluster, so its items may be stale: all are invalidated"
        ),
        Event::Failed(error) => warn!("{error}; serving on, and trying again"),
        Event::Taken => warn!(
            "another server has registered the address of this one: clients use that one; give each its own \
             --advertise HOST:PORT"
        ),
        Event::Lost => warn!("the registration in etcd is gone, registering again"),
    }
}
