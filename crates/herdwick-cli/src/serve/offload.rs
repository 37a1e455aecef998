//! The flags of a secondary store, and of the server that replicates to it.

use std::{fs, path::Path};

use herdwick_server::{Limits, Offload, PolicyChoice, Secret};

use super::{args::ServeArgs, error::ServeError};

/// Returns where popular keys are replicated to.
pub(super) fn offload(args: &ServeArgs) -> Result<Option<Offload>, ServeError> {
    let (Some(address), Some(secret)) = (&args.offload, secret(args)?) else {
        return Ok(None);
    };
    Ok(Some(Offload {
        policy: PolicyChoice::Of(args.offload_policy),
        limits: Limits {
            keys: args.offload_keys,
            reads: args.offload_reads,
            window: args.offload_window,
        },
        ..Offload::to(address.clone(), secret)
    }))
}

/// Reads the secret, if one is given.
pub(super) fn secret(args: &ServeArgs) -> Result<Option<Secret>, ServeError> {
    args.offload_secret.as_deref().map(read).transpose()
}

fn read(path: &Path) -> Result<Secret, ServeError> {
    let text = fs::read_to_string(path).map_err(|source| ServeError::OffloadSecret {
        path: path.to_owned(),
        source,
    })?;
    parse(&text).ok_or_else(|| ServeError::OffloadDigits {
        path: path.to_owned(),
    })
}

fn parse(text: &str) -> Option<Secret> {
    let text = text.trim();
    // `from_str_radix` takes a sign as well.
    let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u128::from_str_radix(text, 16).ok().filter(|_| is_hex)?;
    Some(Secret(number.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_32_hex_digits() {
        let secret = parse("00112233445566778899aabbccddeeff\n").unwrap();
        assert_eq!((secret.0[0], secret.0[15]), (0, 0xff));
        let wrong = [
            "",
            "+0112233445566778899aabbccddeeff",
            "0011",
            "g0112233445566778899aabbccddeeff",
        ];
        assert!(wrong.into_iter().all(|text| parse(text).is_none()));
    }
}
