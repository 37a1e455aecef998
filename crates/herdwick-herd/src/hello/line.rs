//! The hello: one text line each way on the memcached port, as bytes and back. Unknown fields are
//! skipped; no input panics.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use herdwick_mica::HashKey;

use crate::{RequestPath, wire};

/// The version of everything in `docs/wire.md`.
pub const VERSION: u8 = 0;
/// Most bytes of a hello or an offer, line end included: below the 2 KiB at which memcached closes
/// the connection on a line that it does not know.
pub const HELLO_BYTES_MAX: usize = 1024;

/// Name of the packet authentication of RoCEv2 (`docs/roce.md`).
const KEYS: &str = "siphash24";

/// A secret that opens one lease, once: 128 bits that its server alone can make.
#[derive(Clone, Copy)]
pub struct Token(pub [u8; 16]);

// By hand: a derived comparison would stop at the first difference.
impl PartialEq for Token {
    /// Compares in constant time: a peer may guess as often as it likes.
    fn eq(&self, other: &Self) -> bool {
        self.0
            .iter()
            .zip(other.0)
            .fold(0, |diff, (a, b)| diff | (a ^ b))
            == 0
    }
}

impl Eq for Token {}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The kernel boot that a process runs on (`/proc/sys/kernel/random/boot_id`): processes with equal
/// ids may share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootId(pub [u8; 16]);

impl BootId {
    /// Parses the kernel's text form, with or without dashes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
        bytes16(&digits).map(Self)
    }
}

/// The client's line: `hello herdwick/0 fabrics=shm,verbs,roce [path=<path>] boot=<32 hex>`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// Whether the client can use shared memory.
    pub shm: bool,
    /// Whether it may have an RDMA device.
    pub verbs: bool,
    /// Whether it can use RoCEv2.
    pub roce: bool,
    /// The request path that it prefers; the server decides.
    pub path: Option<RequestPath>,
    /// The boot that it runs on.
    pub boot: Option<BootId>,
}

/// The server's line: `HERDWICK 0 workers=2 hash=siphash13:<32 hex> item-max=1048576 …`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Workers, which is also partitions, at most 256; where there is a lease to be had, at most
    /// [`WORKERS_MAX`](super::WORKERS_MAX). A key's partition is
    /// [`herdwick_mica::KeyHash::partition`] of this.
    pub workers: usize,
    /// The key of the locator hash.
    pub hash_key: HashKey,
    /// Most bytes of an item.
    pub item_bytes_max: usize,
    /// The request path, unless a fabric's own offer names another.
    pub path: RequestPath,
    /// Shared memory, if both ends can use it.
    pub shm: Option<ShmOffer>,
    /// An RDMA device, if the server has one.
    pub verbs: Option<VerbsOffer>,
    /// RoCEv2, if both ends can use it: the token that claims a lease, on a new connection to this
    /// address.
    pub roce: Option<Token>,
    /// Whether packets of RoCEv2 are authenticated with keys.
    pub keyed: bool,
}

/// A lease over shared memory, and where to claim it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmOffer {
    /// The lease socket, a unix stream socket.
    pub socket: PathBuf,
    /// The token that claims it.
    pub token: Token,
}

/// A lease over an RDMA device, to be claimed on a new connection to this address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerbsOffer {
    /// The token that claims it.
    pub token: Token,
    /// The request path on that device.
    pub path: RequestPath,
}

/// Why a line is not a hello or an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// Another protocol: memcached's `ERROR`, another command.
    #[error("not a herdwick line")]
    Foreign,
    /// The other end speaks another version.
    #[error("the other end speaks version {0}, this one {VERSION}")]
    Version(u8),
    /// A field is missing or malformed.
    #[error("field `{0}` is missing or malformed")]
    Field(&'static str),
}

impl Hello {
    /// Encodes the line, with its end.
    #[must_use]
    pub fn to_line(&self) -> String {
        let mut line = format!("hello herdwick/{VERSION}");
        let fabrics = [
            ("shm", self.shm),
            ("verbs", self.verbs),
            ("roce", self.roce),
        ];
        let fabrics: Vec<_> = fabrics.iter().filter(|(_, can)| *can).collect();
        for (n, (name, _)) in fabrics.iter().enumerate() {
            line.push_str(if n == 0 { " fabrics=" } else { "," });
            line.push_str(name);
        }
        if let Some(path) = self.path {
            let _ = write!(line, " path={path}");
        }
        if let Some(boot) = self.boot {
            let _ = write!(line, " boot={}", hex(&boot.0));
        }
        line + "\r\n"
    }

    /// Parses a line without its end. Unknown fields are skipped.
    ///
    /// # Errors
    /// [`LineError`].
    pub fn parse(line: &[u8]) -> Result<Self, LineError> {
        let mut words = words(line)?;
        if words.next() != Some("hello") {
            return Err(LineError::Foreign);
        }
        let name = words.next().and_then(|word| word.strip_prefix("herdwick/"));
        version(name.ok_or(LineError::Foreign)?)?;
        let mut hello = Self::default();
        for word in words {
            match word.split_once('=') {
                Some(("fabrics", list)) => {
                    let has = |fabric| list.split(',').any(|name| name == fabric);
                    (hello.shm, hello.verbs) = (has("shm"), has("verbs"));
                    hello.roce = has("roce");
                }
                // A path that this end does not know counts as no preference.
                Some(("path", name)) => hello.path = name.parse().ok(),
                Some(("boot", id)) => {
                    hello.boot = Some(BootId(bytes16(id).ok_or(LineError::Field("boot"))?));
                }
                _ => {}
            }
        }
        Ok(hello)
    }
}

/// Returns `path` as an offer can carry it: one word of printable ASCII; `None` for any other.
#[must_use]
pub fn path_word(path: &Path) -> Option<&str> {
    let word = path.to_str()?;
    word.bytes().all(|b| b.is_ascii_graphic()).then_some(word)
}

impl Offer {
    /// Encodes the line, with its end. A socket path that is not a [`path_word`] is omitted, and
    /// shared memory with it.
    #[must_use]
    pub fn to_line(&self) -> String {
        let [k0, k1] = self.hash_key.0;
        let mut line = format!(
            "HERDWICK {VERSION} workers={} hash=siphash13:{k0:016x}{k1:016x} item-max={} path={}",
            self.workers, self.item_bytes_max, self.path
        );
        let shm = self.shm.as_ref();
        if let Some((shm, path)) = shm.and_then(|shm| Some((shm, path_word(&shm.socket)?))) {
            let _ = write!(line, " shm={path} token={}", hex(&shm.token.0));
        }
        if let Some(VerbsOffer { token, path }) = &self.verbs {
            let _ = write!(line, " verbs={} verbs-path={path}", hex(&token.0));
        }
        if let Some(token) = &self.roce {
            let _ = write!(line, " roce={}", hex(&token.0));
            if self.keyed {
                let _ = write!(line, " keys={KEYS}");
            }
        }
        line + "\r\n"
    }

    /// Parses a line without its end. Unknown fields are skipped.
    ///
    /// # Errors
    /// [`LineError`].
    pub fn parse(line: &[u8]) -> Result<Self, LineError> {
        let mut words = words(line)?;
        if words.next() != Some("HERDWICK") {
            return Err(LineError::Foreign);
        }
        version(words.next().ok_or(LineError::Foreign)?)?;
        let fields: Vec<_> = words.filter_map(|word| word.split_once('=')).collect();
        let field = |name: &'static str| {
            fields
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| *value)
        };
        let number = |name: &'static str| {
            field(name)
                .and_then(|text| text.parse::<usize>().ok())
                .ok_or(LineError::Field(name))
        };
        let workers = number("workers")?;
        // A lease is of fewer: its grant says so.
        if !(1..=wire::WORKERS_MAX).contains(&workers) {
            return Err(LineError::Field("workers"));
        }
        Ok(Self {
            workers,
            hash_key: field("hash")
                .and_then(hash_key)
                .ok_or(LineError::Field("hash"))?,
            item_bytes_max: number("item-max")?,
            path: path(field("path"), "path")?,
            shm: match (field("shm"), field("token")) {
                (Some(path), Some(token)) => Some(ShmOffer {
                    socket: path.into(),
                    token: Token(bytes16(token).ok_or(LineError::Field("token"))?),
                }),
                _ => None,
            },
            verbs: match token(field("verbs"), "verbs")? {
                Some(token) => Some(VerbsOffer {
                    token,
                    path: path(field("verbs-path"), "verbs-path")?,
                }),
                None => None,
            },
            keyed: field("keys") == Some(KEYS),
            // Without a known kind of keys this end cannot send valid packets, so it takes no
            // lease.
            roce: match field("keys") {
                Some(keys) if keys != KEYS => None,
                _ => token(field("roce"), "roce")?,
            },
        })
    }
}

fn path(text: Option<&str>, name: &'static str) -> Result<RequestPath, LineError> {
    let path = text.map(|text| text.parse().map_err(|_| LineError::Field(name)));
    Ok(path.transpose()?.unwrap_or_default())
}

fn token(text: Option<&str>, name: &'static str) -> Result<Option<Token>, LineError> {
    let bytes = text.map(|text| bytes16(text).ok_or(LineError::Field(name)));
    Ok(bytes.transpose()?.map(Token))
}

fn words(line: &[u8]) -> Result<std::str::SplitAsciiWhitespace<'_>, LineError> {
    if line.len() > HELLO_BYTES_MAX {
        return Err(LineError::Foreign);
    }
    Ok(std::str::from_utf8(line)
        .map_err(|_| LineError::Foreign)?
        .split_ascii_whitespace())
}

fn version(text: &str) -> Result<(), LineError> {
    match text.parse() {
        Ok(VERSION) => Ok(()),
        Ok(other) => Err(LineError::Version(other)),
        Err(_) => Err(LineError::Foreign),
    }
}

fn hash_key(text: &str) -> Option<HashKey> {
    let digits = text.strip_prefix("siphash13:")?;
    let bytes = bytes16(digits)?;
    let (k0, k1) = bytes.split_at(8);
    Some(HashKey([
        u64::from_be_bytes(k0.try_into().ok()?),
        u64::from_be_bytes(k1.try_into().ok()?),
    ]))
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
            let _ = write!(out, "{byte:02x}");
            out
        })
}

fn bytes16(digits: &str) -> Option<[u8; 16]> {
    if digits.len() != 32 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let number = u128::from_str_radix(digits, 16).ok()?;
    Some(number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn offer() -> Offer {
        Offer {
            workers: 3,
            hash_key: HashKey([0x0123_4567_89ab_cdef, 42]),
            item_bytes_max: 1 << 20,
            path: RequestPath::UdSend,
            verbs: Some(VerbsOffer {
                token: Token([8; 16]),
                path: RequestPath::RcWrite,
            }),
            roce: Some(Token([9; 16])),
            keyed: true,
            shm: Some(ShmOffer {
                socket: "/run/herdwick/lease".into(),
                token: Token([7; 16]),
            }),
        }
    }

    #[test]
    fn what_is_said_is_heard() {
        let hello = Hello {
            shm: true,
            verbs: true,
            roce: true,
            path: Some(RequestPath::RcWrite),
            boot: BootId::parse("0d0e0f10-1112-1314-1516-171819202122\n"),
        };
        assert!(hello.boot.is_some());
        assert_eq!(
            Hello::parse(hello.to_line().trim_end().as_bytes()),
            Ok(hello)
        );
        let line = offer().to_line();
        assert!(line.len() <= HELLO_BYTES_MAX && line.ends_with("\r\n"));
        assert_eq!(Offer::parse(line.trim_end().as_bytes()), Ok(offer()));
    }

    #[test]
    fn the_text_is_the_documented_one() {
        let line = "HERDWICK 0 workers=3 hash=siphash13:0123456789abcdef000000000000002a \
                    item-max=1048576 path=ud-send shm=/run/herdwick/lease \
                    token=07070707070707070707070707070707 \
                    verbs=08080808080808080808080808080808 verbs-path=rc-write \
                    roce=09090909090909090909090909090909 keys=siphash24\r\n";
        assert_eq!(offer().to_line(), line);
    }

    #[test]
    fn a_server_may_have_more_workers_than_a_lease() {
        let parse = |workers: &str| {
            let line = offer().to_line().replace("workers=3", workers);
            Offer::parse(line.trim_end().as_bytes()).map(|offer| offer.workers)
        };
        assert_eq!(parse("workers=256"), Ok(256));
        for wrong in ["workers=0", "workers=257", "workers="] {
            assert_eq!(parse(wrong), Err(LineError::Field("workers")));
        }
    }

    #[test]
    fn a_stranger_is_told_from_another_version() {
        assert_eq!(Offer::parse(b"ERROR"), Err(LineError::Foreign));
        assert_eq!(Offer::parse(b"HERDWICK 7 x=y"), Err(LineError::Version(7)));
        assert_eq!(
            Hello::parse(b"hello herdwick/9"),
            Err(LineError::Version(9))
        );
        assert_eq!(Hello::parse(b"hello world"), Err(LineError::Foreign));
        assert_eq!(
            Hello::parse(b"hello herdwick/0 news=1 boot=zz"),
            Err(LineError::Field("boot"))
        );
    }

    #[test]
    fn keys_of_another_kind_open_nothing() {
        let line = offer().to_line().replace("siphash24", "rot13");
        let heard = Offer::parse(line.trim_end().as_bytes()).unwrap();
        assert_eq!((heard.roce, heard.keyed), (None, false));
        assert!(heard.shm.is_some());
    }

    #[test]
    fn a_path_that_would_break_the_line_is_not_offered() {
        let mut offer = offer();
        offer.shm = Some(ShmOffer {
            socket: "/tmp/a b".into(),
            token: Token([0; 16]),
        });
        let heard = Offer::parse(offer.to_line().trim_end().as_bytes()).unwrap();
        assert_eq!(heard.shm, None);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(line in prop::collection::vec(any::<u8>(), 0..200), tail in "[ -~]{0,200}") {
            let _ = (Hello::parse(&line), Offer::parse(&line));
            let _ = Hello::parse(format!("hello herdwick/0 {tail}").as_bytes());
            let _ = Offer::parse(format!("HERDWICK 0 {tail}").as_bytes());
        }
    }
}
