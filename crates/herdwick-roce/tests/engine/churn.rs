//! Leases that come and go: queue pairs, domains and regions are made, used, destroyed while work
//! is outstanding, and made again in the same slots, over a bad link.
//!
//! Each lease has a domain, a connected queue pair and a region on B for that queue pair alone,
//! which A fills with the lease's own tag. A region that is not registered has no memory, so an
//! engine that names one panics. A planted bug was found: ids without generations (`Slab::remove`
//! leaves the id as it is), with which the rest of a long WRITE lands in the region that reused the
//! slot.

use std::collections::{BTreeMap, BTreeSet};

use herdwick_fabric::{
    Access, ControlError, CqSpec, Local, Payload, PdId, PortLimits, QpId, QpSpec, QpState,
    RegionId, RegionSpec, Remote, Rkey, Scope, SendOp, Status, Transport,
};
use herdwick_roce::{Config, Engine, Retry};

use crate::{
    link::{A, B, Faults, World},
    unreliable::signaled,
};

/// Maximum simultaneous leases, and queue pairs of each side.
const LEASES: usize = 6;
const STEPS: usize = 6000;
const REGION: usize = 8192;
/// Bytes at the start of the region that FETCH_ADDs count in; the rest holds the tag.
const WORD: usize = 8;
/// Bytes of A's source region: sixteen packets.
const SOURCE: usize = 4096;

struct Lease {
    tag: u8,
    transport: Transport,
    /// A's queue pair, and B's with its domain, while they exist.
    ours: Option<QpId>,
    theirs: Option<(PdId, QpId)>,
    region: Option<(RegionId, Remote)>,
    life: u64,
    /// The region that A writes from: the tag, repeated.
    source: RegionId,
    /// FETCH_ADDs posted since the region was made, and those that succeeded.
    adds: u64,
    added: u64,
}

struct Churn {
    world: World,
    leases: Vec<Lease>,
    joined: u64,
    next_id: u64,
    /// Outstanding requests, by queue pair.
    posted: BTreeSet<(QpId, u64)>,
    /// Outstanding FETCH_ADDs, and the life of the region that they count in.
    adds: BTreeMap<u64, u64>,
    /// Number of regions made.
    lives: u64,
}

impl Churn {
    fn new(seed: u64) -> Self {
        let config = Config {
            limits: PortLimits {
                pds: LEASES + 1,
                qps: LEASES,
                cqs: 1,
                regions: LEASES + 2,
                addresses: LEASES,
            },
            retry: Retry {
                count: 3,
                ..Retry::default()
            },
            ..Config::default()
        };
        let mut world = World::new(seed, &config);
        world.faults = Faults {
            drop: 20,
            duplicate: 20,
            reorder: 50,
            corrupt: 10,
        };
        // Little room, so that long messages take many passes.
        world.sides[A].outbox.room = 6;
        world.sides[B].outbox.room = 6;
        Self {
            world,
            leases: Vec::new(),
            joined: 0,
            next_id: 0,
            posted: BTreeSet::new(),
            adds: BTreeMap::new(),
            lives: 0,
        }
    }

    fn queue_pair(&mut self, side: usize, pd: PdId, transport: Transport) -> QpId {
        let side = &mut self.world.sides[side];
        let spec = QpSpec {
            pd,
            transport,
            send_cq: side.cq,
            recv_cq: side.cq,
            send_depth: 16,
            recv_depth: 0,
        };
        side.engine
            .create_qp(&spec)
            .expect("the destroyed queue pair freed its slot")
    }

    fn join(&mut self) {
        self.joined += 1;
        self.world.keyed = self.world.random(4) == 0;
        let transport = if self.world.random(2) == 0 {
            Transport::Rc
        } else {
            Transport::Uc
        };
        let pd = self.world.sides[B].engine.create_pd().expect("room");
        let local = self.world.sides[A].pd;
        let qps = [
            self.queue_pair(A, local, transport),
            self.queue_pair(B, pd, transport),
        ];
        for side in [A, B] {
            let mut peering = self.world.peering(1 - side, qps[1 - side]);
            peering.refusals_are_fatal = false;
            let connected = self.world.sides[side].engine.connect(qps[side], &peering);
            connected.expect("a connection");
        }
        let tag = (self.joined % 250) as u8 + 1;
        let source = self.world.sides[A].region_of(SOURCE, Access::LOCAL);
        let bank = &mut self.world.sides[A].bank;
        bank.regions.insert(source, vec![tag; SOURCE]);
        let mut lease = Lease {
            tag,
            transport,
            ours: Some(qps[A]),
            theirs: Some((pd, qps[B])),
            region: None,
            life: 0,
            source,
            adds: 0,
            added: 0,
        };
        self.register(&mut lease);
        self.leases.push(lease);
    }

    /// Registers a region for the lease's queue pair, in place of its old one.
    fn register(&mut self, lease: &mut Lease) {
        let Some((pd, qp)) = lease.theirs else {
            return;
        };
        let side = &mut self.world.sides[B];
        let spec = RegionSpec {
            len: REGION,
            access: Access::ALL,
            scope: Scope::Qp(qp),
        };
        let region = side.engine.register(pd, &spec, 0).expect("room");
        let mut memory = vec![lease.tag; REGION];
        memory[..WORD].fill(0);
        assert!(side.bank.regions.insert(region, memory).is_none());
        lease.region = Some((region, side.remote(region)));
        (lease.adds, lease.added) = (0, 0);
        self.lives += 1;
        lease.life = self.lives;
    }

    /// Deregisters the region, perhaps with WRITEs outstanding.
    fn deregister(&mut self, lease: &mut Lease) {
        if let Some((region, _)) = lease.region.take() {
            let side = &mut self.world.sides[B];
            side.engine.deregister(region).expect("known");
            side.bank.regions.remove(&region);
        }
    }

    /// Destroys the client's side.
    fn lose_ours(&mut self, lease: &mut Lease) {
        if let Some(qp) = lease.ours.take() {
            self.world.drain(A);
            let gone = self.world.sides[A].engine.destroy_qp(qp);
            gone.expect("known");
            let side = &mut self.world.sides[A];
            side.engine.deregister(lease.source).expect("known");
            side.bank.regions.remove(&lease.source);
            self.posted.retain(|(of, _)| *of != qp);
        }
    }

    /// Destroys the server's side: the domain and all objects in it.
    fn lose_theirs(&mut self, lease: &mut Lease) {
        if let Some((pd, _)) = lease.theirs.take() {
            self.world.drain(B);
            let side = &mut self.world.sides[B];
            side.engine.destroy_pd(pd).expect("known");
            if let Some((region, _)) = lease.region.take() {
                assert!(side.engine.remote(region).is_err());
                side.bank.regions.remove(&region);
            }
        }
    }

    fn post(&mut self, lease: &mut Lease) {
        // The client does not know yet that the region is gone.
        let at = lease.region.map_or_else(
            || Remote {
                rkey: Rkey(7),
                addr: 0,
            },
            |(_, at)| at,
        );
        let Some(qp) = lease.ours else {
            return;
        };
        if self.world.sides[A].engine.qp_state(qp).ok() != Some(QpState::ReadyToSend)
            || self.posted.iter().filter(|(of, _)| *of == qp).count() == 16
        {
            return;
        }
        let inbox = self.world.sides[A].inbox;
        let into = |offset, len| Local {
            region: inbox,
            offset,
            len,
        };
        let kind = self.world.random(3);
        let len = 1 + self.world.random(4000) as usize;
        let op = match (lease.transport, kind) {
            (Transport::Rc, 0) => {
                lease.adds += 1;
                self.adds.insert(self.next_id, lease.life);
                SendOp::FetchAdd {
                    into: into(40_000, 8),
                    at,
                    add: 1,
                }
            }
            (Transport::Rc, 1) => SendOp::Read {
                into: into(48_000, len),
                from: at.offset(WORD as u64),
            },
            _ => SendOp::Write {
                payload: Payload::Region(Local {
                    region: lease.source,
                    offset: 0,
                    len,
                }),
                to: at.offset(WORD as u64 + self.next_id % 3000),
                imm: None,
            },
        };
        self.world.sides[A].post(qp, &[signaled(self.next_id, op)]);
        self.posted.insert((qp, self.next_id));
        self.next_id += 1;
    }

    fn passes(&mut self, count: usize) {
        for _ in 0..count {
            self.world.step();
            self.collect();
        }
    }

    fn collect(&mut self) {
        while let Some(done) = self.world.sides[A].done.pop_front() {
            let known = self.posted.remove(&(done.qp, done.wr_id));
            assert!(known, "{done:?} of no queue pair that is, or twice");
            if let Some(life) = self.adds.remove(&done.wr_id)
                && done.status == Status::Success
            {
                let lease = self.leases.iter_mut().find(|lease| lease.life == life);
                lease.into_iter().for_each(|lease| lease.added += 1);
            }
        }
        assert!(
            self.world.sides[B].done.is_empty(),
            "B has sent no requests"
        );
    }

    /// Checks that no byte of a lease belongs to another, and that each successful FETCH_ADD was
    /// executed once.
    fn check(&self) {
        for lease in &self.leases {
            let Some((region, _)) = lease.region else {
                continue;
            };
            let memory = &self.world.sides[B].bank.regions[&region];
            let count = u64::from_le_bytes(memory[..WORD].try_into().expect("eight bytes"));
            let (added, adds) = (lease.added, lease.adds);
            assert!(
                (added..=adds).contains(&count),
                "{added} <= {count} <= {adds}"
            );
            let strange = memory[WORD..].iter().find(|byte| **byte != lease.tag);
            assert_eq!(strange, None, "a byte of another lease than {}", lease.tag);
        }
    }

    fn act(&mut self) {
        let count = self.leases.len() as u64;
        if count == 0 || count < LEASES as u64 && self.world.random(20) == 0 {
            return self.join();
        }
        let which = self.world.random(count) as usize;
        let mut lease = self.leases.swap_remove(which);
        match self.world.random(40) {
            0 => self.lose_ours(&mut lease),
            1 => self.lose_theirs(&mut lease),
            2 => {
                // Two leases swap their regions' slots in the table: the slot freed last is reused
                // first.
                let mut other = self.leases.pop();
                other.iter_mut().for_each(|other| self.deregister(other));
                self.deregister(&mut lease);
                if let Some(mut other) = other {
                    self.register(&mut other);
                    self.leases.push(other);
                }
                self.register(&mut lease);
            }
            _ => self.post(&mut lease),
        }
        if lease.ours.is_some() || lease.theirs.is_some() {
            self.leases.push(lease);
        }
    }
}

fn schedule(seed: u64) {
    let mut churn = Churn::new(seed);
    for _ in 0..STEPS {
        churn.act();
        churn.passes(1);
        churn.check();
    }
    for mut lease in std::mem::take(&mut churn.leases) {
        churn.lose_ours(&mut lease);
        churn.lose_theirs(&mut lease);
    }
    churn.passes(100);
    assert!(churn.joined > 50, "{} leases", churn.joined);
    for side in [A, B] {
        let engine = &churn.world.sides[side].engine;
        assert_eq!(engine.poll_timeout(), None, "nothing waits");
    }
    // All resources are free again: the maximum number of leases can be made.
    (0..LEASES).for_each(|_| churn.join());
}

#[test]
fn queue_pairs_created_and_destroyed_at_any_time_affect_no_other() {
    for seed in 1..=8 {
        schedule(seed);
    }
}

/// Of 256 shards each has 65,536 queue pair numbers, of which a random one must be found soon.
#[test]
fn shard_has_half_as_many_queue_pairs_as_numbers() {
    const MOST: usize = 1 << 15;
    let config = Config {
        shards: 256,
        shard: 7,
        limits: PortLimits {
            qps: 1 << 20,
            ..PortLimits::default()
        },
        inline_bytes_max: 0,
        ..Config::default()
    };
    let mut engine = Engine::new(config, [1; 16]);
    let (pd, depth) = (engine.create_pd().unwrap(), 2 * MOST);
    let cq = engine.create_cq(&CqSpec { depth }).unwrap();
    let spec = QpSpec {
        pd,
        transport: Transport::Uc,
        send_cq: cq,
        recv_cq: cq,
        send_depth: 1,
        recv_depth: 1,
    };
    for _ in 0..MOST {
        engine.create_qp(&spec).unwrap();
    }
    assert!(matches!(
        engine.create_qp(&spec),
        Err(ControlError::Limit { limit: MOST, .. })
    ));
}
