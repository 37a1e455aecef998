//! Checks of the software RNIC: UDP sockets, and what makes them fast.

use std::{
    fs, io,
    net::{Ipv4Addr, UdpSocket},
    path::Path,
};

use herdwick_roce_udp::{GsoSupport, UDP_PORT, UdpProbe, probe};

use crate::check::{Check, Checks};

/// Socket buffer, in bytes, that holds a burst of many clients.
const BUFFER_WANTED: usize = 1 << 20;
/// MTU that a packet with 1,024 bytes of payload needs.
const MTU_WANTED: u32 = 1124;

pub(crate) fn checks() -> Checks {
    let probed = probe();
    // Closed again: it is only tried whether a server could have it.
    let port = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, UDP_PORT)).map(drop);
    Checks::from([
        ("udp_gso", gso(probed.as_ref())),
        ("udp_buffer", buffer(probed.as_ref().ok())),
        ("udp_port", port_4791(port)),
        ("mtu", mtu(&links(Path::new("/sys/class/net")))),
        ("firewall", packet_filter()),
    ])
}

/// Checks whether a packet filter may block RoCEv2, of the software RNIC or of a hardware one.
pub(crate) fn packet_filter() -> Check {
    // The file is missing without the module ip_tables; nftables is checked separately.
    let tables = fs::read_to_string("/proc/net/ip_tables_names").unwrap_or_default();
    firewall(&tables, is_loaded("nf_tables"))
}

fn gso(probed: Result<&UdpProbe, &io::Error>) -> Check {
    let (says, seen) = match probed {
        // Without them it works, too, so none of these is a failure.
        Ok(probe) => match probe.gso {
            GsoSupport::Whole => ("datagrams leave by GSO and arrive by GRO", "whole"),
            GsoSupport::Split => (
                "datagrams arrive one by one: GRO came with Linux 5.0, and are many times faster",
                "split",
            ),
            GsoSupport::None => (
                "datagrams leave one by one: GSO came with Linux 4.18, and are many times faster",
                "none",
            ),
        },
        Err(error) => {
            return Check::would_work_if(
                format!("a datagram over the loopback: {error}"),
                "ip link set lo up",
            );
        }
    };
    Check::works(says).fact("gso", seen)
}

fn buffer(probe: Option<&UdpProbe>) -> Check {
    let Some(UdpProbe { receive_buffer, .. }) = probe else {
        return Check::cannot("no UDP socket could be opened");
    };
    let kilobytes = receive_buffer >> 10;
    // A small one works, too, for few clients.
    let check = if *receive_buffer >= BUFFER_WANTED {
        Check::works(format!("{kilobytes} KiB of datagrams may wait"))
    } else {
        Check::works(format!(
            "{kilobytes} KiB of datagrams may wait; for hundreds of clients at once: \
             sudo sysctl -w net.core.rmem_max=4194304"
        ))
    };
    check.fact("bytes", *receive_buffer)
}

fn port_4791(bound: io::Result<()>) -> Check {
    match bound {
        Ok(()) => Check::works(format!("UDP port {UDP_PORT} is free")),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Check::would_work_if(
            format!("UDP port {UDP_PORT} is taken: by the module rdma_rxe, or by another server"),
            "herdwick serve --roce ADDR:ANOTHER_PORT",
        ),
        Err(error) => Check::would_work_if(
            format!("UDP port {UDP_PORT}: {error}"),
            "run it where UDP sockets are allowed",
        ),
    }
}

/// Returns names and MTUs of the interfaces except the loopback.
// What cannot be read is left out: an interface may go away meanwhile.
fn links(directory: &Path) -> Vec<(String, u32)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut links: Vec<_> = entries
        .filter_map(|entry| {
            let mtu = fs::read_to_string(entry.path().join("mtu")).ok()?;
            let name = entry.file_name().into_string().ok()?;
            Some((name, mtu.trim().parse().ok()?))
        })
        .filter(|(name, _)| name != "lo")
        .collect();
    // The order of a directory is not fixed.
    links.sort();
    links
}

fn mtu(links: &[(String, u32)]) -> Check {
    let list: Vec<_> = links
        .iter()
        .map(|(name, mtu)| format!("{name} {mtu}"))
        .collect();
    // A check has one advice: that for the first.
    let narrow = links.iter().find(|(_, mtu)| *mtu < MTU_WANTED);
    let check = match narrow {
        Some((name, mtu)) => Check::would_work_if(
            format!("{name} has an MTU of {mtu}: no packet of 1024 bytes fits, use another"),
            format!("sudo ip link set {name} mtu 1500"),
        ),
        None if links.is_empty() => Check::works("only the loopback is there"),
        None => Check::works(list.join(", ")),
    };
    check.fact("links", list)
}

fn is_loaded(module: &str) -> bool {
    Path::new("/sys/module").join(module).exists()
}

/// Reports a loaded packet filter: only root can read its rules, but everyone can see that it is
/// loaded.
fn firewall(tables: &str, nftables: bool) -> Check {
    const LET_IN: &str = "let UDP in, or clients fall back to TCP: \
                          sudo nft add rule inet filter input udp dport 4791 accept";
    // A loaded filter may have no rules, so this alone is no failure.
    if tables.trim().is_empty() && !nftables {
        Check::works("no packet filter is loaded")
    } else {
        Check::works(format!(
            "a packet filter is loaded; if it has rules, {LET_IN}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;

    #[test]
    fn every_check_result_has_its_message() {
        let probe = |gso| UdpProbe {
            gso,
            receive_buffer: 212_992,
        };
        let refused = io::Error::from(io::ErrorKind::AddrInUse);
        let link = |name: &str, mtu| vec![(name.to_owned(), mtu)];
        for (check, status, word) in [
            (gso(Ok(&probe(GsoSupport::Whole))), Status::Works, "by GSO"),
            (
                gso(Ok(&probe(GsoSupport::Split))),
                Status::Works,
                "Linux 5.0",
            ),
            (
                gso(Ok(&probe(GsoSupport::None))),
                Status::Works,
                "Linux 4.18",
            ),
            (
                gso(Err(&io::ErrorKind::TimedOut.into())),
                Status::WouldWorkIf,
                "loopback",
            ),
            (
                buffer(Some(&probe(GsoSupport::Whole))),
                Status::Works,
                "rmem_max",
            ),
            (buffer(None), Status::Cannot, "no UDP"),
            (port_4791(Ok(())), Status::Works, "free"),
            (port_4791(Err(refused)), Status::WouldWorkIf, "rdma_rxe"),
            (mtu(&link("eth0", 1500)), Status::Works, "eth0 1500"),
            (mtu(&link("tun0", 576)), Status::WouldWorkIf, "tun0"),
            (mtu(&[]), Status::Works, "only the loopback"),
            (firewall("", false), Status::Works, "no packet filter"),
            (firewall("filter\n", false), Status::Works, "4791"),
        ] {
            assert_eq!(check.status, status, "{check:?}");
            assert!(check.reason.contains(word), "{check:?}");
            assert_eq!(
                check.advice.is_some(),
                status == Status::WouldWorkIf,
                "{check:?}"
            );
        }
    }
}
