//! Logins: servers that require a password, and those that must not be sent one.

use std::{fs, path::PathBuf, time::Duration};

use herdwick::{Client, DialError, Error, Login, Options, Put};
use herdwick_server::{Config, Server, spawn};

fn server(users: Option<&str>) -> Server {
    let path: PathBuf = std::env::temp_dir().join(format!("herdwick-login-{}", std::process::id()));
    if let Some(users) = users {
        fs::write(&path, users).unwrap();
    }
    let server = spawn(Config {
        auth: users.map(|_| path.clone()),
        workers: Some(2),
        ..Config::local()
    });
    let _ = fs::remove_file(&path);
    server.unwrap()
}

fn connect(server: &Server, login: Option<&str>, fabric: bool) -> Result<Client, DialError> {
    let options = Options {
        login: login.map(|line| Login::parse(line).unwrap()),
        fabric,
        deadline: Duration::from_secs(60),
        ..Options::default()
    };
    Client::connect_with(&server.address().to_string(), options).map_err(|error| match error {
        Error::Unreachable { reason, .. } => reason,
        other => panic!("{other}"),
    })
}

#[test]
fn login_works_over_every_transport() {
    let server = server(Some("one:two three:four\n"));
    let right = Some("one:two three:four");
    for (fabric, transport) in [(false, "tcp"), (true, "shm")] {
        let mut client = connect(&server, right, fabric).unwrap();
        assert_eq!(client.session().unwrap().transport(), transport);
        client.set(b"key", Put::new(b"value")).unwrap();
        assert_eq!(client.get(b"key").unwrap().unwrap(), b"value");
        for wrong in ["one:two", "two:one", "one:"] {
            let refused = connect(&server, Some(wrong), fabric).unwrap_err();
            assert_eq!(refused, DialError::LoginRefused, "{wrong}");
        }
    }
    assert_eq!(
        connect(&server, None, true).unwrap_err(),
        DialError::LoginNeeded
    );
}

/// A server without users would store the password as an item.
#[test]
fn password_is_sent_only_if_the_server_requests_it() {
    let server = server(None);
    let mut client = connect(&server, Some("one:two"), true).unwrap();
    assert!(client.get(b"login").unwrap().is_none());
    let options = format!("{:?}", Login::parse("one:two"));
    assert!(!options.contains("two"));
}

#[test]
fn login_parses_user_and_password() {
    assert!(Login::parse("nobody").is_none());
    assert!(Login::parse("no body:x").is_none());
    assert_eq!(Login::parse("a:b\n"), Login::parse("a:b"));
    assert_ne!(
        Login::parse("a:b "),
        Login::parse("a:b"),
        "blanks are of it"
    );
}
