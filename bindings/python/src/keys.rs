//! Keys of Python's as bytes, checked as pymemcache does.

use pyo3::{
    prelude::*,
    pybacked::PyBackedBytes,
    types::{PyBytes, PyString},
};

use crate::errors::illegal;

/// What is done to each key.
#[derive(Debug, Default)]
pub(crate) struct KeyRules {
    pub(crate) prefix: Vec<u8>,
    pub(crate) is_unicode: bool,
}

/// A key as it is sent: of Python's own bytes, unless there is a prefix.
pub(crate) enum SentKey {
    Borrowed(PyBackedBytes),
    Prefixed(Vec<u8>),
}

impl AsRef<[u8]> for SentKey {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Prefixed(bytes) => bytes,
        }
    }
}

/// Many keys as they are sent, one after the other: it takes no object for each.
#[derive(Debug, Default)]
pub(crate) struct SentKeys {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl SentKeys {
    /// The keys, in the order in which they were added.
    pub(crate) fn slices(&self) -> Vec<&[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let ranges = starts.zip(&self.ends);
        ranges
            .map(|(start, end)| &self.bytes[start..*end])
            .collect()
    }
}

impl KeyRules {
    pub(crate) fn check(&self, key: &Bound<'_, PyAny>) -> PyResult<SentKey> {
        let own = self.encode(key)?;
        let sent = if self.prefix.is_empty() {
            SentKey::Borrowed(own.into())
        } else {
            SentKey::Prefixed([&self.prefix, own.as_bytes()].concat())
        };
        refuse_illegal(key.py(), sent.as_ref())?;
        Ok(sent)
    }

    /// As `check`, of one of many keys.
    pub(crate) fn check_into(&self, key: &Bound<'_, PyAny>, sent: &mut SentKeys) -> PyResult<()> {
        let own = self.encode(key)?;
        let start = sent.bytes.len();
        sent.bytes.extend_from_slice(&self.prefix);
        sent.bytes.extend_from_slice(own.as_bytes());
        sent.ends.push(sent.bytes.len());
        refuse_illegal(key.py(), &sent.bytes[start..])
    }

    fn encode<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        if let Ok(bytes) = key.cast::<PyBytes>() {
            return Ok(bytes.clone());
        }
        let Ok(text) = key.cast::<PyString>() else {
            let class = key.get_type().name()?;
            return Err(illegal(
                key.py(),
                format!("a key is str or bytes, not {class}"),
            ));
        };
        let bytes = text.encode_utf8().ok();
        let bytes = bytes.filter(|bytes| self.is_unicode || bytes.as_bytes().is_ascii());
        bytes.ok_or_else(|| {
            let shown = key.repr();
            let shown = shown.map(|shown| shown.to_string()).unwrap_or_default();
            illegal(key.py(), format!("Non-ASCII key: {shown}"))
        })
    }
}

/// What the client checks, too; the words are pymemcache's.
fn refuse_illegal(py: Python<'_>, bytes: &[u8]) -> PyResult<()> {
    let is_legal = |byte: &u8| *byte > b' ' && *byte != 0x7f;
    if (1..=250).contains(&bytes.len()) && bytes.iter().all(is_legal) {
        return Ok(());
    }
    let wrong = if bytes.len() > 250 {
        "Key is too long"
    } else if bytes.is_empty() {
        "Key is empty"
    } else if bytes.iter().any(|byte| b" \t\n\r\x0b\x0c".contains(byte)) {
        "Key contains whitespace"
    } else if bytes.contains(&0) {
        "Key contains null"
    } else {
        "Key contains a control character"
    };
    let shown = PyBytes::new(py, bytes).repr()?;
    Err(illegal(py, format!("{wrong}: {shown}")))
}

/// Checks a key, and returns it as it is sent.
#[pyfunction]
#[pyo3(signature = (key, allow_unicode_keys, key_prefix = Vec::new()))]
pub(crate) fn check_key<'py>(
    key: &Bound<'py, PyAny>,
    allow_unicode_keys: bool,
    key_prefix: Vec<u8>,
) -> PyResult<Bound<'py, PyBytes>> {
    let rules = KeyRules {
        prefix: key_prefix,
        is_unicode: allow_unicode_keys,
    };
    let sent = rules.check(key)?;
    Ok(PyBytes::new(key.py(), sent.as_ref()))
}
