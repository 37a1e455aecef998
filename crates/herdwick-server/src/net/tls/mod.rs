//! TLS on the TCP ports: replaceable certificates, handshakes in progress, and a byte stream that
//! the rest of the server reads as plaintext.

mod certificates;
mod handshakes;
mod stream;

pub(crate) use certificates::Certificates;
pub(crate) use handshakes::{HandshakeProgress, Handshakes};
pub(crate) use stream::{SENDING_BYTES, TlsStream};
