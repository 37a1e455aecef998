//! SCRAM-SHA-256 (RFC 5802, RFC 7677), the server's side: keys made from a password, and the two
//! messages of an exchange. Nothing here draws random bytes: salts and nonces are arguments.

use std::borrow::Cow;

use herdwick_memcache::meta::base64;
use ring::{digest, hmac, pbkdf2};

/// The hash iterations of every user's keys (the least that RFC 7677 allows, and the number that
/// Cyrus SASL uses).
pub(super) const ITERATIONS: u32 = 4096;
const _: () = assert!(ITERATIONS > 0);

/// Length of a key, a signature and a proof in bytes.
const KEY_BYTES: usize = 32;

/// What the server keeps of a password: enough to check a proof, not to make one.
#[derive(Clone, Copy)]
pub(super) struct Keys {
    pub(super) stored: [u8; KEY_BYTES],
    pub(super) server: [u8; KEY_BYTES],
}

impl Keys {
    /// Derives the keys from a password. This is slow by intent.
    pub(super) fn derive(password: &[u8], salt: &[u8], iterations: u32) -> Self {
        let iterations = iterations.try_into().unwrap_or(std::num::NonZeroU32::MIN);
        let mut salted = [0; KEY_BYTES];
        let algorithm = pbkdf2::PBKDF2_HMAC_SHA256;
        pbkdf2::derive(algorithm, iterations, salt, password, &mut salted);
        let client = mac(&salted, b"Client Key");
        Self {
            stored: hash(&client),
            server: mac(&salted, b"Server Key"),
        }
    }
}

/// The client's first message.
pub(super) struct ClientFirst<'a> {
    /// The user to act as; `None`: the one that authenticates.
    pub(super) authzid: Option<Cow<'a, str>>,
    /// The user.
    pub(super) name: Cow<'a, str>,
    nonce: &'a str,
    /// The message before `bare`: channel binding and authzid.
    header: &'a str,
    /// The message from the name on.
    bare: &'a str,
}

impl<'a> ClientFirst<'a> {
    /// Parses the message; `None` if it is malformed, or asks for channel binding or an extension.
    pub(super) fn parse(message: &'a [u8]) -> Option<Self> {
        let message = str::from_utf8(message).ok()?;
        // "n": the client has no channel binding. "y": it has, and believes that the server has
        // not, which is so.
        let rest = message.strip_prefix(['n', 'y'])?.strip_prefix(',')?;
        let (authzid, bare) = rest.split_once(',')?;
        let authzid = match authzid {
            "" => None,
            given => Some(unescape(given.strip_prefix("a=")?)?),
        };
        let mut fields = bare.split(',');
        let name = unescape(fields.next()?.strip_prefix("n=")?)?;
        let nonce = fields.next()?.strip_prefix("r=")?;
        // RFC 5802: printable characters but the comma, which has ended the field.
        let printable = nonce.bytes().all(|byte| byte.is_ascii_graphic());
        (printable && !nonce.is_empty()).then(|| Self {
            authzid,
            name,
            nonce,
            header: &message[..message.len() - bare.len()],
            bare,
        })
    }
}

/// Returns a name in which `=2C` stands for a comma and `=3D` for an equals sign.
fn unescape(name: &str) -> Option<Cow<'_, str>> {
    if name.is_empty() {
        return None;
    }
    let mut parts = name.split('=');
    let first = parts.next()?;
    let mut plain = Cow::Borrowed(first);
    for part in parts {
        let (sign, rest) = match (part.strip_prefix("2C"), part.strip_prefix("3D")) {
            (Some(rest), _) => (',', rest),
            (_, Some(rest)) => ('=', rest),
            _ => return None,
        };
        plain.to_mut().push(sign);
        plain.to_mut().push_str(rest);
    }
    Some(plain)
}

/// An exchange that waits for the client's proof.
pub(crate) struct Challenged {
    keys: Keys,
    /// The client's first message without its header, a comma, and the server's.
    so_far: String,
    /// `c=` and `r=` as the final message has to have them.
    binding: String,
    nonce: String,
}

impl Challenged {
    /// Answers the client's first message; returns what to wait with, and the message to send.
    pub(super) fn new(
        first: &ClientFirst<'_>,
        keys: Keys,
        salt: &[u8],
        nonce: &[u8],
    ) -> (Self, String) {
        let nonce = format!("r={}{}", first.nonce, encoded(nonce));
        let said = format!("{nonce},s={},i={ITERATIONS}", encoded(salt));
        let challenged = Self {
            keys,
            so_far: format!("{},{said}", first.bare),
            binding: format!("c={}", encoded(first.header.as_bytes())),
            nonce,
        };
        (challenged, said)
    }

    /// Returns the bytes of memory that it takes.
    pub(super) fn memory(&self) -> usize {
        let texts = [&self.so_far, &self.binding, &self.nonce];
        size_of::<Self>() + texts.map(String::capacity).iter().sum::<usize>()
    }

    /// Checks the client's final message; returns the message that proves the server to the client,
    /// or `None` if the proof is wrong or the message malformed.
    pub(super) fn prove(&self, message: &[u8]) -> Option<String> {
        // RFC 5802: the proof is the last field.
        let (without_proof, proof) = str::from_utf8(message).ok()?.rsplit_once(",p=")?;
        let mut fields = without_proof.split(',');
        // RFC 5802: `c=` and `r=` come first, in this order. Extensions behind them are covered by
        // the proof.
        if fields.next()? != self.binding || fields.next()? != self.nonce {
            return None;
        }
        let proof = decoded(proof)?;
        let spoken = format!("{},{without_proof}", self.so_far);
        let signature = mac(&self.keys.stored, spoken.as_bytes());
        // The client's key is its proof XOR its signature (RFC 5802, 3).
        let mut client = [0; KEY_BYTES];
        for (key, (a, b)) in client.iter_mut().zip(proof.iter().zip(signature)) {
            *key = a ^ b;
        }
        let proven = same(&hash(&client), &self.keys.stored);
        let verifier = mac(&self.keys.server, spoken.as_bytes());
        proven.then(|| format!("v={}", encoded(&verifier)))
    }
}

/// Returns the HMAC-SHA-256 of `text`.
pub(super) fn mac(key: &[u8], text: &[u8]) -> [u8; KEY_BYTES] {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    fixed(hmac::sign(&key, text).as_ref())
}

fn hash(text: &[u8]) -> [u8; KEY_BYTES] {
    fixed(digest::digest(&digest::SHA256, text).as_ref())
}

fn fixed(bytes: &[u8]) -> [u8; KEY_BYTES] {
    bytes.try_into().expect("SHA-256 has 32 bytes")
}

fn encoded(bytes: &[u8]) -> String {
    let mut text = Vec::new();
    base64::encode(bytes, &mut text);
    String::from_utf8(text).expect("base64 is ASCII")
}

/// Decodes a proof; `None` if it is of another length, or not spelled as base64 spells it.
fn decoded(text: &str) -> Option<[u8; KEY_BYTES]> {
    let mut room = [0; base64::DECODED_BYTES_MAX];
    let proof = base64::decode(text.as_bytes(), &mut room)?;
    let proof: [u8; KEY_BYTES] = proof.try_into().ok()?;
    // The decoder passes over characters outside the alphabet.
    (encoded(&proof) == text).then_some(proof)
}

/// Compares in a time that depends on the lengths alone.
pub(super) fn same(a: &[u8], b: &[u8]) -> bool {
    // Accumulates instead of returning early; `black_box` keeps the compiler from adding an early
    // exit.
    let differing = a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b));
    (a.len() == b.len()) & (std::hint::black_box(differing) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &[u8] = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
    const FINAL: &[u8] = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
        p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";

    /// The exchange of RFC 7677, section 3, up to its challenge. Its nonce is not base64, so it is
    /// set by hand.
    fn published() -> Challenged {
        let mut room = [0; base64::DECODED_BYTES_MAX];
        let salt = base64::decode(b"W22ZaJ0SNY7soEsUEjb6gQ==", &mut room).unwrap();
        let keys = Keys::derive(b"pencil", salt, 4096);
        let first = ClientFirst::parse(FIRST).unwrap();
        let (mut challenged, said) = Challenged::new(&first, keys, salt, b"?");
        assert_eq!(
            said,
            "r=rOprNGfwEbeRWgbNEkqOPw==,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
        );
        for text in [&mut challenged.so_far, &mut challenged.nonce] {
            *text = text.replace("Pw==,s", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s");
            *text = text.replace("Pw==", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0");
        }
        challenged
    }

    #[test]
    fn the_exchange_of_rfc_7677_is_proven() {
        let verifier = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";
        assert_eq!(published().prove(FINAL).as_deref(), Some(verifier));
    }

    /// Whatever byte of the final message is changed, it proves nothing.
    #[test]
    fn a_final_message_with_one_other_byte_is_refused() {
        let challenged = published();
        for at in 0..FINAL.len() {
            for bit in 0..8 {
                let mut other = FINAL.to_vec();
                other[at] ^= 1 << bit;
                let said = challenged.prove(&other);
                assert_eq!(said, None, "{}", String::from_utf8_lossy(&other));
            }
            assert_eq!(challenged.prove(&FINAL[..at]), None);
        }
        let lenient = [FINAL, b"!"].concat();
        assert_eq!(challenged.prove(&lenient), None, "not base64's spelling");
    }

    #[test]
    fn a_first_message_is_taken_apart() {
        let first = ClientFirst::parse(b"y,a=o=3Dp=2Cq,n==2Cb=3D,r=x!~,e=1").unwrap();
        assert_eq!(first.authzid.as_deref(), Some("o=p,q"));
        assert_eq!((&*first.name, first.nonce), (",b=", "x!~"));
        let parts = (first.header, first.bare);
        assert_eq!(parts, ("y,a=o=3Dp=2Cq,", "n==2Cb=3D,r=x!~,e=1"));
        for message in [
            &b""[..],
            b"n,",
            b"n,,",
            b"n,,n=user",
            b"n,,n=user,r=",
            b"n,,n=,r=x",
            b"n,,n=a=2c,r=x",
            b"n,,n=a=,r=x",
            b"n,,r=x,n=user",
            b"n,,n=user,r=x y",
            b"n,,m=1,n=user,r=x",
            b"n,b=x,n=user,r=x",
            b"n,a=,n=user,r=x",
            b"p=tls-unique,,n=user,r=x",
            b"n,,n=\xff,r=x",
        ] {
            assert!(ClientFirst::parse(message).is_none(), "{message:?}");
        }
    }
}
