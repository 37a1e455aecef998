//! Checks of RDMA devices: libibverbs, a device with a link and an address, and the limit of locked
//! memory.

use std::{fs, path::Path, sync::Arc};

use herdwick_fabric::{Capabilities, Device};
use herdwick_verbs::{
    DeviceInfo, Library, LibraryError, LinkLayer, NoPlace, Place, VerbsDevice, VerbsError,
    VerbsOptions, survey,
};
use rustix::process::{Resource, Rlimit, getrlimit};

use crate::{
    check::{Check, Checks},
    roce::doctor::packet_filter,
};

/// Bytes of locked memory that a server with a hundred clients registers, with a margin.
const LOCKED_WANTED: u64 = 64 << 20;

const ADD_SOFT_ROCE: &str =
    "sudo modprobe rdma_rxe && sudo rdma link add rxe0 type rxe netdev <interface>";

pub(crate) fn checks() -> Checks {
    // Every other check would fail for this one reason.
    if !kernel_has_rdma(Path::new("/")) {
        return Checks::from([("kernel", no_rdma())]);
    }
    let mut checks = Checks::from([("locked_memory", locked(getrlimit(Resource::Memlock)))]);
    let library = match Library::load() {
        Ok(library) => Arc::new(library),
        // Without the library no device can be looked at.
        Err(error) => {
            checks.insert("library", missing(&error));
            return checks;
        }
    };
    checks.insert("library", Check::works("libibverbs is there"));
    let found = survey(&library);
    let module = has_module("rdma_rxe");
    checks.insert("devices", devices(found.as_deref(), module));
    // With no device there is no port to report; an error is worth the attempt.
    if !found.is_ok_and(|found| found.is_empty()) {
        let opened = VerbsDevice::open(&VerbsOptions::default());
        checks.insert("port", port(opened.as_ref()));
        if let Ok(device) = opened {
            let place = device.place();
            // Only over Ethernet are the packets UDP, on an interface whose MTU limits them.
            if place.port.link == LinkLayer::Ethernet {
                checks.insert("firewall", packet_filter());
                checks.insert("mtu", mtu(place.port.mtu, interface(place)));
            }
            checks.insert("transports", transports(device.capabilities()));
            checks.insert("order", order(device.capabilities()));
            checks.insert("inline", inline(device.capabilities()));
        }
    }
    checks
}

/// Returns whether the running kernel has the RDMA subsystem, loaded or as a module; `root` is the
/// root of its file systems.
fn kernel_has_rdma(root: &Path) -> bool {
    // Where it cannot be read, no directory of modules is found.
    let release = fs::read_to_string(root.join("proc/sys/kernel/osrelease")).unwrap_or_default();
    let modules = root.join("lib/modules").join(release.trim());
    root.join("sys/class/infiniband_verbs").exists()
        || root.join("sys/module/ib_core").exists()
        || modules.join("kernel/drivers/infiniband").exists()
}

fn no_rdma() -> Check {
    Check::cannot("this kernel has no RDMA; only needed for RNICs")
}

fn missing(error: &LibraryError) -> Check {
    match error {
        LibraryError::Missing { name, reason } => Check::would_work_if(
            format!("{name} cannot be loaded: {reason}"),
            "sudo apt-get install libibverbs1 ibverbs-providers",
        ),
        LibraryError::TooOld { name, symbol } => Check::would_work_if(
            format!("{name} has no `{symbol}`: it is older than rdma-core 33"),
            "sudo apt-get install --only-upgrade libibverbs1",
        ),
    }
}

fn devices(found: Result<&[DeviceInfo], &VerbsError>, module: bool) -> Check {
    match found {
        // Without hardware, the kernel's software device can take its place.
        Ok([]) if module => Check::would_work_if("there is no RDMA device", ADD_SOFT_ROCE),
        Ok([]) => Check::cannot("there is no RDMA device, and this kernel has no rdma_rxe"),
        Ok(found) => {
            let names: Vec<_> = found.iter().map(|device| device.name.clone()).collect();
            Check::works(names.join(", ")).fact("devices", names)
        }
        Err(error) => Check::would_work_if(error.to_string(), "ls -l /dev/infiniband"),
    }
}

fn port(opened: Result<&VerbsDevice, &VerbsError>) -> Check {
    let error = match opened {
        Ok(device) => {
            let place = device.place();
            let (name, gid) = (place.device.clone(), place.gid.index);
            let check = Check::works(place.to_string()).fact("device", name);
            return check
                .fact("gid", u64::from(gid))
                .fact("mtu", place.port.mtu);
        }
        Err(VerbsError::Place(error)) => error,
        Err(error) => return Check::would_work_if(error.to_string(), "ibv_devinfo"),
    };
    match error {
        NoPlace::PortDown(device) => Check::would_work_if(
            format!("no port of {device} is active"),
            "rdma link; sudo ip link set <interface> up",
        ),
        NoPlace::NoGid(device, port) => Check::would_work_if(
            format!("port {port} of {device} has no address"),
            "sudo ip address add 10.0.0.1/24 dev <interface>",
        ),
        NoPlace::Iwarp(device) => {
            Check::cannot(format!("{device} is an iWARP device: no UC, no UD"))
        }
        NoPlace::Refused { device, why } => Check::would_work_if(
            format!("{device}: {why}"),
            "run it where /dev/infiniband may be opened (docker: --device /dev/infiniband)",
        ),
        // The list above had a device.
        NoPlace::NoDevice
        | NoPlace::NoSuchDevice(..)
        | NoPlace::Elsewhere(..)
        | NoPlace::NoPartition { .. } => {
            Check::would_work_if("the device went away", ADD_SOFT_ROCE)
        }
    }
}

/// Returns the network interface of a place, and its MTU.
fn interface(place: &Place) -> Option<(String, usize)> {
    let (device, port, gid) = (&place.device, place.port.number, place.gid.index);
    // A port may have the addresses of several interfaces: each GID has its own.
    let name = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/ndevs/{gid}");
    let name = fs::read_to_string(name).ok()?.trim().to_owned();
    let mtu = fs::read_to_string(format!("/sys/class/net/{name}/mtu")).ok()?;
    Some((name, mtu.trim().parse().ok()?))
}

/// Bytes of a packet around its payload that count towards the interface's MTU, that is, without
/// Ethernet: IPv6, UDP, BTH, RETH and ICRC of a WRITE.
const AROUND: usize = 40 + 8 + 12 + 16 + 4;

fn mtu(payload: usize, interface: Option<(String, usize)>) -> Check {
    let check = match &interface {
        Some((name, mtu)) if *mtu < payload + AROUND => Check::would_work_if(
            format!("packets of {payload} bytes do not fit {name}, whose MTU is {mtu}"),
            format!("sudo ip link set {name} mtu {}", payload + 2 * AROUND),
        ),
        Some((name, mtu)) if payload < 4096 => Check::works(format!(
            "packets carry {payload} bytes; where the network takes them, more with: \
             sudo ip link set {name} mtu 4500 (it is {mtu}), on every host alike"
        )),
        _ => Check::works(format!("packets carry {payload} bytes")),
    };
    check.fact("payload", payload)
}

fn transports(capabilities: &Capabilities) -> Check {
    let all = [
        ("RC", capabilities.rc),
        ("UC", capabilities.uc),
        ("UD", capabilities.ud),
    ];
    let has: Vec<String> = all
        .iter()
        .filter(|(_, has)| *has)
        .map(|(name, _)| (*name).to_owned())
        .collect();
    let list = has.join(", ");
    // Replies need UD; requests can do without UC, and without RC.
    let check = if !capabilities.ud {
        Check::cannot(format!("{list} alone: replies need UD"))
    } else if !capabilities.uc && !capabilities.rc {
        Check::works("UD alone: requests go as datagrams")
    } else if !capabilities.uc {
        Check::works(format!("{list}; without UC, requests go over RC"))
    } else {
        Check::works(list)
    };
    check.fact("transports", has)
}

fn order(capabilities: &Capabilities) -> Check {
    let says = if capabilities.ordered_write {
        "WRITEs become visible in rising order"
    } else {
        "no promise of the order in which WRITEs become visible: requests go as datagrams"
    };
    Check::works(says).fact("ordered_write", capabilities.ordered_write)
}

fn inline(capabilities: &Capabilities) -> Check {
    let bytes = capabilities.inline_bytes_max;
    Check::works(format!("{bytes} bytes travel inside a work request")).fact("bytes", bytes)
}

fn locked(limit: Rlimit) -> Check {
    let check = match limit.current {
        // Registered memory counts as locked.
        Some(bytes) if bytes < LOCKED_WANTED => Check::would_work_if(
            format!("only {bytes} bytes may be locked; registered memory is"),
            "ulimit -l unlimited (systemd: LimitMEMLOCK=infinity; docker: --ulimit memlock=-1; \
             Kubernetes: capability IPC_LOCK)",
        ),
        Some(bytes) => Check::works(format!("{bytes} bytes may be locked")),
        None => Check::works("any number of bytes may be locked"),
    };
    check
        .fact("soft", limit.current)
        .fact("hard", limit.maximum)
}

/// Returns whether the running kernel has `module`, loaded or as a file.
fn has_module(module: &str) -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let file = format!("/lib/modules/{release}/kernel/drivers/infiniband/sw/rxe/{module}.ko");
    // Modules may be compressed, in one of three ways.
    let packed = ["", ".xz", ".zst", ".gz"].map(|end| format!("{file}{end}"));
    Path::new("/sys/module").join(module).exists()
        || packed.iter().any(|file| Path::new(file).exists())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;

    fn limit(current: Option<u64>) -> Rlimit {
        Rlimit {
            current,
            maximum: None,
        }
    }

    fn place(error: NoPlace) -> Check {
        port(Err(&VerbsError::Place(error)))
    }

    #[test]
    fn kernel_without_rdma_is_distinguished_from_one_with_rdma() {
        let root = std::env::temp_dir().join(format!("herdwick-doctor-{}", std::process::id()));
        fs::create_dir_all(root.join("proc/sys/kernel")).unwrap();
        fs::write(root.join("proc/sys/kernel/osrelease"), "6.1.0-test\n").unwrap();
        assert!(!kernel_has_rdma(&root));
        let modules = root.join("lib/modules/6.1.0-test/kernel/drivers/infiniband");
        fs::create_dir_all(modules).unwrap();
        assert!(kernel_has_rdma(&root));
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(no_rdma().status, Status::Cannot);
    }

    #[test]
    fn every_check_result_has_its_message() {
        let lost = LibraryError::Missing {
            name: "libibverbs.so.1".into(),
            reason: "no such file".into(),
        };
        let old = LibraryError::TooOld {
            name: "libibverbs.so.1".into(),
            symbol: "ibv_reg_mr_iova",
        };
        let device = |name: &str| DeviceInfo {
            name: name.into(),
            iwarp: false,
            ports: Vec::new(),
            refusal: None,
        };
        let refused = NoPlace::Refused {
            device: "mlx5_0".into(),
            why: "denied".into(),
        };
        for (check, status, word) in [
            (missing(&lost), Status::WouldWorkIf, "no such file"),
            (missing(&old), Status::WouldWorkIf, "ibv_reg_mr_iova"),
            (
                devices(Ok(&[]), true),
                Status::WouldWorkIf,
                "no RDMA device",
            ),
            (devices(Ok(&[]), false), Status::Cannot, "rdma_rxe"),
            (
                devices(Ok(&[device("rxe0"), device("b")]), true),
                Status::Works,
                "rxe0, b",
            ),
            (
                place(NoPlace::PortDown("a".into())),
                Status::WouldWorkIf,
                "active",
            ),
            (
                place(NoPlace::NoGid("a".into(), 1)),
                Status::WouldWorkIf,
                "port 1 of a",
            ),
            (
                place(NoPlace::Iwarp("siw0".into())),
                Status::Cannot,
                "iWARP",
            ),
            (place(refused), Status::WouldWorkIf, "denied"),
            (locked(limit(Some(65536))), Status::WouldWorkIf, "65536"),
            (
                mtu(4096, Some(("eth0".into(), 1500))),
                Status::WouldWorkIf,
                "whose MTU is 1500",
            ),
            (
                mtu(1024, Some(("eth0".into(), 1500))),
                Status::Works,
                "eth0 mtu 4500",
            ),
            (mtu(4096, None), Status::Works, "4096 bytes"),
            (locked(limit(Some(1 << 30))), Status::Works, "1073741824"),
            (locked(limit(None)), Status::Works, "any number"),
        ] {
            assert_eq!(check.status, status, "{check:?}");
            assert!(check.reason.contains(word), "{check:?}");
            let advised = check.advice.is_some();
            assert_eq!(advised, status == Status::WouldWorkIf, "{check:?}");
        }
    }
}
