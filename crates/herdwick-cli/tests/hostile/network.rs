//! What a client may do with a lease over a network: cut its TCP connection or stay silent on it,
//! name queue pairs elsewhere, send garbage packets. An honest client on the same network is not
//! affected.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
};

use herdwick::{Client, Fabric, Options, Session};
use herdwick_fabric::{
    Completion, CqId, CqSpec, Device, Endpoint, Payload, Port, PortLimits, QpId, QpSpec, Remote,
    Rkey, SendOp, SendWr, Transport,
};
use herdwick_herd::hello::{
    Accept, Claim, Grant, HEADER_BYTES, Header, Hello, Kind, Offer, WorkerAccept,
};
use herdwick_roce_udp::{RoceDevice, RoceOptions, RocePort};
use rustix::net;

use crate::{
    Siege, WINDOW,
    common::{Chance, Clock, TIMEOUT, settle},
    meanwhile,
    raw::{LINE_BYTES, LINE_WORDS, OVERFLOW_BYTES},
};

/// Leases that exist all along: the siege's two and the honest client's.
const LEASES: u64 = 3;

/// Connects a client that has its lease over the network as intended.
pub(crate) fn honest(siege: &Siege) -> Client {
    let options = Options {
        only: Some(Fabric::Roce),
        deadline: TIMEOUT,
        ..Options::default()
    };
    let client = Client::connect_with(&siege.server.address, options).unwrap();
    assert_eq!(client.session().map(Session::transport), Some("roce"));
    client
}

/// Checks that the client is served over its lease, and goes on counting.
fn counts(client: &mut Client) {
    let before = client.incr("honest", 1).unwrap();
    if before.is_none() {
        client.set("honest", "0").unwrap();
    }
    for _ in 0..50 {
        let number = client.incr("honest", 1).unwrap().unwrap();
        assert_eq!(
            client.get("honest").unwrap(),
            Some(number.to_string().into_bytes())
        );
    }
    assert_eq!(
        client.session().map(Session::transport),
        Some("roce"),
        "the lease was not revoked"
    );
}

/// Returns a fresh connection, and a claim that may be sent on it.
fn claimant(address: &str) -> (TcpStream, Vec<u8>) {
    let mut stream = TcpStream::connect(address).unwrap();
    let hello = Hello {
        fabrics: vec!["roce".to_owned()],
        ..Hello::default()
    };
    stream.write_all(hello.to_line().as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    let offer = Offer::parse(line.trim_end().as_bytes(), &Fabric::all_words()).unwrap();
    let claim = Claim {
        token: offer.fabric("roce").expect("it is offered").token,
        window: WINDOW as u32,
        reply_bytes_max: 4096,
        reads: false,
    };
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    (stream, claim.to_frame())
}

/// Reads one frame. The handshake's machine does not serve here: it sends nothing that is out of order
/// or names queue pairs elsewhere.
fn frame(stream: &mut TcpStream) -> (Kind, Vec<u8>) {
    let mut head = [0; HEADER_BYTES];
    stream.read_exact(&mut head).unwrap();
    let header = Header::parse(&head).unwrap();
    let mut body = vec![0; header.body_bytes];
    stream.read_exact(&mut body).unwrap();
    (header.kind, body)
}

/// One worker's lines, as seen by a client that writes arbitrary data.
struct Channel {
    qp: QpId,
    cq: CqId,
    lines: Remote,
    overflow: Remote,
}

/// A lease with queue pairs made by the test.
pub(crate) struct Far {
    stream: TcpStream,
    port: RocePort,
    channels: Vec<Channel>,
    accept: Accept,
    epoch: u64,
    clock: Clock,
}

impl Far {
    /// Makes a lease that is claimed and granted, with queue pairs at `host`.
    fn granted(address: &str, host: Ipv4Addr) -> Self {
        let (mut stream, claim) = claimant(address);
        stream.write_all(&claim).unwrap();
        let (kind, body) = frame(&mut stream);
        assert_eq!(kind, Kind::Grant);
        let grant = Grant::parse(&body).unwrap();
        let device = RoceDevice::bind(RoceOptions {
            peer_host: Some(stream.peer_addr().unwrap().ip()),
            ..RoceOptions::new(SocketAddr::new(host.into(), 0))
        });
        let device = device.unwrap();
        let mut port = device.open_port(&PortLimits::default()).unwrap();
        let (mut channels, mut workers) = (Vec::new(), Vec::new());
        for worker in &grant.workers {
            let pd = device.create_pd(&mut port).unwrap();
            let cq = device.create_cq(&mut port, &CqSpec { depth: 64 }).unwrap();
            let mut create = |transport| {
                let spec = QpSpec {
                    pd,
                    transport,
                    send_cq: cq,
                    recv_cq: cq,
                    send_depth: 16,
                    recv_depth: 0,
                };
                let qp = device.create_qp(&mut port, &spec).unwrap();
                (qp, device.endpoint(&port, qp).unwrap())
            };
            let ((qp, requests), (_, replies)) = (create(Transport::Uc), create(Transport::Ud));
            device.connect(&mut port, qp, &worker.requests).unwrap();
            workers.push(WorkerAccept { requests, replies });
            channels.push(Channel {
                qp,
                cq,
                lines: worker.lines,
                overflow: worker.overflow,
            });
        }
        Self {
            stream,
            port,
            channels,
            accept: Accept { workers },
            epoch: grant.epoch.into(),
            clock: Clock::start(),
        }
    }

    /// Makes a lease that is in service.
    pub(crate) fn take(address: &str) -> Self {
        let mut far = Self::granted(address, Ipv4Addr::LOCALHOST);
        far.stream.write_all(&far.accept.to_frame()).unwrap();
        assert_eq!(frame(&mut far.stream).0, Kind::Go);
        far
    }

    /// Returns the number of its channels.
    pub(crate) fn channels(&self) -> usize {
        self.channels.len()
    }

    /// WRITEs a line `count` times to the address that `to` makes of the channel's lines, as one
    /// postlist.
    pub(crate) fn write_often(
        &mut self,
        channel: usize,
        to: impl FnOnce(Remote) -> Remote,
        count: usize,
    ) {
        let Channel { qp, cq, lines, .. } = self.channels[channel];
        let to = to(lines);
        let write = |n| SendWr {
            wr_id: 0,
            op: SendOp::Write {
                payload: Payload::Words(&[0; LINE_WORDS]),
                to,
                imm: None,
            },
            signaled: n + 1 == count,
            solicited: false,
            fence: false,
        };
        let postlist: Vec<SendWr<'_>> = (0..count).map(write).collect();
        self.port.post_send(qp, &postlist).unwrap();
        while self.port.poll(cq, &mut [Completion::BLANK]) == 0 {
            self.port.progress(self.clock.now());
        }
    }

    /// WRITEs `words` to the address that `to` selects.
    fn write(&mut self, channel: usize, to: impl FnOnce(&Channel) -> Remote, words: &[u64]) {
        let Channel { qp, cq, .. } = self.channels[channel];
        let write = SendWr {
            wr_id: 0,
            op: SendOp::Write {
                payload: Payload::Words(words),
                to: to(&self.channels[channel]),
                imm: None,
            },
            signaled: true,
            solicited: false,
            fence: false,
        };
        self.port.post_send(qp, &[write]).unwrap();
        self.port.progress(self.clock.now());
        self.port.poll(cq, &mut [Completion::BLANK; 4]);
    }

    /// Writes a random line into a random slot, half of the lines with this lease's epoch; or
    /// random bytes elsewhere.
    fn scribble(&mut self, chance: &mut Chance) {
        let mut words = [0; LINE_WORDS].map(|_: u64| chance.next());
        if chance.below(2) == 0 {
            words[LINE_WORDS - 1] = words[LINE_WORDS - 1] >> 16 | self.epoch << 48;
        }
        let (channel, slot) = (
            chance.below(self.channels.len()),
            chance.below(WINDOW) as u64,
        );
        let (kind, wild) = (chance.below(8), chance.next());
        let to = move |channel: &Channel| match kind {
            0 => channel.overflow.offset(slot * OVERFLOW_BYTES as u64),
            1 => Remote {
                addr: wild,
                ..channel.lines
            },
            2 => Remote {
                rkey: Rkey(wild as u32),
                ..channel.lines
            },
            _ => channel.lines.offset(slot * LINE_BYTES as u64),
        };
        self.write(channel, to, &words);
    }
}

#[test]
fn random_packets_of_a_lease_are_counted_and_affect_no_other_client() {
    let mut siege = Siege::new();
    let mut client = honest(&siege);
    let mut far = Far::take(&siege.server.address);
    let mut chance = Chance::new(1);
    meanwhile(
        || far.scribble(&mut chance),
        || {
            for _ in 0..10 {
                counts(&mut client);
                siege.survives();
            }
            for name in [
                "stale_epoch",
                "out_of_window",
                "roce_out_of_range",
                "roce_unknown_rkey",
            ] {
                siege.until_stat(name, 10);
            }
            // The counters of its connections are in `stats`, too.
            for name in ["roce_timeouts", "roce_retransmitted", "roce_duplicates"] {
                assert_eq!(siege.stat(name), 0, "UC repeats nothing");
            }
        },
    );
    counts(&mut client);
    siege.survives();
}

#[test]
fn lease_handshake_cut_at_any_byte_leaves_no_state() {
    let mut siege = Siege::new();
    let mut client = honest(&siege);
    counts(&mut client);
    siege.survives();
    let (held, bytes) = (siege.server.holdings(), siege.stat("lease_bytes"));
    let address = siege.server.address.clone();
    let claim = claimant(&address).1.len();
    for cut in 1..=claim {
        let (mut stream, claim) = claimant(&address);
        stream.write_all(&claim[..cut]).unwrap();
    }
    let accept = Far::granted(&address, Ipv4Addr::LOCALHOST)
        .accept
        .to_frame();
    for cut in (0..=accept.len()).step_by(7) {
        let mut far = Far::granted(&address, Ipv4Addr::LOCALHOST);
        let accept = far.accept.to_frame();
        far.stream.write_all(&accept[..cut]).unwrap();
    }
    settle(&siege.server, &mut siege.steady.client, LEASES, held);
    siege.until("their memory is back", |siege| {
        siege.stat("lease_bytes") == bytes
    });
    counts(&mut client);
    siege.survives();
}

#[test]
fn endpoints_at_another_address_or_malformed_are_refused() {
    let mut siege = Siege::new();
    let malformed = siege.stat("lease_malformed");
    let address = siege.server.address.clone();
    let mut elsewhere = Far::granted(&address, Ipv4Addr::new(127, 0, 0, 2));
    let mut spoiled = Far::granted(&address, Ipv4Addr::LOCALHOST);
    for worker in &mut spoiled.accept.workers {
        let bytes = worker.replies.as_bytes();
        worker.replies = Endpoint::new(&bytes[..bytes.len() - 1]).unwrap();
    }
    let mut swapped = Far::granted(&address, Ipv4Addr::LOCALHOST);
    for worker in &mut swapped.accept.workers {
        std::mem::swap(&mut worker.requests, &mut worker.replies);
    }
    for far in [&mut elsewhere, &mut spoiled, &mut swapped] {
        far.stream.write_all(&far.accept.to_frame()).unwrap();
        assert_eq!(frame(&mut far.stream).0, Kind::Refusal);
    }
    assert_eq!(siege.stat("lease_malformed"), malformed + 3);
    siege.survives();
}

/// Claims a lease from the address `host`. Returns the connection, and whether it was granted or
/// refused.
fn ask_from(address: &str, host: Ipv4Addr) -> (TcpStream, Kind) {
    let (_, claim) = claimant(address);
    let (family, kind) = (net::AddressFamily::INET, net::SocketType::STREAM);
    let socket = net::socket(family, kind, None).unwrap();
    net::bind(&socket, &SocketAddr::from((host, 0))).unwrap();
    net::connect(&socket, &address.parse::<SocketAddr>().unwrap()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(&claim).unwrap();
    let (kind, _) = frame(&mut stream);
    (stream, kind)
}

/// All clients of one host together may take most of the memory for leases, but not the last share,
/// whatever addresses they use.
#[test]
fn one_host_cannot_take_all_lease_memory() {
    let mut siege = Siege::new();
    let address = siege.server.address.clone();
    let mut greedy = Vec::new();
    loop {
        let (stream, kind) = ask_from(&address, Ipv4Addr::LOCALHOST);
        if kind == Kind::Refusal {
            break;
        }
        greedy.push(stream);
    }
    assert!(greedy.len() >= 20, "{}", greedy.len());
    for n in 2..6 {
        let (_, kind) = ask_from(&address, Ipv4Addr::new(127, 0, 0, n));
        assert_eq!(kind, Kind::Refusal, "127.0.0.{n}");
    }
    drop(greedy);
    siege.survives();
}

#[test]
#[ignore = "ten seconds: a lease lasts as long without a heartbeat; CI runs it"]
fn leases_of_one_address_are_limited_and_end_without_heartbeats() {
    let mut siege = Siege::new();
    let address = siege.server.address.clone();
    let mut silent = Far::take(&address);
    let mut client = honest(&siege);
    let crowd: Vec<Far> = (0..60).map(|_| Far::take(&address)).collect();
    counts(&mut client);
    siege.survives();
    drop(crowd);
    siege.until("the silent one ends", |siege| {
        counts(&mut client);
        siege.stat("lease_heartbeat_timeouts") > 0
    });
    assert_eq!(silent.stream.read(&mut [0]).unwrap(), 0, "hung up on");
    // Its memory is gone, and its packets find no queue pair.
    let strange = siege.stat("roce_unknown_qpn");
    silent.write(0, |channel| channel.lines, &[0; LINE_WORDS]);
    siege.until_stat("roce_unknown_qpn", strange + 1);
    siege.until("the other clients have disconnected", |siege| {
        siege.stat("leases") == LEASES
    });
    counts(&mut client);
}
