//! Reads many keys in one round trip: `cargo run --example multi_get [HOST:PORT]`.

use herdwick::Client;

fn main() -> Result<(), herdwick::Error> {
    let address = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "127.0.0.1:11211".into());
    let mut client = Client::connect(&address)?;

    for (name, legs) in [("ant", "6"), ("bee", "6"), ("cow", "4")] {
        client.set(format!("legs:{name}"), legs)?;
    }
    let names = ["ant", "cow", "snake"];
    let keys = names.map(|name| format!("legs:{name}"));
    for (name, item) in names.iter().zip(client.get_many(&keys)?) {
        match item {
            Some(item) => println!("{name}: {}", item.value.escape_ascii()),
            None => println!("{name}: unknown"),
        }
    }
    Ok(())
}
