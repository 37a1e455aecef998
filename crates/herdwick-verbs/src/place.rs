//! Selection of a device, one of its ports, one of the port's addresses (GIDs), and a partition.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
};

use crate::selector::DeviceSelector;

/// The P_Key of the default partition, full member.
const PKEY_DEFAULT: u16 = 0xffff;
/// The bits of a P_Key that identify the partition; the remaining bit marks full members.
const PARTITION: u16 = 0x7fff;

/// A device as found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its name, as `ibv_devices` lists it.
    pub name: String,
    /// Whether it is iWARP, which this provider does not support.
    pub iwarp: bool,
    /// Its ports; empty when it could not be opened.
    pub ports: Vec<PortInfo>,
    /// The error from opening it, if that failed.
    pub refusal: Option<String>,
}

/// A port as found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// Its number, from 1 on.
    pub number: u8,
    /// Whether the link is active.
    pub active: bool,
    /// The type of its link layer.
    pub link: LinkLayer,
    /// The path MTU, in bytes of payload.
    pub mtu: usize,
    /// The InfiniBand local identifier.
    pub lid: u16,
    /// Maximum bytes of a message.
    pub message_bytes_max: usize,
    /// Its addresses.
    pub gids: Vec<Gid>,
    /// Its P_Key table; 0 in unused entries.
    pub pkeys: Vec<u16>,
}

/// The link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand, whose flow control makes it lossless.
    InfiniBand,
    /// Ethernet: RoCE.
    Ethernet,
}

/// A GID of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its index in the port's table.
    pub index: u32,
    /// The address; an IPv4 address is mapped.
    pub address: Ipv6Addr,
    /// Its type.
    pub kind: GidKind,
}

/// The type of a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCEv1, which works within one Ethernet segment.
    RoceV1,
    /// RoCEv2, over UDP.
    RoceV2,
}

impl Gid {
    /// Returns the preference: RoCEv2 before InfiniBand before RoCEv1, then IPv4 before IPv6 before
    /// link-local.
    fn rank(&self) -> u32 {
        let kind = match self.kind {
            GidKind::RoceV2 => 8,
            GidKind::InfiniBand => 4,
            GidKind::RoceV1 => 0,
        };
        let address = if self.address.to_ipv4_mapped().is_some() {
            2
        } else {
            u32::from(!self.address.is_unicast_link_local())
        };
        // The type outweighs the address, whose rank is below 4.
        kind + address
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            GidKind::InfiniBand => "InfiniBand",
            GidKind::RoceV1 => "RoCEv1",
            GidKind::RoceV2 => "RoCEv2",
        };
        match self.address.to_ipv4_mapped() {
            Some(address) => write!(f, "GID {} ({kind}, {address})", self.index),
            None => write!(f, "GID {} ({kind}, {})", self.index, self.address),
        }
    }
}

/// The port, address and partition of a device's queue pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The device's name.
    pub device: String,
    /// The port.
    pub port: PortInfo,
    /// The GID that peers send to.
    pub gid: Gid,
    /// Index of the partition in the port's P_Key table.
    pub pkey_index: u16,
}

impl Place {
    /// Returns the P_Key of the partition.
    #[must_use]
    pub fn pkey(&self) -> u16 {
        // A device without a table has the default partition.
        let key = self.port.pkeys.get(usize::from(self.pkey_index));
        key.copied().unwrap_or(PKEY_DEFAULT)
    }

    /// Returns whether peers still reach queue pairs made at `earlier`: neither address nor
    /// partition has changed.
    pub(crate) fn is_still(&self, earlier: &Self) -> bool {
        // The MTU and the state of the link may change without a peer noticing.
        let names = |place: &Self| (place.gid, place.port.lid, place.pkey_index, place.pkey());
        names(self) == names(earlier)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            device, port, gid, ..
        } = self;
        write!(f, "{device} port {}, {gid}, MTU {}", port.number, port.mtu)?;
        match self.pkey_index {
            0 => Ok(()),
            _ => write!(f, ", P_Key {:#06x}", self.pkey()),
        }
    }
}

/// No place meets the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPlace {
    /// The host has no RDMA devices.
    #[error(
        "no RDMA device; on any Ethernet interface the kernel's own can be added: `modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0`"
    )]
    NoDevice,
    /// No device has this name.
    #[error("no RDMA device is called {0}; there are: {1}")]
    NoSuchDevice(String, String),
    /// The device exists but cannot be opened.
    #[error("{device}: {why}")]
    Refused {
        /// The device.
        device: String,
        /// The operating system's error.
        why: String,
    },
    /// The device is an iWARP one, which lacks UC and UD.
    #[error(
        "{0} is an iWARP device, which has neither UC nor UD; use plain TCP or `--roce` with it"
    )]
    Iwarp(String),
    /// No port is active.
    #[error("no port of {0} is active; see `rdma link`, then `ip link set <interface> up`")]
    PortDown(String),
    /// The port has no matching address.
    #[error(
        "port {1} of {0} has no such GID; give its interface an address: `ip address add 10.0.0.1/24 dev <interface>`"
    )]
    NoGid(String, u8),
    /// The device has no GID with the required address.
    #[error(
        "no GID of {0} is {1}, the address by which the peer is reached; reach it by the address \
         of an RDMA interface"
    )]
    Elsewhere(String, IpAddr),
    /// The port is not in the requested partition.
    #[error(
        "port {port} of {device} is not in partition {pkey:#06x}; see /sys/class/infiniband/{device}/ports/{port}/pkeys"
    )]
    NoPartition {
        /// The device.
        device: String,
        /// Its port.
        port: u8,
        /// The requested P_Key.
        pkey: u16,
    },
}

/// Returns the best place that meets `selector`; on Ethernet, with the address `own` if that is
/// given.
pub(crate) fn choose(
    devices: &[DeviceInfo],
    selector: &DeviceSelector,
    own: Option<IpAddr>,
) -> Result<Place, NoPlace> {
    let wanted = |info: &&DeviceInfo| {
        selector
            .device
            .as_ref()
            .is_none_or(|name| *name == info.name)
    };
    let candidates: Vec<_> = devices.iter().filter(wanted).collect();
    let mut best: Option<Place> = None;
    let mut first_failure = None;
    for info in &candidates {
        match on_device(info, selector, own) {
            Ok(place) => {
                let rank = |place: &Place| place.gid.rank();
                // Only a better one: of equals the first stays.
                if best.as_ref().is_none_or(|best| rank(best) < rank(&place)) {
                    best = Some(place);
                }
            }
            // The first failure: the caller's device, if it named one.
            Err(failure) => _ = first_failure.get_or_insert(failure),
        }
    }
    best.ok_or_else(|| first_failure.unwrap_or_else(|| nothing(devices, selector)))
}

fn nothing(devices: &[DeviceInfo], selector: &DeviceSelector) -> NoPlace {
    match &selector.device {
        Some(name) if !devices.is_empty() => {
            let names: Vec<_> = devices.iter().map(|info| info.name.as_str()).collect();
            NoPlace::NoSuchDevice(name.clone(), names.join(", "))
        }
        _ => NoPlace::NoDevice,
    }
}

fn on_device(
    info: &DeviceInfo,
    selector: &DeviceSelector,
    own: Option<IpAddr>,
) -> Result<Place, NoPlace> {
    let device = || info.name.clone();
    if info.iwarp {
        return Err(NoPlace::Iwarp(device()));
    }
    if let Some(why) = info.refusal.clone() {
        let device = device();
        return Err(NoPlace::Refused { device, why });
    }
    let wanted = |port: &&PortInfo| selector.port.is_none_or(|number| number == port.number);
    let active = info.ports.iter().filter(wanted).filter(|port| port.active);
    let best = |port: &PortInfo| best_gid(port, selector, own).copied();
    // None, a port without a GID, is less than any.
    let port = active.max_by_key(|port| best(port).map(|gid| gid.rank()));
    let port = port.ok_or_else(|| NoPlace::PortDown(device()))?;
    let gid = best(port).ok_or_else(|| match own {
        // A GID was found, only not with the required address: another message helps the operator.
        Some(own) if best_gid(port, selector, None).is_some() => NoPlace::Elsewhere(device(), own),
        _ => NoPlace::NoGid(device(), port.number),
    })?;
    let pkey_index = partition(port, selector.pkey).ok_or_else(|| NoPlace::NoPartition {
        device: device(),
        port: port.number,
        pkey: selector.pkey.unwrap_or(PKEY_DEFAULT),
    })?;
    Ok(Place {
        device: device(),
        port: port.clone(),
        gid,
        pkey_index,
    })
}

/// Returns the index of the partition `wanted` in the port's table, preferably with full
/// membership; index 0 if none is wanted.
fn partition(port: &PortInfo, wanted: Option<u16>) -> Option<u16> {
    let Some(wanted) = wanted else { return Some(0) };
    // 0 marks an unused entry.
    let of_it = |key: &u16| key & PARTITION == wanted & PARTITION && *key != 0;
    let found = port.pkeys.iter().enumerate().filter(|(_, key)| of_it(key));
    // The bit of full members is the highest: of two P_Keys of a partition, the greater has it.
    let (index, _) = found.max_by_key(|(_, key)| **key)?;
    u16::try_from(index).ok()
}

fn best_gid<'a>(
    port: &'a PortInfo,
    selector: &DeviceSelector,
    own: Option<IpAddr>,
) -> Option<&'a Gid> {
    let there = |gid: &Gid| own.is_none_or(|own| gid.address.to_canonical() == own.to_canonical());
    let wanted = |gid: &&Gid| {
        // The source GID index of a work request is one byte.
        if gid.index > u8::MAX.into() {
            return false;
        }
        // On InfiniBand GIDs are no IP addresses.
        let of_link = port.link == LinkLayer::InfiniBand || there(gid);
        of_link && selector.gid.is_none_or(|index| index == gid.index)
    };
    // Reversed, because `max_by_key` returns the last maximum: this yields the first.
    let found = port.gids.iter().rev().filter(wanted);
    found.max_by_key(|gid| gid.rank())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u32, address: &str, kind: GidKind) -> Gid {
        let address = address.parse().unwrap();
        Gid {
            index,
            address,
            kind,
        }
    }

    fn device(name: &str, active: bool, gids: &[Gid]) -> DeviceInfo {
        let port = PortInfo {
            number: 1,
            active,
            link: LinkLayer::Ethernet,
            mtu: 1024,
            lid: 0,
            message_bytes_max: 1 << 20,
            gids: gids.to_vec(),
            pkeys: vec![0xffff, 0x0001, 0x8001, 0x0002],
        };
        DeviceInfo {
            name: name.to_owned(),
            iwarp: false,
            ports: vec![port],
            refusal: None,
        }
    }

    fn table() -> [Gid; 5] {
        [
            gid(0, "fe80::1", GidKind::RoceV1),
            gid(1, "fe80::1", GidKind::RoceV2),
            gid(2, "::ffff:10.0.0.7", GidKind::RoceV1),
            gid(3, "::ffff:10.0.0.7", GidKind::RoceV2),
            gid(4, "fd00::7", GidKind::RoceV2),
        ]
    }

    #[test]
    fn active_port_and_most_routable_gid_are_chosen() {
        let devices = [
            device("down", false, &table()),
            device("local", true, &table()[..2]),
            device("good", true, &table()),
        ];
        let place = choose(&devices, &DeviceSelector::default(), None).unwrap();
        assert_eq!(
            place.to_string(),
            "good port 1, GID 3 (RoCEv2, 10.0.0.7), MTU 1024"
        );
        let place = choose(&devices, &"good:1:4".parse().unwrap(), None).unwrap();
        assert_eq!(place.gid.index, 4);
        let place = choose(&devices, &"local".parse().unwrap(), None).unwrap();
        assert_eq!(place.gid.index, 1, "version 2 before 1");
    }

    #[test]
    fn gid_that_reaches_the_peer_is_preferred() {
        let devices = [
            device("local", true, &table()[..2]),
            device("good", true, &table()),
        ];
        let own = |own: &str| {
            choose(
                &devices,
                &DeviceSelector::default(),
                Some(own.parse().unwrap()),
            )
        };
        assert_eq!(own("fd00::7").unwrap().gid.index, 4);
        assert_eq!(own("10.0.0.7").unwrap().gid.index, 3);
        assert_eq!(own("::ffff:10.0.0.7").unwrap().gid.index, 3);
        let elsewhere = own("10.0.0.8").unwrap_err();
        assert!(elsewhere.to_string().contains("10.0.0.8"), "{elsewhere}");
        let mut cable = device("ib0", true, &table()[..1]);
        cable.ports[0].link = LinkLayer::InfiniBand;
        let own = "10.0.0.8".parse().unwrap();
        let place = choose(&[cable], &DeviceSelector::default(), Some(own));
        assert!(place.is_ok(), "GIDs of InfiniBand are no IP addresses");
    }

    #[test]
    fn pkey_is_found_preferring_full_membership() {
        let devices = [device("good", true, &table())];
        let place = |selector: &str| choose(&devices, &selector.parse().unwrap(), None);
        let (none, full, limited) = (
            place("good").unwrap(),
            place("good,pkey=0x1").unwrap(),
            place("good,pkey=0x8002").unwrap(),
        );
        assert_eq!((none.pkey_index, none.pkey()), (0, 0xffff));
        assert_eq!((full.pkey_index, full.pkey()), (2, 0x8001));
        assert_eq!((limited.pkey_index, limited.pkey()), (3, 0x0002));
        let missing = place("good,pkey=3").unwrap_err().to_string();
        assert!(missing.contains("partition 0x0003"), "{missing}");
    }

    #[test]
    fn gid_index_above_255_is_not_chosen() {
        let far = [
            gid(2, "fe80::1", GidKind::RoceV2),
            gid(256, "::ffff:10.0.0.7", GidKind::RoceV2),
        ];
        let place = choose(
            &[device("good", true, &far)],
            &DeviceSelector::default(),
            None,
        );
        assert_eq!(place.unwrap().gid.index, 2);
    }

    #[test]
    fn missing_device_port_or_gid_is_named() {
        let none = choose(&[], &DeviceSelector::default(), None);
        assert_eq!(none, Err(NoPlace::NoDevice));
        let devices = [device("a", false, &table()), device("b", true, &[])];
        let selector = |text: &str| text.parse::<DeviceSelector>().unwrap();
        let named = choose(&devices, &selector("c"), None);
        assert_eq!(named, Err(NoPlace::NoSuchDevice("c".into(), "a, b".into())));
        assert_eq!(
            choose(&devices, &selector("a"), None),
            Err(NoPlace::PortDown("a".into()))
        );
        assert_eq!(
            choose(&devices, &selector("b"), None),
            Err(NoPlace::NoGid("b".into(), 1))
        );
        assert_eq!(
            choose(&devices, &selector("b:2"), None),
            Err(NoPlace::PortDown("b".into()))
        );
        let iwarp = DeviceInfo {
            iwarp: true,
            ..device("siw0", true, &table())
        };
        assert_eq!(
            choose(&[iwarp], &selector("auto"), None),
            Err(NoPlace::Iwarp("siw0".into()))
        );
    }
}
