//! The client behind a Python object: made from the constructor's arguments at the first call.

use std::time::Duration;

use herdwick::{
    Client, Cluster, ClusterOptions, Distribution, Error, Fabric, Login, Node, OnFailure, Options,
    Tls, TlsFiles, Usage,
};
use pyo3::{exceptions::PyValueError, prelude::*, types::PyDict};

use crate::errors::bad_options;

/// What a client or session is made of.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) nodes: Vec<Node>,
    pub(crate) options: ClusterOptions,
    /// How long a call may take that has to connect.
    pub(crate) connect_deadline: Duration,
}

/// Seconds as Python has them; `None`: for ever.
pub(crate) fn seconds(value: Option<f64>) -> PyResult<Duration> {
    let Some(value) = value else {
        return Ok(Duration::MAX);
    };
    let span = Duration::try_from_secs_f64(value);
    let span = span.map_err(|_| PyValueError::new_err("a timeout is a number of seconds"))?;
    if span.is_zero() {
        return Err(PyValueError::new_err("a timeout is more than 0"));
    }
    Ok(span)
}

impl Config {
    /// Reads the servers, and from `options` what is there.
    pub(crate) fn new(servers: &[String], options: &Bound<'_, PyDict>) -> PyResult<Self> {
        let nodes = servers.iter().map(|server| server.parse::<Node>());
        let nodes: Result<Vec<_>, Usage> = nodes.collect();
        let mut made = ClusterOptions::default();
        let mut connect_deadline = Duration::MAX;
        made.client.deadline = Duration::MAX;
        let mut tls = TlsFiles::default();
        let mut has_tls = false;
        for (name, value) in options {
            let name: String = name.extract()?;
            match name.as_str() {
                "timeout" => made.client.deadline = seconds(value.extract()?)?,
                "connect_timeout" => connect_deadline = seconds(value.extract()?)?,
                "transport" => set_transport(&mut made.client, &value.extract::<String>()?)?,
                "window" => made.client.window = value.extract()?,
                "login" => made.client.login = Some(login(&value.extract::<String>()?)?),
                "tls" => has_tls = value.extract()?,
                "tls_authorities" => tls.authorities = value.extract()?,
                "tls_certificate" => tls.certificate = value.extract()?,
                "tls_key" => tls.key = value.extract()?,
                "tls_name" => tls.name = value.extract()?,
                "distribution" => made.distribution = distribution(&value.extract::<String>()?)?,
                "eject" => {
                    let (failures, away) = value.extract()?;
                    let away = seconds(Some(away))?;
                    made.on_failure = OnFailure::Eject { failures, away };
                }
                other => {
                    return Err(PyValueError::new_err(format!("there is no option {other}")));
                }
            }
        }
        if has_tls {
            let tls = Tls::new(&tls);
            made.client.tls = Some(tls.map_err(|error| PyValueError::new_err(error.to_string()))?);
        }
        let config = Self {
            nodes: nodes.map_err(|usage| bad_options(&usage))?,
            options: made,
            connect_deadline,
        };
        // What is wrong with the servers is reported by the constructor.
        config.client().map_err(|usage| bad_options(&usage))?;
        Ok(config)
    }
}

/// A client of one server or of several.
#[derive(Debug)]
pub(crate) enum Servers {
    One(Box<Client>),
    Several(Box<Cluster>),
}

/// Makes the same call of a client of one server or of several.
macro_rules! ask {
    ($servers:expr, $client:ident => $call:expr) => {
        match $servers {
            Servers::One($client) => $call,
            Servers::Several($client) => $call,
        }
    };
}
pub(crate) use ask;

impl Config {
    /// Makes a client that has not dialled.
    pub(crate) fn client(&self) -> Result<Servers, Usage> {
        let options = self.options.clone();
        Ok(match &self.nodes[..] {
            // One server has every key, by whatever name.
            [node] => {
                let address = node.address().clone();
                Servers::One(Client::unconnected(address, options.client).into())
            }
            nodes => Servers::Several(Cluster::new(nodes.to_vec(), options)?.into()),
        })
    }
}

impl Servers {
    /// Dials the only server, if there is no connection, in the time that this may take. Of several, each is
    /// dialled by the call that needs it, in the time of that call.
    pub(crate) fn dial(&mut self, config: &Config) -> Result<(), Error> {
        if let Self::One(client) = self
            && client.session().is_none()
        {
            client.set_deadline(config.connect_deadline);
            let dialled = client.dial();
            client.set_deadline(config.options.client.deadline);
            dialled?;
        }
        Ok(())
    }
}

fn set_transport(options: &mut Options, name: &str) -> PyResult<()> {
    let mut all = Fabric::ALL.into_iter();
    let only = all.find(|fabric| fabric.name() == name);
    (options.fabric, options.only) = match (name, only) {
        ("auto", _) => (true, None),
        ("tcp", _) => (false, None),
        (_, Some(only)) => (true, Some(only)),
        (other, None) => {
            let names: Vec<_> = Fabric::ALL.iter().map(|fabric| fabric.name()).collect();
            return Err(PyValueError::new_err(format!(
                "{other:?} is no transport: auto, tcp, {}",
                names.join(", ")
            )));
        }
    };
    Ok(())
}

fn login(line: &str) -> PyResult<Login> {
    Login::parse(line).ok_or_else(|| PyValueError::new_err("a login is one line, user:password"))
}

fn distribution(name: &str) -> PyResult<Distribution> {
    Ok(match name {
        "ketama" => Distribution::Ketama,
        "ketama-one-at-a-time" => Distribution::KetamaOneAtATime,
        "rendezvous" => Distribution::Rendezvous,
        other => {
            return Err(PyValueError::new_err(format!(
                "{other:?} is no distribution: ketama, ketama-one-at-a-time, rendezvous"
            )));
        }
    })
}
