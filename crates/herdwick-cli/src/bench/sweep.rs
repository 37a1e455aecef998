//! Sweeps: options that take lists, and the configurations that their combinations make.

/// Returns each of `configs` once with each of `values`, in that order; unchanged if there are none.
pub(super) fn crossed<C: Clone, T: Copy>(
    configs: Vec<C>,
    values: &[T],
    set: impl Fn(&mut C, T),
) -> Vec<C> {
    if values.is_empty() {
        return configs;
    }
    let with = |config: &C, value| {
        let mut config = config.clone();
        set(&mut config, value);
        config
    };
    let pairs = configs
        .iter()
        .flat_map(|config| values.iter().map(move |it| (config, *it)));
    pairs.map(|(config, value)| with(config, value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_vary_the_last_list_fastest_and_an_empty_list_changes_nothing() {
        let configs = crossed(vec![(0, 'x')], &[1, 2], |config, it| config.0 = it);
        let configs = crossed(configs, &['a', 'b'], |config, it| config.1 = it);
        assert_eq!(configs, [(1, 'a'), (1, 'b'), (2, 'a'), (2, 'b')]);
        assert_eq!(crossed(vec![5], &[], |config, it: i32| *config = it), [5]);
    }
}
