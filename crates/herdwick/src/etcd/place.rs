//! Where a cluster is: the endpoints of etcd, and its name.

use std::{fmt, net::IpAddr, str::FromStr};

/// A cluster in etcd: where etcd is, and the name of the cluster. Its text is
/// `etcd://HOST:PORT[,HOST:PORT]/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdCluster {
    pub(super) endpoints: Vec<String>,
    name: String,
}

/// Why a cluster in etcd has no such text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EtcdUsage {
    /// An endpoint is malformed, or there is none.
    #[error(
        "etcd is http://HOST:PORT to a server, and a cluster etcd://HOST:PORT/NAME to a client"
    )]
    Endpoint,
    /// TLS.
    #[error("etcd is reached without TLS only: give http://HOST:PORT, of a proxy if need be")]
    Tls,
    /// The name is malformed.
    #[error(
        "a cluster's name (serve --cluster NAME, etcd://HOST:PORT/NAME) is 1 to 100 letters, digits, dots, \
         dashes and underscores"
    )]
    Name,
}

/// The port of etcd's clients.
const PORT: u16 = 2379;
/// The value of a server that leaves, and is not in doubt.
pub(super) const LEAVES: &str = "-";
/// The value of a server that is about to join, and invalidates its items once clients know.
pub(super) const JOINS: &str = "";
/// Longest name of a cluster.
const NAME_MAX: usize = 100;

impl EtcdCluster {
    /// The cluster `name` in the etcd at `endpoints`, each `HOST:PORT` or `http://HOST:PORT`; 2379 is the
    /// port if there is none.
    ///
    /// # Errors
    /// [`EtcdUsage`].
    pub fn new<T: AsRef<str>>(
        endpoints: impl IntoIterator<Item = T>,
        name: &str,
    ) -> Result<Self, EtcdUsage> {
        let endpoints = endpoints.into_iter().map(|text| endpoint(text.as_ref()));
        let endpoints = endpoints.collect::<Result<Vec<_>, _>>()?;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(is_plain) {
            return Err(EtcdUsage::Name);
        }
        if endpoints.is_empty() {
            return Err(EtcdUsage::Endpoint);
        }
        Ok(Self {
            endpoints,
            name: name.to_owned(),
        })
    }

    /// Whether every endpoint is this host's, by its loopback address.
    #[must_use]
    pub fn is_local(&self) -> bool {
        let is_loopback = |host: &str| {
            let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
            host == "localhost" || address.is_ok_and(|address| address.is_loopback())
        };
        let mut hosts = self.endpoints.iter().filter_map(|it| it.rsplit_once(':'));
        hosts.all(|(host, _)| is_loopback(host))
    }

    /// The prefix of the keys of its members.
    pub(super) fn prefix(&self) -> String {
        format!("herdwick/{}/members/", self.name)
    }
}

impl FromStr for EtcdCluster {
    type Err = EtcdUsage;

    fn from_str(text: &str) -> Result<Self, EtcdUsage> {
        let rest = text.strip_prefix("etcd://").ok_or(EtcdUsage::Endpoint)?;
        let (endpoints, name) = rest.split_once('/').ok_or(EtcdUsage::Name)?;
        Self::new(endpoints.split(','), name)
    }
}

impl fmt::Display for EtcdCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd://{}/{}", self.endpoints.join(","), self.name)
    }
}

/// Returns `HOST:PORT`.
fn endpoint(text: &str) -> Result<String, EtcdUsage> {
    if text.starts_with("https://") {
        return Err(EtcdUsage::Tls);
    }
    let text = text.strip_prefix("http://").unwrap_or(text);
    let text = text.strip_suffix('/').unwrap_or(text);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    if text.is_empty() || !text.bytes().all(is_plain) {
        return Err(EtcdUsage::Endpoint);
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !text.ends_with(']') => {
            (host, port.parse().map_err(|_| EtcdUsage::Endpoint)?)
        }
        _ => (text, PORT),
    };
    let is_v6 = host.starts_with('[') && host.ends_with(']');
    match host.is_empty() || (host.contains([':', '[', ']']) && !is_v6) {
        true => Err(EtcdUsage::Endpoint),
        false => Ok(format!("{host}:{port}")),
    }
}
