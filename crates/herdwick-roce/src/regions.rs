//! Registered regions by id and by rkey, and the check of every remote access.

use herdwick_fabric::{Access, PdId, QpId, RegionId, Remote, Rkey, Scope};

use crate::{Drop, slab::Slab, table::Table};

/// A registered region; its memory belongs to the driver.
pub(crate) struct Region {
    pub(crate) pd: PdId,
    pub(crate) len: usize,
    pub(crate) access: Access,
    pub(crate) scope: Scope,
    pub(crate) rkey: u32,
    /// The remote address of its first byte.
    pub(crate) base: u64,
}

pub(crate) struct Regions {
    slab: Slab<Region>,
    by_rkey: Table,
}

/// The queue pair that accesses remote memory for a peer, and its domain.
#[derive(Clone, Copy)]
pub(crate) struct Accessor {
    pub(crate) pd: PdId,
    pub(crate) qp: QpId,
}

/// An access right.
#[derive(Clone, Copy)]
pub(crate) enum Right {
    Read,
    Write,
    Atomic,
}

impl Regions {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            slab: Slab::new(limit),
            by_rkey: Table::new(limit),
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.slab.is_full()
    }

    pub(crate) fn limit(&self) -> usize {
        self.slab.limit()
    }

    pub(crate) fn knows_rkey(&self, rkey: u32) -> bool {
        self.by_rkey.get(rkey).is_some()
    }

    pub(crate) fn insert(&mut self, region: Region) -> Option<RegionId> {
        let rkey = region.rkey;
        let id = self.slab.insert(region)?;
        self.by_rkey.insert(rkey, id);
        Some(RegionId(id))
    }

    pub(crate) fn remove(&mut self, id: RegionId) -> Option<Region> {
        let region = self.slab.remove(id.0)?;
        self.by_rkey.remove(region.rkey);
        Some(region)
    }

    /// Removes all regions of a protection domain.
    pub(crate) fn remove_pd(&mut self, pd: PdId) {
        for id in self.slab.ids(|region| region.pd == pd) {
            self.remove(RegionId(id));
        }
    }

    #[inline]
    pub(crate) fn get(&self, id: RegionId) -> Option<&Region> {
        self.slab.get(id.0)
    }

    pub(crate) fn remote(&self, id: RegionId) -> Option<Remote> {
        let region = self.get(id)?;
        Some(Remote {
            rkey: Rkey(region.rkey),
            addr: region.base,
        })
    }

    /// Returns whether a local range lies within a region of the domain.
    #[inline]
    pub(crate) fn holds(&self, pd: PdId, local: herdwick_fabric::Local) -> bool {
        let end = local.offset.checked_add(local.len);
        self.get(local.region)
            .is_some_and(|region| region.pd == pd && end.is_some_and(|end| end <= region.len))
    }

    /// Checks rkey, domain, scope, right and range, in this order; returns the region and the
    /// offset of the first byte.
    #[inline]
    pub(crate) fn open(
        &self,
        asker: Accessor,
        remote: Remote,
        len: usize,
        right: Right,
    ) -> Result<(RegionId, usize), Drop> {
        let id = self.by_rkey.get(remote.rkey.0).ok_or(Drop::Rkey)?;
        // A region of another domain is reported as an unknown rkey, so a peer learns nothing of
        // it.
        let region = self.slab.get(id).filter(|region| region.pd == asker.pd);
        let region = region.ok_or(Drop::Rkey)?;
        if region.scope != Scope::Pd && region.scope != Scope::Qp(asker.qp) {
            return Err(Drop::Scope);
        }
        let granted = match right {
            Right::Read => region.access.remote_read,
            Right::Write => region.access.remote_write,
            Right::Atomic => region.access.remote_atomic,
        };
        if !granted {
            return Err(Drop::Right);
        }
        // The address is the peer's, so every step may overflow.
        let offset = remote.addr.checked_sub(region.base).ok_or(Drop::Range)?;
        let offset = usize::try_from(offset).map_err(|_| Drop::Range)?;
        let end = offset.checked_add(len).ok_or(Drop::Range)?;
        if end > region.len {
            return Err(Drop::Range);
        }
        Ok((RegionId(id), offset))
    }
}
