//! Which worker owns a key, by its hash: the same function that Herdwick clients use.

use herdwick_request::HashKey;

/// The mapping of keys to the workers that own them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owners {
    pub(crate) hash_key: HashKey,
    pub(crate) workers: usize,
    pub(crate) own: usize,
}
