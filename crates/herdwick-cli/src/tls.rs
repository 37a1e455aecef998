//! TLS options of the client commands, for a server that was started with `serve -Z`.

use std::{ffi::OsString, path::PathBuf};

use clap::Args;
use herdwick::{Tls, TlsError, TlsFiles};

/// TLS options.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct TlsArgs {
    /// Use TLS, as a server with -Z requires.
    #[arg(long)]
    tls: bool,
    /// Certificates of trusted authorities, in PEM [default: those of the system].
    #[arg(long, value_name = "FILE", requires = "tls", alias = "cacert")]
    tls_ca: Option<PathBuf>,
    /// This client's certificate, in PEM, for a server that requests one.
    #[arg(long, value_name = "FILE", requires = "tls")]
    tls_cert: Option<PathBuf>,
    /// Its private key, if not in the same file.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Name in the server's certificate [default: the host of --server].
    #[arg(long, value_name = "NAME", requires = "tls", alias = "sni")]
    tls_name: Option<String>,
    /// Accept any certificate: the connection is encrypted, but an attacker on the path can read
    /// and change everything.
    #[arg(long, requires = "tls", alias = "insecure")]
    tls_insecure: bool,
}

impl TlsArgs {
    /// Returns the same options as arguments of another process.
    pub(crate) fn flags(&self) -> impl Iterator<Item = OsString> {
        let files = [
            ("--tls-ca", &self.tls_ca),
            ("--tls-cert", &self.tls_cert),
            ("--tls-key", &self.tls_key),
        ];
        let files = files.into_iter().filter_map(|(flag, path)| {
            let path = path.as_ref()?.as_os_str().to_owned();
            Some([OsString::from(flag), path])
        });
        let name = self.tls_name.as_ref();
        let name = name.map(|name| [OsString::from("--tls-name"), name.into()]);
        let words = [("--tls", self.tls), ("--tls-insecure", self.tls_insecure)];
        let words = words.into_iter().filter(|(_, given)| *given);
        files
            .chain(name)
            .flatten()
            .chain(words.map(|(flag, _)| flag.into()))
    }

    /// Returns whether TLS is to be used.
    pub(crate) fn is_on(&self) -> bool {
        self.tls
    }

    /// Reads all files and returns the TLS settings; `None`: plain text.
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
