//! The data block behind a command line, as classic and meta commands share it.

use crate::{Asked, Decoded, Refusal, Refused};

/// Bytes of a value that must arrive before it is announced, so that a command line alone reserves
/// nothing.
pub const ANNOUNCED_BYTES: usize = 8 << 10;

/// The limits of data blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockLimits {
    /// The maximum length of a value.
    pub(crate) value_bytes_max: usize,
    /// Values beyond this size are announced instead of awaited.
    pub(crate) announced_bytes_min: usize,
}

/// Returns the bytes of the stream that a block of `bytes` bytes takes, with its line end.
pub(crate) fn whole_block(bytes: usize) -> u64 {
    bytes as u64 + 2
}

/// The data block behind a line.
pub(crate) enum Block<'a> {
    /// The complete block, and the offset of its end.
    Whole(&'a [u8], usize),
    /// The block has no line end at its length: nothing is stored, and the input is used up to this
    /// offset.
    Unended(usize),
    /// The block is incomplete: decode again when the input has this many bytes.
    Short(usize),
    /// The block is large, and enough of it has arrived to be announced.
    Announced,
    /// The block is larger than the server accepts: drop this many bytes of the stream.
    Oversized(u64),
}

/// Returns the refusal of a command with a data block that ends at `used`, but not in a line end.
pub(crate) fn unended<'a>(noreply: bool, used: usize) -> Decoded<'a> {
    let refusal = Refusal::DataChunk;
    Decoded::Refused {
        refused: Refused::Line { refusal, noreply },
        used,
        discard: 0,
    }
}

/// Returns a request with a block of `value_len` bytes that follows.
pub(crate) fn announced(asked: Asked<'_>, data_at: usize, value_len: usize) -> Decoded<'_> {
    Decoded::Announced {
        asked,
        used: data_at,
        value_len,
        has_line_end: true,
    }
}

/// Returns the block of `bytes` bytes that begins at `data_at` of `input`.
pub(crate) fn block(input: &[u8], data_at: usize, bytes: usize, limits: BlockLimits) -> Block<'_> {
    // Before it is awaited: such a block is dropped as it arrives, not buffered.
    if bytes > limits.value_bytes_max {
        return Block::Oversized(whole_block(bytes));
    }
    let at = data_at + bytes + 2;
    match input.get(data_at..at) {
        None if bytes > limits.announced_bytes_min => {
            let enough = data_at + ANNOUNCED_BYTES;
            if input.len() < enough {
                Block::Short(enough)
            } else {
                Block::Announced
            }
        }
        None => Block::Short(at),
        Some([value @ .., b'\r', b'\n']) => Block::Whole(value, at),
        // A lone `\n`, which ends a line, does not end a block.
        Some(_) => Block::Unended(at),
    }
}
