//! A host's port and a client's port in one process: HERD's verbs, sleeping, and refusals.

use herdwick_fabric::{Access, Armed, Completion, Device, Payload, Port, Status, Transport};
use herdwick_mem::Words;
use herdwick_shm::DATAGRAM_BYTES_MAX;

use crate::party::{connect, is_readable, pair, send, write};

#[test]
fn a_request_is_written_and_its_reply_sent() {
    let (mut host, mut client) = pair();
    let lines = host.region(4096, Access::WRITE);
    let (h_uc, g_uc) = (host.qp(Transport::Uc, 0), client.qp(Transport::Uc, 0));
    let (h_ud, g_ud) = (host.qp(Transport::Ud, 0), client.qp(Transport::Ud, 16));
    connect(&mut host, h_uc, &mut client, g_uc);
    let to = host.address(h_ud, &client.endpoint(g_ud));
    let buffers = client.region(16 * 4096, Access::LOCAL);
    client.recvs(g_ud, buffers, 16);
    let at = host.remote(lines).offset(128);
    let line = [1, 2, 3, 4, 5, 6, 7, 8];
    let batch = [write(Payload::Words(&line), at)];
    client.port.post_send(g_uc, &batch).unwrap();
    let span = host.port.region(lines).unwrap();
    assert_eq!(span.load_acquire(16 + 7), 8);
    assert_eq!(span.read_words::<8>(16), line);

    let long: Vec<u8> = (0..1000).map(|n| n as u8).collect();
    let replies = [
        send(Payload::Words(&line[..6]), Some(77), Some(to)),
        send(Payload::Inline(&long), None, Some(to)),
        send(Payload::Inline(&long[..3]), Some(0), Some(to)),
    ];
    host.port.post_send(h_ud, &replies).unwrap();
    let got = client.poll();
    assert_eq!(got.len(), 3);
    let qpn = got[0].source.unwrap();
    assert!(
        got.iter()
            .all(|c| c.status == Status::Success && c.source == Some(qpn))
    );
    assert_eq!(
        (got[0].imm, got[0].byte_len, got[0].wr_id),
        (Some(77), 48, 0)
    );
    assert_eq!(got[0].inline.unwrap().words()[..6], line[..6]);
    assert_eq!((got[1].imm, got[1].byte_len), (None, 1000));
    assert!(got[1].inline.is_none());
    let mut bytes = vec![0; 1000];
    client
        .port
        .region(buffers)
        .unwrap()
        .read_bytes(4096, &mut bytes);
    assert_eq!(bytes, long);
    assert_eq!((got[2].imm, got[2].byte_len), (Some(0), 3));
    assert_eq!((host.drops(), client.drops()), (0, 0));
}

/// A batch is looked up by runs of one destination: each datagram goes to its own, whatever stands before it.
#[test]
fn datagrams_of_a_batch_go_each_to_its_address() {
    let (mut host, mut client) = pair();
    let h_ud = host.qp(Transport::Ud, 0);
    let ends: Vec<_> = (0..3).map(|_| client.qp(Transport::Ud, 16)).collect();
    let buffers = client.region(16 * 4096, Access::LOCAL);
    ends.iter().for_each(|qp| client.recvs(*qp, buffers, 16));
    let to: Vec<_> = ends
        .iter()
        .map(|qp| host.address(h_ud, &client.endpoint(*qp)))
        .collect();
    let order = [0, 0, 1, 0, 2, 2, 1, 1, 0];
    let words: Vec<[u64; 1]> = (0..order.len() as u64).map(|n| [n]).collect();
    let batch: Vec<_> = words
        .iter()
        .zip(order)
        .map(|(word, end)| send(Payload::Words(word), None, Some(to[end])))
        .collect();
    host.port.post_send(h_ud, &batch).unwrap();
    let mut got: Vec<_> = client
        .poll()
        .iter()
        .map(|got| (got.inline.unwrap().words()[0], got.qp))
        .collect();
    got.sort_unstable_by_key(|(number, _)| *number);
    let expected: Vec<_> = (0..).zip(order.map(|end| ends[end])).collect();
    assert_eq!(got, expected);
    // One address that is not the queue pair's refuses the whole batch, wherever it stands.
    let other = host.qp(Transport::Ud, 0);
    let foreign = host.address(other, &client.endpoint(ends[0]));
    for place in 0..batch.len() {
        let mut batch = batch.clone();
        batch[place] = send(Payload::Words(&[7]), None, Some(foreign));
        assert!(host.port.post_send(h_ud, &batch).is_err());
        batch[place] = send(Payload::Words(&[7]), None, None);
        assert!(host.port.post_send(h_ud, &batch).is_err());
    }
    assert!(client.poll().is_empty());
}

/// A batch of WRITEs is looked up by runs of one region. The memory is as if each had been posted alone:
/// a refused one is dropped and counted, and those behind it arrive.
#[test]
fn writes_of_a_batch_reach_each_its_region() {
    let (mut host, mut client) = pair();
    let regions = [64, 128].map(|bytes| host.region(bytes, Access::WRITE));
    let read_only = host.region(64, Access::READ);
    let (h_uc, g_uc) = (host.qp(Transport::Uc, 0), client.qp(Transport::Uc, 0));
    connect(&mut host, h_uc, &mut client, g_uc);
    let [small, large] = regions.map(|region| host.remote(region));
    let refused = host.remote(read_only);
    let words: Vec<[u64; 8]> = (1..=9).map(|n| [n; 8]).collect();
    let whole = |n: usize| Payload::Words(&words[n][..]);
    let batch = [
        write(whole(0), small),
        write(whole(1), small.offset(8)),
        write(whole(2), large),
        write(whole(3), refused),
        write(Payload::Words(&words[4][..1]), large.offset(64)),
        write(Payload::Words(&words[5][..1]), large.offset(76)),
        write(Payload::Words(&words[6][..2]), large.offset(u64::MAX)),
        write(Payload::Words(&words[7][..2]), large.offset(120)),
        write(Payload::Words(&words[8][..2]), small.offset(16)),
    ];
    client.port.post_send(g_uc, &batch).unwrap();
    let found = |region, first, port: &herdwick_shm::ShmPort| {
        port.region(region).unwrap().read_words::<8>(first)
    };
    assert_eq!(found(regions[0], 0, &host.port), [1, 1, 9, 9, 1, 1, 1, 1]);
    assert_eq!(found(regions[1], 0, &host.port), [3; 8]);
    let (low, high) = (6 << 32, 0);
    assert_eq!(
        found(regions[1], 8, &host.port),
        [5, low, high, 0, 0, 0, 0, 0]
    );
    assert_eq!(found(read_only, 0, &host.port), [0; 8]);
    assert_eq!(client.drops(), 4);
    // A region that its owner has closed is not remembered by the next batch.
    host.device.free_region(&mut host.port, regions[0]).unwrap();
    client.port.post_send(g_uc, &batch[..2]).unwrap();
    assert_eq!(client.drops(), 6);
}

#[test]
fn receiver_without_recvs_or_room_loses_only_those_datagrams() {
    let (mut host, mut client) = pair();
    let (h_ud, g_ud) = (host.qp(Transport::Ud, 0), client.qp(Transport::Ud, 12));
    let to = host.address(h_ud, &client.endpoint(g_ud));
    for n in 0..100 {
        let word = [n];
        let batch = [send(Payload::Words(&word), None, Some(to))];
        host.port.post_send(h_ud, &batch).unwrap();
    }
    let full = host.drops();
    assert!(client.poll().is_empty());
    assert_eq!(full + client.drops(), 100);
    assert!((100 - full) >= 12);
}

/// A receiver that polls a few messages at a time has room for all datagrams that it has RECVs for,
/// whatever their length.
#[test]
fn largest_datagrams_have_room_while_there_are_recvs() {
    const RECVS: usize = 48;
    let (mut host, mut client) = pair();
    let (h_ud, g_ud) = (host.qp(Transport::Ud, 0), client.qp(Transport::Ud, RECVS));
    let to = host.address(h_ud, &client.endpoint(g_ud));
    let buffers = client.region(RECVS * 4096, Access::LOCAL);
    let longest = vec![7; DATAGRAM_BYTES_MAX];
    let (mut sent, mut taken) = (0, 0);
    client.recvs(g_ud, buffers, RECVS);
    for round in 0..200 {
        while sent - taken < RECVS {
            let batch = [send(Payload::Inline(&longest), None, Some(to))];
            host.port.post_send(h_ud, &batch).unwrap();
            sent += 1;
        }
        let mut out = [Completion::BLANK; 64];
        let most = 1 + round % 7;
        let count = client.port.poll(client.cq, &mut out[..most]);
        assert_eq!(count, most);
        client.recvs(g_ud, buffers, count);
        taken += count;
    }
    assert_eq!((host.drops(), client.drops()), (0, 0));
}

/// The ring of a connected queue pair has 1 KiB for each RECV, also if all of them together need
/// more than one message of the maximum length.
#[test]
fn messages_of_1_kib_have_room_while_there_are_recvs() {
    const RECVS: usize = 256;
    for transport in [Transport::Rc, Transport::Uc] {
        let (mut host, mut client) = pair();
        let (h, g) = (host.qp(transport, 0), client.qp(transport, RECVS));
        connect(&mut host, h, &mut client, g);
        let buffers = client.region(RECVS * 4096, Access::LOCAL);
        let message = [7; 1024];
        let (mut sent, mut taken) = (0, 0);
        client.recvs(g, buffers, RECVS);
        for round in 0..200 {
            while sent - taken < RECVS {
                let batch = [send(Payload::Inline(&message), None, None)];
                host.port.post_send(h, &batch).unwrap();
                sent += 1;
            }
            let mut out = [Completion::BLANK; 64];
            let most = 1 + round % 7;
            let count = client.port.poll(client.cq, &mut out[..most]);
            assert_eq!(count, most);
            client.recvs(g, buffers, count);
            taken += count;
        }
        assert_eq!((host.drops(), client.drops()), (0, 0));
    }
}

#[test]
fn sleeping_peer_is_woken_once_per_write_and_send() {
    let (mut host, mut client) = pair();
    let lines = host.region(64, Access::WRITE);
    let (h_uc, g_uc) = (host.qp(Transport::Uc, 0), client.qp(Transport::Uc, 0));
    let (h_ud, g_ud) = (host.qp(Transport::Ud, 0), client.qp(Transport::Ud, 16));
    connect(&mut host, h_uc, &mut client, g_uc);
    let to = host.address(h_ud, &client.endpoint(g_ud));
    let at = host.remote(lines);
    for round in 0..3 {
        let word = [round];
        assert_eq!(host.port.arm(host.cq), Armed::Yes);
        assert!(!is_readable(host.port.wait_fd().unwrap()));
        let batch = [write(Payload::Words(&word), at)];
        client.port.post_send(g_uc, &batch).unwrap();
        assert!(is_readable(host.port.wait_fd().unwrap()));
        host.port.disarm(host.cq);
        assert!(!is_readable(host.port.wait_fd().unwrap()));
        client.port.post_send(g_uc, &batch).unwrap();
        assert!(!is_readable(host.port.wait_fd().unwrap()));

        assert_eq!(client.port.arm(client.cq), Armed::Yes);
        let batch = [send(Payload::Words(&word), None, Some(to))];
        host.port.post_send(h_ud, &batch).unwrap();
        assert!(is_readable(client.port.wait_fd().unwrap()));
        assert_eq!(client.port.arm(client.cq), Armed::Pending);
        client.port.disarm(client.cq);
        assert!(!is_readable(client.port.wait_fd().unwrap()));
        assert!(client.poll().is_empty());
    }
    assert_eq!(client.drops(), 3);
}

/// A queue pair that takes the index of a sender that has gone gets none of its unread datagrams
/// ascribed; and an index is free again once they are read.
#[test]
fn unread_datagrams_keep_the_number_of_a_sender_that_has_gone() {
    const SENDERS: usize = 32;
    let (mut host, mut client) = pair();
    let g_ud = client.qp(Transport::Ud, 64);
    let buffers = client.region(64 * 4096, Access::LOCAL);
    let end = client.endpoint(g_ud);
    for _ in 0..3 {
        client.recvs(g_ud, buffers, SENDERS);
        let mut numbers = Vec::new();
        for n in 0..SENDERS as u64 {
            let h_ud = host.qp(Transport::Ud, 0);
            let to = host.address(h_ud, &end);
            let word = [n];
            let batch = [send(Payload::Words(&word), None, Some(to))];
            host.port.post_send(h_ud, &batch).unwrap();
            numbers.push(host.device.source(&host.endpoint(h_ud)).unwrap());
            host.device.destroy_qp(&mut host.port, h_ud).unwrap();
        }
        // All indices are those of unread datagrams.
        let one_more = host.qp(Transport::Ud, 0);
        let refused = host.device.create_address(&mut host.port, one_more, &end);
        assert!(refused.is_err());
        let got = client.poll();
        let sources: Vec<_> = got.iter().map(|got| got.source.unwrap()).collect();
        assert_eq!(sources, numbers);
        host.address(one_more, &end);
        host.device.destroy_qp(&mut host.port, one_more).unwrap();
    }
    assert_eq!((host.drops(), client.drops()), (0, 0));
}
