//! Set-up of both ends on their ports, domain by domain, as outside of tests.

use std::time::Duration;

use herdwick_conformance::seeded::{SeededDevice, SeededNetwork};
use herdwick_fabric::{ControlError, Device};
use herdwick_herd::{
    AttachError, ClientEnd, ClientSetup, ClientTerms, MachineError, Outcome, RequestPath,
    ServerEnd, ServerTerms, SetupError,
    wire::{Epoch, ReplyStatus, Window},
};
use herdwick_request::{Get, Op, Put};

use crate::{
    fixture::{CLOCK, request},
    model::Model,
};

const WORKERS: usize = 2;
const REPLY_BYTES_MAX: usize = 1040;

fn epoch() -> Epoch {
    Epoch::new(9).unwrap()
}

fn open(device: &SeededDevice, worker: usize) -> ServerEnd<<SeededDevice as Device>::Port> {
    let terms = ServerTerms {
        worker,
        workers: WORKERS,
        clients_max: 1,
        spin: Duration::MAX,
        reply_bytes_max: REPLY_BYTES_MAX,
    };
    ServerEnd::open(device, &terms).unwrap()
}

#[test]
fn client_connects_to_two_workers_and_disconnects() {
    for path in RequestPath::ALL {
        come_together_and_part(path);
    }
}

fn come_together_and_part(path: RequestPath) {
    let network = SeededNetwork::new(3);
    let (ours, theirs) = (network.device(), network.device());
    let mut servers = [open(&ours, 0), open(&ours, 1)];
    let window = Window::new(4).unwrap();
    let terms = ClientTerms {
        path,
        window,
        epoch: epoch(),
        reply_bytes_max: REPLY_BYTES_MAX,
        retry_after: Duration::from_micros(50),
        retry_after_max: Duration::from_millis(1),
        deadline: Duration::from_millis(5),
    };
    let mut fixture = ClientSetup::open(&theirs, WORKERS, &terms).unwrap();
    let mut admitted = Vec::new();
    for server in &mut servers {
        let pd = ours.create_pd(&mut server.port).unwrap();
        let resources = server.allocate(&ours, pd, path, window).unwrap();
        let grant = server.grant(&ours, &resources, Vec::new(), 0).unwrap();
        let their_pd = theirs.create_pd(&mut fixture.port).unwrap();
        let peer = fixture.join(&theirs, their_pd, &grant).unwrap();
        let client = server.admit(&ours, &resources, &peer, epoch(), REPLY_BYTES_MAX);
        admitted.push(client.unwrap());
        let again = server.admit(&ours, &resources, &peer, epoch(), REPLY_BYTES_MAX);
        // It is connected already; a path without a connection has no room for another client.
        let refused = again.expect_err("the client is connected already");
        let full = matches!(
            refused,
            SetupError::Refused(MachineError::Attach(AttachError::Full(1)))
        );
        assert!(
            full || matches!(refused, SetupError::Connect(_)),
            "{refused:?}"
        );
    }
    let mut end = fixture.finish().unwrap();
    let ClientEnd { port, side, .. } = &mut end;
    let value = [7; 700];
    let put = Op::Put(Put {
        value: &value,
        ..Put::default()
    });
    let mut models = [Model::default(), Model::default()];
    let mut now = Duration::ZERO;
    for op in [put, Op::Get(Get::default())] {
        for key in 0..8 {
            side.submit(&request(&[key], op), 0).unwrap();
            side.flush(port, now);
            let mut answer = None;
            while answer.is_none() {
                now += Duration::from_micros(1);
                network.run(now);
                for (server, model) in servers.iter_mut().zip(&mut models) {
                    server.side.pass(&mut server.port, CLOCK, model);
                }
                side.poll(port, now, &mut |_, outcome| {
                    let Outcome::Answered(got) = outcome else {
                        panic!("{outcome:?}")
                    };
                    answer = Some((got.status, got.value.to_vec()));
                });
            }
            let read = if matches!(op, Op::Get(_)) {
                &value[..]
            } else {
                &[]
            };
            assert_eq!(answer, Some((ReplyStatus::Done, read.to_vec())));
        }
    }
    assert!(models.iter().all(|model| model.executed > 0));
    for (server, admitted) in servers.iter_mut().zip(admitted) {
        server.dismiss(&ours, admitted).unwrap();
        assert_eq!(server.side.clients(), 0);
        let twice = server.dismiss(&ours, admitted);
        assert!(matches!(twice, Err(ControlError::Unknown(_))), "{twice:?}");
    }
}
