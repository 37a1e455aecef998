//! A certificate authority for the tests, and clients over TLS that trust it.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use herdwick_server::{ClientCertificates, KeyFormat, Tls};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use crate::common::TIMEOUT;

/// A certificate authority and the files it has signed.
pub(crate) struct Authority {
    pub(crate) issuer: CertifiedIssuer<'static, KeyPair>,
    pub(crate) folder: PathBuf,
}

impl Authority {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("herdwick-tls-{}-{count}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        fs::write(folder.join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, folder }
    }

    /// Signs a certificate for `localhost`, stored in `NAME.pem` with its key in `NAME.key`.
    pub(crate) fn sign(&self, name: &str) -> CertificateDer<'static> {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".into()]).unwrap();
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(self.path(&format!("{name}.pem")), signed.pem()).unwrap();
        fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
        fs::write(self.path(&format!("{name}.der")), key.serialize_der()).unwrap();
        signed.der().clone()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns TLS settings with a fresh server certificate.
    pub(crate) fn tls(&self) -> Tls {
        self.sign("server");
        Tls {
            chain: self.path("server.pem"),
            key: self.path("server.key"),
            key_format: KeyFormat::Pem,
            authorities: Some(self.path("ca.pem")),
            clients: ClientCertificates::Ignored,
            only_1_3: false,
            session_cache: false,
        }
    }

    /// Returns a client that trusts this authority and presents a certificate signed by `shown`.
    pub(crate) fn client(&self, shown: Option<&Self>) -> Client {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match shown {
            None => builder.with_no_client_auth(),
            Some(other) => {
                let certificate = other.sign("client");
                let key = PrivateKeyDer::from_pem_file(other.path("client.key")).unwrap();
                builder
                    .with_client_auth_cert(vec![certificate], key)
                    .unwrap()
            }
        };
        Client(Arc::new(config))
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

pub(crate) struct Client(pub(crate) Arc<ClientConfig>);

pub(crate) type Session = StreamOwned<ClientConnection, TcpStream>;

impl Client {
    pub(crate) fn connect(&self, address: SocketAddr) -> Session {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        let name = "localhost".try_into().unwrap();
        let session = ClientConnection::new(Arc::clone(&self.0), name).unwrap();
        StreamOwned::new(session, stream)
    }

    /// Returns what the server sends in answer to `input` and close_notify; `None`: the session
    /// fails.
    pub(crate) fn say(&self, address: SocketAddr, input: &[u8]) -> Option<Vec<u8>> {
        let mut session = self.connect(address);
        session.write_all(input).ok()?;
        session.conn.send_close_notify();
        let mut said = Vec::new();
        session.read_to_end(&mut said).ok()?;
        Some(said)
    }
}
