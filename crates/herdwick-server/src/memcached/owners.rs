//! Which worker owns a key.

use herdwick_request::HashKey;

/// The mapping of keys to the workers that own them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owners {
    pub(crate) hash_key: HashKey,
    pub(crate) workers: usize,
    pub(crate) own: usize,
}
