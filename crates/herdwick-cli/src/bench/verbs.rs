//! The options of `herdwick bench verbs`.

use clap::Args;
use herdwick_bench::{
    Design, DesignPlan, Direction, Level, Verb, VerbPlan, VerbTransport, parse_size,
    parse_transport, parse_yes,
};

use crate::units::count;

/// What `herdwick bench verbs` posts. Every option but --all-to-all and --region takes a list; all
/// combinations are measured.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Options of verbs")]
pub(super) struct VerbArgs {
    /// send, write, read, fetch-add, cas.
    #[arg(long, default_value = "write", value_name = "VERB,..")]
    verb: Vec<Verb>,
    /// rc, uc, ud; each carries the verbs of Table 1 of the HERD paper.
    #[arg(long, default_value = "rc", value_name = "TRANSPORT,..", value_parser = parse_transport)]
    transport: Vec<VerbTransport>,
    /// inbound: clients post to the server; outbound: the server posts to clients.
    #[arg(long, default_value = "inbound", value_name = "DIRECTION,..")]
    direction: Vec<Direction>,
    /// Each thread posts to every thread of the other side, at random.
    #[arg(long)]
    all_to_all: bool,
    /// Bytes of a payload.
    #[arg(long, default_value = "32", value_name = "B,..", value_parser = parse_size)]
    payload: Vec<usize>,
    /// Whether SENDs and WRITEs carry their payload inline: yes, no [default: where it fits].
    #[arg(long, value_name = "YES,..", value_parser = parse_yes)]
    inline: Vec<bool>,
    /// Signal every Nth verb, and the last that fits the window.
    #[arg(long, default_value = "1", value_name = "N,..", value_parser = count::<usize>)]
    signaled: Vec<usize>,
    /// Work requests in a post.
    #[arg(long, default_value = "1", value_name = "N,..", value_parser = count::<usize>)]
    postlist: Vec<usize>,
    /// Queue pairs between a client thread and a server thread.
    #[arg(long, default_value = "1", value_name = "N,..", value_parser = count::<usize>)]
    queue_pairs: Vec<usize>,
    /// Bytes of each thread's memory that one-sided verbs access at random.
    #[arg(long, default_value = "256K", value_name = "B", value_parser = parse_size)]
    region: usize,
    /// ECHO in these designs of Fig 5 of the HERD paper, in place of a verb: send-send, send-send-ud,
    /// write-write, write-send.
    #[arg(long, value_name = "DESIGN,..", conflicts_with_all = ECHO_FIXES)]
    echo: Vec<Design>,
    /// Optimizations of --echo, each with those before it: basic, unsignaled, unreliable, inlined.
    #[arg(
        long,
        default_value = "inlined",
        value_name = "LEVEL,..",
        requires = "echo"
    )]
    level: Vec<Level>,
    /// Random memory accesses of --echo's server for a request.
    #[arg(long, default_value = "0", value_name = "N,..", requires = "echo", value_parser = count::<usize>)]
    accesses: Vec<usize>,
    /// Whether a pipeline of requests prefetches for --accesses: yes, no.
    #[arg(long, default_value = "yes", value_name = "YES,..", value_parser = parse_yes, requires = "accesses")]
    prefetch: Vec<bool>,
}

/// Options that a design of an ECHO decides.
const ECHO_FIXES: [&str; 9] = [
    "verb",
    "transport",
    "direction",
    "all_to_all",
    "inline",
    "signaled",
    "postlist",
    "queue_pairs",
    "region",
];

impl VerbArgs {
    /// Returns the designs of an ECHO to be measured; `None`: verbs are.
    pub(super) fn designs(&self, windows: &[usize], clients: &[usize]) -> Option<DesignPlan> {
        (!self.echo.is_empty()).then(|| DesignPlan {
            designs: self.echo.clone(),
            levels: self.level.clone(),
            payloads: self.payload.clone(),
            windows: windows.to_vec(),
            clients: clients.to_vec(),
            accesses: self.accesses.clone(),
            prefetch: self.prefetch.clone(),
        })
    }

    /// Returns what is to be measured; `windows` and `clients` are options of other benchmarks too.
    pub(super) fn plan(&self, windows: &[usize], clients: &[usize]) -> VerbPlan {
        VerbPlan {
            kinds: self.verb.clone(),
            transports: self.transport.clone(),
            inline: self.inline.clone(),
            signaled: self.signaled.clone(),
            postlists: self.postlist.clone(),
            payloads: self.payload.clone(),
            windows: windows.to_vec(),
            queue_pairs: self.queue_pairs.clone(),
            clients: clients.to_vec(),
            directions: self.direction.clone(),
            all_to_all: self.all_to_all,
            memory: self.region,
        }
    }
}
