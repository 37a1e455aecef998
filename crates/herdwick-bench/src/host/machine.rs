use serde::{Deserialize, Serialize};

/// What a figure was measured on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Its name.
    pub host: String,
    /// Its CPU, as the kernel names it.
    pub cpu_model: String,
    /// CPUs that the benchmark was allowed to use.
    pub cpus: usize,
    /// Kernel release.
    pub kernel: String,
}

impl Machine {
    /// This one, of which the benchmark may use `cpus` CPUs.
    #[must_use]
    pub fn here(cpus: usize) -> Self {
        let name = rustix::system::uname();
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Self {
            host: name.nodename().to_string_lossy().into_owned(),
            cpu_model: cpu_model(&cpuinfo).to_owned(),
            cpus,
            kernel: name.release().to_string_lossy().into_owned(),
        }
    }
}

/// x86 says `model name`; others that say nothing are called by their architecture.
fn cpu_model(cpuinfo: &str) -> &str {
    let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    lines
        .find(|(field, _)| field.trim() == "model name")
        .map_or(std::env::consts::ARCH, |(_, model)| model.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_found_or_named_by_architecture() {
        assert_eq!(
            cpu_model("processor\t: 0\nmodel name\t: A: B\nmodel\t: 1\n"),
            "A: B"
        );
        assert_eq!(cpu_model(""), std::env::consts::ARCH);
    }

    #[test]
    fn this_machine_has_a_kernel_and_a_cpu() {
        let machine = Machine::here(3);
        assert_eq!(machine.cpus, 3);
        assert!(machine.kernel.starts_with(|c: char| c.is_ascii_digit()));
    }
}
