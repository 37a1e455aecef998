//! memcached's `-l`: addresses to listen on; and the address of `--metrics`.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

/// The addresses of one `-l`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListenAddresses(pub(super) Vec<ListenAddress>);

/// One address of `-l`, with its port if given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListenAddress {
    host: String,
    port: Option<u16>,
    plain: bool,
}

/// memcached's word for every interface.
const ANY: &str = "*";

/// How an address is written.
const FORM: &str = "give ADDR or ADDR:PORT, for example 127.0.0.1 or [::1]:11211";

/// Parses addresses separated by commas or, as in memcached, semicolons. Empty words are skipped.
pub(super) fn parse(text: &str) -> Result<ListenAddresses, String> {
    let words = text.split([',', ';']).map(str::trim);
    let all = words.filter(|word| !word.is_empty()).map(one);
    let all = all.collect::<Result<Vec<_>, _>>()?;
    if all.is_empty() {
        return Err(FORM.into());
    }
    Ok(ListenAddresses(all))
}

/// Parses `[notls:][tag[NAME]:]ADDR[:PORT]`. An IPv6 address with a port has to be in brackets.
fn one(text: &str) -> Result<ListenAddress, String> {
    let mut rest = text;
    let bare = rest.strip_prefix("notls:");
    let plain = bare.is_some();
    rest = bare.unwrap_or(rest);
    for tls in ["btls:", "mtls:"] {
        if rest.starts_with(tls) {
            return Err(format!(
                "clients' certificates are asked for on all TLS ports or on none; leave {tls} \
                 out, and give -o ssl_verify_mode"
            ));
        }
    }
    if let Some(protocol) = rest.strip_prefix("proto[") {
        let known = protocol.strip_prefix("auto]:");
        rest = known.ok_or("the protocol of each connection is detected; leave proto[..]: out")?;
    }
    if rest.starts_with("tag[") {
        let end = rest.find("]:").ok_or("a tag ends with ]:")?;
        rest = &rest[end + 2..];
    }
    let interface = split(rest).map(|interface| ListenAddress { plain, ..interface });
    // The resolver takes a number for an address: 1 is 0.0.0.1.
    let digits = |host: &str| host.bytes().all(|byte| byte.is_ascii_digit());
    if let Some(ListenAddress { host, .. }) = &interface
        && !host.is_empty()
        && digits(host)
    {
        return Err(
            "not an address: give one such as 127.0.0.1, 0.0.0.0 for all; a port alone is -p"
                .into(),
        );
    }
    interface
        .filter(|interface| !interface.host.is_empty())
        .ok_or_else(|| FORM.into())
}

/// Default port of the metrics: that of memcached_exporter.
const METRICS_PORT: u16 = 9150;

/// Parses `--metrics`: `PORT`, `ADDR` or `ADDR:PORT`.
pub(super) fn metrics(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse() {
        return Ok(SocketAddr::from(([127, 0, 0, 1], port)));
    }
    let address = text.parse::<IpAddr>().ok();
    address
        .map(|address| SocketAddr::new(address, METRICS_PORT))
        .or_else(|| text.parse().ok())
        .ok_or_else(|| "give a port, or an address such as 0.0.0.0:9150 or [::1]:9150".into())
}

fn split(text: &str) -> Option<ListenAddress> {
    let interface = |host: &str, port| ListenAddress {
        host: host.to_owned(),
        port,
        plain: false,
    };
    if let Some(bracketed) = text.strip_prefix('[') {
        let (host, port) = bracketed.split_once(']')?;
        return match port.strip_prefix(':') {
            Some(port) => Some(interface(host, Some(port.parse().ok()?))),
            None => port.is_empty().then(|| interface(host, None)),
        };
    }
    match text.split_once(':') {
        // More than one colon: an IPv6 address without a port.
        Some((_, more)) if more.contains(':') => Some(interface(text, None)),
        Some((host, port)) => Some(interface(host, Some(port.parse().ok()?))),
        None => Some(interface(text, None)),
    }
}

impl ListenAddress {
    /// Resolves the address; `port` applies if it has none of its own.
    ///
    /// # Errors
    /// The name cannot be resolved.
    pub(super) fn addresses(&self, port: u16) -> std::io::Result<Vec<SocketAddr>> {
        let port = self.port.unwrap_or(port);
        if self.host == ANY {
            return Ok(vec![
                SocketAddr::from(([0; 4], port)),
                SocketAddr::from(([0u16; 8], port)),
            ]);
        }
        Ok((&*self.host, port).to_socket_addrs()?.collect())
    }

    /// Returns whether it is exempt from TLS (`notls:`).
    pub(super) fn plain(&self) -> bool {
        self.plain
    }

    /// Returns the host as given, without prefixes.
    pub(super) fn host(&self) -> &str {
        &self.host
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_addresses_accept_ports_and_prefixes() {
        for (text, expected) in [
            ("127.0.0.1", "127.0.0.1:9"),
            ("127.0.0.2:7", "127.0.0.2:7"),
            ("::1", "[::1]:9"),
            ("[::1]:8", "[::1]:8"),
            ("[::1]", "[::1]:9"),
            ("notls:127.0.0.1:5", "127.0.0.1:5"),
            ("proto[auto]:tag[tools]:127.0.0.1:6", "127.0.0.1:6"),
            ("tag[x]:::1", "[::1]:9"),
        ] {
            let all = one(text).unwrap().addresses(9).unwrap();
            let said: Vec<String> = all.iter().map(ToString::to_string).collect();
            assert_eq!(said, [expected], "{text}");
        }
        assert!(one("notls:[::1]").unwrap().plain());
        assert!(!one("[::1]").unwrap().plain());
        let any = one("*").unwrap().addresses(9).unwrap();
        assert_eq!(any.len(), 2);
    }

    /// memcached splits by `strtok_r(.., ";,")`, which skips empty words.
    #[test]
    fn lists_are_split_as_memcached_splits_them() {
        for (text, hosts) in [
            ("127.0.0.1,", &["127.0.0.1"][..]),
            ("127.0.0.1;::1", &["127.0.0.1", "::1"]),
            (",;[::1]:5,, 127.0.0.2;", &["::1", "127.0.0.2"]),
        ] {
            let ListenAddresses(all) = parse(text).unwrap();
            let split: Vec<&str> = all.iter().map(ListenAddress::host).collect();
            assert_eq!(split, hosts, "{text}");
        }
    }

    #[test]
    fn metrics_listen_on_loopback_by_default() {
        for (text, expected) in [
            ("9151", "127.0.0.1:9151"),
            ("0.0.0.0", "0.0.0.0:9150"),
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("::1", "[::1]:9150"),
            ("[::1]:0", "[::1]:0"),
        ] {
            assert_eq!(metrics(text).unwrap().to_string(), expected, "{text}");
        }
        for wrong in ["", "x", "70000", "1.2.3", "localhost:1", ":9150"] {
            assert!(metrics(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn invalid_values_are_refused() {
        for wrong in [
            "",
            ",;",
            "127.0.0.1,x:y",
            ":11211",
            "[::1",
            "[::1]x",
            "127.0.0.1:x",
            "127.0.0.1:70000",
            "btls:127.0.0.1",
            "proto[binary]:127.0.0.1",
            "tag[x:127.0.0.1",
            "1",
            "11211:11211",
            "notls:1",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
