//! Counts, and keeps track of unanswered increments: `cargo run --example counter [HOST:PORT]`.

use herdwick::{Client, Error};

/// The counter's known gain: at least `certain`, at most `certain + unknown`.
#[derive(Debug, Default)]
struct Gained {
    certain: u64,
    unknown: u64,
}

fn main() -> Result<(), Error> {
    let address = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "127.0.0.1:11211".into());
    let mut client = Client::connect(&address)?;

    client.add("visits", "0")?;
    let mut gained = Gained::default();
    for _ in 0..1000 {
        match client.incr("visits", 1) {
            Ok(Some(_)) => gained.certain += 1,
            Ok(None) => {
                // It was evicted, or has expired. The first client that adds it starts it again.
                client.add("visits", "0")?;
            }
            // The client does not repeat an increment: it might then count twice. What to do here
            // depends on what is counted; this program counts the unknown ones.
            Err(Error::UnknownOutcome(_)) => gained.unknown += 1,
            Err(other) => return Err(other),
        }
    }
    let now = client.get("visits")?.unwrap_or_default();
    println!("visits: {}, of which ours: {gained:?}", now.escape_ascii());
    Ok(())
}
