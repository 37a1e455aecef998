//! The servers of the client subcommands, one or several, and `herdwick locate`, which says which of
//! several has a key.
//!
//! Circular import with `client`: failures are those of its commands, whose arguments name servers as here.

use std::{
    ffi::OsString,
    io::{self, BufRead, BufWriter, Write},
    os::unix::ffi::OsStrExt,
    process::ExitCode,
};

use clap::{Args, ValueEnum};
use herdwick::{
    Cluster, ClusterOptions, Discovery, Distribution, Node, Options, Session, etcd::EtcdCluster,
};

use crate::{
    client::{Access, ClientFailure, Outcome, complaint},
    exit::Exit,
    say,
};

/// Options that name servers.
#[derive(Args, Debug)]
pub(crate) struct Names {
    /// Where the server listens: HOST:PORT, or the path of a unix socket. Several, with commas in
    /// between, share the keys: HOST:PORT, HOST:PORT:WEIGHT or "HOST:PORT:WEIGHT NAME". Or
    /// those that are registered in etcd: etcd://HOST:PORT/NAME.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:11211")]
    server: String,
    /// How keys are distributed over several servers: the rule of the other clients that use them.
    #[arg(long, value_enum, default_value_t)]
    distribution: Rule,
}

/// Options to reach servers.
#[derive(Args, Debug)]
pub(crate) struct Servers {
    #[command(flatten)]
    names: Names,
    #[command(flatten)]
    access: Access,
    /// Print on standard error the transport that is used, and why a faster one that the server
    /// offers is not.
    #[arg(short, long)]
    verbose: bool,
}

/// Show which of several servers has a key, as lines of key, tab, server. No server is asked.
#[derive(Args, Debug)]
pub(crate) struct LocateArgs {
    #[command(flatten)]
    names: Names,
    /// The keys; - reads them from standard input, one a line.
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<OsString>,
}

/// A [`Distribution`] as an option.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Rule {
    /// libmemcached's KETAMA_WEIGHTED, twemproxy's ketama with `hash: md5`
    #[default]
    Ketama,
    /// libmemcached's KETAMA with its default hash
    KetamaOneAtATime,
    /// pymemcache's HashClient
    Rendezvous,
}

impl From<Rule> for Distribution {
    fn from(rule: Rule) -> Self {
        match rule {
            Rule::Ketama => Self::Ketama,
            Rule::KetamaOneAtATime => Self::KetamaOneAtATime,
            Rule::Rendezvous => Self::Rendezvous,
        }
    }
}

impl Names {
    fn cluster(&self, client: Options) -> Result<Cluster, ClientFailure> {
        let options = ClusterOptions {
            client,
            distribution: self.distribution.into(),
            ..ClusterOptions::default()
        };
        if self.server.starts_with("etcd://") {
            let place = self.server.parse::<EtcdCluster>()?;
            return Ok(Cluster::discover(Discovery::Etcd(place), options)?);
        }
        let nodes = if self.server.contains(',') {
            let names = self.server.split(',').map(str::parse);
            names.collect::<Result<Vec<_>, _>>()?
        } else {
            // One server has every key, by whatever name and weight.
            vec![Node::new(self.server.parse()?)]
        };
        Ok(Cluster::new(nodes, options)?)
    }
}

/// Makes a client of the servers, runs `command`, and reports errors on standard error.
pub(crate) fn run(
    servers: &Servers,
    command: impl FnOnce(&mut Cluster) -> Result<Outcome, ClientFailure>,
) -> ExitCode {
    run_with(servers, |_| {}, command)
}

/// As [`run`], with options that `set` changes.
pub(crate) fn run_with(
    servers: &Servers,
    set: impl FnOnce(&mut Options),
    command: impl FnOnce(&mut Cluster) -> Result<Outcome, ClientFailure>,
) -> ExitCode {
    let connect = || {
        let mut options = servers.access.options()?;
        set(&mut options);
        let mut cluster = servers.names.cluster(options)?;
        if servers.verbose {
            show_transports(&mut cluster);
        }
        let outcome = command(&mut cluster);
        if servers.verbose {
            show_one_sided(&mut cluster);
        }
        outcome
    };
    conclude(connect(), &servers.names.server)
}

/// Reports a failure. Returns the exit code.
fn conclude(outcome: Result<Outcome, ClientFailure>, server: &str) -> ExitCode {
    match outcome {
        Ok(Outcome::Found) => ExitCode::SUCCESS,
        Ok(Outcome::Missing) => Exit::No.into(),
        // The reader closed the pipe early, as in `herdwick stats | head`.
        Err(ClientFailure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(failure) => {
            say::complain(complaint(server, &failure));
            Exit::from(&failure).into()
        }
    }
}

/// Dials every server, and prints its transport. The command reports one that cannot be reached.
fn show_transports(cluster: &mut Cluster) {
    let is_one = cluster.servers().count() == 1;
    for (node, client) in cluster.servers() {
        let _ = client.dial();
        match client.session().map(transport) {
            Some(transport) if is_one => say::complain(transport),
            Some(transport) => say::complain(format_args!("{node}: {transport}")),
            None => {}
        }
    }
}

/// Prints how many values were read in each server's memory, if any were looked up there.
fn show_one_sided(cluster: &mut Cluster) {
    let is_one = cluster.servers().count() == 1;
    for (node, client) in cluster.servers() {
        let Some(counters) = client.session().and_then(Session::one_sided) else {
            continue;
        };
        let looked_up: u64 = counters.iter().map(|(_, count)| count).sum();
        let read = counters.hits;
        if looked_up == 0 {
            continue;
        }
        let told = format!("{read} of {looked_up} read in the server's memory (one-sided)");
        match is_one {
            true => say::complain(told),
            false => say::complain(format_args!("{node}: {told}")),
        }
    }
}

/// Describes the transport that is used, and why no faster one is.
fn transport(session: &Session) -> String {
    let reason = session.missed().map(|reason| format!(" ({reason})"));
    format!("over {}{}", session.transport(), reason.unwrap_or_default())
}

/// Runs `herdwick locate`.
pub(crate) fn locate(args: &LocateArgs) -> ExitCode {
    conclude(show_servers(args), &args.names.server)
}

fn show_servers(args: &LocateArgs) -> Result<Outcome, ClientFailure> {
    let cluster = args.names.cluster(Options::default())?;
    // The keys on standard input may be many.
    let mut out = BufWriter::new(io::stdout().lock());
    let mut show = |key: &[u8]| -> Result<(), ClientFailure> {
        let server = cluster.server_of(key)?;
        out.write_all(key)?;
        writeln!(out, "\t{server}")?;
        Ok(())
    };
    for key in &args.keys {
        if key != "-" {
            show(key.as_bytes())?;
            continue;
        }
        for line in io::stdin().lock().split(b'\n') {
            show(&line.map_err(ClientFailure::Input)?)?;
        }
    }
    out.flush()?;
    Ok(Outcome::Found)
}
