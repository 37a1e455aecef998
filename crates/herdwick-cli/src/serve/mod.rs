//! `herdwick serve`: starts a server from flags, and serves until a signal ends it.

mod absolute;
mod args;
mod error;
mod etcd;
mod extended;
mod file;
mod listen;
mod log;
mod offload;
mod paths;
mod process;
mod reload;
mod tls;

use std::{net::SocketAddr, process::ExitCode, time::Duration};

use herdwick_providers::{Fabric, Verbs};
use herdwick_server::{
    Address, Config, Engine, FabricStatus, Interface, Latency, Leases, Listen, ListenOptions,
    Offers, Protocol, Restart, SaslUsers, Server, ShutdownHook, Tls, Udp,
};
use sd_notify::NotifyState;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1},
    iterator::{Handle, Signals},
};

use crate::{exit::Exit, say};
use absolute::absolute;
pub(crate) use absolute::lease_directory;
use args::BANNER;
pub(crate) use args::ServeArgs;
use error::ServeError;
use etcd::Registering;
use extended::{Extended, extend};
use log::LogFormat;
use process::PidFile;
use reload::FlagSources;
use tracing::{debug, error, info, warn};

/// The text of the license (`-i`).
const LICENSE: &str = include_str!("../../../../LICENSE");

/// Serves until a signal or a client ends the server; returns the exit code. `command` is the
/// definition of the subcommand, by which a file of flags is read.
pub(crate) fn run(args: &ServeArgs, command: &clap::Command) -> ExitCode {
    if args.license {
        return match say::report(format_args!("{BANNER}\n\n{LICENSE}")) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => Exit::Failed.into(),
        };
    }
    match serve(args, command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If the file of flags is invalid, the log format of the command line applies.
            log::start(args.log_format, args.verbosity);
            error!("{error}");
            Exit::from(&error).into()
        }
    }
}

fn serve(args: &ServeArgs, command: &clap::Command) -> Result<(), ServeError> {
    let Some(path) = args.config.as_deref().map(absolute) else {
        return serve_with(args, None);
    };
    let flags = FlagSources::read(&path, command)?;
    serve_with(&flags.args, Some(&flags)).map_err(|error| flags.locate(error))
}

/// Serves by the flags `args`, of which `flags` are those of a file.
fn serve_with(args: &ServeArgs, flags: Option<&FlagSources>) -> Result<(), ServeError> {
    log::start(args.log_format, args.verbosity);
    if let Some(reason) = args.missing.refused().or_else(|| useless(args)) {
        return Err(ServeError::Refused(reason));
    }
    paths::check(args, flags.map(FlagSources::path))?;
    if args.daemon && !args.in_background {
        let said = process::start_in_background()?;
        // The server runs even if this line cannot be written.
        let _ = say::report(said);
        return Ok(());
    }
    // Before the server starts, so that no signal is missed. In memcached SIGUSR1 ends the server
    // and keeps the memory file; here every signal that ends it keeps the file.
    let signals = Signals::new([SIGTERM, SIGINT, SIGUSR1, SIGHUP]).map_err(ServeError::Signals)?;
    process::outlive_file_limit().map_err(ServeError::Signals)?;
    let mut config = config(args, signals.handle())?;
    config.connections_max = process::allow_connections(args.connections)?;
    let pid_file = args.pid_file.as_deref().map(absolute);
    prepare(args)?;
    // As the user that will write it.
    pid_file.as_deref().map(PidFile::check).transpose()?;
    let engine = if args.secondary {
        Engine::Clover
    } else {
        args.engine
    };
    // What is wrong with the flags shows before the server starts.
    let membership = args.etcd.membership(engine)?;
    let server = herdwick_server::spawn(config)?;
    let member = membership.map(|it| it.of(&server)).transpose()?;
    let _pid_file = pid_file.as_deref().map(PidFile::write).transpose()?;
    process::write_ports(&server);
    announce(&server, args);
    process::tell_systemd(NotifyState::Ready);
    // With -v the log goes on.
    if args.in_background && args.verbosity == 0 {
        process::leave_stderr()?;
    }
    // What may still fail comes before: a server that does not stay is no member.
    let registration = member.map(Registering::start).transpose()?;
    wait(signals, &server, args, flags);
    process::tell_systemd(NotifyState::Stopping);
    // Clients go elsewhere before the server leaves.
    if let Some(registration) = registration {
        registration.end();
    }
    server.shutdown();
    Ok(())
}

/// Returns why a flag that is meant to protect the server would have no effect.
fn useless(args: &ServeArgs) -> Option<&'static str> {
    [
        (
            args.tls && args.unix_socket.is_some(),
            "-Z: a unix socket (-s) is without TLS; leave one of them out",
        ),
        (
            args.roce.0.is_none() && args.roce_keyed,
            "--roce-keyed: no packets come without --roce ADDR",
        ),
    ]
    .into_iter()
    .find_map(|(given, reason)| given.then_some(reason))
}

/// Prints the ready line, and logs addresses, what the server does not offer, and flags that have
/// no effect.
fn announce(server: &Server, args: &ServeArgs) {
    let ready = ready(server, args.memory);
    // The parent of a background server waits for this line.
    let is_shown = args.log_format == LogFormat::Text || args.in_background;
    if is_shown && let Err(error) = say::report(format_args!("{ready}\n")) {
        warn!("cannot write to standard output: {error}");
    }
    if args.log_format == LogFormat::Json {
        let addresses = join(server.addresses());
        let (workers, memory_mib) = (server.workers(), args.memory);
        info!(addresses, workers, memory_mib, "{ready}");
    }
    if let Some(address) = server.metrics() {
        info!(%address, "metrics on http://{address}/metrics");
    }
    // A device that may be lost may also be absent, or be another one than expected.
    for fabric in Fabric::ALL.into_iter().filter(|it| it.may_be_lost()) {
        let title = fabric.title();
        match server.fabric(fabric) {
            FabricStatus::On(place) => info!(%place, "{title} by {place}"),
            FabricStatus::Absent(reason) => debug!(%reason, "no {title}: {reason}"),
            FabricStatus::Off => {}
        }
    }
    if let Some(restart) = server.restart() {
        let Restart { items, damaged, .. } = *restart;
        let path = restart.path.display();
        info!(items, damaged, %path, "{restart}");
    }
    for reason in server.left_out() {
        warn!("left out: {reason}");
    }
    for reduced in server.reduced() {
        warn!("{reduced}");
    }
    if let Some(ram) = process::ram_bytes().filter(|ram| (args.memory as u64) << 20 > *ram) {
        let (memory, ram) = (args.memory, ram >> 20);
        warn!(
            memory,
            ram,
            "-m {memory} is more than the {ram} MiB of memory that this process may have: it will \
             be killed, or swap, before the cache is full; give less"
        );
    }
    warn_of_flags(args);
    if process::is_root_unasked(args.user.as_deref()) {
        warn!(
            "runs as root: an attacker who takes over the server has the host; name another user (-u)"
        );
    }
}

/// Logs flags that have no effect, and what others do not cover.
fn warn_of_flags(args: &ServeArgs) {
    if args.udp_port != 0 && args.tls {
        warn!("-U: datagrams are not encrypted; TLS (-Z) is for TCP alone");
    }
    warn_of_protocols(args);
    for reason in without_effect(args) {
        warn!("ignored {reason}");
    }
    for reason in args.without_slabs().chain(args.missing.passed_over()) {
        warn!("ignored {reason}");
    }
    for (name, reason) in extended::passed_over(&args.extended) {
        warn!("ignored -o {name}: {reason}");
    }
}

/// Returns the flags that other flags leave without effect, with the reason.
fn without_effect(args: &ServeArgs) -> impl Iterator<Item = &'static str> {
    let unix = args.unix_socket.is_some();
    let trusted = |option: &Extended| matches!(option, Extended::UdpTrusted(_));
    let roce = args.roce.0.is_some();
    [
        (
            args.udp_port != 0 && unix,
            "-U: datagrams are taken beside TCP only, not beside a unix socket",
        ),
        (
            !args.listen.is_empty() && unix,
            "-l: with -s there is no TCP",
        ),
        (
            !args.tls && extended::tls(&args.extended).next().is_some(),
            "-o ssl_*: no TLS without -Z",
        ),
        (
            args.udp_port == 0 && args.extended.iter().any(trusted),
            "-o udp_trusted: nothing comes over UDP without -U",
        ),
        (
            !args.shm && (args.shm_directory.is_some() || args.shm_mode.is_some()),
            "--shm-dir and --shm-mode: there is no shared memory (--shm off)",
        ),
        (
            args.roce_pcap.is_some() && !roce,
            "--roce-pcap: no packets come without --roce ADDR",
        ),
        (
            args.request_path.is_some() && !args.shm && !roce && matches!(args.verbs, Verbs::Off),
            "--request-path: there is no fabric (--shm off, --verbs off)",
        ),
        (
            args.metrics_hot_keys && (args.no_dump || args.hot_keys == 0),
            "--metrics-hot-keys: no keys are shown (-X, --hot-keys off)",
        ),
    ]
    .into_iter()
    .filter_map(|(given, reason)| given.then_some(reason))
}

/// Logs what the choice of protocols means for clients.
fn warn_of_protocols(args: &ServeArgs) {
    if spoken(args) == Protocol::Binary {
        let flag = if args.sasl { "-S" } else { "-B binary" };
        warn!("{flag}: connections with the text protocol are closed, those of `herdwick get` too");
    }
    if args.sasl && !args.tls && args.unix_socket.is_none() {
        warn!("-S: PLAIN sends passwords as they are; keep others from reading them by TLS (-Z)");
    }
}

/// Sets the process up as the flags demand, before it has threads.
fn prepare(args: &ServeArgs) -> Result<(), ServeError> {
    if args.core_dumps {
        process::allow_core_dumps()?;
    }
    if args.lock_memory {
        process::lock_memory()?;
    }
    if args.in_background {
        process::settle_in_background()?;
    }
    if let Some(user) = &args.user {
        process::become_user(user)?;
    }
    Ok(())
}

/// Waits until a signal, or a client's `shutdown`, ends the server. SIGHUP reloads the settings
/// that may change.
fn wait(mut signals: Signals, server: &Server, args: &ServeArgs, flags: Option<&FlagSources>) {
    for signal in signals.forever() {
        // A client may have changed the verbosity (`verbosity`).
        log::set_verbosity(server.verbosity());
        if signal != SIGHUP {
            debug!(signal, "signal {signal}, draining");
            return;
        }
        reload::reload(server, args, flags);
    }
}

/// Returns the ready line, without its end.
fn ready(server: &Server, memory: usize) -> String {
    let workers = server.workers();
    format!(
        "herdwick {} ready on {} ({workers} {}, {memory} MiB)",
        env!("CARGO_PKG_VERSION"),
        join(server.addresses()),
        if workers == 1 { "worker" } else { "workers" },
    )
}

fn join(addresses: &[Address]) -> String {
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    addresses.join(", ")
}

fn config(args: &ServeArgs, end: Handle) -> Result<Config, ServeError> {
    let listen = match &args.unix_socket {
        Some(path) => Listen::Unix {
            path: absolute(path),
            mode: args.unix_mode,
        },
        None => Listen::Tcp(interfaces(args)?),
    };
    let mut config = Config {
        engine: match args.secondary {
            true => Engine::Clover,
            false => args.engine,
        },
        secondary: if args.secondary {
            offload::secret(args)?
        } else {
            None
        },
        offload: offload::offload(args)?,
        growth: args.growth(),
        listen,
        memory_bytes: args.memory.saturating_mul(1 << 20),
        connections_max: args.connections,
        workers: args.workers,
        item_bytes_max: args.item_bytes_max,
        spin: Duration::from_micros(args.spin),
        pin: args.pin.clone(),
        verbosity: args.verbosity,
        leases: args.shm.then(|| leases(args)),
        one_sided_reads: args.one_sided_reads,
        fabrics: ListenOptions {
            roce: args.roce.0,
            roce_keyed: args.roce_keyed,
            roce_capture: args.roce_pcap.as_deref().map(absolute),
            verbs: args.verbs.clone(),
        },
        request_path: args.request_path,
        protocol: spoken(args),
        backlog: args.backlog,
        turn_requests: args.turn_requests,
        offers: Offers {
            flush: !args.no_flush,
            dump: !args.no_dump,
            watch: !args.no_watch,
            debug: args.debug,
        },
        latency: Latency {
            histograms: args.latency,
            slow: args.slow_log.map(Duration::from_micros),
        },
        hot_keys: args.hot_keys,
        metrics: args.metrics,
        metrics_hot_keys: args.metrics_hot_keys,
        auth: args.auth.as_deref().filter(|_| !args.sasl).map(absolute),
        sasl: args.sasl.then(|| sasl_users(args)).transpose()?,
        udp: udp(args),
        tls: args.tls.then(|| tls_settings(args)).transpose()?,
        lossless: args.no_evictions,
        memory_file: args.memory_file.as_deref().map(absolute),
        // It ends the wait for signals, as a signal does.
        shutdown: args
            .enable_shutdown
            .then(|| ShutdownHook::new(move || end.close())),
        ..Config::default()
    };
    for option in &args.extended {
        extend(&mut config, option);
    }
    Ok(config)
}

/// Returns the protocols to accept. As in memcached, -S makes it the binary one, unless -B is given.
fn spoken(args: &ServeArgs) -> Protocol {
    let default = if args.sasl {
        Protocol::Binary
    } else {
        Protocol::Any
    };
    args.protocol.unwrap_or(default)
}

/// Returns the file of SASL's users.
fn sasl_users(args: &ServeArgs) -> Result<SaslUsers, ServeError> {
    if let Some(path) = &args.auth {
        return Ok(SaslUsers::AuthFile(absolute(path)));
    }
    let path = process::sasl_pwdb().ok_or(ServeError::Refused(
        "-S: give users and passwords by -Y FILE, or in the file that the environment variable \
         MEMCACHED_SASL_PWDB names; the database of Cyrus SASL (/etc/sasldb2) is not read",
    ))?;
    Ok(SaslUsers::Pwdb(absolute(&path)))
}

fn udp(args: &ServeArgs) -> Option<Udp> {
    let trusted = args.extended.iter().filter_map(|option| match option {
        Extended::UdpTrusted(network) => Some(*network),
        _ => None,
    });
    (args.udp_port != 0).then(|| Udp {
        port: port(args.udp_port),
        trusted: trusted.collect(),
    })
}

/// Returns the port for the system, where 0 requests a free one.
fn port(asked: i32) -> u16 {
    u16::try_from(asked).unwrap_or(0)
}

fn tls_settings(args: &ServeArgs) -> Result<Tls, ServeError> {
    tls::settle(extended::tls(&args.extended)).map_err(ServeError::Refused)
}

fn interfaces(args: &ServeArgs) -> Result<Vec<Interface>, ServeError> {
    let port = port(args.port);
    if args.listen.is_empty() {
        return Ok(vec![SocketAddr::from(([127, 0, 0, 1], port)).into()]);
    }
    let mut all = Vec::new();
    for interface in args.listen.iter().flat_map(|list| &list.0) {
        let addresses = interface.addresses(port);
        let addresses = addresses.map_err(|source| ServeError::Listen {
            host: interface.host().to_owned(),
            source,
        })?;
        all.push(Interface {
            addresses,
            plain: interface.plain(),
        });
    }
    Ok(all)
}

fn leases(args: &ServeArgs) -> Leases {
    let default = Leases::default();
    Leases {
        directory: lease_directory(args.shm_directory.as_deref()),
        // Users who may open the unix socket may open the lease socket too.
        mode: args
            .shm_mode
            .or_else(|| args.unix_socket.as_ref().map(|_| args.unix_mode)),
        clients_max: default.clients_max,
        // An explicit directory or mode means that shared memory is required.
        needed: args.shm_directory.is_some() || args.shm_mode.is_some(),
    }
}
