//! Changes a value that other clients change too: `cargo run --example cas_loop [HOST:PORT]`.

use herdwick::{Cas, Client, Error};

/// Adds `word` to the list under `key`, whatever other clients do meanwhile.
fn add_word(client: &mut Client, key: &str, word: &str) -> Result<(), Error> {
    loop {
        let Some(item) = client.gets(key)? else {
            if client.add(key, word)? {
                return Ok(());
            }
            continue; // Another client was first: there is something to read now.
        };
        let words = [&item.value[..], b",", word.as_bytes()].concat();
        match client.cas(key, &words, item.version)? {
            Cas::Stored => return Ok(()),
            Cas::Changed | Cas::Missing => {}
        }
    }
}

fn main() -> Result<(), Error> {
    let address = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "127.0.0.1:11211".into());
    let mut client = Client::connect(&address)?;
    for word in ["ant", "bee", "cow"] {
        add_word(&mut client, "words", word)?;
    }
    let words = client.get("words")?.unwrap_or_default();
    println!("words: {}", words.escape_ascii());
    Ok(())
}
