//! The places of inode tables.

use floe_format::{BlockNr, GroupNr, InodeNr};

use crate::frame::Frame;

/// A first inode in a table, and the place of the table.
struct Table {
    start: BlockNr,
    len_blocks: u64,
    first: InodeNr,
}

/// The inode tables of a file system, sorted by place; none if nothing says where they are.
pub(crate) struct Tables {
    tables: Vec<Table>,
    inodes_per_block: u64,
}

impl Tables {
    pub(crate) fn of(frame: &Frame) -> Self {
        let Frame { geometry, groups, .. } = frame;
        let table = |(group, start): (GroupNr, BlockNr)| Table {
            start,
            len_blocks: u64::from(geometry.inode_table_blocks),
            first: geometry.inode_at(group, 0),
        };
        let starts = groups.iter().map(|desc| desc.inode_table);
        let is_known =
            |start: &(GroupNr, BlockNr)| frame.has_tables() && geometry.contains(start.1);
        let groups = (0..geometry.group_count).map(GroupNr).zip(starts);
        let mut tables: Vec<Table> = groups.filter(is_known).map(table).collect();
        tables.sort_by_key(|table| table.start);
        let inodes_per_block = u64::from(geometry.block_size / geometry.inode_size);
        Self { tables, inodes_per_block }
    }

    /// The first inode of a block of an inode table.
    pub(crate) fn first_inode_of(&self, block: BlockNr) -> Option<InodeNr> {
        let at = self.tables.partition_point(|table| table.start <= block).checked_sub(1)?;
        let table = self.tables.get(at)?;
        let index = block.0 - table.start.0;
        // A table holds fewer than 2^32 inodes.
        (index < table.len_blocks)
            .then(|| InodeNr(table.first.0 + (index * self.inodes_per_block) as u32))
    }
}
