//! CPU affinity of the workers (`--pin`): parses the CPU list and assigns one CPU to each worker.

use std::str::FromStr;

use rustix::thread::CpuSet;

use super::error::StartError;

/// Whether each worker is pinned to one CPU.
///
/// Off by default: two servers on a host do not know of each other, and would choose the same CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Pin {
    /// Not pinned.
    #[default]
    Off,
    /// Worker n is pinned to the nth CPU that the process may use.
    Allowed,
    /// Worker n is pinned to the nth of these CPUs.
    Cpus(Vec<usize>),
}

impl FromStr for Pin {
    type Err = &'static str;

    /// Parses `off`, `auto`, or a list as in `taskset -c`: `0-3,8`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::Allowed),
            _ => list(text)
                .map(Self::Cpus)
                .ok_or("give auto, off, or CPUs such as 0-3,8"),
        }
    }
}

/// Parses a list of CPUs; `None` also for numbers beyond the kernel's limit.
fn list(text: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= CpuSet::MAX_CPU {
            return None;
        }
        cpus.extend(
            (first..=last)
                // Each CPU once, in the order given: worker n gets the nth.
                .filter(|cpu| !cpus.contains(cpu))
                .collect::<Vec<_>>(),
        );
    }
    Some(cpus)
}

impl Pin {
    /// Returns the CPU of each of `workers`, if they are pinned. Each must be in `allowed`.
    pub(crate) fn cpus(
        &self,
        allowed: &[usize],
        workers: usize,
    ) -> Result<Option<Vec<usize>>, StartError> {
        let cpus = match self {
            Self::Off => return Ok(None),
            Self::Allowed => allowed,
            Self::Cpus(cpus) => cpus,
        };
        if let Some(&cpu) = cpus.iter().find(|cpu| !allowed.contains(cpu)) {
            return Err(StartError::PinnedTo { cpu });
        }
        if cpus.len() < workers {
            let cpus = cpus.len();
            return Err(StartError::Pinned { cpus, workers });
        }
        Ok(Some(cpus[..workers].to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_parsed_as_by_taskset() {
        let cpus = |text: &str| {
            text.parse().map(|pin| match pin {
                Pin::Cpus(cpus) => cpus,
                other => panic!("{other:?}"),
            })
        };
        assert_eq!(cpus("3"), Ok(vec![3]));
        assert_eq!(cpus("0-2,8,1"), Ok(vec![0, 1, 2, 8]));
        assert_eq!("auto".parse(), Ok(Pin::Allowed));
        assert_eq!("off".parse(), Ok(Pin::Off));
        for wrong in ["", "x", "1-", "-1", "3-1", "1,,2", "0-4000000000"] {
            assert!(wrong.parse::<Pin>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn pinned_workers_need_a_cpu_each() {
        let allowed = [2, 3, 5];
        let cpus = |pin: Pin, workers| pin.cpus(&allowed, workers);
        assert_eq!(cpus(Pin::Off, 9).unwrap(), None);
        assert_eq!(cpus(Pin::Allowed, 2).unwrap(), Some(vec![2, 3]));
        assert_eq!(cpus(Pin::Cpus(vec![5, 2]), 1).unwrap(), Some(vec![5]));
        assert!(matches!(
            cpus(Pin::Allowed, 4),
            Err(StartError::Pinned {
                cpus: 3,
                workers: 4
            })
        ));
        assert!(matches!(
            cpus(Pin::Cpus(vec![2, 4]), 1),
            Err(StartError::PinnedTo { cpu: 4 })
        ));
    }
}
