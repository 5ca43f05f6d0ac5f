//! Where new inodes go: files to their directory's group, directories spread so that each has room around it (the policy of
//! Linux' ext4, after Orlov). In a native file system lots take the part of groups.

use floe_ext4::alloc::Space;
use floe_ext4::tx::{Refusal, Tx};
use floe_format::ext::bitmap;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::{GroupNr, InodeNr};

use super::Pool;

impl Pool {
    /// A free inode for something new in the directory `parent`. `hint` spreads what begins a tree of its own: directories in
    /// the root.
    ///
    /// # Errors
    /// [`Refusal::Full`], or that bitmaps cannot be read.
    pub(crate) fn free_inode(
        &mut self,
        tx: &mut dyn Tx,
        parent: InodeNr,
        is_directory: bool,
        hint: u32,
    ) -> Result<InodeNr, Refusal> {
        let free = self.free_inodes(tx, parent, is_directory, hint, 1)?;
        free.first().copied().ok_or(Refusal::Full("inode"))
    }

    /// Promises numbers of free inodes to the caller: 1 to `most` in one group, chosen as by [`Pool::free_inode`]. Nothing
    /// on the disk changes.
    ///
    /// # Errors
    /// As [`Pool::free_inode`].
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

    /// Marks an inode as used. If its number was promised, the promise stays until [`Pool::end_reservation`], because the
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

    /// Whether an inode whose number was promised changes no block of its table but its own when it is taken. Slots get numbers
    /// in advance, so that one may be taken long before those below it.
    pub(crate) fn is_table_open(&self, inode: InodeNr) -> Result<bool, Refusal> {
        self.groups().is_table_open(inode)
    }

    /// A step towards that; returns whether it was the last one.
    pub(crate) fn open_table(&mut self, tx: &mut dyn Tx, inode: InodeNr) -> Result<bool, Refusal> {
        self.groups_mut().open_table(tx, inode)
    }

    /// Keeps the promises of numbers, and all that is freed and not durable, of a pool that is read anew.
    pub(crate) fn take_over(&mut self, before: &mut Self) {
        self.reserved_inodes = std::mem::take(&mut before.reserved_inodes);
        self.held = std::mem::take(&mut before.held);
        self.take_over_written(before);
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
        let (mut unread, cube) = (None, self.cube_of_group(home));
        for group in self.search_order(self.first_of_unit(first), count) {
            if self.damaged.contains(&group) || self.cube_of_group(group) != cube {
                continue;
            }
            let found =
                self.inodes_in(tx, group, most).map(|free| (!free.is_empty()).then_some(free));
            if let Some(free) = self.unless_unread(group, found, &mut unread)? {
                return Ok(free);
            }
        }
        if cube > 0 && self.grow(tx, cube)? {
            return self.free_inodes(tx, parent, is_directory, hint, most);
        }
        // An inode whose bitmap cannot be read may be free.
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

    /// The first group of the lot of a group, whose inode tables are filled in order, so that what is in use of them lies
    /// together; the group itself in a stock file system.
    fn first_of_unit(&self, group: GroupNr) -> GroupNr {
        GroupNr(group.0 - group.0 % self.unit_groups())
    }

    /// Groups among which new directories are spread as one: those of a lot, or one.
    fn unit_groups(&self) -> u32 {
        self.lot_groups().max(1)
    }

    /// The group in which data of a file go first. In a native file system, where inodes tell nothing of it, it is one of the
    /// file's lot by its directory: files of a directory lie together, and those of others elsewhere.
    pub(crate) fn home_of_data(
        &self,
        file: InodeNr,
        directory: Option<InodeNr>,
    ) -> Option<GroupNr> {
        let geo = self.groups.geometry();
        let (group, _) = geo.place_of(file)?;
        let lot = self.regions.groups_of(group, geo.group_count);
        let Some(directory) = directory.filter(|_| lot.end > lot.start) else { return Some(group) };
        Some(GroupNr(lot.start + directory.0 % (lot.end - lot.start)))
    }

    /// The unit with the fewest directories among those with at least the average of free inodes and clusters, from the one
    /// on that `hint` says.
    fn spread(&self, hint: u32) -> GroupNr {
        let unit_groups = self.unit_groups();
        let all: Vec<Unit> =
            self.groups.descs().chunks(unit_groups as usize).map(Unit::of).collect();
        let count = all.len().max(1);
        let inodes = self.groups.free_inodes() / count as u64;
        let clusters = self.free_clusters / count as u64;
        let first = hint as usize % count;
        let good = (first..all.len()).chain(0..first).filter(|&at| {
            let unit = &all[at];
            unit.free_inodes > 0 && unit.free_inodes >= inodes && unit.free_clusters >= clusters
        });
        let best = good.min_by_key(|&at| all[at].directories);
        // Numbers of groups fit 32 bits.
        GroupNr(best.unwrap_or(first) as u32 * unit_groups)
    }

    /// The first unit from a directory's own on that is not much fuller than the average.
    fn beside(&self, home: GroupNr) -> GroupNr {
        let (descs, geo) = (self.groups.descs(), self.groups.geometry());
        let unit_groups = self.unit_groups();
        let units = u64::from(geo.group_count.div_ceil(unit_groups).max(1));
        let quarter = |of_group: u32| u64::from(of_group / 4) * u64::from(unit_groups);
        let least_inodes = (self.groups.free_inodes() / units)
            .saturating_sub(quarter(geo.inodes_per_group))
            .max(1);
        let least_clusters =
            (self.free_clusters / units).saturating_sub(quarter(geo.clusters_per_group));
        let (order, cube) = (
            self.search_order(self.first_of_unit(home), geo.group_count),
            self.cube_of_group(self.first_of_unit(home)),
        );
        let mut firsts = order.filter(|group| {
            group.0.is_multiple_of(unit_groups) && self.cube_of_group(*group) == cube
        });
        let is_good = |first: &GroupNr| {
            let from = descs.get(first.0 as usize..).unwrap_or_default();
            let unit = Unit::of(&from[..from.len().min(unit_groups as usize)]);
            unit.free_inodes >= least_inodes && unit.free_clusters >= least_clusters
        };
        firsts.find(is_good).unwrap_or(home)
    }
}

/// Free inodes and blocks of a lot, or of a group of a stock file system.
struct Unit {
    free_inodes: u64,
    free_clusters: u64,
    directories: u64,
}

impl Unit {
    fn of(descs: &[GroupDesc]) -> Self {
        let sum =
            |count: fn(&GroupDesc) -> u32| descs.iter().map(|desc| u64::from(count(desc))).sum();
        Self {
            free_inodes: sum(|desc| desc.free_inodes_count),
            free_clusters: sum(|desc| desc.free_blocks_count),
            directories: sum(|desc| desc.used_dirs_count),
        }
    }
}
