//! TLS to a server's memcached port (`herdwick serve -Z`, memcached's `-Z`).

use std::{
    fmt, io,
    io::{ErrorKind, IoSlice, Read, Write},
    net::TcpStream,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use herdwick_mem::ForkMark;
use rustix::{
    event::{PollFd, PollFlags, poll},
    net::{SendAncillaryBuffer, SendFlags, sendmsg},
};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{
        CertificateDer, PrivateKeyDer, ServerName, UnixTime,
        pem::{self, PemObject},
    },
};

use crate::{Address, DialError, due::Due};

/// What a TLS connection is made with.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    /// Certificates of authorities, in PEM; `None`: the system's.
    pub authorities: Option<PathBuf>,
    /// The client's certificate and, behind it, those of its authorities, in PEM, for a server that
    /// asks for one.
    pub certificate: Option<PathBuf>,
    /// The private key of that certificate, in PEM; `None`: it is in the same file.
    pub key: Option<PathBuf>,
    /// The name that the server's certificate has to be for; `None`: that of the address.
    pub name: Option<String>,
    /// Take any certificate: a man in the middle can read and change everything.
    pub insecure: bool,
}

/// How a client speaks TLS, with all files read.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ClientConfig>,
    name: Option<ServerName<'static>>,
}

/// Files or names that cannot be used for TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file holds no certificate or no key, or cannot be read.
    #[error("cannot read {path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The system has no certificates of authorities.
    #[error("this system has no certificates of authorities; name a file with the server's")]
    NoAuthorities,
    /// The server's name is neither a host name nor an address.
    #[error("{0:?} is not the name of a host")]
    Name(String),
    /// The key is not that of the certificate.
    #[error("the key in {key} is not that of the first certificate in {certificate}")]
    Mismatch {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
    /// A certificate or key is of an unsupported kind.
    #[error(transparent)]
    Unusable(#[from] rustls::Error),
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn new(files: &TlsFiles) -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let versions = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let verified = if files.insecure {
            let any = Arc::new(AnyCertificate(provider));
            versions.dangerous().with_custom_certificate_verifier(any)
        } else {
            versions.with_root_certificates(authorities(files.authorities.as_deref())?)
        };
        let config = match &files.certificate {
            Some(path) => {
                let file = files.key.as_ref().unwrap_or(path);
                let key = PrivateKeyDer::from_pem_file(file).map_err(unreadable(file))?;
                let joined = verified.with_client_auth_cert(certificates(path)?, key);
                joined.map_err(|error| match error {
                    rustls::Error::InconsistentKeys(_) => TlsError::Mismatch {
                        certificate: path.clone(),
                        key: file.clone(),
                    },
                    error => error.into(),
                })?
            }
            None => verified.with_no_client_auth(),
        };
        let name = files.name.as_deref().map(server_name).transpose()?;
        Ok(Self {
            config: Arc::new(config),
            name,
        })
    }

    /// The same, for a server at `address` whatever it is dialled by later.
    pub(crate) fn for_server(&self, address: &Address) -> Result<Self, DialError> {
        let Address::Tcp(host) = address else {
            return Err(DialError::Tls("a unix socket has none".into()));
        };
        // The port is behind the last colon: the colons of an IPv6 address are in brackets.
        let host = host.rsplit_once(':').map_or(&host[..], |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = match &self.name {
            Some(name) => name.clone(),
            None => server_name(host).map_err(|error| DialError::Tls(error.to_string()))?,
        };
        Ok(Self {
            config: Arc::clone(&self.config),
            name: Some(name),
        })
    }

    /// A session on a connected socket, its handshake done.
    pub(crate) fn connect(&self, socket: TcpStream, due: Due) -> Result<TlsStream, DialError> {
        let name = self
            .name
            .clone()
            .ok_or_else(|| DialError::Tls("no name".into()))?;
        let session = ClientConnection::new(Arc::clone(&self.config), name);
        let mut stream = TlsStream {
            session: session.map_err(|error| DialError::Tls(error.to_string()))?,
            socket,
            owed: 0,
            unread: 0,
            process: ForkMark::here(),
        };
        stream.shake_hands(due)?;
        Ok(stream)
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

fn server_name(text: &str) -> Result<ServerName<'static>, TlsError> {
    let name = ServerName::try_from(text.to_owned());
    name.map_err(|_| TlsError::Name(text.to_owned()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let read: Vec<_> = read.map_err(unreadable(path))?;
    if read.is_empty() {
        return Err(unreadable(path)(pem::Error::NoItemsFound));
    }
    Ok(read)
}

fn unreadable(path: &Path) -> impl FnOnce(pem::Error) -> TlsError {
    let path = path.to_owned();
    move |error| TlsError::Unreadable {
        path,
        source: match error {
            pem::Error::Io(source) => source,
            pem::Error::NoItemsFound => io::Error::other("it holds none, in PEM"),
            other => io::Error::other(other.to_string()),
        },
    }
}

/// The authorities in `path`, or the system's.
fn authorities(path: Option<&Path>) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    let Some(path) = path else {
        // What cannot be read of the system's is not there.
        store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return match store.is_empty() {
            true => Err(TlsError::NoAuthorities),
            false => Ok(store),
        };
    };
    for certificate in certificates(path)? {
        store.add(certificate)?;
    }
    Ok(store)
}

/// A TLS session that never blocks.
#[derive(Debug)]
pub(crate) struct TlsStream {
    socket: TcpStream,
    session: ClientConnection,
    /// Bytes that the caller has given and that are encrypted, but have not all left. They count as
    /// written once they have: the next write begins with them.
    owed: usize,
    /// Decrypted bytes that no read has taken.
    unread: usize,
    /// The process that the connection belongs to.
    process: ForkMark,
}

impl TlsStream {
    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Whether a read would find something that the socket does not show.
    pub(crate) fn has_unread(&self) -> bool {
        self.unread > 0
    }

    fn shake_hands(&mut self, due: Due) -> Result<(), DialError> {
        let failed = |error: io::Error| match error.kind() {
            ErrorKind::InvalidData => DialError::Tls(error.to_string()),
            ErrorKind::UnexpectedEof => DialError::Tls("the server ended the handshake".into()),
            _ => error.into(),
        };
        loop {
            // What is to be sent goes first: without it the server has nothing to answer.
            let wanted = match self.flush() {
                Ok(()) if !self.session.is_handshaking() => return Ok(()),
                Ok(()) => match self.receive() {
                    Ok(0) => return Err(failed(ErrorKind::UnexpectedEof.into())),
                    Ok(_) => continue,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => PollFlags::IN,
                    Err(error) => return Err(failed(error)),
                },
                Err(error) if error.kind() == ErrorKind::WouldBlock => PollFlags::OUT,
                Err(error) => return Err(failed(error)),
            };
            let left = due.timespec()?;
            let mut fds = [PollFd::from_borrowed_fd(self.socket.as_fd(), wanted)];
            // An interrupted wait looks again.
            let _ = poll(&mut fds, Some(&left));
        }
    }

    /// Takes from the socket, and decrypts.
    fn receive(&mut self) -> io::Result<usize> {
        let count = self.session.read_tls(&mut self.socket)?;
        match self.session.process_new_packets() {
            Ok(state) => self.unread = state.plaintext_bytes_to_read(),
            Err(error) => {
                // Tries to send the TLS alert; errors are ignored, since the connection ends.
                let _ = self.session.write_tls(&mut Unsignaled(&self.socket));
                return Err(io::Error::new(ErrorKind::InvalidData, error));
            }
        }
        Ok(count)
    }
}

impl Read for TlsStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.session.reader().read(into) {
                Ok(count) => {
                    self.unread = self.unread.saturating_sub(count);
                    return Ok(count);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // Without a farewell, as of a server that was killed.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(0),
                Err(error) => return Err(error),
            }
            // At the end of the stream, the reader reports that in the next turn.
            self.receive()?;
        }
    }
}

impl Write for TlsStream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let mut count = 0;
        loop {
            match self.flush() {
                Ok(()) => count += std::mem::take(&mut self.owed),
                // What has left is reported. If the socket has failed, so does the next call.
                Err(error) if error.kind() == ErrorKind::WouldBlock && count > 0 => {
                    return Ok(count);
                }
                Err(error) => return Err(error),
            }
            if count >= from.len() {
                return Ok(count);
            }
            self.owed = self.session.writer().write(&from[count..])?;
        }
    }

    /// Sends what is encrypted and has not left.
    fn flush(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            if self.session.write_tls(&mut Unsignaled(&self.socket))? == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }
}

impl AsFd for TlsStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for TlsStream {
    /// Sends close_notify if the socket accepts it without blocking. In a child process after a fork the
    /// connection is the parent's: a record sent by the child would end it, and use a nonce that the parent's
    /// next record uses too.
    fn drop(&mut self) {
        if !self.process.is_here() {
            return;
        }
        self.session.send_close_notify();
        let _ = self.flush();
    }
}

/// A socket that is written to without SIGPIPE, which ends a C program that does not ignore it: a
/// [`TcpStream`] raises none by `write`, but by `write_vectored`, which rustls calls.
struct Unsignaled<'a>(&'a TcpStream);

impl Write for Unsignaled<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut nothing = SendAncillaryBuffer::default();
        Ok(sendmsg(self.0, bytes, &mut nothing, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Takes whatever certificate there is, and checks only that its owner speaks.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let schemes = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, schemes)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let schemes = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, schemes)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
