//! Authentication: users and passwords in a file, as memcached's `-Y`.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

/// Largest number of users (memcached's `MAX_ENTRIES`).
const USERS_MAX: usize = 8;
/// Longest line of the file in bytes (memcached's `MAX_ENTRY_LEN`).
const LINE_BYTES_MAX: usize = 256;

/// The users of a file of `user:password` lines.
pub(crate) struct Auth {
    path: PathBuf,
    /// Replaced as a whole. Locked only to copy the pointer, and only for an authentication
    /// attempt.
    users: Mutex<Arc<[User]>>,
}

/// The users' file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// It cannot be read.
    #[error("cannot read the users in {path}: {source}; give another file (-Y)")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A line is not `user:password`.
    #[error("line {line} of {path}: write user:password, at most {LINE_BYTES_MAX} bytes")]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// It has no users, or too many.
    #[error("{path} has {count} users: give 1 to {USERS_MAX}")]
    Count {
        /// The file.
        path: PathBuf,
        /// How many.
        count: usize,
    },
}

struct User {
    name: Box<[u8]>,
    password: Box<[u8]>,
}

impl Auth {
    /// Reads the users from `path`.
    pub(crate) fn open(path: &Path) -> Result<Self, AuthError> {
        Ok(Self {
            path: path.to_owned(),
            users: Mutex::new(read(path)?),
        })
    }

    /// Reads the file again. If it cannot be used, the previous users stay.
    pub(crate) fn reload(&self) -> Result<(), AuthError> {
        let users = read(&self.path)?;
        *self.users.lock().unwrap_or_else(PoisonError::into_inner) = users;
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether this user has this password. Every user is compared, and every comparison
    /// runs to the end, so the time depends only on lengths.
    pub(crate) fn admits(&self, name: &[u8], password: &[u8]) -> bool {
        let users = Arc::clone(&self.users.lock().unwrap_or_else(PoisonError::into_inner));
        users.iter().fold(false, |known, user| {
            known | (same(&user.name, name) & same(&user.password, password))
        })
    }
}

fn same(a: &[u8], b: &[u8]) -> bool {
    // Accumulates instead of returning early; `black_box` keeps the compiler from adding an early
    // exit.
    let differing = a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b));
    (a.len() == b.len()) & (std::hint::black_box(differing) == 0)
}

fn read(path: &Path) -> Result<Arc<[User]>, AuthError> {
    let unreadable = |source| AuthError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let text = std::fs::read(path).map_err(unreadable)?;
    let lines = text
        .split(|&byte| byte == b'\n')
        .map(<[u8]>::trim_ascii_end);
    let filled = lines.enumerate().filter(|(_, line)| !line.is_empty());
    let users: Vec<User> = filled
        .map(|(index, line)| {
            user(line).ok_or_else(|| AuthError::Line {
                path: path.to_owned(),
                line: index + 1,
            })
        })
        .collect::<Result<_, _>>()?;
    match users.len() {
        1..=USERS_MAX => Ok(users.into()),
        count => Err(AuthError::Count {
            path: path.to_owned(),
            count,
        }),
    }
}

fn user(line: &[u8]) -> Option<User> {
    let colon = line.iter().position(|&byte| byte == b':')?;
    (line.len() <= LINE_BYTES_MAX).then(|| User {
        name: line[..colon].into(),
        password: line[colon + 1..].into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_users() {
        assert!(user(b"no colon").is_none());
        assert!(user(&[b':'; 257]).is_none());
        let found = user(b"a:b:c").unwrap();
        assert_eq!((&*found.name, &*found.password), (&b"a"[..], &b"b:c"[..]));
    }

    #[test]
    fn only_all_of_both_is_the_same() {
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
