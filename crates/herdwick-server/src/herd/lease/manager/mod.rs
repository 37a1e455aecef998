//! The lease manager: a thread that accepts connections to the lease socket, takes over those from the
//! memcached port that began with a claim, has the workers grant, connect and revoke, and ends leases
//! whose clients disconnect or send no heartbeat.
//!
//! Circular import with `new_sockets`: that part of the lease manager holds its new sockets, and is
//! written as methods of it.

mod claims;
mod lease_record;
mod new_sockets;
mod unread_grants;

use std::{
    collections::HashMap,
    io::{self, ErrorKind, Read},
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::Receiver,
    },
    time::Duration,
};

use herdwick_fabric::PdTicket;
use herdwick_herd::{
    handshake::ServerEvent,
    hello::{Accept, Go, HEARTBEAT, Parts, Refusal, WorkerGrant},
    wire::Window,
};
use herdwick_providers::Fabric;
use mio::{Events, Interest, Poll, Token as Key};

use super::{
    LeaseAnswer, LeaseArrival, LeaseCommand, LeaseId, LeaseKind, LeaseTokens,
    commands::CommandSender, quota::Quotas, socket::send_frame,
};
use crate::{
    net::unix,
    runtime::{readiness, time::ServerClock},
    settings::config::OneSidedReads,
    telemetry::leases::{LeaseCounters, count},
};
use lease_record::{Grants, LeaseRecord};
use new_sockets::NewSockets;
use unread_grants::Unread;

/// The token of the lease socket; those of clients follow the waker's.
const LISTENER: Key = Key(0);
/// The token of the waker that workers use.
pub(crate) const WAKER: Key = Key(1);
const FIRST_CLIENT: usize = 2;

/// The lease manager's link to one worker.
pub(crate) struct WorkerLink {
    /// Commands, taken by the worker one a pass. At most three for each lease.
    pub(crate) commands: CommandSender,
    /// Wakes the worker if it sleeps.
    pub(crate) wake: Box<dyn Fn() + Send>,
}

/// Limits and sizes of leases.
#[derive(Clone, Debug)]
pub(crate) struct LeaseConfig {
    /// Largest number of leases at a time.
    pub(crate) leases_max: usize,
    /// Largest reply payload, in bytes, that a worker sends over each fabric.
    pub(crate) reply_bytes_max: Vec<u32>,
    /// Most bytes of memory that all leases hold at once.
    pub(crate) bytes_max: usize,
    /// Returns the bytes that a lease with this window holds at all workers together.
    pub(crate) lease_bytes: fn(kind: LeaseKind, window: Window, workers: usize) -> usize,
    /// Returns whether the fabric passes descriptors, which requires a unix socket.
    pub(crate) is_local: fn(fabric: Fabric) -> bool,
    /// Who may read the stores.
    pub(crate) readers: OneSidedReads,
}

/// The sources of clients, and the channels to and from the workers.
pub(crate) struct LeaseChannels {
    pub(crate) listener: Option<unix::Listener>,
    pub(crate) arrivals: Receiver<LeaseArrival>,
    pub(crate) tokens: Arc<LeaseTokens>,
    /// For each fabric, the link to each worker.
    pub(crate) links: Vec<Vec<WorkerLink>>,
    pub(crate) answers: Receiver<(usize, LeaseAnswer)>,
    /// The random source for epochs.
    pub(crate) random: fn(&mut [u8]) -> io::Result<()>,
}

/// Grants and revokes leases; runs on a thread of its own.
pub(crate) struct LeaseManager {
    poll: Poll,
    listener: Option<unix::Listener>,
    new_sockets: NewSockets,
    /// Connections to the memcached port that began with a claim.
    arrivals: Receiver<LeaseArrival>,
    config: LeaseConfig,
    tokens: Arc<LeaseTokens>,
    counters: Arc<LeaseCounters>,
    workers: usize,
    /// For each fabric, the link to each worker.
    links: Vec<Vec<WorkerLink>>,
    answers: Receiver<(usize, LeaseAnswer)>,
    clients: HashMap<LeaseId, LeaseRecord>,
    next: usize,
    /// The epoch of the previous lease.
    epoch: u16,
    random: fn(&mut [u8]) -> io::Result<()>,
    quotas: Quotas,
    unread: Unread,
    /// The last order of the fence that is carried out.
    fenced: u64,
}

impl LeaseManager {
    pub(crate) fn new(
        poll: Poll,
        config: LeaseConfig,
        channels: LeaseChannels,
    ) -> io::Result<Self> {
        let mut listener = channels.listener;
        if let Some(listener) = &mut listener {
            poll.registry()
                .register(listener, LISTENER, Interest::READABLE)?;
        }
        Ok(Self {
            poll,
            listener,
            new_sockets: NewSockets::default(),
            arrivals: channels.arrivals,
            quotas: Quotas::new(config.leases_max, config.bytes_max),
            config,
            tokens: channels.tokens,
            counters: Arc::default(),
            // Fabrics that are not offered have no links.
            workers: channels.links.iter().map(Vec::len).max().unwrap_or(0),
            links: channels.links,
            answers: channels.answers,
            clients: HashMap::new(),
            next: FIRST_CLIENT,
            epoch: 0,
            random: channels.random,
            unread: Unread::default(),
            fenced: 0,
        })
    }

    pub(crate) fn counters(&self) -> Arc<LeaseCounters> {
        Arc::clone(&self.counters)
    }

    /// Serves until `stop` is set and the manager is woken.
    pub(crate) fn run(mut self, timer: ServerClock, stop: &AtomicBool) {
        let mut events = Events::with_capacity(64);
        let mut now = timer.now();
        // Pairs with the release in `Closing::ask`, which wakes this thread.
        while !stop.load(Ordering::Acquire) {
            let timeout = self.timeout(now);
            let others = [self.new_sockets.timeout(), self.unread.timeout()];
            let timeout = others.into_iter().flatten().chain(timeout).min();
            let due = timeout.map(|timeout| now + timeout);
            readiness::wait(&mut self.poll, &mut events, timeout);
            now = timer.now();
            self.extend_deadlines(now.saturating_sub(due.unwrap_or(now)));
            for event in &events {
                match event.token() {
                    // A flag: accepting goes on in later passes until the listener is empty.
                    LISTENER => self.new_sockets.pending = true,
                    WAKER => {}
                    Key(client) => self.handle_client(LeaseId(client as u64), now),
                }
            }
            self.accept_unclaimed(now);
            self.handle_arrivals(now);
            self.handle_answers(now);
            self.handle_timeouts(now);
            self.end_fenced();
            self.unread.sweep();
        }
    }

    /// Returns how long the manager may sleep at `now`; `None`: no client waits for a deadline.
    fn timeout(&self, now: Duration) -> Option<Duration> {
        let heard = self
            .clients
            .values()
            // Leases that end have no deadline: only their workers are waited for.
            .filter(|client| client.stream.is_some());
        let next = heard.map(|client| client.shake.poll_timeout()).min()?;
        // No longer, so that a stop of this process is noticed as such (`extend_deadlines`).
        Some(next.saturating_sub(now).min(HEARTBEAT))
    }

    /// Extends the clients' deadlines by `late` if the manager woke that much too late: its process
    /// or host was stopped, and the heartbeats of that time are not missing through the clients'
    /// fault.
    fn extend_deadlines(&mut self, late: Duration) {
        if late >= HEARTBEAT {
            let shakes = self.clients.values_mut().map(|client| &mut client.shake);
            shakes.for_each(|shake| shake.excuse(late));
        }
    }

    fn handle_client(&mut self, id: LeaseId, now: Duration) {
        let mut bytes = [0; 4096];
        loop {
            let Some(client) = self.clients.get_mut(&id) else {
                return;
            };
            let Some(stream) = &mut client.stream else {
                return;
            };
            let read = match stream.read(&mut bytes) {
                // The socket is the lease: its end ends the lease.
                Ok(0) => return self.end(id),
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return self.end(id),
            };
            if !self.handle_input(id, &bytes[..read], now) {
                return;
            }
        }
    }

    /// Handles bytes from a client; `false`: the connection has ended.
    fn handle_input(&mut self, id: LeaseId, bytes: &[u8], now: Duration) -> bool {
        let Some(client) = self.clients.get_mut(&id) else {
            return false;
        };
        match client.shake.handle_input(now, bytes) {
            Ok(None) => {}
            Ok(Some(ServerEvent::Claim(claim))) => self.handle_claim(id, claim, now),
            Ok(Some(ServerEvent::Accept(accept))) => self.handle_accept(id, &accept),
            Ok(Some(ServerEvent::Parts(parts))) => self.handle_parts(id, parts),
            Err(_) => {
                count(&self.counters.malformed);
                self.refuse(id, Refusal::Malformed);
                return false;
            }
        }
        true
    }

    fn handle_accept(&mut self, id: LeaseId, accept: &Accept) {
        let workers = self.workers;
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        if accept.workers.len() != workers || client.by_parts {
            count(&self.counters.malformed);
            return self.refuse(id, Refusal::Malformed);
        }
        let fabric = accepted(client, workers);
        self.command(fabric, |worker| {
            LeaseCommand::Connect(id, accept.workers[worker])
        });
    }

    fn handle_parts(&mut self, id: LeaseId, parts: Parts) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        if !client.by_parts {
            count(&self.counters.malformed);
            return self.refuse(id, Refusal::Malformed);
        }
        let fabric = accepted(client, self.workers);
        self.command(fabric, |_| LeaseCommand::ConnectParts(id, parts.clone()));
    }

    fn handle_answers(&mut self, now: Duration) {
        while let Ok((worker, answer)) = self.answers.try_recv() {
            match answer {
                LeaseAnswer::Granted(id, grant) => self.handle_granted(id, worker, grant),
                LeaseAnswer::GrantedParts(id, parts) => self.handle_granted_parts(id, parts),
                LeaseAnswer::Connected(id, outcome) => self.handle_connected(id, outcome, now),
                LeaseAnswer::Lost(id) => self.handle_lost(id),
                LeaseAnswer::Revoked(id) => self.handle_revoked(id),
            }
        }
    }

    fn handle_granted(
        &mut self,
        id: LeaseId,
        worker: usize,
        grant: Option<Box<(WorkerGrant, Vec<OwnedFd>)>>,
    ) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let Some(grant) = grant else {
            count(&self.counters.refused_full);
            return self.refuse(id, Refusal::Memory);
        };
        if let Some(grants) = client.grant(worker, *grant) {
            self.send_grants(id, &grants);
        }
    }

    fn handle_granted_parts(&mut self, id: LeaseId, parts: Vec<PdTicket>) {
        if let Some(client) = self.clients.get_mut(&id) {
            let grants = client.grant_parts(parts);
            self.send_grants(id, &grants);
        }
    }

    fn send_grants(&mut self, id: LeaseId, Grants { frame, fds }: &Grants) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        // Without a stream the client has disconnected, and its grants are already being revoked.
        let Some(stream) = client.stream.as_mut() else {
            return;
        };
        if send_frame(stream, frame, fds) {
            client.shake.granted();
            client.may_be_unread = true;
        } else {
            count(&self.counters.grants_unsent);
            self.end(id);
        }
    }

    fn handle_connected(&mut self, id: LeaseId, outcome: Result<(), Refusal>, now: Duration) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let Some(stream) = &mut client.stream else {
            return;
        };
        if let Err(refusal) = outcome {
            count(self.counters.refused(refusal));
            return self.refuse(id, refusal);
        }
        client.connecting -= 1;
        if client.connecting > 0 {
            return;
        }
        // Counted before the client is notified, so that a client with a lease finds it in the
        // statistics.
        client.live = true;
        count(&self.counters.granted);
        if let Some(terms) = client.terms {
            count(self.counters.by_path(terms.path));
        }
        self.counters.live.fetch_add(1, Ordering::Relaxed);
        if send_frame(stream, &Go.to_frame(), &[]) {
            client.shake.connected(now);
        } else {
            self.end(id);
        }
    }

    /// Ends a lease whose fabric failed. Every worker may report the same lease; only the first
    /// report counts.
    fn handle_lost(&mut self, id: LeaseId) {
        let client = self.clients.get(&id);
        if client.is_some_and(|client| client.stream.is_some()) {
            count(&self.counters.fabric_lost);
            self.end(id);
        }
    }

    fn handle_revoked(&mut self, id: LeaseId) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.revoking -= 1;
        // Only now are the bytes free: until then a worker may still hold them.
        if client.revoking == 0 {
            let (holder, bytes) = (client.holder, client.bytes);
            self.clients.remove(&id);
            self.counters.releasing.fetch_sub(1, Ordering::Relaxed);
            self.quotas.give_back(holder, bytes);
            self.show_bytes();
        }
    }

    fn handle_timeouts(&mut self, now: Duration) {
        let late =
            |client: &LeaseRecord| client.stream.is_some() && client.shake.poll_timeout() <= now;
        let late: Vec<LeaseId> = self
            .clients
            .iter()
            .filter(|(_, client)| late(client))
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            let live = self.clients.get(&id).is_some_and(|client| client.live);
            let counters = &self.counters;
            count(if live {
                &counters.heartbeat_timeouts
            } else {
                &counters.handshake_timeouts
            });
            self.end(id);
        }
    }

    /// Ends the leases of clients that know the server by a registration of before. The order is carried out when
    /// every worker has revoked them.
    fn end_fenced(&mut self) {
        let order = self.tokens.fence.orders();
        if order == self.fenced {
            return;
        }
        let clients = self.clients.iter();
        let ended = clients.filter(|(_, it)| it.member.is_some_and(|member| member < order));
        let ended: Vec<LeaseId> = ended.map(|(id, _)| *id).collect();
        for id in &ended {
            self.end(*id);
        }
        if ended.is_empty() {
            self.fenced = order;
            self.tokens.fence.done(order);
        }
    }

    /// Sends the refusal, if the socket accepts it at once, and ends the connection.
    fn refuse(&mut self, id: LeaseId, refusal: Refusal) {
        if let Some(stream) = self
            .clients
            .get_mut(&id)
            .and_then(|client| client.stream.as_mut())
        {
            send_frame(stream, &refusal.to_frame(), &[]);
        }
        self.end(id);
    }

    /// Closes the socket and has the workers revoke what they granted.
    fn end(&mut self, id: LeaseId) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let Some(mut stream) = client.hang_up() else {
            return;
        };
        // Closing the descriptor deregisters it too, so a failure here leaks nothing.
        let _ = stream.deregister(self.poll.registry());
        // The client may not have received its grant, even if it has sent something since.
        if client.may_be_unread {
            self.unread.keep(client.holder, stream);
        }
        if client.live {
            self.counters.live.fetch_sub(1, Ordering::Relaxed);
        }
        if client.terms.is_none() {
            // Nothing was granted, so there is nothing to revoke.
            self.clients.remove(&id);
            return;
        }
        // One that has granted nothing answers, too.
        client.revoking = self.workers;
        self.counters.releasing.fetch_add(1, Ordering::Relaxed);
        let fabric = client.fabric;
        self.command(fabric, |_| LeaseCommand::Revoke(id));
    }

    fn command(&self, fabric: Fabric, command: impl Fn(usize) -> LeaseCommand) {
        let links = self.links.get(fabric.rank()).into_iter().flatten();
        for (worker, link) in links.enumerate() {
            // It is dropped only when the worker has ended, and with it everything it held: the
            // server is shutting down.
            link.commands.send(command(worker));
            (link.wake)();
        }
    }
}

/// Records that a client has accepted, and that `workers` are to connect it. Returns its fabric.
fn accepted(client: &mut LeaseRecord, workers: usize) -> Fabric {
    client.connecting = workers;
    // Nothing was sent since the grant, so what lies unread now is the grant; what lies unread later is
    // an answer, which carries no descriptors.
    client.may_be_unread &= client.stream.as_ref().is_some_and(unread_grants::is_unread);
    client.fabric
}

#[cfg(test)]
mod random_schedules;
#[cfg(test)]
mod tests;
