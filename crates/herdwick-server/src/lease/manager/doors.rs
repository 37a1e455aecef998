//! How clients come in: by the unix socket, and by the memcached port.
//!
//! Who comes by the port has made a whole claim already, so it is heard at once. Who comes by the
//! socket has said nothing yet: of those who stay silent a bounded number may wait, apart from the
//! others, and the oldest gives way.

use std::{cmp::Reverse, collections::HashMap, io::ErrorKind, time::Duration};

use mio::Token as Key;

use super::{
    super::{Arrival, ConnectionSlot, LeaseId, client::Client, counters::count, shares::Owner},
    LeaseManager,
};
use crate::{tcp::Stream, unix};

/// Most sockets that have claimed nothing yet.
pub(super) const STRANGERS_MAX: usize = 64;
/// Most sockets taken in at each door in a turn: whoever keeps knocking must not keep the lease
/// manager from everyone that it has let in.
const ACCEPTS_MAX: usize = 64;
/// How long accepting rests when the process has no descriptors left.
const PAUSE: Duration = Duration::from_millis(50);

/// What the doors may have left for the next turn.
#[derive(Default)]
pub(super) struct Doors {
    /// The listener may have more.
    pub(super) pending: bool,
    /// And there is no descriptor for it now.
    resting: bool,
    /// More may have come by the memcached port.
    arriving: bool,
}

impl Doors {
    /// How long the lease manager may sleep.
    pub(super) fn timeout(&self) -> Option<Duration> {
        match (self.arriving, self.pending, self.resting) {
            (true, ..) | (_, true, false) => Some(Duration::ZERO),
            (_, true, true) => Some(PAUSE),
            (false, false, _) => None,
        }
    }
}

impl LeaseManager {
    pub(super) fn handle_strangers(&mut self, now: Duration) {
        for _ in 0..ACCEPTS_MAX {
            let accepted = match &self.listener {
                Some(listener) if self.doors.pending => unix::accept(listener),
                _ => return,
            };
            self.doors.resting = false;
            match accepted {
                Ok(stream) => {
                    self.make_way(now);
                    if let Some(id) = self.admit(Stream::Unix(stream), None, now) {
                        // Most have spoken by now.
                        self.handle_client(id, now);
                    }
                }
                // This one alone is refused or gone.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                    ) => {}
                Err(error) => {
                    self.doors.pending = error.kind() != ErrorKind::WouldBlock;
                    self.doors.resting = true;
                    return;
                }
            }
        }
    }

    pub(super) fn handle_arrivals(&mut self, now: Duration) {
        for _ in 0..ACCEPTS_MAX {
            let arrival = self.arrivals.try_recv();
            self.doors.arriving = arrival.is_ok();
            let Ok(Arrival {
                stream,
                input,
                slot,
            }) = arrival
            else {
                return;
            };
            if let Some(id) = self.admit(stream, Some(slot), now)
                && self.hear(id, &input, now)
            {
                // What has come meanwhile was announced elsewhere.
                self.handle_client(id, now);
            }
        }
    }

    /// Takes a connection in.
    pub(super) fn admit(
        &mut self,
        mut stream: Stream,
        slot: Option<ConnectionSlot>,
        now: Duration,
    ) -> Option<LeaseId> {
        let id = LeaseId(self.next as u64);
        // Whom the system has no memory to watch for is let go.
        let watched = stream.register(self.poll.registry(), Key(self.next));
        if watched.is_err() {
            count(&self.counters.refused_full);
            return None;
        }
        let owner = owner(&stream);
        let client = Client::new(stream, slot, owner, now);
        self.clients.insert(id, client);
        self.next += 1;
        Some(id)
    }

    /// Leaves a slot for one more stranger: of those who have the most of them, the one that has
    /// been silent for longest goes.
    fn make_way(&mut self, now: Duration) {
        loop {
            let silent = self.clients.iter().filter(|(_, client)| client.is_silent());
            let silent: Vec<(LeaseId, Owner)> =
                silent.map(|(id, client)| (*id, client.owner)).collect();
            if silent.len() < STRANGERS_MAX {
                return;
            }
            let mut slots: HashMap<Owner, usize> = HashMap::new();
            for (_, owner) in &silent {
                *slots.entry(*owner).or_default() += 1;
            }
            let longest = |(id, owner): &&(LeaseId, Owner)| (slots[owner], Reverse(id.0));
            let Some((id, _)) = silent.iter().max_by_key(longest) else {
                return;
            };
            // It may have spoken since it was last heard.
            self.handle_client(*id, now);
            if self.clients.get(id).is_some_and(Client::is_silent) {
                count(&self.counters.strangers_refused);
                self.end(*id);
            }
        }
    }
}

/// Whose a connection is.
fn owner(stream: &Stream) -> Owner {
    match stream {
        Stream::Unix(socket) => Owner::User(socket.user()),
        _ => match stream.origin() {
            (_, Some(from)) => Owner::at(from.ip()),
            (_, None) => Owner::User(u32::MAX),
        },
    }
}
