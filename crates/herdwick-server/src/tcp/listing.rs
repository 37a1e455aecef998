//! `stats conns`.

use std::os::fd::AsRawFd;

use herdwick_memcache::text;

use mio::net::TcpStream;

use super::{connection::Connection, stream::Stream};

/// Says who `connection` is and what it does at second `now`.
pub(super) fn say(connection: &Connection, now: u32, out: &mut Vec<u8>) {
    let of_tcp = |stream: &TcpStream| {
        (
            stream.as_raw_fd(),
            stream.peer_addr().map(|address| format!("tcp:{address}")),
            stream.local_addr().map(|address| format!("tcp:{address}")),
        )
    };
    let (number, address, listener) = match &connection.stream {
        Stream::Tcp(stream) => of_tcp(stream),
        Stream::Tls(stream) => of_tcp(stream.socket()),
        Stream::Datagram(exchange) => {
            let (number, from) = exchange.origin();
            let local = exchange.came_to().map(|address| format!("udp:{address}"));
            (number, Ok(format!("udp:{from}")), local)
        }
        Stream::Unix(stream) => {
            let local = stream.local_addr().map(|address| {
                let path = address.as_pathname().map(|path| path.display().to_string());
                format!("unix:{}", path.unwrap_or_default())
            });
            (stream.as_raw_fd(), Ok("unix:".to_owned()), local)
        }
    };
    let unknown = |_| "?".to_owned();
    let mut stat = |name: &str, value: &str| text::stat(out, &format!("{number}:{name}"), value);
    stat("addr", &address.unwrap_or_else(unknown));
    stat("listen_addr", &listener.unwrap_or_else(unknown));
    stat("state", state(connection));
    let idle = connection.pulse.idle(now);
    stat("secs_since_last_cmd", &idle.to_string());
}

/// memcached's word for what it does.
fn state(connection: &Connection) -> &'static str {
    if !connection.output.is_empty() {
        "conn_mwrite"
    } else if connection.gather.is_some() {
        "conn_io_pending"
    } else if connection.closing {
        "conn_closing"
    } else if connection.is_half_sent() {
        "conn_nread"
    } else {
        "conn_read"
    }
}
