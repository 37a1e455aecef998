//! Authentication: users and passwords in a file, as memcached's `-Y` or the file that
//! MEMCACHED_SASL_PWDB names for its `-S`.

mod sasl;
mod scram;

use std::{
    borrow::Cow,
    collections::HashSet,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use stringprep::saslprep;

pub(crate) use sasl::{MECHANISMS, SaslExchange, SaslStep};
use scram::{ITERATIONS, Keys, mac, same};

use crate::settings::{
    auth_error::{AuthError, LINE_BYTES_MAX},
    config::{Config, SaslUsers},
};

/// Largest number of users of the text protocol (memcached's `MAX_ENTRIES`).
const USERS_MAX: usize = 8;
/// Largest number of users of SASL. Every attempt is compared with each, and the start hashes each
/// password thousands of times.
const SASL_USERS_MAX: usize = 1024;
/// Length of a salt in bytes.
const SALT_BYTES: usize = 16;
/// Length of a nonce in bytes.
const NONCE_BYTES: usize = 18;

/// The users of a file of `user:password` lines.
pub(crate) struct Auth {
    path: PathBuf,
    format: UserFormat,
    /// For SASL; `None`: users of the text protocol.
    secret: Option<SaltSecret>,
    /// Replaced as a whole. Locked only to copy the pointer, and only for an authentication
    /// attempt.
    users: Mutex<Arc<[UserEntry]>>,
}

/// A file of users, and how its lines are read.
#[derive(Clone, Copy)]
struct UserFile<'a> {
    path: &'a Path,
    format: UserFormat,
}

/// What a line of the file is, and who is to prove its password.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UserFormat {
    /// `user:password`, for the text protocol.
    Text,
    /// The same, for SASL.
    Sasl,
    /// `user[@realm]:password[:...]`, for SASL.
    Pwdb,
}

/// What salts and nonces are made from: random, and never sent.
struct SaltSecret {
    key: [u8; 32],
    /// How many nonces were made.
    nonces: AtomicU64,
}

struct UserEntry {
    /// For SASL, as [`prepared`] returns it.
    name: Box<[u8]>,
    password: Box<[u8]>,
    /// Whether the password may also end at any colon, as in memcached's file of SASL users.
    fields: bool,
    /// For SASL, where name and password are text.
    scram: Option<Scram>,
}

/// What SCRAM keeps of a password.
struct Scram {
    /// The password, as [`prepared`] returns it.
    password: Box<[u8]>,
    keys: Keys,
}

/// What SCRAM needs to challenge a user.
struct Challenge {
    keys: Keys,
    salt: [u8; SALT_BYTES],
    nonce: [u8; NONCE_BYTES],
}

impl Auth {
    /// Reads the users that `config` names, if it names any.
    pub(crate) fn open(config: &Config) -> Result<Option<Self>, AuthError> {
        let Some(source) = UserFile::of(config) else {
            return Ok(None);
        };
        let secret = match source.format {
            UserFormat::Text => None,
            UserFormat::Sasl | UserFormat::Pwdb => Some(SaltSecret::new()?),
        };
        let users = source.users(secret.as_ref())?;
        Ok(Some(Self {
            path: source.path.to_owned(),
            format: source.format,
            secret,
            users: Mutex::new(users),
        }))
    }

    /// Reads the file again. If it cannot be used, the previous users stay.
    pub(crate) fn reload(&self) -> Result<(), AuthError> {
        let source = UserFile {
            path: &self.path,
            format: self.format,
        };
        source.check_regular()?;
        let users = source.users(self.secret.as_ref())?;
        *self.users.lock().unwrap_or_else(PoisonError::into_inner) = users;
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether clients authenticate by SASL, and not in the text protocol.
    pub(crate) fn is_sasl(&self) -> bool {
        self.secret.is_some()
    }

    /// Returns whether this user has this password. Every user is compared, and every comparison
    /// runs to the end, so the time depends only on lengths.
    pub(crate) fn admits(&self, name: &[u8], password: &[u8]) -> bool {
        self.users().iter().fold(false, |known, user| {
            known | (same(&user.name, name) & user.has(password))
        })
    }

    /// Returns whether this user has this password for PLAIN, which compares both as SCRAM does
    /// (RFC 4616); the password may also be the bytes in the file, as for memcached. Time as in
    /// [`Self::admits`].
    fn admits_plain(&self, name: &[u8], password: &[u8]) -> bool {
        let (name, text) = (prepared(name), prepared(password));
        let admitted = self.users().iter().fold(false, |known, user| {
            known | (same(&user.name, &name) & (user.has(password) | user.has_prepared(&text)))
        });
        // RFC 4616: a user's name has at least one character.
        admitted && !name.is_empty()
    }

    /// Returns what SCRAM needs to challenge the user of this name; `None` if there is no SASL. For
    /// an unknown user it makes a challenge in the same time, with keys that no password produces.
    fn challenge(&self, name: &str) -> Option<Challenge> {
        let secret = self.secret.as_ref()?;
        let unknown = Keys {
            stored: secret.mac("stored", name.as_bytes()),
            server: secret.mac("server", name.as_bytes()),
        };
        let users = self.users();
        // All users are compared, as in `admits`.
        let keys = users.iter().fold(unknown, |found, user| {
            match (same(&user.name, name.as_bytes()), &user.scram) {
                (true, Some(scram)) => scram.keys,
                _ => found,
            }
        });
        Some(Challenge {
            keys,
            salt: secret.salt(name),
            nonce: secret.nonce(),
        })
    }

    fn users(&self) -> Arc<[UserEntry]> {
        Arc::clone(&self.users.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl SaltSecret {
    fn new() -> Result<Self, AuthError> {
        let mut key = [0; 32];
        let drawn = getrandom::fill(&mut key);
        drawn.map_err(|error| AuthError::Random(io::Error::other(error)))?;
        Ok(Self {
            key,
            nonces: AtomicU64::new(0),
        })
    }

    /// Returns the salt of a user: the same whenever it is asked, and whether there is such a user
    /// or not.
    fn salt(&self, name: &str) -> [u8; SALT_BYTES] {
        first(self.mac("salt", name.as_bytes()))
    }

    /// Returns a nonce that was not returned before, and that only this process can compute.
    fn nonce(&self) -> [u8; NONCE_BYTES] {
        // Relaxed: only distinct counts are needed.
        let count = self.nonces.fetch_add(1, Relaxed);
        first(self.mac("nonce", &count.to_be_bytes()))
    }

    /// Returns bytes that are fixed for this purpose and this text.
    fn mac(&self, purpose: &str, text: &[u8]) -> [u8; 32] {
        mac(&self.key, &[purpose.as_bytes(), b"\0", text].concat())
    }
}

fn first<const N: usize>(bytes: [u8; 32]) -> [u8; N] {
    std::array::from_fn(|at| bytes[at])
}

impl UserEntry {
    fn has(&self, password: &[u8]) -> bool {
        let all = same(&self.password, password);
        let part = self.password.split_at_checked(password.len());
        let field =
            part.is_some_and(|(field, rest)| same(field, password) & rest.starts_with(b":"));
        all | (self.fields & field)
    }

    /// Returns whether this is the password, as [`prepared`] returns it.
    fn has_prepared(&self, password: &[u8]) -> bool {
        let scram = self.scram.as_ref();
        scram.is_some_and(|scram| same(&scram.password, password))
    }

    /// Adds what SCRAM needs, from the password as the client prepares it.
    fn keyed(mut self, secret: &SaltSecret) -> Self {
        let mut fields = self.password.split(|&byte| byte == b':');
        // Where the password may end at a colon, a client prepares the part before the first one.
        let field = fields.next().filter(|_| self.fields);
        let password = field.unwrap_or(&self.password);
        self.scram = str::from_utf8(&self.name).ok().and_then(|name| {
            str::from_utf8(password).ok()?;
            let password = prepared(password);
            let keys = Keys::derive(&password, &secret.salt(name), ITERATIONS);
            Some(Scram {
                password: password.into(),
                keys,
            })
        });
        self
    }
}

/// Prepares a name or password for comparison by SASLprep (RFC 4013), where that is possible: the
/// same letters are then the same bytes, however they were typed.
fn prepared(bytes: &[u8]) -> Cow<'_, [u8]> {
    let text = str::from_utf8(bytes).ok();
    match text.and_then(|text| saslprep(text).ok()) {
        Some(Cow::Owned(text)) => text.into_bytes().into(),
        Some(Cow::Borrowed(_)) | None => bytes.into(),
    }
}

impl<'a> UserFile<'a> {
    /// Returns the file that `config` names, if it names any.
    fn of(config: &'a Config) -> Option<Self> {
        let (path, format) = match (&config.sasl, &config.auth) {
            (Some(SaslUsers::AuthFile(path)), _) => (path, UserFormat::Sasl),
            (Some(SaslUsers::Pwdb(path)), _) => (path, UserFormat::Pwdb),
            (None, Some(path)) => (path, UserFormat::Text),
            (None, None) => return None,
        };
        Some(Self { path, format })
    }

    /// Returns the users in the file, with the keys of SASL if there is a secret to make them.
    fn users(self, secret: Option<&SaltSecret>) -> Result<Arc<[UserEntry]>, AuthError> {
        let users = self.read()?;
        let Some(secret) = secret else {
            return Ok(users.into());
        };
        Ok(users.into_iter().map(|user| user.keyed(secret)).collect())
    }

    fn unreadable(self, source: io::Error) -> AuthError {
        AuthError::Unreadable {
            path: self.path.to_owned(),
            option: self.format.option(),
            source,
        }
    }

    /// Checks that the file can be read without waiting for a writer, as a pipe cannot.
    fn check_regular(self) -> Result<(), AuthError> {
        let found = std::fs::metadata(self.path).map_err(|source| self.unreadable(source))?;
        if found.is_file() {
            return Ok(());
        }
        Err(self.unreadable(io::Error::other("only a regular file is read again")))
    }

    fn read(self) -> Result<Vec<UserEntry>, AuthError> {
        let path = || self.path.to_owned();
        let text = std::fs::read(self.path).map_err(|source| self.unreadable(source))?;
        let lines = text
            .split(|&byte| byte == b'\n')
            .map(<[u8]>::trim_ascii_end);
        let filled = lines
            .enumerate()
            .filter(|(_, line)| self.format.is_filled(line));
        let mut users: Vec<UserEntry> = filled
            .map(|(index, line)| {
                user(line, self.format).ok_or_else(|| AuthError::Line {
                    path: path(),
                    line: index + 1,
                })
            })
            .collect::<Result<_, _>>()?;
        let (count, max) = (users.len(), self.format.users_max());
        if !(1..=max).contains(&count) {
            let path = path();
            return Err(AuthError::Count { path, count, max });
        }
        if self.format == UserFormat::Pwdb {
            add_short_names(&mut users, &host_name());
        }
        if self.format != UserFormat::Text {
            keep_first(&mut users);
        }
        Ok(users)
    }
}

impl UserFormat {
    /// Returns what names the file.
    fn option(self) -> &'static str {
        match self {
            Self::Text | Self::Sasl => "-Y",
            Self::Pwdb => "the environment variable MEMCACHED_SASL_PWDB",
        }
    }

    fn users_max(self) -> usize {
        match self {
            Self::Text => USERS_MAX,
            Self::Sasl | Self::Pwdb => SASL_USERS_MAX,
        }
    }

    /// Returns whether a line is to be a user. memcached finds none in a line without a colon.
    fn is_filled(self, line: &[u8]) -> bool {
        match self {
            Self::Text | Self::Sasl => !line.is_empty(),
            Self::Pwdb => line.contains(&b':'),
        }
    }
}

fn user(line: &[u8], format: UserFormat) -> Option<UserEntry> {
    let colon = line.iter().position(|&byte| byte == b':')?;
    (line.len() <= LINE_BYTES_MAX).then(|| UserEntry {
        name: line[..colon].into(),
        password: line[colon + 1..].into(),
        fields: format == UserFormat::Pwdb,
        scram: None,
    })
}

/// Prepares the names, and keeps the first user of each: memcached looks no further in its file of
/// SASL users, and SCRAM can prove one password only.
fn keep_first(users: &mut Vec<UserEntry>) {
    let mut names = HashSet::new();
    users.retain_mut(|user| {
        user.name = prepared(&user.name).into();
        names.insert(user.name.clone())
    });
}

/// Adds each user of the realm `host` once more without the realm: Cyrus SASL adds the name of the
/// host to a name without a realm before memcached looks it up. They come first, so that of two
/// lines for such a name it is the one that memcached would find.
fn add_short_names(users: &mut Vec<UserEntry>, host: &[u8]) {
    let short = |user: &UserEntry| {
        let name = user.name.strip_suffix(host)?.strip_suffix(b"@")?;
        Some(UserEntry {
            name: name.into(),
            password: user.password.clone(),
            fields: user.fields,
            scram: None,
        })
    };
    let short: Vec<UserEntry> = users.iter().filter_map(short).collect();
    users.splice(..0, short);
}

/// Returns the name of this host; empty if it cannot be read, and then no user is of its realm.
fn host_name() -> Vec<u8> {
    let name = std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim_ascii().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_pwdb(line: &[u8]) -> UserEntry {
        user(line, UserFormat::Pwdb).unwrap()
    }

    #[test]
    fn auth_file_lines_are_parsed() {
        assert!(user(b"no colon", UserFormat::Text).is_none());
        assert!(user(&[b':'; 257], UserFormat::Text).is_none());
        let found = user(b"a:b:c", UserFormat::Text).unwrap();
        assert_eq!((&*found.name, &*found.password), (&b"a"[..], &b"b:c"[..]));
        assert!(found.has(b"b:c") && !found.has(b"b"));
    }

    /// As memcached's `sasl_server_userdb_checkpass` compares them.
    #[test]
    fn a_password_ends_at_any_colon_in_the_file_of_sasl_users() {
        let user = of_pwdb(b"a:bc:d:realm");
        for (password, right) in [
            ("bc", true),
            ("bc:d", true),
            ("bc:d:realm", true),
            ("", false),
            ("b", false),
            ("bc:", false),
            ("bc:d:realm:", false),
            ("xx", false),
        ] {
            assert_eq!(user.has(password.as_bytes()), right, "{password}");
        }
        assert!(of_pwdb(b"a:").has(b"") && of_pwdb(b"a::x").has(b""));
    }

    #[test]
    fn users_of_the_hosts_realm_need_not_name_it() {
        let mut users = vec![of_pwdb(b"one@vm:two"), of_pwdb(b"three@wm:four")];
        add_short_names(&mut users, b"vm");
        let names: Vec<&[u8]> = users.iter().map(|user| &*user.name).collect();
        assert_eq!(names, [&b"one"[..], b"one@vm", b"three@wm"]);
        assert!(users[0].has(b"two"));
        let mut users = vec![of_pwdb(b"one@:two")];
        add_short_names(&mut users, b"");
        assert_eq!(
            users.len(),
            2,
            "the realm is empty, and so is the host's name"
        );
    }

    #[test]
    fn unknown_users_keep_their_salt_and_nonces_differ() {
        let (one, two) = (SaltSecret::new().unwrap(), SaltSecret::new().unwrap());
        assert_eq!(one.salt("a"), one.salt("a"));
        assert_ne!(one.salt("a"), one.salt("b"));
        assert_ne!(one.salt("a"), two.salt("a"), "not to be told by others");
        assert_ne!(one.nonce(), one.nonce());
    }

    #[test]
    fn names_and_passwords_are_prepared() {
        let secret = SaltSecret::new().unwrap();
        let scram = |line: &str| {
            let mut users = vec![user(line.as_bytes(), UserFormat::Sasl).unwrap()];
            keep_first(&mut users);
            let user = users.remove(0).keyed(&secret);
            (user.name, user.scram.unwrap())
        };
        let composed = scram("n\u{e9}:p\u{e9}");
        let decomposed = scram("ne\u{301}:pe\u{301}");
        assert_eq!(composed.0, decomposed.0);
        assert_eq!(composed.1.password, decomposed.1.password);
        assert_eq!(composed.1.keys.stored, decomposed.1.keys.stored);
        let unprintable = scram("n\u{7}:p\u{7}");
        assert_eq!(&*unprintable.0, b"n\x07");
        assert_eq!(*prepared(b"n\xff"), *b"n\xff");
    }

    #[test]
    fn constant_time_comparison_compares_all_bytes() {
        for (a, b, equal) in [
            ("", "", true),
            ("a", "", false),
            ("ab", "ab", true),
            ("ab", "ac", false),
            ("ab", "abc", false),
        ] {
            assert_eq!(same(a.as_bytes(), b.as_bytes()), equal, "{a} {b}");
        }
    }
}
