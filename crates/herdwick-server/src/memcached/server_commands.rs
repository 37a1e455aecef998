//! Commands that are not requests to one partition: they are answered at once, or broadcast to all
//! workers.
//!
//! Circular import with `server_packets`: a packet has the effect of the command of the same meaning, and is begun
//! from here, as every command is.

use std::sync::atomic::Ordering::Relaxed;

use herdwick_memcache::{Command, Keys, Refusal, Refused, binary, is_noreply, meta, text};
use herdwick_request::Second;

use super::{
    buffer::Output,
    connection::Connection,
    gather::{Gather, Purpose, Topic},
    operator_lines::{Admin, CRAWLER_DISABLED, CrawlerCommand},
    run::{Progress, Stop},
    server_packets,
    service::{Round, Service},
    statistics, stats_conns,
};
use crate::{
    context::{Context, VERSION},
    herd::lease::Greeting,
    runtime::{
        dump::{Dump, DumpFormat},
        forward::{ReplyTo, WorkerCommand},
        front::Pass,
        reply_encoding::Encoder,
    },
    settings::crawler::NotStarted,
};

/// The effect of a command, or of what stands in its place in the input.
pub(super) enum Begun {
    /// The command is answered; the connection continues behind it.
    Said { used: usize, discard: u64 },
    /// A hello is answered, of a client that knows the server by its registration and may use it until the fence
    /// has more orders than these.
    Member {
        used: usize,
        discard: u64,
        orders: u64,
    },
    /// The connection becomes a watcher of these topics.
    Watch { used: usize, topics: u32 },
    /// A dump begins, which is produced step by step.
    Dump { used: usize, dump: Dump },
    /// All workers have to take part.
    Command {
        used: usize,
        command: Box<(WorkerCommand, Purpose)>,
    },
    /// A packet of SASL ends the authentication, and is handled as the first one was.
    Authenticate,
    /// The command is incomplete.
    Incomplete,
    /// Close the connection, on a protocol error (`faulty`) or on request.
    HangUp { faulty: bool },
}

/// Executes the command at `stop`, or begins to.
pub(super) fn begin(
    service: &mut Service,
    output: &mut Output,
    stop: Stop<'_>,
    pass: &mut Pass<'_>,
) -> Begun {
    let (command, used, discard) = match stop {
        Stop::Immediate {
            command,
            used,
            discard,
        } => (command, used, discard),
        Stop::Refused(refusing) => {
            let out = output.buffer(&mut service.pool);
            if refuse(refusing.refused, out, pass) {
                return Begun::HangUp { faulty: true };
            }
            let (used, discard) = (refusing.used(), refusing.discard());
            return Begun::Said { used, discard };
        }
        Stop::Close => {
            pass.counters.closed_not_memcached += 1;
            return Begun::HangUp { faulty: true };
        }
        // The run was empty, and no command is complete.
        Stop::NeedMore(_) | Stop::Full | Stop::Held | Stop::Discard(_) | Stop::Upload { .. } => {
            return Begun::Incomplete;
        }
    };
    match command {
        Command::FlushAll(_) if !service.context.settings.engine.has_partitions() => {
            refuse_data(output.buffer(&mut service.pool), pass)
        }
        Command::Quit => Begun::HangUp { faulty: false },
        Command::FlushAll(flush) if service.context.settings.offers.flush => {
            let noreply = flush.noreply;
            flush_all(flush.delay, Encoder::Text { noreply }, used, pass)
        }
        Command::Packet(packet) => {
            server_packets::begin(service, output, &packet, (used, discard), pass)
        }
        Command::Shutdown { known, noreply } => shutdown(service, output, known, noreply, used),
        // The decoder knows no operators' commands: they are looked for among the unknown lines,
        // which cost no client that sends none.
        Command::Unknown(line) if let Some(admin) = Admin::read(line, &service.context) => {
            let admin = admin.quiet_if(is_noreply(line));
            administer(service, output, admin, used, pass)
        }
        Command::Unknown(line) if let Some(greeting) = service.hello.answer_hello(line) => {
            let out = output.buffer(&mut service.pool);
            greet(&greeting, out, (used, discard))
        }
        Command::Stats(words)
            if let Some(admin) =
                Admin::read_stats(Keys::new(words), &service.context.settings.offers) =>
        {
            administer(service, output, admin, used, pass)
        }
        Command::Stats(words) if let Some(topic) = Topic::of(Keys::new(words)) => {
            stats(topic, Encoder::TEXT, used, pass)
        }
        command => {
            let out = output.buffer(&mut service.pool);
            answer(service, command, out, pass);
            Begun::Said { used, discard }
        }
    }
}

/// Answers a hello.
fn greet(greeting: &Greeting, out: &mut Vec<u8>, (used, discard): (usize, u64)) -> Begun {
    out.extend_from_slice(greeting.line.as_bytes());
    match greeting.member {
        Some(orders) => Begun::Member {
            used,
            discard,
            orders,
        },
        None => Begun::Said { used, discard },
    }
}

/// Executes an operator's command, or begins to.
fn administer(
    service: &mut Service,
    output: &mut Output,
    admin: Admin,
    used: usize,
    pass: &mut Pass<'_>,
) -> Begun {
    let consent = Purpose::Consent {
        encoder: Encoder::TEXT,
    };
    let (command, purpose) = match admin {
        Admin::Warp(warp) => (WorkerCommand::Warp(warp), consent),
        Admin::Detail(on) => return detail(service, on, Encoder::TEXT, used),
        Admin::Prefixes => return prefixes(Encoder::TEXT, used),
        Admin::Connections => {
            let out = output.buffer(&mut service.pool);
            stats_conns::say_listeners(&service.context, pass.start.clock, out);
            let dump = Dump::new(DumpFormat::Connections);
            return Begun::Dump { used, dump };
        }
        Admin::Dump(dump) => {
            let out = output.buffer(&mut service.pool);
            out.extend_from_slice(dump.opening());
            return Begun::Dump { used, dump };
        }
        Admin::Certificates => {
            let out = output.buffer(&mut service.pool);
            reload_certificates(service, pass, out);
            return Begun::Said { used, discard: 0 };
        }
        Admin::Crawler(command) => {
            let line = crawler(&service.context, command);
            output.buffer(&mut service.pool).extend_from_slice(line);
            return Begun::Said { used, discard: 0 };
        }
        Admin::Watch(topics) => return Begun::Watch { used, topics },
        Admin::Reply(line) => {
            output.buffer(&mut service.pool).extend_from_slice(line);
            return Begun::Said { used, discard: 0 };
        }
    };
    to_every_worker(command, purpose, used)
}

/// Has a command sent to every worker.
fn to_every_worker(command: WorkerCommand, purpose: Purpose, used: usize) -> Begun {
    let command = Box::new((command, purpose));
    Begun::Command { used, command }
}

/// Carries out a command of `lru_crawler`; returns the reply.
fn crawler(context: &Context, command: CrawlerCommand) -> &'static [u8] {
    let crawler = &context.tunables.crawler;
    match command {
        CrawlerCommand::Crawl => match crawler.start(context.settings.workers) {
            Ok(()) => text::OK,
            Err(NotStarted::Disabled) => CRAWLER_DISABLED,
            Err(NotStarted::Busy) => b"BUSY currently processing crawler request\r\n",
        },
        CrawlerCommand::Enable(enabled) => {
            crawler.enable(enabled);
            text::OK
        }
        CrawlerCommand::Sleep(us) if !crawler.set_sleep_us(us) => {
            b"CLIENT_ERROR sleep must be one second or less\r\n"
        }
        CrawlerCommand::Sleep(_) => text::OK,
        CrawlerCommand::Items(items) => {
            crawler.set_items_max(items);
            text::OK
        }
    }
}

/// Turns the counting by prefix on or off at all workers.
pub(super) fn detail(service: &Service, on: bool, encoder: Encoder, used: usize) -> Begun {
    let purpose = Purpose::Consent { encoder };
    // Relaxed: it is only shown, in `stats settings`. The workers count from the command on.
    service.context.tunables.detail.store(on, Relaxed);
    to_every_worker(WorkerCommand::Detail(on), purpose, used)
}

/// Requests the counts by prefix from all workers.
pub(super) fn prefixes(encoder: Encoder, used: usize) -> Begun {
    let purpose = Purpose::Prefixes {
        encoder,
        sum: Box::default(),
    };
    to_every_worker(WorkerCommand::Prefixes, purpose, used)
}

/// Reloads the certificates and appends memcached's reply. The worker blocks on the files, as
/// memcached's does: it is an operator's command, and the files are small.
#[cold]
fn reload_certificates(service: &Service, pass: &Pass<'_>, out: &mut Vec<u8>) {
    let Some(certificates) = &service.context.certificates else {
        out.extend_from_slice(b"Error TLS not enabled\r\n");
        return;
    };
    match certificates.reload(pass.start.clock.second.0) {
        Ok(()) => out.extend_from_slice(text::OK),
        Err(error) => out.extend_from_slice(format!("Error {error}\r\n").as_bytes()),
    }
}

/// Requests the end of the process, if it has registered a hook for that, and closes the connection
/// without a reply, as memcached does.
fn shutdown(
    service: &mut Service,
    output: &mut Output,
    known: bool,
    noreply: bool,
    used: usize,
) -> Begun {
    let line = match &service.context.settings.shutdown {
        Some(hook) if known => {
            hook.pull();
            return Begun::HangUp { faulty: false };
        }
        _ if noreply => &[],
        Some(_) => text::SHUTDOWN_MODE,
        None => text::SHUTDOWN_REFUSED,
    };
    let out = output.buffer(&mut service.pool);
    out.extend_from_slice(line);
    Begun::Said { used, discard: 0 }
}

pub(super) fn stats(topic: Topic, encoder: Encoder, used: usize, pass: &Pass<'_>) -> Begun {
    let command = if topic == Topic::Reset {
        WorkerCommand::Reset
    } else {
        WorkerCommand::Count {
            hot: topic == Topic::HotKeys,
        }
    };
    let purpose = Purpose::Count {
        topic,
        encoder,
        clock: pass.start.clock,
        parts: Vec::new(),
    };
    to_every_worker(command, purpose, used)
}

/// Flushes all items one second before the exptime `delay`, as in memcached; 0 is now. An exptime
/// before the server's start gives second 0, which cancels a pending flush.
pub(super) fn flush_all(delay: u32, encoder: Encoder, used: usize, pass: &mut Pass<'_>) -> Begun {
    let at = match delay {
        0 => pass.start.clock.second,
        _ => Second(pass.start.clock.deadline(delay).0.saturating_sub(1)),
    };
    let purpose = Purpose::Consent { encoder };
    pass.counters.cmd_flush += 1;
    to_every_worker(WorkerCommand::Flush(at), purpose, used)
}

/// Sends every worker the same command; if no forwarded batch is free, keeps it for the next round.
pub(super) fn broadcast(
    connection: &mut Connection,
    command: Box<(WorkerCommand, Purpose)>,
    ticket: ReplyTo,
    pass: &mut Pass<'_>,
) -> Round {
    let Ok(outstanding) = pass.cross_core.broadcast(command.0, ticket) else {
        pass.counters.forward_batches_exhausted += 1;
        // Its line is consumed already: the next round sends the command, and decodes nothing.
        connection.command = Some(command);
        return Round::NoBatch;
    };
    connection.gather = Some(Gather::new(outstanding, command.1));
    Round::Away
}

/// Appends the reply to a command that needs no partition.
fn answer(service: &Service, command: Command<'_>, out: &mut Vec<u8>, pass: &mut Pass<'_>) {
    let line = match command {
        Command::Version => {
            out.extend_from_slice(b"VERSION ");
            out.extend_from_slice(VERSION.as_bytes());
            b"\r\n"
        }
        Command::MetaNoop => meta::NOTHING,
        Command::Verbosity { level, noreply } => {
            service.context.tunables.set_verbosity(level);
            if noreply { &[] } else { text::OK }
        }
        Command::MemoryLimit { megabytes, noreply } => {
            let answer = memory_limit(service, megabytes);
            if noreply { &[] } else { answer }
        }
        Command::FlushAll(flush) if flush.noreply => &[],
        Command::FlushAll(_) => b"CLIENT_ERROR flush_all not allowed\r\n",
        Command::Stats(words) => {
            statistics::local(&service.context, Keys::new(words), Encoder::TEXT, out);
            &[]
        }
        Command::Unknown(line) => {
            pass.counters.refused_lines += 1;
            if is_noreply(line) { &[] } else { text::ERROR }
        }
        // The other commands are handled elsewhere.
        _ => text::ERROR,
    };
    out.extend_from_slice(line);
}

/// Minimum of `cache_memlimit` in memcached, in megabytes.
const MEMORY_LIMIT_MEGABYTES: u32 = 8;
/// A larger number was probably meant as bytes (memcached's bound).
const MEMORY_LIMIT_MEGABYTES_MAX: u32 = 1_000_000_000;

/// Answers `cache_memlimit`. The memory is reserved at the start, so a limit above it is refused, as
/// is one below what the partitions need.
fn memory_limit(service: &Service, megabytes: u32) -> &'static [u8] {
    let asked = (megabytes as usize).saturating_mul(1 << 20);
    if megabytes < MEMORY_LIMIT_MEGABYTES {
        text::MEMORY_LIMIT_TOO_SMALL
    } else if megabytes > MEMORY_LIMIT_MEGABYTES_MAX {
        text::MEMORY_LIMIT_IN_BYTES
    } else if service.context.tunables.memory.set(asked) {
        text::OK
    } else {
        text::MEMORY_LIMIT_FAILED
    }
}

/// Appends the reply to a command that is answered by an error; returns whether the connection is
/// closed then.
fn refuse(refused: Refused, out: &mut Vec<u8>, pass: &mut Pass<'_>) -> bool {
    let (too_large, closes) = match refused {
        Refused::Line { refusal, noreply } => {
            if !noreply {
                out.extend_from_slice(refusal.line());
            }
            (refusal == Refusal::TooLarge, false)
        }
        Refused::Packet {
            echo,
            status,
            closes,
        } => {
            echo.error(out, status);
            (status == binary::Status::TooLarge, closes)
        }
    };
    let counters = &mut pass.counters;
    if closes {
        counters.closed_binary += 1;
    } else if too_large {
        counters.store_too_large += 1;
        counters.refused_blocks += 1;
    } else {
        counters.refused_lines += 1;
    }
    closes
}

/// The reply where the engine's data are not reached by memcached's protocols.
const ELSEWHERE: &[u8] =
    b"SERVER_ERROR the engine is clover: its data are read and written by herdwick \
    clients over a fabric (herdwick get, set, delete)\r\n";

/// Refuses a command that reads or writes data, where another engine has them. What follows it on the
/// connection may be its value, so the connection is closed.
pub(super) fn refuse_data(out: &mut Vec<u8>, pass: &mut Pass<'_>) -> Begun {
    out.extend_from_slice(ELSEWHERE);
    pass.counters.refused_lines += 1;
    Begun::HangUp { faulty: false }
}

/// Applies the effect to the connection and ends the round.
pub(super) fn end(
    connection: &mut Connection,
    begun: Begun,
    after: Progress,
    ticket: ReplyTo,
    pass: &mut Pass<'_>,
) -> Round {
    match begun {
        Begun::Said { used, discard } => {
            connection.advance(Progress {
                discard,
                ..Progress::past(used)
            });
            Round::Done
        }
        Begun::Member {
            used,
            discard,
            orders,
        } => {
            connection.member = Some(orders);
            end(
                connection,
                Begun::Said { used, discard },
                after,
                ticket,
                pass,
            )
        }
        Begun::Command { used, command } => {
            connection.advance(Progress::past(used));
            broadcast(connection, command, ticket, pass)
        }
        Begun::Dump { used, dump } => {
            connection.advance(Progress::past(used));
            connection.dump = Some(dump);
            Round::Done
        }
        Begun::Watch { used, topics } => {
            connection.advance(Progress::past(used));
            // The turn ends here. It is handed to the event writer when its replies have been sent.
            connection.watches = Some(topics);
            Round::Incomplete
        }
        Begun::Authenticate => {
            // The packet stays in the input: the next turn handles it as one before the
            // authentication.
            connection.admitted = false;
            Round::Incomplete
        }
        Begun::Incomplete => {
            connection.advance(after);
            Round::Incomplete
        }
        Begun::HangUp { faulty } => {
            connection.faulty = faulty;
            connection.hang_up();
            Round::Incomplete
        }
    }
}
