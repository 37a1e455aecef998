//! Operators' commands of memcached's text protocol, which the decoder returns as unknown lines:
//! parsing, and the fixed replies to those without an effect here.

use herdwick_memcache::{Keys, text};

use crate::{
    config::Offers,
    dump::{Dump, Format},
    time::Warp,
    watch::topics,
};

/// An operator's command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admin {
    /// `debugtime`: moves every worker's clock.
    Warp(Warp),
    /// `lru_crawler metadump`, `lru_crawler mgdump`, `stats cachedump`.
    Dump(Dump),
    /// `watch`, with the set of topics.
    Watch(u32),
    /// `stats conns`.
    Connections,
    /// `stats detail on`, `stats detail off`.
    Detail(bool),
    /// `stats detail dump`.
    Prefixes,
    /// `refresh_certs`: reloads the certificates.
    Certificates,
    /// A fixed reply.
    Say(&'static [u8]),
}

/// Maximum number of words that any of these commands takes.
const WORDS_MAX: usize = 6;

/// memcached's bounds for the window of `slabs automove`, in seconds.
const AUTOMOVE_WINDOW_MIN: u32 = 3;
const AUTOMOVE_WINDOW_MAX: u32 = 1800;

const ERROR: Admin = Admin::Say(b"ERROR\r\n");
const UNMOVED: Admin = Admin::Say(b"CLIENT_ERROR slab reassignment disabled\r\n");
const UNSEGMENTED: Admin = Admin::Say(b"CLIENT_ERROR segmented LRU disabled\r\n");
const FORMAT: Admin = Admin::Say(b"CLIENT_ERROR bad command line format\r\n");

impl Admin {
    /// Parses `line`; returns `None` if it is not an operator's command. Slabs and the LRU crawler
    /// do not exist here; their commands get the replies of a memcached that runs without them.
    pub(super) fn read(line: &[u8], offers: &Offers) -> Option<Self> {
        let mut words = [&b""[..]; WORDS_MAX + 1];
        let mut count = 0;
        for (slot, word) in words.iter_mut().zip(Keys::new(line)) {
            *slot = word;
            count += 1;
        }
        let admin = match &words[..count] {
            [b"debugtime", by] if offers.debug => warp(by),
            [b"lru_crawler", rest @ ..] => crawler(rest, offers),
            [b"watch", ..] if !offers.watch => {
                Self::Say(b"CLIENT_ERROR watch commands not allowed\r\n")
            }
            [b"watch", ..] => match topics(Keys::new(line).skip(1)) {
                Some(topics) => Self::Watch(topics),
                None => ERROR,
            },
            [b"slabs", rest @ ..] => slabs(rest),
            [b"lru", rest @ ..] => lru(rest),
            [b"refresh_certs", ..] => Self::Certificates,
            _ => return None,
        };
        Some(admin)
    }

    /// Applies `noreply`: suppresses a fixed reply.
    pub(super) fn unheard(self) -> Self {
        match self {
            Self::Say(_) => Self::Say(b""),
            other => other,
        }
    }

    /// Parses the arguments of `stats`. As in memcached, any prefix of a word stands for the word.
    pub(super) fn read_stats(line: Keys<'_>, offers: &Offers) -> Option<Self> {
        let mut words = line;
        let word = words.next()?;
        // The order is memcached's: the first word that a prefix fits counts.
        if b"detail".starts_with(word) {
            return Some(detail(words, offers));
        }
        if b"cachedump".starts_with(word) {
            return Some(cachedump(words, offers));
        }
        b"conns".starts_with(word).then_some(Self::Connections)
    }
}

fn detail(mut words: Keys<'_>, offers: &Offers) -> Admin {
    if !offers.dump {
        return Admin::Say(b"CLIENT_ERROR stats detail not allowed\r\n");
    }
    match words.next() {
        Some(b"on") => Admin::Detail(true),
        Some(b"off") => Admin::Detail(false),
        Some(b"dump") => Admin::Prefixes,
        _ => Admin::Say(b"CLIENT_ERROR usage: stats detail on|off|dump\r\n"),
    }
}

/// memcached's number of slab classes; the log is shown as class 1.
const CLASSES_MAX: u32 = 64;

fn cachedump(mut words: Keys<'_>, offers: &Offers) -> Admin {
    if !offers.dump {
        return Admin::Say(b"CLIENT_ERROR stats cachedump not allowed\r\n");
    }
    let (Some(class), Some(limit)) = (words.next(), words.next()) else {
        return Admin::Say(b"CLIENT_ERROR bad command line\r\n");
    };
    match (unsigned(class), unsigned(limit)) {
        (Some(CLASSES_MAX..), Some(_)) => Admin::Say(b"CLIENT_ERROR Illegal slab id\r\n"),
        (Some(1), Some(limit)) => Admin::Dump(Dump::of_items(limit)),
        (Some(_), Some(_)) => Admin::Say(text::END),
        _ => FORMAT,
    }
}

fn warp(by: &[u8]) -> Admin {
    match by {
        b"p" => Admin::Warp(Warp::Pause),
        b"r" => Admin::Warp(Warp::Resume),
        by => match str::from_utf8(by).map(str::parse) {
            Ok(Ok(seconds)) => Admin::Warp(Warp::By(seconds)),
            _ => ERROR,
        },
    }
}

fn crawler(words: &[&[u8]], offers: &Offers) -> Admin {
    match words {
        [b"metadump", _] if !offers.dump => Admin::Say(b"ERROR metadump not allowed\r\n"),
        [b"mgdump", _] if !offers.dump => Admin::Say(b"ERROR key dump not allowed\r\n"),
        [b"metadump" | b"mgdump", classes] if !is_there(classes) => {
            Admin::Say(b"BADCLASS invalid class id\r\n")
        }
        [b"metadump", _] => Admin::Dump(Dump::new(Format::Metadump)),
        [b"mgdump", _] => Admin::Dump(Dump::new(Format::Mgdump)),
        [b"enable"] => Admin::Say(b"ERROR failed to start lru crawler thread\r\n"),
        [b"disable"] => Admin::Say(b"OK\r\n"),
        [b"crawl", _] => Admin::Say(b"CLIENT_ERROR lru crawler disabled\r\n"),
        [b"sleep" | b"tocrawl", number] => match unsigned(number) {
            Some(_) => Admin::Say(b"CLIENT_ERROR lru crawler disabled\r\n"),
            None => FORMAT,
        },
        _ => ERROR,
    }
}

/// Returns whether the log, class 1, is among these classes.
fn is_there(classes: &[u8]) -> bool {
    matches!(classes, b"all" | b"hash") || classes.split(|&byte| byte == b',').any(|id| id == b"1")
}

fn slabs(words: &[&[u8]]) -> Admin {
    match words {
        [b"reassign", _, _] => UNMOVED,
        [b"automove", b"0", ..] => Admin::Say(b"OK\r\n"),
        [b"automove", b"window", window, ..] => match unsigned(window) {
            Some(AUTOMOVE_WINDOW_MIN..=AUTOMOVE_WINDOW_MAX) => UNMOVED,
            Some(_) => Admin::Say(b"CLIENT_ERROR automove window too low or too high\r\n"),
            None => FORMAT,
        },
        [b"automove", b"ratio" | b"freeratio", ratio, ..] => {
            match str::from_utf8(ratio).map(str::parse::<f64>) {
                Ok(Ok(_)) => UNMOVED,
                _ => ERROR,
            }
        }
        [b"automove", mode, ..] => match unsigned(mode) {
            Some(1 | 2) => UNMOVED,
            Some(_) => ERROR,
            None => FORMAT,
        },
        _ => ERROR,
    }
}

/// Answers `lru`. There is one list, traversed by CLOCK, so `flat` is `OK`.
fn lru(words: &[&[u8]]) -> Admin {
    match words {
        [b"mode", b"flat", ..] => Admin::Say(b"OK\r\n"),
        [b"temp_ttl", ttl, ..] => match str::from_utf8(ttl).map(str::parse::<i32>) {
            Ok(Ok(..0)) => Admin::Say(b"OK\r\n"),
            Ok(Ok(_)) => UNSEGMENTED,
            _ => ERROR,
        },
        [b"mode", b"segmented", ..] | [b"tune", _, _, _, _, ..] => UNSEGMENTED,
        _ => ERROR,
    }
}

fn unsigned(word: &[u8]) -> Option<u32> {
    str::from_utf8(word).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disabled_commands_are_unknown() {
        let all = Offers {
            debug: true,
            ..Offers::default()
        };
        let by = |line: &[u8]| Admin::read(line, &all);
        assert_eq!(by(b"debugtime -5"), Some(Admin::Warp(Warp::By(-5))));
        assert_eq!(by(b"debugtime p"), Some(Admin::Warp(Warp::Pause)));
        assert_eq!(by(b"debugtime x"), Some(ERROR));
        assert_eq!(by(b"debugtime"), None);
        assert_eq!(Admin::read(b"debugtime 1", &Offers::default()), None);
        assert_eq!(by(b"hello herdwick/0"), None);
        assert_eq!(by(b""), None);
    }

    #[test]
    fn invalid_numbers_are_refused_first() {
        let by = |line: &[u8]| Admin::read(line, &Offers::default());
        assert_eq!(by(b"slabs automove invalid"), Some(FORMAT));
        assert_eq!(by(b"slabs automove window x"), Some(FORMAT));
        let window = Admin::Say(b"CLIENT_ERROR automove window too low or too high\r\n");
        assert_eq!(by(b"slabs automove window 0"), Some(window));
        assert_eq!(by(b"lru_crawler sleep x"), Some(FORMAT));
        assert_eq!(by(b"slabs"), Some(ERROR));
        assert_eq!(by(b"slabs a b c d e f g h"), Some(ERROR));
        assert_eq!(by(b"lru temp_ttl x"), Some(ERROR));
        assert_eq!(by(b"lru tune 10 25 0.1"), Some(ERROR));
    }
}
