//! Both ends of a point: ports, domains, connected queue pairs and memory, for each thread.
//!
//! Of each pair of threads one exports a domain and the other joins it. The target of connected queue
//! pairs exports, since it has the memory that the verbs access; where datagrams are sent, the server
//! does, as in HERD, so that one of its queue pairs reaches all clients.

use std::sync::Arc;

use herdwick_fabric::{
    Access, CqId, CqSpec, Device, Local, PdId, PdRoom, PortLimits, QpId, QpSpec, RecvWr, RegionId,
    RegionSpec, Remote, Rkey, Scope, SetupError, SharedMemory, Sharing, Transport,
};
use herdwick_mem::WORD;

use super::{
    arrivals::{ArrivalCounts, Arrivals},
    issue::{Flow, Issuer, Shape},
    plan::{Direction, Point, Verb},
    respond::{ResponderFlow, TargetThread},
};

/// A thread's port and what hangs on it.
struct VerbThread<D: Device> {
    device: D,
    port: D::Port,
    cq: CqId,
}

/// Least RECVs of a queue pair.
const RECVS_MIN: usize = 16;
/// Room in a domain beside its rings.
const SLACK_BYTES: usize = 64 << 10;

/// How many of everything a point needs.
pub(super) struct Sizes {
    /// RECVs of a queue pair that receives.
    pub(super) recvs: usize,
    /// Bytes of a RECV's buffer.
    pub(super) recv_bytes: usize,
    /// A message that is received acknowledges so many; 0: arrivals are not counted.
    pub(super) per_message: usize,
    /// Whether the fabric may lose messages.
    pub(super) may_lose: bool,
}

impl Sizes {
    fn of<D: Device>(point: &Point, device: &D) -> Self {
        let has = device.capabilities();
        // A UC WRITE that may be lost has a completion at the target every so often, so that the
        // issuer neither overruns it nor counts what was lost.
        let announced =
            point.verb == Verb::Write && point.transport == Transport::Uc && !has.lossless;
        let per_message = match point.verb {
            Verb::Send => 1,
            _ if announced => point.window.div_ceil(2),
            _ => 0,
        };
        Self {
            recvs: match per_message {
                0 => 0,
                _ => (2 * point.window).max(RECVS_MIN),
            },
            recv_bytes: has.datagram_header_bytes + point.payload.next_multiple_of(WORD),
            per_message,
            may_lose: point.transport != Transport::Rc && !has.lossless,
        }
    }
}

/// Everything of a point, ready to run.
pub(super) struct Ends<D: Device> {
    pub(super) issuers: Vec<Issuer<D::Port, D>>,
    pub(super) responders: Vec<TargetThread<D>>,
    pub(super) counts: ArrivalCounts,
}

/// Whether servers export the domains.
pub(super) fn servers_export(point: &Point) -> bool {
    point.transport == Transport::Ud || point.direction == Direction::Inbound
}

/// Connects the ends of `point`: `exporters` are the devices of the side that [`servers_export`]
/// returns, `importers` those of the other side.
///
/// # Errors
/// [`SetupError`].
pub(super) fn connect<D: Device>(
    point: &Point,
    exporters: Vec<D>,
    importers: Vec<D>,
) -> Result<Ends<D>, SetupError> {
    let counts = [exporters.len(), importers.len()];
    let open = |devices: Vec<D>, peers| {
        let parties = devices
            .into_iter()
            .map(|device| party(point, device, peers));
        parties.collect::<Result<Vec<_>, _>>()
    };
    let mut exporters = open(exporters, counts[1])?;
    let mut importers = open(importers, counts[0])?;
    let exporter_issues = servers_export(point) == (point.direction == Direction::Outbound);
    let sizes = Sizes::of(point, &exporters[0].device);
    let memory = exporters.iter().map(|party| memory(point, &party.device));
    let memory = memory.collect::<Result<Vec<_>, _>>()?;
    let mut flows = [
        exporters
            .iter()
            .map(|_| (Vec::new(), Vec::new()))
            .collect::<Vec<_>>(),
        importers.iter().map(|_| (Vec::new(), Vec::new())).collect(),
    ];
    let mut shared = vec![Vec::new(); exporters.len()];
    for (server, client) in point.pairs() {
        let (e, i) = if servers_export(point) {
            (server, client)
        } else {
            (client, server)
        };
        let pair = Pair {
            point,
            sizes: &sizes,
            exporter: &mut exporters[e],
            importer: &mut importers[i],
        };
        let wired = pair.wire(memory[e].as_ref(), &mut shared[e], exporter_issues)?;
        let [issuer, responder] = if exporter_issues {
            [(0, e), (1, i)]
        } else {
            [(1, i), (0, e)]
        };
        for (flow, target) in wired {
            flows[issuer.0][issuer.1].0.push(flow);
            flows[responder.0][responder.1].1.push(target);
        }
    }
    Ok(Ends::of(
        point,
        &sizes,
        [exporters, importers],
        flows,
        exporter_issues,
    ))
}

type ThreadFlows = Vec<(Vec<Flow>, Vec<ResponderFlow>)>;

impl<D: Device> Ends<D> {
    fn of(
        point: &Point,
        sizes: &Sizes,
        [exporters, importers]: [Vec<VerbThread<D>>; 2],
        [exporting, importing]: [ThreadFlows; 2],
        exporter_issues: bool,
    ) -> Self {
        let exporters = exporters.into_iter().zip(exporting);
        let importers = importers.into_iter().zip(importing);
        let (issuers, responders): (Vec<_>, Vec<_>) = if exporter_issues {
            (exporters.collect(), importers.collect())
        } else {
            (importers.collect(), exporters.collect())
        };
        let counted = |flow: &ResponderFlow| flow.arrivals();
        let flows = responders.iter().flat_map(|(_, (_, flows))| flows);
        let counts = ArrivalCounts(match sizes.may_lose {
            true => flows.map(counted).collect(),
            false => Vec::new(),
        });
        let shape = |index| Shape {
            point: *point,
            per_message: sizes.per_message,
            may_lose: sizes.may_lose,
            // Each issuer draws other places.
            seed: index as u64 + 1,
        };
        let issuers = issuers.into_iter().enumerate();
        let responders = responders.into_iter();
        Self {
            issuers: issuers
                .map(|(index, (party, (flows, _)))| {
                    Issuer::new(party.device, party.port, party.cq, shape(index), flows)
                })
                .collect(),
            responders: responders
                .map(|(party, (_, flows))| {
                    TargetThread::new((party.device, party.port, party.cq), flows)
                })
                .collect(),
            counts,
        }
    }
}

/// Opens a thread's port, with room for `peers` threads of the other side.
fn party<D: Device>(point: &Point, device: D, peers: usize) -> Result<VerbThread<D>, SetupError> {
    let qps = point.queue_pairs * (peers + 1);
    let mut port = device.open_port(&PortLimits {
        pds: peers + 1,
        qps,
        cqs: 1,
        regions: 2 * qps,
        addresses: 2 * qps,
    })?;
    let outstanding = point.window.max(RECVS_MIN) * 2 + 1;
    let depth = 2 * qps * outstanding;
    let cq = device.create_cq(&mut port, &CqSpec { depth })?;
    Ok(VerbThread { device, port, cq })
}

/// Allocates the memory that one-sided verbs access at one target.
fn memory<D: Device>(point: &Point, device: &D) -> Result<Option<SharedMemory>, SetupError> {
    let sharing = match point.verb {
        Verb::Send => return Ok(None),
        Verb::Read => Sharing::ReadOnly,
        Verb::Write | Verb::FetchAdd | Verb::CompareSwap => Sharing::TrustedPeers,
    };
    Ok(Some(device.allocate_shared(point.memory, sharing)?))
}

/// Two threads to be connected.
struct Pair<'a, D: Device> {
    point: &'a Point,
    sizes: &'a Sizes,
    exporter: &'a mut VerbThread<D>,
    importer: &'a mut VerbThread<D>,
}

impl<D: Device> Pair<'_, D> {
    /// Makes the domain of the pair, and in it each queue pair with its two flows. `shared`: the
    /// exporter's queue pairs that send datagrams to all of its peers.
    fn wire(
        self,
        memory: Option<&SharedMemory>,
        shared: &mut Vec<(QpId, RegionId)>,
        exporter_issues: bool,
    ) -> Result<Vec<(Flow, ResponderFlow)>, SetupError> {
        let Self {
            point,
            sizes,
            exporter,
            importer,
        } = self;
        let recvs = 2 * point.queue_pairs * sizes.recvs.next_power_of_two();
        let room = PdRoom {
            writable: SLACK_BYTES * point.queue_pairs,
            peer_writable: 0,
            recvs: if exporter_issues { 0 } else { recvs },
            peer_recvs: if exporter_issues { recvs } else { 0 },
        };
        let there = exporter.device.create_pd_for(&mut exporter.port, &room)?;
        let ticket = exporter.device.export_pd(&mut exporter.port, there)?;
        let here = importer.device.import_pd(&mut importer.port, ticket)?;
        let base = match memory {
            None => NOWHERE,
            Some(memory) => register(point, (exporter, there), (importer, here), memory)?,
        };
        if exporter_issues && shared.is_empty() {
            let own = exporter.device.create_pd(&mut exporter.port)?;
            for _ in 0..point.queue_pairs {
                shared.push(sender(point, exporter, own)?);
            }
        }
        let mut wired = Vec::with_capacity(point.queue_pairs);
        for turn in 0..point.queue_pairs {
            let ((from, from_pd), (to, to_pd)) = if exporter_issues {
                ((&mut *exporter, there), (&mut *importer, here))
            } else {
                ((&mut *importer, here), (&mut *exporter, there))
            };
            let sending = match shared.get(turn) {
                Some(shared) => *shared,
                None => sender(point, from, from_pd)?,
            };
            wired.push(flow(point, sizes, (from, sending), (to, to_pd), base)?);
        }
        Ok(wired)
    }
}

/// The remote memory of a verb that accesses none.
const NOWHERE: Remote = Remote {
    rkey: Rkey(0),
    addr: 0,
};

/// Registers the target's memory in the domain of a pair; returns its remote address.
fn register<D: Device>(
    point: &Point,
    (exporter, there): (&mut VerbThread<D>, PdId),
    (importer, here): (&mut VerbThread<D>, PdId),
    memory: &SharedMemory,
) -> Result<Remote, SetupError> {
    let access = match point.verb {
        Verb::Send | Verb::Write => Access::WRITE,
        Verb::Read => Access::READ,
        Verb::FetchAdd | Verb::CompareSwap => Access {
            remote_atomic: true,
            ..Access::LOCAL
        },
    };
    let VerbThread { device, port, .. } = exporter;
    let region = device.register_shared(port, there, memory, access, Scope::Pd)?;
    let ticket = device.export_region(port, region)?;
    importer
        .device
        .import_region(&mut importer.port, here, ticket)?;
    Ok(device.remote(port, region)?)
}

/// Makes a queue pair that sends, with memory for payloads and for the results of READs.
fn sender<D: Device>(
    point: &Point,
    party: &mut VerbThread<D>,
    pd: PdId,
) -> Result<(QpId, RegionId), SetupError> {
    // All flows of a queue pair for datagrams share its send queue.
    let flows = match point.transport {
        Transport::Ud => point.clients.max(point.servers),
        Transport::Rc | Transport::Uc => 1,
    };
    let spec = QpSpec {
        pd,
        transport: point.transport,
        send_cq: party.cq,
        recv_cq: party.cq,
        send_depth: point.window * flows,
        recv_depth: 0,
    };
    let qp = party.device.create_qp(&mut party.port, &spec)?;
    let len = point.window * point.payload.next_multiple_of(WORD);
    Ok((qp, local(party, pd, len)?))
}

/// Makes the queue pair of a target, with its RECVs, and connects both.
fn flow<D: Device>(
    point: &Point,
    sizes: &Sizes,
    (from, (qp, region)): (&mut VerbThread<D>, (QpId, RegionId)),
    (to, pd): (&mut VerbThread<D>, PdId),
    base: Remote,
) -> Result<(Flow, ResponderFlow), SetupError> {
    let spec = QpSpec {
        pd,
        transport: point.transport,
        send_cq: to.cq,
        recv_cq: to.cq,
        send_depth: 1,
        recv_depth: sizes.recvs,
    };
    let target = to.device.create_qp(&mut to.port, &spec)?;
    let buffers = local(to, pd, (sizes.recvs * sizes.recv_bytes).max(WORD))?;
    let there = to.device.endpoint(&to.port, target)?;
    let here = from.device.endpoint(&from.port, qp)?;
    let address = if point.transport == Transport::Ud {
        to.device.accept_from(&mut to.port, target, &here)?;
        Some(from.device.create_address(&mut from.port, qp, &there)?)
    } else {
        to.device.connect(&mut to.port, target, &here)?;
        from.device.connect(&mut from.port, qp, &there)?;
        None
    };
    let arrivals = Arc::<Arrivals>::default();
    let flow = Flow::new(
        qp,
        address,
        base,
        region,
        Arc::clone(&arrivals),
        sizes.recvs,
    );
    let recvs = (0..sizes.recvs).map(|index| RecvWr {
        wr_id: 0,
        into: Local {
            region: buffers,
            offset: index * sizes.recv_bytes,
            len: sizes.recv_bytes,
        },
    });
    Ok((flow, ResponderFlow::new(target, recvs.collect(), arrivals)))
}

/// Allocates memory without remote rights.
fn local<D: Device>(
    party: &mut VerbThread<D>,
    pd: PdId,
    len: usize,
) -> Result<RegionId, SetupError> {
    let spec = RegionSpec::local(len.max(WORD));
    Ok(party.device.allocate_region(&mut party.port, pd, &spec)?)
}
