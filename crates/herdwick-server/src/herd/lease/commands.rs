//! The messages between the lease manager and the workers: commands, their answers, and the terms of a
//! lease.

use std::{
    net::IpAddr,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, Receiver, Sender},
    },
};

use herdwick_fabric::PdTicket;
use herdwick_herd::{
    RequestPath,
    hello::{Claim, Parts, Refusal, WorkerAccept, WorkerGrant},
};
use herdwick_providers::Fabric;
use mio::Waker;

/// Identifies a lease for the life of the server; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LeaseId(pub(crate) u64);

/// The fabric and request path of a lease, and whether it is one of a client that knows the server by its
/// registration. A token encodes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseKind {
    pub(crate) fabric: Fabric,
    pub(crate) path: RequestPath,
    /// Of such a client, the orders of the fence at which it was admitted.
    pub(crate) member: Option<u64>,
}

/// The terms of a lease, the same at each worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The epoch in every request slot and reply; never 0.
    pub(crate) epoch: u16,
    /// Number of slots: a power of two.
    pub(crate) window: u16,
    /// Largest reply payload in bytes.
    pub(crate) reply_bytes_max: u32,
    pub(crate) path: RequestPath,
    /// Whether the client asks for the stores, and may read them.
    pub(crate) reads: bool,
    /// The host that the client connected from; `None`: this host.
    pub(crate) host: Option<IpAddr>,
    /// The claim as it was sent, whose numbers mean something else to another engine than HERD.
    pub(crate) claim: Claim,
}

/// A command of the lease manager to a worker.
#[derive(Debug)]
pub(crate) enum LeaseCommand {
    /// Allocate memory and queue pairs.
    Grant(LeaseId, Terms),
    /// Connect them with the client's, and start polling.
    Connect(LeaseId, WorkerAccept),
    /// The same for an engine that granted by parts.
    ConnectParts(LeaseId, Parts),
    /// Stop polling and release everything.
    Revoke(LeaseId),
}

/// A worker's answer; the channel adds the worker's index.
#[derive(Debug)]
pub(crate) enum LeaseAnswer {
    /// To [`LeaseCommand::Grant`]; `None`: the worker failed, and holds nothing.
    Granted(LeaseId, Option<Box<(WorkerGrant, Vec<OwnedFd>)>>),
    /// To [`LeaseCommand::Grant`], by an engine other than HERD, of its only worker.
    GrantedParts(LeaseId, Vec<PdTicket>),
    /// To [`LeaseCommand::Connect`] and [`LeaseCommand::ConnectParts`]; an error: the endpoints are malformed, or the server failed.
    /// An error also to [`LeaseCommand::Grant`], by an engine that does not take the claim.
    Connected(LeaseId, Result<(), Refusal>),
    /// Unsolicited: the device or queue pair of this lease was lost.
    Lost(LeaseId),
    /// To [`LeaseCommand::Revoke`]: the lease is not served any more, and its memory is released.
    Revoked(LeaseId),
}

/// The lease manager's end of a worker's commands.
pub(crate) struct CommandSender {
    queue: Sender<LeaseCommand>,
    sent: Arc<AtomicUsize>,
}

/// The worker's end. It asks for a command in every whole pass, and there hardly ever is one: a count tells
/// that for less than a look into the channel.
pub(crate) struct CommandReceiver {
    queue: Receiver<LeaseCommand>,
    sent: Arc<AtomicUsize>,
    taken: usize,
}

/// Makes the channel of one worker's commands.
pub(crate) fn command_channel() -> (CommandSender, CommandReceiver) {
    let (to, from) = mpsc::channel();
    let sent = Arc::new(AtomicUsize::new(0));
    let sender = CommandSender {
        queue: to,
        sent: Arc::clone(&sent),
    };
    let receiver = CommandReceiver {
        queue: from,
        sent,
        taken: 0,
    };
    (sender, receiver)
}

impl CommandSender {
    /// Sends a command. Without a receiver, which has ended with its worker, it is dropped.
    pub(crate) fn send(&self, command: LeaseCommand) {
        if self.queue.send(command).is_ok() {
            // Release: who sees the count finds the command.
            self.sent.fetch_add(1, Ordering::Release);
        }
    }
}

impl CommandReceiver {
    /// Returns the next command, if there is one.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<LeaseCommand> {
        // Pairs with the Release in `send`.
        if self.sent.load(Ordering::Acquire) == self.taken {
            return None;
        }
        let command = self.queue.try_recv().ok()?;
        self.taken = self.taken.wrapping_add(1);
        Some(command)
    }

    /// Waits for the next command; `None` when no sender is left.
    #[cfg(test)]
    pub(crate) fn wait(&mut self) -> Option<LeaseCommand> {
        self.taken = self.taken.wrapping_add(1);
        self.queue.recv().ok()
    }
}

/// One worker's end of the channels.
pub(crate) struct WorkerEnd {
    pub(crate) commands: CommandReceiver,
    pub(crate) answers: Sender<(usize, LeaseAnswer)>,
    pub(crate) manager: Arc<Waker>,
}
