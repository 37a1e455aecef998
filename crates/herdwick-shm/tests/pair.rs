//! A host's port and a guest's port in one process: HERD's verbs, sleeping, and what is refused.

use std::os::fd::BorrowedFd;

use herdwick_fabric::{
    Access, AddressHandle, Armed, Completion, CqId, CqSpec, Device, Opcode, Payload, PdId, Port,
    PortLimits, QpId, QpSpec, RecvWr, RegionId, RegionSpec, Remote, Scope, SendOp, SendWr, Status,
    Transport,
};
use herdwick_mem::Words;
use herdwick_shm::{PdSize, ShmDevice, ShmPort};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

struct Party {
    device: ShmDevice,
    port: ShmPort,
    pd: PdId,
    cq: CqId,
}

impl Party {
    fn qp(&mut self, transport: Transport, recv_depth: usize) -> QpId {
        let spec = QpSpec {
            pd: self.pd,
            transport,
            send_cq: self.cq,
            recv_cq: self.cq,
            send_depth: 64,
            recv_depth,
        };
        self.device.create_qp(&mut self.port, &spec).unwrap()
    }

    fn region(&mut self, len: usize, access: Access) -> RegionId {
        let scope = Scope::Pd;
        let spec = RegionSpec { len, access, scope };
        let region = self.device.allocate_region(&mut self.port, self.pd, &spec);
        region.unwrap()
    }

    fn remote(&self, region: RegionId) -> Remote {
        self.device.remote(&self.port, region).unwrap()
    }

    fn address(&mut self, qp: QpId, peer: &Self, peer_qp: QpId) -> AddressHandle {
        let endpoint = peer.device.endpoint(&peer.port, peer_qp).unwrap();
        let made = self.device.create_address(&mut self.port, qp, &endpoint);
        made.unwrap()
    }

    fn poll(&mut self) -> Vec<Completion> {
        let mut out = [nothing(); 64];
        let count = self.port.poll(self.cq, &mut out);
        out[..count].to_vec()
    }

    fn drops(&self) -> u64 {
        self.port.drops().iter().map(|(_, count)| count).sum()
    }
}

fn nothing() -> Completion {
    Completion {
        wr_id: 0,
        status: Status::Flushed,
        opcode: Opcode::Recv,
        qp: QpId(0),
        byte_len: 0,
        imm: None,
        source: None,
        inline: None,
    }
}

fn pair() -> (Party, Party) {
    let device = ShmDevice::host(PdSize::default());
    let mut port = device.open_port(&PortLimits::default()).unwrap();
    let pd = device.create_pd(&mut port).unwrap();
    let cq = device
        .create_cq(&mut port, &CqSpec { depth: 4096 })
        .unwrap();
    let ticket = device.ticket(&mut port, pd).unwrap();
    let host = Party {
        device,
        port,
        pd,
        cq,
    };
    let device = ShmDevice::guest();
    let mut port = device.open_port(&PortLimits::default()).unwrap();
    let pd = device.attach(&mut port, ticket).unwrap();
    let cq = device
        .create_cq(&mut port, &CqSpec { depth: 4096 })
        .unwrap();
    let guest = Party {
        device,
        port,
        pd,
        cq,
    };
    (host, guest)
}

fn connect(a: &mut Party, a_qp: QpId, b: &mut Party, b_qp: QpId) {
    let a_end = a.device.endpoint(&a.port, a_qp).unwrap();
    let b_end = b.device.endpoint(&b.port, b_qp).unwrap();
    a.device.connect(&mut a.port, a_qp, &b_end).unwrap();
    b.device.connect(&mut b.port, b_qp, &a_end).unwrap();
}

fn write(payload: Payload<'_>, to: Remote) -> SendWr<'_> {
    SendWr {
        wr_id: 1,
        op: SendOp::Write {
            payload,
            to,
            imm: None,
        },
        signaled: false,
        solicited: false,
    }
}

fn send(payload: Payload<'_>, imm: Option<u32>, to: Option<AddressHandle>) -> SendWr<'_> {
    SendWr {
        wr_id: 2,
        op: SendOp::Send { payload, imm, to },
        signaled: false,
        solicited: false,
    }
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
}

#[test]
fn a_request_is_written_and_its_reply_sent() {
    let (mut host, mut guest) = pair();
    let lines = host.region(4096, Access::WRITE);
    let (h_uc, g_uc) = (host.qp(Transport::Uc, 0), guest.qp(Transport::Uc, 0));
    let (h_ud, g_ud) = (host.qp(Transport::Ud, 0), guest.qp(Transport::Ud, 16));
    connect(&mut host, h_uc, &mut guest, g_uc);
    let to = host.address(h_ud, &guest, g_ud);
    let buffers = guest.region(16 * 4096, Access::LOCAL);
    let recv = |n: usize| RecvWr {
        wr_id: n as u64,
        into: herdwick_fabric::Local {
            region: buffers,
            offset: n * 4096,
            len: 4096,
        },
    };
    let recvs: Vec<_> = (0..16).map(recv).collect();
    guest.port.post_recv(g_ud, &recvs).unwrap();
    let at = host.remote(lines).offset(128);
    let line = [1, 2, 3, 4, 5, 6, 7, 8];
    let batch = [write(Payload::Words(&line), at)];
    guest.port.post_send(g_uc, &batch).unwrap();
    let span = host.port.region(lines).unwrap();
    assert_eq!(span.load_acquire(16 + 7), 8);
    assert_eq!(span.read_words::<8>(16), line);

    let long: Vec<u8> = (0..1000).map(|n| n as u8).collect();
    let replies = [
        send(Payload::Words(&line[..6]), Some(77), Some(to)),
        send(Payload::Inline(&long), None, Some(to)),
        send(Payload::Inline(&long[..3]), Some(0), Some(to)),
    ];
    host.port.post_send(h_ud, &replies).unwrap();
    let got = guest.poll();
    assert_eq!(got.len(), 3);
    let qpn = got[0].source.unwrap();
    assert!(
        got.iter()
            .all(|c| c.status == Status::Success && c.source == Some(qpn))
    );
    assert_eq!(
        (got[0].imm, got[0].byte_len, got[0].wr_id),
        (Some(77), 48, 0)
    );
    assert_eq!(got[0].inline.unwrap().words()[..6], line[..6]);
    assert_eq!((got[1].imm, got[1].byte_len), (None, 1000));
    assert!(got[1].inline.is_none());
    let mut bytes = vec![0; 1000];
    guest
        .port
        .region(buffers)
        .unwrap()
        .read_bytes(4096, &mut bytes);
    assert_eq!(bytes, long);
    assert_eq!((got[2].imm, got[2].byte_len), (Some(0), 3));
    assert_eq!((host.drops(), guest.drops()), (0, 0));
}

#[test]
fn a_receiver_without_recvs_or_room_loses_datagrams_and_only_those() {
    let (mut host, mut guest) = pair();
    let (h_ud, g_ud) = (host.qp(Transport::Ud, 0), guest.qp(Transport::Ud, 12));
    let to = host.address(h_ud, &guest, g_ud);
    for n in 0..100 {
        let word = [n];
        let batch = [send(Payload::Words(&word), None, Some(to))];
        host.port.post_send(h_ud, &batch).unwrap();
    }
    let full = host.drops();
    assert!(guest.poll().is_empty());
    assert_eq!(full + guest.drops(), 100);
    assert!((100 - full) >= 12);
}

#[test]
fn a_sleeper_is_rung_once_for_a_write_and_for_a_send() {
    let (mut host, mut guest) = pair();
    let lines = host.region(64, Access::WRITE);
    let (h_uc, g_uc) = (host.qp(Transport::Uc, 0), guest.qp(Transport::Uc, 0));
    let (h_ud, g_ud) = (host.qp(Transport::Ud, 0), guest.qp(Transport::Ud, 16));
    connect(&mut host, h_uc, &mut guest, g_uc);
    let to = host.address(h_ud, &guest, g_ud);
    let at = host.remote(lines);
    for round in 0..3 {
        let word = [round];
        assert_eq!(host.port.arm(host.cq), Armed::Yes);
        assert!(!is_readable(host.port.wait_fd().unwrap()));
        let batch = [write(Payload::Words(&word), at)];
        guest.port.post_send(g_uc, &batch).unwrap();
        assert!(is_readable(host.port.wait_fd().unwrap()));
        host.port.disarm(host.cq);
        assert!(!is_readable(host.port.wait_fd().unwrap()));
        guest.port.post_send(g_uc, &batch).unwrap();
        assert!(!is_readable(host.port.wait_fd().unwrap()));

        assert_eq!(guest.port.arm(guest.cq), Armed::Yes);
        let batch = [send(Payload::Words(&word), None, Some(to))];
        host.port.post_send(h_ud, &batch).unwrap();
        assert!(is_readable(guest.port.wait_fd().unwrap()));
        assert_eq!(guest.port.arm(guest.cq), Armed::Pending);
        guest.port.disarm(guest.cq);
        assert!(!is_readable(guest.port.wait_fd().unwrap()));
        assert!(guest.poll().is_empty());
    }
    assert_eq!(guest.drops(), 3);
}
