//! A run of a system whose server is a thread of this process, its code compiled for the fabric's provider.

use herdwick_fabric::Device;
use herdwick_providers::{AnyPort, VisitAll};

use crate::{
    BenchError, Config, Progress, System,
    lines::{
        DEADLINE, EchoTarget, PaperSizes, PaperTarget, clover, emulated, farm, memrdma, pilaf,
    },
    measure::Bout,
    report::Run,
    workload::Trace,
};

/// A run.
pub(crate) struct RunInProcess<'a> {
    pub(crate) config: &'a Config,
    pub(crate) bout: Bout<'a>,
    pub(crate) system: System,
    /// The CPU of the server.
    pub(crate) cpus: &'a [usize],
    pub(crate) traces: &'a mut [Trace],
    pub(crate) watch: &'a mut dyn FnMut(&Progress),
}

impl VisitAll for RunInProcess<'_> {
    type Output = Result<Run, BenchError>;

    fn visit<D>(self, worker: D, clients: Vec<D>) -> Self::Output
    where
        D: Device<Port: Into<AnyPort> + 'static> + Send + 'static,
    {
        let Self {
            config,
            bout,
            cpus,
            traces,
            watch,
            ..
        } = self;
        let (devices, space) = ((worker, clients), bout.space);
        let (window, keys) = (config.window, config.keys);
        match self.system {
            System::Farm(values) => {
                let targets = farm::targets(devices, (values, window, keys), space, cpus)?;
                bout.run(targets, traces, watch)
            }
            System::Emulated(system) => {
                let terms = (system, window, keys);
                let targets = emulated::targets(devices, terms, space, cpus)?;
                bout.run(targets, traces, watch)
            }
            System::HerdPaper => {
                let sizes = PaperSizes {
                    window,
                    keys,
                    memory_bytes: (config.memory_mb() as usize) << 20,
                    inline_below: config.inline_below,
                    deadline: DEADLINE,
                };
                let targets = PaperTarget::endpoints(devices, sizes, space, cpus)?;
                bout.run(targets, traces, watch)
            }
            System::Pilaf => {
                let targets = pilaf::targets(devices, (window, keys), space, cpus)?;
                bout.run(targets, traces, watch)
            }
            System::Memrdma => {
                let targets = memrdma::targets(devices, (window, keys), space, cpus)?;
                bout.run(targets, traces, watch)
            }
            System::Clover => {
                let terms = (config.replicas, window, keys);
                let targets = clover::targets(devices, terms, space, cpus)?;
                bout.run(targets, traces, watch)
            }
            System::Echo
            | System::Bare
            | System::Herd
            | System::OneSided
            | System::Crowded
            | System::Beside(_) => {
                let path = config.request_path.unwrap_or_default();
                let targets = EchoTarget::endpoints(devices, (path, window), space, cpus)?;
                bout.run(targets, traces, watch)
            }
        }
    }
}
