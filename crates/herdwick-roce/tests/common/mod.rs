//! The fixture of the engine's tests: memory and a network in plain vectors.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "each test uses a part, and none is a library"
)]

pub mod chance;
pub mod packet;
pub mod siege;
pub mod stage;

use std::{collections::VecDeque, ops::Range};

use herdwick_fabric::RegionId;
use herdwick_roce::{FlowId, Memory, Wire};

/// Registered memory, one vector for each region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memories {
    regions: Vec<(RegionId, Vec<u8>)>,
}

impl Memories {
    /// Adds zeroed memory for a region that the engine has registered.
    pub fn add(&mut self, region: RegionId, len: usize) {
        self.regions.push((region, vec![0; len]));
    }

    /// Returns the bytes of a region.
    pub fn of(&self, region: RegionId) -> &[u8] {
        let found = self.regions.iter().find(|(id, _)| *id == region);
        &found.expect("a region that was added").1
    }

    /// Returns the bytes of a region, for changing.
    pub fn of_mut(&mut self, region: RegionId) -> &mut [u8] {
        let found = self.regions.iter_mut().find(|(id, _)| *id == region);
        &mut found.expect("a region that was added").1
    }

    fn word(&mut self, region: RegionId, offset: usize) -> (u64, &mut [u8]) {
        assert_eq!(offset % 8, 0, "the engine refuses what is not aligned");
        let bytes = &mut self.of_mut(region)[offset..offset + 8];
        (u64::from_le_bytes(bytes.try_into().unwrap()), bytes)
    }
}

impl Memory for Memories {
    fn write(&mut self, region: RegionId, offset: usize, bytes: &[u8]) {
        let range: Range<usize> = offset..offset + bytes.len();
        self.of_mut(region)[range].copy_from_slice(bytes);
    }

    fn read(&self, region: RegionId, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.of(region)[offset..offset + out.len()]);
    }

    fn fetch_add(&mut self, region: RegionId, offset: usize, add: u64) -> u64 {
        let (old, bytes) = self.word(region, offset);
        bytes.copy_from_slice(&old.wrapping_add(add).to_le_bytes());
        old
    }

    fn compare_swap(&mut self, region: RegionId, offset: usize, expected: u64, new: u64) -> u64 {
        let (old, bytes) = self.word(region, offset);
        if old == expected {
            bytes.copy_from_slice(&new.to_le_bytes());
        }
        old
    }
}

/// Packets that the engine sent, oldest first.
#[derive(Debug, Default)]
pub struct Outbox {
    pub packets: VecDeque<(FlowId, Vec<u8>)>,
}

impl Wire for Outbox {
    fn packet(&mut self, flow: FlowId, len: usize, _ordered: bool) -> Option<&mut [u8]> {
        self.packets.push_back((flow, vec![0; len]));
        self.packets
            .back_mut()
            .map(|(_, bytes)| bytes.as_mut_slice())
    }
}
