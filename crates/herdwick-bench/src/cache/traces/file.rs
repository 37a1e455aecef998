//! Reads traces from files: libCacheSim's `oracleGeneral` and CSV.

use super::table::{self, Op, Request};

/// Why a file cannot be used as a trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error(
        "'{name}' is no trace: {source}; give a file, all, or one of {known}",
        known = table::names()
    )]
    Unreadable {
        /// The name as given.
        name: String,
        /// The reason.
        source: std::io::Error,
    },
    /// The length is not a multiple of the record size.
    #[error("{name}: {bytes} bytes are no whole number of oracleGeneral's records of {RECORD}")]
    Cut {
        /// The file.
        name: String,
        /// Its length, in bytes.
        bytes: usize,
    },
    /// A CSV line is not a request.
    #[error(
        "{name}:{line}: '{text}' is no request: give time,key,size, and behind it, if you like, get, \
         set, append or delete, and the seconds that it lives"
    )]
    Line {
        /// The file.
        name: String,
        /// Number of the line, from 1.
        line: usize,
        /// Text of the line.
        text: String,
    },
    /// The trace has fewer than two requests, or no read in its second half.
    #[error("{0} has too few requests: two at least, of them one read in the second half")]
    Empty(String),
}

/// Bytes of a record: time (u32), key (u64), size (u32), position of the next access (i64),
/// little-endian and packed, as in libCacheSim's `oracleGeneralBin.h`.
const RECORD: usize = 24;

/// Reads a trace: CSV if the name ends with `.csv`, else oracleGeneral.
pub(super) fn read(name: &str) -> Result<Vec<Request>, TraceError> {
    let bytes = std::fs::read(name).map_err(|source| TraceError::Unreadable {
        name: name.to_owned(),
        source,
    })?;
    let mut requests = if name.ends_with(".csv") {
        csv(name, &String::from_utf8_lossy(&bytes))?
    } else {
        oracle_general(name, &bytes)?
    };
    // Shift to the store's time, which begins at 1 and never goes back.
    let first = requests.first().map_or(0, |request| request.second);
    let mut latest = 1;
    for request in &mut requests {
        latest = latest.max(request.second.saturating_sub(first).saturating_add(1));
        request.second = latest;
    }
    Ok(requests)
}

fn oracle_general(name: &str, bytes: &[u8]) -> Result<Vec<Request>, TraceError> {
    let (records, rest) = bytes.as_chunks::<RECORD>();
    if !rest.is_empty() {
        let (name, bytes) = (name.to_owned(), bytes.len());
        return Err(TraceError::Cut { name, bytes });
    }
    let request = |record: &[u8; RECORD]| {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| record[at + i]));
        Request {
            second: word(0),
            key: u64::from(word(4)) | u64::from(word(8)) << 32,
            size: word(12),
            ttl: 0,
            op: Op::Get,
        }
    };
    Ok(records.iter().map(request).collect())
}

/// Parses lines `time,key,size[,op[,ttl]]`. The first line is skipped if it is a heading. Keys may
/// be any text.
fn csv(name: &str, text: &str) -> Result<Vec<Request>, TraceError> {
    let mut requests = Vec::new();
    for (index, line) in text.lines().enumerate() {
        match parse(line) {
            Some(request) => requests.push(request),
            None if line.trim().is_empty() || index == 0 => {}
            None => {
                return Err(TraceError::Line {
                    name: name.to_owned(),
                    line: index + 1,
                    text: line.to_owned(),
                });
            }
        }
    }
    Ok(requests)
}

fn parse(line: &str) -> Option<Request> {
    let mut words = line.split(',').map(str::trim);
    let second: f64 = words.next()?.parse().ok()?;
    let (key, size) = (words.next()?, words.next()?.parse().ok()?);
    let op = match words.next().unwrap_or("get") {
        "get" | "" => Op::Get,
        "set" => Op::Set,
        "append" => Op::Append,
        "delete" => Op::Delete,
        _ => return None,
    };
    let ttl = match words.next() {
        None | Some("") => 0,
        Some(ttl) => ttl.parse().ok()?,
    };
    let key = key.parse().unwrap_or_else(|_| fnv(key));
    // Refuses NaN as well.
    let whole = second >= 0.0 && words.next().is_none();
    whole.then_some(Request {
        second: second as u32,
        key,
        size,
        ttl,
        op,
    })
}

/// Returns the 64-bit FNV-1a hash, used as the key if its text is no number.
fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oracle_general_format_is_parsed_as_libcachesim_writes_it() {
        // struct.pack('<IQIq', 1700000000, 0x1122334455667788, 4096, -1), by Python.
        let record = b"\x00\xf1\x53\x65\x88\x77\x66\x55\x44\x33\x22\x11\x00\x10\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff";
        let read = oracle_general("t", record).unwrap();
        let expected = Request {
            second: 1_700_000_000,
            key: 0x1122_3344_5566_7788,
            size: 4096,
            ttl: 0,
            op: Op::Get,
        };
        assert_eq!(read, [expected]);
        let cut = oracle_general("t", &record[1..]).unwrap_err();
        assert!(cut.to_string().contains("23 bytes"), "{cut}");
    }

    #[test]
    fn csv_heading_is_optional_and_errors_name_the_line() {
        let text = "time,key,size,op,ttl\n0,5,100\n1.5,user:7,20,set,60\n\n2,5,0,delete\n";
        let read = csv("t", text).unwrap();
        let shapes: Vec<_> = read
            .iter()
            .map(|r| (r.second, r.size, r.ttl, r.op))
            .collect();
        let expected = [
            (0, 100, 0, Op::Get),
            (1, 20, 60, Op::Set),
            (2, 0, 0, Op::Delete),
        ];
        assert_eq!(shapes, expected);
        assert_eq!((read[0].key, read[2].key), (5, 5));
        assert_eq!(csv("t", &text[21..]).unwrap(), read);
        for wrong in [
            "1,2",
            "1,2,x",
            "1,2,3,fetch",
            "1,2,3,get,x",
            "1,2,3,get,4,5",
            "-1,2,3",
        ] {
            let error = csv("t", &format!("0,1,1\n{wrong}"))
                .unwrap_err()
                .to_string();
            assert!(error.starts_with("t:2: "), "{error}");
        }
    }
}
