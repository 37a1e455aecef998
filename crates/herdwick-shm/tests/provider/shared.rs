//! Shared memory of many domains: its seals, its tickets, and what an entry without its file opens.

use std::os::fd::{AsFd, OwnedFd};

use herdwick_fabric::{
    Access, Device, ImportError, Local, PdTicket, Port, Scope, SendOp, SendWr, SharedMemory,
    Sharing, Status, Transport,
};
use herdwick_mem::{Access as Rights, Mapping, Words};
use herdwick_shm::REGION_TICKET_BYTES;
use rustix::io::{Errno, pwrite};

use crate::party::{Party, connect, pair};

const LEN: usize = 10_000;

fn memory(host: &Party, sharing: Sharing) -> SharedMemory {
    host.device.allocate_shared(LEN, sharing).unwrap()
}

fn register(host: &mut Party, memory: &SharedMemory) -> (herdwick_fabric::RegionId, PdTicket) {
    register_for(host, memory, Access::READ)
}

fn register_for(
    host: &mut Party,
    memory: &SharedMemory,
    access: Access,
) -> (herdwick_fabric::RegionId, PdTicket) {
    let Party {
        device, port, pd, ..
    } = host;
    let region = device.register_shared(port, *pd, memory, access, Scope::Pd);
    let region = region.unwrap();
    (region, device.export_region(port, region).unwrap())
}

fn import(client: &mut Party, ticket: PdTicket) -> Result<(), ImportError> {
    client
        .device
        .import_region(&mut client.port, client.pd, ticket)
}

#[test]
fn memory_shared_read_only_cannot_be_written_through_its_descriptor() {
    let (mut host, _client) = pair();
    let memory = memory(&host, Sharing::ReadOnly);
    memory.span().store(0, 7);
    let (_, ticket) = register(&mut host, &memory);
    let file = &ticket.fds[0];
    assert!(Mapping::shared(file, 4096, Rights::ReadWrite).is_err());
    assert_eq!(pwrite(file, &[1], 0), Err(Errno::PERM));
    assert_eq!(memory.span().load(0), 7);
    let trusting = self::memory(&host, Sharing::TrustedPeers);
    let (_, ticket) = register_for(&mut host, &trusting, Access::ALL);
    assert_eq!(pwrite(&ticket.fds[0], &[1], 0), Ok(1));
    assert_eq!(trusting.span().load(0), 1);
}

#[test]
fn a_peer_that_may_only_read_what_others_write_gets_a_descriptor_for_reading() {
    let (mut host, mut client) = pair();
    let memory = memory(&host, Sharing::TrustedPeers);
    memory.span().store(0, 7);
    let (_, ticket) = register(&mut host, &memory);
    let file = &ticket.fds[0];
    assert!(Mapping::shared(file, 4096, Rights::ReadWrite).is_err());
    assert_eq!(pwrite(file, &[1], 0), Err(Errno::BADF));
    assert_eq!(memory.span().load(0), 7);
    import(&mut client, ticket).unwrap();
    // One that may write is not kept from it by the other.
    let (_, ticket) = register_for(&mut host, &memory, Access::ALL);
    assert_eq!(pwrite(&ticket.fds[0], &[1], 0), Ok(1));
    import(&mut client, ticket).unwrap();
}

#[test]
fn false_tickets_of_a_region_are_refused() {
    let (mut host, mut client) = pair();
    let memory = memory(&host, Sharing::ReadOnly);
    let (_, good) = register(&mut host, &memory);
    let copy = |fd: &OwnedFd| fd.as_fd().try_clone_to_owned().unwrap();
    let ticket = |blob: &[u8], fds: Vec<OwnedFd>| PdTicket {
        fds,
        blob: blob.to_vec(),
    };
    // Magic, an rkey of 33 bits, another length, a sharing that the seals belie, and an unknown one.
    for (at, byte) in [
        (0, 0),
        (12, 1),
        (17, 1),
        (23, 0xff),
        (24, 1),
        (24, 2),
        (31, 1),
    ] {
        let mut blob = good.blob.clone();
        blob[at] = byte;
        let refused = import(&mut client, ticket(&blob, vec![copy(&good.fds[0])]));
        assert!(matches!(refused, Err(ImportError::Ticket(_))), "byte {at}");
    }
    for len in (1..REGION_TICKET_BYTES).chain([REGION_TICKET_BYTES + 1]) {
        let mut blob = good.blob.clone();
        blob.resize(len, 0);
        let refused = import(&mut client, ticket(&blob, vec![copy(&good.fds[0])]));
        assert!(
            matches!(refused, Err(ImportError::Ticket(_))),
            "{len} bytes"
        );
    }
    let twice = vec![copy(&good.fds[0]), copy(&good.fds[0])];
    for fds in [vec![], twice] {
        let refused = import(&mut client, ticket(&good.blob, fds));
        assert!(matches!(refused, Err(ImportError::Ticket(_))));
    }
    let plain = std::fs::File::open("/dev/null").unwrap();
    let refused = import(&mut client, ticket(&good.blob, vec![plain.into()]));
    assert!(refused.is_err());
    import(&mut client, good).unwrap();
}

#[test]
fn an_entry_opens_only_the_file_that_was_imported_for_it() {
    let (mut host, mut client) = pair();
    let (h_rc, c_rc) = (host.qp(Transport::Rc, 0), client.qp(Transport::Rc, 0));
    connect(&mut host, h_rc, &mut client, c_rc);
    let old = memory(&host, Sharing::ReadOnly);
    let (region, ticket) = register(&mut host, &old);
    import(&mut client, ticket).unwrap();
    host.device.free_region(&mut host.port, region).unwrap();
    // The same entry, under another rkey, for other memory that the client has not imported.
    let new = memory(&host, Sharing::ReadOnly);
    let (region, _) = register(&mut host, &new);
    let into = client.region(64, Access::LOCAL);
    let into = Local {
        region: into,
        offset: 0,
        len: 64,
    };
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Read {
            into,
            from: host.remote(region),
        },
        signaled: true,
        solicited: false,
        fence: false,
    };
    client.port.post_send(c_rc, &[wr]).unwrap();
    assert_eq!(client.poll()[0].status, Status::RemoteAccess);
}
