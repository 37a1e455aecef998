//! Packets of the binary protocol that are not requests to one partition: answered at once, or
//! broadcast to all workers.
//!
//! Circular import with `server_commands`: a packet has the effect of the command of the same meaning, and is
//! begun from there, as every command is.

use herdwick_memcache::{
    Keys,
    binary::{Body, Packet, Status, Verb},
};

use super::{
    buffer::Output,
    gather::Topic,
    server_commands::{self, Begun},
    service::Service,
    statistics,
};
use crate::{
    context::VERSION, net::auth::Auth, runtime::front::Pass, runtime::reply_encoding::Encoder,
};

/// Executes `packet`, or begins to. `used` bytes of input are its own, and `discard` bytes after
/// them are to be dropped.
pub(super) fn begin(
    service: &mut Service,
    output: &mut Output,
    packet: &Packet<'_>,
    (used, discard): (usize, u64),
    pass: &mut Pass<'_>,
) -> Begun {
    let echo = packet.echo;
    let encoder = Encoder::Packet(echo);
    let may_flush = service.context.settings.offers.flush;
    if let Verb::Flush { delay } = packet.verb
        && may_flush
    {
        return server_commands::flush_all(delay, encoder, used, pass);
    }
    if packet.verb == Verb::Stat
        && let Some(topic) = Topic::of(Keys::new(packet.key))
    {
        return server_commands::stats(topic, encoder, used, pass);
    }
    if packet.verb == Verb::Stat && service.context.settings.offers.dump {
        match packet.key {
            b"detail on" => return server_commands::detail(service, true, encoder, used),
            b"detail off" => return server_commands::detail(service, false, encoder, used),
            b"detail dump" => return server_commands::prefixes(encoder, used),
            _ => {}
        }
    }
    let is_sasl = matches!(packet.verb, Verb::SaslList | Verb::Sasl { .. });
    if is_sasl && service.context.auth.as_ref().is_some_and(Auth::is_sasl) {
        return Begun::Authenticate;
    }
    let out = output.buffer(&mut service.pool);
    match packet.verb {
        Verb::Stat => {
            statistics::local(&service.context, Keys::new(packet.key), encoder, out);
        }
        Verb::Noop => echo.done(out, &Body::default()),
        Verb::Version => {
            let body = Body {
                value: VERSION.as_bytes(),
                ..Body::default()
            };
            echo.done(out, &body);
        }
        Verb::Quit => {
            echo.done(out, &Body::default());
            return Begun::HangUp { faulty: false };
        }
        // Not offered.
        Verb::SaslList | Verb::Sasl { .. } => {
            pass.counters.refused_lines += 1;
            echo.error(out, Status::UnknownCommand);
        }
        // Not allowed.
        // As memcached with `-F`.
        Verb::Flush { .. } => echo.error(out, Status::Auth),
    }
    Begun::Said { used, discard }
}
