//! The commands of operators: what memcached's text protocol has beside requests for keys. The
//! decoder gives them as lines it does not know.

use herdwick_memcache::Keys;

use crate::{config::Offers, time::Warp};

/// An operator's command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admin {
    /// `debugtime`: moves every worker's clock.
    Warp(Warp),
    /// A fixed answer.
    Say(&'static [u8]),
}

/// More words than any of these takes.
const WORDS_MAX: usize = 4;

const ERROR: Admin = Admin::Say(b"ERROR\r\n");
const FORMAT: Admin = Admin::Say(b"CLIENT_ERROR bad command line format\r\n");

impl Admin {
    /// The command that `line` is, if it is one. What memcached's slabs and crawler do does not
    /// exist here; whoever asks for it hears what a memcached says that runs without.
    pub(super) fn read(line: &[u8], offers: &Offers) -> Option<Self> {
        let mut words = [&b""[..]; WORDS_MAX + 1];
        let mut count = 0;
        for (slot, word) in words.iter_mut().zip(Keys::new(line)) {
            *slot = word;
            count += 1;
        }
        let admin = match &words[..count] {
            [b"debugtime", by] if offers.debug => warp(by),
            [b"lru_crawler", rest @ ..] => crawler(rest),
            [b"slabs", rest @ ..] => slabs(rest),
            [b"refresh_certs"] => Self::Say(b"Error TLS not enabled\r\n"),
            _ => return None,
        };
        Some(admin)
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

fn crawler(words: &[&[u8]]) -> Admin {
    match words {
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

fn slabs(words: &[&[u8]]) -> Admin {
    match words {
        [b"reassign", _, _] => Admin::Say(b"CLIENT_ERROR slab reassignment disabled\r\n"),
        [b"automove", b"0"] => Admin::Say(b"OK\r\n"),
        [b"automove", mode, ..] => match unsigned(mode) {
            Some(_) => Admin::Say(b"CLIENT_ERROR slab reassignment disabled\r\n"),
            None => FORMAT,
        },
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
    fn only_offered_commands_are_known() {
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
    fn numbers_that_are_none_are_refused_first() {
        let by = |line: &[u8]| Admin::read(line, &Offers::default());
        assert_eq!(by(b"slabs automove invalid"), Some(FORMAT));
        assert_eq!(by(b"slabs automove window 0"), Some(FORMAT));
        assert_eq!(by(b"lru_crawler sleep x"), Some(FORMAT));
        assert_eq!(by(b"slabs"), Some(ERROR));
        assert_eq!(by(b"slabs a b c d e f g h"), Some(ERROR));
    }
}
