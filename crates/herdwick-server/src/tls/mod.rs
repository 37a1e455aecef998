//! TLS on the TCP ports: certificates that can be read again, half-done handshakes, and a byte
//! stream behind which the rest of the server sees plain text.

mod certificates;
mod handshakes;
mod stream;

use std::{io, path::PathBuf};

pub(crate) use certificates::Certificates;
pub(crate) use handshakes::{Handshakes, Progress};
pub(crate) use stream::{SENDING_BYTES, TlsStream};

/// How the TCP ports speak TLS (memcached's `-Z` and `-o ssl_*`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The server's certificate and those that lead to its authority's, in PEM.
    pub chain: PathBuf,
    /// The private key.
    pub key: PathBuf,
    /// What the key's file holds.
    pub key_format: KeyFormat,
    /// Certificates of the authorities that clients' certificates come from, in PEM.
    pub authorities: Option<PathBuf>,
    /// Whether clients have to show a certificate.
    pub clients: ClientCertificates,
    /// Refuse TLS 1.2.
    pub only_1_3: bool,
    /// Let clients resume sessions.
    pub session_cache: bool,
}

/// How a private key is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyFormat {
    /// As text, between BEGIN and END.
    #[default]
    Pem = 1,
    /// As bytes: PKCS #8, PKCS #1 or SEC 1.
    Der = 2,
}

/// Whether clients have to show a certificate (memcached's `ssl_verify_mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    /// They are not asked for one.
    #[default]
    Ignored = 0,
    /// What they show must be right.
    Requested = 1,
    /// They must show one, and it must be right.
    Required = 2,
}

/// Certificates or a key that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {what} in {path}: {source}; give another file (-o {option})")]
    Unreadable {
        /// What was sought in it.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What its reader says.
        source: io::Error,
        /// Where the file is named.
        option: &'static str,
    },
    /// They do not belong together, or are of a kind that is not spoken.
    #[error("{chain} and {key} do not make a TLS server: {source} (-o ssl_chain_cert, ssl_key)")]
    Unusable {
        /// The file of the certificates.
        chain: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// What TLS says.
        source: rustls::Error,
    },
    /// Clients' certificates cannot be judged.
    #[error(
        "clients' certificates cannot be judged: {reason}; name their authorities' certificates \
         by -o ssl_ca_cert=FILE"
    )]
    Authorities {
        /// Why.
        reason: String,
    },
}
