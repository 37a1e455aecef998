//! memcached over UDP: its port, and the networks that it trusts, in CIDR notation.

use std::{fmt, net::IpAddr, str::FromStr};

/// memcached over UDP (memcached's `-U`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Udp {
    /// The port, on each address that the server listens on; 0 takes a free one.
    pub port: u16,
    /// Networks with addresses that cannot be forged: they get complete replies, as loopback does.
    pub trusted: Vec<Network>,
}

/// An IP network: the addresses that share their first `bits` bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u32,
}

impl Network {
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                // The first `bits` bits are equal if no differing bit lies among them.
                let differing = (a.to_bits() ^ b.to_bits()).leading_zeros();
                differing >= self.bits
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                let differing = (a.to_bits() ^ b.to_bits()).leading_zeros();
                differing >= self.bits
            }
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = String;

    /// Parses `ADDRESS/BITS`, or a single `ADDRESS`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let wrong = || "give a network, for example 10.0.0.0/8".to_owned();
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let all = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(all), |bits| bits.parse().map_err(|_| wrong()))?;
        (bits <= all)
            .then_some(Self { address, bits })
            .ok_or_else(wrong)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_contains_addresses_with_its_prefix() {
        for (network, address, holds) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "10.1.2.2", false),
            ("0.0.0.0/0", "1.2.3.4", true),
            ("0.0.0.0/0", "::1", false),
            ("fd00::/8", "fdff::1", true),
            ("fd00::/8", "fe00::1", false),
            ("192.168.1.128/25", "192.168.1.127", false),
        ] {
            let network: Network = network.parse().unwrap();
            assert_eq!(
                network.contains(address.parse().unwrap()),
                holds,
                "{network}"
            );
        }
        for wrong in ["", "10.0.0.0/33", "10.0.0/8", "::/129", "10.0.0.0/", "x"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }
}
