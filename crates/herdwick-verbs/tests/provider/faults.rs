//! What fails, and how it is told: by an error that says so, and never for others too.

use std::ffi::OsString;

use herdwick_fabric::{ControlError, Device, PostError, QpState, Status};
use herdwick_verbs::{Health, LibraryError, NoPlace, VerbsDevice, VerbsError, VerbsOptions, sys};

use herdwick_verbs_fake::handle as fake;

use crate::side::{REGION, Side, open, spec};

#[test]
fn a_missing_library_is_named_with_what_to_install() {
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
fn a_library_without_the_functions_is_too_old() {
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
fn no_device_and_a_refused_list_are_told_apart() {
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
fn a_device_that_cannot_be_opened_is_passed_by() {
    // The first that is tried is the one whose link is down; the second the loopback.
    fake::fail("ibv_open_device", 1, libc::EACCES);
    let error = open().unwrap_err();
    assert!(
        error.to_string().contains("no port of fake_down is active"),
        "{error}"
    );
}

#[test]
fn a_refused_registration_names_the_memlock_limit_and_leaves_the_port_well() {
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
fn every_refused_construction_is_an_error_and_nothing_is_left_of_it() {
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
            // Each calls the function once at least, so one of these was the one to fail.
            for _ in 0..4 {
                let _ = Side::attempt().map(|mut side| side.works());
            }
            Side::new().works();
        }
    }
}

#[test]
fn an_overrun_queue_fails_its_queue_pairs_and_no_others() {
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
fn a_lost_device_is_told_by_every_queue_pair() {
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
fn a_port_that_goes_down_comes_back() {
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
fn a_failed_queue_pair_is_told_without_a_completion() {
    let mut side = Side::new();
    fake::event(sys::IBV_EVENT_QP_FATAL);
    side.hear();
    assert_eq!(side.state(), QpState::Error);
    assert_eq!(side.count("verbs_qp_failures"), 1);
}

#[test]
fn every_status_is_told_in_the_fabrics_words() {
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
fn what_a_driver_refuses_ends_as_flushed() {
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
    // Another queue pair of the port is none the worse.
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
