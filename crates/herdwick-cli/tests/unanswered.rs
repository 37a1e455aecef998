//! Requests without an answer: the error that the client returns, and what becomes of the request.

mod common;

use std::time::Duration;

use common::{Folder, Server, TIMEOUT};
use herdwick::{Cause, Client, Error};
use rustix::process::Signal;

const SHORT: Duration = Duration::from_millis(100);

/// Returns the error of a call that is made while the server is stopped.
fn unanswered<T: std::fmt::Debug>(
    server: &Server,
    client: &mut Client,
    call: impl FnOnce(&mut Client) -> Result<T, Error>,
) -> Error {
    assert!(
        client
            .session()
            .is_some_and(|session| session.transport() == "shm")
    );
    client.set_deadline(SHORT);
    server.freeze();
    let error = call(client).unwrap_err();
    server.signal(Signal::CONT);
    client.set_deadline(TIMEOUT);
    error
}

/// `touch` may remove the item, so it is not a read: the client does not report that nothing
/// changed, and does not repeat it.
#[test]
fn unanswered_touch_has_unknown_outcome() {
    let folder = Folder::new();
    let server = Server::start(&folder, 1);
    let mut client = server.client();
    client.set("key", "value").unwrap();
    let error = unanswered(&server, &mut client, |client| {
        client.touch("key", Duration::ZERO)
    });
    assert!(
        matches!(error, Error::UnknownOutcome(Cause::Timeout)),
        "{error}"
    );
    client.set("key", "value").unwrap();
    let error = unanswered(&server, &mut client, |client| client.get("key"));
    assert!(matches!(error, Error::Timeout(_)), "{error}");
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
        let error = unanswered(&server, &mut client, |client| client.incr("count", 1));
        assert!(
            matches!(error, Error::UnknownOutcome(Cause::Timeout)),
            "{error}"
        );
        for _ in 0..100 {
            assert_eq!(client.get("count").unwrap().as_deref(), Some(&b"0"[..]));
        }
    }
    server.stop();
}
