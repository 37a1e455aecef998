//! The modes of a store, which text and the binary protocol share.

use herdwick_memcache::Mode;
use herdwick_request as store;

/// Converts the mode of a command to that of a request.
pub(super) fn mode(mode: Mode) -> store::Mode {
    match mode {
        Mode::Set => store::Mode::Set,
        Mode::Add => store::Mode::Add,
        Mode::Replace => store::Mode::Replace,
        Mode::Append => store::Mode::Append,
        Mode::Prepend => store::Mode::Prepend,
    }
}
