//! Authentication by SASL in the binary protocol (memcached's `-S`). Until it has succeeded, a
//! connection may send no packet but those of SASL and `version`: any other is answered by an error,
//! quiet ones too, and the connection closed. A claim is accepted without: its token proves that its
//! client was admitted before.

use herdwick_memcache::{
    Admits, Command, Decoded, Decoder, Refused,
    binary::{self, Body, Echo, Packet, Status, Verb, opcode},
    meta::KeyRoom,
};

use super::{connection::Connection, run::Progress, service::Service};
use crate::{
    context::VERSION,
    net::auth::{Auth, MECHANISMS, SaslExchange, SaslStep},
    telemetry::snapshot::WorkerCounters,
};

/// Maximum length of a mechanism's name in bytes (memcached's `MAX_SASL_MECH_LEN`).
const MECHANISM_BYTES_MAX: usize = 32;
/// Packets handled in one turn of a connection that is not authenticated.
const PACKETS_MAX: usize = 16;

/// The effect of the packet at the front of the input.
#[derive(Debug, PartialEq, Eq)]
enum SaslPacket {
    /// It is answered; `used` bytes of input are its own, and `discard` bytes after them are to be
    /// dropped.
    Answered { used: usize, discard: u64 },
    /// As `Answered`, and the connection is authenticated.
    Admitted { used: usize },
    /// Incomplete: try again with at least this many bytes of input.
    NeedMore(usize),
    /// It is answered by an error, or not the binary protocol's: close the connection.
    Close,
}

impl Service {
    /// Handles packets of SASL until `connection` is admitted, or has had its turn.
    pub(super) fn admit_by_sasl(
        &mut self,
        connection: &mut Connection,
        counters: &mut WorkerCounters,
    ) -> bool {
        // A client that is not admitted yet gets no longer a turn than one that is.
        for _ in 0..PACKETS_MAX {
            let Some(auth) = &self.context.auth else {
                return false;
            };
            if !connection.discard() || !connection.has_work() {
                return false;
            }
            let packet = authenticate(
                auth,
                &mut connection.exchange,
                &mut connection.decoder,
                connection.input.data(),
                connection.output.buffer(&mut self.pool),
                counters,
            );
            match packet {
                SaslPacket::NeedMore(need) => {
                    connection.await_bytes(need);
                    return false;
                }
                SaslPacket::Close => {
                    connection.faulty = true;
                    connection.hang_up();
                    return false;
                }
                SaslPacket::Answered { used, discard } => connection.advance(Progress {
                    discard,
                    ..Progress::past(used)
                }),
                SaslPacket::Admitted { used } => {
                    connection.admitted = true;
                    connection.advance(Progress::past(used));
                    return true;
                }
            }
        }
        false
    }
}

/// Handles the packet at the front of `input`, and appends the response. `exchange` is what the
/// connection's exchange waits for.
fn authenticate(
    auth: &Auth,
    exchange: &mut Option<SaslExchange>,
    decoder: &mut Decoder,
    input: &[u8],
    out: &mut Vec<u8>,
    counters: &mut WorkerCounters,
) -> SaslPacket {
    // No packet has a key in base64.
    let keys = KeyRoom::default();
    let decoded = decoder.decode(input, &keys, Admits::All);
    // A packet that is refused for want of authentication is not awaited.
    if let Some(echo) = binary::peek(input)
        && !may_precede(echo)
        && !contradicts_itself(&decoded)
    {
        counters.closed_binary += 1;
        echo.error(out, Status::Auth);
        return SaslPacket::Close;
    }
    match decoded {
        Decoded::Command {
            command: Command::Packet(packet),
            used,
            discard,
        } => handle(auth, exchange, &packet, (used, discard), out, counters),
        Decoded::NeedMore { at } => SaslPacket::NeedMore(at),
        Decoded::Refused {
            refused: Refused::Packet { echo, status, .. },
            ..
        } => {
            counters.closed_binary += 1;
            echo.error(out, status);
            SaslPacket::Close
        }
        // No other packet may precede authentication, and no packet is text.
        _ => {
            counters.closed_not_memcached += 1;
            SaslPacket::Close
        }
    }
}

/// Returns whether a packet may precede authentication.
fn may_precede(echo: Echo) -> bool {
    use opcode::{SASL_AUTH, SASL_LIST, SASL_STEP, VERSION};
    matches!(echo.plain(), SASL_LIST | SASL_AUTH | SASL_STEP | VERSION)
}

/// Returns whether a packet's body is shorter than its key and extras, which memcached looks at
/// before the authentication.
fn contradicts_itself(decoded: &Decoded<'_>) -> bool {
    let Decoded::Refused {
        refused: Refused::Packet { status, closes, .. },
        ..
    } = decoded
    else {
        return false;
    };
    *closes && *status == Status::UnknownCommand
}

/// Answers a packet that may precede authentication.
fn handle(
    auth: &Auth,
    exchange: &mut Option<SaslExchange>,
    packet: &Packet<'_>,
    (used, discard): (usize, u64),
    out: &mut Vec<u8>,
    counters: &mut WorkerCounters,
) -> SaslPacket {
    let echo = packet.echo;
    match packet.verb {
        Verb::Version => respond(echo, Status::Ok, VERSION, out),
        Verb::SaslList => respond(echo, Status::Ok, MECHANISMS, out),
        // As memcached, EINVAL; the message is dropped by `discard`.
        Verb::Sasl { .. } if packet.key.len() > MECHANISM_BYTES_MAX => {
            echo.error(out, Status::Invalid);
        }
        Verb::Sasl { message } => {
            if take_step(auth, exchange, packet, message, out, counters) {
                return SaslPacket::Admitted { used };
            }
        }
        // No other packet may precede authentication.
        _ => return SaslPacket::Close,
    }
    SaslPacket::Answered { used, discard }
}

/// Starts or continues the exchange, and appends the response; returns whether the client is
/// authenticated now.
fn take_step(
    auth: &Auth,
    exchange: &mut Option<SaslExchange>,
    packet: &Packet<'_>,
    message: Option<&[u8]>,
    out: &mut Vec<u8>,
    counters: &mut WorkerCounters,
) -> bool {
    let echo = packet.echo;
    // Whatever the packet is, the exchange before it has ended: only a step that goes on puts it
    // back.
    let step = match (message, exchange.take()) {
        (Some(message), _) if echo.plain() == opcode::SASL_AUTH => {
            SaslExchange::start(auth, packet.key, message)
        }
        (Some(message), Some(exchange)) => exchange.step(auth, message),
        // Too long, or a step without a start.
        _ => SaslStep::Refused,
    };
    match step {
        SaslStep::Admitted => {
            counters.auth_cmds += 1;
            respond(echo, Status::Ok, "Authenticated", out);
            return true;
        }
        SaslStep::Continue(next, message) => {
            *exchange = Some(next);
            respond(echo, Status::AuthContinue, &message, out);
        }
        // As in memcached the connection stays, and the client may begin anew.
        SaslStep::Refused => {
            counters.auth_cmds += 1;
            counters.auth_errors += 1;
            echo.error(out, Status::Auth);
        }
    }
    false
}

fn respond(echo: Echo, status: Status, text: &str, out: &mut Vec<u8>) {
    let body = Body {
        value: text.as_bytes(),
        ..Body::default()
    };
    echo.respond(out, status, &body);
}
