//! Every behaviour of the conformance suite again, with the client in another process.

use herdwick_conformance::{
    Fixture, LocalParty, Party,
    far::{FarParty, serve},
};
use herdwick_fabric::{Device, PortLimits};
use herdwick_shm::ShmDevice;

use crate::{
    conformance::ROOMY,
    process::{other_end, receive_ticket, send_ticket, start},
};

/// A client in another process, and its host.
fn pair() -> [Box<dyn Party>; 2] {
    let device = ShmDevice::host(ROOMY);
    let mut port = device.open_port(&PortLimits::default()).unwrap();
    let pd = device.create_pd(&mut port).unwrap();
    let ticket = device.export_pd(&mut port, pd).unwrap();
    let (mut child, stream) = start("across::client");
    send_ticket(&stream, &ticket).unwrap();
    let far = FarParty::new(stream, device.capabilities().clone()).unwrap();
    // The process ends when its party here is dropped.
    std::thread::spawn(move || child.wait().unwrap());
    [Box::new(far), Box::new(LocalParty::new(device, port, pd))]
}

#[test]
#[ignore = "the other process of the tests here"]
fn client() {
    let Some(stream) = other_end() else { return };
    let device = ShmDevice::client();
    let mut port = device.open_port(&PortLimits::default()).unwrap();
    let pd = device
        .import_pd(&mut port, receive_ticket(&stream))
        .unwrap();
    serve(Box::new(LocalParty::new(device, port, pd)), stream).unwrap();
}

mod client_asks {
    struct Shm;
    impl super::Fixture for Shm {
        fn pair(&self) -> [Box<dyn super::Party>; 2] {
            super::pair()
        }
        fn rounds(&self) -> u64 {
            2_000
        }
        fn quiet(&self) -> usize {
            50
        }
    }
    herdwick_conformance::conformance!(Shm);
}

mod host_asks {
    struct Shm;
    impl super::Fixture for Shm {
        fn pair(&self) -> [Box<dyn super::Party>; 2] {
            let [client, host] = super::pair();
            [host, client]
        }
        fn rounds(&self) -> u64 {
            2_000
        }
        fn quiet(&self) -> usize {
            50
        }
    }
    herdwick_conformance::conformance!(Shm);
}
