//! PARTS, the frame of engines other than HERD: a list of opaque blobs, with descriptors for each. The
//! server grants with one, and the client accepts with one.

use super::{
    FrameError,
    frame::{KIND_PARTS, Reader, Writer},
};

/// Most parts of a frame.
pub const PARTS_MAX: usize = 16;
/// Most bytes of a part.
pub const PART_BYTES_MAX: usize = 2048;
/// Most file descriptors of a part.
pub const PART_FDS_MAX: usize = 12;

// A frame of the most parts, each of the most bytes, fits; the descriptors of all fit one message.
pub(crate) const PARTS_BODY_MAX: usize = 1 + PARTS_MAX * (1 + 2 + PART_BYTES_MAX);
const _: () = assert!(PARTS_BODY_MAX <= u16::MAX as usize);
const _: () = assert!(PARTS_MAX * PART_FDS_MAX <= 253);

/// One blob, which only the server's engine and its client read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// The bytes.
    pub blob: Vec<u8>,
    /// Number of the frame's file descriptors that belong to it; 0 in a client's.
    pub fds: u8,
}

/// The parts of a grant or of an accept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts(pub Vec<Part>);

impl Parts {
    /// The frame: {parts u8}, then for each {fds u8, a u16 length and the bytes}.
    ///
    /// # Panics
    /// For more than [`PARTS_MAX`] parts, or more than [`PART_BYTES_MAX`] bytes in one.
    #[must_use]
    pub fn to_frame(&self) -> Vec<u8> {
        assert!(self.0.len() <= PARTS_MAX);
        let mut out = Writer::new(KIND_PARTS);
        out.u8(self.0.len() as u8);
        for part in &self.0 {
            assert!(part.blob.len() <= PART_BYTES_MAX);
            out.u8(part.fds);
            out.u16(part.blob.len() as u16);
            out.bytes(&part.blob);
        }
        out.finish()
    }

    /// Parses a body.
    ///
    /// # Errors
    /// [`FrameError::Body`].
    pub fn parse(body: &[u8]) -> Result<Self, FrameError> {
        let mut from = Reader(body);
        let count = usize::from(from.u8()?);
        if !(1..=PARTS_MAX).contains(&count) {
            return Err(FrameError::Body);
        }
        let one = |from: &mut Reader<'_>| {
            let fds = from.u8()?;
            let len = usize::from(from.u16()?);
            if len > PART_BYTES_MAX || usize::from(fds) > PART_FDS_MAX {
                return Err(FrameError::Body);
            }
            let blob = from.take(len)?.to_vec();
            Ok(Part { blob, fds })
        };
        let parts = (0..count).map(|_| one(&mut from)).collect::<Result<_, _>>();
        from.end()?;
        parts.map(Self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hello::HEADER_BYTES;

    proptest! {
        #[test]
        fn parts_round_trip_and_no_cut_of_them_is_taken(
            parts in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..40), 0u8..12), 1..=PARTS_MAX),
        ) {
            let parts = parts.into_iter().map(|(blob, fds)| Part { blob, fds });
            let parts = Parts(parts.collect());
            let frame = parts.to_frame();
            let body = &frame[HEADER_BYTES..];
            prop_assert_eq!(Parts::parse(body), Ok(parts));
            for cut in 0..body.len() {
                prop_assert_eq!(Parts::parse(&body[..cut]), Err(FrameError::Body));
            }
            let longer = [body, &[0]].concat();
            prop_assert_eq!(Parts::parse(&longer), Err(FrameError::Body));
        }

        #[test]
        fn decoding_random_bytes_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Parts::parse(&bytes);
        }
    }

    #[test]
    fn numbers_out_of_bounds_are_refused() {
        for body in [&[0][..], &[17], &[1, 13, 0, 0], &[1, 0, 1, 8]] {
            assert_eq!(Parts::parse(body), Err(FrameError::Body), "{body:?}");
        }
        assert!(Parts::parse(&[1, 12, 0, 0]).is_ok());
    }
}
