//! `herdwick sim --capacity`: how many cores, RNICs and clients serve a rate at a bounded latency.

use super::{
    args::SimArgs,
    measure::{measure, us},
    point::{COLUMNS, Point},
    sweep::{aligned, progress, progress_ends},
};

/// Most clients that are tried.
const CLIENTS_MAX: usize = 4096;

/// What so many clients get.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Served {
    clients: usize,
    mops: f64,
    p99_us: f64,
}

/// Returns the most clients, of up to [`CLIENTS_MAX`], that are served within `p99_us`, by doubling their number
/// and then halving the distance; `None`: not even one is. More clients wait longer.
fn most(
    p99_us: f64,
    mut serve: impl FnMut(usize) -> Result<Served, String>,
) -> Result<Option<Served>, String> {
    let (mut within, mut beyond) = (None, None);
    let mut clients = 1;
    while clients <= CLIENTS_MAX && beyond.is_none() {
        let served = serve(clients)?;
        match served.p99_us <= p99_us {
            true => within = Some(served),
            false => beyond = Some(clients),
        }
        clients *= 2;
    }
    while let (Some(Served { clients: low, .. }), Some(high)) = (within, beyond) {
        // A sixteenth of it is close enough.
        if high - low <= 1 + low / 16 {
            break;
        }
        let served = serve(low.midpoint(high))?;
        match served.p99_us <= p99_us {
            true => within = Some(served),
            false => beyond = Some(served.clients),
        }
    }
    Ok(within)
}

/// Returns a row for each point: what one RNIC with its cores serves, and how many are needed.
pub(super) fn table(
    args: &SimArgs,
    points: &[Point<'_>],
    (mops, p99_us): (f64, f64),
) -> Result<String, String> {
    // The number of clients is no option here.
    let columns = &COLUMNS[..COLUMNS.len() - 1];
    let mut rows = vec![columns.iter().map(|(name, _)| (*name).to_owned()).collect()];
    Vec::extend(&mut rows[0], RESULTS.map(str::to_owned));
    for (number, point) in points.iter().enumerate() {
        progress(number, points.len());
        let served = most(p99_us, |clients| {
            let measured = measure(args, &Point { clients, ..*point })?;
            let outcome = &measured.outcome;
            if measured.report.is_none() {
                return Err("capacity is of systems: give herd, farm or pilaf".to_owned());
            }
            Ok(Served {
                clients,
                mops: outcome.mops,
                p99_us: us(outcome.percentile_ns(99)),
            })
        })?;
        let mut row: Vec<String> = columns.iter().map(|(_, value)| value(point)).collect();
        row.extend(results(served, mops, point.workers));
        rows.push(row);
    }
    progress_ends();
    Ok(format!(
        "{mops} M/s with a p99 of at most {p99_us} us (sim, seed {})\n{}",
        args.seed,
        aligned(&rows)
    ))
}

const RESULTS: [&str; 6] = [
    "M/s",
    "p99 us",
    "clients",
    "RNICs",
    "all cores",
    "all clients",
];

fn results(served: Option<Served>, mops: f64, workers: usize) -> [String; RESULTS.len()] {
    let Some(served) = served.filter(|served| served.mops > 0.0) else {
        return RESULTS.map(|_| "-".to_owned());
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a positive number; one too large for an integer becomes the largest"
    )]
    let rnics = (mops / served.mops).ceil() as usize;
    [
        format!("{:.2}", served.mops),
        format!("{:.2}", served.p99_us),
        served.clients.to_string(),
        rnics.to_string(),
        rnics.saturating_mul(workers).to_string(),
        rnics.saturating_mul(served.clients).to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that reaches its rate with ten clients, behind which each waits longer.
    fn serve(clients: usize) -> Result<Served, String> {
        #[expect(clippy::cast_precision_loss, reason = "few")]
        let count = clients as f64;
        Ok(Served {
            clients,
            mops: count.min(10.0),
            p99_us: 2.0 * (count / 10.0).max(1.0),
        })
    }

    #[test]
    fn most_clients_within_the_latency_are_found() {
        let found = |p99| most(p99, serve).unwrap();
        assert_eq!(found(1.9), None);
        let some = found(4.0).unwrap();
        // A sixteenth below 20 at most.
        assert!((18..=20).contains(&some.clients), "{some:?}");
        assert_eq!(found(1e9).unwrap().clients, CLIENTS_MAX);
    }

    #[test]
    fn rnics_are_rounded_up() {
        let served = Served {
            clients: 10,
            mops: 10.0,
            p99_us: 2.0,
        };
        let row = results(Some(served), 21.0, 6);
        assert_eq!(row, ["10.00", "2.00", "10", "3", "18", "30"]);
        assert_eq!(results(None, 21.0, 6)[0], "-");
    }
}
