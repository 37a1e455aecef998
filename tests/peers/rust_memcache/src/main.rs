//! The crate `memcache` through what an application does, over text and binary.
//! Usage: `peer-memcache HOST:PORT`.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use memcache::{Client, MemcacheError};

fn check(address: &str, protocol: &str) -> Result<(), MemcacheError> {
    let client = Client::connect(format!(
        "memcache://{address}?protocol={protocol}&timeout=20"
    ))?;
    client.flush()?;
    for (_, version) in client.version()? {
        assert_eq!(version, "1.6.45");
    }
    client.set("key", "value", 600)?;
    // Over text this client has no error for what is not stored.
    for refused in [
        client.add("key", "other", 600),
        client.replace("none", "x", 600),
    ] {
        assert!(matches!(
            refused,
            Ok(()) | Err(MemcacheError::CommandError(_))
        ));
    }
    assert_eq!(client.get("key")?, Some("value".to_owned()));
    assert_eq!(client.get::<String>("none")?, None);
    client.append("key", "!")?;
    client.prepend("key", ">")?;
    // The value, its flags and its version.
    let (value, flags, version) = client.get::<(Vec<u8>, u32, Option<u64>)>("key")?.unwrap();
    assert_eq!((&value[..], flags), (&b">value!"[..], 0));
    let found = client.gets::<(Vec<u8>, u32, Option<u64>)>(&["key"])?;
    let unique = found["key"].2.or(version).expect("a version");
    assert!(client.cas("key", "swapped", 600, unique)?);
    assert!(!client.cas("key", "again", 600, unique)?);
    client.set("n", 10, 0)?;
    assert_eq!(
        (client.increment("n", 5)?, client.decrement("n", 20)?),
        (15, 0)
    );
    assert!(client.touch("key", 60)?);
    assert!(!client.touch("none", 60)?);
    let large = "x".repeat(1_000_000);
    client.set("large", &large[..], 600)?;
    assert_eq!(client.get("large")?, Some(large));
    for n in 0..500 {
        client.set(&format!("many{n}"), n, 600)?;
    }
    let keys: Vec<String> = (0..500).map(|n| format!("many{n}")).collect();
    let asked: Vec<&str> = keys.iter().map(String::as_str).chain(["none"]).collect();
    let found: HashMap<String, i32> = client.gets(&asked)?;
    assert_eq!(found.len(), 500);
    assert!((0..500).all(|n| found[&format!("many{n}")] == n));
    client.set("short", "lived", 1)?;
    let end = Instant::now() + Duration::from_secs(20);
    while client.get::<String>("short")?.is_some() {
        assert!(Instant::now() < end);
    }
    assert!(client.delete("key")?);
    assert!(!client.delete("key")?);
    Ok(())
}

fn main() {
    let address = std::env::args().nth(1).expect("HOST:PORT");
    for protocol in ["ascii", "binary"] {
        if let Err(error) = check(&address, protocol) {
            panic!("over {protocol}: {error}");
        }
    }
    println!("memcache (Rust): passed");
}
