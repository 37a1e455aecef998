//! REPORT: what a client tells the worker of reads that it made in the store's memory itself.

use herdwick_request::{KeyHash, ReadReport};

use super::{
    BODY, BODY_BYTES_MAX, BadRequest, CONTROL_WORD, Control, HASH, Line, OVERFLOW, OVERFLOW_BYTES,
    OVERFLOW_HEAD_BYTES, OpCode, Stamp,
};

/// Bytes of a hash, and of the count before them.
const BYTES: usize = 8;
/// Most hashes of a report.
pub const REPORT_HASHES_MAX: usize = OVERFLOW_BYTES / BYTES - 1;

/// Encodes a report of `hits` reads into `line`, as the first attempt of `stamp`. The hashes, at least one and
/// all of one worker's keys, are those of some of them; what exceeds [`REPORT_HASHES_MAX`], or the length of
/// `overflow`, is left out. Returns the bytes that are in `overflow`.
pub fn encode_report(
    hits: u32,
    hashes: &[KeyHash],
    stamp: Stamp,
    line: &mut Line,
    overflow: &mut [u8],
) -> usize {
    // One place is the count's.
    let most = (overflow.len().min(OVERFLOW_BYTES) / BYTES).saturating_sub(1);
    let fits_line = BODY_BYTES_MAX / BYTES - 1;
    // With a short overflow area a report that fits the line is still sent.
    let hashes = &hashes[..hashes.len().min(most.max(fits_line))];
    let len = (1 + hashes.len()) * BYTES;
    *line = Line::default();
    // Any of the hashes: it selects the worker.
    line.0[HASH.word()] = hashes.first().map_or(0, |hash| hash.0);
    let words = [u64::from(hits)]
        .into_iter()
        .chain(hashes.iter().map(|hash| hash.0));
    if len <= BODY_BYTES_MAX {
        for (n, word) in words.enumerate() {
            line.0[BODY.word() + n] = word;
        }
        line.0[CONTROL_WORD] = Control::new(OpCode::Report, 0, 0, len as u8, stamp).0;
        return 0;
    }
    for (bytes, word) in overflow.chunks_exact_mut(BYTES).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    let crc = u64::from(crc32c::crc32c(&overflow[..len]));
    line.0[BODY.word()] = len as u64 | crc << 32;
    let head = OVERFLOW_HEAD_BYTES as u8;
    line.0[CONTROL_WORD] = Control::new(OpCode::Report, OVERFLOW, 0, head, stamp).0;
    len
}

/// Decodes the report of a line and its `body`.
///
/// # Errors
/// [`BadRequest`].
pub fn decode_report<'a>(line: &Line, body: &'a [u8]) -> Result<ReadReport<'a>, BadRequest> {
    let control = line.control();
    if control.bits() & !OVERFLOW != 0 {
        return Err(BadRequest::Attributes);
    }
    if control.key_len() != 0 {
        return Err(BadRequest::KeyLength);
    }
    match body.as_chunks::<BYTES>() {
        ([hits, hashes @ ..], []) => Ok(ReadReport {
            // The count is the client's; it feeds statistics alone.
            hits: u32::try_from(u64::from_le_bytes(*hits)).unwrap_or(u32::MAX),
            hashes,
        }),
        ([], _) => Err(BadRequest::Truncated),
        _ => Err(BadRequest::Value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Body, Epoch, Sequence};

    #[test]
    fn reports_round_trip_and_are_cut_to_what_fits() {
        let stamp = Stamp::new(Epoch::new(7).unwrap(), Sequence::new(9));
        let hashes: Vec<_> = (1..300).map(KeyHash).collect();
        for (given, room, sent) in [(1, 1024, 1), (5, 0, 5), (6, 1024, 6), (6, 0, 5)]
            .into_iter()
            .chain([(299, 1024, REPORT_HASHES_MAX), (100, 200, 24)])
        {
            let (mut line, mut overflow) = (Line::default(), vec![0; room]);
            let len = encode_report(77, &hashes[..given], stamp, &mut line, &mut overflow);
            let body = match line.body().unwrap() {
                Body::Here(body) => body,
                Body::Overflow { len: told, crc } => {
                    assert_eq!((told, crc), (len, crc32c::crc32c(&overflow[..len])));
                    &overflow[..len]
                }
            };
            let report = decode_report(&line, body).unwrap();
            assert_eq!((report.hits, line.hash()), (77, KeyHash(1)));
            assert!(
                report.hashes().eq(hashes[..sent].iter().copied()),
                "{given}"
            );
            assert_eq!(line.control().stamp(), stamp);
        }
    }

    #[test]
    fn malformed_reports_are_refused() {
        let stamp = Stamp::new(Epoch::new(7).unwrap(), Sequence::new(9));
        let mut line = Line::default();
        encode_report(1, &[KeyHash(1)], stamp, &mut line, &mut []);
        for len in [0, 1, 7, 9, 47] {
            assert!(decode_report(&line, &[0; 48][..len]).is_err(), "{len}");
        }
        for (bits, key_len) in [(0x10, 0), (0x40, 0), (0, 1)] {
            line.0[CONTROL_WORD] = Control::new(OpCode::Report, bits, key_len, 8, stamp).0;
            assert!(decode_report(&line, &[0; 8]).is_err());
        }
    }
}
