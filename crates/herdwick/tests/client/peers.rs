//! The same calls give the same results on every server that speaks memcached's protocol.

use std::time::Duration;

use herdwick::{Answer, Cas, Client, Error, Key, Op, Options, Put, Session, Ttl};
use herdwick_server::Config;

fn bytes(text: &str) -> Option<Vec<u8>> {
    Some(text.as_bytes().to_vec())
}

fn stores(client: &mut Client) -> Result<(), Error> {
    assert_eq!(client.get("a")?, None);
    assert!(!client.replace("a", "x")?);
    assert!(!client.append("a", "x")?);
    assert!(client.add("a", Put::new("one").flags(7))?);
    assert!(!client.add("a", "two")?);
    assert!(client.append("a", "<")?);
    assert!(client.prepend("a", ">")?);
    let item = client.gets("a")?.unwrap();
    assert_eq!((&*item.value, item.flags), (&b">one<"[..], 7));
    assert!(client.replace("a", "\r\nEND\r\n\0")?);
    assert_eq!(client.get("a")?, bytes("\r\nEND\r\n\0"));
    client.set("a", "")?;
    assert_eq!(client.get("a")?, bytes(""));
    assert!(client.delete("a")?);
    assert!(!client.delete("a")?);
    Ok(())
}

fn versions(client: &mut Client) -> Result<(), Error> {
    client.set("v", "1")?;
    let first = client.gets("v")?.unwrap().version;
    assert_eq!(client.cas("v", "2", first)?, Cas::Stored);
    assert_eq!(client.cas("v", "3", first)?, Cas::Changed);
    assert_eq!(client.cas("none", "3", first)?, Cas::Missing);
    assert_eq!(client.get("v")?, bytes("2"));
    Ok(())
}

fn numbers(client: &mut Client) -> Result<(), Error> {
    assert_eq!(client.incr("n", 1)?, None);
    client.set("n", "18446744073709551615")?;
    assert_eq!(client.incr("n", 2)?, Some(1));
    assert_eq!(client.decr("n", 5)?, Some(0));
    client.set("n", "word")?;
    assert!(matches!(client.incr("n", 1), Err(Error::NotNumeric)));
    assert_eq!(
        client.get("n")?,
        bytes("word"),
        "and the connection continues"
    );
    Ok(())
}

fn times(client: &mut Client) -> Result<(), Error> {
    let month = Duration::from_secs(31 * 24 * 60 * 60);
    for ttl in [Ttl::Never, Ttl::Seconds(1000), month.into()] {
        client.set("t", Put::new("x").ttl(ttl))?;
        assert_eq!(client.get("t")?, bytes("x"), "{ttl:?}");
    }
    client.set("t", Put::new("x").ttl(Ttl::Seconds(0)))?;
    assert_eq!(client.get("t")?, None);
    assert!(!client.touch("t", month)?);
    client.set("t", "x")?;
    assert!(client.touch("t", month)?);
    assert_eq!(client.get("t")?, bytes("x"));
    assert!(client.touch("t", Duration::ZERO)?);
    assert_eq!(client.get("t")?, None);
    Ok(())
}

fn many(client: &mut Client) -> Result<(), Error> {
    let keys: Vec<String> = (0..10_000).map(|n| format!("many:{n}")).collect();
    for key in keys.iter().step_by(3) {
        client.set(key, Put::new(key).flags(3))?;
    }
    let items = client.get_many(&keys)?;
    assert_eq!(items.len(), keys.len());
    for (index, (key, item)) in keys.iter().zip(items).enumerate() {
        let value = item.map(|item| item.value);
        assert_eq!(
            value,
            (index % 3 == 0).then(|| key.clone().into_bytes()),
            "{key}"
        );
    }
    let twice = client.get_many(&["many:0", "many:1", "many:0"])?;
    assert_eq!(
        twice.iter().map(Option::is_some).collect::<Vec<_>>(),
        [true, false, true]
    );
    assert_eq!(client.get_many::<&str>(&[])?, []);
    Ok(())
}

fn sizes(client: &mut Client) -> Result<(), Error> {
    let large = vec![b'v'; 1_000_000];
    client.set("large", &large)?;
    assert_eq!(client.get("large")?.as_deref(), Some(&large[..]));
    let too_large = vec![b'v'; 1 << 20];
    assert!(matches!(
        client.set("large", &too_large),
        Err(Error::TooLarge)
    ));
    assert_eq!(client.get("large")?, None, "a refused set removes");
    let longest = [b'k'; 250];
    client.set(longest, "x")?;
    assert_eq!(client.get(longest)?, bytes("x"));
    Ok(())
}

fn server_wide(client: &mut Client) -> Result<(), Error> {
    assert!(client.version()?.contains('.'));
    client.set("f", "x")?;
    let stats = client.stats("")?;
    let items = stats.iter().find(|(name, _)| name == "curr_items").unwrap();
    assert_ne!(items.1, "0");
    assert!(matches!(
        client.stats("no such thing"),
        Err(Error::Server(_))
    ));
    client.flush_all()?;
    assert_eq!(client.get("f")?, None);
    Ok(())
}

/// Keeps ten thousand increments in flight on one session.
fn pipelined(address: &str, options: &Options) -> Result<(), Error> {
    const COUNT: u64 = 10_000;
    let mut client = Client::connect_with(address, options.clone())?;
    client.set("p", "0")?;
    let mut session = Session::dial(&address.parse()?, options).unwrap();
    let (key, now) = (Key::new(b"p")?, Duration::ZERO);
    let (mut submitted, mut answers) = (0, Vec::new());
    while answers.len() < COUNT as usize {
        while submitted < COUNT && session.submit(now, key, &Op::Incr(1)).is_some() {
            submitted += 1;
        }
        session.poll(now, &mut |_, answer| match answer {
            Answer::Number(number) => answers.push(number),
            other => panic!("{other:?}"),
        });
        session.wait(now);
    }
    assert_eq!(answers, (1..=COUNT).collect::<Vec<_>>());
    Ok(())
}

fn converse(address: &str) {
    for fabric in [false, true] {
        let options = by(fabric);
        let mut client = Client::connect_with(address, options.clone()).unwrap();
        for part in [stores, versions, numbers, times, many, sizes, server_wide] {
            part(&mut client).unwrap();
        }
        pipelined(address, &options).unwrap();
    }
}

fn by(fabric: bool) -> Options {
    Options {
        deadline: Duration::from_secs(60),
        fabric,
        ..Options::default()
    }
}

#[test]
fn stock_memcached() {
    if let Some(server) = crate::servers::Memcached::start() {
        converse(&server.address());
    }
}

#[test]
fn our_own_server() {
    for workers in [1, 3] {
        let config = Config {
            workers: Some(workers),
            ..Config::local()
        };
        let server = herdwick_server::spawn(config).unwrap();
        converse(&server.address().to_string());
    }
}

#[test]
fn value_stored_over_one_transport_is_read_over_another() {
    let server = herdwick_server::spawn(Config::local()).unwrap();
    let address = server.address().to_string();
    let transports = [false, true].map(|fabric| {
        let session = Session::dial(&address.parse().unwrap(), &by(fabric)).unwrap();
        session.transport()
    });
    assert_eq!(transports, ["tcp", "shm"]);
    let mut clients =
        [false, true].map(|fabric| Client::connect_with(&address, by(fabric)).unwrap());
    for writer in [0, 1] {
        let reader = 1 - writer;
        let hour = Duration::from_secs(3600);
        let put = Put::new("value").flags(0xfeed_beef).ttl(hour);
        clients[writer].set("k", put).unwrap();
        let item = clients[reader].gets("k").unwrap().unwrap();
        assert_eq!((&*item.value, item.flags), (&b"value"[..], 0xfeed_beef));
        assert_eq!(
            clients[writer].cas("k", "7", item.version).unwrap(),
            Cas::Stored
        );
        assert_eq!(
            clients[reader].cas("k", "8", item.version).unwrap(),
            Cas::Changed
        );
        assert_eq!(clients[reader].incr("k", 3).unwrap(), Some(10));
        assert_eq!(clients[writer].get("k").unwrap(), bytes("10"));
        assert!(clients[reader].touch("k", Duration::ZERO).unwrap());
        assert_eq!(clients[writer].get("k").unwrap(), None);
    }
}
