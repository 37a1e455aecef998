//! HERD as a front of a worker: request lines polled, replies sent, over any provider.

mod counted;
mod held;

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
};

use herdwick_fabric::{
    Access, Armed, ControlError, CqId, CqSpec, Device, OpenError, PdId, Port, PortLimits, QpSpec,
    RegionSpec, Scope, Transport,
};
use herdwick_herd::{BATCH, SEND_DEPTH_MIN, ServerOptions, ServerOptionsError, ServerSide};
use mio::{Interest, Registry, event::Event, unix::SourceFd};

use crate::{
    front::{Activity, Front, Pass, Tokens},
    lease::{Answer, Order, WorkerEnd},
};
use counted::Counted;
use held::Held;

/// What the front needs of a provider besides the verbs: a way to hand a domain to a client.
pub(crate) trait LeaseDevice: Device {
    /// The ticket to `pd`, and the descriptors that go with it.
    fn ticket(
        &self,
        port: &mut Self::Port,
        pd: PdId,
    ) -> Result<(Vec<u8>, Vec<OwnedFd>), ControlError>;
}

/// How a front is made.
pub(crate) struct HerdConfig {
    /// Which worker it serves.
    pub(crate) worker: usize,
    /// Of how many.
    pub(crate) workers: usize,
    /// Most leases.
    pub(crate) leases_max: usize,
    /// Most bytes of a reply.
    pub(crate) reply_bytes_max: usize,
    /// The way to the desk.
    pub(crate) end: WorkerEnd,
}

/// The front cannot be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HerdStartError {
    #[error("opening a port: {0}")]
    Open(#[from] OpenError),
    #[error("setting up a port: {0}")]
    Control(#[from] ControlError),
    #[error("setting up HERD: {0}")]
    Options(#[from] ServerOptionsError),
}

/// One worker's HERD front over one port of `D`.
pub(crate) struct HerdFront<D: LeaseDevice> {
    device: D,
    port: D::Port,
    side: ServerSide,
    /// Where the clients' queue pairs complete; armed to sleep.
    request_cq: CqId,
    held: Held,
    /// An order that the last look before sleeping found.
    found: Option<Order>,
    config: HerdConfig,
}

/// Replies on their way.
const SEND_DEPTH: usize = if 2 * BATCH > SEND_DEPTH_MIN {
    2 * BATCH
} else {
    SEND_DEPTH_MIN
};
/// RECVs of the queue pair that only sends.
const REPLY_RECVS: usize = 0;
/// RECVs of a client's request queue pair: requests are WRITTEN, never SENT.
const REQUEST_RECVS: usize = 0;

impl<D: LeaseDevice> HerdFront<D> {
    pub(crate) fn new(device: D, config: HerdConfig) -> Result<Self, HerdStartError> {
        let leases = config.leases_max;
        let mut port = device.open_port(&PortLimits {
            pds: leases + 1,
            qps: leases + 1,
            cqs: 2,
            regions: 2 * leases + 1,
            addresses: leases,
        })?;
        let own = device.create_pd(&mut port)?;
        // A lease's queue pair sends nothing and receives WRITEs: errors are all that completes.
        let request_cq = device.create_cq(
            &mut port,
            &CqSpec {
                depth: leases.max(1) * 2,
            },
        )?;
        let depth = SEND_DEPTH + REPLY_RECVS;
        let reply_cq = device.create_cq(&mut port, &CqSpec { depth })?;
        let replies = device.create_qp(
            &mut port,
            &QpSpec {
                pd: own,
                transport: Transport::Ud,
                send_cq: reply_cq,
                recv_cq: reply_cq,
                send_depth: SEND_DEPTH,
                recv_depth: REPLY_RECVS,
            },
        )?;
        let capabilities = device.capabilities();
        let reply_bytes_max = config.reply_bytes_max.min(capabilities.datagram_bytes_max);
        let len = ServerOptions::reply_memory(reply_bytes_max);
        let spec = RegionSpec {
            len,
            access: Access::LOCAL,
            scope: Scope::Pd,
        };
        let reply_region = device.allocate_region(&mut port, own, &spec)?;
        let options = ServerOptions {
            worker: config.worker,
            workers: config.workers,
            replies,
            reply_cq,
            reply_bytes_max,
            reply_region,
            postlist_max: capabilities.postlist_max,
            clients_max: leases,
        };
        let side = ServerSide::new(&port, options)?;
        Ok(Self {
            device,
            port,
            side,
            request_cq,
            held: Held::new(request_cq, replies),
            found: None,
            config,
        })
    }

    /// Carries out what the desk asked for. Makes and unmaps memory: a pass with orders takes as
    /// long as the operating system likes.
    fn take_orders(&mut self) -> bool {
        let mut any = false;
        while let Some(order) = self.next_order() {
            any = true;
            let Self {
                device,
                port,
                side,
                held,
                ..
            } = self;
            let answer = match order {
                Order::Grant(id, terms) => {
                    Answer::Granted(id, held.grant(device, port, id, terms).ok().map(Box::new))
                }
                Order::Connect(id, peer) => {
                    Answer::Connected(id, held.connect(device, port, side, id, &peer).is_ok())
                }
                Order::Revoke(id) => {
                    held.revoke(device, port, side, id);
                    Answer::Revoked(id)
                }
            };
            // The desk outlives the orders it gave, but for the end of the server.
            let _ = self.config.end.answers.send((self.config.worker, answer));
            let _ = self.config.end.desk.wake();
        }
        any
    }

    fn next_order(&mut self) -> Option<Order> {
        self.found
            .take()
            .or_else(|| self.config.end.orders.try_recv().ok())
    }
}

impl<D: LeaseDevice> Front for HerdFront<D> {
    fn register(&mut self, registry: &Registry, tokens: Tokens) -> io::Result<()> {
        match self.port.wait_fd() {
            Some(fd) => registry.register(
                &mut SourceFd(&fd.as_raw_fd()),
                tokens.token(0),
                Interest::READABLE,
            ),
            None => Ok(()),
        }
    }

    fn ready(&mut self, _local: usize, _event: &Event) {}

    fn pass(&mut self, pass: &mut Pass<'_>) -> Activity {
        let ordered = self.take_orders();
        let mut counted = Counted {
            store: pass.store,
            tally: pass.tally,
        };
        let served = self.side.pass(&mut self.port, pass.clock, &mut counted);
        if ordered || served > 0 {
            Activity::Busy
        } else {
            Activity::Idle
        }
    }

    fn polls_memory(&self) -> bool {
        self.side.clients() > 0
    }

    fn arm(&mut self) -> bool {
        self.found = self.next_order();
        if self.found.is_some() {
            return false;
        }
        self.side.clients() == 0
            || (self.port.arm(self.request_cq) == Armed::Yes && !self.side.has_news())
    }

    fn disarm(&mut self) {
        if self.side.clients() > 0 {
            self.port.disarm(self.request_cq);
        }
    }

    fn drain(&mut self) {}

    fn is_drained(&self) -> bool {
        true
    }

    fn drops(&self, into: &mut Vec<(&'static str, u64)>) {
        into.extend(self.side.counters().iter());
        into.extend_from_slice(self.port.drops());
    }
}
