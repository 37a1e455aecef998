//! What the data node and the metadata server of the engine Clover are opened with, and their start in steps.

use std::{io, time::Duration};

use herdwick_clover::{Hosts, NodeEnd, NodeOptions, Secret, ServerOptions, SetupError};
use herdwick_providers::AnyDevice;
use herdwick_request::HashKey;

use super::split::geometry;
use crate::{runtime::time::ServerClock, settings::error::StartError};

/// How long the metadata server may take to begin on empty memory.
pub(super) const START: Duration = Duration::from_secs(60);
/// Passes of the hosts in a step of their start: tens of microseconds.
const STEP: usize = 32;

/// What data node and metadata server are opened with, each time.
#[derive(Clone)]
pub(super) struct HostParts {
    pub(super) device: AnyDevice,
    pub(super) bytes: usize,
    pub(super) clients_max: usize,
    pub(super) hash_key: HashKey,
    /// What the data node asks for before a client may write.
    pub(super) secret: Secret,
}

impl HostParts {
    /// Opens an empty data node and its metadata server, which admits clients when it has begun ([`step`]).
    pub(super) fn open(&self) -> Result<Hosts<AnyDevice>, StartError> {
        let failed = |error: SetupError| StartError::Clover(error.to_string());
        let beside = self.device.beside().map_err(of_system)?;
        let Some(geometry) = geometry(self.bytes) else {
            return Err(StartError::Clover(
                "there is too little memory (-m)".to_owned(),
            ));
        };
        let secret = self.secret;
        let options = NodeOptions {
            geometry,
            // The metadata server is a client of the data node, too.
            clients: self.clients_max + 1,
            secret,
        };
        let node = NodeEnd::open(self.device.clone(), options).map_err(failed)?;
        let options = ServerOptions::new(self.clients_max, self.hash_key);
        let devices = (self.device.clone(), beside);
        Hosts::open(vec![node], devices, &options, secret).map_err(failed)
    }

    /// Opens them where others were that are closed, on another device.
    pub(super) fn reopen(self) -> Result<(AnyDevice, Hosts<AnyDevice>), StartError> {
        let device = self.device.anew().map_err(of_system)?;
        let parts = Self { device, ..self };
        let hosts = parts.open()?;
        Ok((parts.device, hosts))
    }

    /// Opens them, and waits until the metadata server has begun.
    pub(super) fn begin(&self, timer: ServerClock) -> Result<Hosts<AnyDevice>, StartError> {
        let mut hosts = self.open()?;
        let due = timer.now() + START;
        // No other thread waits for this one yet: the server starts.
        while !step(&mut hosts, timer.now(), due)? {}
        Ok(hosts)
    }
}

fn of_system(error: io::Error) -> StartError {
    StartError::Clover(error.to_string())
}

/// Has the metadata server go on with its start, which takes seconds where there are gigabytes. Returns whether
/// it has begun.
///
/// # Errors
/// It does not reach the data node, or it is later than `due`.
pub(super) fn step(
    hosts: &mut Hosts<AnyDevice>,
    now: Duration,
    due: Duration,
) -> Result<bool, StartError> {
    for _ in 0..STEP {
        if hosts.server.server().is_ready() {
            return Ok(true);
        }
        hosts.pass(now);
        if let Some(status) = hosts.server.server().failed() {
            let reason = format!("the metadata server does not reach the data node ({status:?})");
            return Err(StartError::Clover(reason));
        }
    }
    if now >= due {
        let reason = "the metadata server gets no answer of the data node".to_owned();
        return Err(StartError::Clover(reason));
    }
    Ok(false)
}
