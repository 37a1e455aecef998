//! A data node: memory, and the queue pairs by which it is reached. Its CPU takes no part in any request.
//! Circular import with `setup`, which has the limits and errors of all ends.

use std::{fmt, net::IpAddr};

use herdwick_fabric::{
    Access, Armed, ControlError, CqId, CqSpec, Device, Endpoint, PdId, PdRoom, PdTicket, Port,
    PortLimits, QpId, RegionId, Remote, Scope, SharedMemory, Sharing,
};
use herdwick_mem::{Span, Words};
use siphasher::sip::SipHasher24;

use super::{CLIENTS_MAX, OptionsError, SetupError, check, endpoint_of, rc};
use crate::layout::{Geometry, MEMBER_WORD, Membership, STORE_WORD};

/// What a data node asks for before it grants the right to write: 128 bits, drawn at random.
#[derive(Clone, Copy)]
pub struct Secret(pub [u8; 16]);

impl Secret {
    /// Compares in a time that does not depend on where the two differ.
    fn is(&self, other: &Self) -> bool {
        let pairs = self.0.iter().zip(other.0);
        pairs.fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
    }

    /// Returns the proof that its holder knows the secret, in answer to 128 bits that are drawn anew each time:
    /// so the secret itself is never sent. It goes in the two numbers of a claim that mean nothing to Clover.
    #[must_use]
    pub fn proof(&self, challenge: &[u8; 16]) -> [u32; 2] {
        let mac = SipHasher24::new_with_key(&self.0).hash(challenge);
        [mac as u32, (mac >> 32) as u32]
    }

    /// Returns whether `proof` is that for `challenge`.
    #[must_use]
    pub fn is_proved(&self, challenge: &[u8; 16], proof: [u32; 2]) -> bool {
        let due = self.proof(challenge);
        (due[0] ^ proof[0]) | (due[1] ^ proof[1]) == 0
    }

    /// Returns what names the store that a holder of the secret begins by answering `challenge`: both ends know
    /// it without sending it.
    #[must_use]
    pub fn store_id(&self, challenge: &[u8; 16]) -> u64 {
        // A byte longer than what `proof` hashes: no proof tells the name of a store.
        let mut named = [1; 17];
        named[..16].copy_from_slice(challenge);
        SipHasher24::new_with_key(&self.0).hash(&named)
    }

    /// Returns what a party may do that shows this secret, or none.
    pub(super) fn right(&self, shown: Option<&Self>) -> Result<Right, OptionsError> {
        match shown {
            None => Ok(Right::Read),
            Some(shown) if shown.is(self) => Ok(Right::Write),
            Some(_) => Err(OptionsError::Secret),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// What a client may do with the memory of a data node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// READ.
    Read,
    /// READ, WRITE and CAS.
    Write,
}

/// Sizes of a data node.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// The dimensions of the memory; the same on all data nodes.
    pub geometry: Geometry,
    /// Most clients, the metadata server among them; up to [`CLIENTS_MAX`] and one.
    pub clients: usize,
    /// What those have to show that write.
    pub secret: Secret,
}

/// Names a client of a data node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeClientId(u64);

/// What a client learns of a data node.
#[derive(Debug)]
pub struct NodeGrant {
    /// The queue pair for WRITEs and CASes, and for READs of the metadata server.
    pub writes: Endpoint,
    /// The queue pair for READs of clients.
    pub reads: Endpoint,
    /// The memory.
    pub memory: Remote,
    /// For [`Device::import_region`].
    pub ticket: PdTicket,
    /// The dimensions of the memory.
    pub geometry: Geometry,
    /// What the client may do.
    pub right: Right,
    /// What the memory is part of.
    pub membership: Membership,
}

/// What a data node learns of a client.
#[derive(Clone, Debug)]
pub struct NodeAccept {
    /// The queue pair for WRITEs and CASes.
    pub writes: Endpoint,
    /// The queue pair for READs; `None`: the client READs from another node.
    pub reads: Option<Endpoint>,
}

/// A data node's port and memory. The caller drives the port; nothing else is to be done.
pub struct NodeEnd<D: Device> {
    /// The device.
    pub device: D,
    /// The port, for domains.
    pub port: D::Port,
    memory: SharedMemory,
    options: NodeOptions,
    /// Nothing completes there.
    idle: CqId,
    clients: Vec<NodeClient>,
    serial: u64,
}

fn membership(memory: &Span) -> Membership {
    Membership::of([memory.load(STORE_WORD), memory.load(MEMBER_WORD)])
}

struct NodeClient {
    id: NodeClientId,
    pd: PdId,
    writes: QpId,
    reads: QpId,
    region: RegionId,
    /// How many of these were destroyed, in the order of [`NodeEnd::remove`].
    removed: usize,
}

impl<D: Device> NodeEnd<D> {
    /// Opens a port, and makes empty memory.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn open(device: D, options: NodeOptions) -> Result<Self, SetupError> {
        check("clients", options.clients, CLIENTS_MAX + 1)?;
        let bytes = options.geometry.bytes()?;
        let clients = options.clients;
        let mut port = device.open_port(&PortLimits {
            pds: clients,
            qps: 2 * clients,
            cqs: 1,
            regions: clients,
            addresses: 0,
        })?;
        let depth = 2 * clients;
        let idle = device.create_cq(&mut port, &CqSpec { depth })?;
        let memory = device.allocate_shared(bytes, Sharing::TrustedPeers)?;
        // The header is all that a blank node has: 0 is no store and no keys.
        memory.span().write_words(0, &options.geometry.words());
        Ok(Self {
            device,
            port,
            memory,
            options,
            idle,
            clients: Vec::with_capacity(clients),
            serial: 0,
        })
    }

    /// What a client needs of its domain.
    #[must_use]
    pub fn pd_room() -> PdRoom {
        PdRoom::default()
    }

    /// Makes the objects for a client, or for the metadata server, whose domain is `pd`. With the
    /// secret it may write, without one it may read.
    ///
    /// # Errors
    /// [`OptionsError::Secret`], [`OptionsError::Clients`], or the provider's refusal; objects that were
    /// made are left in the domain, and go with it.
    pub fn admit(
        &mut self,
        pd: PdId,
        secret: Option<&Secret>,
    ) -> Result<(NodeClientId, NodeGrant), SetupError> {
        let right = self.options.secret.right(secret)?;
        if self.clients.len() == self.options.clients {
            return Err(OptionsError::Clients.into());
        }
        let Self {
            device, port, idle, ..
        } = self;
        // Both serve the client's verbs alone, and post nothing.
        let spec = rc(pd, [*idle, *idle], [1, 0]);
        let writes = device.create_qp(port, &spec)?;
        let reads = device.create_qp(port, &spec)?;
        let access = match right {
            Right::Read => Access::READ,
            Right::Write => Access::ALL,
        };
        let region = device.register_shared(port, pd, &self.memory, access, Scope::Pd)?;
        let grant = NodeGrant {
            writes: endpoint_of(device, port, writes)?,
            reads: endpoint_of(device, port, reads)?,
            memory: device.remote(port, region)?,
            ticket: device.export_region(port, region)?,
            geometry: self.options.geometry,
            right,
            membership: membership(self.memory.span()),
        };
        self.serial += 1;
        let id = NodeClientId(self.serial);
        self.clients.push(NodeClient {
            id,
            pd,
            writes,
            reads,
            region,
            removed: 0,
        });
        Ok((id, grant))
    }

    /// Returns whether a client that connected from `host` (`None`: this one) has its queue pairs there.
    #[must_use]
    pub fn is_at(&self, id: NodeClientId, ends: &[&Endpoint], host: Option<IpAddr>) -> bool {
        let found = self.clients.iter().find(|client| client.id == id);
        found.is_some_and(|client| self.device.is_at(&self.port, client.pd, ends, host))
    }

    /// Arms the wakeup of the port. On a fabric whose verbs are executed by this process they arrive as
    /// others do; returns whether the caller may sleep.
    pub fn arm(&mut self) -> bool {
        self.port.arm(self.idle) == Armed::Yes
    }

    /// Undoes [`NodeEnd::arm`].
    pub fn disarm(&mut self) {
        self.port.disarm(self.idle);
    }

    /// Connects a client's queue pairs.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn connect(&mut self, id: NodeClientId, accept: &NodeAccept) -> Result<(), SetupError> {
        let found = self.clients.iter().find(|client| client.id == id);
        let client = found.ok_or(ControlError::Unknown("client"))?;
        let (writes, reads) = (client.writes, client.reads);
        self.device
            .connect(&mut self.port, writes, &accept.writes)?;
        if let Some(end) = &accept.reads {
            self.device.connect(&mut self.port, reads, end)?;
        }
        Ok(())
    }

    /// Ends a client's session. When this has returned, no verb of the client reaches the memory.
    ///
    /// Over shared memory, where the client's CPU executes its writes, that holds for a process that has
    /// ended; one that was stopped in the middle of a store finishes it when it goes on.
    ///
    /// # Errors
    /// The provider's refusal: verbs of the client may reach the memory still. To be called again, before
    /// the client is removed from the metadata server.
    pub fn remove(&mut self, id: NodeClientId) -> Result<(), ControlError> {
        let Some(index) = self.clients.iter().position(|client| client.id == id) else {
            return Ok(());
        };
        let Self {
            device,
            port,
            clients,
            ..
        } = self;
        let client = &mut clients[index];
        // Each object once, however often the caller has to try.
        while client.removed < 4 {
            match client.removed {
                0 => device.destroy_qp(port, client.writes)?,
                1 => device.destroy_qp(port, client.reads)?,
                2 => device.free_region(port, client.region)?,
                _ => device.destroy_pd(port, client.pd)?,
            }
            client.removed += 1;
        }
        clients.swap_remove(index);
        Ok(())
    }

    /// Ends all sessions, before another metadata server begins.
    ///
    /// # Errors
    /// As [`NodeEnd::remove`].
    pub fn remove_all(&mut self) -> Result<(), ControlError> {
        while let Some(client) = self.clients.last() {
            self.remove(client.id)?;
        }
        Ok(())
    }

    /// Returns the number of clients, the metadata server included.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.len()
    }
}
