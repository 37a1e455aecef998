//! The layout of every byte that the two sides of a protection domain share.
//!
//! A domain is two files. The client (`client`) writes `up`, the host alone writes `down`; each
//! starts with the control area (`control`) of the side that writes it:
//!
//! ```text
//! up    client's control area | host's area: regions clients WRITE, rings into host queue pairs
//!                             | client's area: regions of the client
//! down  host's control area   | client's area: rings into client queue pairs
//!                             | host's area: regions clients only READ
//! ```
//!
//! A control area, in lines of 64 bytes:
//!
//! ```text
//! line 0        word 0 parked (the client's; the host's is on its board)
//! lines 1..5    senders: 32 words, qpn of the datagram senders of this side
//! lines 5..37   regions: 64 entries of 4 words {rkey | rights | serial, place, length, scope}
//! lines 37..69  queue pairs: 32 lines {qpn | state, cells taken, long lines taken, 0 ...}
//! ```
//!
//! Circular import with `ring` and the front page (`lib`): the sizes of messages are there;
//! the place of a ring has its shape, and a ring's control word has room for the
//! number of every sender.

use std::ops::Range;

use herdwick_fabric::{Endpoint, Qpn, Transport};
use herdwick_mem::{LINE, WORD};

use crate::ring::Shape;

/// Datagram senders of one side of one domain.
pub(crate) const SENDERS: usize = 32;
/// Remotely accessible regions of one side of one domain; the low bits of an rkey are the entry's
/// number.
pub(crate) const REGIONS: usize = 64;
/// Queue pairs of one side of one domain.
pub(crate) const QPS: usize = 32;

/// Word of the client's control area that shows whether it sleeps.
pub(crate) const PARKED_WORD: usize = 0;
const SENDERS_WORD: usize = LINE / WORD;
const REGIONS_WORD: usize = SENDERS_WORD + SENDERS;
const REGION_WORDS: usize = 4;
const QPS_WORD: usize = REGIONS_WORD + REGIONS * REGION_WORDS;
const QP_WORDS: usize = LINE / WORD;
/// Bytes of a control area, a multiple of the page size.
pub(crate) const CONTROL_BYTES: usize = 8192;
const _: () = assert!(SENDERS.is_power_of_two() && REGIONS.is_power_of_two());
const _: () = assert!(REGIONS_WORD == 5 * 8 && QPS_WORD == 37 * 8);
const _: () = assert!((QPS_WORD + QPS * QP_WORDS) * WORD <= CONTROL_BYTES);

/// Word of the control area that holds the qpn of datagram sender `index`.
pub(crate) const fn sender_word(index: usize) -> usize {
    // The index may be a peer's: the remainder keeps it inside.
    SENDERS_WORD + index % SENDERS
}

/// First of the four words of region entry `index`.
pub(crate) const fn region_word(index: usize) -> usize {
    REGIONS_WORD + index % REGIONS * REGION_WORDS
}

/// First word of the line of queue pair `index`.
pub(crate) const fn qp_word(index: usize) -> usize {
    QPS_WORD + index % QPS * QP_WORDS
}

/// Bit of a queue pair's word: it accepts what peers send.
pub(crate) const QP_READY: u64 = 1 << 32;
/// Bit of a queue pair's word: it has failed.
pub(crate) const QP_FAILED: u64 = 1 << 33;

/// The two ends of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DomainSide {
    Host,
    Client,
}

/// Most bytes of one file of a domain.
pub(crate) const FILE_BYTES_MAX: usize = 1 << 32;

/// Layout of the files of one domain, as encoded in the ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PdLayout {
    /// Random, with the colour in the low 6 bits: identifies the domain in endpoints.
    pub(crate) token: u64,
    pub(crate) up_len: usize,
    pub(crate) down_len: usize,
    /// Where the client's area starts in `up`.
    pub(crate) up_split: usize,
    /// Where the host's area starts in `down`.
    pub(crate) down_split: usize,
}

/// Bytes of a ticket's blob: magic and version, token, lengths, splits.
pub const TICKET_BYTES: usize = 6 * WORD;
const TICKET_MAGIC: u64 = u64::from_le_bytes(*b"hwshm\0\0\x01");

impl PdLayout {
    /// Bytes by which this domain's areas start later, so that equal objects of many domains do not
    /// all fall into the same cache sets.
    fn colour(&self) -> usize {
        (self.token % 64) as usize * LINE
    }

    /// The part of `up` that the host allocates from.
    pub(crate) fn up_host(&self) -> Range<usize> {
        CONTROL_BYTES + self.colour()..self.up_split
    }

    /// The part of `up` that the client allocates from.
    pub(crate) fn up_client(&self) -> Range<usize> {
        self.up_split + self.colour()..self.up_len
    }

    /// The part of `down` that the client allocates from, for the host to fill.
    pub(crate) fn down_client(&self) -> Range<usize> {
        CONTROL_BYTES + self.colour()..self.down_split
    }

    /// The part of `down` that the host allocates from.
    pub(crate) fn down_host(&self) -> Range<usize> {
        self.down_split + self.colour()..self.down_len
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let words = [
            TICKET_MAGIC,
            self.token,
            self.up_len as u64,
            self.down_len as u64,
            self.up_split as u64,
            self.down_split as u64,
        ];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Decodes a blob; `None` for anything that [`PdLayout::encode`] could not have written.
    pub(crate) fn decode(blob: &[u8]) -> Option<Self> {
        let blob: &[u8; TICKET_BYTES] = blob.try_into().ok()?;
        let size = |n| usize::try_from(word_of(blob, n)).ok();
        let layout = Self {
            token: word_of(blob, 1),
            up_len: size(2)?,
            down_len: size(3)?,
            up_split: size(4)?,
            down_split: size(5)?,
        };
        let part = |split: usize, len: usize| {
            let whole = split.is_multiple_of(PAGE) && len.is_multiple_of(PAGE);
            // Each part has at least the page of its colour, so that no range of an area is reversed.
            let lasts = split.checked_add(PAGE).is_some_and(|least| len >= least);
            whole && split >= CONTROL_BYTES + PAGE && lasts && len <= FILE_BYTES_MAX
        };
        let sound = word_of(blob, 0) == TICKET_MAGIC
            && part(layout.up_split, layout.up_len)
            && part(layout.down_split, layout.down_len);
        sound.then_some(layout)
    }
}

/// The unit of file lengths and splits.
pub(crate) const PAGE: usize = 4096;

pub(crate) fn word_of(blob: &[u8], n: usize) -> u64 {
    let bytes = blob.get(n * WORD..(n + 1) * WORD);
    let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u64::from_le_bytes)
}

/// Contents of an [`Endpoint`] of this provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QpAddress {
    pub(crate) side: DomainSide,
    pub(crate) transport: Transport,
    /// Its line in its side's control area.
    pub(crate) line: usize,
    pub(crate) qpn: Qpn,
    pub(crate) token: u64,
    /// The ring that peers write messages for it to; `None`: it accepts none.
    pub(crate) ring: Option<RingPlace>,
}

/// Location of a ring: in `down` for a client's queue pair, in `up` for a host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingPlace {
    pub(crate) offset: usize,
    pub(crate) shape: Shape,
}

impl RingPlace {
    pub(crate) fn bytes(&self) -> Range<usize> {
        self.offset..self.offset.saturating_add(self.shape.bytes())
    }
}

/// Name and version, so that an endpoint of another provider or layout is refused.
const ENDPOINT_MAGIC: [u8; 3] = *b"hs\x01";
/// Magic and small fields, token, qpn, ring offset.
const ENDPOINT_BYTES: usize = 4 * WORD;

impl QpAddress {
    pub(crate) fn encode(&self) -> Endpoint {
        let shape = self.ring.map_or(Shape::NONE, |ring| ring.shape);
        let mut blob = [0u8; ENDPOINT_BYTES];
        blob[..3].copy_from_slice(&ENDPOINT_MAGIC);
        blob[3] = self.side as u8;
        blob[4] = self.transport as u8;
        // A line is below `QPS`; the other value would be refused by `decode`.
        blob[5] = u8::try_from(self.line).unwrap_or(u8::MAX);
        blob[6] = shape.cells_log2;
        blob[7] = shape.long_log2;
        blob[8..16].copy_from_slice(&self.token.to_le_bytes());
        blob[16..24].copy_from_slice(&u64::from(self.qpn.0).to_le_bytes());
        let offset = self.ring.map_or(0, |ring| ring.offset as u64);
        blob[24..].copy_from_slice(&offset.to_le_bytes());
        Endpoint::new(&blob).expect("an endpoint of 32 bytes fits into 96")
    }

    /// Decodes an endpoint; `None` if it is malformed. Ranges are well-formed but not yet checked
    /// against a domain.
    pub(crate) fn decode(endpoint: &Endpoint) -> Option<Self> {
        let blob: &[u8; ENDPOINT_BYTES] = endpoint.as_bytes().try_into().ok()?;
        if blob[..3] != ENDPOINT_MAGIC {
            return None;
        }
        let shape = Shape {
            cells_log2: blob[6],
            long_log2: blob[7],
        };
        let ring = match usize::try_from(word_of(blob, 3)).ok()? {
            // No ring begins at 0, where the control area is.
            0 => None,
            offset => Some(RingPlace { offset, shape }),
        };
        if ring.is_some_and(|ring| !ring.shape.is_sound() || !ring.offset.is_multiple_of(LINE)) {
            return None;
        }
        let qpn = u32::try_from(word_of(blob, 2)).ok()?;
        Some(Self {
            side: *[DomainSide::Host, DomainSide::Client].get(usize::from(blob[3]))?,
            transport: *[Transport::Rc, Transport::Uc, Transport::Ud].get(usize::from(blob[4]))?,
            line: Some(usize::from(blob[5])).filter(|line| *line < QPS)?,
            qpn: Some(Qpn(qpn)).filter(|qpn| qpn.0 != 0 && qpn.0 < 1 << 24)?,
            token: word_of(blob, 1),
            ring,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address() -> QpAddress {
        QpAddress {
            side: DomainSide::Client,
            transport: Transport::Ud,
            line: 7,
            qpn: Qpn(0x12_0003),
            token: 0xdead_beef_0123_4567,
            ring: Some(RingPlace {
                offset: 8192 + 64,
                shape: Shape::for_datagrams(64),
            }),
        }
    }

    #[test]
    fn endpoints_round_trip() {
        assert_eq!(QpAddress::decode(&address().encode()), Some(address()));
        let silent = QpAddress {
            ring: None,
            ..address()
        };
        assert_eq!(QpAddress::decode(&silent.encode()), Some(silent));
    }

    #[test]
    fn tickets_round_trip_and_truncated_tickets_are_refused() {
        let layout = PdLayout {
            token: 99,
            up_len: 1 << 20,
            down_len: 1 << 16,
            up_split: 1 << 19,
            down_split: 1 << 15,
        };
        let blob = layout.encode();
        assert_eq!(PdLayout::decode(&blob), Some(layout));
        for cut in 0..blob.len() {
            assert_eq!(PdLayout::decode(&blob[..cut]), None);
        }
    }

    proptest! {
        #[test]
        fn random_tickets_give_valid_layouts_or_errors(blob in prop::collection::vec(any::<u8>(), TICKET_BYTES), sizes in prop::collection::vec(prop_oneof![0u64..1 << 40, u64::MAX - 9000..=u64::MAX], 4)) {
            let mut blob = blob;
            blob[..8].copy_from_slice(&TICKET_MAGIC.to_le_bytes());
            for (n, size) in sizes.iter().enumerate() {
                blob[16 + 8 * n..24 + 8 * n].copy_from_slice(&(size / 4096 * 4096).to_le_bytes());
            }
            if let Some(layout) = PdLayout::decode(&blob) {
                for range in [layout.up_host(), layout.up_client(), layout.down_host(), layout.down_client()] {
                    prop_assert!(range.start <= range.end);
                    prop_assert!(range.end <= layout.up_len.max(layout.down_len));
                }
            }
        }

        #[test]
        fn decoding_random_endpoints_does_not_panic(blob in prop::collection::vec(any::<u8>(), 0..40), at in 0usize..32, byte: u8) {
            QpAddress::decode(&Endpoint::new(&blob).unwrap());
            let mut forged = address().encode().as_bytes().to_vec();
            forged[at] = byte;
            if let Some(forged) = QpAddress::decode(&Endpoint::new(&forged).unwrap()) {
                prop_assert!(forged.line < QPS && forged.ring.is_none_or(|r| r.shape.is_sound()));
            }
        }
    }
}
