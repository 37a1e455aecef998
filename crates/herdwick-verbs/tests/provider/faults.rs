//! Faults and how they are reported: by a specific error, without effect on other objects.

use std::ffi::OsString;

use herdwick_fabric::{
    ControlError, Device, Endpoint, Port, PostError, QpState, RegionSpec, Status,
};
use herdwick_verbs::{Health, LibraryError, NoPlace, VerbsDevice, VerbsError, VerbsOptions, sys};

use herdwick_verbs_fake::handle as fake;

use crate::side::{REGION, Reliable, Side, open, spec};

#[test]
fn missing_library_error_names_the_package() {
    let library = Some(OsString::from("libibverbs-of-nowhere.so.1"));
    let error = VerbsDevice::open(&VerbsOptions {
        library,
        ..VerbsOptions::default()
    })
    .unwrap_err();
    assert!(matches!(
        error,
        VerbsError::Library(LibraryError::Missing { .. })
    ));
    assert!(error.to_string().contains("apt-get install"), "{error}");
}

#[test]
fn library_without_a_function_is_reported_as_too_old() {
    let library = Some(OsString::from("libc.so.6"));
    let error = VerbsDevice::open(&VerbsOptions {
        library,
        ..VerbsOptions::default()
    })
    .unwrap_err();
    assert!(
        matches!(error, VerbsError::Library(LibraryError::TooOld { .. })),
        "{error}"
    );
}

#[test]
fn no_device_and_a_failed_device_list_are_different_errors() {
    fake::fail("devices", 0, 1);
    assert!(matches!(
        open().unwrap_err(),
        VerbsError::Place(NoPlace::NoDevice)
    ));
    fake::fail("ibv_get_device_list", 0, libc::ENOSYS);
    assert!(matches!(open().unwrap_err(), VerbsError::System { .. }));
    assert_eq!(
        open().unwrap().place().to_string(),
        "fake0 port 1, GID 3 (RoCEv2, 127.0.0.1), MTU 1024"
    );
}

#[test]
fn device_that_cannot_be_opened_is_skipped() {
    // The first device tried is the one without a link, the second the loopback.
    fake::fail("ibv_open_device", 1, libc::EACCES);
    let error = open().unwrap_err();
    assert!(
        error.to_string().contains("no port of fake_down is active"),
        "{error}"
    );
}

#[test]
fn failed_registration_names_rlimit_memlock_and_keeps_the_port() {
    let mut side = Side::new();
    fake::fail("ibv_reg_mr_iova", 0, libc::ENOMEM);
    let refused = side
        .device
        .allocate_region(&mut side.port, side.pd, &REGION);
    let error = refused.unwrap_err();
    assert!(matches!(error, ControlError::System { .. }));
    assert!(error.to_string().contains("ulimit -l"), "{error}");
    side.works();
    side.device
        .allocate_region(&mut side.port, side.pd, &REGION)
        .unwrap();
}

#[test]
fn every_failed_construction_is_an_error_and_leaks_nothing() {
    for function in [
        "ibv_alloc_pd",
        "ibv_create_comp_channel",
        "ibv_create_cq",
        "ibv_create_qp",
        "ibv_modify_qp",
        "ibv_create_ah",
        "ibv_query_device",
    ] {
        for after in 0..3 {
            fake::fail(function, after, libc::ENOMEM);
            // Each attempt calls the function at least once, so one of the four failed.
            for _ in 0..4 {
                let _ = Side::attempt().map(|mut side| side.works());
            }
            Side::new().works();
        }
    }
}

#[test]
fn overrun_cq_fails_only_its_queue_pairs() {
    let (mut hit, mut other) = (Side::new(), std::thread::spawn(Side::new).join().unwrap());
    fake::event(sys::IBV_EVENT_CQ_ERR);
    assert_eq!(hit.poll(), []);
    assert_eq!(hit.state(), QpState::Error);
    assert_eq!(hit.send(1), Err(PostError::State(QpState::Error)));
    hit.hear();
    assert_eq!(hit.count("verbs_cq_failures"), 1);
    other.works();
}

#[test]
fn lost_device_fails_every_queue_pair() {
    let mut side = Side::new();
    side.works();
    fake::event(sys::IBV_EVENT_DEVICE_FATAL);
    side.hear();
    assert_eq!(side.port.health(), Health::DeviceLost);
    assert_eq!(side.state(), QpState::Error);
    assert_eq!(side.send(1), Err(PostError::State(QpState::Error)));
    assert_eq!(side.count("verbs_device_lost"), 1);
}

#[test]
fn port_recovers_after_link_down() {
    let mut side = Side::new();
    fake::event(sys::IBV_EVENT_PORT_ERR);
    side.hear();
    assert_eq!(side.port.health(), Health::PortDown);
    fake::event(sys::IBV_EVENT_PORT_ACTIVE);
    side.hear();
    assert_eq!(side.port.health(), Health::Well);
    assert_eq!(side.count("verbs_port_down"), 1);
    side.works();
}

#[test]
fn port_with_changed_gid_fails_and_the_next_has_the_new_gid() {
    let mut side = Side::new();
    let before = side.device.endpoint(&side.port, side.qp).unwrap();
    // An event about some other port's address.
    fake::event(sys::IBV_EVENT_GID_CHANGE);
    side.hear();
    assert_eq!(side.port.health(), Health::Well);
    side.works();
    for event in [
        sys::IBV_EVENT_GID_CHANGE,
        sys::IBV_EVENT_LID_CHANGE,
        sys::IBV_EVENT_PKEY_CHANGE,
    ] {
        let mut side = Side::new();
        fake::fail("address", 0, 2);
        fake::event(event);
        side.hear();
        assert_eq!(side.port.health(), Health::Moved);
        assert_eq!(side.count("verbs_address_lost"), 1);
        assert_eq!(side.send(1), Err(PostError::State(QpState::Error)));
    }
    // The same device opens a port at its present address.
    fake::fail("address", 0, 2);
    side.again();
    let after = side.device.endpoint(&side.port, side.qp).unwrap();
    let address = |end: &Endpoint| end.as_bytes()[36..40].to_vec();
    assert_eq!(
        (address(&before), address(&after)),
        (vec![127, 0, 0, 1], vec![127, 0, 0, 2])
    );
    let at = |host: &str| {
        side.device
            .is_at(&side.port, side.pd, &[&after], host.parse().ok())
    };
    assert!(at("127.0.0.2") && at("127.0.0.9") && !at("10.0.0.1"));
    side.works();
}

#[test]
fn gid_changed_while_the_port_is_down_is_found_when_up() {
    let mut side = Side::new();
    for event in [
        sys::IBV_EVENT_PORT_ERR,
        sys::IBV_EVENT_GID_CHANGE,
        sys::IBV_EVENT_PORT_ACTIVE,
    ] {
        fake::event(event);
    }
    fake::fail("address", 0, 2);
    side.hear();
    assert_eq!(side.port.health(), Health::Moved);
    assert_eq!(side.count("verbs_address_lost"), 1);
}

#[test]
fn endpoints_on_two_hosts_are_refused() {
    let (here, mut there) = (Side::new(), Side::new());
    fake::fail("address", 0, 2);
    there.again();
    let ends = [&here, &there].map(|side| side.device.endpoint(&side.port, side.qp).unwrap());
    let host = "127.0.0.2".parse().ok();
    assert!(
        here.device
            .is_at(&here.port, here.pd, &[&ends[1], &ends[1]], host)
    );
    assert!(
        !here
            .device
            .is_at(&here.port, here.pd, &[&ends[0], &ends[1]], host)
    );
}

#[test]
fn memory_held_by_an_unplugged_device_is_freed_at_close() {
    let mut side = Side::new();
    let big = RegionSpec {
        len: 8 << 20,
        ..REGION
    };
    let region = side.device.allocate_region(&mut side.port, side.pd, &big);
    let region = region.unwrap();
    let at = side.port.region(region).unwrap().as_ptr().addr();
    let is_mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| {
            let (range, _) = line.split_once(' ').unwrap();
            let (from, to) = range.split_once('-').unwrap();
            let number = |text| usize::from_str_radix(text, 16).unwrap();
            (number(from)..number(to)).contains(&at)
        })
    };
    fake::fail("ibv_dereg_mr", 0, libc::EIO);
    side.device.free_region(&mut side.port, region).unwrap();
    assert!(is_mapped(), "the device may still write there");
    drop(side);
    assert!(!is_mapped());
}

#[test]
fn outstanding_reads_stay_within_either_ends_limit() {
    // One serves 2 and requests 16, the other serves 16 and requests 4. The device is queried three
    // times while it is opened; the last query counts.
    fake::fail("max_qp_rd_atom", 2, 2);
    let little = open().unwrap();
    fake::fail("max_qp_init_rd_atom", 2, 4);
    let much = open().unwrap();
    for (asking, serving) in [(&little, &much), (&much, &little)] {
        let (mut one, mut other) = (Reliable::new(asking), Reliable::new(serving));
        let ends = [one.endpoint(), other.endpoint()];
        one.connect(&ends[1]);
        other.connect(&ends[0]);
        assert_eq!(one.read(&other), Status::Success);
        assert_eq!(other.read(&one), Status::Success);
    }
}

#[test]
fn service_level_and_traffic_class_are_set_and_followed_by_the_client() {
    let options = |selector: &str, follow_class| VerbsOptions {
        library: Some(fake::path()),
        selector: selector.parse().unwrap(),
        follow_class,
        ..VerbsOptions::default()
    };
    let marked = options("fake0,pkey=0x8001,sl=3,tclass=106", false);
    let server = Reliable::new(&VerbsDevice::open(&marked).unwrap());
    assert_eq!(fake::marks().pkey_index, 1);
    let marks = |selector: &str, follow| {
        let client = VerbsDevice::open(&options(selector, follow)).unwrap();
        Reliable::new(&client).connect(&server.endpoint());
        let marks = fake::marks();
        assert!(marks.flow_label < 1 << 20 && marks.flow_label != 0);
        (marks.pkey_index, marks.traffic_class, marks.sl)
    };
    assert_eq!(marks("fake0,pkey=1", true), (1, 106, 3));
    assert_eq!(marks("fake0,pkey=1,sl=0,tclass=4", true), (1, 4, 0));
    assert_eq!(
        marks("fake0,pkey=1", false),
        (1, 0, 0),
        "a server does not follow its clients"
    );
    let stranger = VerbsDevice::open(&options("fake0", true)).unwrap();
    let refused = Reliable::new(&stranger).attempt(&server.endpoint());
    assert!(refused.unwrap_err().to_string().contains("partition"));
}

#[test]
fn failed_queue_pair_is_reported_without_a_completion() {
    let mut side = Side::new();
    fake::event(sys::IBV_EVENT_QP_FATAL);
    side.hear();
    assert_eq!(side.state(), QpState::Error);
    assert_eq!(side.count("verbs_qp_failures"), 1);
}

#[test]
fn every_completion_status_is_mapped() {
    for (number, status) in [
        (sys::IBV_WC_LOC_LEN_ERR, Status::LocalError),
        (sys::IBV_WC_LOC_PROT_ERR, Status::LocalError),
        (sys::IBV_WC_WR_FLUSH_ERR, Status::Flushed),
        (sys::IBV_WC_REM_INV_REQ_ERR, Status::RemoteInvalid),
        (sys::IBV_WC_REM_ACCESS_ERR, Status::RemoteAccess),
        (sys::IBV_WC_RETRY_EXC_ERR, Status::RetryExceeded),
        (sys::IBV_WC_RNR_RETRY_EXC_ERR, Status::ReceiverNotReady),
        (sys::IBV_WC_FATAL_ERR, Status::LocalError),
    ] {
        let mut side = Side::new();
        fake::fail("status", 0, number);
        side.send(1).unwrap();
        assert_eq!(side.poll()[0], (1, status));
        let flushed = u64::from(status == Status::Flushed);
        assert_eq!(side.count("verbs_completion_errors"), 1 - flushed);
    }
}

#[test]
fn request_refused_by_the_driver_completes_as_flushed() {
    let mut side = Side::new();
    fake::fail("post_send", 1, libc::ENOMEM);
    side.send(1).unwrap();
    assert_eq!(side.state(), QpState::Error);
    let done = side.poll();
    assert!(
        done.contains(&(1, Status::Success)) && done.contains(&(2, Status::Flushed)),
        "{done:?}"
    );
    assert_eq!(side.count("verbs_post_refusals"), 1);
    assert_eq!(side.send(3), Err(PostError::State(QpState::Error)));
    // Another queue pair of the port is not affected.
    side.qp = side
        .device
        .create_qp(&mut side.port, &spec(side.pd, side.cq))
        .unwrap();
    let end = side.device.endpoint(&side.port, side.qp).unwrap();
    side.own = side
        .device
        .create_address(&mut side.port, side.qp, &end)
        .unwrap();
    side.works();
}
