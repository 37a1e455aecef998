//! The machine that a figure was measured on, as the manifest of a report records it.

use serde::{Deserialize, Serialize};

/// The machine that a figure was measured on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Host name.
    pub host: String,
    /// CPU model, as the kernel names it.
    pub cpu_model: String,
    /// CPUs that the benchmark was allowed to use.
    pub cpus: usize,
    /// Kernel release.
    pub kernel: String,
    /// Widest vectors that libc's memory functions use: `avx512`, `avx2`, `sse2`; or `unknown` if
    /// the libc is not glibc on x86-64.
    #[serde(default = "unknown")]
    pub libc_vectors: String,
    /// The value of `GLIBC_TUNABLES`, which may disable CPU features.
    #[serde(default)]
    pub glibc_tunables: Option<String>,
}

fn unknown() -> String {
    "unknown".to_owned()
}

impl Machine {
    /// Describes this machine, of which the benchmark may use `cpus` CPUs.
    #[must_use]
    pub fn here(cpus: usize) -> Self {
        let name = rustix::system::uname();
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let tunables = tunables();
        Self {
            libc_vectors: if cfg!(all(target_arch = "x86_64", target_env = "gnu")) {
                libc_vectors(&cpuinfo, tunables.as_deref().unwrap_or_default()).to_owned()
            } else {
                unknown()
            },
            glibc_tunables: tunables,
            host: name.nodename().to_string_lossy().into_owned(),
            cpu_model: cpu_model(&cpuinfo).to_owned(),
            cpus,
            kernel: name.release().to_string_lossy().into_owned(),
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "glibc reads it from there alone, and figures depend on it"
)]
fn tunables() -> Option<String> {
    std::env::var("GLIBC_TUNABLES").ok()
}

/// Returns the vectors that glibc chooses on a CPU, without the features that the tunables disable.
fn libc_vectors(cpuinfo: &str, tunables: &str) -> &'static str {
    let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let flags = lines.find(|(field, _)| field.trim() == "flags");
    let flags = flags.map_or("", |(_, flags)| flags);
    let hwcaps = tunables.split(':').find_map(|tunable| {
        let (name, value) = tunable.split_once('=')?;
        name.ends_with(".hwcaps").then_some(value)
    });
    let left_out = |feature: &str| {
        let mut words = hwcaps.unwrap_or_default().split(',');
        // Before glibc 2.33 the feature names ended with _Usable.
        words.any(|word| {
            word.strip_prefix('-')
                .map(|name| name.trim_end_matches("_Usable"))
                == Some(feature)
        })
    };
    let has = |flag: &str, feature: &str| {
        flags.split_whitespace().any(|word| word == flag) && !left_out(feature)
    };
    if has("avx512vl", "AVX512VL") && has("avx512bw", "AVX512BW") {
        "avx512"
    } else if has("avx2", "AVX2") {
        "avx2"
    } else {
        "sse2"
    }
}

impl Machine {
    /// Returns the differences that make figures of the two hard to compare.
    pub(crate) fn differences(&self, other: &Self) -> Vec<String> {
        let pairs = [
            (&self.host, &other.host),
            (&self.cpu_model, &other.cpu_model),
            (&self.kernel, &other.kernel),
            (&self.libc_vectors, &other.libc_vectors),
        ];
        let differs = pairs.into_iter().filter(|(a, b)| a != b);
        differs.map(|(a, b)| format!("{a}, now {b}")).collect()
    }
}

/// Returns the model name from /proc/cpuinfo; without one, as on many other architectures, the name
/// of the architecture.
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
    fn cpu_model_is_found_or_replaced_by_the_architecture() {
        assert_eq!(
            cpu_model("processor\t: 0\nmodel name\t: A: B\nmodel\t: 1\n"),
            "A: B"
        );
        assert_eq!(cpu_model(""), std::env::consts::ARCH);
    }

    #[test]
    fn vector_extensions_are_the_cpus_without_those_glibc_disables() {
        let zen5 = "flags\t\t: fpu avx2 avx512f avx512bw avx512vl\n";
        let zen2 = "flags\t\t: fpu avx2\n";
        assert_eq!(libc_vectors(zen5, ""), "avx512");
        assert_eq!(libc_vectors(zen2, ""), "avx2");
        assert_eq!(libc_vectors("flags : fpu\n", ""), "sse2");
        let without = "glibc.malloc.check=1:glibc.cpu.hwcaps=-AVX512F,-AVX512VL";
        assert_eq!(libc_vectors(zen5, without), "avx2");
        assert_eq!(
            libc_vectors(zen5, "glibc.tune.hwcaps=-AVX512VL_Usable"),
            "avx2"
        );
        assert_eq!(
            libc_vectors(zen5, "glibc.cpu.hwcaps=-AVX512VL,-AVX2"),
            "sse2"
        );
        assert_eq!(libc_vectors(zen5, "glibc.cpu.hwcaps=AVX512VL"), "avx512");
    }

    #[test]
    fn machine_reports_its_kernel_and_cpu() {
        let machine = Machine::here(3);
        assert_eq!(machine.cpus, 3);
        assert!(machine.kernel.starts_with(|c: char| c.is_ascii_digit()));
    }
}
