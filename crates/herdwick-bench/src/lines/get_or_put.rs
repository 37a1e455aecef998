//! Requests to the systems of the papers, which have GETs and PUTs alone.

use herdwick_herd::{Refused, wire::Unencodable};
use herdwick_request::{Get, Mode, Op, Put, Request};

/// Returns the value of a plain PUT, or `None` for a plain GET.
///
/// # Errors
/// [`Unencodable::Option`]: another operation, or one with options. Operations are taken apart field by
/// field, so that an option added to them cannot be dropped here.
#[inline]
pub(super) fn get_or_put<'a>(request: &Request<'a>) -> Result<Option<&'a [u8]>, Refused> {
    match request.op {
        Op::Get(Get {
            touch: None,
            vivify: None,
            recache: None,
            touch_first: _,
            unaware: _,
            version: None,
            quiet_access: false,
        }) => Ok(None),
        Op::Put(Put {
            mode: Mode::Set,
            value,
            flags: 0,
            exptime: 0,
            compare: None,
            version: None,
            invalidate: _,
            vivify: None,
            staged: None,
        }) => Ok(Some(value)),
        Op::Get(_) | Op::Put(_) | Op::Delete(_) | Op::Arith(_) => {
            Err(Refused::Unencodable(Unencodable::Option))
        }
    }
}

#[cfg(test)]
mod tests {
    use herdwick_request::{Arith, Delete, KeyHash};

    use super::*;

    #[test]
    fn only_plain_gets_and_puts_are_taken() {
        let taken = |op| {
            let (hash, key) = (KeyHash(0), &b"k"[..]);
            get_or_put(&Request { hash, key, op }).ok()
        };
        let put = Put {
            value: b"v",
            ..Put::default()
        };
        assert_eq!(taken(Op::Get(Get::default())), Some(None));
        assert_eq!(taken(Op::Put(put)), Some(Some(&b"v"[..])));
        let get = Get {
            touch: Some(1),
            ..Get::default()
        };
        for other in [
            Op::Get(get),
            Op::Put(Put {
                mode: Mode::Add,
                ..put
            }),
            Op::Put(Put { flags: 1, ..put }),
            Op::Put(Put { exptime: 1, ..put }),
            Op::Put(Put {
                compare: Some(1),
                ..put
            }),
            Op::Delete(Delete::default()),
            Op::Arith(Arith::default()),
        ] {
            assert_eq!(taken(other), None, "{other:?}");
        }
    }
}
