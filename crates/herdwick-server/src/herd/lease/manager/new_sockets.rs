//! How clients reach the lease manager: by the lease socket, and by the memcached port.
//!
//! A connection from the port has already sent a whole claim, which is handled at once. A
//! connection to the lease socket has sent nothing yet: the number of silent ones is bounded, apart
//! from all others, and the oldest is closed for a new one.
//!
//! Circular import with `manager`, of which this is a part: its methods for sockets that have no lease yet.

use std::{cmp::Reverse, collections::HashMap, io::ErrorKind, time::Duration};

use mio::Token as Key;

use super::{
    super::{CountedConnection, LeaseArrival, LeaseId, quota::Holder},
    LeaseManager,
    lease_record::LeaseRecord,
};
use crate::{net::stream::Stream, telemetry::leases::count};

/// Largest number of sockets that have claimed nothing yet.
pub(super) const UNCLAIMED_MAX: usize = 64;
/// Sockets accepted from each source in one pass, so that a flood of connections does not keep the
/// lease manager from its clients.
const ACCEPTS_MAX: usize = 64;
/// How long accepting pauses when the process has no descriptors left.
const PAUSE: Duration = Duration::from_millis(50);

/// What the sources may have left for the next pass.
#[derive(Default)]
pub(super) struct NewSockets {
    /// The listener may have more connections.
    pub(super) pending: bool,
    /// Accepting has failed, for lack of descriptors.
    resting: bool,
    /// More connections may have arrived from the memcached port.
    arriving: bool,
}

impl NewSockets {
    /// Returns how long the lease manager may sleep.
    pub(super) fn timeout(&self) -> Option<Duration> {
        match (self.arriving, self.pending, self.resting) {
            (true, ..) | (_, true, false) => Some(Duration::ZERO),
            (_, true, true) => Some(PAUSE),
            (false, false, _) => None,
        }
    }
}

impl LeaseManager {
    pub(super) fn accept_unclaimed(&mut self, now: Duration) {
        for _ in 0..ACCEPTS_MAX {
            let accepted = match &self.listener {
                Some(listener) if self.new_sockets.pending => listener.accept(),
                _ => return,
            };
            self.new_sockets.resting = false;
            match accepted {
                Ok(stream) => {
                    // Before the new one is added, so that it is not among those that may be
                    // closed.
                    self.make_way(now);
                    if let Some(id) = self.admit(Stream::Unix(stream), None, now) {
                        // Most clients have sent their claim by now.
                        self.handle_client(id, now);
                    }
                }
                // Concerns this connection only: others may be behind it.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                    ) => {}
                Err(error) => {
                    self.new_sockets.pending = error.kind() != ErrorKind::WouldBlock;
                    self.new_sockets.resting = true;
                    return;
                }
            }
        }
    }

    pub(super) fn handle_arrivals(&mut self, now: Duration) {
        for _ in 0..ACCEPTS_MAX {
            let arrival = self.arrivals.try_recv();
            // An arrival that was found means that there may be another: the manager does not sleep
            // then.
            self.new_sockets.arriving = arrival.is_ok();
            let Ok(LeaseArrival {
                stream,
                input,
                slot,
            }) = arrival
            else {
                return;
            };
            if let Some(id) = self.admit(stream, Some(slot), now)
                && self.handle_input(id, &input, now)
            {
                // Data that arrived before the registration raised its event at the worker, not
                // here.
                self.handle_client(id, now);
            }
        }
    }

    /// Adds a connection to the clients.
    pub(super) fn admit(
        &mut self,
        mut stream: Stream,
        slot: Option<CountedConnection>,
        now: Duration,
    ) -> Option<LeaseId> {
        let id = LeaseId(self.next as u64);
        // Without memory to watch it, the connection is closed.
        let watched = stream.register(self.poll.registry(), Key(self.next));
        if watched.is_err() {
            count(&self.counters.refused_full);
            return None;
        }
        let holder = holder(&stream);
        let client = LeaseRecord::new(stream, slot, holder, now);
        self.clients.insert(id, client);
        // Never used again: a late event or answer of a connection that has ended finds none.
        self.next += 1;
        Some(id)
    }

    /// Makes room for one more silent connection: of the holders with the most of them, closes the
    /// one that has been silent longest.
    fn make_way(&mut self, now: Duration) {
        loop {
            let silent = self.clients.iter().filter(|(_, client)| client.is_silent());
            let silent: Vec<(LeaseId, Holder)> =
                silent.map(|(id, client)| (*id, client.holder)).collect();
            if silent.len() < UNCLAIMED_MAX {
                return;
            }
            let mut slots: HashMap<Holder, usize> = HashMap::new();
            for (_, holder) in &silent {
                *slots.entry(*holder).or_default() += 1;
            }
            // Ids rise with time: the lowest has been silent for longest.
            let longest = |(id, holder): &&(LeaseId, Holder)| (slots[holder], Reverse(id.0));
            let Some((id, _)) = silent.iter().max_by_key(longest) else {
                return;
            };
            // It may have sent its claim since it was last read.
            self.handle_client(*id, now);
            if self.clients.get(id).is_some_and(LeaseRecord::is_silent) {
                count(&self.counters.unclaimed_refused);
                self.end(*id);
            }
        }
    }
}

/// Returns the holder that a connection counts against.
fn holder(stream: &Stream) -> Holder {
    match stream {
        Stream::Unix(socket) => Holder::User(socket.user()),
        _ => match stream.origin() {
            (_, Some(from)) => Holder::at(from.ip()),
            (_, None) => Holder::User(u32::MAX),
        },
    }
}
