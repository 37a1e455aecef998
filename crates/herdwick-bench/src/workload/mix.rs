//! Mixes of reads and writes (YCSB workloads), and distributions of keys.

use std::{fmt, str::FromStr};

/// YCSB's core workloads, except E: a hash table has no scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Half reads, half updates.
    A,
    /// 95 % reads, 5 % updates.
    B,
    /// Reads only.
    C,
    /// 95 % reads of recently inserted keys, 5 % inserts.
    D,
    /// Half reads, half read-modify-writes; a read-modify-write counts as two requests.
    F,
}

impl Workload {
    /// Returns its letter.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
            Self::C => "c",
            Self::D => "d",
            Self::F => "f",
        }
    }
}

/// The mix of reads and writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mix {
    /// A workload of YCSB.
    Ycsb(Workload),
    /// This share of reads, the rest updates.
    GetShare(f64),
}

impl Mix {
    /// Returns the share of reads among the requests.
    #[must_use]
    pub fn get_share(self) -> f64 {
        match self {
            Self::Ycsb(Workload::A) => 0.5,
            Self::Ycsb(Workload::B | Workload::D) => 0.95,
            Self::Ycsb(Workload::C) => 1.0,
            Self::Ycsb(Workload::F) => 2.0 / 3.0,
            Self::GetShare(share) => share,
        }
    }

    /// Returns its name in the report: YCSB's letter, or `mix`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ycsb(workload) => workload.name(),
            Self::GetShare(_) => "mix",
        }
    }
}

/// The distribution of requests over keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Dist {
    /// All keys are equally likely.
    Uniform,
    /// Zipf with this exponent, `0 < theta < 1`; YCSB uses 0.99.
    Zipf(f64),
}

/// A distribution that is neither `uniform` nor `zipf:THETA`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is no distribution: give uniform, or zipf:THETA with 0 < THETA < 1, such as zipf:.99"
)]
pub struct DistError(String);

impl FromStr for Dist {
    type Err = DistError;

    fn from_str(text: &str) -> Result<Self, DistError> {
        if text == "uniform" {
            return Ok(Self::Uniform);
        }
        let theta = text.strip_prefix("zipf:").and_then(|t| t.parse().ok());
        match theta {
            Some(theta) if theta > 0.0 && theta < 1.0 => Ok(Self::Zipf(theta)),
            _ => Err(DistError(text.to_owned())),
        }
    }
}

impl fmt::Display for Dist {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::Zipf(theta) => write!(f, "zipf:{theta}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distribution_names_round_trip() {
        for text in ["uniform", "zipf:0.99", "zipf:0.5"] {
            assert_eq!(text.parse::<Dist>().unwrap().to_string(), text);
        }
        assert_eq!("zipf:.99".parse(), Ok(Dist::Zipf(0.99)));
        for wrong in [
            "", "zipf", "zipf:", "zipf:0", "zipf:1", "zipf:nan", "zipf:-1", "gauss",
        ] {
            assert_eq!(wrong.parse::<Dist>(), Err(DistError(wrong.to_owned())));
        }
    }
}
