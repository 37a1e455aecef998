//! A server of a cluster: its address, its weight, and the name that decides which keys it has.

use std::str::FromStr;

use crate::{Address, Options, Usage};

/// The port that Ketama leaves out of a name.
const KETAMA_PORT: &str = "11211";

/// A server of a [`Cluster`](crate::Cluster).
#[derive(Clone, Debug)]
pub struct Node {
    address: Address,
    weight: u32,
    name: Option<String>,
    options: Option<Options>,
    /// The lease of its key in etcd.
    member: Option<u64>,
}

impl Node {
    /// A server of weight 1.
    #[must_use]
    pub fn new(address: Address) -> Self {
        Self {
            address,
            weight: 1,
            name: None,
            options: None,
            member: None,
        }
    }

    /// Sets its weight: it gets as many more keys. 0 is 1.
    #[must_use]
    pub fn with_weight(self, weight: u32) -> Self {
        let weight = weight.max(1);
        Self { weight, ..self }
    }

    /// Sets the name that stands for it on the ring instead of its address, so that another address
    /// changes no key's server.
    #[must_use]
    pub fn with_name(self, name: impl Into<String>) -> Self {
        let name = Some(name.into());
        Self { name, ..self }
    }

    /// Sets options of this server's own: another transport, login or TLS. Its deadline is the
    /// cluster's.
    #[must_use]
    pub fn with_options(self, options: Options) -> Self {
        let options = Some(options);
        Self { options, ..self }
    }

    /// Sets its registration in etcd: the lease of its key.
    #[cfg(feature = "etcd")]
    pub(crate) fn with_member(self, member: Option<u64>) -> Self {
        Self { member, ..self }
    }

    /// Takes over the registration of `other`, the same server.
    pub(super) fn know_as(&mut self, other: &Self) {
        self.member = other.member;
    }

    /// Its registration in etcd.
    pub(super) fn member(&self) -> Option<u64> {
        self.member
    }

    /// The address.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The weight.
    #[must_use]
    pub fn weight(&self) -> u32 {
        self.weight
    }

    /// The name, or the address if it has none.
    #[must_use]
    pub fn name(&self) -> String {
        let name = self.name.clone();
        name.unwrap_or_else(|| self.address.to_string())
    }

    /// Whether `other` has the same address, weight and name.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let of = |node: &Self| (node.address.clone(), node.weight, node.name.clone());
        of(self) == of(other)
    }

    /// Its own options.
    pub(super) fn options(&self) -> Option<&Options> {
        self.options.as_ref()
    }

    /// Its name on the ring of libmemcached and twemproxy.
    pub(super) fn ketama_name(&self) -> String {
        match (&self.name, &self.address) {
            (Some(name), _) => name.clone(),
            (None, Address::Tcp(_)) => {
                let name = self.host_port();
                match name.rsplit_once(':') {
                    Some((host, KETAMA_PORT)) => host.to_owned(),
                    _ => name,
                }
            }
            (None, Address::Unix(path)) => format!("{}:0", path.display()),
        }
    }

    /// Its name in pymemcache's `HashClient`: with the port, and without brackets.
    pub(super) fn host_port(&self) -> String {
        match (&self.name, &self.address) {
            (Some(name), _) => name.clone(),
            (None, Address::Tcp(text)) => text.replace(['[', ']'], ""),
            (None, Address::Unix(path)) => path.display().to_string(),
        }
    }
}

impl FromStr for Node {
    type Err = Usage;

    /// Parses `ADDRESS`, `HOST:PORT:WEIGHT` or `HOST:PORT:WEIGHT NAME`, as in twemproxy's file. An
    /// address is as in [`Address`]; a unix socket has a weight as `PATH:WEIGHT`.
    fn from_str(text: &str) -> Result<Self, Usage> {
        let (text, name) = match text.trim().split_once(' ') {
            Some((text, name)) => (text, Some(name.trim().to_owned())),
            None => (text.trim(), None),
        };
        let weight = |text: &str| text.parse::<u32>().ok().filter(|weight| *weight > 0);
        let (address, weight) = match text.rsplit_once(':') {
            Some((address, number))
                if is_whole(address) && !text.starts_with("unix:") && weight(number).is_some() =>
            {
                (address, weight(number).unwrap_or(1))
            }
            _ => (text, 1),
        };
        Ok(Self {
            name,
            ..Self::new(address.parse()?).with_weight(weight)
        })
    }
}

/// Whether `text` is `host:port`, `[v6]:port` or a path, so that what follows is a weight.
fn is_whole(text: &str) -> bool {
    if text.contains('/') {
        return true;
    }
    let host = text.rsplit_once(':').map(|(host, _)| host);
    host.is_some_and(|host| !host.contains(':') || host.ends_with(']'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(text: &str) -> Node {
        text.parse().unwrap()
    }

    #[test]
    fn node_forms_are_parsed() {
        for (text, address, weight, name) in [
            ("a", "a:11211", 1, "a:11211"),
            ("a:77", "a:77", 1, "a:77"),
            ("a:77:3", "a:77", 3, "a:77"),
            ("a:77:3 one", "a:77", 3, "one"),
            ("[::1]", "[::1]:11211", 1, "[::1]:11211"),
            ("[::1]:77", "[::1]:77", 1, "[::1]:77"),
            ("[::1]:77:2", "[::1]:77", 2, "[::1]:77"),
            ("/run/m.sock", "/run/m.sock", 1, "/run/m.sock"),
            ("/run/m.sock:2 two", "/run/m.sock", 2, "two"),
            ("unix:m:2", "m:2", 1, "m:2"),
        ] {
            let node = node(text);
            let is = (node.address().to_string(), node.weight(), node.name());
            assert_eq!(is, (address.to_owned(), weight, name.to_owned()), "{text}");
        }
        for text in ["", "::1", "a:b:c", "a:77:0", "a:77:-1", "http://a:77"] {
            assert_eq!(text.parse::<Node>().unwrap_err(), Usage::Address, "{text}");
        }
    }

    #[test]
    fn names_on_the_ring_leave_out_brackets_and_the_usual_port() {
        for (text, ketama, pymemcache) in [
            ("a", "a", "a:11211"),
            ("a:77", "a:77", "a:77"),
            ("[::1]:11211", "::1", "::1:11211"),
            ("[::1]:77", "::1:77", "::1:77"),
            ("/run/m.sock", "/run/m.sock:0", "/run/m.sock"),
            ("a:77:1 one", "one", "one"),
        ] {
            let node = node(text);
            assert_eq!(node.ketama_name(), ketama, "{text}");
            assert_eq!(node.host_port(), pymemcache, "{text}");
        }
    }
}
