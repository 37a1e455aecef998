//! Stores a value and reads it back: `cargo run --example get_set [HOST:PORT]`.

use std::time::Duration;

use herdwick::{Client, Put};

fn main() -> Result<(), herdwick::Error> {
    let address = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "127.0.0.1:11211".into());
    let mut client = Client::connect(&address)?;

    client.set("greeting", "hello")?;
    let minute = Duration::from_secs(60);
    client.set("session:7", Put::new("ada").flags(1).ttl(minute))?;

    for key in ["greeting", "session:7", "nobody"] {
        match client.gets(key)? {
            Some(item) => {
                println!(
                    "{key}: {} (flags {})",
                    item.value.escape_ascii(),
                    item.flags
                );
            }
            None => println!("{key}: nothing there"),
        }
    }
    Ok(())
}
