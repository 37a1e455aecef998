//! The Herdwick client for Python: what `herdwick/__init__.py` and `herdwick/asyncio.py` are made of.
//!
//! `client` has the calls that wait, without the GIL; `session` many requests in flight, for asyncio.

mod client;
mod config;
mod errors;
mod found;
mod held;
mod keys;
mod session;
mod store;
mod values;

use pyo3::prelude::*;

/// The module `herdwick._herdwick`.
#[pymodule]
fn _herdwick(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<client::Client>()?;
    module.add_class::<session::Session>()?;
    module.add_function(wrap_pyfunction!(keys::check_key, module)?)
}
