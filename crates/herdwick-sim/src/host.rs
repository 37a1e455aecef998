//! The RNIC of a host: its resources in virtual time, and what each message takes of them.
//!
//! A message reserves all resources that it uses at once, each first come, first served, and has
//! passed when the slowest has served it. So the resource with the most work bounds the rate, and a
//! message that waits for one does not delay others that use another. Times are in picoseconds: at
//! 35 M messages a second each takes 28.57 ns.

use std::time::Duration;

use herdwick_fabric::{Qpn, Transport};

use crate::{contexts::Contexts, profile::Profile};

/// Bytes of a line that the CPU stores to the RNIC, and the unit of WQEs.
const LINE: u64 = 64;
/// Bytes of a completion.
const CQE: u64 = 64;

/// Picoseconds since the start.
pub(super) type Picos = u64;

/// Rounds up, so that nothing happens before its time.
pub(super) fn duration(at: Picos) -> Duration {
    Duration::from_nanos(at.div_ceil(1000))
}

pub(super) fn picos(at: Duration) -> Picos {
    u64::try_from(at.as_nanos())
        // A time beyond the clock never comes.
        .unwrap_or(u64::MAX / 1000)
        .saturating_mul(1000)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "profiles are checked: at most 10^9 ns, not negative"
)]
pub(super) fn of_ns(ns: f64) -> Picos {
    // Rounds: the number is not negative.
    (ns * 1000.0 + 0.5) as Picos
}

/// Something that serves one message after another.
#[derive(Clone, Copy, Debug, Default)]
struct Stage {
    free: Picos,
}

impl Stage {
    /// Returns when `service` is over.
    fn serve(&mut self, now: Picos, service: Picos) -> Picos {
        // A stage that costs nothing must not order messages: `free` may be ahead of `now`.
        if service == 0 {
            return now;
        }
        self.free = self.free.max(now) + service;
        self.free
    }
}

/// The verb of a message, as far as costs differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Write,
    Send,
    Read,
    Atomic,
}

/// A WQE as its queue pair transmits it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wqe {
    pub(super) class: Class,
    pub(super) transport: Transport,
    pub(super) payload: u64,
    /// Whether the payload is in the WQE.
    pub(super) inlined: bool,
    /// Whether the RNIC fetches the WQE, since it was posted with others, instead of being given it.
    pub(super) fetched: bool,
}

/// A message as it arrives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inbound {
    pub(super) class: Class,
    pub(super) transport: Transport,
    pub(super) payload: u64,
    /// Whether it takes a RECV.
    pub(super) recv: bool,
}

/// A host's RNIC.
pub(super) struct Host {
    pub(super) profile: Profile,
    lines: Stage,
    fetches: Stage,
    transmit: Stage,
    units: Vec<Stage>,
    queue_pairs: usize,
    messages: Stage,
    execute: Stage,
    reads: Stage,
    atomics: Stage,
    pcie_in: Stage,
    pcie_out: Stage,
    link_out: Stage,
    link_in: Stage,
    /// Serves, ahead of time, the messages that senders are allowed to send.
    credits: Stage,
    requesters: Contexts,
    responders: Contexts,
}

impl Host {
    pub(super) fn new(profile: Profile) -> Self {
        let none = Stage::default;
        Self {
            lines: none(),
            fetches: none(),
            transmit: none(),
            units: vec![none(); profile.rnic.units],
            queue_pairs: 0,
            messages: none(),
            execute: none(),
            reads: none(),
            atomics: none(),
            pcie_in: none(),
            pcie_out: none(),
            link_out: none(),
            link_in: none(),
            credits: none(),
            requesters: Contexts::new(profile.rnic.requester_contexts),
            responders: Contexts::new(profile.rnic.responder_contexts),
            profile,
        }
    }

    /// Returns the processing unit of a new queue pair: they take turns.
    pub(super) fn next_unit(&mut self) -> usize {
        self.queue_pairs += 1;
        self.queue_pairs % self.units.len().max(1)
    }

    /// Returns until when a core waits that has a WQE to store: the RNIC is behind by more than what
    /// write-combining buffers hold.
    pub(super) fn stores_wait(&self) -> Picos {
        let buffered = of_ns(self.profile.cpu.store_buffer_ns);
        self.lines.free.saturating_sub(buffered)
    }

    /// Reserves what it takes to give the RNIC a WQE, or to have it fetched with others; returns when
    /// the RNIC has it, but for the time on the bus.
    pub(super) fn hand_over(&mut self, now: Picos, wqe: &Wqe) -> Picos {
        let bytes = self.wqe_bytes(wqe);
        if wqe.fetched {
            // The RNIC fetches whole lines.
            let fetched = self.dma_bytes(bytes.next_multiple_of(LINE));
            let gbytes = self.profile.pcie.out_gbytes;
            return self.pcie_out.serve(now, fetched.time(gbytes));
        }
        let lines = bytes.div_ceil(LINE) * of_ns(self.profile.rnic.line_ns);
        self.lines.serve(now, lines)
    }

    /// Reserves what a message takes whose WQE the RNIC has, and returns when it is on the link.
    pub(super) fn transmit(&mut self, now: Picos, qpn: Qpn, unit: usize, wqe: &Wqe) -> Picos {
        let rnic = &self.profile.rnic;
        let read_latency = of_ns(self.profile.pcie.read_latency_ns);
        let from_memory = wqe.payload > 0 && !wqe.inlined && carries(wqe.class);
        let mut begins = now + of_ns(self.profile.pcie.write_latency_ns);
        // `begins` adds up the latencies, one behind the other; `done` is when the slowest part has
        // served the message.
        let mut done = begins;
        if wqe.fetched {
            begins += read_latency;
        }
        if from_memory {
            begins += read_latency;
            let payload = self.dma_bytes(wqe.payload);
            let gbytes = self.profile.pcie.out_gbytes;
            done = done.max(self.pcie_out.serve(now, payload.time(gbytes)));
            done = done.max(self.fetches.serve(now, of_ns(rnic.fetch_ns)));
        }
        let send = match wqe.class {
            Class::Write | Class::Send => of_ns(rnic.send_ns),
            Class::Read | Class::Atomic => of_ns(rnic.read_request_ns),
        };
        let miss = of_ns(rnic.requester_miss_ns);
        let miss = self.requesters.touch(qpn).map_or(0, |()| miss);
        done = done.max(self.transmit.serve(now, send + miss));
        let units = self.units.len();
        if units > 0 {
            done = done.max(self.units[unit % units].serve(now, of_ns(rnic.unit_ns)));
        }
        done = done.max(self.messages.serve(now, of_ns(rnic.message_ns)));
        let (header, payload) = self.header(wqe.class, wqe.transport, wqe.payload);
        done = done.max(self.link_out.serve(now, self.link_time(header, payload)));
        done.max(begins) + of_ns(self.profile.rnic.latency_ns)
    }

    /// Takes the credit of a message that is to be sent here: returns when it may leave its sender.
    pub(super) fn admit(&mut self, now: Picos, message: &Inbound) -> Picos {
        let rnic = &self.profile.rnic;
        let service = match (message.class, message.recv) {
            (Class::Write | Class::Send, true) => rnic.recv_in_ns.max(rnic.recv_message_ns),
            (Class::Write | Class::Send, false) => rnic.write_in_ns.max(rnic.message_ns),
            (Class::Read, _) => rnic.read_in_ns,
            (Class::Atomic, _) => rnic.atomic_ns,
        };
        let carried = if carries(message.class) {
            message.payload
        } else {
            0
        };
        let (header, payload) = self.header(message.class, message.transport, carried);
        let service = of_ns(service).max(self.link_time(header, payload));
        let behind = [
            self.execute,
            self.messages,
            self.reads,
            self.atomics,
            self.link_in,
        ];
        // What is admitted now is served behind all that the receiver has.
        let behind = behind.iter().map(|stage| stage.free).max().unwrap_or(0);
        let begins = self.credits.free.max(behind).max(now);
        self.credits.free = begins + service;
        // The sender may be ahead by what the receiver's buffers hold.
        begins.saturating_sub(of_ns(self.profile.link.buffer_ns))
    }

    /// Reserves what an acknowledgement or the result of a READ takes, and returns when it is on the
    /// link.
    pub(super) fn reply(&mut self, now: Picos, payload: u64) -> Picos {
        let rnic = &self.profile.rnic;
        let share = if payload > 0 {
            rnic.message_ns
        } else {
            rnic.ack_ns
        };
        let done = self.messages.serve(now, of_ns(share));
        let header = self.profile.link.reply_header_bytes;
        let link = self.link_time(header, payload);
        done.max(self.link_out.serve(now, link)) + of_ns(rnic.latency_ns)
    }

    /// Reserves what a request takes that arrives, and returns when it has its effect in memory.
    pub(super) fn execute(&mut self, now: Picos, qpn: Qpn, message: &Inbound) -> Picos {
        let (rnic, pcie) = (&self.profile.rnic, &self.profile.pcie);
        let miss = of_ns(rnic.responder_miss_ns);
        let miss = self.responders.touch(qpn).map_or(0, |()| miss);
        let share = match message.recv {
            // No point says what a missing context costs these.
            true => of_ns(rnic.recv_message_ns),
            // The context is fetched by the part that messages of both directions pass.
            false => of_ns(rnic.message_ns) + miss,
        };
        let mut done = self.messages.serve(now, share);
        let latency = match message.class {
            Class::Write | Class::Send => {
                let (service, cqe) = match message.recv {
                    true => (rnic.recv_in_ns, CQE),
                    false => (rnic.write_in_ns, 0),
                };
                done = done.max(self.execute.serve(now, of_ns(service)));
                let bytes = self.dma_bytes(message.payload) + self.dma_bytes(cqe);
                done = done.max(self.pcie_in.serve(now, bytes.time(pcie.in_gbytes)));
                pcie.write_latency_ns
            }
            Class::Read => {
                done = done.max(self.reads.serve(now, of_ns(rnic.read_in_ns)));
                let bytes = self.dma_bytes(message.payload);
                // A READ's payload is fetched here, and leaves with the reply.
                done = done.max(self.pcie_out.serve(now, bytes.time(pcie.out_gbytes)));
                pcie.read_latency_ns
            }
            Class::Atomic => {
                done = done.max(self.atomics.serve(now, of_ns(rnic.atomic_ns)));
                pcie.read_latency_ns
            }
        };
        let carried = if carries(message.class) {
            message.payload
        } else {
            0
        };
        let (header, payload) = self.header(message.class, message.transport, carried);
        done = done.max(self.link_in.serve(now, self.link_time(header, payload)));
        done + of_ns(self.profile.rnic.latency_ns) + of_ns(latency)
    }

    /// Reserves what a reply takes that arrives, and returns when its completion is in memory.
    pub(super) fn complete(&mut self, now: Picos, payload: u64) -> Picos {
        let (rnic, pcie) = (&self.profile.rnic, &self.profile.pcie);
        let share = if payload > 0 {
            rnic.message_ns
        } else {
            rnic.ack_ns
        };
        let mut done = self.messages.serve(now, of_ns(share));
        let bytes = self.dma_bytes(payload) + self.dma_bytes(CQE);
        done = done.max(self.pcie_in.serve(now, bytes.time(pcie.in_gbytes)));
        let header = self.profile.link.reply_header_bytes;
        done = done.max(self.link_in.serve(now, self.link_time(header, payload)));
        done + of_ns(rnic.latency_ns) + of_ns(pcie.write_latency_ns)
    }

    fn wqe_bytes(&self, wqe: &Wqe) -> u64 {
        let rnic = &self.profile.rnic;
        let header = match wqe.transport {
            Transport::Ud => rnic.wqe_datagram_bytes,
            Transport::Rc | Transport::Uc => rnic.wqe_connected_bytes,
        };
        header
            + if wqe.inlined {
                wqe.payload
            } else {
                rnic.wqe_pointer_bytes
            }
    }

    /// Headers of each packet and bytes of payload on the link.
    fn header(&self, class: Class, transport: Transport, payload: u64) -> (u64, u64) {
        let link = &self.profile.link;
        let header = match (class, transport) {
            (Class::Send, Transport::Ud) => link.datagram_header_bytes,
            (Class::Send, _) => link.send_header_bytes,
            _ => link.write_header_bytes,
        };
        (header, if carries(class) { payload } else { 0 })
    }

    fn link_time(&self, header: u64, payload: u64) -> Picos {
        // A message without payload is a packet, too.
        let packets = payload.div_ceil(self.profile.link.mtu).max(1);
        Bytes(header * packets + payload).time(self.profile.link.gbits / 8.0)
    }

    /// Bytes on the bus for a DMA of `payload`.
    fn dma_bytes(&self, payload: u64) -> Bytes {
        let pcie = &self.profile.pcie;
        // Without payload nothing crosses the bus.
        let packets = payload.div_ceil(pcie.tlp_payload_bytes);
        Bytes(payload + packets * pcie.tlp_header_bytes)
    }
}

/// Whether the request carries its payload: what a READ or atomic returns comes with the reply.
fn carries(class: Class) -> bool {
    matches!(class, Class::Write | Class::Send)
}

#[derive(Clone, Copy)]
struct Bytes(u64);

impl Bytes {
    /// Time at so many 10^9 bytes a second; 0: no limit.
    fn time(self, gbytes: f64) -> Picos {
        #[expect(
            clippy::cast_precision_loss,
            reason = "messages have far fewer than 2^52 bytes"
        )]
        let ns = if gbytes > 0.0 {
            self.0 as f64 / gbytes
        } else {
            0.0
        };
        of_ns(ns)
    }
}

impl std::ops::Add for Bytes {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}
