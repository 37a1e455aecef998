//! The hello: one text line each way on the memcached port, as bytes and back. Unknown fields are
//! skipped; no input panics.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use herdwick_request::HashKey;

use super::Token;
use crate::{RequestPath, wire};

/// The version of everything in `docs/wire.md`.
pub const VERSION: u8 = 0;
/// Most bytes of a hello or an offer, line end included: below the 2 KiB at which memcached closes
/// the connection on a line that it does not know.
pub const HELLO_BYTES_MAX: usize = 1024;

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

/// The client's line: `hello herdwick/0 [fabrics=<name>,<name>...] [engines=<name>,...] [path=<path>]
/// [member=<16 hex>] boot=<32 hex>`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// The names of the fabrics that the client can use.
    pub fabrics: Vec<String>,
    /// The request path that it prefers; the server decides.
    pub path: Option<RequestPath>,
    /// The boot that it runs on.
    pub boot: Option<BootId>,
    /// The engines that it knows besides HERD.
    pub engines: Vec<String>,
    /// The registration of the server in etcd that it has seen last: the lease of its key (docs/cluster.md).
    pub member: Option<u64>,
}

/// The server's line to a client that knows another registration of it.
pub const ANOTHER_MEMBER: &str = "HERDWICK 0 refused=member\r\n";

/// The server's line: `HERDWICK 0 workers=2 hash=siphash13:<32 hex> item-max=1048576 …`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Workers, which is also partitions, at most 256; where there is a lease to be had, at most
    /// [`WORKERS_MAX`](super::WORKERS_MAX). A key's partition is
    /// [`herdwick_request::KeyHash::partition`] of this.
    pub workers: usize,
    /// The key of the locator hash.
    pub hash_key: HashKey,
    /// Most bytes of an item.
    pub item_bytes_max: usize,
    /// The request path, unless a fabric's own offer names another.
    pub path: RequestPath,
    /// The engine that a lease reaches; `None`: HERD. A client that does not know it takes no lease.
    pub engine: Option<String>,
    /// How a claim may ask to read the stores, if it may.
    pub one_sided: Option<OneSidedOffer>,
    /// The store that clients may read besides the server.
    pub secondary: Option<SecondaryOffer>,
    /// The fabrics that both ends can use.
    pub fabrics: Vec<FabricOffer>,
}

/// How clients find items in the stores' memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OneSidedOffer {
    /// By an index of buckets (docs/store.md).
    Reads,
    /// By stags, which they ask the workers for (docs/memrdma.md).
    Stags,
}

impl OneSidedOffer {
    const ALL: [Self; 2] = [Self::Reads, Self::Stags];

    const fn word(self) -> &'static str {
        match self {
            Self::Reads => "reads",
            Self::Stags => "stags",
        }
    }
}

/// A store that clients read by themselves, while the server's replies allow it (docs/hkvs.md).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecondaryOffer {
    /// Its memcached port, `HOST:PORT`.
    pub address: String,
    /// For how long a reply allows it, counted from when its request was sent; whole milliseconds.
    pub lease: Duration,
    /// Which one it is; `None`: the server is not connected to it.
    pub store: Option<StoreName>,
}

/// One secondary store among those that may have stood at an address: each connection of a server to it begins
/// another, which is empty at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreName {
    /// What a claim there has to show.
    pub id: StoreId,
    /// What replies call it, below [`StoreName::NUMBERS`].
    pub number: u8,
}

impl StoreName {
    /// Numbers that there are.
    pub const NUMBERS: u8 = 16;
}

/// 64 bits that name a secondary store. Who shows them may read it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct StoreId(pub u64);

impl StoreId {
    /// Returns the two numbers of a claim that show it: in those of HERD's claims, which mean nothing there.
    #[must_use]
    pub fn numbers(self) -> [u32; 2] {
        [self.0 as u32, (self.0 >> 32) as u32]
    }

    /// Returns whether these numbers of a claim show it, in a time that does not depend on where they differ.
    #[must_use]
    pub fn is_shown(self, numbers: [u32; 2]) -> bool {
        let own = self.numbers();
        (own[0] ^ numbers[0]) | (own[1] ^ numbers[1]) == 0
    }
}

impl std::fmt::Debug for StoreId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StoreId(..)")
    }
}

/// How a fabric appears in the two lines. Providers have their own; this module knows none. These words
/// are for people and for clients written from `docs/wire.md`; what only a provider reads, its
/// endpoints and descriptors, are blobs in the frames behind them (`herdwick_fabric::PdTicket`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FabricWords {
    /// Its name.
    pub name: &'static str,
    /// Whether its offer is the lease socket, `NAME=<path> token=<32 hex>`; otherwise it is the
    /// token alone, `NAME=<32 hex>`.
    pub socket: bool,
    /// Whether its offer has a request path of its own, `NAME-path=<path>`.
    pub own_path: bool,
    /// A word, name and value, that its offer may have in addition. A client that does not know the
    /// value cannot use the fabric.
    pub attribute: Option<(&'static str, &'static str)>,
}

/// A lease over one fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricOffer {
    /// The fabric's name.
    pub name: &'static str,
    /// The token that claims it.
    pub token: Token,
    /// The lease socket, a unix stream socket; `None`: it is claimed on a new connection to this
    /// address.
    pub socket: Option<PathBuf>,
    /// The request path; `None`: [`Offer::path`].
    pub path: Option<RequestPath>,
    /// The word of its own.
    pub attribute: Option<(&'static str, &'static str)>,
}

/// Why a line is not a hello or an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// Another protocol: memcached's `ERROR`, another command.
    #[error("not a herdwick line")]
    Foreign,
    /// The other end speaks another version.
    #[error("the other end has version {0}, this one {VERSION}")]
    Version(u8),
    /// A field is missing or malformed.
    #[error("field `{0}` is missing or malformed")]
    Field(&'static str),
    /// The server has registered anew in etcd since the client has heard of it.
    #[error("the server has registered anew")]
    AnotherMember,
}

impl Hello {
    /// Encodes the line, with its end.
    #[must_use]
    pub fn to_line(&self) -> String {
        let mut line = format!("hello herdwick/{VERSION}");
        if !self.fabrics.is_empty() {
            // Writing to a `String` cannot fail.
            let _ = write!(line, " fabrics={}", self.fabrics.join(","));
        }
        if !self.engines.is_empty() {
            let _ = write!(line, " engines={}", self.engines.join(","));
        }
        if let Some(path) = self.path {
            let _ = write!(line, " path={path}");
        }
        if let Some(member) = self.member {
            let _ = write!(line, " member={member:016x}");
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
                    hello.fabrics = list.split(',').map(str::to_owned).collect();
                }
                Some(("engines", list)) => {
                    hello.engines = list.split(',').map(str::to_owned).collect();
                }
                // A path that this end does not know counts as no preference: the server decides anyway.
                Some(("path", name)) => hello.path = name.parse().ok(),
                Some(("member", digits)) => {
                    hello.member = Some(hex64(digits).ok_or(LineError::Field("member"))?);
                }
                Some(("boot", id)) => {
                    hello.boot = Some(BootId(bytes16(id).ok_or(LineError::Field("boot"))?));
                }
                _ => {}
            }
        }
        Ok(hello)
    }

    /// Returns whether the client can use the fabric `name`.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.fabrics.iter().any(|fabric| fabric == name)
    }

    /// Returns whether the client can use `engine`; `None`: HERD, which every client can.
    #[must_use]
    pub fn knows(&self, engine: Option<&str>) -> bool {
        engine.is_none_or(|engine| self.engines.iter().any(|known| known == engine))
    }
}

/// Returns `path` as an offer can carry it: one word of printable ASCII; `None` for any other.
#[must_use]
pub fn path_word(path: &Path) -> Option<&str> {
    let word = path.to_str()?;
    word.bytes().all(|b| b.is_ascii_graphic()).then_some(word)
}

impl Offer {
    /// Returns the offer of the fabric `name`.
    #[must_use]
    pub fn fabric(&self, name: &str) -> Option<&FabricOffer> {
        self.fabrics.iter().find(|fabric| fabric.name == name)
    }

    /// Encodes the line, with its end. A fabric whose socket path is not a [`path_word`] is
    /// omitted.
    #[must_use]
    pub fn to_line(&self) -> String {
        let [k0, k1] = self.hash_key.0;
        let mut line = format!(
            "HERDWICK {VERSION} workers={} hash=siphash13:{k0:016x}{k1:016x} item-max={} path={}",
            self.workers, self.item_bytes_max, self.path
        );
        if let Some(engine) = &self.engine {
            let _ = write!(line, " engine={engine}");
        }
        if let Some(one_sided) = self.one_sided {
            let _ = write!(line, " one-sided={}", one_sided.word());
        }
        if let Some(secondary) = &self.secondary {
            secondary.append_to(&mut line);
        }
        for fabric in &self.fabrics {
            fabric.append_to(&mut line);
        }
        line + "\r\n"
    }

    /// Parses a line without its end, for a client that knows the fabrics `known`. Unknown fields
    /// are skipped.
    ///
    /// # Errors
    /// [`LineError`].
    pub fn parse(line: &[u8], known: &[FabricWords]) -> Result<Self, LineError> {
        let mut words = words(line)?;
        if words.next() != Some("HERDWICK") {
            return Err(LineError::Foreign);
        }
        version(words.next().ok_or(LineError::Foreign)?)?;
        let fields: Vec<_> = words.filter_map(|word| word.split_once('=')).collect();
        let field = |name: &str| {
            fields
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| *value)
        };
        if field("refused") == Some("member") {
            return Err(LineError::AnotherMember);
        }
        let number = |name: &'static str| {
            field(name)
                .and_then(|text| text.parse::<usize>().ok())
                .ok_or(LineError::Field(name))
        };
        let workers = number("workers")?;
        // A lease may be for fewer workers; its grant names them.
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
            engine: field("engine").map(str::to_owned),
            one_sided: field("one-sided").and_then(|word| {
                let mut known = OneSidedOffer::ALL.into_iter();
                known.find(|offer| offer.word() == word)
            }),
            secondary: SecondaryOffer::parse(field),
            fabrics: known
                .iter()
                .filter_map(|words| FabricOffer::parse(words, field).transpose())
                .collect::<Result<_, _>>()?,
        })
    }
}

impl FabricOffer {
    /// Appends the words of this fabric to an offer's line.
    fn append_to(&self, line: &mut String) {
        let (name, token) = (self.name, hex(&self.token.0));
        let _ = match &self.socket {
            Some(socket) => match path_word(socket) {
                Some(socket) => write!(line, " {name}={socket} token={token}"),
                None => return,
            },
            None => write!(line, " {name}={token}"),
        };
        if let Some(path) = self.path {
            let _ = write!(line, " {name}-path={path}");
        }
        if let Some((key, value)) = self.attribute {
            let _ = write!(line, " {key}={value}");
        }
    }

    /// Parses a fabric's words among an offer's fields; `None`: it is not offered, or not in a way
    /// that this end knows.
    fn parse<'a>(
        words: &FabricWords,
        field: impl Fn(&str) -> Option<&'a str>,
    ) -> Result<Option<Self>, LineError> {
        let name = words.name;
        let attribute = words
            .attribute
            .and_then(|(key, known)| Some((field(key)? == known, (key, known))));
        let (Some(first), None | Some((true, _))) = (field(name), attribute) else {
            return Ok(None);
        };
        let (socket, token) = match (words.socket, field("token")) {
            (true, Some(digits)) => (Some(first.into()), token(digits, "token")?),
            (true, None) => return Ok(None),
            (false, _) => (None, token(first, name)?),
        };
        let own_path = words
            .own_path
            .then(|| path(field(&format!("{name}-path")), name));
        Ok(Some(Self {
            name,
            token,
            socket,
            path: own_path.transpose()?,
            attribute: attribute.map(|(_, word)| word),
        }))
    }
}

impl SecondaryOffer {
    /// Appends its words to an offer's line.
    fn append_to(&self, line: &mut String) {
        let (address, lease) = (&self.address, self.lease.as_millis());
        let _ = write!(line, " secondary={address} secondary-lease={lease}");
        if let Some(StoreName { id, number }) = self.store {
            let id = id.0;
            let _ = write!(line, " secondary-id={id:016x} secondary-number={number}");
        }
    }

    /// Parses its words among an offer's fields; one without a lease cannot be used.
    fn parse<'a>(field: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        let lease = field("secondary-lease")?.parse::<u32>().ok()?;
        Some(Self {
            address: field("secondary")?.to_owned(),
            lease: Duration::from_millis(lease.into()),
            store: store_name(field("secondary-id"), field("secondary-number")),
        })
    }
}

fn store_name(id: Option<&str>, number: Option<&str>) -> Option<StoreName> {
    let id = StoreId(hex64(id?)?);
    let number = number?.parse::<u8>().ok();
    let number = number.filter(|number| *number < StoreName::NUMBERS)?;
    Some(StoreName { id, number })
}

fn path(text: Option<&str>, name: &'static str) -> Result<RequestPath, LineError> {
    // A hello only prefers a path; an offer's is binding, so a client cannot use one that it does
    // not know.
    let path = text.map(|text| text.parse().map_err(|_| LineError::Field(name)));
    Ok(path.transpose()?.unwrap_or_default())
}

fn token(digits: &str, name: &'static str) -> Result<Token, LineError> {
    bytes16(digits).map(Token).ok_or(LineError::Field(name))
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

fn hex64(digits: &str) -> Option<u64> {
    // `from_str_radix` would accept a sign.
    let is_whole = digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    u64::from_str_radix(digits, 16).ok().filter(|_| is_whole)
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

    /// Fabrics of each shape that an offer can have.
    const KNOWN: [FabricWords; 3] = [
        FabricWords {
            name: "here",
            socket: true,
            own_path: false,
            attribute: None,
        },
        FabricWords {
            name: "wire",
            socket: false,
            own_path: true,
            attribute: None,
        },
        FabricWords {
            name: "net",
            socket: false,
            own_path: false,
            attribute: Some(("keys", "siphash24")),
        },
    ];

    fn parse(line: &str) -> Result<Offer, LineError> {
        Offer::parse(line.trim_end().as_bytes(), &KNOWN)
    }

    fn offer() -> Offer {
        let fabric = |words: &FabricWords, token| FabricOffer {
            name: words.name,
            token: Token([token; 16]),
            socket: words.socket.then(|| "/run/herdwick/lease".into()),
            path: words.own_path.then_some(RequestPath::RcWrite),
            attribute: words.attribute,
        };
        Offer {
            workers: 3,
            hash_key: HashKey([0x0123_4567_89ab_cdef, 42]),
            item_bytes_max: 1 << 20,
            path: RequestPath::UdSend,
            engine: None,
            one_sided: None,
            secondary: None,
            fabrics: KNOWN
                .iter()
                .zip(7..)
                .map(|(words, n)| fabric(words, n))
                .collect(),
        }
    }

    #[test]
    fn hello_lines_round_trip() {
        let hello = Hello {
            fabrics: ["here", "wire", "net"].map(String::from).to_vec(),
            path: Some(RequestPath::RcWrite),
            boot: BootId::parse("0d0e0f10-1112-1314-1516-171819202122\n"),
            engines: vec!["rows".to_owned()],
            member: Some(0x12),
        };
        assert!(hello.to_line().contains(" member=0000000000000012 "));
        assert!(hello.knows(None) && hello.knows(Some("rows")) && !hello.knows(Some("row")));
        assert!(hello.boot.is_some());
        assert_eq!(
            Hello::parse(hello.to_line().trim_end().as_bytes()),
            Ok(hello)
        );
        let line = offer().to_line();
        assert!(line.len() <= HELLO_BYTES_MAX && line.ends_with("\r\n"));
        assert_eq!(parse(&line), Ok(offer()));
        for one_sided in OneSidedOffer::ALL {
            let other = Offer {
                engine: Some("rows".to_owned()),
                one_sided: Some(one_sided),
                ..offer()
            };
            assert_eq!(parse(&other.to_line()), Ok(other));
        }
        let lease = Duration::from_millis(250);
        let address = "[::1]:11212".to_owned();
        let secondary = SecondaryOffer {
            address,
            lease,
            store: None,
        };
        let with = Offer {
            secondary: Some(secondary.clone()),
            ..offer()
        };
        let line = with.to_line();
        assert!(line.contains(" secondary=[::1]:11212 secondary-lease=250 "));
        assert_eq!(parse(&line), Ok(with));
        let without = parse(&line.replace("lease=250", "lease=x")).unwrap();
        assert_eq!(without.secondary, None);
        let (id, number) = (StoreId(0x12), 15);
        let named = SecondaryOffer {
            store: Some(StoreName { id, number }),
            ..secondary.clone()
        };
        let with = Offer {
            secondary: Some(named),
            ..offer()
        };
        let line = with.to_line();
        assert!(line.contains(" secondary-id=0000000000000012 secondary-number=15 "));
        assert_eq!(parse(&line), Ok(with));
        for (right, wrong) in [("-number=15", "-number=16"), ("-id=0", "-id=+")] {
            let without = parse(&line.replace(right, wrong)).unwrap();
            assert_eq!(without.secondary, Some(secondary.clone()));
        }
    }

    #[test]
    fn hello_lines_match_wire_md() {
        let line = "HERDWICK 0 workers=3 hash=siphash13:0123456789abcdef000000000000002a \
                    item-max=1048576 path=ud-send here=/run/herdwick/lease \
                    token=07070707070707070707070707070707 \
                    wire=08080808080808080808080808080808 wire-path=rc-write \
                    net=09090909090909090909090909090909 keys=siphash24\r\n";
        assert_eq!(offer().to_line(), line);
    }

    #[test]
    fn offer_may_name_more_workers_than_a_lease() {
        let parse = |workers: &str| {
            let line = offer().to_line().replace("workers=3", workers);
            parse(&line).map(|offer| offer.workers)
        };
        assert_eq!(parse("workers=256"), Ok(256));
        for wrong in ["workers=0", "workers=257", "workers="] {
            assert_eq!(parse(wrong), Err(LineError::Field("workers")));
        }
    }

    #[test]
    fn unknown_server_is_distinguished_from_another_version() {
        assert_eq!(parse("ERROR"), Err(LineError::Foreign));
        assert_eq!(parse("HERDWICK 7 x=y"), Err(LineError::Version(7)));
        assert_eq!(
            Hello::parse(b"hello herdwick/9"),
            Err(LineError::Version(9))
        );
        assert_eq!(Hello::parse(b"hello world"), Err(LineError::Foreign));
        assert_eq!(
            Hello::parse(b"hello herdwick/0 news=1 boot=zz"),
            Err(LineError::Field("boot"))
        );
        for digits in ["12", "+000000000000012", "00000000000000012"] {
            let line = format!("hello herdwick/0 member={digits}");
            let malformed = Err(LineError::Field("member"));
            assert_eq!(Hello::parse(line.as_bytes()), malformed, "{digits}");
        }
        assert_eq!(parse(ANOTHER_MEMBER), Err(LineError::AnotherMember));
    }

    #[test]
    fn unknown_kind_of_keys_disables_roce() {
        let line = offer().to_line().replace("siphash24", "rot13");
        let heard = parse(&line).unwrap();
        assert_eq!(heard.fabric("net"), None);
        assert!(heard.fabric("here").is_some());
    }

    #[test]
    fn what_a_fabric_may_leave_out_has_a_default() {
        let line = offer().to_line();
        let heard = parse(&line.replace(" wire-path=rc-write", "")).unwrap();
        let wire = heard.fabric("wire").unwrap();
        assert_eq!(wire.path, Some(RequestPath::UcWrite), "not the offer's");
        let heard = parse(&line.replace(" keys=siphash24", "")).unwrap();
        assert_eq!(heard.fabric("net").unwrap().attribute, None);
        let token = " token=07070707070707070707070707070707";
        let heard = parse(&line.replace(token, "")).unwrap();
        assert_eq!(heard.fabric("here"), None);
        let broken = parse(&line.replace("net=09", "net=zz"));
        assert_eq!(broken, Err(LineError::Field("net")));
    }

    #[test]
    fn socket_path_that_breaks_the_line_is_not_offered() {
        let mut offer = offer();
        offer.fabrics[0].socket = Some("/tmp/a b".into());
        let heard = parse(&offer.to_line()).unwrap();
        assert_eq!(heard.fabric("here"), None);
        assert_eq!(heard.fabrics.len(), 2);
    }

    proptest! {
        #[test]
        fn decoding_random_bytes_does_not_panic(line in prop::collection::vec(any::<u8>(), 0..200), tail in "[ -~]{0,200}") {
            let _ = (Hello::parse(&line), Offer::parse(&line, &KNOWN));
            let _ = Hello::parse(format!("hello herdwick/0 {tail}").as_bytes());
            let _ = Offer::parse(format!("HERDWICK 0 {tail}").as_bytes(), &KNOWN);
        }
    }
}
