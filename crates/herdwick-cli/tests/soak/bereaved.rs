//! Clients of a server that is killed: each call ends by its deadline.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    process::Child,
    time::Duration,
};

use herdwick::{Client, Error, Options};
use rustix::process::Signal;

use crate::{
    common::{Chance, Clock, Folder, Server, TIMEOUT, other_end, signal_to, start},
    stage::rest,
};

/// Clients of each server. All but one are stopped when it dies, and notice everything at once.
const CLIENTS: usize = 6;
const SERVERS: usize = 3;
const DEADLINE: Duration = Duration::from_secs(15);

/// The other process: reads many keys at once, repeatedly, until the server is gone.
#[test]
#[ignore = "the other process of the tests here"]
fn caller() {
    let Some(mut stream) = other_end() else {
        return;
    };
    let mut address = String::new();
    let mut byte = [0];
    while stream.read(&mut byte).unwrap() == 1 && byte != *b"\n" {
        address.push(byte[0].into());
    }
    let options = Options {
        deadline: DEADLINE,
        window: 1,
        ..Options::default()
    };
    let mut client = Client::connect_with(&address, options).unwrap();
    assert_eq!(
        client.session().map(herdwick::Session::transport),
        Some("shm")
    );
    let keys: Vec<String> = (0..64).map(|n| format!("key:{n}")).collect();
    stream.write_all(&[1]).unwrap();
    loop {
        match client.get_many(&keys) {
            Ok(items) => assert!(items.iter().all(Option::is_none)),
            Err(Error::Unreachable { .. } | Error::Disconnected(_) | Error::Timeout(_)) => return,
            Err(other) => panic!("{other}"),
        }
    }
}

/// A process that makes calls.
struct Caller {
    child: Child,
    stream: UnixStream,
}

impl Caller {
    fn new(address: &str) -> Self {
        let (child, mut stream) = start("bereaved::caller");
        writeln!(stream, "{address}").unwrap();
        Self { child, stream }
    }

    fn until_calling(&mut self) {
        self.stream.read_exact(&mut [0]).unwrap();
    }

    fn has_ended(&mut self) -> bool {
        let status = self.child.try_wait().unwrap();
        assert!(status.is_none_or(|status| status.success()), "{status:?}");
        status.is_some()
    }
}

/// Returns how many calls do not end, and kills their processes.
fn stuck(callers: &mut [Caller]) -> usize {
    let clock = Clock::start();
    while clock.now() < DEADLINE + TIMEOUT && !callers.iter_mut().all(Caller::has_ended) {
        rest(Duration::from_millis(5));
    }
    let mut stuck = 0;
    for caller in callers {
        if !caller.has_ended() {
            stuck += 1;
            caller.child.kill().unwrap();
            caller.child.wait().unwrap();
        }
    }
    stuck
}

/// Kills servers while their clients are in the middle of calls.
pub(crate) fn kill_servers(seed: u64) {
    let mut chance = Chance::new(seed);
    for _ in 0..SERVERS {
        let folder = Folder::new();
        let server = Server::start_at(&folder, 2);
        let address = server.address.clone();
        let mut callers: Vec<Caller> = (0..CLIENTS).map(|_| Caller::new(&address)).collect();
        callers.iter_mut().for_each(Caller::until_calling);
        rest(Duration::from_millis(chance.below(50) as u64));
        let stopped = &callers[1..];
        stopped
            .iter()
            .for_each(|caller| signal_to(&caller.child, Signal::STOP));
        rest(Duration::from_millis(20 + chance.below(30) as u64));
        server.kill();
        stopped
            .iter()
            .for_each(|caller| signal_to(&caller.child, Signal::CONT));
        let stuck = stuck(&mut callers);
        assert_eq!(
            stuck, 0,
            "calls of {CLIENTS} that never end, as the server was killed"
        );
    }
}
