//! Count, and know what an unanswered increment means: `cargo run --example counter [HOST:PORT]`.

use herdwick::{Client, Error};

/// What the counter is known to have gained: at least `certain`, at most `certain + unknown`.
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
                // It was evicted, or has expired. Whoever adds it first starts it again.
                client.add("visits", "0")?;
            }
            // The client does not repeat it: repeated, it might count twice. What a program does
            // here depends on what it counts; this one keeps the books.
            Err(Error::UnknownOutcome(_)) => gained.unknown += 1,
            Err(other) => return Err(other),
        }
    }
    let now = client.get("visits")?.unwrap_or_default();
    println!("visits: {}, of which ours: {gained:?}", now.escape_ascii());
    Ok(())
}
