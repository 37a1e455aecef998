//! The TLS configuration: certificate chain, key, client verification and session cache, read from
//! files and replaceable while the server runs.

use std::{
    fs, io,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
};

use rustls::{
    ConfigBuilder, RootCertStore, ServerConfig, ServerConnection, WantsVerifier,
    crypto::CryptoProvider,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
    server::{
        NoServerSessionStorage, ServerSessionMemoryCache, WantsServerCert, WebPkiClientVerifier,
    },
    version,
};

use crate::settings::tls::{ClientCertificates, KeyFormat, Tls, TlsError};

/// Cached sessions for resumption; the oldest are dropped. About half a MiB.
const SESSIONS: usize = 1024;
/// TLS 1.3 tickets sent to each client.
// The default of rustls.
const TICKETS: usize = 2;

/// The TLS configuration for new connections, and the handshake counters.
pub(crate) struct Certificates {
    files: Tls,
    /// Replaced as a whole. Locked only to copy the pointer, once for each connection.
    config: Mutex<Arc<ServerConfig>>,
    /// The store's second when the files were last read; 0 before the server has a clock.
    pub(crate) read_at: AtomicU32,
    pub(crate) counters: HandshakeCounters,
}

/// Handshakes by their outcome.
#[derive(Debug, Default)]
pub(crate) struct HandshakeCounters {
    /// Failed: errors, refused clients, disconnects.
    pub(crate) failed: AtomicU64,
    /// Timed out.
    pub(crate) timeouts: AtomicU64,
    /// Aborted as the largest, when all handshakes together held too many bytes.
    pub(crate) over_memory: AtomicU64,
    /// Completed with a new session rather than a resumed one.
    pub(crate) new_sessions: AtomicU64,
}

impl HandshakeCounters {
    /// Zeroes them.
    pub(crate) fn reset(&self) {
        for counter in [
            &self.failed,
            &self.timeouts,
            &self.over_memory,
            &self.new_sessions,
        ] {
            counter.store(0, Relaxed);
        }
    }
}

impl Certificates {
    /// Reads `files`.
    pub(crate) fn open(files: &Tls) -> Result<Self, TlsError> {
        Ok(Self {
            files: files.clone(),
            config: Mutex::new(read(files)?),
            read_at: AtomicU32::new(0),
            counters: HandshakeCounters::default(),
        })
    }

    /// Reads the files again, for new connections. If they cannot be used, the previous
    /// configuration stays.
    pub(crate) fn reload(&self, second: u32) -> Result<(), TlsError> {
        // Before the lock: a file that cannot be used changes nothing.
        let config = read(&self.files)?;
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = config;
        self.read_at.store(second, Relaxed);
        Ok(())
    }

    /// Creates a session that has not begun its handshake.
    pub(crate) fn session(&self) -> Result<ServerConnection, rustls::Error> {
        let config = Arc::clone(&self.config.lock().unwrap_or_else(PoisonError::into_inner));
        ServerConnection::new(config)
    }

    pub(crate) fn files(&self) -> &Tls {
        &self.files
    }
}

fn read(files: &Tls) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = certificates(&files.chain, "ssl_chain_cert")?;
    let key = private_key(&files.key, files.key_format)?;
    let unusable = |source| {
        let (chain, key) = (files.chain.clone(), files.key.clone());
        match source {
            rustls::Error::InconsistentKeys(_) => TlsError::Mismatch { chain, key },
            source => TlsError::Unusable { chain, key, source },
        }
    };
    let versions = if files.only_1_3 {
        &[&version::TLS13][..]
    } else {
        rustls::ALL_VERSIONS
    };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .map_err(unusable)?;
    let mut config = judging(builder, files, provider)?
        .with_single_cert(chain, key)
        .map_err(unusable)?;
    if files.session_cache {
        config.session_storage = ServerSessionMemoryCache::new(SESSIONS);
        config.send_tls13_tickets = TICKETS;
    } else {
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(Arc::new(config))
}

/// Sets how client certificates are verified.
fn judging(
    builder: ConfigBuilder<ServerConfig, WantsVerifier>,
    files: &Tls,
    provider: Arc<CryptoProvider>,
) -> Result<ConfigBuilder<ServerConfig, WantsServerCert>, TlsError> {
    let refused = |reason: String| TlsError::Authorities { reason };
    let mut roots = RootCertStore::empty();
    // Read even if no client is asked for a certificate: memcached refuses a file that it cannot read.
    if let Some(path) = files.authorities.as_deref() {
        for certificate in certificates(path, "ssl_ca_cert")? {
            roots
                .add(certificate)
                .map_err(|error| refused(format!("{}: {error}", path.display())))?;
        }
    }
    if files.clients == ClientCertificates::Ignored {
        return Ok(builder.with_no_client_auth());
    }
    if files.authorities.is_none() {
        return Err(refused("there are no authorities".into()));
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let verifier = match files.clients {
        ClientCertificates::Required => verifier,
        _ => verifier.allow_unauthenticated(),
    };
    let verifier = verifier.build();
    let verifier = verifier.map_err(|error| refused(error.to_string()))?;
    Ok(builder.with_client_cert_verifier(verifier))
}

fn certificates(
    path: &Path,
    option: &'static str,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let found = read.and_then(|found: Vec<_>| {
        if found.is_empty() {
            return Err(pem::Error::NoItemsFound);
        }
        Ok(found)
    });
    found.map_err(unreadable("certificates", path, option))
}

fn private_key(path: &Path, format: KeyFormat) -> Result<PrivateKeyDer<'static>, TlsError> {
    let unreadable = unreadable("a private key without a passphrase", path, "ssl_key");
    match format {
        KeyFormat::Pem => PrivateKeyDer::from_pem_file(path).map_err(unreadable),
        KeyFormat::Der => {
            let bytes = fs::read(path).map_err(pem::Error::Io);
            let key = bytes.and_then(|bytes| {
                let not_one = |_| pem::Error::NoItemsFound;
                PrivateKeyDer::try_from(bytes).map_err(not_one)
            });
            key.map_err(unreadable)
        }
    }
}

fn unreadable(
    what: &'static str,
    path: &Path,
    option: &'static str,
) -> impl FnOnce(pem::Error) -> TlsError {
    move |error| TlsError::Unreadable {
        what,
        path: path.to_owned(),
        source: match error {
            pem::Error::Io(source) => source,
            pem::Error::NoItemsFound => io::Error::other("there is none"),
            other => io::Error::other(other),
        },
        option,
    }
}
