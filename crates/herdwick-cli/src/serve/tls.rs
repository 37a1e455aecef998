//! memcached's `-o ssl_*`: TLS options of the server.

use std::path::{Path, PathBuf};

use herdwick_server::{ClientCertificates, KeyFormat, Tls};

use super::absolute::absolute;

/// A TLS option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TlsOption {
    /// `ssl_chain_cert=FILE`.
    Chain(PathBuf),
    /// `ssl_key=FILE`.
    Key(PathBuf),
    /// `ssl_keyformat=PEM|DER`.
    KeyFormat(KeyFormat),
    /// `ssl_ca_cert=FILE`.
    Authorities(PathBuf),
    /// `ssl_verify_mode=0..3`.
    Clients(ClientCertificates),
    /// `ssl_min_version=tlsv1.2|tlsv1.3`.
    Only13(bool),
    /// `ssl_session_cache`.
    SessionCache,
}

impl TlsOption {
    /// Returns the file that the option names.
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Self::Chain(path) | Self::Key(path) | Self::Authorities(path) => Some(path),
            Self::KeyFormat(_) | Self::Clients(_) | Self::Only13(_) | Self::SessionCache => None,
        }
    }
}

/// Parses the option `name`, which begins with `ssl_`; `None` if it tunes nothing here.
pub(super) fn parse(name: &str, value: Option<&str>) -> Result<Option<TlsOption>, String> {
    let file = || match value {
        Some(path) if !path.is_empty() => Ok(PathBuf::from(path)),
        _ => Err(format!("give {name}=FILE")),
    };
    let option = match name {
        "ssl_chain_cert" => TlsOption::Chain(file()?),
        "ssl_key" => TlsOption::Key(file()?),
        "ssl_ca_cert" => TlsOption::Authorities(file()?),
        "ssl_keyformat" => TlsOption::KeyFormat(match value {
            Some("PEM") => KeyFormat::Pem,
            Some("DER") => KeyFormat::Der,
            _ => return Err("give PEM or DER; a key in an OpenSSL engine cannot be used".into()),
        }),
        "ssl_verify_mode" => TlsOption::Clients(match value {
            Some("0") => ClientCertificates::Ignored,
            Some("1") => ClientCertificates::Requested,
            // 3 adds "once", which is about renegotiation; it is not supported.
            Some("2" | "3") => ClientCertificates::Required,
            _ => return Err("give 0 (none), 1 (request) or 2 (require)".into()),
        }),
        "ssl_min_version" => TlsOption::Only13(match value {
            Some("tlsv1.2" | "2") => false,
            Some("tlsv1.3" | "3") => true,
            _ => return Err("give tlsv1.2 or tlsv1.3; older ones are not spoken".into()),
        }),
        "ssl_session_cache" => TlsOption::SessionCache,
        "ssl_wbuf_size" | "no_ssl_session_cache" | "no_ssl_kernel_tls" => return Ok(None),
        "ssl_ciphers" => return Err("all ciphers that are spoken are good; leave it out".into()),
        "ssl_kernel_tls" => return Err("TLS is not done by the kernel here; leave it out".into()),
        _ => return Err("no such option; `herdwick serve --help` lists them".into()),
    };
    Ok(Some(option))
}

/// Combines the options into the TLS settings; a later option overrides an earlier one.
pub(super) fn settle<'a>(
    options: impl Iterator<Item = &'a TlsOption>,
) -> Result<Tls, &'static str> {
    let (mut chain, mut key, mut authorities) = (None, None, None);
    let (mut clients, mut key_format) = (ClientCertificates::default(), KeyFormat::default());
    let (mut only_1_3, mut session_cache) = (false, false);
    for option in options {
        match option {
            TlsOption::Chain(path) => chain = Some(absolute(path)),
            TlsOption::Key(path) => key = Some(absolute(path)),
            TlsOption::Authorities(path) => authorities = Some(absolute(path)),
            TlsOption::KeyFormat(format) => key_format = *format,
            TlsOption::Clients(which) => clients = *which,
            TlsOption::Only13(only) => only_1_3 = *only,
            TlsOption::SessionCache => session_cache = true,
        }
    }
    let chain = chain.ok_or(
        "-Z: name the server's certificate by -o ssl_chain_cert=FILE, and its key by -o \
         ssl_key=FILE if that is another file",
    )?;
    Ok(Tls {
        key: key.unwrap_or_else(|| chain.clone()),
        chain,
        key_format,
        authorities,
        clients,
        only_1_3,
        session_cache,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_tls_options_are_refused() {
        assert_eq!(parse("ssl_wbuf_size", Some("16")), Ok(None));
        for (name, value) in [
            ("ssl_chain_cert", None),
            ("ssl_key", Some("")),
            ("ssl_keyformat", Some("ENGINE")),
            ("ssl_verify_mode", Some("4")),
            ("ssl_min_version", Some("tlsv1.1")),
            ("ssl_min_version", Some("1")),
            ("ssl_ciphers", Some("ALL")),
            ("ssl_kernel_tls", None),
            ("ssl_nothing", None),
        ] {
            assert!(parse(name, value).is_err(), "{name}");
        }
    }

    #[test]
    fn private_key_may_be_in_the_certificate_file() {
        let options = [
            TlsOption::Chain("/both".into()),
            TlsOption::Clients(ClientCertificates::Required),
        ];
        let tls = settle(options.iter()).unwrap();
        assert_eq!(tls.key, tls.chain);
        assert_eq!(tls.clients, ClientCertificates::Required);
        assert!(
            settle(options[1..].iter())
                .unwrap_err()
                .contains("-o ssl_chain_cert")
        );
    }
}
