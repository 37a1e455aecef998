//! Items and gaps, beside the tables of docs/store.md: each field where the page has it, each form read as
//! it was written, no flipped bit taken for an item.

use herdwick_conformance::document;
use herdwick_layout::item::{
    Form, Found, Header, bit, bury, checksum, examine, footprint, gap_before, is_lined, put_gap,
    put_header, seal, seal_staged, step, touch,
};
use herdwick_layout::published::Word;
use herdwick_request::{Deadline, Second};
use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

const STORE_MD: &str = include_str!("../../../docs/store.md");
const KEY: &[u8] = b"a key of sixteen";
const VALUE: &[u8] = b"a value, which has thirty-two ..";

fn header(form: Form) -> Header {
    let header = Header {
        key_len: KEY.len() as u8,
        bits: bit::with_level(bit::FETCHED | bit::STALE | bit::USED, 5),
        form,
        value_len: VALUE.len() as u32,
        version: 0x12_3456_789a,
        accessed: 0xab_cdef,
        ..Header::default()
    };
    match form {
        Form::Compact => header,
        Form::Extended | Form::Full => Header {
            flags: 0x0f1e_2d3c,
            deadline: Deadline(0x4b5a_6978),
            version: header.version | (form as u64 - 1) << 56,
            ..header
        },
    }
}

/// Writes an item, and returns its bytes, the padding included.
fn item(header: &Header) -> Vec<u8> {
    let mut bytes = vec![0; header.footprint()];
    let item = &mut bytes[..header.end()];
    put_header(item, header);
    item[header.form.bytes()..header.front()].copy_from_slice(KEY);
    item[header.front()..].copy_from_slice(VALUE);
    seal(item);
    bytes
}

#[test]
fn each_field_is_where_the_page_has_it() {
    let forms = [Form::Compact, Form::Extended, Form::Full];
    for (section, form) in ["compact", "extended", "full"].into_iter().zip(forms) {
        let header = header(form);
        let bytes = item(&header);
        let short = if form == Form::Full { 0 } else { VALUE.len() };
        let expected = |name: &str| match name {
            "key_len" => KEY.len() as u64,
            "bits" => u64::from(header.bits),
            "shape" => (short | (form as usize) << 12) as u64,
            "flags" => u64::from(header.flags),
            "stamp" => u64::from(header.accessed) | header.version << 24,
            "crc" => u64::from(checksum(&bytes[..header.end()])),
            "deadline" => u64::from(header.deadline.0),
            "value_len" => VALUE.len() as u64,
            "version_high" => header.version >> 40,
            name => panic!("{section} has a field {name}"),
        };
        let mut end = 0;
        for row in document::rows(STORE_MD, section) {
            let at: usize = row[1].parse().unwrap();
            assert_eq!(at, end, "{section}: {}", row[0]);
            if row[0] == "key" {
                break;
            }
            end = at + row[2].parse::<usize>().unwrap();
            let mut field = [0; 8];
            field[..end - at].copy_from_slice(&bytes[at..end]);
            assert_eq!(
                u64::from_le_bytes(field),
                expected(row[0]),
                "{section}: {}",
                row[0]
            );
        }
        assert_eq!(end, form.bytes());
        assert!(bytes[end..].starts_with(&[KEY, VALUE].concat()));
    }
}

#[test]
fn bits_are_those_of_the_page() {
    let bits = [
        ("FETCHED", bit::FETCHED),
        ("STALE", bit::STALE),
        ("WIN_SENT", bit::WIN_SENT),
        ("USED", bit::USED),
        ("LEVEL", bit::LEVEL),
        ("STAGED", bit::STAGED),
    ];
    let bits = bits.map(|(name, code)| (name.to_owned(), code));
    document::assert_drawn(STORE_MD, "bits", &document::code_table("bit", bits));
}

#[test]
fn words_of_published_memory_are_those_of_the_page() {
    let words = [
        ("Magic", Word::Magic),
        ("Buckets", Word::Buckets),
        ("Segments", Word::Segments),
        ("SegmentBytes", Word::SegmentBytes),
        ("Index", Word::Index),
        ("Items", Word::Items),
        ("Clock", Word::Clock),
        ("Flushed", Word::Flushed),
        ("FlushAt", Word::FlushAt),
        ("Runs", Word::Runs),
    ];
    let rows = document::rows(STORE_MD, "words");
    let rows = rows.iter().map(|row| (row[0], row[1].parse().unwrap()));
    assert!(rows.eq(words.map(|(name, word)| (name, word as usize))));
}

#[test]
fn gap_is_that_of_the_page_and_is_passed_over() {
    let rows = document::rows(STORE_MD, "gap");
    let places: Vec<_> = rows.iter().map(|row| (row[0], row[1], row[2])).collect();
    assert_eq!(
        places,
        [("zero", "0", "2"), ("check", "2", "2"), ("len", "4", "4")]
    );
    let mut bytes = [0xff; 64];
    put_gap(&mut bytes, 40);
    assert_eq!(
        (&bytes[..2], &bytes[4..8]),
        (&[0; 2][..], &40u32.to_le_bytes()[..])
    );
    assert_eq!((step(&bytes), examine(&bytes)), (40, Found::Dead(40)));
    assert_eq!(
        examine(&bytes[..32]),
        Found::Damaged,
        "it ends behind the bytes"
    );
    for bit in 0..64 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(examine(&bytes), Found::Damaged, "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn sixteen_byte_key_with_a_value_of_32_bytes_takes_a_line() {
    assert_eq!(item(&header(Form::Compact)).len(), 64);
}

/// Of each form, live, dead and reserved.
#[test]
fn flipped_bit_is_never_taken_for_an_item() {
    for form in [Form::Compact, Form::Extended, Form::Full] {
        let header = header(form);
        let live = item(&header);
        assert_eq!(examine(&live), Found::Item(live.len()));
        let mut dead = live.clone();
        bury(&mut dead);
        assert_eq!(examine(&dead), Found::Dead(dead.len()));
        let mut staged = live.clone();
        let bits = bit::STAGED;
        put_header(&mut staged, &Header { bits, ..header });
        seal_staged(&mut staged);
        assert_eq!(examine(&staged), Found::Dead(staged.len()));
        for flip in 0..header.end() * 8 {
            for (bytes, is_live) in [(&live, true), (&dead, false), (&staged, false)] {
                let mut bytes = bytes.clone();
                bytes[flip / 8] ^= 1 << (flip % 8);
                if let Found::Item(_) = examine(&bytes) {
                    assert!(is_live, "{form:?}: bit {flip} revives it");
                    let read = Header::read(&bytes);
                    let (bits, accessed) = (read.bits, read.accessed);
                    assert_eq!(
                        read,
                        Header {
                            bits,
                            accessed,
                            ..header
                        }
                    );
                    assert_eq!((bits ^ header.bits) & (bit::STALE | bit::STAGED), 0);
                    assert_eq!(bytes[form.bytes()..], live[form.bytes()..]);
                }
            }
        }
    }
}

/// The word that holds checksum and deadline is the only one that a touch changes.
#[test]
fn touch_changes_one_word() {
    for value_len in [32, 100_000] {
        let header = Header {
            value_len,
            ..header(Form::Full)
        };
        let mut bytes = vec![7; header.end()];
        put_header(&mut bytes, &header);
        seal(&mut bytes);
        let before = bytes.clone();
        touch(&mut bytes, Deadline(77));
        assert_eq!(bytes[..16], before[..16]);
        assert_eq!(bytes[24..], before[24..]);
        assert_eq!(Header::read(&bytes).deadline, Deadline(77));
        assert_eq!(checksum(&bytes).to_le_bytes(), bytes[16..20]);
    }
}

proptest! {
    #[test]
    fn header_is_read_as_it_was_written(
        (key_len, bits, value_len) in (1..=250u8, any::<u8>(), 0..1u32 << 30),
        (flags, deadline, accessed) in (any::<u32>(), any::<u32>(), 0..1u32 << 24),
        (version, small, plain) in (any::<u64>(), any::<bool>(), any::<bool>()),
    ) {
        let written = Header {
            key_len,
            bits,
            form: Form::Compact,
            value_len: if small { value_len % 5000 } else { value_len },
            flags: if plain { 0 } else { flags },
            deadline: Deadline(if plain { 0 } else { deadline }),
            version: if small { version >> 23 } else { version },
            accessed,
        }
        .fitting();
        let mut bytes = [0xff; 32];
        put_header(&mut bytes, &written);
        prop_assert_eq!(Header::read(&bytes), written);
        for longer in [Form::Extended, Form::Full] {
            let written = Header { form: written.form.max(longer), ..written };
            put_header(&mut bytes, &written);
            prop_assert_eq!(Header::read(&bytes), written);
        }
    }

    #[test]
    fn last_access_is_known_for_194_days(since in 0..1u32 << 24, idle in 0..1u32 << 24) {
        let (then, now) = (Second(since), Second(since + idle));
        let header = Header { accessed: then.0 & 0xff_ffff, ..Header::default() };
        prop_assert_eq!(header.last_access(now), then);
    }

    /// Items of any sizes, one behind the other.
    #[test]
    fn item_that_fits_a_line_lies_within_one(lens in proptest::collection::vec(0..200usize, 1..100)) {
        let mut end = 0;
        for (n, len) in lens.into_iter().enumerate() {
            let form = [Form::Compact, Form::Extended, Form::Full][n % 3];
            let bytes = footprint(form, 1, len);
            let at = end + gap_before(end, bytes);
            prop_assert!(at.is_multiple_of(8) && at - end < 64 && bytes > form.bytes() + len);
            if form != Form::Full && form.bytes() + 1 + len <= 64 {
                prop_assert!(is_lined(bytes) && at / 64 == (at + bytes - 1) / 64);
            }
            prop_assert!(form != Form::Full || at == end);
            end = at + bytes;
        }
    }
}
