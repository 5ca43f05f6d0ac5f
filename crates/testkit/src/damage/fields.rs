//! Fields of every structure, as targets for damage.

use floe_format::layout::{le16_at, le32_at};

use crate::volume::Place;

/// A number inside a structure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// The kernel's name, with an index for arrays.
    pub name: String,
    /// First byte.
    pub at: usize,
    /// Bytes: 1, 2, 4 or 8.
    pub size: usize,
    /// Big-endian (jbd2).
    pub big: bool,
}

impl Field {
    fn new(name: impl Into<String>, at: usize, size: usize) -> Self {
        Self { name: name.into(), at, size, big: false }
    }

    /// Its value; 0 past the end of `bytes`.
    pub fn get(&self, bytes: &[u8]) -> u64 {
        let Some(bytes) = bytes.get(self.at..self.at + self.size) else { return 0 };
        let join = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
        if self.big { bytes.iter().fold(0, join) } else { bytes.iter().rev().fold(0, join) }
    }

    /// Sets the value, truncated to the field's size; ignores a field past the end of `bytes`.
    pub fn put(&self, bytes: &mut [u8], value: u64) {
        let Some(bytes) = bytes.get_mut(self.at..self.at + self.size) else { return };
        let stored = value.to_le_bytes();
        bytes.copy_from_slice(&stored[..self.size]);
        if self.big {
            bytes.reverse();
        }
    }
}

type Table = &'static [(&'static str, usize, usize)];

const SUPERBLOCK: Table = &[
    ("s_inodes_count", 0x00, 4),
    ("s_blocks_count_lo", 0x04, 4),
    ("s_r_blocks_count_lo", 0x08, 4),
    ("s_free_blocks_count_lo", 0x0c, 4),
    ("s_free_inodes_count", 0x10, 4),
    ("s_first_data_block", 0x14, 4),
    ("s_log_block_size", 0x18, 4),
    ("s_log_cluster_size", 0x1c, 4),
    ("s_blocks_per_group", 0x20, 4),
    ("s_clusters_per_group", 0x24, 4),
    ("s_inodes_per_group", 0x28, 4),
    ("s_mtime", 0x2c, 4),
    ("s_wtime", 0x30, 4),
    ("s_mnt_count", 0x34, 2),
    ("s_max_mnt_count", 0x36, 2),
    ("s_magic", 0x38, 2),
    ("s_state", 0x3a, 2),
    ("s_errors", 0x3c, 2),
    ("s_minor_rev_level", 0x3e, 2),
    ("s_lastcheck", 0x40, 4),
    ("s_checkinterval", 0x44, 4),
    ("s_creator_os", 0x48, 4),
    ("s_rev_level", 0x4c, 4),
    ("s_first_ino", 0x54, 4),
    ("s_inode_size", 0x58, 2),
    ("s_block_group_nr", 0x5a, 2),
    ("s_feature_compat", 0x5c, 4),
    ("s_feature_incompat", 0x60, 4),
    ("s_feature_ro_compat", 0x64, 4),
    ("s_uuid", 0x68, 4),
    ("s_reserved_gdt_blocks", 0xce, 2),
    ("s_journal_uuid", 0xd0, 4),
    ("s_journal_inum", 0xe0, 4),
    ("s_journal_dev", 0xe4, 4),
    ("s_last_orphan", 0xe8, 4),
    ("s_hash_seed", 0xec, 4),
    ("s_def_hash_version", 0xfc, 1),
    ("s_jnl_backup_type", 0xfd, 1),
    ("s_desc_size", 0xfe, 2),
    ("s_default_mount_opts", 0x100, 4),
    ("s_first_meta_bg", 0x104, 4),
    ("s_mkfs_time", 0x108, 4),
    ("s_jnl_blocks", 0x10c, 4),
    ("s_blocks_count_hi", 0x150, 4),
    ("s_r_blocks_count_hi", 0x154, 4),
    ("s_free_blocks_count_hi", 0x158, 4),
    ("s_min_extra_isize", 0x15c, 2),
    ("s_want_extra_isize", 0x15e, 2),
    ("s_flags", 0x160, 4),
    ("s_mmp_update_interval", 0x166, 2),
    ("s_mmp_block", 0x168, 8),
    ("s_log_groups_per_flex", 0x174, 1),
    ("s_checksum_type", 0x175, 1),
    ("s_encryption_level", 0x176, 1),
    ("s_error_count", 0x194, 4),
    ("s_usr_quota_inum", 0x240, 4),
    ("s_grp_quota_inum", 0x244, 4),
    ("s_overhead_clusters", 0x248, 4),
    ("s_backup_bgs[0]", 0x24c, 4),
    ("s_backup_bgs[1]", 0x250, 4),
    ("s_lpf_ino", 0x268, 4),
    ("s_prj_quota_inum", 0x26c, 4),
    ("s_checksum_seed", 0x270, 4),
    ("s_encoding", 0x27c, 2),
    ("s_encoding_flags", 0x27e, 2),
    ("s_orphan_file_inum", 0x280, 4),
];

const DESCRIPTOR: Table = &[
    ("bg_block_bitmap_lo", 0x00, 4),
    ("bg_inode_bitmap_lo", 0x04, 4),
    ("bg_inode_table_lo", 0x08, 4),
    ("bg_free_blocks_count_lo", 0x0c, 2),
    ("bg_free_inodes_count_lo", 0x0e, 2),
    ("bg_used_dirs_count_lo", 0x10, 2),
    ("bg_flags", 0x12, 2),
    ("bg_block_bitmap_csum_lo", 0x18, 2),
    ("bg_inode_bitmap_csum_lo", 0x1a, 2),
    ("bg_itable_unused_lo", 0x1c, 2),
    ("bg_checksum", 0x1e, 2),
];

const DESCRIPTOR_HIGH: Table = &[
    ("bg_block_bitmap_hi", 0x20, 4),
    ("bg_inode_bitmap_hi", 0x24, 4),
    ("bg_inode_table_hi", 0x28, 4),
    ("bg_free_blocks_count_hi", 0x2c, 2),
    ("bg_free_inodes_count_hi", 0x2e, 2),
    ("bg_used_dirs_count_hi", 0x30, 2),
    ("bg_itable_unused_hi", 0x32, 2),
];

const INODE: Table = &[
    ("i_mode", 0x00, 2),
    ("i_uid", 0x02, 2),
    ("i_size_lo", 0x04, 4),
    ("i_atime", 0x08, 4),
    ("i_mtime", 0x10, 4),
    ("i_dtime", 0x14, 4),
    ("i_links_count", 0x1a, 2),
    ("i_blocks_lo", 0x1c, 4),
    ("i_flags", 0x20, 4),
    ("i_flags", 0x20, 4),
    ("i_version", 0x24, 4),
    ("i_generation", 0x64, 4),
    ("i_file_acl_lo", 0x68, 4),
    ("i_size_high", 0x6c, 4),
    ("i_faddr", 0x70, 4),
    ("i_blocks_high", 0x74, 2),
    ("i_file_acl_high", 0x76, 2),
    ("i_checksum_lo", 0x7c, 2),
];

const INODE_EXTRA: Table = &[
    ("i_extra_isize", 0x80, 2),
    ("i_checksum_hi", 0x82, 2),
    ("i_ctime_extra", 0x84, 4),
    ("i_crtime", 0x90, 4),
    ("i_projid", 0x9c, 4),
];

const JOURNAL: Table = &[
    ("h_magic", 0x00, 4),
    ("h_blocktype", 0x04, 4),
    ("s_blocksize", 0x0c, 4),
    ("s_maxlen", 0x10, 4),
    ("s_first", 0x14, 4),
    ("s_sequence", 0x18, 4),
    ("s_start", 0x1c, 4),
    ("s_errno", 0x20, 4),
    ("s_feature_compat", 0x24, 4),
    ("s_feature_incompat", 0x28, 4),
    ("s_feature_ro_compat", 0x2c, 4),
    ("s_nr_users", 0x40, 4),
    ("s_checksum_type", 0x50, 1),
    ("s_num_fc_blks", 0x54, 4),
    ("s_checksum", 0xfc, 4),
];

const MMP: Table = &[
    ("mmp_magic", 0, 4),
    ("mmp_seq", 4, 4),
    ("mmp_time", 8, 8),
    ("mmp_check_interval", 0x70, 2),
    ("mmp_checksum", 1020, 4),
];

const QUOTA: Table = &[
    ("dqh_magic", 0, 4),
    ("dqh_version", 4, 4),
    ("dqi_bgrace", 8, 4),
    ("dqi_flags", 16, 4),
    ("dqi_blocks", 20, 4),
    ("dqi_free_blk", 24, 4),
];

/// The fields of a structure with content `bytes`; empty for bitmaps.
pub fn fields_of(place: Place, bytes: &[u8]) -> Vec<Field> {
    let mut fields = Vec::new();
    match place {
        Place::Superblock | Place::Backup(_) => table(&mut fields, SUPERBLOCK),
        Place::Descriptor(_) => {
            table(&mut fields, DESCRIPTOR);
            if bytes.len() >= 64 {
                table(&mut fields, DESCRIPTOR_HIGH);
            }
        }
        Place::Inode(_) => inode(&mut fields, bytes),
        Place::ExtentNode(..) => extent_node(&mut fields, 0, bytes),
        Place::Indirect(..) => words(&mut fields, "pointer", 0, bytes.len() / 4),
        Place::DirBlock(..) => entries(&mut fields, bytes),
        Place::DirIndex(..) => index(&mut fields, bytes),
        Place::XattrBlock(..) => {
            words(&mut fields, "xattr header", 0, 5);
            attributes(&mut fields, 32, bytes);
        }
        Place::JournalSuperblock(_) => {
            table(&mut fields, JOURNAL);
            fields.iter_mut().for_each(|field| field.big = true);
        }
        Place::OrphanBlock(..) => {
            words(&mut fields, "orphan slot", 0, 8);
            words(&mut fields, "orphan tail", bytes.len().saturating_sub(8), 2);
        }
        Place::Mmp(_) => table(&mut fields, MMP),
        Place::QuotaBlock(..) => {
            table(&mut fields, QUOTA);
            words(&mut fields, "quota word", 32, bytes.len().min(512) / 4 - 8);
        }
        Place::LinkTarget(..) => {
            fields.extend((0..64).map(|at| Field::new(format!("target byte {at}"), at, 1)));
        }
        Place::BlockBitmap(..) | Place::InodeBitmap(..) => {}
    }
    fields.retain(|field| field.at + field.size <= bytes.len());
    fields
}

fn table(fields: &mut Vec<Field>, table: Table) {
    fields.extend(table.iter().map(|&(name, at, size)| Field::new(name, at, size)));
}

fn words(fields: &mut Vec<Field>, name: &str, at: usize, count: usize) {
    fields.extend((0..count).map(|word| Field::new(format!("{name} {word}"), at + 4 * word, 4)));
}

fn inode(fields: &mut Vec<Field>, bytes: &[u8]) {
    table(fields, INODE);
    let extents = le32_at(bytes, 0x20).is_some_and(|flags| flags & 0x0008_0000 != 0);
    if extents {
        extent_node(fields, 0x28, &bytes[..0x64]);
    } else {
        words(fields, "i_block", 0x28, 15);
    }
    if bytes.len() > 128 {
        table(fields, INODE_EXTRA);
        let area = 128 + usize::from(le16_at(bytes, 128).unwrap_or(0));
        if le32_at(bytes, area) == Some(0xea02_0000) {
            fields.push(Field::new("in-inode attribute magic", area, 4));
            attributes(fields, area + 4, bytes);
        }
    }
}

/// A node whose header lies at `start`; `bytes` ends with the node.
fn extent_node(fields: &mut Vec<Field>, start: usize, bytes: &[u8]) {
    for (name, at, size) in
        [("eh_magic", 0, 2), ("eh_entries", 2, 2), ("eh_max", 4, 2), ("eh_depth", 6, 2)]
    {
        fields.push(Field::new(name, start + at, size));
    }
    let leaf = le16_at(bytes, start + 6) == Some(0);
    for entry in 0..usize::from(le16_at(bytes, start + 2).unwrap_or(0)) {
        let at = start + 12 * (entry + 1);
        let parts: [(&str, usize, usize); 4] = if leaf {
            [("ee_block", 0, 4), ("ee_len", 4, 2), ("ee_start_hi", 6, 2), ("ee_start_lo", 8, 4)]
        } else {
            [("ei_block", 0, 4), ("ei_leaf_lo", 4, 4), ("ei_leaf_hi", 8, 2), ("ei_unused", 10, 2)]
        };
        fields.extend(
            parts
                .iter()
                .map(|&(name, part, size)| Field::new(format!("{name}[{entry}]"), at + part, size)),
        );
    }
}

fn entries(fields: &mut Vec<Field>, bytes: &[u8]) {
    let mut at = 0;
    while let Some(rec_len) = le16_at(bytes, at + 4) {
        let name_len = usize::from(bytes.get(at + 6).copied().unwrap_or(0));
        for (name, part, size) in
            [("inode", 0, 4), ("rec_len", 4, 2), ("name_len", 6, 1), ("file_type", 7, 1)]
        {
            fields.push(Field::new(format!("entry {at:#x} {name}"), at + part, size));
        }
        if name_len > 0 {
            fields.push(Field::new(format!("entry {at:#x} name"), at + 8, 1));
            fields.push(Field::new(format!("entry {at:#x} last of name"), at + 7 + name_len, 1));
        }
        if rec_len < 8 {
            break;
        }
        at += usize::from(rec_len);
    }
}

fn index(fields: &mut Vec<Field>, bytes: &[u8]) {
    // An index node starts with one empty entry, an index root with `.` and `..`.
    let count_at = if le32_at(bytes, 0) == Some(0) {
        table(fields, &[("fake inode", 0, 4), ("fake rec_len", 4, 2)]);
        8
    } else {
        table(
            fields,
            &[
                ("'.' inode", 0, 4),
                ("'.' rec_len", 4, 2),
                ("'..' inode", 12, 4),
                ("'..' rec_len", 16, 2),
                ("reserved_zero", 24, 4),
                ("hash_version", 28, 1),
                ("info_length", 29, 1),
                ("indirect_levels", 30, 1),
                ("unused_flags", 31, 1),
            ],
        );
        32
    };
    fields.push(Field::new("limit", count_at, 2));
    fields.push(Field::new("count", count_at + 2, 2));
    fields.push(Field::new("block[0]", count_at + 4, 4));
    for entry in 1..usize::from(le16_at(bytes, count_at + 2).unwrap_or(0)) {
        fields.push(Field::new(format!("hash[{entry}]"), count_at + 8 * entry, 4));
        fields.push(Field::new(format!("block[{entry}]"), count_at + 8 * entry + 4, 4));
    }
}

fn attributes(fields: &mut Vec<Field>, start: usize, bytes: &[u8]) {
    let mut at = start;
    while le32_at(bytes, at).is_some_and(|head| head != 0) {
        let name_len = usize::from(bytes[at]);
        for (name, part, size) in [
            ("e_name_len", 0, 1),
            ("e_name_index", 1, 1),
            ("e_value_offs", 2, 2),
            ("e_value_inum", 4, 4),
            ("e_value_size", 8, 4),
            ("e_hash", 12, 4),
        ] {
            fields.push(Field::new(format!("attribute {at:#x} {name}"), at + part, size));
        }
        if name_len > 0 {
            fields.push(Field::new(format!("attribute {at:#x} name"), at + 16, 1));
        }
        at += (16 + name_len).next_multiple_of(4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_read_back_what_was_put() {
        let mut bytes = [0; 16];
        for big in [false, true] {
            for size in [1, 2, 4, 8] {
                let field = Field { name: String::new(), at: 3, size, big };
                field.put(&mut bytes, 0x0102_0304_0506_0708);
                let mask = u64::MAX >> (64 - 8 * size);
                assert_eq!(field.get(&bytes), 0x0102_0304_0506_0708 & mask);
            }
        }
        // Past the end: no effect, and no panic.
        let field = Field { name: String::new(), at: 15, size: 4, big: false };
        field.put(&mut bytes, 1);
        assert_eq!(field.get(&bytes), 0);
    }
}
