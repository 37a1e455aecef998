//! Opens the listeners and the metrics address, and reads users and certificates, before the stores are
//! opened: a start that fails here leaves the memory file as it was.

use crate::{
    context::Credentials,
    net::listeners::{self, Opened},
    settings::{config::Config, error::StartError},
    threads::metrics::HttpListener,
};

/// What the operator's input opened: listeners, and what clients are admitted by.
pub(crate) struct Preflight {
    pub(crate) opened: Opened,
    pub(crate) metrics: Option<HttpListener>,
    pub(crate) credentials: Credentials,
}

impl Preflight {
    /// Opens listeners and the metrics address, and reads the files of users and certificates. The server
    /// does so before it opens the stores: a start that fails on the operator's input must leave the items
    /// in the memory file (`-e`).
    pub(crate) fn open(
        config: &Config,
        left_out: &mut Vec<StartError>,
    ) -> Result<Self, StartError> {
        let credentials = Credentials::read(config)?;
        let mut opened = listeners::open(config)?;
        left_out.append(&mut opened.left_out);
        Ok(Self {
            opened,
            metrics: config.metrics.map(HttpListener::open).transpose()?,
            credentials,
        })
    }
}
