//! Administrative commands: dumps, connection lists, counts by prefix, the clock.

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use crate::common::{Memcached, Peer, connect, in_slabs, is_slab, line, ours, shown, with};
use herdwick_server::{Config, Engine, Offers, Server, ShutdownHook, Udp};

fn ask(peer: &dyn Peer, question: &str) -> String {
    String::from_utf8(peer.say(&[question.as_bytes()])).unwrap()
}

fn offering(offers: Offers) -> Server {
    with(Config {
        workers: Some(3),
        offers,
        ..Config::local()
    })
}

/// Returns sets of `count` keys.
fn sets(count: usize) -> String {
    (0..count)
        .map(|n| format!("set a:{n} 7 0 3 noreply\r\nabc\r\n"))
        .collect()
}

fn keys<'a>(text: &'a str, before: &str, after: char) -> BTreeSet<&'a str> {
    let lines = text.lines().filter_map(|line| line.strip_prefix(before));
    lines.filter_map(|rest| rest.split(after).next()).collect()
}

/// A dump lists every key once, in memcached's format, and the connection continues behind it.
#[test]
fn dumps_list_every_key_once() {
    let server = ours(3);
    ask(
        &server,
        &(sets(3000) + "get a:1\r\nset gone 0 -1 1\r\n1\r\nset c:\x01 0 0 1\r\n1\r\n"),
    );
    let said = ask(&server, "lru_crawler metadump all\r\nversion\r\n");
    let body = said.strip_prefix("OK\r\n").unwrap();
    let (body, rest) = body.split_once("END\r\n").unwrap();
    assert!(rest.starts_with("VERSION"));
    assert_eq!(body.lines().count(), 3001);
    let found = keys(body, "key=", ' ');
    assert_eq!(found.len(), 3001);
    assert!(found.contains("a%3A2999") && found.contains("c%3A%01"));
    let read = body
        .lines()
        .find(|line| line.starts_with("key=a%3A1 "))
        .unwrap();
    let size = if is_slab() { 40 } else { 32 };
    let rest = format!(" fetch=yes cls=1 size={size} flags=7 ");
    assert!(
        read.contains(" exp=-1 la=") && read.contains(&rest),
        "{read}"
    );

    let said = ask(&server, "lru_crawler mgdump hash\r\n");
    assert!(said.ends_with("\r\nEN\r\n"));
    let found = keys(&said, "mg ", '\r');
    assert_eq!(found.len(), 3001);
    assert!(found.contains("a:0") && found.contains("YzoB b"));

    let said = ask(&server, "stats cachedump 1 10\r\nstats cachedump 2 10\r\n");
    assert!(said.ends_with("END\r\nEND\r\n"));
    assert_eq!(said.matches("ITEM ").count(), 10);
    assert!(said.contains(" [3 b; 0 s]\r\n"), "{said}");
}

/// The same lines, sent to a stock memcached.
#[test]
fn rare_commands_are_answered_as_by_memcached() {
    let server = ours(2);
    let Some(oracle) = Memcached::start() else {
        return;
    };
    for question in [
        "stats cachedump\r\n",
        "stats cachedump 1\r\n",
        "stats cachedump x y\r\n",
        "stats cachedump 64 1\r\n",
        "stats cachedump 3 0\r\n",
        "stats detail\r\n",
        "stats detail x\r\n",
        "stats detail on\r\nset a:b 0 0 1\r\n1\r\nget a:b a:c none\r\ndelete a:b\r\nincr a:b 1\r\nstats detail dump\r\nstats detail off\r\nget a:b\r\nstats detail on\r\nstats detail dump\r\nstats reset\r\nstats detail dump\r\n",
        "stats foo\r\n",
        "stats sizes\r\n",
        "slabs automove\r\n",
        "lru_crawler crawl\r\n",
        "lru_crawler sleep\r\n",
        "lru_crawler sleep x\r\n",
        "lru_crawler sleep 1000001\r\n",
        "lru_crawler sleep 1000000\r\n",
        "lru_crawler tocrawl -1\r\n",
        "lru_crawler tocrawl 10\r\n",
        "lru_crawler enable\r\n",
        "lru_crawler crawl 64\r\n",
        "lru_crawler crawl foo\r\n",
        "lru_crawler crawl 1,foo\r\n",
        "lru_crawler crawl 1 2\r\n",
        "lru_crawler enable now\r\n",
        "cache_memlimit 4\r\n",
        "cache_memlimit 64\r\n",
        "cache_memlimit x\r\n",
    ] {
        assert_eq!(ask(&server, question), ask(&oracle, question), "{question}");
    }
}

/// Returns the value of a general statistic.
fn stat(server: &Server, name: &str) -> u64 {
    let said = ask(server, "stats\r\n");
    let line = said
        .lines()
        .find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
    line.and_then(|value| value.parse().ok())
        .unwrap_or_else(|| panic!("no {name} in {said}"))
}

/// `lru_crawler crawl` removes what has expired, in every partition, and nothing else. Without it
/// these items stay until their segment is cleaned.
#[test]
fn a_crawl_removes_expired_items() {
    let server = offering(Offers {
        debug: true,
        ..Offers::default()
    });
    let brief: String = (0..2000)
        .map(|n| format!("set brief:{n} 0 10 3 noreply\r\nabc\r\n"))
        .collect();
    ask(&server, &(sets(3000) + &brief + "debugtime 60\r\n"));
    assert_eq!(stat(&server, "curr_items"), 5000);
    assert_eq!(ask(&server, "lru_crawler crawl all\r\n"), "OK\r\n");
    while stat(&server, "lru_crawler_running") == 1 {
        std::thread::yield_now();
    }
    for (name, expected) in [
        ("curr_items", 3000),
        ("lru_crawler_starts", 1),
        ("crawler_reclaimed", 2000),
        ("crawler_items_checked", 5000),
        ("expired_unfetched", 2000),
        ("reclaimed", 0),
    ] {
        assert_eq!(stat(&server, name), expected, "{name}");
    }
    let said = ask(&server, "lru_crawler mgdump all\r\n");
    assert_eq!(keys(&said, "mg a:", '\r').len(), 3000);
    assert_eq!(
        ask(&server, "get a:2999\r\n"),
        "VALUE a:2999 7 3\r\nabc\r\nEND\r\n"
    );
}

/// `sleep`, `tocrawl`, `disable` and `enable` have their effects on crawls, and `stats settings`
/// shows them.
#[test]
fn crawls_are_paced_limited_and_ended() {
    let server = with(Config {
        workers: Some(1),
        offers: Offers {
            debug: true,
            ..Offers::default()
        },
        ..Config::local()
    });
    const ITEMS: usize = 100_000;
    ask(&server, &sets(ITEMS));
    let settings = |expected: [(&str, &str); 3]| {
        let said = ask(&server, "stats settings\r\n");
        for (name, value) in expected {
            assert!(
                said.contains(&format!("STAT {name} {value}\r\n")),
                "{name}: {said}"
            );
        }
    };
    settings([
        ("lru_crawler", "yes"),
        ("lru_crawler_sleep", "100"),
        ("lru_crawler_tocrawl", "0"),
    ]);
    let paced = "lru_crawler sleep 1000000\r\nlru_crawler crawl 1\r\nlru_crawler crawl 1\r\n";
    const BUSY: &str = "BUSY currently processing crawler request\r\n";
    assert_eq!(ask(&server, paced), format!("OK\r\nOK\r\n{BUSY}"));
    // The crawl pauses behind its first thousand items, and ends there.
    while stat(&server, "crawler_items_checked") == 0 {
        std::thread::yield_now();
    }
    let off = "lru_crawler disable\r\nlru_crawler crawl 1\r\nlru_crawler metadump all\r\n";
    const DISABLED: &str = "CLIENT_ERROR lru crawler disabled\r\n";
    assert_eq!(ask(&server, off), format!("OK\r\n{DISABLED}{DISABLED}"));
    while stat(&server, "lru_crawler_running") == 1 {
        std::thread::yield_now();
    }
    assert!(stat(&server, "crawler_items_checked") < ITEMS as u64);
    settings([
        ("lru_crawler", "no"),
        ("lru_crawler_sleep", "1000000"),
        ("lru_crawler_tocrawl", "0"),
    ]);
    let on = "stats reset\r\nset late 0 10 1\r\nx\r\ndebugtime 60\r\nlru_crawler enable\r\n\
              lru_crawler sleep 0\r\nlru_crawler tocrawl 10000\r\nlru_crawler crawl 1\r\n";
    let said = ask(&server, on);
    assert_eq!(said, "RESET\r\nSTORED\r\nOK\r\nOK\r\nOK\r\nOK\r\nOK\r\n");
    let end = || {
        while stat(&server, "lru_crawler_running") == 1 {
            std::thread::yield_now();
        }
    };
    end();
    // The last bucket is checked whole.
    let checked = stat(&server, "crawler_items_checked");
    assert!((10_000..10_010).contains(&checked), "{checked}");
    // Each goes on behind the one before it, so that eleven have checked all items.
    for _ in 0..10 {
        assert_eq!(ask(&server, "lru_crawler crawl 1\r\n"), "OK\r\n");
        end();
    }
    assert_eq!(stat(&server, "crawler_reclaimed"), 1);
    assert_eq!(stat(&server, "curr_items"), ITEMS as u64);
}

/// A setting that cannot change is refused; one that already has the requested value is confirmed.
#[test]
fn lru_and_slab_settings_are_confirmed_or_refused() {
    let server = ours(2);
    const UNSEGMENTED: &str = "CLIENT_ERROR segmented LRU disabled\r\n";
    const UNMOVED: &str = "CLIENT_ERROR slab reassignment disabled\r\n";
    for (question, answer) in [
        ("lru tune 10 25 0.1 2.0", UNSEGMENTED),
        ("lru mode segmented", UNSEGMENTED),
        ("lru mode flat", "OK\r\n"),
        ("lru temp_ttl 60", UNSEGMENTED),
        ("lru temp_ttl -1", "OK\r\n"),
        ("slabs automove 0", "OK\r\n"),
        ("slabs automove 1", UNMOVED),
        ("slabs automove window 10", UNMOVED),
        ("slabs automove ratio 0.8", UNMOVED),
        ("slabs reassign 1 2", UNMOVED),
        ("refresh_certs", "Error TLS not enabled\r\n"),
        // memcached takes no noreply here.
        ("refresh_certs noreply", "Error TLS not enabled\r\n"),
        (
            "slabs reassign 1 2 noreply\r\nversion",
            "VERSION 1.6.45\r\n",
        ),
    ] {
        assert_eq!(
            ask(&server, &format!("{question}\r\n")),
            answer,
            "{question}"
        );
    }
}

#[test]
fn verbosity_command_sets_the_log_level() {
    let server = ours(2);
    for (asked, level) in [(1, 1), (99, 2), (0, 0)] {
        assert_eq!(ask(&server, &format!("verbosity {asked}\r\n")), "OK\r\n");
        assert_eq!(server.verbosity(), level);
        let said = ask(&server, "stats settings\r\n");
        assert!(
            said.contains(&format!("STAT verbosity {level}\r\n")),
            "{said}"
        );
    }
}

const MEMLIMIT_FAILED: &str = "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n";

/// A limit above what was reserved at the start, or below what four of the largest items take in
/// each partition, is refused; a stock memcached replies OK and grows.
#[test]
fn the_memory_limit_is_what_cache_memlimit_has_set() {
    let server = ours(2);
    let mut limit = 64;
    for (megabytes, answer) in [
        (65, MEMLIMIT_FAILED),
        (48, "OK\r\n"),
        (20, MEMLIMIT_FAILED),
        (63, "OK\r\n"),
        (64, "OK\r\n"),
        (40, "OK\r\n"),
    ] {
        let said = ask(&server, &format!("cache_memlimit {megabytes}\r\n"));
        assert_eq!(said, answer, "{megabytes}");
        if answer == "OK\r\n" {
            limit = megabytes;
        }
        for (question, name) in [
            ("stats", "limit_maxbytes"),
            ("stats settings", "maxbytes"),
            ("stats slabs", "total_malloced"),
        ] {
            let said = ask(&server, &format!("{question}\r\n"));
            let bytes = limit << 20;
            assert!(said.contains(&format!("STAT {name} {bytes}\r\n")), "{said}");
        }
    }
    let said = ask(
        &server,
        "cache_memlimit 50 noreply\r\ncache_memlimit 1 noreply\r\nstats settings\r\n",
    );
    let bytes = 50 << 20;
    assert!(
        said.starts_with(&format!("STAT maxbytes {bytes}\r\n")),
        "{said}"
    );
}

/// With `-M` nothing may be evicted to get there, and the room of a file (`-e`) stays taken.
#[test]
fn a_memory_limit_that_cannot_be_kept_is_refused() {
    let file = std::env::temp_dir().join(format!("herdwick-limit-{}", std::process::id()));
    let plain = || Config {
        workers: Some(1),
        ..Config::local()
    };
    for config in [
        Config {
            lossless: true,
            ..plain()
        },
        Config {
            memory_file: Some(file.clone()),
            ..plain()
        },
    ] {
        let server = with(config);
        for (megabytes, answer) in [(48, MEMLIMIT_FAILED), (64, "OK\r\n")] {
            let said = ask(&server, &format!("cache_memlimit {megabytes}\r\n"));
            assert_eq!(said, answer, "{megabytes}");
        }
        server.shutdown();
    }
    std::fs::remove_file(file).unwrap();
}

/// Compared with a memcached that listens on the same kinds of sockets.
#[test]
fn stats_conns_lists_listeners() {
    let server = with(Config {
        udp: Some(Udp {
            port: 0,
            trusted: Vec::new(),
        }),
        ..Config::local()
    });
    let said = String::from_utf8(server.say(&[b"stats conns\r\n"])).unwrap();
    let lines: Vec<&str> = said
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(_, rest)| rest)
        .collect();
    let (tcp, udp) = (server.address(), server.udp_addresses()[0]);
    assert_eq!(lines[0], format!("addr tcp:{tcp}"));
    assert_eq!(lines[1], "state conn_listening");
    assert!(lines[2].starts_with("secs_since_last_cmd "));
    assert_eq!(
        lines[3..6],
        ["UDP UDP", &format!("addr udp:{udp}"), "state conn_read"]
    );
    assert!(lines[7].starts_with("addr tcp:127.0.0.1:"), "{said}");
    assert_eq!(lines[8], format!("listen_addr tcp:{tcp}"));
}

#[test]
fn stats_settings_show_detail_enabled() {
    let server = ours(2);
    for (command, state) in [("on", "yes"), ("off", "no")] {
        ask(&server, &format!("stats detail {command}\r\n"));
        let said = ask(&server, "stats settings\r\n");
        assert!(
            said.contains(&format!("STAT detail_enabled {state}\r\n")),
            "{said}"
        );
    }
}

/// The names are those that memcached 1.6.45 shows.
#[test]
fn stats_settings_have_every_name_of_memcacheds() {
    const NAMES: &str = "maxbytes maxconns tcpport udpport inter verbosity oldest evictions \
        domain_socket umask shutdown_command growth_factor chunk_size num_threads \
        num_threads_per_udp stat_key_prefix detail_enabled reqs_per_event cas_enabled tcp_backlog \
        binding_protocol auth_enabled_sasl auth_enabled_ascii item_size_max maxconns_fast \
        hashpower_init slab_reassign slab_automove slab_automove_ratio slab_automove_window \
        slab_chunk_max lru_crawler lru_crawler_sleep lru_crawler_tocrawl tail_repair_time \
        flush_enabled dump_enabled hash_algorithm lru_maintainer_thread lru_segmented hot_lru_pct \
        warm_lru_pct hot_max_factor warm_max_factor temp_lru temporary_ttl idle_timeout \
        watcher_logbuf_size worker_logbuf_size read_buf_mem_limit track_sizes \
        inline_ascii_response ext_item_size ext_item_age ext_low_ttl ext_recache_rate \
        ext_wbuf_size ext_compact_under ext_drop_under ext_max_sleep ext_max_frag \
        slab_automove_freeratio ext_drop_unread ssl_enabled ssl_chain_cert ssl_key \
        ssl_verify_mode ssl_keyformat ssl_ciphers ssl_ca_cert ssl_wbuf_size ssl_session_cache \
        ssl_kernel_tls ssl_min_version num_napi_ids memory_file client_flags_size";
    let said = ask(&ours(1), "stats settings\r\n");
    for name in NAMES.split_whitespace() {
        assert!(said.contains(&format!("STAT {name} ")), "{name}");
    }
}

/// As memcached shows `-f` and `-n`: its defaults.
#[test]
fn stats_settings_show_how_chunks_grow() {
    let said = ask(&in_slabs(1), "stats settings\r\n");
    for shown in ["STAT growth_factor 1.25\r\n", "STAT chunk_size 48\r\n"] {
        assert!(said.contains(shown), "{said}");
    }
}

/// The memory is full of small items when large ones come.
#[test]
fn slabs_that_another_class_takes_are_counted() {
    let server = with(Config {
        workers: Some(1),
        engine: Engine::Slab,
        memory_bytes: 16 << 20,
        ..Config::local()
    });
    let moved = || {
        let said = ask(&server, "stats\r\n");
        let (_, rest) = said.split_once("STAT slabs_moved ").expect("the count");
        rest.split("\r\n").next().unwrap().parse::<u64>().unwrap()
    };
    let set = |count: usize, bytes: usize| {
        let value = "v".repeat(bytes);
        // Keys of one length: two classes that evict would be balanced by the age of what they evict.
        let sets = (0..count).map(|key| format!("set {bytes}-{key:05} 0 0 {bytes}\r\n{value}\r\n"));
        ask(&server, &sets.collect::<String>());
    };
    set(40_000, 400);
    assert_eq!(moved(), 0);
    set(2_000, 4_000);
    assert!(moved() > 0);
}

/// Compared with a memcached whose crawler is on.
#[test]
fn dumps_of_missing_classes_match_memcacheds() {
    let server = ours(2);
    for (question, answer) in [
        ("lru_crawler metadump\r\n", "ERROR\r\n"),
        (
            "lru_crawler metadump 77\r\n",
            "BADCLASS invalid class id\r\n",
        ),
        (
            "lru_crawler metadump foo\r\n",
            "BADCLASS invalid class id\r\n",
        ),
        ("lru_crawler metadump 1 2\r\n", "ERROR\r\n"),
        ("lru_crawler mgdump 1\r\n", "OK\r\nEN\r\n"),
        ("set a 0 0 1\r\nx\r\n", "STORED\r\n"),
        ("lru_crawler crawl 7\r\n", "OK\r\n"),
        (
            "lru_crawler metadump ,\r\n",
            "NOTSTARTED no items to crawl\r\n",
        ),
        (
            "lru_crawler mgdump 1,foo\r\n",
            "BADCLASS invalid class id\r\n",
        ),
        ("lru_crawler mgdump 7\r\n", "OK\r\nEN\r\n"),
        ("lru_crawler mgdump 7,1\r\n", "OK\r\nmg a\r\nEN\r\n"),
    ] {
        assert_eq!(ask(&server, question), answer, "{question}");
    }
}

/// M48: the number of counted prefixes is bounded; here a million are used.
#[test]
fn m48_counted_prefixes_are_bounded() {
    let server = ours(2);
    ask(&server, "stats detail on\r\n");
    for round in 0..20 {
        let gets: String = (0..5000)
            .map(|n| format!("get {round}-{n}:x\r\n"))
            .collect();
        ask(&server, &gets);
    }
    let said = ask(&server, "stats detail dump\r\n");
    let count = said
        .lines()
        .filter(|line| line.ends_with(" get 1 hit 0 set 0 del 0"))
        .count();
    assert_eq!(count, 2 * 4096);
}

#[test]
fn commands_that_show_keys_can_be_disabled() {
    let server = offering(Offers {
        dump: false,
        flush: false,
        ..Offers::default()
    });
    for (question, answer) in [
        (
            "lru_crawler metadump all\r\n",
            "ERROR metadump not allowed\r\n",
        ),
        (
            "lru_crawler mgdump all\r\n",
            "ERROR key dump not allowed\r\n",
        ),
        (
            "stats cachedump 1 1\r\n",
            "CLIENT_ERROR stats cachedump not allowed\r\n",
        ),
        (
            "stats detail on\r\n",
            "CLIENT_ERROR stats detail not allowed\r\n",
        ),
        ("flush_all\r\n", "CLIENT_ERROR flush_all not allowed\r\n"),
        ("flush_all noreply\r\nversion x\r\n", "VERSION"),
    ] {
        let said = ask(&server, question);
        assert!(said.starts_with(answer), "{question}: {said}");
    }
}

#[test]
fn stats_conns_lists_connections() {
    let server = offering(Offers {
        debug: true,
        ..Offers::default()
    });
    ask(&server, "debugtime p\r\n");
    let mut held = connect(&server);
    held.write_all(b"version\r\nset x 0 0 10\r\nabc").unwrap();
    assert!(line(&held).starts_with("VERSION"));
    let said = ask(&server, "stats conns\r\n");
    let own = held.local_addr().unwrap();
    let number = said.lines().find_map(|line| {
        line.strip_prefix("STAT ")?
            .strip_suffix(&format!(":addr tcp:{own}"))
    });
    let number = number.unwrap_or_else(|| panic!("{own} in {said}"));
    for fact in [
        "state conn_nread".to_owned(),
        "secs_since_last_cmd 0".to_owned(),
        format!("listen_addr tcp:{}", server.address()),
    ] {
        assert!(
            said.contains(&format!("STAT {number}:{fact}\r\n")),
            "{fact} in {said}"
        );
    }
    // The listener, the idle connection, and the one that sends the command.
    assert_eq!(said.matches(":addr tcp:").count(), 3);
}

/// Lists thousands of connections in steps, so that no client waits for the list; each appears
/// once.
#[test]
fn stats_conns_lists_hundreds_of_connections_once_each() {
    let server = with(Config {
        workers: Some(2),
        ..Config::local()
    });
    let mut held: Vec<_> = (0..300).map(|_| connect(&server)).collect();
    for stream in &mut held {
        stream.write_all(b"mn\r\n").unwrap();
        assert_eq!(line(stream), "MN\r\n");
    }
    let said = ask(&server, "stats conns\r\n");
    assert!(said.ends_with("END\r\n"), "{said}");
    for stream in &held {
        let own = format!(":addr tcp:{}\r\n", stream.local_addr().unwrap());
        assert_eq!(said.matches(&own).count(), 1, "{own}");
    }
}

/// A flush takes effect at its second, whatever happens before; what is stored later stays.
#[test]
fn delayed_flush_takes_effect_at_its_second() {
    let server = offering(Offers {
        debug: true,
        ..Offers::default()
    });
    let all: String = (0..20).map(|n| format!(" a:{n}")).collect();
    let present = |server: &Server| {
        ask(server, &format!("get{all}\r\n"))
            .matches("VALUE")
            .count()
    };
    // The clock stops first: a second that passes between the flush and the stop would count.
    ask(&server, "debugtime p\r\n");
    ask(&server, &(sets(20) + "flush_all 10\r\ndebugtime 8\r\n"));
    assert_eq!(present(&server), 20);
    ask(&server, "debugtime 1\r\n");
    assert_eq!(present(&server), 0, "one second early, as in memcached");
    ask(&server, &sets(20));
    ask(&server, "debugtime 100\r\n");
    assert_eq!(present(&server), 20);
    let unix = ask(&server, "stats\r\n");
    let unix = unix
        .lines()
        .find_map(|line| line.strip_prefix("STAT time "))
        .unwrap();
    let unix: u64 = unix.parse().unwrap();
    ask(&server, &format!("flush_all {}\r\n", unix + 50));
    assert_eq!(present(&server), 20);
    ask(&server, "flush_all 2592001\r\n");
    ask(&server, "debugtime 51\r\n");
    assert_eq!(present(&server), 20, "called off");
    ask(&server, &format!("flush_all {}\r\n", unix + 101));
    assert_eq!(present(&server), 20);
    ask(&server, "debugtime 51\r\n");
    assert_eq!(present(&server), 0, "an absolute time");
    ask(&server, &(sets(20) + "flush_all 1\r\n"));
    assert_eq!(present(&server), 0, "the same as `flush_all`");
    ask(&server, &sets(20));
    ask(&server, "debugtime 2\r\n");
    assert_eq!(present(&server), 20, "stored after it, in the same second");
}

#[test]
fn shutdown_command_calls_the_hook_once() {
    let called = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&called);
    let server = with(Config {
        shutdown: Some(ShutdownHook::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        })),
        ..Config::local()
    });
    assert_eq!(ask(&server, "shutdown\r\nversion\r\n"), "");
    assert_eq!(called.load(Ordering::Relaxed), 1);
}

/// The server is stopped while workers pause in a crawl, and while a dump is on its way.
#[test]
fn a_server_stops_in_the_middle_of_a_crawl_and_of_a_dump() {
    const ITEMS: usize = 100_000;
    let server = ours(3);
    ask(&server, &sets(ITEMS));
    let crawl = "lru_crawler sleep 1000000\r\nlru_crawler crawl all\r\n";
    assert_eq!(ask(&server, crawl), "OK\r\nOK\r\n");
    while stat(&server, "crawler_items_checked") < 3000 {}
    let mut dumping = connect(&server);
    let dump = b"lru_crawler metadump all\r\n";
    dumping.write_all(dump).unwrap();
    let mut said = vec![0; 4];
    dumping.read_exact(&mut said).unwrap();
    assert_eq!(said, b"OK\r\n");
    assert_eq!(stat(&server, "lru_crawler_running"), 1);
    server.shutdown();
    let _ = dumping.read_to_end(&mut said);
    let said = String::from_utf8(said).unwrap();
    let whole = said.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let listed = whole
        .lines()
        .filter(|line| line.starts_with("key="))
        .count();
    assert_eq!(keys(whole, "key=", ' ').len(), listed, "each once");
    assert!(listed == ITEMS || !said.ends_with("END\r\n"), "{listed}");
}

/// M47: a client that requests a dump and does not read occupies little memory, and times out.
#[test]
fn m47_dump_that_is_not_read_times_out() {
    let server = with(Config {
        workers: Some(2),
        memory_bytes: 256 << 20,
        offers: Offers {
            debug: true,
            ..Offers::default()
        },
        ..Config::local()
    });
    for round in 0..40 {
        let sets: String = (0..5000)
            .map(|n| format!("set {}{round}-{n} 0 0 0 noreply\r\n\r\n", "k".repeat(200)))
            .collect();
        ask(&server, &sets);
    }
    let mut idle = connect(&server);
    idle.write_all(b"lru_crawler metadump all\r\n").unwrap();
    let mut first = [0; 4];
    idle.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"OK\r\n");
    // The dump continues until the socket buffers are full.
    let given_up = (0..500).any(|_| {
        ask(&server, "debugtime 31\r\n");
        ask(&server, "stats\r\n").contains("STAT closed_stalled 1\r\n")
    });
    assert!(given_up);
    let mut rest = Vec::new();
    let _ = idle.read_to_end(&mut rest);
    assert!(
        !rest.ends_with(b"END\r\n"),
        "{}",
        shown(&rest[rest.len() - 100..])
    );
}
