//! The data half of the provider `roce`: one thread's engine, memory and sockets. Each pass sends
//! what was posted, receives what arrived, and runs timers.

use std::{
    fmt,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use herdwick_fabric::{
    Armed, Completion, CqId, Local, Port, PostError, Progress, QpId, RecvWr, RegionId, SendWr,
    WriteReport,
};
use herdwick_mem::Span;
use herdwick_roce::{
    Arrival, Drop, Engine,
    icrc::{IpId, Route},
};

use crate::{
    counters::ShellCounters,
    gso::SendHalf,
    memory::RegisteredMemory,
    misrouted::{Belongs, Misrouted},
    socket::{RECEIVES, ReceiveBuffers},
};

/// Maximum receives in a pass, or before a sleep; each after the first follows a full one.
const CHECKS: usize = 8;
/// Processed packets after which a pass stops receiving.
const ENOUGH: u64 = 256;

/// One thread's end of the fabric: an engine, its memory, and its sockets.
pub struct RocePort {
    pub(crate) engine: Engine,
    pub(crate) regions: RegisteredMemory,
    pub(crate) outbox: SendHalf,
    pub(crate) inbox: ReceiveBuffers,
    pub(crate) misrouted: Misrouted,
    pub(crate) shard: u16,
    /// The address of the main socket; unspecified where it is bound to all addresses.
    pub(crate) local: SocketAddr,
    /// GSO batches that came cut short.
    pub(crate) truncated: u64,
}

impl RocePort {
    /// Receives until the socket is empty or the bounds of a pass are reached; returns whether
    /// anything arrived.
    fn receive_some(&mut self) -> bool {
        let before = self.checked();
        for check in 0..CHECKS {
            match self.receive() {
                SocketRead::Nothing => return check > 0,
                SocketRead::All => break,
                SocketRead::AsMuchAsFits => {}
            }
            if self.checked() - before >= ENOUGH {
                break;
            }
        }
        true
    }

    /// Packets that took work; those of a flood that are dropped unseen end no pass before the
    /// packets behind them are looked at.
    fn checked(&self) -> u64 {
        let counters = self.engine.counters();
        counters.packets_in - counters.dropped(Drop::TooManyRefused)
    }

    /// Returns the descriptor that becomes readable when a packet arrives.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.outbox.main().as_fd()
    }

    /// Receives once from the socket, and from the other ports of its address.
    fn receive(&mut self) -> SocketRead {
        let count = self.outbox.main().receive(&mut self.inbox);
        for index in 0..count {
            self.receive_batch(index);
        }
        // Once for a receive, not for each packet.
        if count > 0 {
            self.outbox.keep_notes();
        }
        let misrouted = self.receive_misrouted();
        match count {
            0 if misrouted == 0 => SocketRead::Nothing,
            RECEIVES => SocketRead::AsMuchAsFits,
            _ => SocketRead::All,
        }
    }

    fn receive_batch(&mut self, index: usize) {
        // Cut short or without an address: its packets have no bounds.
        let Some(batch) = self.inbox.batch(index) else {
            self.truncated += 1;
            return;
        };
        let now = self.outbox.now;
        // A socket bound to one address is not given it with each batch.
        let here = batch.to.unwrap_or_else(|| self.local.ip());
        let ends = (batch.from, SocketAddr::new(here, self.local.port()));
        let route = route(ends.0, ends.1);
        let mut arrival = Arrival {
            from: ends.0,
            to: ends.1,
            bytes: &[],
            ip_id: IpId::Hint(0),
            tos: batch.class,
        };
        // The usual case: the filter has steered the batch here.
        if self.misrouted.all_belong_here(batch.bytes, batch.segment) {
            self.outbox.note_batch(&route, batch.segment, batch.bytes);
            arrival.bytes = batch.bytes;
            let (memory, wire) = (&mut self.regions, &mut self.outbox);
            return self
                .engine
                .handle_batch(now, &arrival, batch.segment, memory, wire);
        }
        for (id, packet) in (0..).zip(batch.bytes.chunks(batch.segment)) {
            self.outbox.note(&route, id, packet);
            if let Belongs::There(shard) = self.misrouted.belongs(packet) {
                let sent = self
                    .misrouted
                    .forward(shard, ends, (id, batch.class), packet);
                // The other port may sleep, and its socket got nothing.
                if sent {
                    self.outbox.main().wake(self.local, shard);
                }
                continue;
            }
            (arrival.bytes, arrival.ip_id) = (packet, IpId::Hint(id));
            let (memory, wire) = (&mut self.regions, &mut self.outbox);
            self.engine.handle_packet(now, &arrival, memory, wire);
        }
    }

    fn receive_misrouted(&mut self) -> usize {
        let Self {
            misrouted,
            engine,
            regions,
            outbox,
            ..
        } = self;
        let now = outbox.now;
        misrouted.arrived(|misrouted| {
            let arrival = Arrival {
                from: misrouted.from,
                to: misrouted.to,
                bytes: misrouted.bytes(),
                ip_id: IpId::Hint(misrouted.id),
                tos: misrouted.class,
            };
            engine.handle_packet(now, &arrival, regions, outbox);
        })
    }

    /// Removes the memory and routes of objects that the engine no longer has.
    pub(crate) fn sweep(&mut self) {
        let engine = &self.engine;
        // Asked of the engine, which knows what went with a domain or a queue pair.
        self.regions.retain(|region| engine.remote(region).is_ok());
        self.outbox.retain(|flow| engine.peer(flow).is_some());
    }

    /// Lets the engine send what is queued, and passes all batches to the kernel.
    fn transmit(&mut self) {
        let (memory, wire) = (&self.regions, &mut self.outbox);
        self.engine.poll_transmit(wire.now, memory, wire);
        self.outbox.flush();
    }
}

impl fmt::Debug for RocePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RocePort")
            .field("local", &self.local)
            .field("shard", &self.shard)
            .finish_non_exhaustive()
    }
}

/// The result of one receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocketRead {
    Nothing,
    All,
    /// The batch was full; more packets may be queued.
    AsMuchAsFits,
}

/// Returns the fields of the IP and UDP headers that the ICRC of a packet from `source` to
/// `destination` covers.
pub(crate) fn route(source: SocketAddr, destination: SocketAddr) -> Route {
    Route {
        source,
        destination,
        dont_fragment: true,
    }
}

impl Port for RocePort {
    fn post_send(&mut self, qp: QpId, batch: &[SendWr<'_>]) -> Result<(), PostError> {
        let (memory, wire) = (&self.regions, &mut self.outbox);
        self.engine.post_send(qp, batch, memory, wire)
    }

    fn post_recv(&mut self, qp: QpId, batch: &[RecvWr]) -> Result<(), PostError> {
        self.engine.post_recv(qp, batch)
    }

    fn poll(&mut self, cq: CqId, out: &mut [Completion]) -> usize {
        self.engine.poll(cq, out)
    }

    fn watch_writes(&mut self, qp: QpId, range: Local, token: u64) -> bool {
        self.engine.watch_writes(qp, range, token)
    }

    fn written(&mut self, out: &mut [WriteReport]) -> usize {
        self.engine.written(out)
    }

    /// Sends what was posted first, because a peer waits for it; then receives.
    fn progress(&mut self, now: Duration) -> Progress {
        self.outbox.now = now;
        self.transmit();
        let moved = self.receive_some();
        // After receiving, so that an acknowledgement that has arrived still stops its timer.
        self.engine.handle_timeout(now);
        // Again: acknowledgements and answers to what has arrived.
        self.transmit();
        Progress {
            moved,
            deadline: self.engine.poll_timeout(),
        }
    }

    fn flush(&mut self, now: Duration) {
        self.outbox.now = now;
        self.transmit();
    }

    fn arm(&mut self, cq: CqId) -> Armed {
        self.transmit();
        // Arming means emptying the socket: epoll reports it readable for what is left.
        for _ in 0..CHECKS {
            if self.receive() != SocketRead::AsMuchAsFits {
                self.transmit();
                return if self.engine.has_completions(cq) || self.engine.has_written() {
                    Armed::Pending
                } else {
                    Armed::Yes
                };
            }
        }
        // The socket was not emptied within the bound, so the caller polls on.
        Armed::Pending
    }

    /// The wakeup descriptor is the socket, readable as long as packets are queued: clearing a
    /// wakeup means receiving them.
    fn disarm(&mut self, _cq: CqId) {
        for _ in 0..CHECKS {
            if self.receive() == SocketRead::Nothing {
                break;
            }
        }
        self.transmit();
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket())
    }

    fn region(&self, region: RegionId) -> Option<&Span> {
        self.regions.get(region)
    }

    fn drops(&self) -> Vec<(&'static str, u64)> {
        let shell = ShellCounters {
            truncated: self.truncated,
            misrouted_lost: self.misrouted.lost,
            misrouted_forwarded: self.misrouted.forwarded,
            send_refused: self.outbox.losses.refused,
            send_too_long: self.outbox.losses.too_long,
            receive_failed: self.inbox.failed,
            capture_failed: self.outbox.notes_lost(),
            socket_overflow: u64::from(self.inbox.overflowed),
        };
        let engine = self.engine.counters().drops();
        shell.iter().chain(engine).collect()
    }

    fn connection_counts(&self) -> Vec<(&'static str, u64)> {
        self.engine.counters().connections.iter().collect()
    }
}
