//! Both sides of an exchange: for each client a domain that the server exports, with the queue pairs and the
//! memory of requests and of replies.

use herdwick_fabric::{
    Access, AddressHandle, CqId, CqSpec, Device, Local, PdId, PdRoom, Port, PortLimits, QpId,
    QpSpec, RecvWr, RegionId, RegionSpec, Remote, Scope, Transport,
};
use herdwick_herd::SetupError;
use herdwick_mem::WORD;

use super::{
    Exchange, Way,
    port::{Channel, In, MessagePort, MessageWords, Out},
};

/// Room in a domain beside its rings and slots.
const SLACK_BYTES: usize = 64 << 10;
/// Least RECVs of a queue pair.
const RECVS_MIN: usize = 16;

/// A thread's device and port.
pub(crate) struct EchoParty<D: Device> {
    pub(crate) device: D,
    pub(crate) port: D::Port,
    cq: CqId,
}

/// What else a system has on the connection of a client to the server: made in the domain of both, at
/// the server and at the client.
pub(crate) trait Attach<D: Device> {
    /// The client's part.
    type Client;
    /// Why it cannot be made.
    type Error: From<SetupError>;

    /// Makes and connects it.
    ///
    /// # Errors
    /// [`Attach::Error`].
    fn attach(
        &mut self,
        server: (&mut EchoParty<D>, PdId),
        client: (&mut EchoParty<D>, PdId),
    ) -> Result<Self::Client, Self::Error>;
}

/// Nothing else.
impl<D: Device> Attach<D> for () {
    type Client = ();
    type Error = SetupError;

    fn attach(
        &mut self,
        _: (&mut EchoParty<D>, PdId),
        _: (&mut EchoParty<D>, PdId),
    ) -> Result<(), SetupError> {
        Ok(())
    }
}

/// Connects each client to the server; returns the server's end, and each client's with what was
/// attached.
///
/// # Errors
/// [`SetupError`], or that of what is attached.
pub(crate) fn connect<D: Device, A: Attach<D>>(
    exchange: &Exchange,
    (server, clients): (D, Vec<D>),
    attached: &mut A,
) -> Result<Connected<D, A::Client>, A::Error> {
    let [request, reply] = exchange.words;
    let served = MessageWords {
        out: reply,
        inward: request,
    };
    let asked = MessageWords {
        out: request,
        inward: reply,
    };
    let mut server = party(exchange, server, clients.len())?;
    let (mut serving, mut ports) = (Vec::new(), Vec::new());
    for client in clients {
        let mut client = party(exchange, client, 1)?;
        let [there, here] = domain(exchange, &mut server, &mut client)?;
        let sides = [
            EchoSide::new((exchange, served), &mut server, there),
            EchoSide::new((exchange, asked), &mut client, here),
        ];
        let [serves, asks] = channels(exchange.ways, sides)?;
        let with = attached.attach((&mut server, there), (&mut client, here))?;
        serving.push(serves);
        let EchoParty { device, port, cq } = client;
        let shape = (asked, exchange.window);
        ports.push((
            MessagePort::new((device, port, cq), vec![asks], shape),
            with,
        ));
    }
    let EchoParty { device, port, cq } = server;
    let shape = (served, exchange.window);
    Ok((MessagePort::new((device, port, cq), serving, shape), ports))
}

/// The server's end, and each client's with what was attached to it.
type Connected<D, C> = (MessagePort<D>, Vec<(MessagePort<D>, C)>);

/// Makes the domain of a client, at the server and at the client.
fn domain<D: Device>(
    exchange: &Exchange,
    server: &mut EchoParty<D>,
    client: &mut EchoParty<D>,
) -> Result<[PdId; 2], SetupError> {
    let EchoParty { device, port, .. } = server;
    let there = device.create_pd_for(port, &room(exchange))?;
    let ticket = device.export_pd(port, there)?;
    let here = client.device.import_pd(&mut client.port, ticket)?;
    Ok([there, here])
}

/// Returns the room in the domain of a client.
fn room(exchange: &Exchange) -> PdRoom {
    let [request, reply] = exchange.words.map(|words| words * WORD * exchange.window);
    let rings = 2 * recvs(exchange).next_power_of_two();
    PdRoom {
        writable: request + SLACK_BYTES,
        recvs: rings,
        peer_recvs: rings,
        peer_writable: reply + SLACK_BYTES,
    }
}

fn recvs(exchange: &Exchange) -> usize {
    (2 * exchange.window).max(RECVS_MIN)
}

/// Opens a port for `peers` peers, each with two queue pairs and what is attached.
fn party<D: Device>(
    exchange: &Exchange,
    device: D,
    peers: usize,
) -> Result<EchoParty<D>, SetupError> {
    let mut port = device.open_port(&PortLimits {
        pds: peers,
        qps: 3 * peers,
        cqs: 1 + peers,
        regions: 6 * peers,
        addresses: 2 * peers,
    })?;
    let depth = 2 * peers * (send_depth(exchange) + recvs(exchange));
    let cq = device.create_cq(&mut port, &CqSpec { depth })?;
    Ok(EchoParty { device, port, cq })
}

/// Replies and their attempts, between two signaled ones.
fn send_depth(exchange: &Exchange) -> usize {
    4 * exchange.window
}

/// Makes the channel of the server and that of the client.
fn channels<D: Device>(
    ways: [Way; 2],
    [mut server, mut client]: [EchoSide<'_, D>; 2],
) -> Result<[Channel; 2], SetupError> {
    let qps = connections(ways, &mut server, &mut client)?;
    let [there, here] = [0, 1];
    let [asking, answering] = ways;
    let (requests, base) = server.inward(asking, qps.of(asking, there))?;
    let ask = client.out(qps.of(asking, here), base, qps.to(asking, here))?;
    let (replies, base) = client.inward(answering, qps.of(answering, here))?;
    let answer = server.out(qps.of(answering, there), base, qps.to(answering, there))?;
    Ok([
        Channel {
            out: answer,
            inward: requests,
        },
        Channel {
            out: ask,
            inward: replies,
        },
    ])
}

/// One side of a client's channels.
struct EchoSide<'a, D: Device> {
    exchange: &'a Exchange,
    words: MessageWords,
    party: &'a mut EchoParty<D>,
    pd: PdId,
}

/// The queue pairs of a client at both sides: connected ones, and those for datagrams.
#[derive(Default)]
struct QueuePairs {
    connected: Option<[QpId; 2]>,
    datagrams: Option<([QpId; 2], [AddressHandle; 2])>,
}

impl QueuePairs {
    fn of(&self, way: Way, side: usize) -> QpId {
        let pair = match way.transport() {
            Transport::Ud => self.datagrams.map(|(qps, _)| qps),
            Transport::Rc | Transport::Uc => self.connected,
        };
        pair.map_or_else(|| unreachable!("made for each way"), |pair| pair[side])
    }

    fn to(&self, way: Way, side: usize) -> Option<AddressHandle> {
        let datagrams = self.datagrams.filter(|_| way.transport() == Transport::Ud);
        datagrams.map(|(_, addresses)| addresses[side])
    }
}

/// Makes the queue pairs that the ways need.
fn connections<D: Device>(
    ways: [Way; 2],
    server: &mut EchoSide<'_, D>,
    client: &mut EchoSide<'_, D>,
) -> Result<QueuePairs, SetupError> {
    let mut made = QueuePairs::default();
    for transport in ways.map(Way::transport) {
        match transport {
            Transport::Ud if made.datagrams.is_none() => {
                let qps = [server.qp(transport)?, client.qp(transport)?];
                let ends = [server.endpoint(qps[0])?, client.endpoint(qps[1])?];
                let addresses = [
                    server.address(qps[0], &ends[1])?,
                    client.address(qps[1], &ends[0])?,
                ];
                made.datagrams = Some((qps, addresses));
            }
            Transport::Rc | Transport::Uc if made.connected.is_none() => {
                let qps = [server.qp(transport)?, client.qp(transport)?];
                let ends = [server.endpoint(qps[0])?, client.endpoint(qps[1])?];
                server.connect(qps[0], &ends[1])?;
                client.connect(qps[1], &ends[0])?;
                made.connected = Some(qps);
            }
            _ => (),
        }
    }
    Ok(made)
}

impl<'a, D: Device> EchoSide<'a, D> {
    fn new(
        (exchange, words): (&'a Exchange, MessageWords),
        party: &'a mut EchoParty<D>,
        pd: PdId,
    ) -> Self {
        Self {
            exchange,
            words,
            party,
            pd,
        }
    }

    fn qp(&mut self, transport: Transport) -> Result<QpId, SetupError> {
        let Self {
            exchange,
            party,
            pd,
            ..
        } = self;
        let receives = exchange.ways.contains(&Way::Send(transport));
        let spec = QpSpec {
            pd: *pd,
            transport,
            send_cq: party.cq,
            recv_cq: party.cq,
            send_depth: send_depth(exchange),
            recv_depth: if receives { recvs(exchange) } else { 0 },
        };
        Ok(party.device.create_qp(&mut party.port, &spec)?)
    }

    fn endpoint(&mut self, qp: QpId) -> Result<herdwick_fabric::Endpoint, SetupError> {
        Ok(self.party.device.endpoint(&self.party.port, qp)?)
    }

    fn connect(&mut self, qp: QpId, peer: &herdwick_fabric::Endpoint) -> Result<(), SetupError> {
        Ok(self.party.device.connect(&mut self.party.port, qp, peer)?)
    }

    fn address(
        &mut self,
        qp: QpId,
        peer: &herdwick_fabric::Endpoint,
    ) -> Result<AddressHandle, SetupError> {
        let EchoParty { device, port, .. } = &mut *self.party;
        device.accept_from(port, qp, peer)?;
        Ok(device.create_address(port, qp, peer)?)
    }

    fn region(&mut self, len: usize, access: Access) -> Result<RegionId, SetupError> {
        let scope = Scope::Pd;
        let spec = RegionSpec { len, access, scope };
        let EchoParty { device, port, .. } = &mut *self.party;
        Ok(device.allocate_region(port, self.pd, &spec)?)
    }

    /// Makes what messages arrive in; returns its remote address too, if they are written.
    fn inward(&mut self, way: Way, qp: QpId) -> Result<(In, Option<Remote>), SetupError> {
        let bytes = self.words.inward * WORD;
        if let Way::Write(_) = way {
            let region = self.region(bytes * self.exchange.window, Access::WRITE)?;
            let remote = self.party.device.remote(&self.party.port, region)?;
            let span = self.party.port.region(region).cloned();
            let span = span.ok_or(herdwick_fabric::ControlError::Unknown("region"))?;
            return Ok((In::Slots(span, vec![0; self.exchange.window]), Some(remote)));
        }
        let header = match way.transport() {
            Transport::Ud => self.party.device.capabilities().datagram_header_bytes,
            Transport::Rc | Transport::Uc => 0,
        };
        let (count, len) = (recvs(self.exchange), bytes + header);
        let stride = len.next_multiple_of(WORD);
        let region = self.region(count * stride, Access::LOCAL)?;
        let recv = |index| RecvWr {
            wr_id: 0,
            into: Local {
                region,
                offset: index * stride,
                len,
            },
        };
        let inward = In::Recvs {
            qp,
            recvs: (0..count).map(recv).collect(),
            header,
            next: 0,
            consumed: 0,
        };
        Ok((inward, None))
    }

    fn out(
        &mut self,
        qp: QpId,
        slots: Option<Remote>,
        to: Option<AddressHandle>,
    ) -> Result<Out, SetupError> {
        let bytes = self.words.out * WORD * self.exchange.window;
        Ok(Out {
            qp,
            to,
            slots,
            staging: self.region(bytes, Access::LOCAL)?,
            inline: self.exchange.inline,
            signaled: self.exchange.signaled,
            unsignaled: 0,
        })
    }
}
