//! What many keys have, between its arrival and its objects: small values share one buffer.

use herdwick::{Hit, Item};

/// Larger values have a buffer of their own, which is free again as soon as there is an object of it.
const SHARED_MAX: usize = 4096;

/// An item for each of many keys, in their order; `None`: there is none.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) items: Vec<Option<FoundItem>>,
    pub(crate) shared: Shared,
}

/// The values that are not large, in the order of their arrival.
#[derive(Debug, Default)]
pub(crate) struct Shared(Vec<u8>);

/// One item.
#[derive(Debug)]
pub(crate) struct FoundItem {
    value: FoundValue,
    flags: u32,
    version: u64,
}

#[derive(Debug)]
enum FoundValue {
    /// From a place in the shared buffer on, this many bytes.
    Shared(usize, usize),
    Own(Vec<u8>),
}

impl Found {
    /// Nothing, for `count` keys.
    pub(crate) fn nothing(count: usize) -> Self {
        Self {
            items: std::iter::repeat_with(|| None).take(count).collect(),
            shared: Shared::default(),
        }
    }

    /// Notes what was found for the key in `place`.
    pub(crate) fn note(&mut self, place: usize, hit: Option<Hit<'_>>) {
        self.items[place] = hit.map(|hit| {
            let length = hit.value.len();
            let value = if length > SHARED_MAX {
                FoundValue::Own(hit.value.to_vec())
            } else {
                let start = self.shared.0.len();
                self.shared.0.extend_from_slice(hit.value);
                FoundValue::Shared(start, length)
            };
            FoundItem {
                value,
                flags: hit.flags,
                version: hit.version,
            }
        });
    }
}

impl From<Vec<Option<Item>>> for Found {
    fn from(items: Vec<Option<Item>>) -> Self {
        let own = |item: Item| FoundItem {
            value: FoundValue::Own(item.value),
            flags: item.flags,
            version: item.version,
        };
        Self {
            items: items.into_iter().map(|item| item.map(own)).collect(),
            shared: Shared::default(),
        }
    }
}

impl FoundItem {
    /// The item; `shared` is of the same [`Found`].
    pub(crate) fn hit<'a>(&'a self, shared: &'a Shared) -> Hit<'a> {
        let value = match &self.value {
            FoundValue::Shared(start, length) => &shared.0[*start..start + length],
            FoundValue::Own(value) => value,
        };
        Hit {
            value,
            flags: self.flags,
            version: self.version,
        }
    }
}
