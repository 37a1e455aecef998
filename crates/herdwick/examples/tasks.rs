//! A thousand tasks on one session, beside the batches of the blocking client:
//! `cargo run --release --example tasks [HOST:PORT]`. Prints reads a second, the median of five rounds each.

use std::time::{Duration, Instant};

use herdwick::{Client, Error, Options, aio::AsyncClient};

const TASKS: usize = 1000;
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(1);

fn main() -> Result<(), Error> {
    let address = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "127.0.0.1:11211".into());
    let options = Options {
        window: 256,
        ..Options::default()
    };
    let keys: Vec<_> = (0..TASKS)
        .map(|number| format!("key:{number:012}"))
        .collect();
    let mut blocking = Client::connect_with(&address, options.clone())?;
    for key in &keys {
        blocking.set(key, &[b'v'; 32])?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime starts");
    let client = runtime.block_on(AsyncClient::connect_with(&address, options))?;
    let (mut batches, mut tasks) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        batches.push(by_batches(&mut blocking, &keys)?);
        tasks.push(runtime.block_on(by_tasks(&client, &keys)));
    }
    let (batches, tasks) = (median(batches), median(tasks));
    println!(
        "{}: batches {batches:.2} M/s",
        blocking.session().map_or("", |s| s.transport())
    );
    println!(
        "{}: {TASKS} tasks {tasks:.2} M/s, {:.2} of that",
        client.transport().unwrap_or_default(),
        tasks / batches
    );
    Ok(())
}

fn by_batches(client: &mut Client, keys: &[String]) -> Result<f64, Error> {
    let (start, mut reads) = (now(), 0);
    while start.elapsed() < ROUND {
        reads += client.get_many(keys)?.iter().flatten().count();
    }
    Ok(rate(reads, start))
}

async fn by_tasks(client: &AsyncClient, keys: &[String]) -> f64 {
    let start = now();
    let tasks: Vec<_> = keys
        .iter()
        .map(|key| {
            let (client, key) = (client.clone(), key.clone());
            tokio::spawn(async move {
                let mut reads = 0;
                while reads % 16 != 0 || start.elapsed() < ROUND {
                    reads += usize::from(client.get(&key).await?.is_some());
                }
                Ok::<_, Error>(reads)
            })
        })
        .collect();
    let mut reads = 0;
    for task in tasks {
        reads += task.await.expect("no task panics").expect("reads succeed");
    }
    rate(reads, start)
}

#[expect(clippy::disallowed_methods, reason = "rates are of the host's clock")]
fn now() -> Instant {
    Instant::now()
}

fn rate(reads: usize, start: Instant) -> f64 {
    reads as f64 / start.elapsed().as_secs_f64() / 1e6
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
