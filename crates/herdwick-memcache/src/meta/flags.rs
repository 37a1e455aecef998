//! The flags of meta commands. Their order matters: it is that of the reply, and `t` shows what the
//! flags before it have done.

use crate::{Keys, Refusal, number};

/// Maximum length of an opaque in bytes, its letter included.
pub(super) const OPAQUE_BYTES_MAX: usize = 32;

/// The flags of a meta command, each allowed once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags<'a> {
    /// `O`, its letter included, repeated in the reply. For `ma` it may be too long for that; the
    /// reply is then an error.
    pub opaque: &'a [u8],
    /// The flags that the reply shows, in order.
    pub returns: Returns,
    /// `q`: suppress the nominal reply.
    pub quiet: bool,
    /// `v`: return the value.
    pub value: bool,
    /// `u`: do not record the access.
    pub no_update: bool,
    /// `I`: mark the item stale; for `ms`, store an older value as stale.
    pub invalidate: bool,
    /// `x`: drop the value, keep the item.
    pub drop_value: bool,
    /// `T`: new exptime.
    pub touch: Option<u32>,
    /// `N`: exptime of an item created on a miss.
    pub vivify: Option<u32>,
    /// The final exptime of an item created on a miss: the last of `N` and `T`.
    pub made: u32,
    /// `R`: win when less time is left than this exptime.
    pub recache: Option<u32>,
    /// `T` came before `R`.
    pub touch_first: bool,
    /// `F`: the client's flags.
    pub client_flags: u32,
    /// `C`: the CAS unique to compare.
    pub compare: Option<u64>,
    /// `E`: the CAS unique to assign.
    pub unique: Option<u64>,
    /// `M`: the letter of the mode.
    pub mode: Option<u8>,
    /// `D`: the delta, 1 unless given.
    pub delta: Option<u64>,
    /// `J`: the number of an item created on a miss.
    pub initial: u64,
    /// `T` came before `t`: of a hit, `t` shows the new deadline.
    pub shows_touch: bool,
    /// The exptime that `t` shows of an item created on a miss.
    pub shows_made: u32,
}

/// Up to eight flags that a reply shows, in order: four bits each from the low end, an index into
/// `SHOWN` plus 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Returns(u32);

/// The flags that a reply can show. Each may be given once, so [`Returns`] has room for all.
const SHOWN: &[u8; 8] = b"Ocfhklst";
const _: () = assert!(SHOWN.len() <= u32::BITS as usize / 4);

impl Returns {
    #[inline]
    fn push(&mut self, letter: u8) {
        let at = SHOWN.iter().position(|&shown| shown == letter);
        let Some(code) = at else { return };
        // A code is never 0, so the highest bit that is set belongs to the last one.
        let used = (u32::BITS - self.0.leading_zeros()).div_ceil(4) * 4;
        self.0 |= (code as u32 + 1) << used;
    }
}

impl IntoIterator for Returns {
    type Item = u8;
    type IntoIter = Letters;

    fn into_iter(self) -> Letters {
        Letters(self.0)
    }
}

/// The letters of [`Returns`].
#[derive(Clone, Debug)]
pub struct Letters(u32);

impl Iterator for Letters {
    type Item = u8;

    #[inline]
    fn next(&mut self) -> Option<u8> {
        let code = (self.0 & 15).checked_sub(1)?;
        self.0 >>= 4;
        SHOWN.get(code as usize).copied()
    }
}

/// Returns whether a word with this first byte may be a flag (`mcmc_tokenize`).
pub(super) fn begins_flag(byte: u8) -> bool {
    matches!(byte, b'A'..=b'z' | b'0'..=b'9')
}

impl<'a> Flags<'a> {
    /// Decodes the flags of a command; with `b` among them also its key, by `decode_key`, which
    /// returns `None` for an invalid one. Of several errors the last is reported, except that an
    /// unknown or duplicate flag ends the decoding.
    #[inline]
    pub(super) fn read<'k>(
        decode_key: impl Fn() -> Option<&'k [u8]>,
        words: Keys<'a>,
    ) -> Result<(Self, Option<&'k [u8]>), Refusal> {
        let mut flags = Self::default();
        let mut seen = 0u128;
        let mut flaw = None;
        let mut key = None;
        for word in words {
            let letter = word[0];
            if !begins_flag(letter) {
                return Err(Refusal::Format);
            }
            // The shift is valid: the first byte of a flag is below 128.
            if seen & 1 << letter != 0 {
                return Err(Refusal::FlagDuplicate);
            }
            seen |= 1 << letter;
            if letter == b'b' {
                key = decode_key();
                if key.is_none() {
                    flaw = Some(Refusal::KeyEncoding);
                }
            } else if let Err(refusal) = flags.take(letter, word) {
                // memcached sets no error text for this one, so an earlier one stays.
                flaw = Some(match (refusal, flaw) {
                    (Refusal::FlagInvalid, _) => return Err(refusal),
                    (Refusal::Format, Some(before)) => before,
                    (refusal, _) => refusal,
                });
            }
        }
        match flaw {
            Some(refusal) => Err(refusal),
            None => Ok((flags, key)),
        }
    }

    /// Applies one flag: its letter, and the word that begins with it.
    #[inline]
    fn take(&mut self, letter: u8, word: &'a [u8]) -> Result<(), Refusal> {
        match letter {
            b'q' => self.quiet = true,
            b'v' => self.value = true,
            b'u' => self.no_update = true,
            b'I' => self.invalidate = true,
            b'x' => self.drop_value = true,
            b'k' | b's' | b'c' | b'f' | b'h' | b'l' => self.returns.push(letter),
            b'O' => {
                self.opaque = word;
                self.returns.push(letter);
            }
            b't' => self.show_time_left(),
            // Hints to memcached's proxy, which a server ignores.
            b'P' | b'L' => {}
            _ => return self.take_number(letter, &word[1..]),
        }
        Ok(())
    }

    fn take_number(&mut self, letter: u8, text: &[u8]) -> Result<(), Refusal> {
        let exptime = || number::exptime(text).ok_or(Refusal::Token);
        let unsigned = |refusal| number::unsigned(text).ok_or(refusal);
        match letter {
            b'N' => {
                self.made = exptime()?;
                self.vivify = Some(self.made);
            }
            b'T' => {
                self.made = exptime()?;
                self.touch = Some(self.made);
            }
            b'R' => {
                self.touch_first = self.touch.is_some();
                self.recache = Some(exptime()?);
            }
            b'F' => self.client_flags = number::unsigned32(text).ok_or(Refusal::Format)?,
            b'C' => self.compare = Some(unsigned(Refusal::Token)?),
            b'E' => self.unique = Some(unsigned(Refusal::Token)?),
            b'J' => self.initial = unsigned(Refusal::InitialValue)?,
            b'D' => self.delta = Some(unsigned(Refusal::DeltaValue)?),
            // Only the first letter counts. Without one, a space stands for an invalid mode.
            b'M' => self.mode = Some(text.first().copied().unwrap_or(b' ')),
            _ => return Err(Refusal::FlagInvalid),
        }
        Ok(())
    }

    /// Applies `t`. Flags take effect in order: `t` shows the effect of those before it.
    fn show_time_left(&mut self) {
        self.returns.push(b't');
        self.shows_touch = self.touch.is_some();
        self.shows_made = self.made;
    }

    /// Refuses an opaque that is too long.
    pub(super) fn check_opaque(&self) -> Result<(), Refusal> {
        if self.opaque.len() > OPAQUE_BYTES_MAX {
            return Err(Refusal::Opaque);
        }
        Ok(())
    }
}
