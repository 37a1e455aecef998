//! Finds out what a device supports, by making queue pairs.

use std::{io, sync::Arc};

use herdwick_fabric::{Atomics, Capabilities, Transport};

use crate::{
    DATAGRAM_HEADER_BYTES, POSTLIST_MAX,
    endpoint::{Fetches, kind},
    place::{LinkLayer, Place},
    raw::{Channel, Context, Cq, Pd, Qp, QpShape},
    sys,
};

/// Depth of the queues of trial queue pairs.
const TRIAL_DEPTH: u32 = 16;
/// UD queue pairs over which one thread sends faster than over one: they use two or three of a
/// ConnectX-3's processing units ("Design Guidelines for High Performance RDMA Systems", 4.2).
const SENDERS: usize = 3;
/// Maximum outstanding READs and atomics of a queue pair; no known device serves more.
const FETCHES_MAX: i32 = 128;
/// Inline sizes to try, in descending order, including the two of the HERD paper (144, 192).
const INLINE_STEPS: [u32; 9] = [1024, 512, 256, 192, 144, 128, 96, 64, 0];

/// The results of the probe.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) capabilities: Capabilities,
    /// Maximum entries of a work queue, and of a completion queue.
    pub(crate) queue_depth_max: usize,
    pub(crate) cq_depth_max: usize,
    /// Maximum outstanding READs and atomics of a queue pair.
    pub(crate) fetches: Fetches,
}

pub(crate) fn probe(context: &Arc<Context>, place: &Place, inline: usize) -> io::Result<Found> {
    let attributes = context.query_device()?;
    let trial = TrialObjects::new(context)?;
    // An attribute does not tell whether a device has UC; making a queue pair does.
    let has = |transport| trial.qp(transport, 0).is_some();
    let [rc, uc, ud] = [Transport::Rc, Transport::Uc, Transport::Ud].map(has);
    let count = |most: i32| u8::try_from(most.clamp(0, FETCHES_MAX)).unwrap_or(0);
    let fetches = Fetches {
        serves: count(attributes.max_qp_rd_atom),
        asks: count(attributes.max_qp_init_rd_atom),
    };
    let fetching = rc && fetches.serves > 0 && fetches.asks > 0;
    let size = |number: i32| usize::try_from(number).unwrap_or(0);
    let capabilities = Capabilities {
        name: "verbs",
        rc,
        uc,
        ud,
        read: fetching,
        atomics: match attributes.atomic_cap {
            sys::IBV_ATOMIC_GLOB if fetching => Atomics::Coherent,
            sys::IBV_ATOMIC_HCA if fetching => Atomics::Device,
            _ => Atomics::None,
        },
        ordered_write: trial.writes_in_order([(rc, Transport::Rc), (uc, Transport::Uc)]),
        // An RNIC raises no event for a WRITE without an immediate.
        wakes_on_write: false,
        reports_writes: false,
        lossless: place.port.link == LinkLayer::InfiniBand,
        acknowledged_sends: true,
        inline_bytes_max: trial.inline_bytes(
            [
                (rc, Transport::Rc),
                (uc, Transport::Uc),
                (ud, Transport::Ud),
            ],
            inline,
        ),
        inline_receive_bytes: 0,
        datagram_header_bytes: DATAGRAM_HEADER_BYTES,
        // A datagram is one packet.
        datagram_bytes_max: place.port.mtu,
        message_bytes_max: place.port.message_bytes_max,
        read_bytes_max: place.port.message_bytes_max,
        rd_atomic_max: fetches.asks.min(fetches.serves).into(),
        ordered_read: false,
        postlist_max: POSTLIST_MAX.min(size(attributes.max_qp_wr)),
        scoped_regions: false,
        counted_drops: false,
        windows: false,
        virtual_addresses: false,
        gso: false,
        senders: SENDERS,
    };
    Ok(Found {
        capabilities,
        queue_depth_max: size(attributes.max_qp_wr),
        cq_depth_max: size(attributes.max_cqe),
        fetches,
    })
}

/// A domain and a completion queue for trial queue pairs.
struct TrialObjects {
    pd: Arc<Pd>,
    cq: Arc<Cq>,
}

impl TrialObjects {
    fn new(context: &Arc<Context>) -> io::Result<Self> {
        let channel = Channel::new(context)?;
        Ok(Self {
            pd: Pd::new(context)?,
            // Both queues of a trial queue pair; only one of these exists at a time.
            cq: Cq::new(&channel, 2 * TRIAL_DEPTH.cast_signed())?,
        })
    }

    fn qp(&self, transport: Transport, inline_bytes: u32) -> Option<Qp> {
        let shape = QpShape {
            kind: kind(transport),
            sends: TRIAL_DEPTH,
            recvs: TRIAL_DEPTH,
            inline_bytes,
        };
        Qp::new(&self.pd, &self.cq, &self.cq, shape).ok()
    }

    /// Returns the largest inline size, up to `wanted`, that all supported transports accept.
    fn inline_bytes(&self, all: [(bool, Transport); 3], wanted: usize) -> usize {
        let takes = |bytes: &u32| {
            let mut there = all.iter().filter(|(there, _)| *there);
            there.all(|(_, transport)| self.qp(*transport, *bytes).is_some())
        };
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        // After the wanted size itself, which need not be among the steps.
        let steps = INLINE_STEPS.into_iter().filter(|step| *step < wanted);
        let found = [wanted].into_iter().chain(steps).find(takes);
        found.map_or(0, |bytes| bytes as usize)
    }

    /// Returns whether all supported transports with WRITE promise rising order.
    fn writes_in_order(&self, all: [(bool, Transport); 2]) -> bool {
        let mut there = all.iter().filter(|(there, _)| *there).peekable();
        // The promise is of a queue pair, so one of each transport is asked.
        let promises = |transport| self.qp(transport, 0).is_some_and(|qp| qp.writes_in_order());
        // `all` of nothing would be true.
        there.peek().is_some() && there.all(|(_, transport)| promises(*transport))
    }
}
