//! What a session carries between its hosts and a client in another process, as bytes: the grants of the
//! metadata server and of each data node with the tickets of their domains, and what the client answers.
//! `docs/clover.md` draws them. Nothing that is parsed here is trusted.

use std::os::fd::OwnedFd;

use herdwick_fabric::{Endpoint, PdTicket, Remote, Rkey};
use herdwick_mem::WORD;
use herdwick_request::HashKey;

use super::{Accept, Grant, NodeAccept, NodeGrant, Right};
use crate::{
    layout::{Geometry, HEADER_WORDS, Membership},
    nodes::NODES_MAX,
};

/// What a client has been granted: by the metadata server, and by each data node in the same order as the
/// server's. Each comes with the ticket of its domain.
#[derive(Debug)]
pub struct Invitation {
    /// The metadata server.
    pub server: (PdTicket, Grant),
    /// The data nodes.
    pub nodes: Vec<(PdTicket, NodeGrant)>,
}

/// What its hosts learn of a client.
#[derive(Clone, Debug)]
pub struct Accepts {
    /// The metadata server.
    pub server: Accept,
    /// The data nodes, in the order of [`Invitation::nodes`].
    pub nodes: Vec<NodeAccept>,
}

/// Bytes that are no part of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other end's {0} makes no sense: it is of another version")]
pub struct BadPart(&'static str);

impl Invitation {
    /// Encodes it: a blob for the metadata server and one for each data node, each with its descriptors.
    #[must_use]
    pub fn into_parts(self) -> Vec<PdTicket> {
        let (ticket, grant) = self.server;
        let mut parts = vec![server_part(ticket, &grant)];
        let nodes = self.nodes.into_iter();
        parts.extend(nodes.map(|(ticket, grant)| node_part(ticket, grant)));
        parts
    }

    /// Parses the parts.
    ///
    /// # Errors
    /// [`BadPart`].
    pub fn of_parts(parts: Vec<PdTicket>) -> Result<Self, BadPart> {
        let mut parts = parts.into_iter();
        let server = parts.next().ok_or(BadPart("number of grants"))?;
        if !(1..=NODES_MAX).contains(&parts.len()) {
            return Err(BadPart("number of grants"));
        }
        Ok(Self {
            server: server_grant(server)?,
            nodes: parts.map(node_grant).collect::<Result<_, _>>()?,
        })
    }
}

impl Accepts {
    /// Encodes it: a blob for the metadata server and one for each data node.
    #[must_use]
    pub fn to_parts(&self) -> Vec<Vec<u8>> {
        let mut server = Bytes::default();
        server.blob(self.server.calls.as_bytes());
        let nodes = self.nodes.iter().map(|accept| {
            let mut out = Bytes::default();
            out.blob(accept.writes.as_bytes());
            out.blob(accept.reads.as_ref().map_or(&[], Endpoint::as_bytes));
            out.0
        });
        std::iter::once(server.0).chain(nodes).collect()
    }

    /// Parses the blobs.
    ///
    /// # Errors
    /// [`BadPart`].
    pub fn of_parts(parts: &[&[u8]]) -> Result<Self, BadPart> {
        let Some((server, nodes)) = parts.split_first() else {
            return Err(BadPart("number of accepts"));
        };
        let mut from = Fields(server, "accept");
        let calls = from.endpoint()?;
        from.end()?;
        let node = |bytes: &&[u8]| {
            let mut from = Fields(bytes, "accept");
            let (writes, reads) = (from.endpoint()?, from.blob()?);
            from.end()?;
            let reads = (!reads.is_empty()).then(|| endpoint(reads, "accept"));
            let reads = reads.transpose()?;
            Ok(NodeAccept { writes, reads })
        };
        Ok(Self {
            server: Accept { calls },
            nodes: nodes.iter().map(node).collect::<Result<_, _>>()?,
        })
    }

    /// Returns every endpoint of the client: at the metadata server, and at each data node.
    pub(super) fn endpoints(&self) -> (&Endpoint, impl Iterator<Item = Vec<&Endpoint>>) {
        let nodes = self.nodes.iter();
        let nodes = nodes.map(|accept| {
            std::iter::once(&accept.writes)
                .chain(&accept.reads)
                .collect()
        });
        (&self.server.calls, nodes)
    }
}

// {right u8, hash key 2 words, ticket, calls}
fn server_part(ticket: PdTicket, grant: &Grant) -> PdTicket {
    let mut out = Bytes::default();
    out.right(grant.right);
    grant.hash_key.0.into_iter().for_each(|word| out.word(word));
    out.blob(&ticket.blob);
    out.blob(grant.calls.as_bytes());
    PdTicket {
        fds: ticket.fds,
        blob: out.0,
    }
}

fn server_grant(part: PdTicket) -> Result<(PdTicket, Grant), BadPart> {
    let mut from = Fields(&part.blob, "metadata server's grant");
    let right = from.right()?;
    let hash_key = HashKey([from.word()?, from.word()?]);
    let blob = from.blob()?.to_vec();
    let calls = from.endpoint()?;
    from.end()?;
    let grant = Grant {
        calls,
        hash_key,
        right,
    };
    let fds = part.fds;
    Ok((PdTicket { fds, blob }, grant))
}

// {right u8, descriptors of the domain u8, rkey u32, address u64, header and membership in words, ticket
// of the domain, ticket of the memory, writes, reads}
fn node_part(ticket: PdTicket, grant: NodeGrant) -> PdTicket {
    let mut out = Bytes::default();
    out.right(grant.right);
    // Descriptors are few, and the byte tells those of the domain from those of the memory.
    out.0.push(ticket.fds.len() as u8);
    out.0.extend_from_slice(&grant.memory.rkey.0.to_le_bytes());
    out.word(grant.memory.addr);
    let words = grant.geometry.words().into_iter();
    let words = words.chain(grant.membership.words());
    words.for_each(|word| out.word(word));
    out.blob(&ticket.blob);
    out.blob(&grant.ticket.blob);
    out.blob(grant.writes.as_bytes());
    out.blob(grant.reads.as_bytes());
    let fds = ticket.fds.into_iter().chain(grant.ticket.fds);
    PdTicket {
        fds: fds.collect(),
        blob: out.0,
    }
}

fn node_grant(part: PdTicket) -> Result<(PdTicket, NodeGrant), BadPart> {
    const WHAT: &str = "data node's grant";
    let mut from = Fields(&part.blob, WHAT);
    let right = from.right()?;
    let [domain_fds] = from.array()?;
    let rkey = Rkey(u32::from_le_bytes(from.array()?));
    let addr = from.word()?;
    let mut words = [0; HEADER_WORDS];
    for word in &mut words {
        *word = from.word()?;
    }
    let geometry = Geometry::of(&words).map_err(|_| BadPart(WHAT))?;
    let membership = Membership::of([from.word()?, from.word()?]);
    let (domain, memory) = (from.blob()?.to_vec(), from.blob()?.to_vec());
    let (writes, reads) = (from.endpoint()?, from.endpoint()?);
    from.end()?;
    let mut fds = part.fds.into_iter();
    let ticket = |fds: Vec<OwnedFd>, blob| PdTicket { fds, blob };
    let domain = ticket(fds.by_ref().take(domain_fds.into()).collect(), domain);
    let grant = NodeGrant {
        writes,
        reads,
        memory: Remote { rkey, addr },
        ticket: ticket(fds.collect(), memory),
        geometry,
        right,
        membership,
    };
    Ok((domain, grant))
}

fn endpoint(bytes: &[u8], what: &'static str) -> Result<Endpoint, BadPart> {
    Endpoint::new(bytes).map_err(|_| BadPart(what))
}

#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn right(&mut self, right: Right) {
        self.0.push(match right {
            Right::Read => 0,
            Right::Write => 1,
        });
    }

    fn word(&mut self, word: u64) {
        self.0.extend_from_slice(&word.to_le_bytes());
    }

    /// A `u16` length and the bytes; tickets and endpoints are far shorter than that can name.
    fn blob(&mut self, bytes: &[u8]) {
        self.0
            .extend_from_slice(&(bytes.len() as u16).to_le_bytes());
        self.0.extend_from_slice(bytes);
    }
}

/// What is left of a part, and what it is.
struct Fields<'a>(&'a [u8], &'static str);

impl<'a> Fields<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], BadPart> {
        let (head, rest) = self.0.split_at_checked(bytes).ok_or(BadPart(self.1))?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BadPart> {
        self.take(N)?.try_into().map_err(|_| BadPart(self.1))
    }

    fn word(&mut self) -> Result<u64, BadPart> {
        Ok(u64::from_le_bytes(self.array::<WORD>()?))
    }

    fn right(&mut self) -> Result<Right, BadPart> {
        match self.array()? {
            [0] => Ok(Right::Read),
            [1] => Ok(Right::Write),
            _ => Err(BadPart(self.1)),
        }
    }

    fn blob(&mut self) -> Result<&'a [u8], BadPart> {
        let len = u16::from_le_bytes(self.array()?);
        self.take(len.into())
    }

    fn endpoint(&mut self) -> Result<Endpoint, BadPart> {
        endpoint(self.blob()?, self.1)
    }

    fn end(&self) -> Result<(), BadPart> {
        // Bytes behind the last field are of another version.
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(BadPart(self.1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::layout::CLASSES;

    fn ticket(byte: u8, fds: usize) -> PdTicket {
        let file = || std::fs::File::open("/dev/null").unwrap().into();
        PdTicket {
            fds: (0..fds).map(|_| file()).collect(),
            blob: vec![byte; 30],
        }
    }

    fn end(byte: u8) -> Endpoint {
        Endpoint::new(&[byte; 40]).unwrap()
    }

    fn invitation(fds: usize) -> Invitation {
        let geometry = Geometry {
            slots: 9,
            entries: [4; CLASSES],
            versions: 100,
        };
        let grant = NodeGrant {
            writes: end(1),
            reads: end(2),
            memory: Remote {
                rkey: Rkey(77),
                addr: 1 << 40,
            },
            ticket: ticket(3, fds),
            geometry,
            right: Right::Write,
            membership: Membership::of([5, 6]),
        };
        let server = Grant {
            calls: end(7),
            hash_key: HashKey([8, 9]),
            right: Right::Read,
        };
        Invitation {
            server: (ticket(10, 2 * fds), server),
            nodes: vec![(ticket(11, 3 * fds), grant)],
        }
    }

    #[test]
    fn an_invitation_arrives_as_it_was_sent_with_each_descriptor_in_its_place() {
        let parts = invitation(1).into_parts();
        let counts: Vec<_> = parts.iter().map(|part| part.fds.len()).collect();
        assert_eq!(counts, [2, 4]);
        let read = Invitation::of_parts(parts).unwrap();
        // Debug shows every field, and of tickets the lengths.
        assert_eq!(format!("{read:?}"), format!("{:?}", invitation(1)));
        let (domain, grant) = &read.nodes[0];
        assert_eq!(
            (&domain.blob[..], &grant.ticket.blob[..]),
            (&[11; 30][..], &[3; 30][..])
        );
    }

    #[test]
    fn accepts_arrive_as_they_were_sent() {
        let node = |reads| NodeAccept {
            writes: end(2),
            reads,
        };
        let accepts = Accepts {
            server: Accept { calls: end(1) },
            nodes: vec![node(Some(end(3))), node(None)],
        };
        let parts = accepts.to_parts();
        let parts: Vec<_> = parts.iter().map(|part| &part[..]).collect();
        let read = Accepts::of_parts(&parts).unwrap();
        assert_eq!(read.to_parts(), accepts.to_parts());
        assert_eq!(
            (read.nodes[0].reads, read.nodes[1].reads),
            (Some(end(3)), None)
        );
        let (_, nodes) = read.endpoints();
        assert_eq!(nodes.map(|ends| ends.len()).collect::<Vec<_>>(), [2, 1]);
        for part in 0..parts.len() {
            for cut in 0..parts[part].len() {
                let mut short = parts.clone();
                short[part] = &short[part][..cut];
                assert!(Accepts::of_parts(&short).is_err());
            }
        }
    }

    proptest! {
        #[test]
        fn changed_parts_are_refused_or_make_sense(which in 0usize..2, at in 0usize..300, byte: u8, cut in 0usize..400) {
            let mut parts = invitation(0).into_parts();
            let blob = &mut parts[which].blob;
            let len = blob.len();
            if let Some(one) = blob.get_mut(at) {
                *one = byte;
            }
            blob.truncate(cut);
            let read = Invitation::of_parts(parts);
            prop_assert!(read.is_err() || cut >= len);
        }
    }
}
