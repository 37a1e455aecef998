//! How a client's command speaks TLS to a server that was started with `serve -Z`.

use std::path::PathBuf;

use clap::Args;
use herdwick::{Tls, TlsError, TlsFiles};

/// TLS to the server.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct TlsArgs {
    /// Speak TLS, as a server with -Z does.
    #[arg(long)]
    tls: bool,
    /// Certificates of authorities, in PEM [default: the system's].
    #[arg(long, value_name = "FILE", requires = "tls", alias = "cacert")]
    tls_ca: Option<PathBuf>,
    /// This client's certificate, in PEM, for a server that asks for one.
    #[arg(long, value_name = "FILE", requires = "tls")]
    tls_cert: Option<PathBuf>,
    /// Its private key, if not in the same file.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// The name that the server's certificate is for [default: the host of --server].
    #[arg(long, value_name = "NAME", requires = "tls", alias = "sni")]
    tls_name: Option<String>,
    /// Take any certificate: encrypted, but whoever is in between can read and change everything.
    #[arg(long, requires = "tls", alias = "insecure")]
    tls_insecure: bool,
}

impl TlsArgs {
    /// What to speak, with all files read; `None`: plain text.
    pub(crate) fn read(&self) -> Result<Option<Tls>, TlsError> {
        let files = TlsFiles {
            authorities: self.tls_ca.clone(),
            certificate: self.tls_cert.clone(),
            key: self.tls_key.clone(),
            name: self.tls_name.clone(),
            insecure: self.tls_insecure,
        };
        self.tls.then(|| Tls::new(&files)).transpose()
    }
}
