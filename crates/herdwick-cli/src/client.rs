//! `herdwick get`, `set`, `delete` and `stats`: the client library from a shell.
//!
//! Circular import with `servers`: the arguments of a command name its servers, and what reports a
//! failure there reads its kinds here.

use std::{
    ffi::OsString,
    io::{self, IsTerminal, Read, Write},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};
use herdwick::{
    Cause, Cluster, DialError, DiscoveryError, Error, Item, Login, MultiGet, OneSidedReads,
    Options, Put, TlsError, Ttl, Usage, etcd::EtcdUsage,
};

use crate::{exit::Exit, say, servers::Servers, tls::TlsArgs, units};

/// What a server may require of a client: TLS and a login.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Access {
    /// File with one line, user:password, for a server that requires it (`serve -Y`).
    #[arg(long, value_name = "FILE")]
    login: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsArgs,
}

/// Read values: a single key's value is written unchanged, several as lines of key, tab, value.
///
/// Exit code 1 if a key does not exist.
#[derive(Args, Debug)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    pub(crate) servers: Servers,
    /// Whether values are read in the server's memory, where the server grants that: where it is faster, or
    /// wherever it may be done, or never.
    #[arg(long, value_enum, default_value_t)]
    one_sided: OneSided,
    /// Keys to read.
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<OsString>,
}

/// Which values are read in the server's memory.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum OneSided {
    #[default]
    Auto,
    Always,
    Never,
}

impl GetArgs {
    /// Sets what the command asks for.
    pub(crate) fn set(&self, options: &mut Options) {
        options.one_sided = match self.one_sided {
            OneSided::Auto => OneSidedReads::Auto,
            OneSided::Always => OneSidedReads::Always,
            OneSided::Never => OneSidedReads::Never,
        };
    }
}

/// Store a value.
#[derive(Args, Debug)]
pub(crate) struct SetArgs {
    #[command(flatten)]
    pub(crate) servers: Servers,
    /// The key.
    key: OsString,
    /// The value; - reads it from standard input.
    value: OsString,
    /// Seconds until it expires, from 1 on, or 15m, 2h, 1d [default: never].
    #[arg(long, value_name = "S", allow_negative_numbers = true, value_parser = ttl)]
    ttl: Option<u32>,
    /// A number stored with the value.
    #[arg(long, value_name = "N", default_value_t = 0)]
    flags: u32,
}

/// Remove a value. Exit code 1 if the key does not exist.
#[derive(Args, Debug)]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    pub(crate) servers: Servers,
    /// Key to remove.
    key: OsString,
}

/// Show the server's statistics.
#[derive(Args, Debug)]
pub(crate) struct StatsArgs {
    #[command(flatten)]
    pub(crate) servers: Servers,
    /// Which ones, such as settings, items or detail dump [default: the general ones].
    #[arg(value_name = "ARG")]
    arguments: Vec<String>,
}

/// Parses `--ttl`. 0 is refused: in memcached it means never, in the client library at once.
fn ttl(text: &str) -> Result<u32, String> {
    match units::seconds(text)? {
        0 => Err("give at least 1 second, or leave --ttl out: the value then never expires".into()),
        seconds => Ok(seconds),
    }
}

/// Whether the keys existed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Found,
    Missing,
}

/// Why a subcommand failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientFailure {
    #[error(transparent)]
    Client(#[from] Error),
    /// One of several servers.
    #[error(transparent)]
    At(Box<ServerFailure>),
    #[error("cannot use {path} (--login): {reason}")]
    Login { path: PathBuf, reason: String },
    #[error("TLS: {0}")]
    Tls(#[from] TlsError),
    #[error("the server has no statistics called {0:?}")]
    NoStatistics(String),
    #[error("--server: {0}")]
    Etcd(#[from] EtcdUsage),
    #[error("{0}")]
    List(#[from] DiscoveryError),
    #[error("cannot read the value from standard input: {0}")]
    Input(io::Error),
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
}

/// What a server answered, or why it did not.
#[derive(Debug, thiserror::Error)]
#[error("{}", error_text(server, error))]
pub(crate) struct ServerFailure {
    server: String,
    error: Error,
}

impl ClientFailure {
    fn at(server: String, error: Error) -> Self {
        Self::At(Box::new(ServerFailure { server, error }))
    }
}

impl From<Usage> for ClientFailure {
    fn from(usage: Usage) -> Self {
        Self::Client(usage.into())
    }
}

impl From<&ClientFailure> for Exit {
    fn from(failure: &ClientFailure) -> Self {
        match failure {
            ClientFailure::Client(error) => error.into(),
            ClientFailure::At(failure) => (&failure.error).into(),
            ClientFailure::Login { .. }
            | ClientFailure::Tls(_)
            | ClientFailure::Etcd(_)
            | ClientFailure::NoStatistics(_) => Self::Usage,
            ClientFailure::List(_) | ClientFailure::Input(_) | ClientFailure::Output(_) => {
                Self::Failed
            }
        }
    }
}

impl Access {
    /// Returns the connection options: login, TLS, and defaults.
    pub(crate) fn options(&self) -> Result<Options, ClientFailure> {
        Ok(Options {
            login: self.login.as_deref().map(read_login).transpose()?,
            tls: self.tls.read()?,
            ..Options::default()
        })
    }

    /// Returns the name of an option that was given, if any was.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let login = self.login.is_some().then_some("--login");
        login.or_else(|| self.tls.is_on().then_some("--tls"))
    }

    /// Returns the same options as arguments of another process.
    pub(crate) fn flags(&self) -> Vec<OsString> {
        let login = self.login.iter();
        let login = login.flat_map(|path| ["--login".into(), path.as_os_str().to_owned()]);
        login.chain(self.tls.flags()).collect()
    }
}

fn read_login(path: &Path) -> Result<Login, ClientFailure> {
    let unusable = |reason| ClientFailure::Login {
        path: path.to_owned(),
        reason,
    };
    let text = std::fs::read_to_string(path).map_err(|error| unusable(error.to_string()))?;
    Login::parse(&text)
        .ok_or_else(|| unusable("it is not one line, user:password; give a file with one".into()))
}

pub(crate) fn get(cluster: &mut Cluster, args: &GetArgs) -> Result<Outcome, ClientFailure> {
    let keys: Vec<&[u8]> = args.keys.iter().map(|key| key.as_bytes()).collect();
    let MultiGet { items, failed } = cluster.get_many(&keys)?;
    show(
        &mut io::stdout().lock(),
        io::stdout().is_terminal(),
        &keys,
        &items,
    )?;
    let unread = |place: &usize| failed.iter().any(|server| server.keys.contains(place));
    let mut outcome = Outcome::Found;
    for (place, key) in keys.iter().enumerate() {
        if items[place].is_none() && !unread(&place) {
            say::complain(format_args!("{}: not there", key.escape_ascii()));
            outcome = Outcome::Missing;
        }
    }
    let mut failed = failed.into_iter();
    let Some(first) = failed.next() else {
        return Ok(outcome);
    };
    // One failure gives the exit code; the others are shown.
    for other in failed {
        say::complain(error_text(&other.server, &other.error));
    }
    Err(ClientFailure::at(first.server, first.error))
}

pub(crate) fn set(cluster: &mut Cluster, args: &SetArgs) -> Result<Outcome, ClientFailure> {
    let value = if args.value == "-" {
        let mut value = Vec::new();
        io::stdin()
            .lock()
            .read_to_end(&mut value)
            .map_err(ClientFailure::Input)?;
        value
    } else {
        args.value.clone().into_vec()
    };
    let ttl = args.ttl.map_or(Ttl::Never, Ttl::Seconds);
    let key = args.key.as_bytes();
    // The error itself does not name it.
    let server = cluster.server_of(key)?.name();
    let put = Put::new(&value).ttl(ttl).flags(args.flags);
    let stored = cluster.set(key, put);
    stored.map_err(|error| ClientFailure::at(server, error))?;
    Ok(Outcome::Found)
}

pub(crate) fn delete(cluster: &mut Cluster, args: &DeleteArgs) -> Result<Outcome, ClientFailure> {
    let key = args.key.as_bytes();
    let server = cluster.server_of(key)?.name();
    let deleted = cluster.delete(key);
    if deleted.map_err(|error| ClientFailure::at(server, error))? {
        return Ok(Outcome::Found);
    }
    say::complain(format_args!("{}: not there", key.escape_ascii()));
    Ok(Outcome::Missing)
}

pub(crate) fn stats(cluster: &mut Cluster, args: &StatsArgs) -> Result<Outcome, ClientFailure> {
    let argument = args.arguments.join(" ");
    let mut out = io::stdout().lock();
    let is_one = cluster.servers().count() == 1;
    for (node, client) in cluster.servers() {
        let stats = client.stats(&argument).map_err(|error| match error {
            // memcached's answer to a word that it does not know.
            Error::Server(reason) if reason == UNKNOWN && !argument.is_empty() => {
                ClientFailure::NoStatistics(argument.clone())
            }
            error => ClientFailure::at(node.name(), error),
        })?;
        if !is_one {
            writeln!(out, "{node}:")?;
        }
        let width = stats.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, value) in stats {
            writeln!(out, "{name:width$}  {value}")?;
        }
    }
    Ok(Outcome::Found)
}

/// The client library's words for `ERROR`.
const UNKNOWN: &str = "it does not know the command";

/// Writes values. A single value is written byte for byte, so that it can be redirected to a file;
/// on a terminal a line feed follows.
fn show(
    out: &mut impl Write,
    terminal: bool,
    keys: &[&[u8]],
    items: &[Option<Item>],
) -> io::Result<()> {
    if let [Some(item)] = items {
        out.write_all(&item.value)?;
        if terminal {
            out.write_all(b"\n")?;
        }
        return out.flush();
    }
    for (key, item) in keys.iter().zip(items) {
        if let Some(item) = item {
            out.write_all(&[*key, b"\t", &item.value, b"\n"].concat())?;
        }
    }
    out.flush()
}

/// Returns the message for a failure: the server where it is involved, the cause, and what to type
/// next.
pub(crate) fn complaint(server: &str, failure: &ClientFailure) -> String {
    match failure {
        ClientFailure::Client(error) => error_text(server, error),
        ClientFailure::Tls(TlsError::NoAuthorities) => format!("{failure}, by --tls-ca"),
        ClientFailure::Tls(TlsError::Mismatch { .. }) => {
            format!("{failure}; name the file of the right one with --tls-key")
        }
        ClientFailure::NoStatistics(_) => format!(
            "{server}: {failure}; `herdwick stats` alone shows the general ones, others are settings, \
             items, slabs, conns, workers and hotkeys"
        ),
        ClientFailure::At(_)
        | ClientFailure::Login { .. }
        | ClientFailure::Tls(_)
        | ClientFailure::Etcd(_)
        | ClientFailure::List(_)
        | ClientFailure::Input(_)
        | ClientFailure::Output(_) => failure.to_string(),
    }
}

/// Does the same for an error of the client library.
pub(crate) fn error_text(server: &str, error: &Error) -> String {
    let advice = advice(error);
    match error {
        Error::Usage(Usage::Address | Usage::ServerTwice | Usage::Weight) => {
            format!("{server}: {error}; give one with --server")
        }
        Error::Usage(_) | Error::Unreachable { .. } => format!("{error}{advice}"),
        _ => format!("{server}: {error}{advice}"),
    }
}

/// What to type next where the server has closed the connection, or answered what is not text.
const NO_TEXT: &str = "; is that a memcached or a herdwick? With TLS (`serve -Z`) it takes --tls; with \
                       SASL (`serve -S`) or -B binary it refuses the text protocol, which this command needs: \
                       start it with -Y FILE alone, and give --login FILE; name another with --server";

/// The end of every message about a login.
const LOGIN: &str = "; give a file with a line user:password by --login";

/// Returns what to type next, if there is known advice.
fn advice(error: &Error) -> &'static str {
    match error {
        Error::Unreachable { reason, .. } => match reason {
            DialError::Name(_) => "; name another with --server",
            DialError::LoginNeeded => LOGIN,
            DialError::LoginRefused => {
                "; the file of --login needs a line user:password that is in the one of `serve -Y`"
            }
            DialError::Tls(why) => tls_advice(why),
            // It says itself what to do.
            DialError::AnotherMember => "",
            DialError::Io(error) => match error.kind() {
                io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
                    "; start one with `herdwick serve`, or name another with --server"
                }
                io::ErrorKind::PermissionDenied => {
                    "; a unix socket is for the users that `herdwick serve -a` admits; name another \
                     with --server"
                }
                io::ErrorKind::TimedOut => STALLED,
                io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => NO_TEXT,
                _ => "; name another with --server",
            },
        },
        Error::Disconnected(Cause::Malformed(_) | Cause::Closed) => NO_TEXT,
        Error::Timeout(_) => STALLED,
        Error::UnknownOutcome(_) => "; `herdwick get` shows which",
        Error::TooLarge => "; a server started with a larger `herdwick serve -I` takes it",
        Error::Server(reason) if reason.contains("unauthenticated") => LOGIN,
        _ => "",
    }
}

/// The end of a message about a server that accepts connections and does not answer.
const STALLED: &str =
    "; it may be stopped or overloaded, or require TLS (--tls); name another with --server";

fn tls_advice(why: &str) -> &'static str {
    let alert = why.contains("fatal alert");
    if why.contains("CaUsedAsEndEntity") {
        "; the server's certificate is one for an authority (CA:TRUE), as `openssl req -x509` makes \
         them: make one with -addext basicConstraints=critical,CA:FALSE, or check none with \
         --tls-insecure"
    } else if alert && (why.contains("ertificate") || why.contains("UnknownC")) {
        "; the server requires a client's certificate from an authority of its -o ssl_ca_cert: give \
         it with --tls-cert, and its key with --tls-key"
    } else if why.contains("UnknownIssuer") || why.contains("BadSignature") {
        "; name the authority of the server's certificate with --tls-ca"
    } else if why.contains("not valid for name") {
        "; name the one that the certificate is for with --tls-name"
    } else if why.contains("InvalidContentType") {
        "; is that a server without TLS? Leave --tls out"
    } else {
        "; see --tls-ca, --tls-name and --tls-cert"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(value: &str) -> Option<Item> {
        Some(Item {
            value: value.into(),
            flags: 0,
            version: 1,
        })
    }

    fn shown(terminal: bool, keys: &[&str], items: &[Option<Item>]) -> String {
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
        let mut out = Vec::new();
        show(&mut out, terminal, &keys, items).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn one_value_is_printed_raw_and_several_with_their_keys() {
        assert_eq!(shown(false, &["a"], &[item("1")]), "1");
        assert_eq!(shown(true, &["a"], &[item("1")]), "1\n");
        assert_eq!(shown(false, &["a"], &[None]), "");
        let three = [item("1"), None, item("3")];
        assert_eq!(shown(false, &["a", "b", "c"], &three), "a\t1\nc\t3\n");
    }
}
