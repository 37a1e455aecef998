//! The receiving half of the seeded fabric: protection checks, execution, and torn WRITEs.

use std::time::Duration;

use herdwick_fabric::{
    Access, InlineData, Local, Opcode, QpState, Qpn, Received, Remote, Scope, Source, Status,
    Transport,
};
use herdwick_mem::{Span, WORD};

use super::{
    event::{Event, Kind, Landing, Packet, Reply, Request, Verb},
    host::{duration, picos},
    party::Qp,
    world::World,
};

/// The result of a request.
pub(super) enum Executed {
    Done(Vec<u8>),
    /// Its words are stored or loaded one by one; the answer follows.
    Later,
    /// There is no RECV for it.
    NotReady,
    Refused(Status, &'static str),
}

/// The memory of a one-sided verb, after every check.
pub(super) struct Place {
    pub(super) region: u32,
    pub(super) span: Span,
    pub(super) offset: usize,
}

impl World {
    /// A packet is at the RNIC, which takes its time to execute it.
    pub(super) fn arrive(&mut self, packet: Packet) {
        let Some(qp) = self.qps.get_mut(&packet.to) else {
            self.lost += 1;
            return;
        };
        if packet.corrupt {
            self.counts.corrupted += 1;
            self.parties[qp.party].count_drop("ICRC");
            return;
        }
        let Some(host) = self.parties[qp.party].host else {
            return self.deliver(packet);
        };
        let (host, now) = (&mut self.hosts[host], picos(self.now));
        let context = match (self.one_context, u32::try_from(packet.origin)) {
            (true, Ok(sender)) => Qpn(sender),
            _ => packet.to,
        };
        let at = match &packet.kind {
            Kind::Request(request) => host.execute(now, context, &request.inbound(qp.transport)),
            Kind::Reply(Reply::Ack(data)) => host.complete(now, data.len() as u64),
            Kind::Reply(_) => host.complete(now, 0),
        };
        // Packets to a queue pair take effect in the order of their arrival, also when a later one
        // costs less.
        let at = duration(at).max(qp.last_delivery);
        qp.last_delivery = at;
        self.schedule(at, Event::Deliver(packet));
    }

    pub(super) fn deliver(&mut self, packet: Packet) {
        let Some(party) = self.qps.get(&packet.to).map(|qp| qp.party) else {
            self.lost += 1;
            return;
        };
        // Here and not when it was sent: a cut or a stop loses what is under way.
        if !self.road(packet.origin, party) {
            self.lost += 1;
            return;
        }
        match packet.kind {
            Kind::Reply(reply) => self.replied(packet.to, packet.psn, reply),
            Kind::Request(_) => self.accept(packet),
        }
    }

    fn accept(&mut self, packet: Packet) {
        let Some(qp) = self.qps.get_mut(&packet.to) else {
            return;
        };
        // Requests to one queue pair take effect in order: they wait for one that is executed word
        // by word.
        if qp.receive.landing {
            qp.receive.waiting.push_back(packet);
            return;
        }
        let (party, transport) = (qp.party, qp.transport);
        // A connected queue pair takes packets of its peer alone.
        let from_peer = transport == Transport::Ud || qp.peer == Some(packet.from);
        if !from_peer {
            self.parties[party].count_drop("not connected");
        } else if transport == Transport::Rc {
            self.accept_reliable(packet);
        } else if qp.state == QpState::ReadyToSend {
            self.accept_unreliable(packet, party);
        } else {
            self.parties[party].count_drop("queue pair in error");
        }
    }

    fn accept_unreliable(&mut self, packet: Packet, party: usize) {
        match self.execute(packet) {
            // An unreliable transport acknowledges nothing.
            Executed::Done(_) | Executed::Later => {}
            Executed::NotReady => self.parties[party].count_drop("no RECV"),
            Executed::Refused(_, reason) => self.parties[party].count_drop(reason),
        }
    }

    fn accept_reliable(&mut self, packet: Packet) {
        let (from, to, psn) = (packet.from, packet.to, packet.psn);
        let Some(qp) = self.qps.get_mut(&to) else {
            return;
        };
        if let Kind::Request(Request { oldest, .. }) = packet.kind {
            // The requester will not repeat what it has the answers to, so their replies need not be
            // kept.
            qp.receive.forget_replies_before(oldest);
        }
        let expected = qp.receive.expected_psn;
        if psn < expected {
            // A duplicate is answered as before and not executed again.
            let saved = qp.receive.reply_to(psn).cloned();
            // A reply that was forgotten is one that the requester has: it drops what it gets now.
            return self.answer(to, from, psn, saved.unwrap_or(Reply::Ack(Vec::new())));
        }
        // A gap is not answered: the requester's timer closes it.
        if psn > expected || qp.state != QpState::ReadyToSend {
            return;
        }
        match self.execute(packet) {
            Executed::Later => {}
            Executed::NotReady => self.answer(to, from, psn, Reply::NotReady),
            Executed::Done(data) => self.settle_request(to, from, psn, Reply::Ack(data)),
            Executed::Refused(status, reason) => self.refuse(to, from, psn, (status, reason)),
        }
    }

    /// Answers a request finally.
    pub(super) fn settle_request(&mut self, to: Qpn, from: Qpn, psn: u64, reply: Reply) {
        if let Some(qp) = self.qps.get_mut(&to) {
            qp.receive.expected_psn = psn + 1;
            qp.receive.replies.push_back((psn, reply.clone()));
        }
        self.answer(to, from, psn, reply);
    }

    fn answer(&mut self, to: Qpn, from: Qpn, psn: u64, reply: Reply) {
        let Some(origin) = self.qps.get(&to).map(|qp| qp.party) else {
            return;
        };
        let mut departs = self.now;
        if let Some(host) = self.parties[origin].host {
            let payload = match &reply {
                Reply::Ack(data) => data.len() as u64,
                Reply::NotReady | Reply::Refused(_) => 0,
            };
            departs = duration(self.hosts[host].reply(picos(departs), payload));
        }
        let packet = Packet {
            origin,
            from: to,
            to: from,
            psn,
            corrupt: false,
            kind: Kind::Reply(reply),
        };
        self.launch(packet, departs);
    }

    fn execute(&mut self, packet: Packet) -> Executed {
        let Kind::Request(request) = &packet.kind else {
            return Executed::Done(Vec::new());
        };
        self.executed += 1;
        let takes_recv = matches!(request.verb, Verb::Send) || request.imm.is_some();
        // Before anything is executed: a request that is not ready leaves no trace.
        if takes_recv && self.rng.chance(self.faults.not_ready_per_mille) {
            self.counts.not_ready += 1;
            return Executed::NotReady;
        }
        match request.verb {
            Verb::Send => self.execute_send(&packet, request),
            Verb::Write(at) => self.execute_write(at, packet),
            Verb::Read(at, len) => self.execute_read(at, len, packet),
            Verb::FetchAdd(at, add) => {
                self.execute_atomic(packet.to, at, |span, word| span.fetch_add(word, add))
            }
            Verb::CompareSwap(at, expected, new) => {
                self.execute_atomic(packet.to, at, |span, word| {
                    span.compare_swap(word, expected, new)
                })
            }
        }
    }

    fn execute_send(&mut self, packet: &Packet, request: &Request) -> Executed {
        let inline_bytes = self.capabilities.inline_receive_bytes;
        let header_bytes = self.capabilities.datagram_header_bytes;
        let Some(qp) = self.qps.get_mut(&packet.to) else {
            return Executed::NotReady;
        };
        let Some(recv) = qp.receive.entries.front().copied() else {
            return Executed::NotReady;
        };
        let fits = request.body.len() <= inline_bytes;
        let header = match qp.transport {
            Transport::Ud => header_bytes,
            Transport::Rc | Transport::Uc => 0,
        };
        // RC ends both sides with an error. Other messages are dropped, and the RECV stays.
        if !fits && header + request.body.len() > recv.into.len {
            let reliable = qp.transport == Transport::Rc;
            if reliable {
                qp.receive.entries.pop_front();
                self.complete_receive(packet.to, recv, Received::failed(Status::LengthError));
            }
            return Executed::Refused(Status::RemoteInvalid, "short RECV buffer");
        }
        qp.receive.entries.pop_front();
        let inline = fits.then(|| inline_data(&request.body));
        // The region may have been freed since the RECV was posted.
        let region = self.parties[qp.party].regions.get(&recv.into.region.0);
        let source = qp.source(packet.from);
        if let (None, Some(region)) = (inline, region) {
            region
                .span
                .write_bytes(recv.into.offset + header, &request.body);
        }
        let received = Received {
            status: Status::Success,
            opcode: Opcode::Recv,
            len: request.body.len(),
            imm: request.imm,
            source,
            inline,
        };
        self.complete_receive(packet.to, recv, received);
        Executed::Done(Vec::new())
    }

    fn execute_write(&mut self, at: Remote, packet: Packet) -> Executed {
        let Kind::Request(request) = &packet.kind else {
            return Executed::Done(Vec::new());
        };
        let place = match self.open(packet.to, at, request.body.len(), |a| a.remote_write) {
            Ok(place) => place,
            Err(reason) => return Executed::Refused(Status::RemoteAccess, reason),
        };
        let words = self.visibility(&place, &request.body);
        let torn = self.faults.tear > Duration::ZERO && words.len() > 1;
        self.counts.torn += u64::from(torn);
        let Some(qp) = self.qps.get_mut(&packet.to) else {
            return Executed::NotReady;
        };
        // The RECV is taken before the first word: a WRITE that is not ready leaves no trace.
        let mut recv = None;
        if request.imm.is_some() {
            recv = qp.receive.entries.pop_front();
            if recv.is_none() {
                return Executed::NotReady;
            }
        }
        qp.receive.landing = true;
        let landing = Landing {
            packet,
            region: place.region,
            offset: place.offset,
            span: place.span,
            words,
            recv,
        };
        self.continue_landing(landing);
        Executed::Later
    }

    /// The words of a WRITE, in the reverse of the order in which they become visible.
    fn visibility(&mut self, place: &Place, bytes: &[u8]) -> Vec<(usize, usize, usize)> {
        let torn = self.faults.tear > Duration::ZERO;
        if self.capabilities.ordered_write && !torn {
            // All at once, in the order that is promised.
            place.span.write_bytes(place.offset, bytes);
            return Vec::new();
        }
        let (mut words, mut start) = (Vec::new(), 0);
        while start < bytes.len() {
            let at = place.offset + start;
            let end = (start + WORD - at % WORD).min(bytes.len());
            words.push((at, start, end));
            start = end;
        }
        words.reverse();
        // The words are popped from the end, so the first here is the one that becomes visible last.
        let shuffled = match (self.capabilities.ordered_write, torn) {
            (true, false) => &mut [],
            (true, true) => words.get_mut(1..).unwrap_or_default(),
            (false, _) => &mut words[..],
        };
        self.rng.shuffle(shuffled);
        words
    }

    /// Makes the next word visible, or all of them if nothing is torn.
    fn continue_landing(&mut self, mut landing: Landing) {
        let tear = self.faults.tear;
        while let Some((offset, start, end)) = landing.words.pop() {
            let word = &landing.packet.body()[start..end];
            landing.span.write_bytes(offset, word);
            if tear > Duration::ZERO && !landing.words.is_empty() {
                let at = self.now + self.rng.between(Duration::from_nanos(1), tear);
                self.schedule(at, Event::Land(landing));
                return;
            }
        }
        self.finish_landing(&landing);
    }

    pub(super) fn land(&mut self, landing: Landing) {
        let to = landing.packet.to;
        let Some(party) = self.qps.get(&to).map(|qp| qp.party) else {
            return;
        };
        let open = self.parties[party].regions.contains_key(&landing.region);
        if open && self.road(landing.packet.origin, party) {
            self.continue_landing(landing);
        } else {
            self.abandon_landing(&landing);
        }
    }

    /// Leaves a WRITE half visible: its writer died, or its region was freed.
    fn abandon_landing(&mut self, landing: &Landing) {
        let to = landing.packet.to;
        let state = self.qps.get(&to).map(|qp| qp.state);
        match (landing.recv, state) {
            (Some(recv), Some(QpState::Error)) => {
                self.complete_receive(to, recv, Received::failed(Status::Flushed));
            }
            // At the front: it was the oldest, and the next message takes it.
            (Some(recv), _) => {
                if let Some(qp) = self.qps.get_mut(&to) {
                    qp.receive.entries.push_front(recv);
                }
            }
            (None, _) => {}
        }
        self.resume_waiting(to);
    }

    fn finish_landing(&mut self, landing: &Landing) {
        let Packet { from, to, psn, .. } = landing.packet;
        let Some((party, transport)) = self.qps.get(&to).map(|qp| (qp.party, qp.transport)) else {
            return;
        };
        if let (Some(recv), Kind::Request(request)) = (landing.recv, &landing.packet.kind) {
            let received = Received {
                status: Status::Success,
                opcode: Opcode::RecvWithImm,
                len: request.body.len(),
                imm: request.imm,
                source: None,
                inline: None,
            };
            self.complete_receive(to, recv, received);
        }
        self.note_written(to, landing);
        if self.capabilities.wakes_on_write {
            self.parties[party].wake_any();
        }
        self.wake(party);
        if transport == Transport::Rc {
            self.settle_request(to, from, psn, Reply::Ack(Vec::new()));
        }
        self.resume_waiting(to);
    }

    /// Counts a WRITE on a watched queue pair.
    fn note_written(&mut self, qpn: Qpn, landing: &Landing) {
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return;
        };
        let (start, len) = (landing.offset, landing.packet.body().len());
        let into = |range: &Local| {
            range.region.0 == landing.region
                && start < range.offset + range.len
                && range.offset < start + len
        };
        if let Some(watch) = qp.watch.as_mut().filter(|watch| into(&watch.range)) {
            watch.report.writes += 1;
            if watch.report.writes == 1 {
                self.parties[qp.party].written.push_back(qp.id);
            }
        }
    }

    /// Has requests wait while one is executed word by word.
    pub(super) fn hold_requests(&mut self, qpn: Qpn) {
        if let Some(qp) = self.qps.get_mut(&qpn) {
            qp.receive.landing = true;
        }
    }

    pub(super) fn resume_waiting(&mut self, qpn: Qpn) {
        if let Some(qp) = self.qps.get_mut(&qpn) {
            qp.receive.landing = false;
        }
        // Until one of them is executed word by word itself.
        while let Some(packet) = self.qps.get_mut(&qpn).and_then(Qp::next_waiting) {
            self.accept(packet);
        }
    }

    fn execute_atomic(
        &mut self,
        qpn: Qpn,
        at: Remote,
        operate: impl Fn(&Span, usize) -> u64,
    ) -> Executed {
        match self.open(qpn, at, WORD, |access| access.remote_atomic) {
            Err(reason) => Executed::Refused(Status::RemoteAccess, reason),
            Ok(place) if !place.offset.is_multiple_of(WORD) => {
                Executed::Refused(Status::RemoteInvalid, "misaligned atomic")
            }
            Ok(place) => {
                let old = operate(&place.span, place.offset / WORD);
                Executed::Done(old.to_le_bytes().to_vec())
            }
        }
    }

    /// Checks key, domain, scope, right and range, in this order.
    pub(super) fn open(
        &self,
        qpn: Qpn,
        at: Remote,
        len: usize,
        right: impl Fn(Access) -> bool,
    ) -> Result<Place, &'static str> {
        let qp = self.qps.get(&qpn).ok_or("not connected")?;
        let party = &self.parties[qp.party];
        let id = party.rkeys.get(&at.rkey);
        let named = id.and_then(|id| Some((id, party.regions.get(id)?)));
        let (id, region) = named
            .filter(|(_, region)| region.pd == qp.pd)
            .ok_or("unknown rkey")?;
        if region.scope != Scope::Pd && region.scope != Scope::Qp(qp.id) {
            return Err("rkey of another queue pair");
        }
        if !right(region.access) {
            return Err("right not granted");
        }
        let offset = at.addr.checked_sub(region.base);
        let offset = offset.and_then(|offset| usize::try_from(offset).ok());
        let offset = offset.ok_or("out of range")?;
        let end = offset.checked_add(len).ok_or("out of range")?;
        if end > region.len {
            return Err("out of range");
        }
        let place = match &region.windows {
            None => Some(offset),
            Some(windows) => windows.resolve(&region.span, offset as u64, len),
        };
        Ok(Place {
            region: *id,
            span: region.span.clone(),
            offset: place.ok_or("beyond a window")?,
        })
    }
}

impl Qp {
    fn source(&self, from: Qpn) -> Option<Source> {
        (self.transport == Transport::Ud).then_some(Source { qpn: from })
    }

    fn next_waiting(&mut self) -> Option<Packet> {
        if self.receive.landing {
            return None;
        }
        self.receive.waiting.pop_front()
    }
}

fn inline_data(body: &[u8]) -> InlineData {
    let mut words = [0; 7];
    for (word, bytes) in words.iter_mut().zip(body.chunks(WORD)) {
        let mut whole = [0; WORD];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(whole);
    }
    InlineData::new(words, body.len())
}
