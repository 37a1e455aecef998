//! Values and times to live: what pymemcache accepts, and what a serde makes of it.

use std::time::{SystemTime, UNIX_EPOCH};

use herdwick::Ttl;
use pyo3::{
    prelude::*,
    pybacked::PyBackedBytes,
    types::{PyBytes, PyInt},
};

use crate::errors::illegal;

/// Larger times to live are dates: thirty days, as in memcached.
const RELATIVE_MAX: i64 = 60 * 60 * 24 * 30;

/// How values become bytes.
#[derive(Debug)]
pub(crate) struct ValueRules {
    /// An object with `serialize` and `deserialize`; `None`: values are bytes.
    pub(crate) serde: Option<Py<PyAny>>,
    pub(crate) encoding: String,
}

impl ValueRules {
    /// Returns the bytes to store, and the flags.
    pub(crate) fn serialize(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        flags: Option<u32>,
    ) -> PyResult<(PyBackedBytes, u32)> {
        let py = key.py();
        let Some(serde) = &self.serde else {
            return Ok((self.encode(value)?, flags.unwrap_or(0)));
        };
        let made = serde.bind(py).call_method1("serialize", (key, value))?;
        let (data, own): (Bound<'_, PyAny>, u32) = made.extract()?;
        Ok((self.encode(&data)?, flags.unwrap_or(own)))
    }

    fn encode(&self, value: &Bound<'_, PyAny>) -> PyResult<PyBackedBytes> {
        if let Ok(bytes) = value.cast::<PyBytes>() {
            return Ok(bytes.clone().into());
        }
        let text = value.str()?;
        let encoded = text.call_method1("encode", (&self.encoding,));
        let encoded = encoded.map_err(|error| {
            illegal(
                value.py(),
                format!("Data values must be binary-safe: {error}"),
            )
        })?;
        Ok(encoded.cast_into::<PyBytes>()?.into())
    }

    /// Returns what `value` was made of.
    pub(crate) fn deserialize<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        value: &[u8],
        flags: u32,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = key.py();
        let value = PyBytes::new(py, value);
        match &self.serde {
            None => Ok(value.into_any()),
            Some(serde) => {
                let arguments = (key, value, flags);
                serde.bind(py).call_method1("deserialize", arguments)
            }
        }
    }
}

/// memcached's exptime as a time to live.
pub(crate) fn ttl(expire: &Bound<'_, PyAny>) -> PyResult<Ttl> {
    let py = expire.py();
    let wrong = || {
        let shown = expire.repr();
        let shown = shown.map(|shown| shown.to_string()).unwrap_or_default();
        illegal(
            py,
            format!("expire must be integer, got bad value: {shown}"),
        )
    };
    let number = expire.cast::<PyInt>().map_err(|_| wrong())?;
    let number: i64 = number.extract().map_err(|_| wrong())?;
    Ok(match number {
        0 => Ttl::Never,
        number if number < 0 => Ttl::Seconds(0),
        number if number <= RELATIVE_MAX => Ttl::Seconds(number as u32),
        date => {
            let left = date.saturating_sub(unix_seconds()).max(0);
            Ttl::Seconds(u32::try_from(left).unwrap_or(u32::MAX))
        }
    })
}

#[expect(clippy::disallowed_methods, reason = "dates are times to live here")]
fn unix_seconds() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs() as i64)
}

/// A delta of `incr` and `decr`.
pub(crate) fn delta(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    let number = value.cast::<PyInt>().ok();
    let number: Option<u64> = number.and_then(|number| number.extract().ok());
    number.ok_or_else(|| {
        let shown = value.repr();
        let shown = shown.map(|shown| shown.to_string()).unwrap_or_default();
        illegal(
            value.py(),
            format!("value must be integer, got bad value: {shown}"),
        )
    })
}

/// A version as pymemcache takes it: a number, or its digits as `str` or `bytes`.
pub(crate) fn version(cas: &Bound<'_, PyAny>) -> PyResult<u64> {
    let digits = if let Ok(bytes) = cas.cast::<PyBytes>() {
        String::from_utf8(bytes.as_bytes().to_vec()).ok()
    } else if let Ok(text) = cas.extract::<String>() {
        Some(text)
    } else if cas.is_instance_of::<PyInt>() {
        Some(cas.str()?.to_string())
    } else {
        None
    };
    let is_number = |text: &String| text.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.filter(is_number).and_then(|text| text.parse().ok());
    number.ok_or_else(|| {
        let shown = cas.repr();
        let shown = shown.map(|shown| shown.to_string()).unwrap_or_default();
        illegal(
            cas.py(),
            format!("cas must only contain values in 0-9, got bad value: {shown}"),
        )
    })
}
