//! The output of `stats conns`: one block for each connection and each listener.

use herdwick_memcache::text;
use herdwick_request::{Clock, Second};
use mio::net::TcpStream;

use super::connection::Connection;
use crate::{context::Context, net::stream::Stream};

/// Maximum number of connections listed in one step: each takes two system calls.
const LISTED_PER_STEP: usize = 64;

/// Lists some of `connections` from index `from` on. Returns the index to continue at, if there are more.
pub(super) fn step(
    connections: &[Option<Connection>],
    now: Second,
    from: usize,
    out: &mut Vec<u8>,
) -> Option<usize> {
    let next = from + LISTED_PER_STEP;
    let some = connections.iter().skip(from).take(LISTED_PER_STEP);
    for connection in some.flatten() {
        encode(connection, now.0, out);
    }
    // A step may show none, where places are vacant: the caller goes on by `next`, not by what was
    // shown.
    (next < connections.len()).then_some(next)
}

/// Appends the addresses, state and idle time of `connection` at second `now`.
fn encode(connection: &Connection, now: u32, out: &mut Vec<u8>) {
    let number = connection.stream.number();
    let of_tcp = |stream: &TcpStream| {
        (
            stream.peer_addr().map(|address| format!("tcp:{address}")),
            stream.local_addr().map(|address| format!("tcp:{address}")),
        )
    };
    let (address, listener) = match &connection.stream {
        Stream::Tcp(stream) => of_tcp(stream),
        Stream::Tls(stream) => of_tcp(stream.socket()),
        Stream::Datagram(exchange) => (
            Ok(format!("udp:{}", exchange.came_from())),
            exchange.came_to().map(|address| format!("udp:{address}")),
        ),
        Stream::Unix(stream) => {
            let local = stream.local_addr().map(|address| {
                let path = address.as_pathname().map(|path| path.display().to_string());
                format!("unix:{}", path.unwrap_or_default())
            });
            // A client's end of a unix socket has no name.
            (Ok("unix:".to_owned()), local)
        }
    };
    let unknown = |_| "?".to_owned();
    let mut stat = |name: &str, value: &str| text::stat(out, &format!("{number}:{name}"), value);
    stat("addr", &address.unwrap_or_else(unknown));
    stat("listen_addr", &listener.unwrap_or_else(unknown));
    stat("state", state(connection));
    let idle = connection.activity.idle(now);
    stat("secs_since_last_cmd", &idle.to_string());
}

/// Appends the listeners.
pub(super) fn say_listeners(context: &Context, clock: Clock, out: &mut Vec<u8>) {
    for source in &context.sources {
        let number = source.number;
        let mut stat = |name: &str, value: &str| {
            text::stat(out, &format!("{number}:{name}"), value);
        };
        // memcached has a connection in the state `conn_read` for each UDP socket, with this line.
        if source.udp {
            stat("UDP", "UDP");
        }
        stat("addr", &source.address);
        stat(
            "state",
            if source.udp {
                "conn_read"
            } else {
                "conn_listening"
            },
        );
        // No command comes to a listener: as in memcached, the time since it was opened.
        stat("secs_since_last_cmd", &context.uptime(clock).to_string());
    }
}

/// Returns memcached's name for the state of a connection.
fn state(connection: &Connection) -> &'static str {
    if !connection.output.is_empty() {
        "conn_mwrite"
    } else if connection.gather.is_some() {
        "conn_parse_cmd"
    } else if connection.closing {
        "conn_closing"
    } else if connection.is_half_sent() {
        "conn_nread"
    } else {
        "conn_read"
    }
}
