//! What TLS is set to (memcached's `-Z` and `-o ssl_*`), and why that cannot be used.

use std::{io, path::PathBuf};

/// The TLS settings of the TCP ports (memcached's `-Z` and `-o ssl_*`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The server's certificate and its intermediate certificates, in PEM.
    pub chain: PathBuf,
    /// The private key.
    pub key: PathBuf,
    /// The format of the key's file.
    pub key_format: KeyFormat,
    /// The certificates of the authorities that sign clients' certificates, in PEM.
    pub authorities: Option<PathBuf>,
    /// Whether clients must present a certificate.
    pub clients: ClientCertificates,
    /// Refuse TLS 1.2.
    pub only_1_3: bool,
    /// Allow session resumption.
    pub session_cache: bool,
}

/// The format of a private key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyFormat {
    /// PEM.
    #[default]
    Pem = 1,
    /// DER: PKCS #8, PKCS #1 or SEC 1.
    Der = 2,
}

/// Whether clients must present a certificate (memcached's `ssl_verify_mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    /// Not requested.
    #[default]
    Ignored = 0,
    /// Requested; one that is presented must be valid.
    Requested = 1,
    /// Required, and must be valid.
    Required = 2,
}

/// The certificates or the key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {what} in {path}: {source}; give another file (-o {option})")]
    Unreadable {
        /// The expected content.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of reading or parsing it.
        source: io::Error,
        /// The option that names the file.
        option: &'static str,
    },
    /// The key is not that of the certificate.
    #[error(
        "the key in {key} is not that of the first certificate in {chain}; name the file of the right \
         one by -o ssl_key=FILE, or another certificate by -o ssl_chain_cert=FILE"
    )]
    Mismatch {
        /// The file of the certificates.
        chain: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
    /// The certificate or the key is of an unsupported kind.
    #[error(
        "{chain} and {key} do not make a TLS server: {source}; name others by -o \
         ssl_chain_cert=FILE,ssl_key=FILE"
    )]
    Unusable {
        /// The file of the certificates.
        chain: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// The TLS library's error.
        source: rustls::Error,
    },
    /// Clients' certificates cannot be verified.
    #[error(
        "clients' certificates cannot be judged: {reason}; name their authorities' certificates \
         by -o ssl_ca_cert=FILE"
    )]
    Authorities {
        /// The reason.
        reason: String,
    },
}
