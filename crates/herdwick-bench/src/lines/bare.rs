//! The baseline of the software RNIC: datagrams of the same sizes, through the same sockets,
//! without content.

use std::{collections::VecDeque, net::SocketAddr, sync::Arc};

use herdwick::RequestPath;
use herdwick_herd::wire::{LINE_BYTES, REPLY_HEAD_BYTES};
use herdwick_roce::packet::{Class, ICRC_BYTES, Operation, PacketOp, Place, pad_of};
use herdwick_roce_udp::bare::BareEnd;

use super::endpoints::{EndpointError, LOOPBACK};
use crate::{
    helper::Helper,
    target::{DriveError, Load, Target},
};

/// After this long without an answer, everything in flight counts as lost.
const LOST_AFTER_NS: u64 = 5_000_000;

/// One client of the bare echo.
pub(crate) struct BareTarget {
    end: BareEnd,
    to: SocketAddr,
    /// A GSO batch of requests.
    gso_batch: Vec<u8>,
    request_bytes: usize,
    window: usize,
    /// Groups of datagrams that were sent together: when they were due, and how many are not
    /// answered.
    sent: VecDeque<(u64, usize)>,
    in_flight: usize,
    // The last client that is dropped stops the server.
    _server: Arc<Helper>,
}

impl BareTarget {
    /// Starts a bare echo on `cpus`, and `clients` clients of it, each with `window` datagrams in
    /// flight. They are as long as the request packets of `path`, and as the reply packets with
    /// values of `value_size`.
    ///
    /// # Errors
    /// [`EndpointError`].
    pub(crate) fn endpoints(
        clients: usize,
        (path, window): (RequestPath, usize),
        value_size: usize,
        cpus: &[usize],
    ) -> Result<Vec<Self>, EndpointError> {
        let request_bytes = request_bytes(path);
        let reply = vec![0; reply_bytes(value_size) * BareEnd::BATCH];
        let mut host = BareEnd::bind(LOOPBACK)?;
        let to = host.local();
        let echo = move || {
            host.echo(&reply, reply.len() / BareEnd::BATCH);
        };
        let server = Arc::new(Helper::start("bare", cpus, echo)?);
        let target = |_| {
            Ok(Self {
                end: BareEnd::bind(LOOPBACK)?,
                to,
                gso_batch: vec![0; request_bytes * BareEnd::BATCH],
                request_bytes,
                window,
                sent: VecDeque::new(),
                in_flight: 0,
                _server: Arc::clone(&server),
            })
        };
        (0..clients).map(target).collect()
    }

    /// Counts `count` answers, the oldest datagrams first.
    fn answered(&mut self, mut count: usize, load: &mut Load<'_>, now_ns: u64) {
        // Answers may come after everything in flight was counted as lost.
        self.in_flight = self.in_flight.saturating_sub(count);
        load.counters.hits += count as u64;
        while let Some((start_ns, rest)) = self.sent.front_mut() {
            let here = count.min(*rest);
            load.counters.latencies_of(here, *start_ns, now_ns);
            (count, *rest) = (count - here, *rest - here);
            if *rest > 0 {
                return;
            }
            self.sent.pop_front();
        }
    }

    /// Sends as many datagrams as are due and fit the window, at most one GSO batch; returns
    /// whether any were sent.
    fn send(&mut self, load: &mut Load<'_>, now_ns: u64) -> Result<bool, DriveError> {
        let room = BareEnd::BATCH.min(self.window - self.in_flight);
        let mut count = 0;
        while count < room && load.pace.is_due(now_ns) {
            // In a closed loop all of them start together.
            let here = match load.pace.next_due_ns() {
                Some(_) => 1,
                None => room,
            };
            self.sent
                .push_back((load.pace.take(here as u64, now_ns), here));
            count += here;
        }
        self.in_flight += count;
        let bytes = &self.gso_batch[..count * self.request_bytes];
        // Datagrams that the socket has no room for are lost, and time out.
        Ok(count > 0 && self.end.send(self.to, bytes, self.request_bytes)?)
    }
}

impl Target for BareTarget {
    fn drive(
        &mut self,
        load: &mut Load<'_>,
        until_ns: u64,
        clock: &mut impl FnMut() -> u64,
    ) -> Result<(), DriveError> {
        let mut heard_ns = clock();
        loop {
            let answers = self.end.receive(|_, _, _| ());
            let now_ns = clock();
            if answers > 0 {
                heard_ns = now_ns;
                self.answered(answers, load, now_ns);
            } else if now_ns > heard_ns + LOST_AFTER_NS {
                heard_ns = now_ns;
                self.sent.clear();
                self.in_flight = 0;
            }
            if now_ns >= until_ns {
                return Ok(());
            }
            while self.send(load, now_ns)? {}
        }
    }

    fn in_flight(&self) -> impl Iterator<Item = u64> {
        let each = |(start_ns, count): &(u64, usize)| std::iter::repeat_n(*start_ns, *count);
        self.sent.iter().flat_map(each)
    }
}

/// Returns the bytes of a request's datagram.
fn request_bytes(path: RequestPath) -> usize {
    let place = Place::Only;
    let (class, operation) = match path {
        RequestPath::UcWrite => (Class::Uc, Operation::Write { place, imm: false }),
        RequestPath::RcWrite => (Class::Rc, Operation::Write { place, imm: false }),
        RequestPath::UdSend => (Class::Ud, Operation::Send { place, imm: false }),
    };
    packet_bytes(PacketOp { class, operation }, LINE_BYTES)
}

/// Returns the bytes of a reply's datagram with a value of `value_size`.
fn reply_bytes(value_size: usize) -> usize {
    let (place, imm) = (Place::Only, true);
    let op = PacketOp {
        class: Class::Ud,
        operation: Operation::Send { place, imm },
    };
    packet_bytes(op, REPLY_HEAD_BYTES + value_size)
}

fn packet_bytes(op: PacketOp, payload: usize) -> usize {
    op.head_bytes() + payload + usize::from(pad_of(payload)) + ICRC_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagram_lengths_match_roce_md() {
        assert_eq!(request_bytes(RequestPath::UcWrite), 96);
        assert_eq!(reply_bytes(32), 28 + 16 + 32);
    }
}
