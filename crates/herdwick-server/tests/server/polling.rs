//! What workers serve besides requests in memory while they poll memory without a pause.

use std::{io::Read, time::Duration};

use crate::common::{Peer, client, connect, crowd::Since, shown, stat, with};
use herdwick_server::{Config, Offers, Timeouts};

const KEYS: usize = 64;
const HOUR: Duration = Duration::from_secs(3600);

/// TCP requests in and across partitions, a changed clock, a flush, an idle connection and orders
/// of leases are served although no worker sleeps for the next hour.
#[test]
fn workers_that_poll_memory_serve_everything_else() {
    for workers in [1, 2] {
        let server = with(Config {
            workers: Some(workers),
            spin: HOUR,
            timeout: Timeouts {
                idle: Some(HOUR / 2),
                ..Timeouts::default()
            },
            offers: Offers {
                debug: true,
                ..Offers::default()
            },
            ..Config::local()
        });
        let mut idle = connect(&server);
        let mut first = client(&server);
        for n in 0..KEYS {
            first.set(format!("k{n}"), &b"1"[..]).unwrap();
        }
        assert_eq!(first.session().unwrap().transport().to_string(), "shm");

        let gets: String = (0..KEYS).map(|n| format!("get k{n}\r\n")).collect();
        let values = |n| format!("VALUE k{n} 0 1\r\n1\r\nEND\r\n");
        let expected: String = (0..KEYS).map(values).collect();
        assert_eq!(
            shown(&server.say(&[gets.as_bytes()])),
            shown(expected.as_bytes())
        );

        server.say(&[b"set brief 0 10 1\r\n1\r\n"]);
        assert!(first.get("brief").unwrap().is_some());
        server.say(&[b"debugtime 3600\r\n"]);
        assert_eq!(first.get("brief").unwrap(), None);
        assert_eq!(idle.read(&mut [0]).unwrap(), 0, "closed");

        server.say(&[b"flush_all\r\n"]);
        for n in 0..KEYS {
            assert_eq!(first.get(format!("k{n}")).unwrap(), None);
        }

        let mut second = client(&server);
        second.set("k", &b"2"[..]).unwrap();
        assert_eq!(first.get("k").unwrap().as_deref(), Some(&b"2"[..]));
        drop(second);
        let since = Since::now();
        while stat(&server, "leases") > 1 {
            assert!(since.elapsed() < Duration::from_secs(60), "not taken back");
        }
        let counters = String::from_utf8(server.say(&[b"stats workers\r\n"])).unwrap();
        assert_eq!(counters.matches(":sleeps 0\r\n").count(), workers);
    }
}
