//! Requests without an answer: the error that the client returns, and what becomes of the request.

use std::time::Duration;

use crate::common::{Folder, Server, TIMEOUT};
use herdwick::{Cause, Client, Error};
use rustix::process::Signal;

const SHORT: Duration = Duration::from_millis(100);

/// Returns the error of a call that is made while the server is stopped. A busy host may let the
/// deadline of a mutation expire before it is sent: then the client reports that nothing has changed,
/// and `is_right` asks for another call, with twice the time.
fn unanswered<T: std::fmt::Debug>(
    server: &Server,
    client: &mut Client,
    mut call: impl FnMut(&mut Client) -> Result<T, Error>,
    is_right: impl Fn(&Error) -> bool,
) {
    assert!(
        client
            .session()
            .is_some_and(|session| session.transport() == "shm")
    );
    server.freeze();
    let mut deadline = SHORT;
    loop {
        client.set_deadline(deadline);
        match call(client).unwrap_err() {
            error if is_right(&error) => break,
            Error::Timeout(_) if deadline < TIMEOUT => deadline *= 2,
            error => panic!("{error}"),
        }
    }
    server.signal(Signal::CONT);
    client.set_deadline(TIMEOUT);
}

fn is_unknown(error: &Error) -> bool {
    matches!(error, Error::UnknownOutcome(Cause::Timeout))
}

/// `touch` may remove the item, so it is not a read: the client does not report that nothing
/// changed, and does not repeat it.
#[test]
fn unanswered_touch_has_unknown_outcome() {
    let folder = Folder::new();
    let server = Server::start(&folder, 1);
    let mut client = server.client();
    client.set("key", "value").unwrap();
    let touch = |client: &mut Client| client.touch("key", Duration::ZERO);
    unanswered(&server, &mut client, touch, is_unknown);
    client.set("key", "value").unwrap();
    let is_timeout = |error: &Error| matches!(error, Error::Timeout(_));
    unanswered(&server, &mut client, |client| client.get("key"), is_timeout);
    server.stop();
}

/// On shared memory a request that no worker has read is withdrawn.
#[test]
fn unanswered_mutation_is_canceled_before_a_later_read() {
    let folder = Folder::new();
    let server = Server::start(&folder, 1);
    let mut client = server.client();
    client.set("count", "0").unwrap();
    for _ in 0..10 {
        let incr = |client: &mut Client| client.incr("count", 1);
        unanswered(&server, &mut client, incr, is_unknown);
        for _ in 0..100 {
            assert_eq!(client.get("count").unwrap().as_deref(), Some(&b"0"[..]));
        }
    }
    server.stop();
}
