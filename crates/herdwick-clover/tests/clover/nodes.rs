//! Which data nodes a metadata server begins with: those that belong together, and no others.

use std::time::Duration;

use herdwick_clover::{
    ClientEnd, ClientOptions, Failure, Grants, NodeEnd, NodeOptions, OptionsError, ServerEnd,
    SetupError,
    layout::{BadNodes, Geometry, Link, MEMBER_WORD, Next, Place, STORE_WORD},
};
use herdwick_conformance::seeded::{SeededDevice, SeededNetwork};
use herdwick_fabric::{Device, PortLimits, Status};

use crate::fixture::{self, Kept, SECRET, World, enter, geometry, key, serve};

const GEOMETRY: fn() -> Geometry = || geometry(64, 60, 100);

fn world(nodes: usize) -> World<SeededNetwork> {
    let mut world = World::new(SeededNetwork::new(1), (nodes, 1), GEOMETRY());
    for n in 0..10 {
        assert_eq!(world.put(0, &key(n), b"kept"), Kept::Done);
    }
    world
}

fn blank(world: &World<SeededNetwork>) -> NodeEnd<SeededDevice> {
    let options = NodeOptions {
        geometry: GEOMETRY(),
        clients: 8,
        secret: SECRET,
    };
    NodeEnd::open(world.fabric.device(), options).unwrap()
}

/// Starts another server on the nodes as they are; `Err`: it refuses them.
fn restart(world: &mut World<SeededNetwork>) -> Result<usize, BadNodes> {
    world.clients.clear();
    for node in &mut world.nodes {
        node.remove_all().unwrap();
    }
    let devices = (world.fabric.device(), world.fabric.device());
    world.server = serve(&mut world.nodes, devices, &world.server_options);
    for _ in 0..100_000 {
        let server = world.server.server();
        if let Some(bad) = server.refused() {
            return Err(bad);
        }
        if server.is_ready() {
            return Ok(server.keys());
        }
        world.pass();
    }
    panic!("no end of the start");
}

/// A data node that comes back has lost everything: it must not be what the others are copied from, nor
/// count as their replica.
#[test]
fn a_node_that_comes_back_blank_is_refused_and_takes_no_key_with_it() {
    for lost in [0, 1] {
        let mut world = world(2);
        let fresh = blank(&world);
        let old = std::mem::replace(&mut world.nodes[lost], fresh);
        assert_eq!(restart(&mut world), Err(BadNodes::Blank(lost)));
        // Without it all is there.
        let fresh = world.nodes.remove(lost);
        assert_eq!(restart(&mut world), Ok(10));
        world.join();
        assert_eq!(world.get(0, &key(3)), Kept::Value(b"kept".to_vec()));
        // With it, still not; nor with the memory from before, which lacks what was stored since.
        world.nodes.insert(lost, fresh);
        assert_eq!(restart(&mut world), Err(BadNodes::Blank(lost)));
        world.nodes[lost] = old;
        assert_eq!(restart(&mut world), Err(BadNodes::LeftOut(lost)));
    }
}

#[test]
fn nodes_of_another_store_or_in_another_order_are_refused() {
    let mut one = world(2);
    one.nodes.swap(0, 1);
    assert_eq!(restart(&mut one), Err(BadNodes::Order(1)));
    one.nodes.swap(0, 1);
    assert_eq!(restart(&mut one), Ok(10));
    let mut other = world(2);
    // The number comes from the key of the hashes, which the tests do not draw.
    poke(&mut other, 1, STORE_WORD, 77);
    assert_eq!(restart(&mut other), Err(BadNodes::Foreign(1)));
    poke(&mut other, 1, 0, 1);
    let refused = restart(&mut other).unwrap_err();
    assert!(matches!(refused, BadNodes::Header(1, _)), "{refused}");
}

/// Overwrites a word of a node's memory, as a client that may write.
fn poke(world: &mut World<SeededNetwork>, node: usize, index: usize, word: u64) {
    let poker = fixture::poke(world, (node, Some(&SECRET)), (index, word));
    assert_eq!(poker.status, Status::Success);
    world.nodes[node].remove(poker.id).unwrap();
}

/// A first server that dies while it numbers the nodes leaves nothing that stops the next.
#[test]
fn a_start_that_dies_between_headers_is_taken_up() {
    for (store, member) in [(true, false), (true, true), (false, false)] {
        let mut world = world(2);
        // Nothing is stored yet, and the second node lacks its number, or more.
        for node in 0..2 {
            let fresh = blank(&world);
            world.nodes[node] = fresh;
        }
        assert_eq!(restart(&mut world), Ok(0));
        poke(&mut world, 1, MEMBER_WORD, 0);
        if !member {
            poke(&mut world, 0, MEMBER_WORD, 0);
        }
        if !store {
            poke(&mut world, 1, STORE_WORD, 0);
        }
        assert_eq!(restart(&mut world), Ok(0));
        world.join();
        assert_eq!(world.put(0, &key(1), b"x"), Kept::Done);
    }
}

/// A replica was overwritten: a PUT that one node names and another one does not is neither done nor
/// without effect, and its entry is not used for another one.
#[test]
fn a_put_that_the_nodes_disagree_about_has_an_unknown_outcome() {
    let mut world = world(2);
    // The entries of a batch are used from its end.
    let (target, foreign) = (GEOMETRY().target_of(15), GEOMETRY().target_of(40));
    let place = |target| Place {
        target,
        version: 0,
        tombstone: false,
    };
    let link = Link {
        next: Some(Next::Entry(place(foreign))),
        ..place(target).unlinked()
    };
    poke(&mut world, 1, target as usize * 8, link.word());
    assert_eq!(
        world.put(0, &key(0), b"new"),
        Kept::Failed(Failure::Divided)
    );
    assert_eq!(world.clients[0].end.client.failed(), None);
    for n in 1..10 {
        assert_eq!(world.put(0, &key(n), b"other"), Kept::Done);
        assert_eq!(world.get(0, &key(n)), Kept::Value(b"other".to_vec()));
    }
    // Readers know the key by its own name alone.
    let found = world.get(0, &key(0));
    assert!(
        found == Kept::Value(b"kept".to_vec()) || found == Kept::Contended,
        "{found:?}"
    );
}

/// Keys whose chains make no sense hold up no others.
#[test]
fn broken_keys_are_passed_by() {
    let geometry = geometry(128, 400, 100);
    let mut world = World::new(SeededNetwork::new(3), (1, 1), geometry);
    // The passes of a PUT and until what it superseded is out of the chain.
    let collect = |world: &mut World<SeededNetwork>, name: &[u8]| {
        let before = (world.server.server().counters().superseded, world.now);
        assert_eq!(world.put(0, name, b"x"), Kept::Done);
        while world.server.server().counters().superseded == before.0 {
            world.pass();
        }
        (world.now - before.1).as_micros()
    };
    assert_eq!(world.put(0, &key(0), b"x"), Kept::Done);
    let usual = (0..20).map(|_| collect(&mut world, &key(0))).max().unwrap();
    for n in 1..=100 {
        assert_eq!(world.put(0, &key(n), b"x"), Kept::Done);
    }
    for number in 0..150 {
        poke(
            &mut world,
            0,
            geometry.target_of(number) as usize * 8,
            u64::MAX,
        );
    }
    let live = [b'v'; 100];
    assert_eq!(world.put(0, &live, b"x"), Kept::Done);
    for _ in 0..100_000 {
        world.pass();
    }
    assert!(world.server.server().counters().corrupt >= 100);
    let now = (0..20).map(|_| collect(&mut world, &live)).max().unwrap();
    assert!(now <= usual + 2, "{usual} passes, and then {now}");
}

/// A client that writes some of the nodes alone would leave the others behind.
#[test]
fn a_client_needs_all_nodes_in_their_order() {
    for chosen in [&[0_usize, 1][..], &[0], &[1], &[1, 0]] {
        let mut world = world(2);
        let device = world.fabric.device();
        let mut port = ClientEnd::open_port(&device, 2).unwrap();
        let server = &mut world.server;
        let room = ServerEnd::<SeededDevice>::pd_room();
        let pd = server
            .device
            .create_pd_for(&mut server.port, &room)
            .unwrap();
        let ticket = server.device.export_pd(&mut server.port, pd).unwrap();
        let (_, grant) = server.admit(pd, Some(&SECRET)).unwrap();
        let pd = device.import_pd(&mut port, ticket).unwrap();
        let nodes = chosen.iter().map(|node| {
            let entered = enter(&mut world.nodes[*node], (&device, &mut port), Some(&SECRET));
            (entered.1, entered.2)
        });
        let grants = Grants {
            nodes: nodes.collect(),
            server: (pd, grant),
        };
        let opened = ClientEnd::open(device.clone(), (port, grants), &world.client_options);
        match opened {
            Ok(_) => assert_eq!(chosen, [0, 1]),
            Err(refused) => assert!(
                chosen != [0, 1]
                    && matches!(refused, SetupError::Refused(OptionsError::NotAllNodes)),
                "{chosen:?}: {refused}"
            ),
        }
    }
}

/// A key that is created again in its old slot: who remembers the slot, and who asks, see it at the same
/// time, and only when all nodes have it. It finds these bugs when they are planted: `Server::find` says
/// that a key that is being created is not there; `Server::create` writes the shortcut of the first node
/// with the others'.
#[test]
fn a_key_is_seen_when_all_nodes_have_it_and_not_before() {
    let mut world = World::new(SeededNetwork::new(2), (2, 3), GEOMETRY());
    assert_eq!(world.put(0, &key(1), b"old"), Kept::Done);
    assert_eq!(world.get(1, &key(1)), Kept::Value(b"old".to_vec()));
    assert_eq!(world.delete(0, &key(1)), Kept::Done);
    while world.server.server().keys() > 0 {
        world.pass();
    }
    // A free list, and the end of the calls for it, before the link is cut.
    assert_eq!(world.put(0, &key(2), b"else"), Kept::Done);
    assert_eq!(world.delete(0, &key(2)), Kept::Done);
    while world.server.server().keys() > 0 {
        world.pass();
    }
    let (server, second) = (world.server.node_port.party(), world.nodes[1].port.party());
    world.fabric.partition(server, second);
    let now = world.now;
    (world.clients[0].end.client.put(&key(1), b"new", 1, now)).unwrap();
    let creates = world.server.server().counters().calls;
    for _ in 0..200 {
        assert_eq!(world.pass(), []);
    }
    assert!(world.server.server().counters().calls > creates);
    for (client, user) in [(1, 2), (2, 3)] {
        world.clients[client].end.client.get(&key(1), user).unwrap();
    }
    for _ in 0..200 {
        assert_eq!(world.pass(), []);
    }
    world.fabric.heal(server, second);
    let mut answers = Vec::new();
    for _ in 0..20_000 {
        answers.extend(world.pass());
    }
    answers.sort_by_key(|(_, user, _)| *user);
    let new = Kept::Value(b"new".to_vec());
    assert_eq!(
        answers,
        [(0, 1, Kept::Done), (1, 2, new.clone()), (2, 3, new)]
    );
}

/// A node that cannot end a session reports it, and keeps it.
#[test]
fn a_session_that_cannot_be_ended_is_kept() {
    let mut world = world(1);
    let device = world.fabric.device();
    let mut port = device.open_port(&PortLimits::default()).unwrap();
    let node = &mut world.nodes[0];
    let room = NodeEnd::<SeededDevice>::pd_room();
    let pd = node.device.create_pd_for(&mut node.port, &room).unwrap();
    let ticket = node.device.export_pd(&mut node.port, pd).unwrap();
    device.import_pd(&mut port, ticket).unwrap();
    let (id, _) = node.admit(pd, Some(&SECRET)).unwrap();
    let clients = node.clients();
    // The provider refuses to destroy what it does not have.
    node.device.destroy_pd(&mut node.port, pd).unwrap();
    node.remove(id).unwrap_err();
    assert_eq!(node.clients(), clients);
    node.remove_all().unwrap_err();
    // Others can be ended.
    let other = world.clients[0].node_ids[0];
    world.nodes[0].remove(other).unwrap();
    assert_eq!(world.nodes[0].clients(), clients - 1);
}

#[test]
fn times_of_0_are_refused() {
    let mut world = world(1);
    let refuse = |world: &mut World<SeededNetwork>, change: fn(&mut ClientOptions)| {
        let mut options = world.client_options;
        change(&mut options);
        let device = world.fabric.device();
        let mut port = ClientEnd::open_port(&device, 1).unwrap();
        let server = &mut world.server;
        let room = ServerEnd::<SeededDevice>::pd_room();
        let pd = (server.device)
            .create_pd_for(&mut server.port, &room)
            .unwrap();
        let ticket = server.device.export_pd(&mut server.port, pd).unwrap();
        let (_, grant) = server.admit(pd, Some(&SECRET)).unwrap();
        let pd = device.import_pd(&mut port, ticket).unwrap();
        let (_, node, node_grant) = enter(&mut world.nodes[0], (&device, &mut port), Some(&SECRET));
        let grants = Grants {
            nodes: vec![(node, node_grant)],
            server: (pd, grant),
        };
        let opened = ClientEnd::open(device, (port, grants), &options);
        opened.err().map(|refused| refused.to_string())
    };
    for (what, change) in [
        (
            "publish",
            (|options| options.publish = Duration::ZERO) as fn(&mut ClientOptions),
        ),
        ("entry_wait", |options| options.entry_wait = Duration::ZERO),
        ("timeout", |options| options.timeout = Duration::ZERO),
    ] {
        let refused = refuse(&mut world, change).unwrap();
        assert!(refused.contains(what), "{refused}");
    }
}
