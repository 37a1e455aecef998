//! Operators' commands of memcached's text protocol, which the decoder returns as unknown lines: parsing, and
//! the fixed replies to those without an effect here. `server_commands` executes them, and `flush_all` and
//! `cache_memlimit`, which the decoder knows.

use herdwick_memcache::{Keys, text};

use crate::{
    context::Context,
    runtime::{
        dump::{Dump, DumpFormat},
        time::Warp,
    },
    settings::config::Offers,
    telemetry::watch::topics,
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
    /// `lru_crawler crawl`, `enable`, `disable`, `sleep`, `tocrawl`.
    Crawler(CrawlerCommand),
    /// A fixed reply.
    Reply(&'static [u8]),
}

/// What a line of `lru_crawler` has the crawler do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CrawlerCommand {
    /// Removes expired items, once.
    Crawl,
    /// Allows crawls and dumps, or refuses them.
    Enable(bool),
    /// Sets the length of the pauses, in microseconds.
    Sleep(u32),
    /// Sets how many items a crawl checks at most.
    Items(u32),
}

/// Maximum number of words that any of these commands takes.
const WORDS_MAX: usize = 6;

/// memcached's bounds for the window of `slabs automove`, in seconds.
const AUTOMOVE_WINDOW_MIN: u32 = 3;
const AUTOMOVE_WINDOW_MAX: u32 = 1800;

const ERROR: Admin = Admin::Reply(b"ERROR\r\n");
// memcached says this of `reassign` alone. Here it refuses each setting that would move pages.
const UNMOVED: Admin = Admin::Reply(b"CLIENT_ERROR slab reassignment disabled\r\n");
// Not of memcached, which answers ERROR where its LRU cannot be segmented.
const UNSEGMENTED: Admin = Admin::Reply(b"CLIENT_ERROR segmented LRU disabled\r\n");
/// The refusal of crawls and dumps while the crawler is off.
pub(super) const CRAWLER_DISABLED: &[u8] = b"CLIENT_ERROR lru crawler disabled\r\n";
const FORMAT: Admin = Admin::Reply(b"CLIENT_ERROR bad command line format\r\n");

impl Admin {
    /// Parses `line`; returns `None` if it is not an operator's command. No command
    /// moves pages of slabs here: those that would are refused.
    pub(super) fn read(line: &[u8], context: &Context) -> Option<Self> {
        let crawls = context.tunables.crawler.is_enabled();
        Self::parse(line, &context.settings.offers, crawls)
    }

    /// As [`Self::read`]; `crawls`: the crawler is enabled.
    fn parse(line: &[u8], offers: &Offers, crawls: bool) -> Option<Self> {
        // One place more than any command has words: a line with too many fits no pattern.
        let mut words = [&b""[..]; WORDS_MAX + 1];
        let mut count = 0;
        for (slot, word) in words.iter_mut().zip(Keys::new(line)) {
            *slot = word;
            count += 1;
        }
        let admin = match &words[..count] {
            [b"debugtime", by] if offers.debug => warp(by),
            [b"lru_crawler", rest @ ..] => crawler(rest, offers, crawls),
            [b"watch", ..] if !offers.watch => {
                Self::Reply(b"CLIENT_ERROR watch commands not allowed\r\n")
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
    pub(super) fn quiet_if(self, noreply: bool) -> Self {
        match self {
            Self::Reply(_) if noreply => Self::Reply(b""),
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
        return Admin::Reply(b"CLIENT_ERROR stats detail not allowed\r\n");
    }
    match words.next() {
        Some(b"on") => Admin::Detail(true),
        Some(b"off") => Admin::Detail(false),
        Some(b"dump") => Admin::Prefixes,
        _ => Admin::Reply(b"CLIENT_ERROR usage: stats detail on|off|dump\r\n"),
    }
}

/// memcached's number of slab classes ...
const CLASSES_MAX: u32 = 64;
/// ... of which the store is shown as this one.
const STORE_CLASS: u32 = 1;

fn cachedump(mut words: Keys<'_>, offers: &Offers) -> Admin {
    if !offers.dump {
        return Admin::Reply(b"CLIENT_ERROR stats cachedump not allowed\r\n");
    }
    let (Some(class), Some(limit)) = (words.next(), words.next()) else {
        // memcached has two errors: this one for too few words, `FORMAT` for words that are no
        // numbers.
        return Admin::Reply(b"CLIENT_ERROR bad command line\r\n");
    };
    match (unsigned(class), unsigned(limit)) {
        (Some(CLASSES_MAX..), Some(_)) => Admin::Reply(b"CLIENT_ERROR Illegal slab id\r\n"),
        (Some(STORE_CLASS), Some(limit)) => Admin::Dump(Dump::of_items(limit)),
        (Some(_), Some(_)) => Admin::Reply(text::END),
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

fn crawler(words: &[&[u8]], offers: &Offers, crawls: bool) -> Admin {
    let command = match words {
        [what @ (b"metadump" | b"mgdump" | b"crawl"), classes] => {
            return match *what {
                _ if !crawls => Admin::Reply(CRAWLER_DISABLED),
                b"metadump" if !offers.dump => Admin::Reply(b"ERROR metadump not allowed\r\n"),
                b"mgdump" if !offers.dump => Admin::Reply(b"ERROR key dump not allowed\r\n"),
                what => walk(what, classes),
            };
        }
        [b"enable"] => CrawlerCommand::Enable(true),
        [b"disable"] => CrawlerCommand::Enable(false),
        [b"sleep", number] => match unsigned(number) {
            Some(us) => CrawlerCommand::Sleep(us),
            None => return FORMAT,
        },
        [b"tocrawl", number] => match unsigned(number) {
            Some(items) => CrawlerCommand::Items(items),
            None => return FORMAT,
        },
        _ => return ERROR,
    };
    Admin::Crawler(command)
}

/// Parses the classes of a dump or a crawl, as memcached does. Classes beside the store are empty.
fn walk(what: &[u8], classes: &[u8]) -> Admin {
    // `hash` is a walk of memcached's hash table instead of its LRU. Here both are of the index.
    let all = matches!(classes, b"all" | b"hash");
    let (mut has_any, mut has_store) = (all, all);
    let ids = classes.split(|&byte| byte == b',');
    // memcached skips empty words, too (strtok_r(3)).
    for class in ids.filter(|class| !class.is_empty() && !all) {
        let Some(id @ 1..CLASSES_MAX) = unsigned(class) else {
            return Admin::Reply(b"BADCLASS invalid class id\r\n");
        };
        has_any = true;
        has_store |= id == STORE_CLASS;
    }
    let dump = |format| match has_store {
        true => Admin::Dump(Dump::new(format)),
        false => Admin::Dump(Dump::empty(format)),
    };
    match what {
        _ if !has_any => Admin::Reply(b"NOTSTARTED no items to crawl\r\n"),
        b"metadump" => dump(DumpFormat::Metadump),
        b"mgdump" => dump(DumpFormat::Mgdump),
        _ if has_store => Admin::Crawler(CrawlerCommand::Crawl),
        _ => Admin::Reply(text::OK),
    }
}

fn slabs(words: &[&[u8]]) -> Admin {
    match words {
        [b"reassign", _, _] => UNMOVED,
        [b"automove", b"0", ..] => Admin::Reply(b"OK\r\n"),
        [b"automove", b"window", window, ..] => match unsigned(window) {
            Some(AUTOMOVE_WINDOW_MIN..=AUTOMOVE_WINDOW_MAX) => UNMOVED,
            Some(_) => Admin::Reply(b"CLIENT_ERROR automove window too low or too high\r\n"),
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

/// Answers `lru`. There is no segmented LRU, so `flat` is `OK`.
fn lru(words: &[&[u8]]) -> Admin {
    match words {
        [b"mode", b"flat", ..] => Admin::Reply(b"OK\r\n"),
        [b"temp_ttl", ttl, ..] => match str::from_utf8(ttl).map(str::parse::<i32>) {
            Ok(Ok(..0)) => Admin::Reply(b"OK\r\n"),
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
        let by = |line: &[u8]| Admin::parse(line, &all, true);
        assert_eq!(by(b"debugtime -5"), Some(Admin::Warp(Warp::By(-5))));
        assert_eq!(by(b"debugtime p"), Some(Admin::Warp(Warp::Pause)));
        assert_eq!(by(b"debugtime x"), Some(ERROR));
        assert_eq!(by(b"debugtime"), None);
        assert_eq!(Admin::parse(b"debugtime 1", &Offers::default(), true), None);
        assert_eq!(by(b"hello herdwick/0"), None);
        assert_eq!(by(b""), None);
    }

    #[test]
    fn invalid_numbers_are_refused_first() {
        let by = |line: &[u8]| Admin::parse(line, &Offers::default(), true);
        assert_eq!(by(b"slabs automove invalid"), Some(FORMAT));
        assert_eq!(by(b"slabs automove window x"), Some(FORMAT));
        let window = Admin::Reply(b"CLIENT_ERROR automove window too low or too high\r\n");
        assert_eq!(by(b"slabs automove window 0"), Some(window));
        assert_eq!(by(b"lru_crawler sleep x"), Some(FORMAT));
        assert_eq!(by(b"lru_crawler tocrawl -1"), Some(FORMAT));
        assert_eq!(by(b"slabs"), Some(ERROR));
        assert_eq!(by(b"slabs a b c d e f g h"), Some(ERROR));
        assert_eq!(by(b"lru temp_ttl x"), Some(ERROR));
        assert_eq!(by(b"lru tune 10 25 0.1"), Some(ERROR));
    }
}
