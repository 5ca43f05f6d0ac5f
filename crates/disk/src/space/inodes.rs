//! Where new inodes go: files to their directory's group, directories spread so that each has room around it (the policy of
//! Linux' ext4, after Orlov).

use floe_ext4::alloc::Space;
use floe_ext4::tx::{Refusal, Tx};
use floe_format::ext::bitmap;
use floe_format::{GroupNr, InodeNr};

use super::Pool;

impl Pool {
    /// A free inode for something new in the directory `parent`, marked as used. `hint` spreads what begins a tree of its
    /// own: directories in the root.
    ///
    /// # Errors
    /// [`Refusal::Full`], or that bitmaps cannot be read or changed.
    pub(crate) fn new_inode(
        &mut self,
        tx: &mut dyn Tx,
        parent: InodeNr,
        is_directory: bool,
        hint: u32,
    ) -> Result<InodeNr, Refusal> {
        let free = self.free_inodes(tx, parent, is_directory, hint, 1)?;
        let inode = free.first().copied().ok_or(Refusal::Full("inode"))?;
        self.groups_mut().mark_inode(tx, inode, true, is_directory)?;
        Ok(inode)
    }

    /// Promises numbers of free inodes to the caller: 1 to `most` in one group, chosen as by [`Pool::new_inode`]. Nothing
    /// on the disk changes.
    ///
    /// # Errors
    /// As [`Pool::new_inode`].
    pub(crate) fn reserve_inodes(
        &mut self,
        tx: &mut dyn Tx,
        parent: InodeNr,
        is_directory: bool,
        hint: u32,
        most: usize,
    ) -> Result<Vec<InodeNr>, Refusal> {
        let free = self.free_inodes(tx, parent, is_directory, hint, most)?;
        if free.is_empty() {
            return Err(Refusal::Full("inode"));
        }
        self.reserved_inodes.extend(&free);
        Ok(free)
    }

    /// Marks an inode as used whose number was promised; the promise stays until [`Pool::end_reservation`], because the
    /// operation may fail yet.
    ///
    /// # Errors
    /// The bitmap cannot be changed.
    pub(crate) fn take_inode(
        &mut self,
        tx: &mut dyn Tx,
        inode: InodeNr,
        is_directory: bool,
    ) -> Result<(), Refusal> {
        self.groups_mut().mark_inode(tx, inode, true, is_directory).map(drop)
    }

    /// Ends the promise of a number.
    pub(crate) fn end_reservation(&mut self, inode: InodeNr) {
        self.reserved_inodes.remove(&inode);
    }

    /// The first free inode of a group.
    ///
    /// # Errors
    /// [`Refusal::Full`], or that its bitmap cannot be read.
    pub(crate) fn inode_in(&self, tx: &mut dyn Tx, group: GroupNr) -> Result<InodeNr, Refusal> {
        self.inodes_in(tx, group, 1)?.first().copied().ok_or(Refusal::Full("inode"))
    }

    /// Up to `most` inodes of one group that may be handed out; none if there are none in any group.
    fn free_inodes(
        &mut self,
        tx: &mut dyn Tx,
        parent: InodeNr,
        is_directory: bool,
        hint: u32,
        most: usize,
    ) -> Result<Vec<InodeNr>, Refusal> {
        let home = self.groups.geometry().place_of(parent).map_or(GroupNr(0), |place| place.0);
        let first = match is_directory {
            // Lots without files stay free for cubes as long as possible.
            true if parent == InodeNr::ROOT && !self.has_cubes() => self.spread(hint),
            true => self.beside(home),
            false => home,
        };
        let count = self.groups.geometry().group_count;
        let mut unread = None;
        for group in self.search_order(first, count) {
            if self.damaged.contains(&group) {
                continue;
            }
            let found =
                self.inodes_in(tx, group, most).map(|free| (!free.is_empty()).then_some(free));
            if let Some(free) = self.unless_unread(group, found, &mut unread)? {
                return Ok(free);
            }
        }
        let cube = self.cube_of_group(home);
        if cube > 0 && self.grow(tx, cube)? {
            return self.free_inodes(tx, parent, is_directory, hint, most);
        }
        // What cannot be read may be free.
        unread.map_or_else(|| Ok(Vec::new()), Err)
    }

    /// The first inodes of a group that may be handed out.
    fn inodes_in(
        &self,
        tx: &mut dyn Tx,
        group: GroupNr,
        most: usize,
    ) -> Result<Vec<InodeNr>, Refusal> {
        let mut free = Vec::new();
        if self.groups.desc(group)?.free_inodes_count == 0 {
            return Ok(free);
        }
        let geo = self.groups.geometry();
        let bytes = self.groups.inode_bitmap(tx, group)?;
        self.refuse_unsound_inodes(group, &bytes)?;
        let mut at = 0;
        while free.len() < most
            && let Some(index) = bitmap::first_clear(&bytes, at..geo.inodes_per_group)
        {
            let inode = geo.inode_at(group, index);
            let promised = self.held.holds_inode(inode) || self.reserved_inodes.contains(&inode);
            if !geo.is_reserved(inode) && !promised {
                free.push(inode);
            }
            at = index + 1;
        }
        Ok(free)
    }

    /// The group with the fewest directories among those with at least the average of free inodes and clusters, from the one
    /// on that `hint` says.
    fn spread(&self, hint: u32) -> GroupNr {
        let descs = self.groups.descs();
        let groups = descs.len().max(1) as u64;
        let inodes = self.groups.free_inodes() / groups;
        let clusters = self.free_clusters / groups;
        let first = hint as usize % descs.len().max(1);
        let good = (first..descs.len()).chain(0..first).filter(|&at| {
            let desc = &descs[at];
            desc.free_inodes_count > 0
                && u64::from(desc.free_inodes_count) >= inodes
                && u64::from(desc.free_blocks_count) >= clusters
        });
        let best = good.min_by_key(|&at| descs[at].used_dirs_count);
        // Numbers of groups fit 32 bits.
        GroupNr(best.unwrap_or(first) as u32)
    }

    /// The first group from a directory's own on that is not much fuller than the average.
    fn beside(&self, home: GroupNr) -> GroupNr {
        let (descs, geo) = (self.groups.descs(), self.groups.geometry());
        let groups = descs.len().max(1) as u64;
        let least_inodes = (self.groups.free_inodes() / groups)
            .saturating_sub(u64::from(geo.inodes_per_group / 4))
            .max(1);
        let least_clusters =
            (self.free_clusters / groups).saturating_sub(u64::from(geo.clusters_per_group / 4));
        let good = self.search_order(home, geo.group_count).into_iter().find(|at| {
            descs.get(at.0 as usize).is_some_and(|desc| {
                u64::from(desc.free_inodes_count) >= least_inodes
                    && u64::from(desc.free_blocks_count) >= least_clusters
            })
        });
        good.unwrap_or(home)
    }
}
