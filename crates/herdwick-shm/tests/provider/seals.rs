//! What a client may try on the shared files themselves: their length, seals and contents.

use std::{
    os::fd::OwnedFd,
    sync::mpsc::{self, Receiver},
    thread,
    time::Duration,
};

use herdwick_fabric::{
    Access, ControlError, Device, Endpoint, ImportError, Payload, PdTicket, Port, PortLimits,
    Transport,
};
use herdwick_mem::{Access as Rights, Mapping, Words};
use herdwick_shm::{PdSize, ShmDevice};
use rustix::{
    fs::{
        FallocateFlags, Mode, OFlags, SealFlags, fallocate, fcntl_add_seals, fstat, ftruncate, open,
    },
    io::{Errno, pwrite},
};

use crate::party::{client, connect, host, pair, write};

/// A bound for failures; no passing test waits for it.
const TIMEOUT: Duration = Duration::from_secs(60);

fn ticket() -> (crate::party::Party, PdTicket) {
    let mut host = host(PdSize::default());
    let ticket = host.domain();
    (host, ticket)
}

fn length(fd: &OwnedFd) -> u64 {
    u64::try_from(fstat(fd).unwrap().st_size).unwrap()
}

/// Index in a ticket of the descriptor of the file that the host alone writes.
const DOWN: usize = 1;

const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

#[test]
fn memory_files_cannot_be_resized_or_resealed() {
    let (_host, ticket) = ticket();
    for (n, fd) in ticket.fds[..3].iter().enumerate() {
        let len = length(fd);
        // One of them is not even open for writing.
        let refused = |errno| Err(if n == DOWN { errno } else { Errno::PERM });
        for other in [0, len - 4096, len + 4096] {
            assert_eq!(ftruncate(fd, other), refused(Errno::INVAL));
        }
        let grow = fallocate(fd, FallocateFlags::empty(), len, 4096);
        assert_eq!(grow, refused(Errno::BADF));
        for seal in [SealFlags::WRITE, SealFlags::FUTURE_WRITE, SealFlags::SHRINK] {
            assert_eq!(fcntl_add_seals(fd, seal), Err(Errno::PERM));
        }
    }
}

#[test]
fn client_cannot_write_the_hosts_file() {
    let (_host, ticket) = ticket();
    for (n, fd) in ticket.fds[..3].iter().enumerate().skip(DOWN) {
        let len = usize::try_from(length(fd)).unwrap();
        let refused = if n == DOWN { Errno::BADF } else { Errno::PERM };
        assert_eq!(pwrite(fd, &[1], 0), Err(refused));
        assert_eq!(fallocate(fd, PUNCH, 0, 4096), Err(refused));
        assert!(Mapping::shared(fd, len, Rights::ReadWrite).is_err());
        let read_only = Mapping::shared(fd, len, Rights::Read).unwrap();
        assert!(read_only.discard().is_err());
        if n == DOWN {
            // Its owner may open it again, which harms only that user: the host reads nothing from
            // it. Other users may not.
            assert_eq!(fstat(fd).unwrap().st_mode & 0o777, 0o400);
            continue;
        }
        // Opening the same file again gives no further rights.
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(fd));
        if let Ok(again) = open(path, OFlags::RDWR, Mode::empty()) {
            assert!(Mapping::shared(again, len, Rights::ReadWrite).is_err());
        }
    }
}

#[test]
fn hole_punched_by_a_client_affects_no_other() {
    let mut host = host(PdSize::default());
    let ticket = host.domain();
    let up = ticket.fds[0].try_clone().unwrap();
    let mut client = client(ticket);
    let lines = host.region(4096, Access::WRITE);
    let (h_uc, g_uc) = (host.qp(Transport::Uc, 16), client.qp(Transport::Uc, 16));
    connect(&mut host, h_uc, &mut client, g_uc);
    let at = host.remote(lines);
    let batch = [write(Payload::Words(&[7]), at)];
    client.port.post_send(g_uc, &batch).unwrap();
    fallocate(&up, PUNCH, 0, length(&up)).unwrap();
    let span = host.port.region(lines).unwrap().clone();
    assert_eq!(span.load_acquire(0), 0);
    assert!(host.poll().is_empty());
    let batch = [crate::party::send(Payload::Words(&[1]), None, None)];
    host.port.post_send(h_uc, &batch).unwrap();
    assert_eq!(host.drops(), 1, "the queue pair's line is a hole");
}

#[test]
fn revoked_memory_is_freed_while_the_client_maps_it() {
    let (mut host, client) = pair();
    let lines = host.region(1 << 19, Access::WRITE);
    let span = host.port.region(lines).unwrap().clone();
    (0..span.count()).for_each(|word| span.store(word, u64::MAX));
    let (pd, remote) = (host.pd, host.remote(lines));
    host.device.destroy_pd(&mut host.port, pd).unwrap();
    assert!((0..span.count()).all(|word| span.load(word) == 0));
    assert!(host.device.export_pd(&mut host.port, pd).is_err());
    assert!(remote.rkey.0 != 0);
    drop(client);
}

/// Returns the bytes of a file that are in memory, in any process.
fn held(fd: &OwnedFd) -> i64 {
    fstat(fd).unwrap().st_blocks * 512
}

#[test]
fn both_files_are_freed_while_the_client_holds_them() {
    let mut host = host(PdSize::default());
    let ticket = host.domain();
    let files: Vec<_> = ticket.fds[..2]
        .iter()
        .map(|fd| fd.try_clone().unwrap())
        .collect();
    let mut client = client(ticket);
    let (h_ud, g_ud) = (host.qp(Transport::Ud, 0), client.qp(Transport::Ud, 16));
    host.address(h_ud, &client.endpoint(g_ud));
    host.region(1 << 19, Access::WRITE);
    assert!(files.iter().all(|file| held(file) >= 16 << 10));
    let pd = host.pd;
    host.device.destroy_pd(&mut host.port, pd).unwrap();
    assert_eq!([held(&files[0]), held(&files[1])], [0, 0]);
    assert_eq!(host.drops(), 0, "nothing was refused");
    drop(client);
}

type Done = Box<dyn FnOnce(Result<(), ControlError>) + Send>;

/// A client that holds the lock of a file blocks every thread that punches a hole into it.
#[test]
fn memory_is_freed_by_another_thread_than_the_one_ending_a_domain() {
    let mut host = host(PdSize::default());
    let mut release = |done: Done| {
        let ticket = host.domain();
        let files: Vec<_> = ticket.fds.into_iter().take(2).collect();
        assert!(files.iter().all(|file| held(file) > 0));
        host.device.release_pd(&mut host.port, host.pd, done);
        files
    };
    let (stuck, go_on) = mpsc::channel();
    let (tell, told) = mpsc::channel();
    let here = thread::current().id();
    // A domain behind one that takes for ever does not wait for it.
    release(Box::new(move |_| go_on_after(&go_on)));
    let files = release(Box::new(move |done| {
        tell.send((thread::current().id(), done.is_ok())).unwrap();
    }));
    let (there, is_done) = told.recv_timeout(TIMEOUT).unwrap();
    assert!(is_done && there != here);
    assert!(files.iter().all(|file| held(file) == 0));
    stuck.send(()).unwrap();
}

fn go_on_after(told: &Receiver<()>) {
    told.recv_timeout(TIMEOUT).unwrap();
}

#[test]
fn ticket_is_valid_once_and_only_complete() {
    let (mut host, whole) = ticket();
    let pd = host.pd;
    assert!(host.device.export_pd(&mut host.port, pd).is_err(), "once");
    let device = ShmDevice::client();
    let mut port = device.open_port(&PortLimits::default()).unwrap();
    let copy = |order: &[usize], blob: &[u8]| PdTicket {
        fds: order
            .iter()
            .map(|n| whole.fds[*n].try_clone().unwrap())
            .collect(),
        blob: blob.to_vec(),
    };
    let mut bad = vec![copy(&[0, 1, 2, 3], &whole.blob), copy(&[], &whole.blob)];
    for order in [
        [1, 0, 2, 3, 4],
        [0, 0, 2, 3, 4],
        [0, 1, 0, 3, 4],
        [0, 1, 1, 3, 4],
        [0, 2, 2, 3, 4],
        [0, 1, 3, 2, 4],
        [3, 1, 2, 3, 4],
        [0, 1, 2, 4, 3],
        [0, 1, 2, 3, 3],
        [0, 1, 2, 3, 1],
        [0, 1, 2, 4, 4],
    ] {
        bad.push(copy(&order, &whole.blob));
    }
    for cut in 0..whole.blob.len() {
        bad.push(copy(&[0, 1, 2, 3, 4], &whole.blob[..cut]));
    }
    for bit in (0..64).chain(128..whole.blob.len() * 8) {
        let mut blob = whole.blob.clone();
        blob[bit / 8] ^= 1 << (bit % 8);
        bad.push(copy(&[0, 1, 2, 3, 4], &blob));
    }
    for ticket in bad {
        match device.import_pd(&mut port, ticket) {
            Err(ImportError::Ticket(_)) => {}
            // A split that moved by whole pages is as valid as the true one.
            Ok(pd) => device.destroy_pd(&mut port, pd).unwrap(),
            other => panic!("{other:?}"),
        }
    }
    let pd = device
        .import_pd(&mut port, copy(&[0, 1, 2, 3, 4], &whole.blob))
        .unwrap();
    device.destroy_pd(&mut port, pd).unwrap();
}

#[test]
fn an_endpoint_of_another_domain_is_not_at_this_one() {
    let mut host = host(PdSize::default());
    let tickets = [host.domain(), host.domain()];
    let pd = host.pd;
    let ends = tickets.map(|ticket| {
        let mut peer = client(ticket);
        let qp = peer.qp(Transport::Uc, 0);
        peer.endpoint(qp)
    });
    let at = |ends: &[&Endpoint]| host.device.is_at(&host.port, pd, ends, None);
    assert!(at(&[&ends[1], &ends[1]]));
    assert!(!at(&[&ends[0]]) && !at(&[&ends[1], &ends[0]]));
    assert!(!at(&[&Endpoint::new(b"garbage").unwrap()]));
}
