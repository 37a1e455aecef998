//! HERD as a front of a worker: request lines polled, replies sent, over any provider.

mod counted;
mod held;

use std::{
    io,
    net::IpAddr,
    os::fd::{AsRawFd, OwnedFd},
};

use herdwick_fabric::{Armed, ControlError, Device, Endpoint, PdId, Port};
use herdwick_herd::{BATCH, RequestPath, ServerEnd, ServerTerms, SetupError, wire::Window};
use mio::{Interest, Registry, event::Event, unix::SourceFd};

use crate::{
    front::{Activity, Front, Pass, Tokens},
    lease::{Answer, Order, WorkerEnd},
};
use counted::Counted;
use held::Held;

/// What the front needs of a provider besides the verbs: domains for clients, and a way to hand
/// them over.
pub(crate) trait LeaseDevice: Device {
    /// Makes a domain with room for a client of `window`, and no more.
    fn domain(
        &self,
        port: &mut Self::Port,
        path: RequestPath,
        window: Window,
    ) -> Result<PdId, ControlError>;

    /// The ticket to `pd`, and the descriptors that go with it.
    fn ticket(
        &self,
        port: &mut Self::Port,
        pd: PdId,
    ) -> Result<(Vec<u8>, Vec<OwnedFd>), ControlError>;

    /// Whether `endpoint` lies where its client came from: on `host`, or on this one.
    fn is_at(&self, endpoint: &Endpoint, host: Option<IpAddr>) -> bool;
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

/// One worker's HERD front over one port of `D`.
pub(crate) struct HerdFront<D: LeaseDevice> {
    /// What the fabric is called.
    way: &'static str,
    device: D,
    server: ServerEnd<D::Port>,
    held: Held,
    /// Whether what leaves together is cheaper.
    trains: bool,
    /// An order that the last look before sleeping found.
    found: Option<Order>,
    config: HerdConfig,
}

impl<D: LeaseDevice> HerdFront<D> {
    pub(crate) fn new(
        way: &'static str,
        device: D,
        config: HerdConfig,
    ) -> Result<Self, SetupError> {
        let terms = ServerTerms {
            worker: config.worker,
            workers: config.workers,
            clients_max: config.leases_max,
            reply_bytes_max: config.reply_bytes_max,
        };
        Ok(Self {
            way,
            server: ServerEnd::open(&device, &terms)?,
            trains: device.capabilities().trains,
            device,
            held: Held::default(),
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
                server,
                held,
                ..
            } = self;
            let answer = match order {
                Order::Grant(id, terms) => {
                    Answer::Granted(id, held.grant(device, server, id, terms).ok().map(Box::new))
                }
                Order::Connect(id, peer) => {
                    Answer::Connected(id, held.connect(device, server, id, &peer).is_ok())
                }
                Order::Revoke(id) => {
                    held.revoke(device, server, id);
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
        match self.server.port.wait_fd() {
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
        let ServerEnd { port, side, .. } = &mut self.server;
        if side.clients() > 0 {
            port.progress(pass.now);
        }
        let mut served = side.pass(port, pass.clock, &mut counted);
        if self.trains {
            // As many replies as a train has room for, on their way at once.
            if served == BATCH {
                served += side.pass(port, pass.clock, &mut counted);
            }
            if served > 0 {
                port.progress(pass.now);
            }
        }
        if ordered || served > 0 {
            Activity::Busy
        } else {
            Activity::Idle
        }
    }

    fn polls_memory(&self) -> bool {
        self.server.side.clients() > 0
    }

    fn arm(&mut self) -> bool {
        self.found = self.next_order();
        if self.found.is_some() {
            return false;
        }
        let cq = self.server.request_cq();
        let ServerEnd { port, side, .. } = &mut self.server;
        side.clients() == 0 || (port.arm(cq) == Armed::Yes && !side.has_news())
    }

    fn disarm(&mut self) {
        if self.server.side.clients() > 0 {
            let cq = self.server.request_cq();
            self.server.port.disarm(cq);
        }
    }

    fn drain(&mut self) {}

    fn is_drained(&self) -> bool {
        true
    }

    fn way(&self) -> &'static str {
        self.way
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let mut counts: Vec<_> = self.server.side.counters().iter().collect();
        counts.extend(self.server.port.drops());
        counts
    }
}
