//! Flows: one for each peer, shared by its connections and address handles.

use alloc::collections::BTreeMap;

use crate::{FlowId, Peer, pace::Pace, slab::Slab};

/// The flows of an engine, by id and by peer.
pub(crate) struct Flows {
    slab: Slab<Flow>,
    by_peer: BTreeMap<Peer, u32>,
}

struct Flow {
    peer: Peer,
    /// Connections and address handles that use it.
    users: usize,
    pace: Pace,
}

impl Flows {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            slab: Slab::new(limit),
            by_peer: BTreeMap::new(),
        }
    }

    pub(crate) fn peer(&self, flow: FlowId) -> Option<&Peer> {
        // By the whole id: an index that was reused has another generation, and no longer names
        // this peer.
        self.slab.get(flow.0).map(|flow| &flow.peer)
    }

    #[inline]
    pub(crate) fn pace(&mut self, flow: FlowId) -> Option<&mut Pace> {
        self.slab.get_mut(flow.0).map(|flow| &mut flow.pace)
    }

    /// Returns the flow to `peer`, made if there is none, with one more user; `None` when the table
    /// is full.
    pub(crate) fn join(&mut self, peer: Peer) -> Option<FlowId> {
        if let Some(id) = self.by_peer.get(&peer) {
            self.slab.get_mut(*id)?.users += 1;
            return Some(FlowId(*id));
        }
        let id = self.slab.insert(Flow {
            peer,
            users: 1,
            // The pace is the flow's, not the queue pair's: all connections to a peer share the
            // path that is congested.
            pace: Pace::new(),
        })?;
        self.by_peer.insert(peer, id);
        Some(FlowId(id))
    }

    /// Removes one user; the last one removes the flow.
    pub(crate) fn leave(&mut self, id: FlowId) {
        let Some(flow) = self.slab.get_mut(id.0) else {
            return;
        };
        flow.users -= 1;
        if flow.users == 0 {
            let peer = flow.peer;
            self.by_peer.remove(&peer);
            self.slab.remove(id.0);
        }
    }
}
