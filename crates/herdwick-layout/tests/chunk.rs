//! The chunk of a store in slabs is as docs/memrdma.md draws it.

use std::{collections::BTreeMap, ops::Range};

use herdwick_layout::chunk::{ChunkHeader, HEADER, Seal, StoreHead};
use herdwick_mem::crc32c;
use herdwick_request::Deadline;

/// Returns the bytes of each field in the document's table.
fn drawn() -> BTreeMap<String, Range<usize>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/memrdma.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, table) = text.split_once("<!-- chunk -->").unwrap();
    let (table, _) = table.split_once("<!-- end of chunk -->").unwrap();
    let rows = table.lines().filter(|line| line.starts_with('|')).skip(2);
    let fields = rows.map(|row| {
        let mut cells = row.split('|').map(str::trim).skip(1);
        let name = cells.next().unwrap().to_owned();
        let [at, len] = [(); 2].map(|()| cells.next().unwrap().parse::<usize>().unwrap());
        (name, at..at + len)
    });
    fields.collect()
}

#[test]
fn chunk_is_as_documented() {
    let (key, value) = (b"a key", b"some value");
    let header = ChunkHeader {
        key_len: key.len() as u8,
        stale: true,
        value_len: value.len() as u32,
        version: 0x0102_0304_0506_0708,
        flags: 0x1112_1314,
        deadline: Deadline(0x2122_2324),
        value_sum: crc32c(0, value),
    };
    let mut chunk = [&[0xaa; HEADER][..], key, value].concat();
    let seal = Seal {
        stag: 77,
        flushes: 5,
    };
    header.seal(&mut chunk, seal);
    let fields = drawn();
    let number = |name: &str| {
        let bytes = chunk[fields[name].clone()].iter().rev();
        bytes.fold(0u64, |number, byte| number << 8 | u64::from(*byte))
    };
    let sum = [&77u32.to_le_bytes()[..], &5u32.to_le_bytes()].concat();
    let sum = crc32c(crc32c(0, &sum), &chunk[4..header.front()]);
    for (name, due) in [
        ("sum", u64::from(sum)),
        ("key_len", 5),
        ("stale", 1),
        ("zero", 0),
        ("version", header.version),
        ("value_len", 10),
        ("flags", 0x1112_1314),
        ("deadline", 0x2122_2324),
        ("value_sum", u64::from(header.value_sum)),
    ] {
        assert_eq!(number(name), due, "{name}");
    }
    let mut places: Vec<_> = fields
        .values()
        .map(|field| (field.start, field.end))
        .collect();
    places.sort_unstable();
    let end = places.iter().fold(0, |end, (start, next)| {
        assert_eq!(end, *start);
        *next
    });
    assert_eq!((end, fields.len()), (HEADER, 9));
    let head = StoreHead {
        flushes: 1,
        flush_at: 2,
    };
    assert_eq!(head.word(), 1 | 2 << 32);
}
