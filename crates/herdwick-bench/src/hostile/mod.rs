//! The hostile neighbour: the effect on other clients of a client that writes random words over the
//! memory of its lease.

mod kind;
mod lease;

use std::{
    ffi::OsString,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
};

use herdwick::{Address, Options};
use herdwick_check::Rng;
use herdwick_mem::{Span, Words};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    host::{Stopwatch, pin},
    remote::Remote,
    server::ServerError,
};

pub use kind::Neighbour;
pub use lease::HostileLeaseError;
use lease::Prey;

/// A neighbour's process, killed on drop.
#[derive(Debug)]
pub(crate) struct NeighbourProcess(Child);

/// The line that a neighbour prints when it has started.
const BEGUN: &str = "begun";

impl NeighbourProcess {
    /// Starts `program` as a neighbour of the clients of `server`, on `cpus`. `access_flags` are the
    /// options with which it reaches the server.
    pub(crate) fn start(
        program: &Path,
        neighbour: Neighbour,
        (server, access_flags): (&Address, &[OsString]),
        cpus: &[usize],
    ) -> Result<Self, ServerError> {
        let cpus: Vec<String> = cpus.iter().map(ToString::to_string).collect();
        let mut command = Command::new(program);
        command.args([
            "bench-neighbour",
            neighbour.name(),
            &server.to_string(),
            &cpus.join(","),
        ]);
        command.args(access_flags);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let failed = |reason: String| ServerError::NotStarted {
            program: format!("{} bench-neighbour", program.display()),
            reason,
        };
        let child = command.spawn().map_err(|error| failed(error.to_string()))?;
        let mut process = Self(child);
        let mut line = String::new();
        if let Some(stdout) = process.0.stdout.as_mut() {
            // What was read of the line says whether it began.
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        match line.trim_end() {
            BEGUN => Ok(process),
            other => Err(failed(format!("its first line was {other:?}"))),
        }
    }
}

impl Drop for NeighbourProcess {
    fn drop(&mut self) {
        // Fails only for a process that has been waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs as a neighbour until standard input ends, which is when the process that started this one
/// ends.
///
/// # Errors
/// No lease was granted.
pub fn neighbour(
    kind: Neighbour,
    server: &str,
    access: Options,
    cpus: &[usize],
) -> Result<(), HostileLeaseError> {
    pin(cpus);
    let address = server.parse().map_err(herdwick::Error::from)?;
    let mut prey = match kind {
        Neighbour::Scribbler => Some(Prey::take(&Remote::new(address, access))?),
        Neighbour::Spinner => None,
    };
    println!("{BEGUN}");
    let _ = std::io::stdout().flush();
    let (mut rng, watch) = (Rng::new(watch_seed()), Stopwatch::start());
    let mut beats = 0;
    while !stdin_ended() {
        match &mut prey {
            Some(prey) => scribble(&prey.memory, &mut rng),
            None => spin(&mut rng),
        }
        let due = watch.ns() / lease::HEARTBEAT_NS;
        if let Some(prey) = prey.as_mut().filter(|_| due > beats) {
            beats = due;
            prey.beat();
        }
    }
    Ok(())
}

/// Words between two checks of standard input.
const STRETCH: usize = 1 << 16;

/// Writes random words to random places, each with a release store, as a client stores the word
/// that completes a request.
fn scribble(memory: &[Span], rng: &mut Rng) {
    for _ in 0..STRETCH / memory.len().max(1) {
        for span in memory {
            let at = rng.below(span.count() as u64) as usize;
            span.store_release(at, rng.bits());
        }
    }
}

/// Does the same arithmetic without the stores.
fn spin(rng: &mut Rng) {
    for _ in 0..STRETCH {
        std::hint::black_box((rng.below(1 << 20), rng.bits()));
    }
}

/// Seeds each neighbour differently.
fn watch_seed() -> u64 {
    u64::from(std::process::id())
}

fn stdin_ended() -> bool {
    let stdin = std::io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    let now = Timespec::default();
    // Nothing is ever written to standard input, so any event on it is its end.
    matches!(poll(&mut fds, Some(&now)), Ok(1..))
}
