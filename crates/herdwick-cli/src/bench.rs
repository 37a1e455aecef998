//! `herdwick bench`: parses the options, runs the benchmark, and writes the table and the files.
//! Circular import with `options`: the definition of the options stands here, its check there.

mod failure;
pub(crate) mod guard;
mod neighbour;
mod options;
mod sweep;
mod systems;
mod verbs;

use std::{
    fs::File,
    io::{self, IsTerminal, Write, stderr},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{ArgMatches, Args};
use herdwick::RequestPath;
use herdwick_bench::{
    self as bench, Against, BenchError, Config, Dist, EmulatedSystem, Fabric, FarmValues, Mix,
    Neighbour, Percentiles, Progress, Report, Subject, Table, Workload, parse_count, parse_size,
};

pub(crate) use self::neighbour::{NeighbourArgs, neighbour};
use self::{
    failure::BenchFailure,
    sweep::crossed,
    systems::{HerdMode, Letter, System},
    verbs::VerbArgs,
};
use crate::{client::Access, exit::Exit, lists, say, units::count};

/// Measure the store alone, or a whole server over each transport, and report everything that a
/// figure depends on.
///
/// Without --server it starts its own server, on separate CPUs if there is more than one. Values
/// are checked: a miss is counted, a wrong value fails the benchmark. An option that takes a list,
/// such as --value-size 16,32,64, makes a sweep: one table for each combination, and one JSON.
#[derive(Args, Clone, Debug)]
#[command(mut_args(lists::separated))]
pub(crate) struct BenchArgs {
    /// What to measure; echo,herd measures both in turn.
    #[arg(value_enum, default_value = "herd", value_name = "SYSTEM,..")]
    systems: Vec<System>,
    /// Transports to the server, interleaved run by run and compared: shm, verbs, roce, tcp
    /// (memcached's protocol) [default: those that the server offers].
    #[arg(long, value_name = "FABRIC,..")]
    fabric: Vec<Fabric>,
    /// With --fabric roce: also measure plain datagrams of the same sizes through the same sockets.
    #[arg(long)]
    bare: bool,
    /// Measure this running server, at HOST:PORT or a unix socket; with --fabric tcp it may be any
    /// memcached. --login and --tls are for it alone.
    #[arg(long, value_name = "HOST:PORT")]
    server: Option<String>,
    #[command(flatten)]
    access: Access,
    /// YCSB workload: a half updates, b 5 % updates, c reads only, d reads of the latest, f
    /// read-modify-writes.
    #[arg(long, value_enum, default_value_t = Letter::B)]
    workload: Letter,
    /// Share of reads, 0 to 1, instead of --workload; the rest are updates.
    #[arg(long, value_name = "F,..", conflicts_with = "workload")]
    get_share: Vec<f64>,
    /// Distribution of the keys: zipf:THETA with 0 < THETA < 1, or uniform.
    #[arg(long, default_value = "zipf:.99")]
    dist: Dist,
    /// Number of keys; K, M and G are powers of 1,000.
    #[arg(long, default_value = "1M", value_name = "N,..", value_parser = parse_count)]
    keys: Vec<u64>,
    /// Bytes of a key.
    #[arg(long, default_value = "16", value_name = "B", value_parser = parse_size)]
    key_size: usize,
    /// Bytes of a value; K and M are powers of 1,024.
    #[arg(long, default_value = "32", value_name = "B,..", value_parser = parse_size)]
    value_size: Vec<usize>,
    /// Measured seconds of each run, after a warm-up of a fifth of it, at most one second.
    #[arg(long, default_value_t = 5.0, value_name = "S")]
    seconds: f64,
    /// Client threads.
    #[arg(long, default_value = "1", value_name = "N,..", value_parser = count::<usize>)]
    clients: Vec<usize>,
    /// HERD requests in flight, of each client at each worker: a power of two, at most 256; or verbs
    /// outstanding on a queue pair, at most 1024.
    #[arg(long, default_values_t = [Config::default().window], value_name = "N,..", value_parser = count::<usize>)]
    window: Vec<usize>,
    /// HERD as it serves (batch), or with the request format and the pipeline of the paper, in this process
    /// (paper); batch,paper measures both.
    #[arg(long, value_enum, value_name = "MODE,..")]
    herd: Vec<HerdMode>,
    /// With --herd paper: replies of fewer bytes are inlined; the paper has 144 and 192 [default: 144].
    #[arg(long, value_name = "B,..", value_parser = parse_size)]
    inline_below: Vec<usize>,
    /// Data nodes of Clover, each with a replica of everything [default: 1].
    #[arg(long, value_name = "N,..", value_parser = count::<usize>)]
    replicas: Vec<usize>,
    /// Request path of HERD: uc-write, rc-write or ud-send [default: the one that the server
    /// chooses].
    #[arg(long, value_name = "PATH")]
    request_path: Option<RequestPath>,
    /// TCP connections, of all clients together.
    #[arg(long, default_value_t = Config::default().connections, value_name = "N", value_parser = count::<usize>)]
    connections: usize,
    /// Also measure the server with this many idle TCP connections.
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = count::<usize>)]
    idle_connections: usize,
    /// Requests in flight on a TCP connection.
    #[arg(long, default_value = "1", value_name = "N,..", value_parser = count::<usize>)]
    pipeline: Vec<usize>,
    /// Keys in one TCP get.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = count::<usize>)]
    multiget: usize,
    /// Requests in a batch of the bare store.
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = count::<usize>)]
    batch: usize,
    /// Have the bare store in published memory, and measure reads of that memory without the store, too
    /// (one-sided).
    #[arg(long)]
    published: bool,
    /// Open loop: this many operations per second; latency counts from when each was due.
    #[arg(long, value_name = "OPS,..", value_parser = parse_count)]
    rate: Vec<u64>,
    /// Runs of each kind; the figures are their medians.
    #[arg(long, default_value_t = Config::default().runs, value_name = "N", value_parser = count::<usize>)]
    runs: usize,
    /// Workers of its own server, or server threads of verbs [default: half of the CPUs, at most 4].
    #[arg(long, value_name = "N,..", value_parser = count::<usize>)]
    workers: Vec<usize>,
    /// Memory of its own server or store, MiB [default: ample for the keys].
    #[arg(long, value_name = "MB", value_parser = count::<u64>)]
    memory: Option<u64>,
    /// With cache: run these traces through this store, memcached, and models of LRU, S3-FIFO,
    /// SIEVE and Belady's rule: all, names of the built-in ones, or files in libCacheSim's
    /// oracleGeneral format or, if the name ends in .csv, with time, key, size and perhaps an
    /// operation and a TTL in each line.
    #[arg(long, value_name = "TRACE,..")]
    trace: Vec<String>,
    /// With --trace: a quarter of the requests of built-in traces, and only the second of three
    /// sizes of memory, in most of them a tenth of the data.
    #[arg(long, requires = "trace")]
    quick: bool,
    /// Also write the report to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write all latencies to this file, in HdrHistogram's percentile format (.hgrm), in
    /// microseconds. If the table has several lines, each is written to its own file
    /// (FILE.SYSTEM-FABRIC), and FILE lists their names.
    #[arg(long, value_name = "FILE")]
    hdr: Option<PathBuf>,
    /// Compare with this report, written earlier by --json: print the change of each figure, and
    /// the range between two runs.
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    #[command(flatten)]
    verbs: VerbArgs,
}

/// Runs the benchmark. A wrong value or a failed request makes it return 1, the table of
/// [`crate::exit`] what else went wrong. `given`: the options as clap has parsed them.
pub(crate) fn run(args: &BenchArgs, given: &ArgMatches) -> ExitCode {
    let args = BenchArgs {
        systems: args.systems_by_mode(),
        ..args.clone()
    };
    match report(&args, given) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => Exit::No.into(),
        Err(failure) => {
            say::complain(&failure);
            Exit::from(&failure).into()
        }
    }
}

/// Measures, and writes the report; returns whether every request had the right answer.
fn report(args: &BenchArgs, given: &ArgMatches) -> Result<bool, BenchFailure> {
    let alone = |system: &&System| {
        matches!(
            system,
            System::Store | System::Idle | System::Cache | System::Verbs
        )
    };
    if let (true, Some(system)) = (args.systems.len() > 1, args.systems.iter().find(alone)) {
        return Err(BenchFailure::Alone(system.name()));
    }
    if let (None, Some(option)) = (&args.server, args.access.given()) {
        return Err(BenchFailure::NoServer { option });
    }
    options::check(args, given)?;
    let configs = args.configs()?;
    let files = ReportFiles::open(args)?;
    let mut shown = Ok(());
    let mut whole: Option<Report> = None;
    for config in &configs {
        let measured = measure(args, config);
        let report = measured.map_err(|error| BenchFailure::of(args.server.as_deref(), error))?;
        let printed = files.print(&report);
        shown = shown.and(printed);
        match &mut whole {
            None => whole = Some(report),
            Some(whole) => whole.results.extend(report.results),
        }
    }
    let Some(whole) = whole else {
        return Ok(true);
    };
    // What cannot be shown can still be kept.
    files.write(&whole)?;
    shown.map_err(BenchFailure::Unshown)?;
    Ok(whole.is_sound())
}

/// The files to write the report to, and the baseline to compare with: opened before the benchmark,
/// so that a wrong path fails at once.
struct ReportFiles<'a> {
    json: Option<OutputFile<'a>>,
    hdr: Option<OutputFile<'a>>,
    baseline: Option<Report>,
}

struct OutputFile<'a> {
    option: &'static str,
    path: &'a Path,
    file: File,
}

impl<'a> OutputFile<'a> {
    fn create(option: &'static str, path: &'a Path) -> Result<Self, BenchFailure> {
        let file = File::create(path).map_err(unwritable(option, path))?;
        Ok(Self { option, path, file })
    }

    fn write(&mut self, text: &str) -> Result<(), BenchFailure> {
        let written = self.file.write_all(text.as_bytes());
        written.map_err(unwritable(self.option, self.path))
    }
}

fn unwritable(option: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BenchFailure {
    let path = path.to_owned();
    move |source| BenchFailure::Unwritable {
        option,
        path,
        source,
    }
}

impl<'a> ReportFiles<'a> {
    fn open(args: &'a BenchArgs) -> Result<Self, BenchFailure> {
        let output = |option, path: &'a Option<PathBuf>| {
            let path = path.as_deref();
            path.map(|path| OutputFile::create(option, path))
                .transpose()
        };
        Ok(Self {
            // First: the baseline may be the file that --json overwrites.
            baseline: args.against.as_deref().map(baseline).transpose()?,
            json: output("--json", &args.json)?,
            hdr: output("--hdr", &args.hdr)?,
        })
    }

    /// Prints the report of one combination of options.
    fn print(&self, report: &Report) -> io::Result<()> {
        let mut shown = say::report(Table(report));
        if let Some(baseline) = &self.baseline {
            shown = shown.and_then(|()| say::report(Against { baseline, report }));
        }
        shown
    }

    /// Writes the files.
    fn write(self, report: &Report) -> Result<(), BenchFailure> {
        if let Some(mut json) = self.json {
            json.write(&(report.to_json() + "\n"))?;
        }
        self.hdr.map_or(Ok(()), |hdr| write_latencies(hdr, report))
    }
}

fn baseline(path: &Path) -> Result<Report, BenchFailure> {
    let text = std::fs::read_to_string(path).map_err(|source| BenchFailure::Unreadable {
        path: path.to_owned(),
        source,
    })?;
    serde_json::from_str(&text).map_err(|source| BenchFailure::Baseline {
        path: path.to_owned(),
        source,
    })
}

fn write_latencies(mut hdr: OutputFile<'_>, report: &Report) -> Result<(), BenchFailure> {
    let known = report.results.iter().filter_map(|result| {
        let latencies = result.latencies_ns.as_ref()?;
        Some((&result.subject, Percentiles(latencies).to_string()))
    });
    let known: Vec<_> = known.collect();
    match &known[..] {
        [] => Err(BenchFailure::NoLatencies),
        [(_, one)] => hdr.write(one),
        several => several
            .iter()
            .enumerate()
            .try_for_each(|(index, (subject, text))| {
                let (system, _) = name_of(subject);
                let mut path = hdr.path.as_os_str().to_owned();
                path.push(format!(".{system}-{}", subject.fabric));
                // A sweep has several lines of one name.
                let same = |other: &&(&Subject, String)| name_of(other.0) == name_of(subject);
                let before = known.iter().take(index).filter(same).count();
                if before > 0 {
                    path.push(format!("-{}", before + 1));
                }
                OutputFile::create("--hdr", Path::new(&path))?.write(text)?;
                hdr.write(&format!("{}\n", Path::new(&path).display()))
            }),
    }
}

/// Returns the names that distinguish the lines of a table.
fn name_of(subject: &Subject) -> (&String, &String) {
    let system = subject.beside.as_ref().unwrap_or(&subject.system);
    (system, &subject.fabric)
}

fn measure(args: &BenchArgs, config: &Config) -> Result<Report, BenchError> {
    // On a terminal alone: the line is written over itself.
    let live = stderr().is_terminal();
    let mut watch = |progress: &Progress| {
        if live {
            // Errors are ignored: the progress line is dispensable.
            let _ = write!(stderr(), "\r\x1b[K{progress}");
        }
    };
    let report = match args.systems[..] {
        [System::Store] => bench::store(config, &mut watch),
        [System::Idle] => bench::idle(config, &mut watch),
        [System::Cache] => bench::cache(config, &mut watch),
        [System::Verbs] => {
            let (windows, clients) = (&args.window[..], &args.clients[..]);
            match args.verbs.designs(windows, clients) {
                Some(plan) => bench::design(config, &plan, &mut watch),
                None => bench::verb(config, &args.verbs.plan(windows, clients), &mut watch),
            }
        }
        _ => bench::compare(config, &mut watch),
    };
    if live {
        let _ = write!(stderr(), "\r\x1b[K");
    }
    report
}

impl BenchArgs {
    /// Returns a configuration for each combination of the lists.
    fn configs(&self) -> Result<Vec<Config>, BenchFailure> {
        let mut configs = vec![self.config()?];
        configs = crossed(configs, &self.keys, |config, it| config.keys = it);
        configs = crossed(configs, &self.value_size, |config, it| {
            config.value_size = it;
        });
        configs = crossed(configs, &self.get_share, |config, it| {
            config.mix = Mix::GetShare(it);
        });
        configs = crossed(configs, &self.workers, |config, it| {
            config.workers = Some(it);
        });
        // The benchmark of verbs makes the combinations of these itself.
        if !matches!(self.systems[..], [System::Verbs]) {
            configs = crossed(configs, &self.clients, |config, it| config.clients = it);
            configs = crossed(configs, &self.window, |config, it| config.window = it);
        }
        configs = crossed(configs, &self.inline_below, |config, it| {
            config.inline_below = it;
        });
        configs = crossed(configs, &self.replicas, |config, it| config.replicas = it);
        configs = crossed(configs, &self.pipeline, |config, it| config.pipeline = it);
        Ok(crossed(configs, &self.rate, |config, it| {
            config.rate = Some(it as f64);
        }))
    }

    /// Returns the systems, with each mode of HERD that was asked for in HERD's place.
    fn systems_by_mode(&self) -> Vec<System> {
        let modes = self.herd.iter().map(|mode| match mode {
            HerdMode::Batch => System::Herd,
            HerdMode::Paper => System::HerdPaper,
        });
        let modes: Vec<_> = modes.collect();
        let of = |system: &System| match system {
            System::Herd if !modes.is_empty() => modes.clone(),
            system => vec![*system],
        };
        self.systems.iter().flat_map(of).collect()
    }

    /// Returns the options that take no list.
    fn config(&self) -> Result<Config, BenchFailure> {
        let access = self
            .access
            .options()
            .map_err(|source| BenchFailure::Access {
                server: self.server.clone().unwrap_or_default(),
                source,
            })?;
        let systems = self.systems.iter().flat_map(|system| match system {
            // They are measured alone, by functions of their own.
            System::Store | System::Idle | System::Cache | System::Verbs => &[][..],
            System::Echo => &[bench::System::Echo],
            System::Farm => &[bench::System::Farm(FarmValues::Inline)],
            System::FarmVar => &[bench::System::Farm(FarmValues::OutOfTable)],
            System::Pilaf => &[bench::System::Pilaf],
            System::Memrdma => &[bench::System::Memrdma],
            System::Clover => &[bench::System::Clover],
            System::PilafEmOpt => &[bench::System::Emulated(EmulatedSystem::PilafOpt)],
            System::FarmEm => &[bench::System::Emulated(EmulatedSystem::Farm)],
            System::FarmEmVar => &[bench::System::Emulated(EmulatedSystem::FarmVar)],
            System::Herd if self.idle_connections > 0 => {
                &[bench::System::Herd, bench::System::Crowded]
            }
            System::Herd => &[bench::System::Herd],
            System::HerdPaper => &[bench::System::HerdPaper],
            System::OneSided => &[bench::System::OneSided],
            System::Hostile => &[
                bench::System::Beside(Neighbour::Scribbler),
                bench::System::Beside(Neighbour::Spinner),
            ],
        });
        // Last, since the table compares each line with the last one.
        let bare = self.bare.then_some(bench::System::Bare);
        Ok(Config {
            systems: systems.copied().chain(bare).collect(),
            fabrics: self.fabric.clone(),
            server: self.server.clone(),
            access,
            access_flags: self.access.flags(),
            program: std::env::current_exe().unwrap_or_else(|_| PathBuf::from("herdwick")),
            mix: self.mix(),
            dist: self.dist,
            key_size: self.key_size,
            seconds: self.seconds,
            memory_mb: self.memory,
            request_path: self.request_path,
            connections: self.connections,
            idle_connections: self.idle_connections,
            multiget: self.multiget,
            batch: self.batch,
            published: self.published,
            runs: self.runs,
            traces: self.trace.clone(),
            quick: self.quick,
            ..Config::default()
        })
    }

    fn mix(&self) -> Mix {
        let workload = match self.workload {
            Letter::A => Workload::A,
            Letter::B => Workload::B,
            Letter::C => Workload::C,
            Letter::D => Workload::D,
            Letter::F => Workload::F,
        };
        Mix::Ycsb(workload)
    }
}
