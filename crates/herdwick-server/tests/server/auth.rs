//! Authentication by users and passwords (`-Y`) in the text protocol.

use std::path::PathBuf;

use crate::common::{Peer, normalised, shown, with};
use herdwick_server::{AuthError, Config, Server, StartError, spawn};

/// A users' file for one test, removed on drop.
struct Users(PathBuf);

impl Users {
    fn new(name: &str, text: &str) -> Self {
        let name = format!("herdwick-users-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn config(&self) -> Config {
        Config {
            auth: Some(self.0.clone()),
            workers: Some(2),
            ..Config::local()
        }
    }
}

impl Drop for Users {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn ask(server: &Server, input: &str) -> String {
    shown(&normalised(&server.say(&[input.as_bytes()])))
}

/// M46: no command is executed before the right password; the replies are memcached's.
#[test]
fn m46_nothing_is_served_before_authentication() {
    let users = Users::new("m46", "one:two\nthree:four:five\r\n");
    let server = with(users.config());
    let refused = "CLIENT_ERROR unauthenticated\\r\\n";
    let failed = "CLIENT_ERROR authentication failure\\r\\n";
    assert_eq!(ask(&server, "get a b c\r\n"), refused);
    assert_eq!(
        ask(&server, "version\r\nstats\r\nhello herdwick/0\r\n").len(),
        3 * refused.len()
    );
    assert_eq!(ask(&server, "\r\n"), "", "hung up on");
    assert_eq!(ask(&server, "\u{80}\0\0\0\0\0\0\0\0\0\0\0"), "", "binary");
    assert_eq!(
        ask(&server, "set x 0 0 7\r\none two\r\nversion\r\n"),
        "STORED\\r\\nVERSION x\\r\\n"
    );
    assert_eq!(
        ask(&server, "set x 0 0 15\r\nthree four:five\r\nversion\r\n"),
        "STORED\\r\\nVERSION x\\r\\n"
    );
    // No oracle: an unknown user gets the same reply as a wrong password.
    assert_eq!(
        ask(&server, "set x 0 0 7\r\none six\r\nversion\r\n"),
        format!("{failed}{refused}")
    );
    assert_eq!(ask(&server, "set x 0 0 7\r\nsix two\r\n"), failed);
    assert_eq!(ask(&server, "set x 0 0 6\r\none tw\r\n"), failed);
    assert_eq!(
        ask(&server, "set x 0 0 6\r\nonetwo\r\n"),
        "CLIENT_ERROR bad authentication token format\\r\\n"
    );
    assert_eq!(
        ask(&server, "set x 0 0 2147483648\r\n"),
        "CLIENT_ERROR auth token too long\\r\\n"
    );
    assert_eq!(ask(&server, &"s".repeat(3000)), "", "endless");
    // Half a token, and ten thousand attempts on one connection.
    assert_eq!(ask(&server, "set x 0 0 7\r\none t"), "");
    let tries = "set x 0 0 7\r\none six\r\n".repeat(10_000);
    let said = server.say(&[tries.as_bytes()]);
    assert_eq!(said.len(), 10_000 * (failed.len() - 2));
    let stats = ask(&server, "set x 0 0 7\r\none two\r\nstats\r\n");
    assert!(
        stats.contains("auth_cmds 10006\\r\\nSTAT auth_errors 10003"),
        "{stats}"
    );
}

/// The users can be reloaded while the server runs; an invalid file changes nothing.
#[test]
fn users_are_reloaded() {
    let users = Users::new("again", "one:two");
    let server = with(users.config());
    let one = "set x 0 0 7\r\none two\r\n";
    assert_eq!(ask(&server, one), "STORED\\r\\n");
    std::fs::write(&users.0, "two:three").unwrap();
    server.reload_users().unwrap();
    assert_eq!(ask(&server, "set x 0 0 9\r\ntwo three\r\n"), "STORED\\r\\n");
    assert!(ask(&server, one).starts_with("CLIENT_ERROR"));
    std::fs::write(&users.0, "nobody").unwrap();
    assert!(matches!(
        server.reload_users(),
        Err(AuthError::Line { line: 1, .. })
    ));
    assert_eq!(ask(&server, "set x 0 0 9\r\ntwo three\r\n"), "STORED\\r\\n");
}

#[test]
fn server_with_unreadable_users_does_not_start() {
    for (name, text) in [("none", ""), ("nine", "a:b\n".repeat(9).as_str())] {
        let users = Users::new(name, text);
        let Err(StartError::Auth(AuthError::Count { .. })) = spawn(users.config()) else {
            panic!("{name}");
        };
    }
    let missing = Config {
        auth: Some("/nowhere/users".into()),
        ..Config::local()
    };
    let Err(error) = spawn(missing) else {
        panic!("no users");
    };
    assert!(error.to_string().contains("-Y"), "{error}");
}
