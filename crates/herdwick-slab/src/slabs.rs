//! The memory of all slabs, and which class each is cut for.

use std::{io, ops::Range};

use herdwick_mem::{Arena, prefetch_read};

use crate::{metas::Chunk, shape::Shape};

/// A slab.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slab {
    /// The class that it is cut for.
    pub(crate) class: Option<u16>,
    /// Whether its memory was touched since the system gave it.
    resident: bool,
    /// Chunks in which values are arriving.
    staged: usize,
}

/// The slabs.
pub(crate) struct Slabs {
    bytes: Arena<u8>,
    slabs: Vec<Slab>,
    vacant: Vec<u32>,
    slab_bytes: usize,
    /// Bits of a chunk's number that number it in its slab.
    shift: u32,
    /// Bytes of a chunk of each class.
    sizes: Vec<usize>,
}

impl Slabs {
    pub(crate) fn new(shape: &Shape, bytes: Arena<u8>) -> Self {
        Self {
            bytes,
            slabs: vec![Slab::default(); shape.slabs],
            vacant: (0..shape.slabs as u32).rev().collect(),
            slab_bytes: shape.slab_bytes,
            shift: shape.shift(),
            sizes: shape.sizes.clone(),
        }
    }

    pub(crate) fn slab_bytes(&self) -> usize {
        self.slab_bytes
    }

    /// Returns the class with the smallest chunks that hold `len` bytes.
    #[inline]
    pub(crate) fn class_for(&self, len: usize) -> Option<usize> {
        let class = self.sizes.partition_point(|size| *size < len);
        (class < self.sizes.len()).then_some(class)
    }

    #[inline]
    pub(crate) fn slab_of(&self, chunk: Chunk) -> u32 {
        chunk.0 >> self.shift
    }

    /// Returns the class of the slab that a chunk is in; of a chunk of no cut slab, the first class.
    #[inline]
    pub(crate) fn class_of(&self, chunk: Chunk) -> usize {
        self.class_of_slab(self.slab_of(chunk))
    }

    /// Returns the class that a slab is cut for; of a slab that is not cut, the first class.
    #[inline]
    pub(crate) fn class_of_slab(&self, slab: u32) -> usize {
        self.slabs[slab as usize].class.map_or(0, usize::from)
    }

    /// Returns whether values are arriving in a slab.
    pub(crate) fn has_staged(&self, slab: u32) -> bool {
        self.slabs[slab as usize].staged > 0
    }

    /// Counts a chunk in which a value is arriving.
    pub(crate) fn add_staged(&mut self, chunk: Chunk) {
        let slab = self.slab_of(chunk);
        self.slabs[slab as usize].staged += 1;
    }

    /// Counts it no more.
    pub(crate) fn drop_staged(&mut self, chunk: Chunk) {
        let slab = self.slab_of(chunk);
        self.slabs[slab as usize].staged -= 1;
    }

    /// Returns the chunks of a slab of a class.
    pub(crate) fn chunks(
        &self,
        slab: u32,
        class: usize,
    ) -> impl DoubleEndedIterator<Item = Chunk> + use<> {
        let first = slab << self.shift;
        (first..first + (self.slab_bytes / self.sizes[class]) as u32).map(Chunk)
    }

    /// Returns the numbers that the chunks of a slab may have, whatever its class.
    pub(crate) fn numbers(&self, slab: u32) -> Range<usize> {
        let slab = slab as usize;
        slab << self.shift..(slab + 1) << self.shift
    }

    #[inline]
    pub(crate) fn place(&self, chunk: Chunk) -> Range<usize> {
        let slab = self.slab_of(chunk);
        let size = self.sizes[self.class_of(chunk)];
        let start =
            slab as usize * self.slab_bytes + (chunk.0 - (slab << self.shift)) as usize * size;
        start..start + size
    }

    /// Returns the bytes of a chunk.
    #[inline]
    pub(crate) fn bytes(&self, chunk: Chunk) -> &[u8] {
        &self.bytes[self.place(chunk)]
    }

    #[inline]
    pub(crate) fn bytes_mut(&mut self, chunk: Chunk) -> &mut [u8] {
        let place = self.place(chunk);
        &mut self.bytes[place]
    }

    #[inline]
    pub(crate) fn prefetch(&self, chunk: Chunk) {
        prefetch_read(&self.bytes, self.place(chunk).start);
    }

    /// Copies bytes from one chunk to a place in another.
    pub(crate) fn copy(&mut self, from: (Chunk, Range<usize>), to: (Chunk, usize)) {
        let (start, at) = (self.place(from.0).start, self.place(to.0).start + to.1);
        let bytes = start + from.1.start..start + from.1.end;
        self.bytes.copy_within(bytes, at);
    }

    /// Takes a slab that is not cut, one whose memory is there if possible.
    pub(crate) fn cut(&mut self, class: usize) -> Option<u32> {
        let slab = self.vacant.pop()?;
        self.slabs[slab as usize] = Slab {
            class: Some(class as u16),
            resident: true,
            staged: 0,
        };
        Some(slab)
    }

    /// Returns a slab.
    pub(crate) fn vacate(&mut self, slab: u32) {
        self.slabs[slab as usize].class = None;
        self.vacant.push(slab);
    }

    /// Gives the memory of one slab that is not cut back to the system. Returns whether there was one,
    /// or what the system said.
    pub(crate) fn give_back(&mut self) -> io::Result<bool> {
        let slabs = &mut self.slabs;
        let resident = |slab: &&u32| slabs[**slab as usize].resident;
        let Some(slab) = self.vacant.iter().find(resident).copied() else {
            return Ok(false);
        };
        slabs[slab as usize].resident = false;
        let start = slab as usize * self.slab_bytes;
        // A huge page would come back whole for one of its slabs.
        self.bytes.allow_huge_pages(false);
        self.bytes.give_back(start..start + self.slab_bytes)?;
        // Taken last.
        self.vacant.retain(|vacant| *vacant != slab);
        self.vacant.insert(0, slab);
        Ok(true)
    }

    /// Returns how many slabs without items have memory.
    pub(crate) fn resident_vacant(&self) -> usize {
        let slabs = self.vacant.iter();
        slabs
            .filter(|slab| self.slabs[**slab as usize].resident)
            .count()
    }
}
