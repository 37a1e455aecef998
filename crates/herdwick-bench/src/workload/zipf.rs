//! Zipf-distributed ranks, drawn in constant time by Gray's method.

use herdwick_check::Rng;

/// Zipf-distributed ranks by Gray's method ("Quickly Generating Billion-Record Synthetic
/// Databases", SIGMOD'94), which YCSB uses: ranks 0 and 1 are exact, the others invert the integral
/// of the distribution.
#[derive(Clone, Debug)]
pub(crate) struct Zipf {
    n: u64,
    zeta: f64,
    two: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    /// Prepares ranks `0..n`, rank `r` with weight `1 / (r + 1)^theta`, `0 < theta < 1`. Sums `n`
    /// terms, which takes a tenth of a second for eight million.
    #[must_use]
    pub(crate) fn new(n: u64, theta: f64) -> Self {
        let zeta = zeta(n, theta);
        let two = 1.0 + 0.5_f64.powf(theta);
        let tail = 1.0 - (2.0 / n as f64).powf(1.0 - theta);
        Self {
            n,
            zeta,
            two,
            alpha: 1.0 / (1.0 - theta),
            eta: tail / (1.0 - two / zeta),
        }
    }

    /// Draws a rank.
    #[inline]
    pub(crate) fn draw(&self, rng: &mut Rng) -> u64 {
        let u = rng.unit();
        let weight = u * self.zeta;
        if weight < 1.0 {
            return 0;
        }
        if weight < self.two {
            // One key has no rank 1.
            return 1.min(self.n - 1);
        }
        let rank = self.n as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        // Rounding may reach `n`.
        (rank as u64).min(self.n - 1)
    }
}

/// Returns the sum of `1 / i^theta` for `i` in `1..=n`, adding small terms first for precision.
fn zeta(n: u64, theta: f64) -> f64 {
    (1..=n).rev().map(|i| (i as f64).powf(-theta)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u64 = 2_000_000;

    /// The sum over all ranks takes most of a test's time.
    fn keys() -> u64 {
        herdwick_check::length(1_000_000, 8_000_000)
    }

    /// Returns, for each of `bounds`, the share of draws below it and the share expected from the
    /// distribution.
    fn shares(n: u64, theta: f64, bounds: &[u64]) -> Vec<(f64, f64)> {
        let (zipf, mut rng) = (Zipf::new(n, theta), Rng::new(42));
        let mut below = vec![0_u64; bounds.len()];
        for _ in 0..DRAWS {
            let rank = zipf.draw(&mut rng);
            assert!(rank < n);
            for (count, bound) in below.iter_mut().zip(bounds) {
                *count += u64::from(rank < *bound);
            }
        }
        let analytic = |bound: &u64| zeta(*bound, theta) / zeta(n, theta);
        let drawn = below.iter().map(|count| *count as f64 / DRAWS as f64);
        drawn.zip(bounds.iter().map(analytic)).collect()
    }

    #[test]
    fn zipf_probabilities_of_the_two_hottest_ranks_are_exact() {
        for (drawn, analytic) in shares(keys(), 0.99, &[1, 2]) {
            let sigma = (analytic * (1.0 - analytic) / DRAWS as f64).sqrt();
            assert!((drawn - analytic).abs() < 4.0 * sigma, "{drawn} {analytic}");
        }
    }

    #[test]
    fn zipf_draws_follow_the_distribution() {
        let bounds = [10, 100, 1_000, 10_000, 100_000, 500_000, keys()];
        for theta in [0.5, 0.99] {
            for (drawn, analytic) in shares(keys(), theta, &bounds) {
                assert!((drawn - analytic).abs() < 0.015, "{drawn} {analytic}");
            }
        }
    }

    #[test]
    fn zipf_over_one_key_always_draws_it() {
        let (zipf, mut rng) = (Zipf::new(1, 0.99), Rng::new(1));
        assert!((0..1000).all(|_| zipf.draw(&mut rng) == 0));
    }

    #[test]
    fn zeta_agrees_with_euler_and_maclaurin() {
        // zeta(n) for 0 < theta < 1 is n^(1-t)/(1-t) + Riemann zeta(t) + n^-t/2 - ...; the
        // difference of two n cancels the constant.
        let (a, b, t) = (1_000_000.0_f64, 8_000_000.0_f64, 0.99);
        let integral = (b.powf(1.0 - t) - a.powf(1.0 - t)) / (1.0 - t);
        let ends = (b.powf(-t) - a.powf(-t)) / 2.0;
        let exact = zeta(8_000_000, t) - zeta(1_000_000, t);
        assert!((exact - integral - ends).abs() < 1e-9);
    }
}
