//! An absolute exptime is over when its second begins, by the clock of the host; beside a memcached,
//! which may take a second more.

use std::time::{Duration, SystemTime};

use crate::common::{Memcached, Peer, ours};

/// By how much the clocks of the test and of the server may differ: what the host's clock is slewed
/// by while the test runs.
const SLEW: Duration = Duration::from_millis(50);

#[expect(clippy::disallowed_methods, reason = "what exptimes are compared with")]
fn unix_time() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
}

fn is_there(peer: &impl Peer) -> bool {
    match &peer.say(&[b"mg key\r\n"])[..] {
        b"HD\r\n" => true,
        b"EN\r\n" => false,
        other => panic!("{}", other.escape_ascii()),
    }
}

fn set(peer: &impl Peer, exptime: u64) {
    let said = peer.say(&[format!("set key 0 {exptime} 1\r\nx\r\n").as_bytes()]);
    assert_eq!(said, b"STORED\r\n");
}

#[test]
fn an_absolute_exptime_is_over_when_its_second_begins() {
    let Some(memcached) = Memcached::start() else {
        return;
    };
    // Several servers, as each starts at another part of a second.
    for _ in 0..herdwick_check::length(1, 3) {
        let server = ours(2);
        let over = unix_time().as_secs() + 2;
        set(&server, over);
        set(&memcached, over);
        let end = Duration::from_secs(over);
        let (mut gone, mut memcached_gone) = (false, false);
        while !gone || !memcached_gone {
            let asked = unix_time();
            gone = !is_there(&server);
            let answered = unix_time();
            assert!(!gone || answered + SLEW >= end, "{answered:?} is early");
            assert!(gone || asked < end + SLEW, "{asked:?} is late");
            memcached_gone = !is_there(&memcached);
            assert!(!memcached_gone || answered + Duration::from_secs(2) >= end);
        }
        server.shutdown();
    }
}
