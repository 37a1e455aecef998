//! The right to recache a stale item is given to exactly one reader, and is not lost when a read is
//! executed again.

use std::collections::HashMap;

use crate::common::{Peer, ours};

/// So large that the replies of a round find no room, many times over.
const VALUE_BYTES: usize = 30_000;
const KEYS: usize = 60;

/// Returns the flags of each `VA` reply, by key.
fn flags(mut said: &[u8]) -> HashMap<String, String> {
    let mut seen = HashMap::new();
    while said.starts_with(b"VA ") {
        let end = said.iter().position(|&byte| byte == b'\n').expect("a line");
        let line = String::from_utf8_lossy(&said[..end]).into_owned();
        let words: Vec<&str> = line.split_whitespace().collect();
        let key = words[2].trim_start_matches('k').to_owned();
        seen.insert(key, words[3..].join(" "));
        said = &said[end + 1 + VALUE_BYTES + 2..];
    }
    seen
}

#[test]
fn every_stale_item_is_won_by_its_first_reader() {
    for server in [1, 3].map(ours) {
        let value = "v".repeat(VALUE_BYTES);
        let sets: String = (0..KEYS)
            .map(|i| format!("ms {i} {VALUE_BYTES} q\r\n{value}\r\nmd {i} I q\r\n"))
            .collect();
        let reads: String = (0..KEYS).map(|i| format!("mg {i} k v\r\n")).collect();
        server.say(&[sets.as_bytes(), b"quit\r\n"]);
        let first = flags(&server.say(&[reads.as_bytes(), b"quit\r\n"]));
        assert_eq!(first.len(), KEYS);
        let lost = first.iter().filter(|(_, flags)| *flags != "X W");
        assert_eq!(lost.collect::<Vec<_>>(), []);
        let second = flags(&server.say(&[reads.as_bytes(), b"quit\r\n"]));
        assert!(second.values().all(|flags| flags == "Z X"), "{second:?}");
    }
}
